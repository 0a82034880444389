"""One step: compute this rank's parts, reduce, check, apply.

The state changes in ``_apply`` only, which begins when the whole sum and all ranks'
metas are here and waits for nobody: no halt and no lost link can leave half a step
behind.
"""

import math
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from p2ptrain.core.stream import parts_of
from p2ptrain.engine import meta, safefile
from p2ptrain.engine.collective import Group
from p2ptrain.engine.exact import Reducer
from p2ptrain.engine.lanes import Lanes
from p2ptrain.engine.meta import StepMeta, TrainingFaultError
from p2ptrain.engine.optim import Optimizer, clip_by_norm
from p2ptrain.engine.parts import PartResult
from p2ptrain.engine.report import StepFigures
from p2ptrain.engine.state import TrainState
from p2ptrain.engine.trace import Trace
from p2ptrain.errors import LinkLostError, LocalError

TRIES: Final = 3  # the reducer asks once at most
LAPS: Final = ("compute", "reduce", "apply")


class Clock:
    """Seconds since its birth, and sums of the laps between by name.

    Args:
        trace: takes the laps.
        step: that is timed.
    """

    def __init__(self, trace: Trace, step: int) -> None:
        self._trace, self._step = trace, step
        self._begin = self._last = time.perf_counter()
        self.laps: dict[str, float] = dict.fromkeys(LAPS, 0.0)

    @property
    def wall_s(self) -> float:
        """Seconds up to the last lap."""
        return self._last - self._begin

    def lap(self, name: str) -> None:
        """Add the time since the last lap to a name."""
        now = time.perf_counter()
        self.laps[name] += now - self._last
        self._trace.span(name, self._last, now, step=self._step)
        self._last = now


@dataclass(frozen=True, slots=True)
class Turn:
    """What a rank does in one step of a view.

    Args:
        group: the ring.
        rank: of this node.
        shares: parts that each rank computes.
        names: all ranks' nodes, for people.
        check: raises LinkLostError when the view must end at once.
        drain: this rank was told to end the view after the step.
        save: this rank wants a checkpoint after the step.
        trace: takes what was at work when.
    """

    group: Group
    rank: int
    shares: tuple[int, ...]
    names: tuple[str, ...]
    check: Callable[[], None]
    drain: bool
    save: bool
    trace: Trace

    @property
    def parts(self) -> range:
        """The parts that this rank computes."""
        return parts_of(self.shares, self.rank)


@dataclass(frozen=True, slots=True)
class Wishes:
    """What all ranks do after a step: end the view, write a checkpoint."""

    drain: bool
    save: bool


@dataclass(frozen=True, slots=True)
class Update:
    """How a reduced step changes the state.

    Args:
        parts: parts in a whole step.
        batch: samples in a part.
        names: what the sums of a part are, for people: gradients, then buffers.
        params: the live parameters, in the order of the first sums.
        floats: the live floating-point buffers, in the order of the others.
        ints: the live other buffers.
        clip_norm: the largest global norm of the gradient, or None.
        skip_max: steps in a row that are skipped before the session fails.
        rate: the learning rate of a step.
        spread: brings the other lanes' copies up to date.
    """

    parts: int
    batch: int
    names: tuple[str, ...]
    params: tuple[Tensor, ...]
    floats: tuple[Tensor, ...]
    ints: tuple[Tensor, ...]
    clip_norm: float | None
    skip_max: int
    rate: Callable[[int], float]
    spread: Callable[[], None]


