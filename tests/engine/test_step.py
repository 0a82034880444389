"""A step is applied whole or not at all, and a lost one leaves nothing behind."""

import math

import pytest
import torch

from p2ptrain.engine.collective import solo
from p2ptrain.engine.exact import ExactReducer, FastReducer
from p2ptrain.engine.lanes import Lanes
from p2ptrain.engine.meta import TrainingFaultError
from p2ptrain.engine.optim import make_optimizer
from p2ptrain.engine.parts import PartResult
from p2ptrain.engine.state import EXPONENTS, TrainState
from p2ptrain.engine.step import Clock, Stepper, Turn, Update, not_finite
from p2ptrain.engine.trace import Trace
from p2ptrain.errors import LinkLostError, LocalError
from p2ptrain.spec.train import Optimizer


class Bench:
    """A stepper over one weight, one float buffer and one counter, on one rank.

    Part ``m`` of step ``s`` has loss and gradient ``10 s + m``; ``change`` may alter
    its result.
    """

    def __init__(self, parts=2, exact=False, clip=None, change=None, skip_max=0):
        self.weight = torch.zeros(3)
        self.mean = torch.zeros(3)
        self.count = torch.tensor(0)
        self.change = change
        self.spreads = 0
        likes = [self.weight, self.mean]
        tensors = {"param/w": self.weight, "buffer/m": self.mean}
        tensors["buffer/n"] = self.count
        if exact:
            tensors[EXPONENTS] = torch.zeros(2, dtype=torch.int64)
        self.state = TrainState("s" * 64, tensors)
        self.reducer = ExactReducer(likes) if exact else FastReducer(likes)
        update = Update(
            parts=parts,
            batch=4,
            names=("the gradient of 'w'", "the buffer 'm'"),
            params=(self.weight,),
            floats=(self.mean,),
            ints=(self.count,),
            clip_norm=clip,
            skip_max=skip_max,
            rate=lambda step: 1.0 if step == 0 else 0.5,
            spread=self.spread,
        )
        optimizer = make_optimizer(Optimizer(), 0.0, {"w": self.weight})
        lanes = Lanes([self.part], (1.0,))
        self.stepper = Stepper(self.state, update, lanes, self.reducer, optimizer)
        self.count_of_parts = parts

    def spread(self):
        self.spreads += 1

    def part(self, step, part):
        value = float(10 * step + part)
        count = (int(self.count) + 1).to_bytes(8, "little")
        sums = [torch.full((3,), value), torch.full((3,), value + 1)]
        result = PartResult(value, sums, count)
        return self.change(step, part, result) if self.change else result

    def run(self, group=None, check=lambda: None, drain=False):
        turn = Turn(
            group=group or solo(),
            rank=0,
            shares=(self.count_of_parts,),
            names=("ant",),
            check=check,
            drain=drain,
            save=False,
            trace=Trace(None),
        )
        return self.stepper.run(turn)


@pytest.mark.parametrize("exact", [False, True])
def test_a_step_takes_the_mean_over_parts(exact):
    bench = Bench(exact=exact)
    figures, wishes = bench.run()
    assert bench.weight.tolist() == [-0.5] * 3  # rate 1, gradients 0 and 1
    assert bench.mean.tolist() == [1.5] * 3
    assert bench.count.item() == 1
    assert (bench.state.step, list(bench.state.losses)) == (1, [0.5])
    assert (figures.loss, figures.samples, wishes.drain) == (0.5, 8, False)
    assert bench.spreads == 1
    bench.run()
    assert bench.weight.tolist() == [-0.5 - 0.5 * 10.5] * 3  # the rate of its step
    assert figures.wall_s >= figures.compute_s + figures.comm_s - 1e-9


def test_the_mean_gradient_is_clipped():
    bench = Bench(clip=0.1)
    bench.run()
    assert bench.weight.norm().item() == pytest.approx(0.1, rel=1e-4)
    assert bench.mean.tolist() == [1.5] * 3  # buffers are not gradients


def test_a_drain_is_heard():
    assert Bench().run(drain=True)[1]


def unchanged(bench):
    fresh = Bench(exact=isinstance(bench.reducer, ExactReducer))
    return bench.state.digest() == fresh.state.digest() and not bench.state.losses


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("moment", ["check", "ring"])
def test_a_lost_step_changes_nothing_and_can_be_run_again(exact, moment):
    bench = Bench(exact=exact)

    def lost():
        raise LinkLostError(1, "gone")

    group = solo()
    if moment == "ring":
        group.abort("gone")
    with pytest.raises(LinkLostError, match="gone"):
        bench.run(group, lost if moment == "check" else lambda: None)
    assert unchanged(bench)
    bench.run()
    fresh = Bench(exact=exact)
    fresh.run()
    assert bench.state.digest() == fresh.state.digest()
    assert bench.reducer.state() == fresh.reducer.state()


