"""Frames between a daemon and its trainer process, over the trainer's stdin and stdout.

Each frame is a little-endian u32 length and the ``codec.pack`` of one message. The
daemon's paths in them are its own, never a peer's. A trainer whose stdin ends quits.
"""

from dataclasses import dataclass

from p2ptrain.ids import Digest, NodeId, SessionId
from p2ptrain.messages.asks import ParityLine
from p2ptrain.messages.record import WorkerReport
from p2ptrain.messages.session import EpochFigures, RingSeat

FRAME_BYTES_MAX = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """Paths of this node's certificate, key and the cluster's CA (PEM)."""

    ca: str
    cert: str
    key: str


@dataclass(frozen=True, slots=True)
class Load:
    """Load a session: validate the spec, resolve references, pick a device, listen for
    ring links.

    ``files`` maps blob digests to files of this node; ``roots`` are the folders that
    ``file:`` and the other path URIs may point into. ``ports`` is an inclusive range
    for the ring listener, (0, 0) for any free port.
    """

    session: SessionId
    node: NodeId
    name: str
    spec_path: str
    files: dict[str, str]
    roots: tuple[str, ...]
    workdir: str
    threads: int  # 0: the trainer decides
    host: str
    ports: tuple[int, int]
    tls: TlsFiles | None
    stall_s: float  # a ring link that moves nothing for this long is lost
    trace_dir: str = ""  # where a timeline is written; empty: none


@dataclass(frozen=True, slots=True)
class RunView:
    """Join the ring of a view and train from ``first_step``; ``state_path`` (or empty)
    is loaded first.
    """

    view: int
    rank: int
    seats: tuple[RingSeat, ...]
    first_step: int
    state_path: str


@dataclass(frozen=True, slots=True)
class HaltView:
    """End the running view, at once or at a step boundary that all ranks agree on."""

    view: int
    reason: str
    drain: bool


@dataclass(frozen=True, slots=True)
class WriteSnapshot:
    """Write the state in memory to the workdir (idle: at once; running: at the next
    step boundary).
    """


@dataclass(frozen=True, slots=True)
class Quit:
    """End the process."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """The session is loaded.

    ``why`` is a sentence on the choice of device.
    """

    device: str
    why: str
    lanes: tuple[str, ...]
    inventory: tuple[str, ...]
    ring_port: int
    step: int
    steps: int  # of the whole session
    epochs: int
    digest: Digest
    data_digests: tuple[str, ...]
    seconds: float


@dataclass(frozen=True, slots=True)
class Steps:
    """Steps applied since the last such frame (sent at most five times a second, and at
    each boundary).
    """

    view: int
    step: int  # applied steps so far
    losses: tuple[float, ...]
    samples: int  # by this rank
    wall_s: float
    compute_s: float
    comm_s: float
    note: str = ""  # the newest that people should know, such as a skipped step


@dataclass(frozen=True, slots=True)
class EpochEnded:
    """An epoch is complete; the same figures on all ranks."""

    view: int
    figures: EpochFigures


@dataclass(frozen=True, slots=True)
class StateWritten:
    """A durable file in the workdir: ``purpose`` is ``checkpoint`` or ``snapshot``."""

    view: int
    purpose: str
    step: int
    epoch: int
    path: str
    state_digest: Digest


@dataclass(frozen=True, slots=True)
class ViewEnded:
    """The view is over before the last step; no link is reused.

    ``culprit`` is a node id or empty.
    """

    view: int
    step: int
    digest: Digest
    reason: str
    culprit: str


@dataclass(frozen=True, slots=True)
class RunFinished:
    """The last step is applied.

    Rank 0 has written the final files (paths empty on other ranks).
    """

    view: int
    step: int
    report: WorkerReport
    weights_path: str
    manifest_path: str


@dataclass(frozen=True, slots=True)
class Fault:
    """The trainer cannot go on with this session; one sentence for the submitter.

    It exits after this. ``of_node`` says that another node, or this one another time,
    may do better: the process was killed, memory or a device failed.
    """

    sentence: str
    of_node: bool = False


@dataclass(frozen=True, slots=True)
class CheckParity:
    """Run the graph of a spec on every device of this node against float64.

    Answered by one ``ParityDone``; fields as in ``Load``.
    """

    name: str
    spec_path: str
    files: dict[str, str]
    roots: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ParityDone:
    """What ``CheckParity`` found, one line a device."""

    lines: tuple[ParityLine, ...]


ToTrainer = Load | RunView | HaltView | WriteSnapshot | CheckParity | Quit
FromTrainer = (
    Loaded
    | Steps
    | EpochEnded
    | StateWritten
    | ViewEnded
    | RunFinished
    | ParityDone
    | Fault
)
