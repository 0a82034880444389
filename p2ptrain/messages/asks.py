"""Asks between nodes, each with its answer: to the master (submit, stop, live figures)
and to any node (hold blobs, parity).
"""

from dataclasses import dataclass

from p2ptrain.ids import NodeId, SessionId
from p2ptrain.messages.record import BlobRef, SessionStatus
from p2ptrain.messages.session import WorkerPhase


@dataclass(frozen=True, slots=True)
class SubmitAsk:
    """Hand in a session; answered by ``SubmitAnswer``.

    The blobs are at ``holder`` and stay there.
    """

    key: str
    name: str
    spec: BlobRef
    blobs: tuple[BlobRef, ...]
    holder: NodeId


@dataclass(frozen=True, slots=True)
class SubmitAnswer:
    """``session`` when accepted (again, for a known key); else a refusal sentence."""

    session: str
    refusal: str


@dataclass(frozen=True, slots=True)
class StopAsk:
    """Stop a session at a step boundary; answered by ``StopAnswer``."""

    session: SessionId


@dataclass(frozen=True, slots=True)
class StopAnswer:
    """Empty refusal when the stop is on its way."""

    refusal: str


@dataclass(frozen=True, slots=True)
class LiveAsk:
    """Ask for a session's live figures; answered by ``LiveAnswer``."""

    session: SessionId


@dataclass(frozen=True, slots=True)
class WorkerLine:
    """One worker's live figures for people."""

    node: NodeId
    name: str
    phase: WorkerPhase
    step: int
    device: str
    share: int
    fetched_bytes: int
    total_bytes: int
    step_s: float
    samples_per_s: float
    reason: str


@dataclass(frozen=True, slots=True)
class LiveAnswer:
    """Live figures of a session; ``known`` is false when the master has no such
    session.

    ``losses`` are those of steps ``[losses_from, losses_from + len(losses))``.
    """

    known: bool
    status: SessionStatus
    reason: str
    view: int
    step: int
    steps: int
    epoch: int
    epochs: int
    losses_from: int
    losses: tuple[float, ...]
    samples_per_s: float
    workers: tuple[WorkerLine, ...]


@dataclass(frozen=True, slots=True)
class HoldAsk:
    """Ask a node to fetch and keep blobs; answered by ``HoldAnswer`` when all are
    stored.
    """

    blobs: tuple[BlobRef, ...]
    sources: tuple[NodeId, ...]


@dataclass(frozen=True, slots=True)
class HoldAnswer:
    """Empty problem when all the blobs are stored and verified."""

    problem: str


@dataclass(frozen=True, slots=True)
class ParityLine:
    """One device's largest errors over all outputs of a graph, against a reference.

    ``ratio`` is the device's relative error over that of this node's CPU in the same
    dtype; ``fault`` is true when round-off cannot explain it.
    """

    device: str
    reference: str  # ``float64`` or ``cpu``
    output: str  # the worst output
    max_abs: float
    max_rel: float
    ratio: float
    fault: bool


@dataclass(frozen=True, slots=True)
class ParityAsk:
    """Ask a node to run a graph on all its devices; answered by ``ParityAnswer``."""

    spec: BlobRef
    blobs: tuple[BlobRef, ...]
    sources: tuple[NodeId, ...]


@dataclass(frozen=True, slots=True)
class ParityAnswer:
    """Empty problem when ``lines`` hold the figures."""

    problem: str
    lines: tuple[ParityLine, ...]


MasterAsk = SubmitAsk | StopAsk | LiveAsk
MasterAnswer = SubmitAnswer | StopAnswer | LiveAnswer
