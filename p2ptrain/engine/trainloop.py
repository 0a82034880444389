"""One view from its ring to its end.

At a step boundary the work is always done in this order, and by all ranks alike,
because it follows from the step and from what the ranks said when the view began:
comparison of digests, figures of the epochs that are complete but have none (evaluation
included), checkpoint; then the end of the session, or the next step. So a view that
ends anywhere is taken up by the next one at the same boundary, and what was pending
there is done then, once.
"""

import math
import time
from collections.abc import Sequence

from torch import Tensor

from p2ptrain.engine import evaluate, meta, result
from p2ptrain.engine.collective import Group
from p2ptrain.engine.commands import Commands
from p2ptrain.engine.job import Job
from p2ptrain.engine.meta import DigestMeta, EvalMeta, HelloMeta
from p2ptrain.engine.outbox import Outbox
from p2ptrain.engine.report import Meter, worker_report
from p2ptrain.engine.state import ViewNote
from p2ptrain.engine.step import Turn
from p2ptrain.engine.writer import Label, Pace
from p2ptrain.errors import LinkLostError
from p2ptrain.ids import Digest
from p2ptrain.messages.record import Seat
from p2ptrain.messages.session import EpochFigures
from p2ptrain.messages.trainer import (
    EpochEnded,
    FromTrainer,
    RunFinished,
    RunView,
    ToTrainer,
    ViewEnded,
    WriteSnapshot,
)


