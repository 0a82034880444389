"""A loaded session: what a view needs, put together by ``load``."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from torch import Tensor

from p2ptrain.core.stream import Schedule
from p2ptrain.engine import result
from p2ptrain.engine.devices import Choice
from p2ptrain.engine.evaluate import EvalPlan, RunBatch
from p2ptrain.engine.lanes import Lanes
from p2ptrain.engine.parts import PartResult
from p2ptrain.engine.rendezvous import RingListener
from p2ptrain.engine.report import Identity, Totals
from p2ptrain.engine.result import Origin
from p2ptrain.engine.state import TrainState
from p2ptrain.engine.step import Stepper
from p2ptrain.engine.trace import Trace
from p2ptrain.engine.writer import StateWriter
from p2ptrain.ids import Digest
from p2ptrain.messages.trainer import Load
from p2ptrain.spec.train import TrainSpec


@dataclass(frozen=True, slots=True)
class EvalJob:
    """The evaluation graph, ready to run."""

    plan: EvalPlan
    run: RunBatch


@dataclass(slots=True)
class Job:
    """A session in this process.

    Args:
        load: the command that it came from.
        origin: what the session is.
        schedule: how samples are cut into steps.
        state: what is trained.
        stepper: what trains it.
        lanes: what the stepper computes on.
        eval: what measures it, or None.
        writer: what writes it.
        weights: parameters, buffers and frozen weights by their graph names.
        choice: the devices, and why these.
        identity: what this worker is.
        listener: where neighbours' ring links arrive.
        trace: the timeline of this process.
    """

    load: Load
    origin: Origin
    schedule: Schedule
    state: TrainState
    stepper: Stepper
    lanes: Lanes[PartResult]
    eval: EvalJob | None
    writer: StateWriter
    weights: Mapping[str, Tensor]
    choice: Choice
    identity: Identity
    listener: RingListener
    trace: Trace
    totals: Totals = field(default_factory=Totals)

    @property
    def spec(self) -> TrainSpec:
        """The job as submitted."""
        return self.origin.spec

    def checkpoint_due(self, step: int) -> bool:
        """Tell whether a checkpoint belongs to the boundary after so many steps."""
        if step == 0:
            return False
        every, plan = self.spec.checkpoint_every, self.schedule
        return (
            step == plan.steps
            or plan.complete(step) > plan.complete(step - 1)
            or (every > 0 and step % every == 0)
        )

    def digest_due(self, step: int) -> bool:
        """Tell whether digests are compared after so many steps."""
        every = self.spec.digest_every
        return step > 0 and every > 0 and step % every == 0

    def close(self) -> None:
        """Stop listening and end the threads."""
        self.listener.close()
        self.lanes.close()
        self.writer.close()
        self.trace.close()

    def restore(self, path: Path) -> None:
        """Take over the state of a file.

        Raises:
            StorageError: it is not a state of this job; nothing is changed.
        """
        self.state.restore(path)
        self.stepper.restored()

    def write_result(self, digest: Digest) -> tuple[Path, Path]:
        """Write the final files and return their paths.

        Raises:
            StorageError: the disk refused.
        """
        return result.write_result(
            Path(self.load.workdir),
            result.exported(self.spec, self.weights),
            result.manifest(self.origin, self.state, digest),
        )
