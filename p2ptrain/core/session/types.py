"""What goes into a session's master core and what comes out of it."""

from dataclasses import dataclass
from enum import StrEnum

from p2ptrain.core.registry import SessionRow
from p2ptrain.ids import NodeId
from p2ptrain.members import Member
from p2ptrain.messages.record import BlobRef, Command
from p2ptrain.messages.session import Order, WorkerState


class Stage(StrEnum):
    """Where the master is with a session."""

    GATHER = "gather"  # a new master listens to what the workers do
    FORM = "form"  # preparing nodes, settling the step, proposing a view
    RUN = "run"
    HALT = "halt"  # ending a view
    FINISH = "finish"  # the last step is applied; the result is being secured
    OVER = "over"


@dataclass(frozen=True, slots=True)
class SessionConfig:
    """Times in seconds.

    Args:
        repeat_s: an order that is not obeyed yet is repeated this often.
        gather_s: how long a new master listens before it acts.
        silent_s: a worker not heard for so long is not counted on.
        settle_s: a seat that answers nothing at a view's end is left out after this.
        gone_s: the same for a seat whose node is suspected to be dead.
        linger_s: a seat that answers has so long to end its view after the first one.
        drain_s: seats have so long to reach a step boundary.
        leave_s: a view's last seats wait so long for their checkpoint to be recorded.
        patience_s: a node that prepares without progress for so long is left behind.
        stall_s: no step for so long (or ten times the usual) ends a view.
        first_step_s: allowance for the first step of a view, to begin with.
        snapshot_s: a node has so long to write its state.
        bar_s: a node that failed is not asked again for this long, then for twice it.
        bar_max_s: bound of the former.
        grow_s: views are not ended more often than this to let nodes join, nor more
            often than ``GROW_PAUSES`` times what the last change of views cost.
    """

    repeat_s: float = 0.5
    gather_s: float = 0.7
    silent_s: float = 4.0
    settle_s: float = 0.35
    gone_s: float = 0.05
    linger_s: float = 1.5
    drain_s: float = 20.0
    leave_s: float = 6.0
    patience_s: float = 20.0
    stall_s: float = 4.0
    first_step_s: float = 30.0
    snapshot_s: float = 30.0
    bar_s: float = 3.0
    bar_max_s: float = 60.0
    grow_s: float = 0.5


@dataclass(frozen=True, slots=True)
class Facts:
    """What the master needs to know of the job.

    Args:
        parts: micro-batches in a step.
        steps: steps of the whole session.
        epochs: epochs of the whole session.
        step_samples: samples in a step.
    """

    parts: int
    steps: int
    epochs: int
    step_samples: int


@dataclass(frozen=True, slots=True)
class Tick:
    """The deadline has passed."""


@dataclass(frozen=True, slots=True)
class Reported:
    """A worker's state."""

    state: WorkerState


@dataclass(frozen=True, slots=True)
class Recorded:
    """The session's row has changed."""

    row: SessionRow


@dataclass(frozen=True, slots=True)
class Present:
    """The members that are in the cluster now."""

    members: tuple[Member, ...]


@dataclass(frozen=True, slots=True)
class StopWanted:
    """The user wants the session to stop."""


@dataclass(frozen=True, slots=True)
class Held:
    """A node's answer to AskHold: what it lacks, or nothing."""

    node: NodeId
    blobs: tuple[BlobRef, ...]
    problem: str


Event = Tick | Reported | Recorded | Present | StopWanted | Held


@dataclass(frozen=True, slots=True)
class Propose:
    """Commit a command."""

    command: Command


@dataclass(frozen=True, slots=True)
class Send:
    """Send an order to a worker."""

    to: NodeId
    order: Order


@dataclass(frozen=True, slots=True)
class AskHold:
    """Ask a node to hold blobs; answered by Held."""

    node: NodeId
    blobs: tuple[BlobRef, ...]
    sources: tuple[NodeId, ...]


@dataclass(frozen=True, slots=True)
class Note:
    """Something that the owner of this machine may want to know of later."""

    text: str


Effect = Propose | Send | AskHold | Note
