"""Probes under way, probes made for others, and how far this node trusts itself.

A probe is direct first; unanswered, it goes through a few helpers as well; unanswered
again, it has failed. Lifeguard's local health slows a node down that misses answers it
should have got: a busy node suspects itself before it suspects others.
"""

import math
import random
from collections.abc import Iterable
from dataclasses import dataclass

from p2ptrain.core.membership.types import MembershipConfig
from p2ptrain.ids import NodeId
from p2ptrain.members import Member

PROBES_MAX = 16
RELAYS_MAX = 64


@dataclass(slots=True)
class Outstanding:
    """A probe of ours that is not answered yet."""

    seq: int
    target: Member
    sent: float
    deadline: float
    indirect: bool = False
    helpers: int = 0
    nacks: int = 0


@dataclass(frozen=True, slots=True)
class Relay:
    """A probe that we make for another node."""

    seq: int  # ours
    asker: str  # its control address
    asked: int  # its sequence number
    target: NodeId
    deadline: float


class Health:
    """Lifeguard's local health multiplier: 0 is well, ``most`` is a node that should
    hardly judge others.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self.score = 0

    @property
    def factor(self) -> int:
        """By how much to stretch our own times."""
        return self.score + 1

    def note(self, delta: int) -> None:
        """Worse (positive) or better (negative)."""
        self.score = max(0, min(self._most, self.score + delta))


class RoundTrip:
    """The probe timeout: smoothed round trip and deviation, as TCP does (RFC 6298)."""

    def __init__(self, config: MembershipConfig) -> None:
        self._low = config.probe_timeout_min_s
        self._high = config.probe_timeout_max_s
        self._mean = self._low / 4
        self._deviation = self._low / 8

    @property
    def timeout_s(self) -> float:
        """How long to wait for a direct answer."""
        return max(self._low, min(self._high, self._mean + 4 * self._deviation))

    def note(self, seconds: float) -> None:
        """Learn from an answer."""
        self._deviation += (abs(seconds - self._mean) - self._deviation) / 4
        self._mean += (seconds - self._mean) / 8


class Probes:
    """What is under way, and whose turn is next (a reshuffled round, SWIM 4.3)."""

    def __init__(self, config: MembershipConfig, rng: random.Random) -> None:
        self._config = config
        self._rng = rng
        self._seq = rng.getrandbits(32)
        self._round: list[NodeId] = []
        self._outstanding: dict[int, Outstanding] = {}
        self._relays: dict[int, Relay] = {}
        self.round_trip = RoundTrip(config)
        self.health = Health(config.health_max)

    def next_target(self, present: list[Member]) -> Member | None:
        """Return whom to probe now, or None when nobody is due."""
        if len(self._outstanding) >= PROBES_MAX:
            return None
        by_id = {member.node: member for member in present}
        busy = {probe.target.node for probe in self._outstanding.values()}
        if not any(node in by_id for node in self._round):
            self._round = [node for node in by_id if node not in busy]
            self._rng.shuffle(self._round)
        while self._round:
            node = self._round.pop()
            if node in by_id and node not in busy:
                return by_id[node]
        return None

    def start(self, now: float, target: Member) -> Outstanding:
        """Begin a direct probe."""
        wait = self.round_trip.timeout_s * self.health.factor
        probe = Outstanding(self._next_seq(), target, now, now + wait)
        self._outstanding[probe.seq] = probe
        return probe

    def go_indirect(self, now: float, probe: Outstanding, helpers: int) -> None:
        """Begin a probe's second phase."""
        probe.indirect, probe.helpers = True, helpers
        wait = self._config.indirect_timeout_s * self.health.factor
        probe.deadline = now + wait

    def failed(self, probe: Outstanding) -> None:
        """End a probe in vain; silent helpers speak against this node's own health."""
        del self._outstanding[probe.seq]
        silent = probe.helpers - probe.nacks
        self.health.note(silent if probe.helpers else 1)

    def answered(self, now: float, seq: int, target: NodeId) -> bool:
        """Take an answer; tell whether it ended a probe of ours."""
        probe = self._outstanding.get(seq)
        if probe is None or probe.target.node != target:
            return False
        del self._outstanding[seq]
        self.health.note(-1)
        if not probe.indirect:
            self.round_trip.note(now - probe.sent)
        return True

    def refused(self, seq: int) -> None:
        """A helper has not heard the target either."""
        probe = self._outstanding.get(seq)
        if probe is not None and probe.indirect:
            probe.nacks = min(probe.nacks + 1, probe.helpers)

    def unreachable(self, now: float, address: str) -> None:
        """Skip the rest of the first phase of probes to this address."""
        for probe in self._outstanding.values():
            if probe.target.control == address and not probe.indirect:
                probe.deadline = now

    def relay(self, now: float, asker: str, asked: int, target: NodeId) -> int | None:
        """Begin a probe for another node; return our sequence number, or None when
        too many are under way.
        """
        if len(self._relays) >= RELAYS_MAX:
            return None
        seq = self._next_seq()
        # Early enough that our refusal reaches the asker within its own time.
        deadline = now + 0.7 * self._config.indirect_timeout_s
        self._relays[seq] = Relay(seq, asker, asked, target, deadline)
        return seq

    def relayed(self, seq: int, target: NodeId) -> Relay | None:
        """Take an answer to a probe made for another node."""
        relay = self._relays.get(seq)
        if relay is None or relay.target != target:
            return None
        return self._relays.pop(seq)

    def due(self, now: float) -> list[Outstanding]:
        """Return our probes whose phase is over."""
        return [probe for probe in self._outstanding.values() if probe.deadline <= now]

    def relays_due(self, now: float) -> list[Relay]:
        """Remove and return the relays whose time is up."""
        due = [relay for relay in self._relays.values() if relay.deadline <= now]
        for relay in due:
            del self._relays[relay.seq]
        return due

    def shift(self, delay_s: float) -> None:
        """Give every probe the time that this node itself was not running."""
        for probe in self._outstanding.values():
            probe.deadline += delay_s
            probe.sent += delay_s

    @property
    def deadline(self) -> float:
        """When the next phase ends."""
        ours: Iterable[float] = (item.deadline for item in self._outstanding.values())
        theirs: Iterable[float] = (item.deadline for item in self._relays.values())
        return min((*ours, *theirs), default=math.inf)

    def _next_seq(self) -> int:
        self._seq += 1
        return self._seq
