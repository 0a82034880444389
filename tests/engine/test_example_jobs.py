"""The example jobs: their data is real and held out, and they learn what they claim."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from configs import charlm, digits
from p2ptrain.engine.optim import clip_by_norm, make_optimizer
from p2ptrain.engine.package import Job, Package, captured, package
from p2ptrain.engine.program import Program
from p2ptrain.engine.settings import Settings
from p2ptrain.spec.graph import Graph
from p2ptrain.spec.train import Optimizer, OptimizerKind, TrainSpec

CPU = torch.device("cpu")
DIGITS = Settings(
    lr_per_epoch=digits.RATES,
    momentum=0.9,
    optimizer=Optimizer(weight_decay=5e-4),
    global_batch=96,
)
CHARLM = Settings(
    lr_per_epoch=(3e-3,),
    optimizer=Optimizer(OptimizerKind.ADAMW, weight_decay=0.1),
    clip_norm=1.0,
    global_batch=32,
)


class Loop:
    """A plain training loop over a packaged job, in one thread."""

    def __init__(self, job: Job, made: Package, tensors: dict[str, Tensor]) -> None:
        self.job, self.spec = job, made.spec
        self.held = {name: tensor.clone() for name, tensor in tensors.items()}
        self.program = Program(self.spec.graph, CPU)
        params = {ref.name: self.held[ref.name] for ref in self.spec.params}
        self.optimizer = make_optimizer(self.spec.optimizer, self.spec.momentum, params)

    def values(self, graph: Graph, data, rows) -> list[Tensor]:
        return [
            self.held[i.name]
            if i.name in self.held
            else torch.from_numpy(np.ascontiguousarray(data[i.name][rows]))
            for i in graph.inputs
        ]

    def step(self, rows: np.ndarray, rate: float, seed: int) -> float:
        spec = self.spec
        parts = [
            self.program.run(self.values(spec.graph, self.job.data, part), seed + i)
            for i, part in enumerate(np.split(rows, spec.step_parts))
        ]
        start = spec.grad_start
        grads = [
            torch.stack([part[start + i] for part in parts]).mean(0)
            for i in range(len(spec.params))
        ]
        if spec.clip_norm is not None:
            clip_by_norm(grads, spec.clip_norm)
        self.optimizer.step(grads, rate)
        for ref in spec.buffers:
            news = torch.stack([part[ref.output] for part in parts])
            new = news.mean(0) if news.is_floating_point() else news[0]
            self.held[ref.name].copy_(new)
        return math.fsum(part[0].item() for part in parts) / len(parts)

    def train(self, steps: int) -> list[float]:
        spec = self.spec
        count = spec.data[0].shard_len
        random = np.random.default_rng(spec.seed)
        epochs = len(spec.lr_per_epoch)
        stream = np.concatenate([random.permutation(count) for _ in range(epochs + 1)])
        size = spec.step_samples
        return [
            self.step(
                stream[step * size : (step + 1) * size],
                spec.lr_per_epoch[step * size // count],
                step * 1000,
            )
            for step in range(steps)
        ]

    def measure(self) -> list[float]:
        ev = self.spec.eval
        assert ev is not None
        assert self.job.eval_data is not None
        program = Program(ev.graph, CPU)
        count = ev.data[0].shard_len
        sums = [0.0] * len(ev.metrics)
        for start in range(0, count, ev.batch):
            rows = np.minimum(np.arange(start, start + ev.batch), count - 1)
            values = self.values(ev.graph, self.job.eval_data, rows)
            for i, output in enumerate(program.run(values, 0)):
                sums[i] += output[: count - start].sum().item()
        return [total / count for total in sums]


def loop(job: Job, settings: Settings, folder) -> Loop:
    held = captured(job)
    made = package(
        held, data=job.data, eval_data=job.eval_data, folder=folder, settings=settings
    )
    return Loop(job, made, held.tensors)


def steps_of(spec: TrainSpec) -> int:
    samples = spec.data[0].shard_len * len(spec.lr_per_epoch)
    return math.ceil(samples / spec.step_samples)


@pytest.mark.slow
def test_digits_are_learnt(tmp_path):
    torch.set_num_threads(1)
    training = loop(digits.job(), DIGITS, tmp_path)
    losses = training.train(steps_of(training.spec))
    (accuracy,) = training.measure()
    assert losses[-1] < losses[0]
    assert accuracy >= 0.97


def test_digits_are_real_and_held_out():
    train, held_out = digits.data()
    assert len(train["digit"]) + len(held_out["digit"]) == 1797
    share = np.bincount(held_out["digit"]) / np.bincount(
        np.concatenate([train["digit"], held_out["digit"]])
    )
    assert ((share > 0.19) & (share < 0.22)).all()
    assert train["image"].shape[1:] == (1, 8, 8)
    assert train["image"].dtype == np.float32
    assert 0.0 <= train["image"].min() < train["image"].max() <= 1.0
    again, _ = digits.data()
    assert np.array_equal(again["image"], train["image"])


def test_the_character_model_learns(tmp_path):
    job = charlm.job(width=32, layers=1, context=32, characters=100_000)
    training = loop(job, CHARLM, tmp_path)
    before, _ = training.measure()
    training.train(60)
    after, accuracy = training.measure()
    assert before == pytest.approx(math.log(len(charlm.ALPHABET)), rel=0.05)
    assert after < 0.75 * before
    assert accuracy > 0.15


def test_texts_are_the_standard_library(tmp_path):
    train, held_out = charlm.data(context=50, characters=20_000)
    text = "".join(charlm.ALPHABET[code] for code in train["text"].reshape(-1))
    assert "def " in text
    assert "import " in text
    assert train["text"].shape == (20_000 // 51, 51)
    assert held_out["text"].shape == (2_000 // 51, 51)
    assert train["text"].max() < len(charlm.ALPHABET)


def test_initial_weights_depend_on_the_seed_alone():
    torch.manual_seed(1)
    state = torch.get_rng_state()
    for make in (digits.model, charlm.model):
        one, two = make(seed=5).state_dict(), make(seed=5).state_dict()
        assert all(torch.equal(one[key], two[key]) for key in one)
        other = make(seed=6).state_dict()
        assert any(not torch.equal(one[key], other[key]) for key in one)
    assert torch.equal(torch.get_rng_state(), state)
