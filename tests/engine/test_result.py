"""A result loads into the very model, tied weights and buffers and all."""

import json
import math

import torch
from safetensors.torch import load_file
from torch import nn

from p2ptrain.engine import result
from p2ptrain.engine.result import Origin
from p2ptrain.engine.state import TrainState, ViewNote
from p2ptrain.messages.record import Seat
from p2ptrain.messages.session import EpochFigures
from p2ptrain.spec.graph import Graph
from p2ptrain.spec.train import BufferRef, TrainSpec, WeightRef


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(5, 3)
        self.norm = nn.BatchNorm1d(3)
        self.head = nn.Linear(3, 5, bias=False)
        self.head.weight = self.embed.weight


def spec_of(exports=()):
    return TrainSpec(
        graph=Graph((), (), ()),
        params=(
            WeightRef("embed", "init:zeros", "float32", (5, 3)),
            WeightRef("scale", "init:ones", "float32", (3,)),
            WeightRef("shift", "init:zeros", "float32", (3,)),
        ),
        grad_start=1,
        loss_index=0,
        data=(),
        seed_input=None,
        momentum=0.0,
        lr_per_epoch=(0.1, 0.1),
        batch=4,
        buffers=(
            BufferRef("mean", "init:zeros", "float32", (3,), 4),
            BufferRef("var", "init:ones", "float32", (3,), 5),
            BufferRef("count", "init:zeros", "int64", (), 6),
        ),
        exports=exports,
    )


EXPORTS = (
    ("embed.weight", "embed"),
    ("head.weight", "embed"),
    ("norm.weight", "scale"),
    ("norm.bias", "shift"),
    ("norm.running_mean", "mean"),
    ("norm.running_var", "var"),
    ("norm.num_batches_tracked", "count"),
)


def tensors():
    return {
        "embed": torch.randn(5, 3),
        "scale": torch.randn(3),
        "shift": torch.randn(3),
        "mean": torch.randn(3),
        "var": torch.rand(3),
        "count": torch.tensor(7),
    }


def about(losses=(2.0, math.nan)):
    state = TrainState("s" * 64, {})
    for loss in losses:
        state.applied(loss)
    state.figures.append(EpochFigures(0, 2, 1.5, {"accuracy": math.inf, "error": 0.5}))
    state.views.append(ViewNote(3, 0, (Seat("n" * 32, 2),)))
    origin = Origin("s-" + "0" * 12, spec_of(EXPORTS), 10, ("d" * 64,))
    return result.manifest(origin, state, "e" * 64)


def test_the_weights_load_into_the_model(tmp_path):
    values = tensors()
    weights = result.exported(spec_of(EXPORTS), values)
    path, _ = result.write_result(tmp_path, weights, about())
    model = Tied()
    model.load_state_dict(load_file(path))
    assert torch.equal(model.head.weight, values["embed"])
    assert model.head.weight is model.embed.weight
    assert torch.equal(model.norm.running_var, values["var"])
    assert model.norm.num_batches_tracked == 7


def test_without_exports_names_are_kept():
    values = tensors()
    assert set(result.exported(spec_of(), values)) == set(values)


def test_the_manifest_is_strict_json(tmp_path):
    _, path = result.write_result(tmp_path, {"w": torch.zeros(1)}, about())

    def refuse(text):
        raise AssertionError(text)

    read = json.loads(path.read_text(), parse_constant=refuse)
    assert read["losses"] == [2.0, None]
    assert read["epochs"] == [
        {
            "epoch": 0,
            "step": 2,
            "loss": 1.5,
            "metrics": {"accuracy": None, "error": 0.5},
        }
    ]
    assert read["views"][0]["seats"] == [{"node": "n" * 32, "share": 2}]
    assert (read["state_digest"], read["global_batch"]) == ("e" * 64, 4)
    assert set(read["versions"]) == {"p2ptrain", "torch", "python"}


def test_ends_of_losses():
    assert result.ends([3.0, 2.0, 1.0]) == (3.0, 1.0)
    assert all(map(math.isnan, result.ends([])))
