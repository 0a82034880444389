"""Lanes give the same results in the same order as one lane would."""

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2ptrain.engine import lanes as module
from p2ptrain.engine.lanes import Lanes


def product(step, part):
    return step * 1000 + part


@given(
    st.integers(0, 20),
    st.lists(st.floats(0.1, 10), min_size=1, max_size=4),
    st.integers(0, 5),
)
def test_results_come_in_the_order_of_the_parts(count, weights, first):
    lanes = Lanes([product] * len(weights), weights)
    parts = range(first, first + count)
    assert list(lanes.results(7, parts)) == [7000 + part for part in parts]


def test_two_lanes_work_at_the_same_time():
    meeting = threading.Barrier(2, timeout=20)

    def run(step, part):
        meeting.wait()
        return part, threading.get_ident()

    lanes = Lanes([run, run], (1.0, 1.0))
    done = list(lanes.results(0, range(4)))
    assert [part for part, _ in done] == [0, 1, 2, 3]
    assert len({thread for _, thread in done}) == 2


def test_one_lane_works_in_the_calling_thread():
    lanes = Lanes([lambda step, part: threading.get_ident()], (1.0,))
    assert set(lanes.results(0, range(3))) == {threading.get_ident()}


def test_a_lane_does_not_run_away():
    begun = []

    def run(step, part):
        begun.append(part)
        return part

    lanes = Lanes([run, run], (1.0, 1.0))
    results = lanes.results(0, range(20))
    next(results)
    results.close()
    # One taken; of each lane at most AHEAD more were begun.
    assert len(begun) <= 1 + 2 * module.AHEAD


def test_an_error_in_a_lane_is_raised_and_the_lanes_stay_usable():
    def run(step, part):
        if step == 0 and part == 1:
            raise RuntimeError("out of memory")
        return part

    lanes = Lanes([run, run], (1.0, 1.0))
    results = lanes.results(0, range(6))
    assert next(results) == 0
    with pytest.raises(RuntimeError, match="out of memory"):
        next(results)
    assert list(lanes.results(1, range(6))) == list(range(6))