def test_a_ring_lost_between_two_reductions_of_a_step_restores_the_exponents():
    """One rank had agreed on exponents when the ring broke, the others had not: the
    next view's ranks must all begin as at the boundary.
    """
    bench = Bench(exact=True)
    bench.run()
    kept = bench.reducer.state()
    assert kept == bench.state.exponents
    sent = []

    class Breaking:
        """The first reduction of the step is whole, the second is not."""

        def reduce(self, flat, meta):
            sent.append(meta)
            if len(sent) == 2:
                raise LinkLostError(1, "gone")
            return (meta,)

    def huge(step, part, result):
        return PartResult(result.loss, [s * 1e20 for s in result.sums], result.ints)

    bench.change = huge
    with pytest.raises(LinkLostError):
        bench.run(Breaking())
    assert len(sent) == 2
    assert bench.reducer.state() == kept
    assert bench.state.step == 1
    bench.run()  # and with the ring whole again it is applied
    other = Bench(exact=True)
    other.run()
    other.change = huge
    other.run()
    assert bench.state.digest() == other.state.digest()


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize(
    ("bad", "said"),
    [
        (lambda r: PartResult(math.nan, r.sums, r.ints), "the loss"),
        (
            lambda r: PartResult(r.loss, [r.sums[0] * math.inf, r.sums[1]], r.ints),
            "the gradient of 'w'",
        ),
        (
            lambda r: PartResult(r.loss, [r.sums[0], r.sums[1] / 0], r.ints),
            "the buffer 'm'",
        ),
    ],
)
def test_what_is_not_finite_is_never_applied(exact, bad, said):
    bench = Bench(exact=exact, change=lambda s, m, r: bad(r) if (s, m) == (0, 1) else r)
    with pytest.raises(TrainingFaultError, match=f"node 'ant': {said} is not finite"):
        bench.run()
    assert unchanged(bench)


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("first", [0, 1])
def test_a_step_that_is_not_finite_is_skipped_and_said(exact, first):
    """It counts as a step, changes nothing else, and the next one goes on from there,
    also in a process that took the state over.
    """
    bad = (first, 1)
    bench = Bench(exact=exact, change=at(bad), skip_max=1)
    for _ in range(first):
        bench.run()
    before, exponents = bench.weight.clone(), bench.reducer.state()
    figures, _ = bench.run()
    assert math.isnan(figures.loss)
    assert figures.note == (
        f"node 'ant': the loss is not finite at step {first}: the step was skipped"
    )
    assert torch.equal(bench.weight, before)
    assert int(bench.count) == first
    assert (bench.state.step, bench.state.skipped) == (first + 1, 1)
    assert bench.reducer.state() == bench.state.exponents == exponents
    figures, _ = bench.run()
    assert not figures.note
    assert (bench.state.step, bench.state.skipped) == (first + 2, 0)
    assert not torch.equal(bench.weight, before)


def test_too_many_skipped_steps_in_a_row_are_a_fault():
    bad = [(0, 0), (1, 1), (3, 0), (4, 0), (5, 0)]
    bench = Bench(change=at(*bad), skip_max=2)
    for _ in range(5):
        bench.run()
    with pytest.raises(TrainingFaultError, match="at step 5, after 2 skipped steps: l"):
        bench.run()
    assert bench.state.step == 5


def at(*places):
    """Return a change that makes the loss of some (step, part) not a number."""

    def change(step, part, result):
        bad = (step, part) in places
        return PartResult(math.nan, result.sums, result.ints) if bad else result

    return change


def test_uneven_integers_are_never_applied():
    def change(step, part, result):
        return PartResult(result.loss, result.sums, bytes([part] * 8))

    bench = Bench(change=change)
    with pytest.raises(TrainingFaultError, match="integer buffers of node 'ant'"):
        bench.run()
    assert unchanged(bench)


def test_integers_of_another_size_are_never_applied():
    bench = Bench(change=lambda s, m, r: PartResult(r.loss, r.sums, b"\x01"))
    with pytest.raises(LocalError, match="1 bytes for tensors of 8"):
        bench.run()
    assert unchanged(bench)


def test_a_sum_that_overflows_is_not_taken_for_infinity():
    large = torch.full((4,), 3e38)
    assert not_finite(PartResult(1.0, [large], b""), ["w"]) == ""
    large[2] = math.nan
    assert not_finite(PartResult(1.0, [large], b""), ["w"]) == "w"


def test_a_clock_adds_up():
    clock = Clock(Trace(None), 0)
    clock.lap("compute")
    clock.lap("reduce")
    clock.lap("apply")
    assert clock.wall_s == pytest.approx(sum(clock.laps.values()))


def test_a_restored_state_carries_its_exponents(tmp_path):
    old = Bench(exact=True)
    old.run()
    old.state.copy().write(tmp_path / "state")
    new = Bench(exact=True)
    new.state.restore(tmp_path / "state")
    new.stepper.restored()
    assert new.reducer.state() == old.reducer.state() != []
    assert new.spreads == 1
    old.run()
    new.run()
    assert new.state.digest() == old.state.digest()
