"""Whole sessions: against plain PyTorch, across world sizes, through halts and loss."""

import json
import math
from dataclasses import replace
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from p2ptrain.engine.package import Job, captured, package
from p2ptrain.engine.settings import Settings
from p2ptrain.messages.trainer import (
    Fault,
    HaltView,
    RunFinished,
    ViewEnded,
)
from p2ptrain.spec.train import Optimizer, OptimizerKind, Precision, Reduce
from tests.engine import trainjobs as jobs
from tests.engine import trainkit as kit


@pytest.fixture(autouse=True)
def one_thread():
    torch.set_num_threads(1)


def sgd(task):
    return torch.optim.SGD(task.model.parameters(), lr=1.0, momentum=0.9)


def adamw(task):
    return torch.optim.AdamW(task.model.parameters(), lr=1.0, weight_decay=0.05)


ADAMW = {
    "optimizer": Optimizer(OptimizerKind.ADAMW, weight_decay=0.05),
    "momentum": 0.0,
    "lr_per_epoch": (0.01, 0.003),
    "clip_norm": 0.5,
}

CASES = {
    "cnn": (jobs.cnn_task, sgd, {}),
    "cnn clipped": (jobs.cnn_task, sgd, {"clip_norm": 0.5}),
    "gpt": (jobs.gpt_task, sgd, {}),
    "gpt adamw": (jobs.gpt_task, adamw, ADAMW),
}


def weights_of(heard):
    assert isinstance(heard.last, RunFinished), heard.last
    return load_file(heard.last.weights_path)


def digests(heards):
    return {heard.last.report.digest for heard in heards}


@pytest.mark.parametrize("case", CASES)
def test_one_rank_is_plain_pytorch_bit_for_bit(tmp_path, case):
    make, optimizer, settings = CASES[case]
    task = make()
    spec = jobs.spec_of(task, tmp_path, **settings)
    [heard] = kit.train(tmp_path, spec, [1])
    truth = jobs.plain(task, spec, optimizer(task))
    assert heard.losses == truth.losses
    got = weights_of(heard)
    assert got.keys() == truth.state.keys()
    for name, tensor in truth.state.items():
        assert torch.equal(got[name], tensor), name
    task.model.load_state_dict(got)  # strict


@pytest.mark.parametrize("case", CASES)
def test_three_ranks_in_fast_mode_are_close_to_plain_pytorch(tmp_path, case):
    make, optimizer, settings = CASES[case]
    task = make()
    spec = jobs.spec_of(task, tmp_path, global_batch=12, **settings)
    heards = kit.train(tmp_path, spec, [3, 1, 2])
    truth = jobs.plain(task, spec, optimizer(task))
    assert len(digests(heards)) == 1
    assert all(heard.losses == heards[0].losses for heard in heards)
    for ours, theirs in zip(heards[0].losses, truth.losses, strict=True):
        assert ours == pytest.approx(theirs, rel=1e-4)
    got = weights_of(heards[0])
    for name, tensor in truth.state.items():
        off = (got[name].double() - tensor.double()).norm()
        assert off <= 1e-5 * tensor.double().norm() + 1e-12, name


@pytest.mark.parametrize("case", ["cnn clipped", "gpt adamw"])
def test_exact_mode_gives_one_digest_for_every_world_size(tmp_path, case):
    make, optimizer, settings = CASES[case]
    task = make()
    spec = jobs.spec_of(
        task, tmp_path, global_batch=12, reduce=Reduce.EXACT, **settings
    )
    found = {}
    for shares in ([6], [5, 1], [1, 2, 3], [1, 2, 2, 1], [2, 0, 1, 1, 2], [0, 0, 6]):
        heards = kit.train(tmp_path, spec, shares)
        found[tuple(shares)] = digests(heards)
        losses = heards[0].losses
        assert all(heard.losses == losses for heard in heards)
    assert len(set().union(*found.values())) == 1, found
    truth = jobs.plain(task, spec, optimizer(task))
    assert losses == pytest.approx(truth.losses, rel=1e-4)


def test_two_fast_runs_are_equal(tmp_path):
    spec = jobs.spec_of(jobs.cnn_task(), tmp_path, global_batch=8)
    runs = [kit.train(tmp_path, spec, [1, 3]) for _ in range(2)]
    assert digests(runs[0]) == digests(runs[1])
    assert runs[0][0].losses == runs[1][0].losses


