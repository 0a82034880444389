"""What goes into a worker's core and what comes out of it."""

from dataclasses import dataclass

from p2ptrain.ids import NodeId
from p2ptrain.messages.record import BlobRef
from p2ptrain.messages.session import Order, WorkerState
from p2ptrain.messages.trainer import FromTrainer, ToTrainer


@dataclass(frozen=True, slots=True)
class Tick:
    """The deadline has passed."""


@dataclass(frozen=True, slots=True)
class Ordered:
    """An order from the master."""

    order: Order


@dataclass(frozen=True, slots=True)
class Fetched:
    """The blobs asked for with ``tag`` are here, or the problem says why not.

    ``of_source`` says that no source had them; else this node is to blame.
    """

    tag: str
    problem: str
    of_source: bool = False


@dataclass(frozen=True, slots=True)
class Fetching:
    """Bytes of the fetch under way."""

    done: int
    total: int


@dataclass(frozen=True, slots=True)
class FromProcess:
    """A frame of the trainer process."""

    frame: FromTrainer


@dataclass(frozen=True, slots=True)
class Adopted:
    """Files of the trainer are blobs now; ``tag`` as in Adopt."""

    tag: str
    blobs: tuple[BlobRef, ...]
    problem: str


@dataclass(frozen=True, slots=True)
class MasterChanged:
    """Another node leads from now on, and knows nothing of this worker."""


Event = MasterChanged | Tick | Ordered | Fetched | Fetching | FromProcess | Adopted


@dataclass(frozen=True, slots=True)
class Fetch:
    """Have these blobs here; answered by Fetched."""

    tag: str
    blobs: tuple[BlobRef, ...]
    sources: tuple[NodeId, ...]


@dataclass(frozen=True, slots=True)
class Launch:
    """Start a trainer process and have it load the session."""

    spec: BlobRef
    blobs: tuple[BlobRef, ...]


@dataclass(frozen=True, slots=True)
class Tell:
    """Send a frame to the trainer; ``state`` is a blob whose file it names."""

    frame: ToTrainer
    state: BlobRef | None = None


@dataclass(frozen=True, slots=True)
class Adopt:
    """Make files of the trainer blobs of this node; answered by Adopted."""

    tag: str
    files: tuple[tuple[str, str], ...]  # path, name


@dataclass(frozen=True, slots=True)
class Report:
    """Tell the master."""

    state: WorkerState


@dataclass(frozen=True, slots=True)
class EndTrainer:
    """End the trainer process."""


@dataclass(frozen=True, slots=True)
class Forget:
    """End the trainer process and forget the session."""


Effect = Fetch | Launch | Tell | Adopt | Report | EndTrainer | Forget
