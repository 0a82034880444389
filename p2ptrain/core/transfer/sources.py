"""The holders of one blob: who may be asked now, who failed, who is to blame."""

import math
import random
from dataclasses import dataclass, field

from p2ptrain.core.transfer.types import TransferConfig
from p2ptrain.ids import NodeId

SOURCES_MAX = 64


@dataclass(slots=True)
class Source:
    """One holder; ``flying`` maps the offsets it was asked for to when that was."""

    node: NodeId
    flying: dict[int, float] = field(default_factory=dict)
    took_s: float = math.inf  # its last piece; inf until it has answered
    strikes: int = 0
    struck_at: float = -math.inf
    again_at: float = -math.inf
    supplied: bool = False  # some of the bytes that are here
    alone: int = 0  # times it was to send the whole blob
    out: bool = False
    problem: str = "not asked"

    @property
    def proven(self) -> bool:
        """Whether its last word was an answer."""
        return self.took_s < math.inf and not self.strikes

    def answered(self, took_s: float) -> None:
        """It sent a piece."""
        self.took_s = took_s
        self.strikes = 0

    def drop(self, problem: str) -> None:
        """Never ask it again."""
        self.out = True
        self.problem = problem


class Sources:
    """All holders that were named.

    Args:
        config: bounds and times.
        rng: spreads the receivers of one blob over its holders.
    """

    def __init__(self, config: TransferConfig, rng: random.Random) -> None:
        self._config = config
        self._rng = rng
        self._all: dict[NodeId, Source] = {}
        self._only: Source | None = None  # while one is to send it all

    @property
    def exhausted(self) -> bool:
        """Whether nobody is left to ask or to wait for."""
        return all(each.out and not each.flying for each in self._all.values())

    @property
    def alone(self) -> bool:
        """Whether one source is to send the whole blob."""
        return self._only is not None

    def may_send(self, source: Source) -> bool:
        """Whether bytes of a source may be used."""
        return self._only is None or self._only is source

    def add(self, nodes: tuple[NodeId, ...]) -> None:
        """Note more holders."""
        fresh = [node for node in dict.fromkeys(nodes) if node not in self._all]
        self._rng.shuffle(fresh)
        for node in fresh[: SOURCES_MAX - len(self._all)]:
            self._all[node] = Source(node)

    def pick(self, now: float) -> Source | None:
        """Return the idlest source that may be asked now."""
        if self._only is not None and self._only.out:
            self._only = self._least_tried()
        some = self._all.values() if self._only is None else (self._only,)
        free = [
            each
            for each in some
            if not each.out
            and each.again_at <= now
            and len(each.flying) < (self._config.per_source if each.proven else 1)
        ]
        return min(free, key=lambda each: len(each.flying), default=None)

    def timeout_s(self, source: Source) -> float:
        """Return how long to wait: twice what a full window would take by now."""
        config = self._config
        known = source.took_s * 2 * config.per_source if source.proven else 0.0
        wait = max(config.timeout_s, known) * (1 + source.strikes)
        return min(wait, config.timeout_max_s)

    def next_again(self, now: float) -> float:
        """Return when a source's pause ends."""
        usable = [each for each in self._all.values() if not each.out]
        return min(
            (each.again_at for each in usable if each.again_at > now), default=math.inf
        )

    def asked_for(self, offset: int) -> list[Source]:
        """Return who was asked for a piece and has not answered."""
        return [each for each in self._all.values() if offset in each.flying]

    def landed(self, node: NodeId, offset: int) -> tuple[Source, float] | None:
        """Take a request off the list; return whose it was and when it was made."""
        source = self._all.get(node)
        asked_at = source.flying.pop(offset, None) if source else None
        return None if source is None or asked_at is None else (source, asked_at)

    def strike(self, source: Source, asked_at: float, now: float, reason: str) -> None:
        """Leave a source alone for a while, or for good when it keeps failing."""
        source.problem = reason
        if asked_at <= source.struck_at:
            return  # asked before its last failure: a whole window fails but once
        source.strikes += 1
        source.struck_at = now
        pause = self._config.pause_min_s * 2 ** (source.strikes - 1)
        source.again_at = now + min(pause, self._config.pause_max_s)
        if source.strikes >= self._config.strikes:
            source.out = True

    def blame(self, *, resumed: bool) -> bool:
        """The hash is wrong: drop who sent it all, if one did; choose who is to send it
        all now. False when nobody is left.
        """
        suppliers = [each for each in self._all.values() if each.supplied]
        if len(suppliers) == 1 and not resumed:
            suppliers[0].drop("sent bytes that do not match the digest")
        for each in suppliers:
            each.supplied = False
        self._only = self._least_tried()
        if self._only is not None:
            self._only.alone += 1
        return self._only is not None

    def problems(self) -> str:
        """Say what was wrong with each."""
        each = [f"{source.node}: {source.problem}" for source in self._all.values()]
        return "; ".join(each) or "no node is known to hold it"

    def _least_tried(self) -> Source | None:
        left = [each for each in self._all.values() if not each.out]
        return min(left, key=lambda each: each.alone, default=None)
