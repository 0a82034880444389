"""Steps are reported whole, in order, and at most five times a second."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from p2ptrain.engine.report import (
    PERIOD_S,
    Identity,
    Meter,
    StepFigures,
    Totals,
    worker_report,
)

FIGURES = StepFigures(loss=2.0, samples=4, wall_s=1.0, compute_s=0.5, comm_s=0.25)


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


@given(st.lists(st.floats(0.0, 0.5), max_size=40))
def test_nothing_is_lost_and_frames_keep_their_distance(gaps):
    clock, sent = Clock(), []
    meter = Meter(3, lambda frame: sent.append((clock.now, frame)), clock)
    for i, gap in enumerate(gaps):
        clock.now += gap
        meter.applied(i + 1, StepFigures(float(i), 4, gap, gap / 2, gap / 4))
    times = [at for at, _ in sent]
    assert all(b - a >= PERIOD_S for a, b in itertools.pairwise(times))
    meter.flush()
    meter.flush()
    frames = [frame for _, frame in sent]
    losses = [loss for frame in frames for loss in frame.losses]
    assert losses == [float(i) for i in range(len(gaps))]
    assert sum(frame.samples for frame in frames) == 4 * len(gaps)
    ends = [frame.step for frame in frames]
    assert ends == sorted(set(ends))
    assert all(frame.view == 3 for frame in frames)
    for frame in frames:
        assert frame.step == frame.losses[-1] + 1


def test_the_first_step_is_reported_at_once():
    sent = []
    Meter(1, sent.append).applied(1, FIGURES)
    assert [frame.losses for frame in sent] == [(2.0,)]


def test_a_report_has_the_sums():
    totals = Totals()
    totals.add(FIGURES)
    totals.add(FIGURES)
    who = Identity("n" * 32, "cpu", ("cpu",), ("cpu (2 cores)",))
    report = worker_report(who, totals, (3.0, 1.0), "d" * 64)
    assert (report.samples, report.wall_s, report.compute_s) == (8, 2.0, 1.0)
    assert (report.comm_s, report.first_loss, report.last_loss) == (0.5, 3.0, 1.0)
    assert (report.device, report.digest) == ("cpu", "d" * 64)
