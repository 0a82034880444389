"""A worker's core on its own, driven event by event."""

from p2ptrain.core.worker import (
    Effect,
    Event,
    Fetched,
    FromProcess,
    Ordered,
    SessionWorker,
    Tick,
)
from p2ptrain.core.worker.types import Report
from p2ptrain.ids import Digest, NodeId, digest_of, session_of
from p2ptrain.messages.record import BlobRef, WorkerReport
from p2ptrain.messages.session import (
    Halt,
    Prepare,
    RingSeat,
    Run,
    StateRef,
    WorkerState,
)
from p2ptrain.messages.trainer import FromTrainer, Loaded, Steps, ViewEnded

ME, OTHER = NodeId("a" * 32), NodeId("b" * 32)
SESSION = session_of("key")
SPEC = BlobRef(digest_of(b"spec"), 100, "spec")
DATA = BlobRef(digest_of(b"data"), 200, "data")
STATE = BlobRef(digest_of(b"state"), 300, "state")
D0, D5, D6 = (Digest(letter * 64) for letter in "056")


def seat(node: NodeId, share: int = 1) -> RingSeat:
    return RingSeat(node, share, f"{node[:1]}:1")


SEATS = (seat(OTHER), seat(ME, 2))


def prepare(view: int = 1, term: int = 1) -> Prepare:
    return Prepare(term, SESSION, view, SPEC, (DATA,), (OTHER,))


def run(
    view: int = 1,
    first_step: int = 0,
    state: StateRef | None = None,
    term: int = 1,
    seats: tuple[RingSeat, ...] = SEATS,
) -> Run:
    sources = (OTHER,) if state else ()
    return Run(term, SESSION, view, seats, first_step, state, sources)


def halt(view: int = 1, term: int = 1, *, drain: bool = False) -> Halt:
    return Halt(term, SESSION, view, "because", drain=drain)


def loaded(step: int = 0, digest: Digest = D0) -> Loaded:
    return Loaded(
        "cuda:0", "the fastest", ("cuda:0",), ("cuda:0", "cpu"), 7000, step, 100, 2,
        digest, ("d" * 64,), 1.0,
    )  # fmt: skip


def ended(view: int = 1, step: int = 5, digest: Digest = D5) -> ViewEnded:
    return ViewEnded(view, step, digest, "a link is lost", OTHER)


def steps(view: int = 1, step: int = 5, count: int = 5) -> Steps:
    losses = tuple(1 / (step - count + i + 1) for i in range(count))
    return Steps(view, step, losses, 10 * count, 2.0, 1.5, 0.5)


def report() -> WorkerReport:
    return WorkerReport(
        ME, "cuda:0", ("cuda:0",), ("cuda:0",), 100, 9.0, 8.0, 1.0, 2.0, 0.5, D6
    )


class Kit:
    """The core and its clock."""

    def __init__(self, host: str = "host") -> None:
        self.core = SessionWorker(ME, SESSION, host, 1000)
        self.now = 0.0

    @property
    def state(self) -> WorkerState:
        return self.core.state

    def do(self, *events: Event) -> list[Effect]:
        """Take events; return all effects but the reports."""
        effects = [e for event in events for e in self.core.step(self.now, event)]
        self.reports = [e.state for e in effects if isinstance(e, Report)]
        return [e for e in effects if not isinstance(e, Report)]

    def order(self, *orders: object) -> list[Effect]:
        return self.do(*(Ordered(order) for order in orders))  # type: ignore[arg-type]

    def hear(self, *frames: FromTrainer) -> list[Effect]:
        return self.do(*(FromProcess(frame) for frame in frames))

    def later(self, seconds: float) -> list[Effect]:
        self.now += seconds
        return self.do(Tick())


def ready() -> Kit:
    kit = Kit()
    kit.order(prepare())
    kit.do(Fetched("prepare", ""))
    kit.hear(loaded())
    return kit


def running() -> Kit:
    kit = ready()
    kit.order(run())
    return kit
