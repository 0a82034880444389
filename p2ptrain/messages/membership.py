"""Messages of membership; all are one-way, an answer is a message of its own.

After SWIM (Das, Gupta, Motivala, 2002) and Lifeguard (Dadgar, Phillips, Currey, 2018).
A message that opens a conversation carries its sender's own record ``me``, so that it
can be answered by address before gossip has made the two acquainted. With bounded
fields (``core.membership``) every message stays below 8 KiB.
"""

from dataclasses import dataclass

from p2ptrain.ids import NodeId
from p2ptrain.members import Member


@dataclass(frozen=True, slots=True)
class Rumor:
    """A member's record as ``by`` claims it; independent voices shorten a suspicion."""

    member: Member
    by: NodeId


@dataclass(frozen=True, slots=True)
class Hello:
    """Sent to an address of unknown owner; answered by MemberSync, which echoes
    ``at``.
    """

    me: Member
    at: str


@dataclass(frozen=True, slots=True)
class Probe:
    """Are you ``target``, and alive?

    Answered by ProbeAck with the same ``seq``.
    """

    me: Member
    seq: int
    target: NodeId
    rumors: tuple[Rumor, ...]


@dataclass(frozen=True, slots=True)
class ProbeFor:
    """Probe ``target`` for me: I do not hear it.

    Answered by ProbeAck, or by ProbeNack: the target is silent to me too.
    """

    me: Member
    seq: int
    target: NodeId
    rumors: tuple[Rumor, ...]


@dataclass(frozen=True, slots=True)
class ProbeAck:
    """``target`` is alive."""

    seq: int
    target: NodeId
    rumors: tuple[Rumor, ...]


@dataclass(frozen=True, slots=True)
class ProbeNack:
    """The helper is alive, but has not heard the target in time."""

    seq: int


@dataclass(frozen=True, slots=True)
class Gossip:
    """News, each repeated a bounded number of times."""

    rumors: tuple[Rumor, ...]


@dataclass(frozen=True, slots=True)
class MemberSync:
    """One page of the sender's whole table; ``ask`` (on the last page) asks for
    ours.

    ``at`` is the address that a Hello reached, else empty.
    """

    me: Member
    at: str
    members: tuple[Member, ...]
    ask: bool


MembershipMessage = (
    Hello | Probe | ProbeFor | ProbeAck | ProbeNack | Gossip | MemberSync
)
