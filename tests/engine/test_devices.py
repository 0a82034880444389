"""The choice of devices: every refusal and every reason."""

import time

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from p2ptrain.engine import devices
from p2ptrain.engine.devices import DeviceError, choose

HERE = ("cuda:0", "cuda:1", "cpu")
TIMES = {"cuda:0": 0.02, "cuda:1": 0.01, "cpu": 0.04}


def untimed(name):
    raise AssertionError(f"{name} was timed")


def test_auto_takes_the_fastest_and_says_why():
    choice = choose("auto", HERE, TIMES.__getitem__)
    assert choice.lanes == ("cuda:1",)
    assert "cuda:1 is the fastest: a step takes 0.01 s" in choice.why
    assert "cpu takes 0.04 s" in choice.why


def test_auto_prefers_a_slow_accelerator_to_nothing_and_the_cpu_to_a_slow_one():
    choice = choose("auto", ("mps", "cpu"), {"mps": 3.0, "cpu": 2.0}.__getitem__)
    assert choice.lanes == ("cpu",)


def test_auto_passes_over_a_device_that_cannot_run_the_graph():
    def timer(name):
        if name == "cuda:1":
            raise RuntimeError("no kernel image\nfor this device")
        return TIMES[name]

    choice = choose("auto", HERE, timer)
    assert choice.lanes == ("cuda:0",)
    assert "cuda:1 cannot run it (no kernel image)" in choice.why
    assert choose("all", HERE, timer).lanes == ("cuda:0", "cpu")


def test_no_device_that_can_run_the_graph_is_a_refusal():
    def timer(name):
        raise RuntimeError("no")

    with pytest.raises(DeviceError, match="no device here can run the graph: cuda:0"):
        choose("auto", HERE, timer)


def test_one_device_needs_no_race():
    assert choose("auto", ("cpu",), untimed).lanes == ("cpu",)
    assert choose("all", ("cpu",), untimed).why == "cpu is the only device here"


def test_all_takes_every_device_weighted_by_speed():
    choice = choose("all", HERE, TIMES.__getitem__)
    assert choice.lanes == ("cuda:1", "cuda:0", "cpu")
    assert choice.weights == pytest.approx((100, 50, 25))
    assert choice.device == "cuda:1,cuda:0,cpu"


@pytest.mark.parametrize(
    ("wanted", "lanes"),
    [
        ("cpu", ("cpu",)),
        ("cuda", ("cuda:0",)),
        ("cuda:1", ("cuda:1",)),
        ("cpu,cpu", ("cpu", "cpu")),
        ("cuda, cpu", ("cuda:0", "cpu")),
    ],
)
def test_a_name_is_obeyed_untimed(wanted, lanes):
    assert choose(wanted, HERE, untimed).lanes == lanes


@pytest.mark.parametrize("wanted", ["mps", "cuda:2", "gpu", "", "cpu,", "CPU", "cpu:1"])
def test_a_name_that_is_not_here_is_refused_with_what_is(wanted):
    with pytest.raises(DeviceError, match="cuda:0, cuda:1, cpu"):
        choose(wanted, HERE, untimed)


def test_this_machine_has_a_cpu_last():
    assert devices.inventory()[-1] == "cpu"
    assert devices.describe("cpu") == f"cpu ({devices.cores()} cores)"


def test_a_long_step_is_timed_once(monkeypatch):
    monkeypatch.setattr(devices, "TIMED_S", 0.0001)
    calls = []

    def step():
        calls.append(1)
        time.sleep(0.002)  # the step takes this long; nothing waits for it

    assert devices.step_seconds(step, torch.device("cpu")) >= 0.002
    assert len(calls) == 1


def test_the_first_step_only_warms_up():
    waits = iter([0.05] + [0.0] * 20)
    seconds = devices.step_seconds(lambda: time.sleep(next(waits)), torch.device("cpu"))
    assert seconds < 0.02


@given(st.integers(0, 60), st.lists(st.floats(0.01, 100), min_size=1, max_size=5))
def test_no_part_would_be_done_sooner_on_another_lane(count, weights):
    lanes = devices.spread(count, weights)
    assert len(lanes) == count
    done = [lanes.count(lane) for lane in range(len(weights))]
    for mine, my_weight in zip(done, weights, strict=True):
        for other, weight in zip(done, weights, strict=True):
            assert mine / my_weight <= (other + 1) / weight * (1 + 1e-9)


def test_equal_lanes_take_turns():
    assert devices.spread(5, (1.0, 1.0)) == [0, 1, 0, 1, 0]