class ViewRun:
    """A running view.

    Args:
        job: the loaded session.
        frame: the view.
        commands: looked at between steps.
        outbox: takes the frames on the way; the last one is returned by ``run``.
    """

    def __init__(
        self, job: Job, frame: RunView, commands: Commands, outbox: Outbox
    ) -> None:
        self._job = job
        self._frame = frame
        self._commands = commands
        self._outbox = outbox
        self._meter = Meter(frame.view, outbox.send)
        self._names: tuple[str, ...] = ()
        self._snapshot = self._save = False
        self._pace = Pace(len(frame.seats))
        self.deferred: list[ToTrainer] = []  # commands for after the view

    def train(self, group: Group) -> FromTrainer:
        """Train until the session or the view ends.

        Raises:
            LinkLostError: the ring broke or the view was halted; the state is that
                after the last applied step.
            TrainingFaultError: training cannot go on.
            StorageError: a file could not be written.
        """
        self._greet(group)
        while True:
            digest = self._settle(group)
            if self._job.state.step >= self._job.schedule.steps:
                return self._finish(digest)
            self._take_commands()
            reason = self._step(group)
            if reason is not None:
                return self.ended(reason, "")

    def ended(self, reason: str, culprit: str) -> ViewEnded:
        """Return the last frame of a view that is over before the session is."""
        self._meter.flush()
        state = self._job.state
        return ViewEnded(
            view=self._frame.view,
            step=state.step,
            digest=state.digest(),
            reason=reason,
            culprit=culprit,
        )

    def check(self) -> None:
        """Raise LinkLostError when the view must end at once."""
        reason = self._commands.reason(self._frame.view)
        if reason is not None:
            raise LinkLostError(-1, reason)

    def _greet(self, group: Group) -> None:
        """Learn the ranks' names, and that all bring the same job and state; forget
        figures that not all ranks have, for all to make them again.
        """
        state, frame = self._job.state, self._frame
        mine = HelloMeta(
            view=frame.view,
            step=state.step,
            digest=state.digest(),
            figures=len(state.figures),
            name=self._job.load.name,
            spec=state.spec,
        )
        hellos = meta.unpack(HelloMeta, group.exchange(meta.pack(mine)))
        meta.check_hellos(hellos)
        self._names = tuple(hello.name for hello in hellos)
        del state.figures[min(hello.figures for hello in hellos) :]
        seats = tuple(Seat(seat.node, seat.share) for seat in frame.seats)
        state.views.append(ViewNote(frame.view, state.step, seats))

    def _settle(self, group: Group) -> Digest:
        """Do what is due at this boundary; return the digest if it was compared."""
        job, step = self._job, self._job.state.step
        due, self._save = self._save or job.checkpoint_due(step), False
        digest = Digest("")
        if due or job.digest_due(step):
            digest = self._compare(group)
        self._close_epochs(group, digest)
        if due and self._frame.rank == 0:
            self._write("checkpoint")
        return digest

    def _close_epochs(self, group: Group, digest: Digest) -> None:
        job, state = self._job, self._job.state
        open_epochs = range(len(state.figures), job.schedule.complete(state.step))
        if not open_epochs:
            return
        self._meter.flush()
        metrics = self._evaluate(group, open_epochs[-1])
        for epoch in open_epochs:
            steps = job.schedule.steps_of(epoch)
            losses = [x for x in (state.losses[s] for s in steps) if not math.isnan(x)]
            figures = EpochFigures(
                epoch=epoch,
                step=job.schedule.epoch_end(epoch),
                loss=math.fsum(losses) / len(losses) if losses else math.nan,
                metrics=metrics,
                digest=digest if state.step == job.schedule.epoch_end(epoch) else "",
            )
            state.figures.append(figures)
            self._outbox.send(EpochEnded(self._frame.view, figures))

    def _evaluate(self, group: Group, epoch: int) -> dict[str, float]:
        """Return the validation group's metrics, the same on all ranks."""
        if self._job.eval is None:
            return {}
        plan, run = self._job.eval.plan, self._job.eval.run

        def run_checked(samples: Sequence[int], number: int) -> Sequence[Tensor]:
            self.check()
            return run(samples, number)

        world = len(self._frame.seats)
        sums = evaluate.rank_sums(plan, run_checked, self._frame.rank, world)
        packed = group.exchange(meta.pack(EvalMeta(epoch, sums)))
        return evaluate.figures(plan, meta.unpack(EvalMeta, packed))

    def _compare(self, group: Group) -> Digest:
        state = self._job.state
        mine = DigestMeta(state.step, state.digest())
        metas = meta.unpack(DigestMeta, group.exchange(meta.pack(mine)))
        meta.check_digests([m.digest for m in metas], self._names, state.step)
        return Digest(mine.digest)

    def _write(self, purpose: str) -> None:
        job = self._job
        label = Label(self._frame.view, purpose, job.schedule.complete(job.state.step))
        began = time.monotonic()
        copy = job.state.copy()
        if purpose == "checkpoint":
            self._pace.wrote(time.monotonic() - began, copy.nbytes)
        job.writer.begin(copy, label)

    def _take_commands(self) -> None:
        while (command := self._commands.waiting()) is not None:
            if isinstance(command, WriteSnapshot):
                self._snapshot = True
            else:
                self.deferred.append(command)
        if self._snapshot and not self._job.writer.busy:
            self._snapshot = False
            self._write("snapshot")

    def _step(self, group: Group) -> str | None:
        """Run a step; return why the view ends after it, or None."""
        self.check()
        job, view, frame = self._job, self._frame.view, self._frame
        reason = self._commands.drain(view)
        turn = Turn(
            group=group,
            rank=frame.rank,
            shares=tuple(seat.share for seat in frame.seats),
            names=self._names,
            check=self.check,
            drain=reason is not None,
            save=frame.rank == 0 and self._pace.is_due(job.writer),
            trace=self._job.trace,
        )
        figures, wishes = job.stepper.run(turn)
        job.totals.add(figures)
        self._meter.applied(job.state.step, figures)
        self._save = wishes.save
        if not wishes.drain or job.state.step >= job.schedule.steps:
            return None
        if len(frame.seats) == 1:  # nobody else holds the state
            self._write("checkpoint")
            job.writer.wait()
        return reason or "another rank was told to end the view"

    def _finish(self, digest: Digest) -> RunFinished:
        """Write the result on rank 0 and return the last frame."""
        job = self._job
        self._meter.flush()
        job.writer.wait()
        paths = ("", "")
        if self._frame.rank == 0:
            written = job.write_result(digest)
            paths = (str(written[0]), str(written[1]))
        ends = result.ends(job.state.losses)
        return RunFinished(
            view=self._frame.view,
            step=job.state.step,
            report=worker_report(job.identity, job.totals, ends, digest),
            weights_path=paths[0],
            manifest_path=paths[1],
        )