class Adapter(nn.Module):
    """A small trained layer beside a frozen one and a packed one (GGUF's Q8_0: blocks
    of a scale and 32 signed bytes, of which this model takes the bytes).
    """

    def __init__(self, packed):
        super().__init__()
        self.register_buffer("packed", packed)
        self.base = nn.Linear(64, 3)
        self.down = nn.Linear(64, 2)
        self.up = nn.Linear(2, 3)

    def forward(self, x):
        x = x.flatten(1)
        blocks = self.packed.view(3, 2, 34)[:, :, 2:].to(torch.int8)
        weight = blocks.reshape(3, 64).float() * 0.01
        return self.base(x) + x @ weight.t() + self.up(self.down(x))


@pytest.mark.parametrize("mode", Reduce)
def test_frozen_and_packed_weights_stay(tmp_path, mode):
    path = tmp_path / "base.gguf"
    numbers = np.random.default_rng(3).normal(size=(3, 64)).astype(np.float32)
    data = gguf.quants.quantize(numbers, gguf.GGMLQuantizationType.Q8_0)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tensor("w", data, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    torch.manual_seed(4)
    model = Adapter(torch.from_numpy(data.copy()))
    for weight in model.base.parameters():
        weight.requires_grad_(False)
    task = jobs.Task(model, jobs.classify, jobs.images(12, 1))
    spec = jobs.spec_of(task, tmp_path, frozen=("base",), global_batch=4, reduce=mode)
    frozen = tuple(
        replace(ref, uri=f"gguf://{path}#w", packed=True)
        if ref.name == "packed"
        else ref
        for ref in spec.frozen
    )
    assert {ref.name for ref in frozen} >= {"packed", "base.weight", "base.bias"}
    spec = replace(spec, frozen=frozen)
    heards = kit.train(tmp_path, spec, [1, 1])
    assert len(digests(heards)) == 1
    trained = [p for p in model.parameters() if p.requires_grad]
    before = {n: t.clone() for n, t in model.state_dict().items()}
    truth = jobs.plain(task, spec, torch.optim.SGD(trained, lr=1.0, momentum=0.9))
    assert heards[0].losses == pytest.approx(truth.losses, rel=1e-4)
    got = weights_of(heards[0])
    model.load_state_dict(got)
    for name in ("packed", "base.weight", "base.bias"):
        assert torch.equal(got[name], before[name])
    for name, tensor in truth.state.items():
        assert torch.allclose(got[name], tensor, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("precision", "make"),
    [(Precision.FP32, jobs.cnn_task), (Precision.BF16, jobs.gpt_task)],
)
def test_a_package_trains_from_its_blobs_alone(tmp_path, precision, make):
    task = make(samples=16)
    job = Job(
        task.model,
        task.loss,
        {name: value[:2] for name, value in task.data.items()},
        task.data,
        task.held_out,
        task.metrics or {},
    )
    made = package(
        captured(job, precision),
        data=task.data,
        eval_data=task.held_out,
        folder=tmp_path,
        settings=Settings(lr_per_epoch=(0.1, 0.1), global_batch=8, device="cpu"),
    )
    files = {digest: str(path) for digest, path in made.files.items()}
    heards = kit.train(tmp_path, made.spec, [3, 1], files)
    assert len(digests(heards)) == 1
    task.model.load_state_dict(weights_of(heards[0]))
    assert heards[0].losses[-1] < heards[0].losses[0]
    assert all(tensor.dtype != torch.bfloat16 for tensor in task.model.parameters())


@pytest.mark.parametrize("mode", Reduce)
def test_a_model_of_ten_parameters(tmp_path, mode):
    torch.manual_seed(6)
    model = nn.Sequential(nn.Flatten(), nn.AdaptiveAvgPool1d(4), nn.Linear(4, 2))
    task = jobs.Task(model, jobs.classify, jobs.images(9, 1))
    task.data["y"] = task.data["y"] % 2
    assert sum(p.numel() for p in model.parameters()) == 10
    spec = jobs.spec_of(task, tmp_path, global_batch=8, reduce=mode)
    heards = kit.train(tmp_path, spec, [1, 1, 1, 1, 0])
    assert len(digests(heards)) == 1
    truth = jobs.plain(task, spec, sgd(task))
    assert heards[0].losses == pytest.approx(truth.losses, rel=1e-5)


@pytest.mark.slow
def test_a_tensor_larger_than_64_mib(tmp_path):
    torch.manual_seed(7)
    model = nn.Sequential(
        nn.Flatten(), nn.Linear(64, 4200), nn.Linear(4200, 4200), nn.Linear(4200, 3)
    )
    task = jobs.Task(model, jobs.classify, jobs.images(8, 1))
    assert max(p.nbytes for p in model.parameters()) > 64 * 1024**2
    spec = jobs.spec_of(task, tmp_path, global_batch=4, lr_per_epoch=(0.01,))
    heards = kit.train(tmp_path, spec, [1, 1])
    assert len(digests(heards)) == 1
    truth = jobs.plain(task, spec, sgd(task))
    assert heards[0].losses == pytest.approx(truth.losses, rel=1e-5)


@pytest.mark.parametrize("mode", Reduce)
def test_two_cpu_lanes_equal_one(tmp_path, mode):
    task = jobs.gpt_task()
    one = jobs.spec_of(task, tmp_path, global_batch=10, reduce=mode)
    two = replace(one, device="cpu,cpu")
    [alone] = kit.train(tmp_path, one, [5])
    [lanes] = kit.train(tmp_path, two, [5])
    assert lanes.losses == alone.losses
    assert digests([lanes]) == digests([alone])
    assert lanes.last.report.lanes == ("cpu", "cpu")


def test_a_device_is_obeyed_or_refused(tmp_path):
    spec = jobs.spec_of(jobs.cnn_task(), tmp_path, device="xpu:3")
    cluster = kit.Cluster(tmp_path, spec, [], [], {})
    trainer = cluster.load("ant")
    fault = trainer.until().last
    assert isinstance(fault, Fault)
    assert "node 'ant'" in fault.sentence
    assert "no device 'xpu:3' here but" in fault.sentence
    trainer.close()
    assert trainer.code == 1


@pytest.mark.parametrize(
    ("samples", "epochs", "global_batch"), [(5, 3, 8), (7, 2, 6), (1, 4, 2), (9, 1, 6)]
)
def test_the_last_step_reaches_past_the_end(tmp_path, samples, epochs, global_batch):
    task = jobs.cnn_task(samples)
    rates = tuple(0.1 / (i + 1) for i in range(epochs))
    spec = jobs.spec_of(task, tmp_path, global_batch=global_batch, lr_per_epoch=rates)
    shares = [spec.step_parts, 0]
    heards = kit.train(tmp_path, spec, shares)
    truth = jobs.plain(task, spec, sgd(task))
    assert heards[0].losses == truth.losses
    assert len(truth.losses) == math.ceil(samples * epochs / global_batch)
    assert [e.figures.epoch for e in heards[0].epochs] == list(range(epochs))
    assert heards[0].epochs == heards[1].epochs
    assert heards[0].last.report.samples == len(truth.losses) * global_batch
    assert heards[1].last.report.samples == 0


def test_figures_are_exact_with_fewer_samples_than_ranks(tmp_path):
    task = jobs.cnn_task(samples=8, held_out=3)
    spec = jobs.spec_of(task, tmp_path, global_batch=8)
    heards = kit.train(tmp_path, spec, [1, 1, 1, 1])
    assert all(heard.epochs == heards[0].epochs for heard in heards)
    figures = [e.figures for e in heards[0].epochs]
    assert [f.epoch for f in figures] == [0, 1]
    assert [f.loss for f in figures] == heards[0].losses  # one step an epoch
    task.model.load_state_dict(weights_of(heards[0]))
    task.model.eval()
    with torch.no_grad():
        for name, metric in task.metrics.items():
            # In batches of two, as the graph runs them; the last one is half full.
            rows = torch.tensor([0, 1, 2, 2]).view(2, 2)
            values = [
                metric(task.model, {n: v[r] for n, v in task.held_out.items()})
                for r in rows
            ]
            mean = torch.cat(values)[:3].double().sum().item() / 3
            assert figures[1].metrics[name] == pytest.approx(mean, rel=1e-12)


def test_the_result_has_its_manifest(tmp_path):
    spec = jobs.spec_of(jobs.cnn_task(), tmp_path, global_batch=4)
    heards = kit.train(tmp_path, spec, [1, 1])
    assert heards[1].last.weights_path == heards[1].last.manifest_path == ""
    about = json.loads(Path(heards[0].last.manifest_path).read_text())
    report = heards[0].last.report
    assert about["state_digest"] == report.digest
    assert about["losses"] == heards[0].losses
    assert [e["metrics"] for e in about["epochs"]] == [
        e.figures.metrics for e in heards[0].epochs
    ]
    assert [seat["share"] for seat in about["views"][0]["seats"]] == [1, 1]
    assert (report.first_loss, report.last_loss) == (
        heards[0].losses[0],
        heards[0].losses[-1],
    )
    assert report.wall_s >= report.compute_s > 0
    assert report.samples == spec.batch * len(heards[0].losses)


def reference(tmp_path, spec):
    """The digest after every step of an undisturbed run on one rank."""
    whole = replace(spec, checkpoint_every=1)
    [heard] = kit.train(tmp_path, whole, [spec.step_parts])
    found = {file.step: file.state_digest for file in heard.files}
    assert sorted(found) == list(range(1, len(heard.losses) + 1))
    return found, heard


def exact_spec(tmp_path, task=None, **settings):
    task = task or jobs.cnn_task(samples=40)
    settings = {"global_batch": 8, "reduce": Reduce.EXACT} | settings
    return jobs.spec_of(task, tmp_path, **settings)


def test_a_session_goes_on_from_a_checkpoint(tmp_path):
    spec = exact_spec(tmp_path)
    truth, whole = reference(tmp_path, spec)
    middle = whole.files[3]
    cluster = kit.start(
        tmp_path, spec | {} if False else replace(spec, checkpoint_every=1), 2
    )
    states = dict.fromkeys(cluster.trainers, middle.path)
    cluster.run([3, 1], first_step=middle.step, states=states)
    heards = [t.until(RunFinished, ViewEnded) for t in cluster.trainers]
    cluster.close()
    assert digests(heards) == {truth[max(truth)]}
    assert heards[0].losses == whole.losses[middle.step :]
    assert heards[0].last.report.first_loss == whole.losses[0]
    about = json.loads(Path(heards[0].last.manifest_path).read_text())
    assert about["losses"] == whole.losses
    assert [view["first_step"] for view in about["views"]] == [0, middle.step]
    assert [e["epoch"] for e in about["epochs"]] == [0, 1]


def halt_all(cluster, drain, reason="enough"):
    for trainer in cluster.trainers:
        trainer.send(HaltView(cluster.view, reason, drain))


def catch_up(cluster, ended):
    """What the worker does between views: those behind load a state from one ahead."""
    ahead = max(ended, key=lambda trainer: ended[trainer].step)
    step = ended[ahead].step
    states = {}
    if any(last.step != step for last in ended.values()):
        written = ahead.snapshot()
        assert written.step == step
        assert written.state_digest == ended[ahead].digest
        states = {t: written.path for t, last in ended.items() if last.step != step}
    return step, states


def test_halts_at_any_moment_lose_nothing_and_count_nothing_twice(tmp_path):
    spec = exact_spec(tmp_path)
    truth, whole = reference(tmp_path, spec)
    cluster = kit.start(tmp_path, spec, 3)
    step, states, views = 0, {}, 0
    while True:
        shares = [[2, 1, 1], [4, 0, 0], [0, 2, 2], [1, 3, 0]][views % 4]
        cluster.run(shares, first_step=step, states=states)
        # After the first applied step of the view, wherever the others are then.
        heard = cluster.trainers[views % 3].until(kit.Steps, RunFinished, ViewEnded)
        if views < 6:
            halt_all(cluster, drain=False)
        views += 1
        ended = {}
        for trainer in cluster.trainers:
            last = heard.last
            if heard is None or trainer is not cluster.trainers[(views - 1) % 3]:
                last = None
            if not isinstance(last, RunFinished | ViewEnded):
                last = trainer.until(RunFinished, ViewEnded).last
            ended[trainer] = last
        for last in ended.values():
            if isinstance(last, ViewEnded):
                assert last.digest == truth.get(last.step, last.digest)
        if all(isinstance(last, RunFinished) for last in ended.values()):
            break
        steps = [last.step for last in ended.values()]
        assert max(steps) - min(steps) <= 1
        step, states = catch_up(cluster, ended)
    cluster.close()
    assert {last.report.digest for last in ended.values()} == {truth[max(truth)]}
    about = json.loads(Path(ended[cluster.trainers[0]].manifest_path).read_text())
    assert about["losses"] == whole.losses
    assert [e["epoch"] for e in about["epochs"]] == [0, 1]
    assert views > 3
