"""Addresses where a member may listen: who is there is not known, or it is dead.

Each is tried again and again, ever more slowly, for as long as it is worth it; islands
that were cut off from each other come together again this way.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

from p2ptrain.core.membership.types import MembershipConfig
from p2ptrain.ids import NodeId


@dataclass(slots=True)
class _Seed:
    due: float
    delay: float
    until: float  # inf for a configured one
    owner: NodeId | None = None  # who answered there last


class Seeds:
    """At most ``seeds_max`` addresses; further ones are not taken."""

    def __init__(self, config: MembershipConfig) -> None:
        self._config = config
        self._seeds: dict[str, _Seed] = {}
        self._shunned: dict[str, float] = {}  # address -> until when
        self._own: set[str] = set()

    def find(self, now: float, address: str) -> None:
        """Try this address from now on, for ever."""
        seed = self._seeds.get(address)
        if seed is not None:
            seed.until = math.inf
        else:
            self._add(address, _Seed(now, self._config.seed_retry_min_s, math.inf))

    def retry(self, now: float, address: str) -> None:
        """Try a dead member's address for a while."""
        until = now + self._config.seed_keep_s
        seed = self._seeds.get(address)
        if seed is None:
            delay = self._config.seed_retry_min_s
            self._add(address, _Seed(now + delay, delay, until))
        else:
            seed.delay = self._config.seed_retry_min_s
            seed.due = min(seed.due, now + seed.delay)

    def stop(self, address: str) -> None:
        """A member has left on purpose: retry its address only if configured."""
        seed = self._seeds.get(address)
        if seed is not None and math.isfinite(seed.until):
            del self._seeds[address]

    def forget(self, now: float, address: str) -> None:
        """Leave this address alone for ``forget_s``, even if it is found again."""
        seed = self._seeds.get(address)
        until = now + self._config.forget_s
        if seed is not None and math.isinf(seed.until):
            seed.due, seed.owner = until, None
        else:
            self._seeds.pop(address, None)
        self._shunned = {
            known: end for known, end in self._shunned.items() if end > now
        }
        if len(self._shunned) < self._config.seeds_max:
            self._shunned[address] = until

    def own(self, address: str) -> None:
        """This is our own address by another name: never try it again."""
        self._seeds.pop(address, None)
        if len(self._own) < self._config.seeds_max:
            self._own.add(address)

    def answered(self, address: str, owner: NodeId) -> None:
        """Note who answered at an address."""
        seed = self._seeds.get(address)
        if seed is not None:
            seed.owner = owner

    def due(
        self, now: float, satisfied: Callable[[str, NodeId | None], bool]
    ) -> list[str]:
        """Return the addresses to try now.

        Args:
            now: the time.
            satisfied: whether the member at an address (or its known owner) is
                alive already.
        """
        addresses: list[str] = []
        for address, seed in list(self._seeds.items()):
            if seed.until <= now:
                del self._seeds[address]
            elif seed.due <= now:
                self._reschedule(now, seed)
                if satisfied(address, seed.owner):
                    seed.due = now + self._config.seed_retry_max_s
                    seed.delay = self._config.seed_retry_min_s
                elif self._shunned.get(address, now) <= now:
                    addresses.append(address)
        return addresses

    @property
    def deadline(self) -> float:
        """When the next address is due."""
        return min((seed.due for seed in self._seeds.values()), default=math.inf)

    def _add(self, address: str, seed: _Seed) -> None:
        if address not in self._own and len(self._seeds) < self._config.seeds_max:
            seed.due = max(seed.due, self._shunned.get(address, seed.due))
            self._seeds[address] = seed

    def _reschedule(self, now: float, seed: _Seed) -> None:
        seed.due = now + seed.delay
        seed.delay = min(2 * seed.delay, self._config.seed_retry_max_s)
