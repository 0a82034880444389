"""Commands of the replicated record: what the log's entries hold; ``core.registry``
applies them.

Commands that a master issues carry its ``term``; one with a lower term than the
session's latest changes nothing.
"""

from dataclasses import dataclass
from enum import StrEnum

from p2ptrain.ids import Digest, NodeId, SessionId


class SessionStatus(StrEnum):
    """A session's life.

    Legal transitions stand in ``core.registry``.
    """

    QUEUED = "queued"  # accepted; no view yet
    RUNNING = "running"  # a view is committed
    PAUSED = "paused"  # no view possible now; the reason says why
    DONE = "done"
    FAILED = "failed"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class BlobRef:
    """Bytes named by their BLAKE3; ``name`` is for people (and the URI fragment), never
    a path.
    """

    digest: Digest
    size: int
    name: str = ""


@dataclass(frozen=True, slots=True)
class Seat:
    """One member's place in a view: position in the tuple is its rank; ``share`` is its
    micro-batches per step.
    """

    node: NodeId
    share: int


@dataclass(frozen=True, slots=True)
class AddSession:
    """Accept a submission.

    ``spec`` and every blob in ``blobs`` are held by a majority when this is proposed.
    """

    session: SessionId
    key: str
    name: str
    spec: BlobRef
    blobs: tuple[BlobRef, ...]
    submitter: NodeId
    submitted_s: float  # wall clock, seconds since the epoch


@dataclass(frozen=True, slots=True)
class CommitView:
    """Begin a view: the only thing that says who averages with whom.

    ``view`` numbers rise by one per session. Training goes on after ``first_step``
    applied steps, from the state of that ``digest``, which the nodes ``agreed`` said
    to hold; both are empty where nobody held a state yet.
    """

    session: SessionId
    term: int
    view: int
    seats: tuple[Seat, ...]
    first_step: int
    digest: str = ""
    agreed: tuple[NodeId, ...] = ()


@dataclass(frozen=True, slots=True)
class SetStatus:
    """Move a session to a status, with a sentence for people."""

    session: SessionId
    term: int
    status: SessionStatus
    reason: str
    step: int


@dataclass(frozen=True, slots=True)
class AddCheckpoint:
    """A checkpoint whose bytes two nodes hold (one, when the cluster has one)."""

    session: SessionId
    term: int
    view: int
    step: int  # steps applied: training resumes at this step
    blob: BlobRef
    state_digest: Digest
    holders: tuple[NodeId, ...]


@dataclass(frozen=True, slots=True)
class AddEpoch:
    """Figures at an epoch's end; ``metrics`` is empty without an eval graph.

    ``digest`` is the state's after ``step`` steps, as all ranks compared it.
    """

    session: SessionId
    term: int
    view: int
    epoch: int
    step: int
    loss: float
    metrics: dict[str, float]
    digest: str = ""


@dataclass(frozen=True, slots=True)
class WorkerReport:
    """What one worker did in a session, as its trainer measured it."""

    node: NodeId
    device: str
    lanes: tuple[str, ...]
    inventory: tuple[str, ...]
    samples: int
    wall_s: float
    compute_s: float
    comm_s: float
    first_loss: float
    last_loss: float
    digest: Digest


@dataclass(frozen=True, slots=True)
class AddResult:
    """The finished model: ``weights`` is a safetensors file under the model's own
    names, ``manifest`` JSON.
    """

    session: SessionId
    term: int
    view: int
    step: int
    weights: BlobRef
    manifest: BlobRef
    state_digest: Digest
    holders: tuple[NodeId, ...]
    reports: tuple[WorkerReport, ...]


Command = AddSession | CommitView | SetStatus | AddCheckpoint | AddEpoch | AddResult
