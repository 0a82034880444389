"""What goes into the consensus core and what comes out of it."""

from dataclasses import dataclass
from enum import StrEnum

from p2ptrain.ids import ClusterId, NodeId
from p2ptrain.messages.consensus import (
    Compacted,
    Entry,
    RaftMessage,
    RecordChange,
)


class Role(StrEnum):
    """A node's part in the current term."""

    FOLLOWER = "follower"
    CANDIDATE = "candidate"
    LEADER = "leader"


@dataclass(frozen=True, slots=True)
class ConsensusConfig:
    """Times in seconds and bounds; the defaults are for a LAN.

    A follower that hears no leader for an election time-out, drawn anew each time
    between min and max, stands for election. A leader that hears no majority for
    ``election_max_s`` steps down.
    """

    heartbeat_s: float = 0.15
    election_min_s: float = 0.6
    election_max_s: float = 1.2
    lost_s: float = 0.15  # as these, once membership does not count on the leader
    append_bytes: int = 128 * 1024
    snapshot_bytes: int = 128 * 1024
    compact_after: int = 4096  # entries
    proposals_max: int = 1024
    voters_max: int = 5
    promote_after_s: float = 2.0  # a learner must have been alive this long
    replace_after_s: float = 30.0  # a dead voter keeps its seat this long


@dataclass(frozen=True, slots=True)
class Tick:
    """The deadline has passed."""


@dataclass(frozen=True, slots=True)
class Received:
    """A message from the authenticated ``sender``."""

    sender: NodeId
    message: RaftMessage


@dataclass(frozen=True, slots=True)
class Bootstrap:
    """Found a cluster of one; ignored by a node that has a cluster."""

    cluster: ClusterId


@dataclass(frozen=True, slots=True)
class ProposeCommand:
    """Commit bytes; answered by exactly one Proposed with the same token."""

    token: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Peers:
    """What membership sees: members alive, with the seconds since they came, and those
    that are to be forgotten.
    """

    alive: tuple[tuple[NodeId, float], ...]
    gone: tuple[NodeId, ...]


@dataclass(frozen=True, slots=True)
class Compact:
    """The state machine's state after applying up to ``index``; drops that log."""

    index: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Lost:
    """Membership does not count on a node any more: a hint, never a proof."""

    node: NodeId


@dataclass(frozen=True, slots=True)
class StepDown:
    """This node is about to leave: hand leadership over."""


Event = Tick | Received | Bootstrap | ProposeCommand | Peers | Lost | Compact | StepDown


@dataclass(frozen=True, slots=True)
class Save:
    """Must be durable before any later effect is done."""

    change: RecordChange


@dataclass(frozen=True, slots=True)
class Send:
    """Send a message, best effort."""

    to: NodeId
    message: RaftMessage


@dataclass(frozen=True, slots=True)
class Apply:
    """A committed command; in order, each once in a process's life."""

    entry: Entry


@dataclass(frozen=True, slots=True)
class Install:
    """Replace the state machine's state."""

    compacted: Compacted


@dataclass(frozen=True, slots=True)
class Proposed:
    """A proposal's end: its index when committed and applied, else None and why."""

    token: int
    index: int | None
    refusal: str


@dataclass(frozen=True, slots=True)
class RoleChanged:
    """Who leads, as this node knows; ``role`` is this node's own."""

    role: Role
    term: int
    leader: NodeId | None


@dataclass(frozen=True, slots=True)
class WantCompact:
    """The log is long: answer with Compact."""


Effect = Save | Send | Apply | Install | Proposed | RoleChanged | WantCompact
