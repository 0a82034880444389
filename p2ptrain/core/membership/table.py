"""The table of members: which of two claims about a node wins, and how long a
suspicion lasts.

Claims about one node are ordered by (incarnation, status), statuses in the order
ALIVE < SUSPECT < DEAD < LEFT, and the greater one wins: merging is commutative,
associative and idempotent, so the order in which rumors arrive cannot matter. Only the
node itself raises its incarnation, which is how it refutes.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from p2ptrain.core.membership.types import MembershipConfig
from p2ptrain.ids import NodeId
from p2ptrain.members import Member, MemberStatus
from p2ptrain.messages.membership import Rumor

_RANK = {status: rank for rank, status in enumerate(MemberStatus)}
PRESENT = (MemberStatus.ALIVE, MemberStatus.SUSPECT)


def claim(member: Member) -> tuple[int, int]:
    """Return the sort key of a claim; the greater wins."""
    return member.incarnation, _RANK[member.status]


@dataclass(slots=True)
class Suspicion:
    """A running suspicion (Lifeguard, section IV.B): starts long, shrinks with every
    independent voice, never below ``shortest``.
    """

    start: float
    shortest: float
    longest: float
    wanted: int  # confirmations beyond the first voice
    voices: set[NodeId] = field(default_factory=set)

    @property
    def deadline(self) -> float:
        """When the suspect is dead."""
        confirmed = len(self.voices) - 1
        if self.wanted < 1 or confirmed >= self.wanted:
            return self.start + self.shortest
        share = math.log(confirmed + 1) / math.log(self.wanted + 1)
        return self.start + self.longest - share * (self.longest - self.shortest)

    def hear(self, voice: NodeId) -> bool:
        """Count a voice; tell whether it was a new one that matters."""
        if voice in self.voices or len(self.voices) > self.wanted:
            return False
        self.voices.add(voice)
        return True


@dataclass(slots=True)
class Known:
    """What is believed of one other node, and since when."""

    member: Member
    since: float
    suspicion: Suspicion | None = None


class Table:
    """All other members; at most ``members_max``."""

    def __init__(self, config: MembershipConfig) -> None:
        self._config = config
        self._known: dict[NodeId, Known] = {}

    def __iter__(self) -> Iterator[Member]:
        """Return what is believed of each, in no promised order."""
        return (known.member for known in self._known.values())

    def get(self, node: NodeId) -> Member | None:
        """Return what is believed of a node."""
        known = self._known.get(node)
        return known.member if known else None

    def present(self) -> list[Member]:
        """Return the members that are alive or suspect."""
        return [member for member in self if member.status in PRESENT]

    def alive_but(self, node: NodeId) -> list[Member]:
        """Return the live members except one."""
        return [
            member
            for member in self
            if member.status is MemberStatus.ALIVE and member.node != node
        ]

    def alive_at(self, address: str) -> bool:
        """Tell whether a live member's control address is this one."""
        return any(
            member.control == address
            for member in self
            if member.status is MemberStatus.ALIVE
        )

    def hear(self, now: float, rumor: Rumor) -> bool:
        """Merge a claim; tell whether it was news that should be passed on."""
        member, known = rumor.member, self._known.get(rumor.member.node)
        if known is None:
            return self._admit(now, rumor)
        if claim(member) > claim(known.member):
            self._put(now, rumor)
            return True
        same = claim(member) == claim(known.member)
        return same and known.suspicion is not None and known.suspicion.hear(rumor.by)

    def overdue(self, now: float) -> list[Member]:
        """Return the suspects whose time is up."""
        return [
            known.member
            for known in self._known.values()
            if known.suspicion is not None and known.suspicion.deadline <= now
        ]

    def reap(self, now: float) -> list[Member]:
        """Drop and return what has been dead or gone for long."""
        old = [
            known.member
            for known in self._known.values()
            if known.member.status not in PRESENT
            and known.since + self._config.dead_keep_s <= now
        ]
        for member in old:
            del self._known[member.node]
        return old

    def shift(self, delay_s: float) -> None:
        """Give every suspect the time that this node itself was not running."""
        for known in self._known.values():
            if known.suspicion is not None:
                known.suspicion.start += delay_s

    @property
    def deadline(self) -> float:
        """When the next suspicion ends or the next old entry goes."""
        times = [math.inf]
        for known in self._known.values():
            if known.suspicion is not None:
                times.append(known.suspicion.deadline)
            elif known.member.status not in PRESENT:
                times.append(known.since + self._config.dead_keep_s)
        return min(times)

    def _admit(self, now: float, rumor: Rumor) -> bool:
        # An unknown dead node is not news: it would come back after every reaping.
        if rumor.member.status not in PRESENT:
            return False
        if len(self._known) >= self._config.members_max - 1:
            return False
        self._put(now, rumor)
        return True

    def _put(self, now: float, rumor: Rumor) -> None:
        suspicion = None
        if rumor.member.status is MemberStatus.SUSPECT:
            suspicion = self._suspicion(now, rumor.by)
        self._known[rumor.member.node] = Known(rumor.member, now, suspicion)

    def _suspicion(self, now: float, voice: NodeId) -> Suspicion:
        count = len(self.present()) + 1
        shortest = self._config.suspicion_min_s * max(1.0, math.log10(count))
        longest = shortest * self._config.suspicion_max_factor
        wanted = min(self._config.confirmations, count - 2)
        return Suspicion(now, shortest, longest, wanted, {voice})


def as_status(member: Member, status: MemberStatus) -> Member:
    """Return the same claim with another status."""
    return replace(member, status=status)
