"""Control messages of a session, between the master and the workers.

All are level-triggered: the master repeats the order it wants obeyed until the worker's
``WorkerState`` shows it, and a worker repeats its state until the master has moved on.
A repeated or stale one (lower term, other view) changes nothing. One worker per (node,
session).
"""

from dataclasses import dataclass
from enum import StrEnum

from p2ptrain.ids import Digest, NodeId, SessionId
from p2ptrain.messages.record import BlobRef, WorkerReport


class WorkerPhase(StrEnum):
    """Where a worker is in a session."""

    FETCHING = "fetching"  # blobs are on their way
    LOADING = "loading"  # the trainer starts, picks a device, loads the graph
    READY = "ready"  # loaded and listening; may still need the state of a rank ahead
    RUNNING = "running"
    ENDED = "ended"  # its view ended; the state is kept in memory
    FINISHED = "finished"  # the last step is applied
    DECLINED = "declined"  # cannot take part; the reason says why


@dataclass(frozen=True, slots=True)
class RingSeat:
    """A seat with the ``host:port`` of its trainer's ring listener."""

    node: NodeId
    share: int
    ring: str


@dataclass(frozen=True, slots=True)
class StateRef:
    """A snapshot of parameters, buffers, optimizer and sample position after ``step``
    applied steps.
    """

    step: int
    blob: BlobRef
    state_digest: Digest


# master -> worker


@dataclass(frozen=True, slots=True)
class Prepare:
    """Get ready for a session: fetch ``spec`` and ``blobs`` (from ``sources``), start
    the trainer, load, listen.
    """

    term: int
    session: SessionId
    view: int
    spec: BlobRef
    blobs: tuple[BlobRef, ...]
    sources: tuple[NodeId, ...]


@dataclass(frozen=True, slots=True)
class Run:
    """Run a committed view from ``first_step``.

    A worker at another step first fetches ``state`` from ``sources``.
    """

    term: int
    session: SessionId
    view: int
    seats: tuple[RingSeat, ...]
    first_step: int
    state: StateRef | None
    sources: tuple[NodeId, ...]


@dataclass(frozen=True, slots=True)
class Halt:
    """End the view: at once, or with ``drain`` at the next step boundary (all ranks
    agree on it in the ring).
    """

    term: int
    session: SessionId
    view: int
    reason: str
    drain: bool


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Write the state that is in memory as a blob; answered by
    ``WorkerState.snapshot``.
    """

    term: int
    session: SessionId
    view: int


@dataclass(frozen=True, slots=True)
class Release:
    """The session is over for this worker: end the trainer and forget."""

    term: int
    session: SessionId
    reason: str


# worker -> master


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A state blob that rank 0 wrote in the running view."""

    state: StateRef
    epoch: int


@dataclass(frozen=True, slots=True)
class EpochFigures:
    """Loss and metrics at an epoch's end, the same on all ranks.

    ``loss`` is the mean over the epoch's steps that were not skipped. ``digest`` is
    the state's after ``step`` applied steps, which all ranks were found to share; empty
    where the figures were made late, at another step.
    """

    epoch: int
    step: int
    loss: float
    metrics: dict[str, float]
    digest: str = ""


@dataclass(frozen=True, slots=True)
class Finish:
    """What a worker has at the end; ``weights`` and ``manifest`` from rank 0 only."""

    report: WorkerReport
    weights: BlobRef | None
    manifest: BlobRef | None


@dataclass(frozen=True, slots=True)
class WorkerState:
    """A worker's whole state, sent on every change and once a second.

    ``view`` is the view last prepared or run. ``step`` counts applied steps (-1: not
    loaded). ``losses`` are those of the last applied steps, newest last, at most 64.
    ``culprit`` names the node that a failed collective blames. ``serial`` rises with
    every state sent, also from one life of a worker to the next: the network may hand
    on an older state after a newer one.
    """

    node: NodeId
    session: SessionId
    view: int
    phase: WorkerPhase
    reason: str = ""
    step: int = -1
    digest: str = ""
    ring: str = ""
    device: str = ""
    data_digests: tuple[str, ...] = ()
    fetched_bytes: int = 0
    total_bytes: int = 0
    losses: tuple[float, ...] = ()
    samples: int = 0  # by this worker in this view
    step_s: float = 0.0  # median wall seconds of recent steps
    compute_s: float = 0.0
    comm_s: float = 0.0
    culprit: str = ""
    of_node: bool = False  # DECLINED for a fault of the node, not of the job
    lacks: str = ""  # digest of the state that the view begins from and nobody has
    snapshot: StateRef | None = None
    checkpoint: Checkpoint | None = None
    epochs: tuple[EpochFigures, ...] = ()  # of the past that counts, the newest 8
    finish: Finish | None = None
    serial: int = 0


Order = Prepare | Run | Halt | Snapshot | Release