class Stepper:
    """Runs steps on a state.

    Args:
        state: what the steps change.
        update: how.
        lanes: what computes parts.
        reducer: what sums over parts and ranks.
        optimizer: what turns gradients into new parameters.
    """

    def __init__(
        self,
        state: TrainState,
        update: Update,
        lanes: Lanes[PartResult],
        reducer: Reducer,
        optimizer: Optimizer,
    ) -> None:
        self._state = state
        self._update = update
        self._lanes = lanes
        self._reducer = reducer
        self._optimizer = optimizer

    def run(self, turn: Turn) -> tuple[StepFigures, Wishes]:
        """Run and apply the next step; return its figures, and what any rank wants to
        be done after it.

        Raises:
            LinkLostError: the view is over; nothing is applied.
            TrainingFaultError: the step may not be applied on any rank.
        """
        clock = Clock(turn.trace, self._state.step)
        kept = self._reducer.state()
        try:
            sums, metas, why = self._reduced(turn, clock)
        except LinkLostError:
            # The next view's ranks must all begin with the reducer of the boundary.
            self._reducer.load(kept)
            raise
        loss = math.nan if why else meta.step_loss(metas)
        if why:
            self._skip(why, kept)
        else:
            self._apply(sums, meta.int_bytes(metas), loss)
        clock.lap("apply")
        figures = StepFigures(
            loss=loss,
            samples=len(turn.parts) * self._update.batch,
            wall_s=clock.wall_s,
            compute_s=clock.laps["compute"] + clock.laps["apply"],
            comm_s=clock.laps["reduce"],
            note=f"{why}: the step was skipped" if why else "",
        )
        drain, save = any(m.drain for m in metas), any(m.save for m in metas)
        return figures, Wishes(drain=drain, save=save)

    def restored(self) -> None:
        """Go on from a state that was put in place of the old one."""
        self._reducer.load(self._state.exponents)
        self._update.spread()

    def _reduced(
        self, turn: Turn, clock: Clock
    ) -> tuple[list[Tensor], list[StepMeta], str]:
        """Compute and reduce, twice where the reducer asks for it; check the metas."""
        for _ in range(TRIES):
            mine = self._compute(turn)
            clock.lap("compute")
            reduced = self._reducer.finish(turn.group, meta.pack(mine))
            clock.lap("reduce")
            if reduced is not None:
                metas = meta.unpack(StepMeta, reduced.metas)
                why = meta.check_steps(metas, turn.names, turn.shares)
                return reduced.sums, metas, why
        raise LocalError(f"step {self._state.step} was reduced {TRIES} times in vain")

    def _compute(self, turn: Turn) -> StepMeta:
        """Add this rank's parts to the reducer; say what they gave."""
        losses: list[float] = []
        ints: set[bytes] = set()
        bad = ""
        self._reducer.begin(self._update.parts)
        with closing(self._lanes.results(self._state.step, turn.parts)) as results:
            for result in results:
                turn.check()
                losses.append(result.loss)
                ints.add(result.ints)
                bad = bad or not_finite(result, self._update.names)
                self._reducer.add(result.sums)
        return StepMeta(
            step=self._state.step,
            losses=tuple(losses),
            bad=bad,
            ints=min(ints, default=b""),
            uneven=len(ints) > 1,
            drain=turn.drain,
            save=turn.save,
        )

    def _skip(self, why: str, kept: Sequence[int]) -> None:
        """Count a step that changes nothing else, on all ranks alike.

        Raises:
            TrainingFaultError: it is one too many in a row.
        """
        skipped = self._state.skipped
        if skipped >= self._update.skip_max:
            before = f", after {skipped} skipped steps" if skipped else ""
            raise TrainingFaultError(
                f"{why}{before}: lower the learning rate, clip gradients or check "
                "the data"
            )
        self._reducer.load(kept)
        self._state.applied(math.nan, kept)

    def _apply(self, sums: list[Tensor], ints: bytes, loss: float) -> None:
        update = self._update
        safefile.fill(update.ints, ints)
        if update.parts > 1:
            for total in sums:
                total.div_(update.parts)
        targets = (*update.params, *update.floats)
        means = [s.to(t.device, t.dtype) for s, t in zip(sums, targets, strict=True)]
        grads = means[: len(update.params)]
        if update.clip_norm is not None:
            clip_by_norm(grads, update.clip_norm)
        self._optimizer.step(grads, update.rate(self._state.step))
        for buffer, new in zip(update.floats, means[len(grads) :], strict=True):
            buffer.copy_(new)
        update.spread()
        self._state.applied(loss, self._reducer.state())


def not_finite(result: PartResult, names: Sequence[str]) -> str:
    """Say what of a part's result is not finite, or nothing.

    One sum a tensor, read back once, is enough to pass; only where a sum is not finite
    (it may overflow) are the tensors looked through one by one.

    Args:
        result: of the part.
        names: what its sums are, for people.
    """
    if not math.isfinite(result.loss):
        return "the loss"
    probe = torch.stack([tensor.sum(dtype=torch.float32) for tensor in result.sums])
    if bool(probe.isfinite().all()):
        return ""
    for name, tensor in zip(names, result.sums, strict=True):
        if not bool(tensor.isfinite().all()):
            return name
    return ""
