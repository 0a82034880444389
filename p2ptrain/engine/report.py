"""What a trainer measured of itself, and how it tells the daemon.

Seconds of one step: ``wall`` is all of it, ``compute`` running the graph and applying
the step, ``comm`` waiting for the ring.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from p2ptrain.ids import Digest, NodeId
from p2ptrain.messages.record import WorkerReport
from p2ptrain.messages.trainer import Steps

PERIOD_S: Final = 0.2  # between two Steps frames


@dataclass(frozen=True, slots=True)
class StepFigures:
    """One applied step, as this rank measured it."""

    loss: float
    samples: int
    wall_s: float
    compute_s: float
    comm_s: float
    note: str = ""  # what people should know of it


@dataclass(slots=True)
class Totals:
    """Sums over all steps that this process applied in a session."""

    samples: int = 0
    wall_s: float = 0.0
    compute_s: float = 0.0
    comm_s: float = 0.0

    def add(self, figures: StepFigures) -> None:
        """Count a step."""
        self.samples += figures.samples
        self.wall_s += figures.wall_s
        self.compute_s += figures.compute_s
        self.comm_s += figures.comm_s


@dataclass(slots=True)
class Meter:
    """Collects applied steps and reports them at most five times a second.

    Args:
        view: the view that the steps belong to.
        send: takes the frames.
        now: the clock, in seconds.
    """

    view: int
    send: Callable[[Steps], None]
    now: Callable[[], float] = time.monotonic
    _sent_s: float = float("-inf")
    _step: int = 0
    _losses: list[float] = field(default_factory=list)
    _note: str = ""
    _held: Totals = field(default_factory=Totals)

    def applied(self, step: int, figures: StepFigures) -> None:
        """Count the step that made ``step`` applied ones."""
        self._step = step
        self._losses.append(figures.loss)
        self._held.add(figures)
        self._note = figures.note or self._note
        if self.now() - self._sent_s >= PERIOD_S:
            self.flush()

    def flush(self) -> None:
        """Report what has not been reported."""
        if not self._losses:
            return
        held = self._held
        losses = tuple(self._losses)
        self.send(
            Steps(
                view=self.view,
                step=self._step,
                losses=losses,
                samples=held.samples,
                wall_s=held.wall_s,
                compute_s=held.compute_s,
                comm_s=held.comm_s,
                note=self._note,
            )
        )
        self._sent_s = self.now()
        self._losses, self._note = [], ""
        self._held = Totals()


@dataclass(frozen=True, slots=True)
class Identity:
    """What does not change about a worker while a session lasts."""

    node: NodeId
    device: str
    lanes: tuple[str, ...]
    inventory: tuple[str, ...]


def worker_report(
    who: Identity, totals: Totals, losses: tuple[float, float], digest: Digest
) -> WorkerReport:
    """Return a worker's report.

    Args:
        who: the worker.
        totals: its own sums.
        losses: the session's first and last loss.
        digest: of its final state.
    """
    return WorkerReport(
        node=who.node,
        device=who.device,
        lanes=who.lanes,
        inventory=who.inventory,
        samples=totals.samples,
        wall_s=totals.wall_s,
        compute_s=totals.compute_s,
        comm_s=totals.comm_s,
        first_loss=losses[0],
        last_loss=losses[1],
        digest=digest,
    )
