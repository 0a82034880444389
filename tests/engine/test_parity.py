"""Parity tells round-off from faults: by real graphs and by planted errors."""

import math

import pytest
import torch

from p2ptrain.engine import parity
from p2ptrain.engine.parity import Case, Error, judged, worst
from p2ptrain.messages.trainer import CheckParity, Loaded, ParityDone
from p2ptrain.spec.train import Precision
from tests.engine import trainjobs as jobs
from tests.engine import trainkit as kit

EPS = parity.EPS[Precision.FP32]
CASE = Case("cuda:0", "float64", EPS)


@pytest.fixture(autouse=True)
def one_thread():
    torch.set_num_threads(1)


def test_the_worst_output_is_found():
    want = [torch.tensor([1.0, 2.0]), torch.tensor([100.0])]
    got = [torch.tensor([1.0, 2.1]), torch.tensor([101.0])]
    error = worst(["a", "b"], got, want)
    assert error.output == "a"
    assert error.max_abs == pytest.approx(0.1)
    assert error.max_rel == pytest.approx(0.05)


def test_an_output_that_is_nearly_zero_is_measured_by_its_fellows():
    want = [torch.tensor([1.0]), torch.tensor([1e-18]).double()]
    got = [torch.tensor([1.0]), torch.tensor([1e-9])]
    assert worst(["a", "b"], got, want).max_rel == pytest.approx(1e-6)


def test_what_is_not_a_number_is_infinitely_wrong():
    error = worst(["a"], [torch.tensor([math.nan])], [torch.tensor([1.0])])
    assert error.max_rel == math.inf
    assert judged(CASE, error, Error("a", 0.0, EPS)).fault


def test_equal_outputs_have_no_error_even_if_zero():
    zero = [torch.zeros(3), torch.zeros(0), torch.tensor(4)]
    assert worst(["a", "b", "c"], zero, zero).max_rel == 0.0


@pytest.mark.parametrize(
    ("rel", "cpu", "fault"),
    [
        (EPS, EPS, False),
        (50 * EPS, EPS, False),  # another order of summation
        (5000 * EPS, 10 * EPS, True),  # a ten-bit format where fp32 was asked for
        (5000 * EPS, 200 * EPS, False),  # an ill-conditioned graph
        (0.5, 0.3, True),  # nonsense, whatever the CPU says
        (100 * EPS, 0.0, False),
    ],
)
def test_the_verdict(rel, cpu, fault):
    line = judged(CASE, Error("w", 1.0, rel), Error("w", 1.0, cpu))
    assert line.fault is fault
    assert line.ratio == pytest.approx(rel / max(cpu, 4 * EPS))
    assert (line.device, line.reference, line.output) == ("cuda:0", "float64", "w")


def ask(tmp_path, make, spoil=None, **settings):
    spec = jobs.spec_of(make(), tmp_path, **settings)
    cluster = kit.Cluster(tmp_path, spec, [], [], {})
    trainer = kit.Trainer("ant")
    cluster.trainers.append(trainer)
    load = kit.load_frame(cluster, trainer)
    trainer.send(CheckParity("ant", load.spec_path, {}, load.roots))
    answer = trainer.until(ParityDone, Loaded).last
    cluster.close()
    return answer


@pytest.mark.parametrize("make", [jobs.cnn_task, jobs.gpt_task])
def test_the_cpu_of_this_machine_passes(tmp_path, make):
    answer = ask(tmp_path, make)
    assert isinstance(answer, ParityDone)
    [line] = answer.lines
    assert (line.device, line.reference, line.fault) == ("cpu", "float64", False)
    assert 0 < line.max_rel < 1e-4
    assert line.ratio <= 1.0
    assert line.output.startswith(("the loss", "the gradient of", "the buffer"))


def test_a_broken_device_is_found(tmp_path, monkeypatch):
    real = parity.Bench.run
    calls = []

    def run(self, device):
        outputs = real(self, device)
        calls.append(device)
        if len(calls) == 2:  # the first is the yardstick
            outputs[-1].mul_(1.02)
        return outputs

    monkeypatch.setattr(parity.Bench, "run", run)
    answer = ask(tmp_path, jobs.cnn_task)
    [line] = answer.lines
    assert line.fault
    assert line.ratio > 100


def test_without_float64_the_cpu_is_the_reference(tmp_path, monkeypatch):
    def refuse(self):
        raise RuntimeError("not implemented for 'Double'")

    monkeypatch.setattr(parity.Bench, "run_wide", refuse)
    [line] = ask(tmp_path, jobs.gpt_task).lines
    assert (line.reference, line.max_rel, line.fault) == ("cpu", 0.0, False)
