"""What clients say to their local daemon, and its answers.

Over a Unix socket; each frame is a little-endian u32 length and the ``codec.pack`` of
one message. A connection carries one request after the other. Any request may be
answered by a ``Refusal``.
"""

from dataclasses import dataclass

from p2ptrain.ids import NodeId, SessionId
from p2ptrain.members import Member
from p2ptrain.messages.asks import LiveAnswer, ParityLine
from p2ptrain.messages.record import (
    AddCheckpoint,
    AddEpoch,
    BlobRef,
    CommitView,
    SessionStatus,
    WorkerReport,
)

FRAME_BYTES_MAX = 2 * 1024 * 1024
PIECE_BYTES = 1024 * 1024


# client -> daemon


@dataclass(frozen=True, slots=True)
class InfoRequest:
    """Who are you? Answered by Info."""


@dataclass(frozen=True, slots=True)
class NodesRequest:
    """Who is in the cluster? Answered by Nodes."""


@dataclass(frozen=True, slots=True)
class SessionsRequest:
    """What is recorded of one session, or of all if empty? Answered by Sessions."""

    session: str


@dataclass(frozen=True, slots=True)
class LedgerRequest:
    """Who counted what in a session? Answered by Ledger, from a view number and an
    epoch on.
    """

    session: SessionId
    view: int
    epoch: int


@dataclass(frozen=True, slots=True)
class LiveRequest:
    """How does a session go? Answered by LiveAnswer."""

    session: SessionId


@dataclass(frozen=True, slots=True)
class PutRequest:
    """A blob is coming; answered by Held, then Pieces follow from there, then Held."""

    blob: BlobRef


@dataclass(frozen=True, slots=True)
class Piece:
    """The next bytes of a blob, in either direction."""

    data: bytes


@dataclass(frozen=True, slots=True)
class GetRequest:
    """Give me a blob, from this node or from a holder; answered by Pieces."""

    blob: BlobRef
    holders: tuple[NodeId, ...]


@dataclass(frozen=True, slots=True)
class SubmitRequest:
    """Accept a job whose blobs were put before; answered by Submitted."""

    key: str
    name: str
    spec: BlobRef
    blobs: tuple[BlobRef, ...]


@dataclass(frozen=True, slots=True)
class StopRequest:
    """Stop a session at a step boundary; answered by Done."""

    session: SessionId


@dataclass(frozen=True, slots=True)
class LeaveRequest:
    """Leave the cluster for good and end; answered by Done."""


@dataclass(frozen=True, slots=True)
class ParityRequest:
    """Run a spec's graph on every device of every node; answered by Parities."""

    spec: BlobRef
    blobs: tuple[BlobRef, ...]


# daemon -> client


@dataclass(frozen=True, slots=True)
class Refusal:
    """It cannot be done: one sentence, and the exit code that it means."""

    sentence: str
    code: int


@dataclass(frozen=True, slots=True)
class Done:
    """It is done."""


@dataclass(frozen=True, slots=True)
class Info:
    """The daemon."""

    node: NodeId
    name: str
    version: str
    pid: int
    cluster: str
    master: str
    term: int


@dataclass(frozen=True, slots=True)
class Nodes:
    """The cluster as this node sees it."""

    me: NodeId
    master: str
    voters: tuple[NodeId, ...]
    members: tuple[Member, ...]


@dataclass(frozen=True, slots=True)
class EpochLine:
    """Figures of one epoch."""

    epoch: int
    step: int
    loss: float
    metrics: dict[str, float]


@dataclass(frozen=True, slots=True)
class ResultLine:
    """A finished session's outcome."""

    step: int
    weights: BlobRef
    manifest: BlobRef
    state_digest: str
    holders: tuple[NodeId, ...]
    reports: tuple[WorkerReport, ...]


@dataclass(frozen=True, slots=True)
class SessionLine:
    """What the record says of one session."""

    session: SessionId
    name: str
    status: SessionStatus
    reason: str
    step: int
    submitted_s: float
    view: int
    members: tuple[NodeId, ...]
    epochs: tuple[EpochLine, ...]
    checkpoint_step: int  # -1: none
    result: ResultLine | None


@dataclass(frozen=True, slots=True)
class Sessions:
    """Sessions, newest first."""

    lines: tuple[SessionLine, ...]


@dataclass(frozen=True, slots=True)
class Ledger:
    """A page of what is on record; ask again from behind its last view and epoch, until
    both are empty.
    """

    spec: BlobRef
    holders: tuple[NodeId, ...]
    step: int
    views: tuple[CommitView, ...]
    epochs: tuple[AddEpoch, ...]
    checkpoints: tuple[AddCheckpoint, ...]


@dataclass(frozen=True, slots=True)
class Held:
    """How many bytes of a blob this node holds; all of them: it is stored."""

    size: int


@dataclass(frozen=True, slots=True)
class Submitted:
    """The session, accepted by a majority."""

    session: SessionId


@dataclass(frozen=True, slots=True)
class NodeParity:
    """One node's figures, or why there are none."""

    node: str
    problem: str
    lines: tuple[ParityLine, ...]


@dataclass(frozen=True, slots=True)
class Parities:
    """All nodes' figures."""

    nodes: tuple[NodeParity, ...]


GateRequest = (
    InfoRequest
    | NodesRequest
    | SessionsRequest
    | LedgerRequest
    | LiveRequest
    | PutRequest
    | Piece
    | GetRequest
    | SubmitRequest
    | StopRequest
    | LeaveRequest
    | ParityRequest
)
GateAnswer = (
    Refusal
    | Done
    | Info
    | Nodes
    | Sessions
    | Ledger
    | LiveAnswer
    | Held
    | Piece
    | Submitted
    | Parities
)
