"""What capture makes of a model, what it refuses, and that it changes nothing."""

import subprocess
import sys

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import p2ptrain
from p2ptrain.engine.capture import Capture, capture
from p2ptrain.engine.program import Program
from p2ptrain.errors import CaptureError

CPU = torch.device("cpu")
Batch = dict[str, Tensor]


def batch(size: int = 4, width: int = 6) -> Batch:
    torch.manual_seed(2)
    return {"x": torch.randn(size, width), "y": torch.randint(0, 3, (size,))}


def classify(model: nn.Module, given: Batch) -> Tensor:
    return functional.cross_entropy(model(given["x"]), given["y"])


def squared(model: nn.Module, given: Batch) -> Tensor:
    return model(given["x"]).pow(2).mean()


def outputs_of(captured: Capture, given: Batch, seed: int = 0) -> list[Tensor]:
    both = {name: t.clone() for name, t in captured.tensors.items()} | given
    values = [both[i.name] for i in captured.graph.inputs]
    return Program(captured.graph, CPU).run(values, seed)


def metrics_of(captured: Capture, given: Batch) -> list[Tensor]:
    assert captured.eval_graph is not None
    both = captured.tensors | given
    values = [both[i.name] for i in captured.eval_graph.inputs]
    return Program(captured.eval_graph, CPU).run(values, 0)


def names(refs) -> list[str]:
    return [ref.name for ref in refs]


def ops_of(captured: Capture) -> list[str]:
    return [node.op for node in captured.graph.nodes]


# what is trained and what is not


def test_roles_of_weights():
    model = nn.Sequential(
        nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Linear(4, 4), nn.Linear(4, 3)
    )
    model[0].bias.requires_grad_(False)
    model.register_buffer("unused", torch.arange(3))
    model.register_buffer("scratch", torch.zeros(2), persistent=False)
    captured = capture(model, classify, batch(), frozen=["2"])
    assert names(captured.params) == [
        *("0.weight", "1.weight", "1.bias", "3.weight", "3.bias")
    ]
    assert set(names(captured.frozen)) == {
        *("0.bias", "2.weight", "2.bias", "unused", "scratch")
    }
    assert names(captured.buffers) == [
        *("1.running_mean", "1.running_var", "1.num_batches_tracked")
    ]
    assert captured.grad_start == 1 + 3
    assert [ref.output for ref in captured.buffers] == [1, 2, 3]
    assert dict(captured.exports) == {key: key for key in model.state_dict()}
    inputs = [given.name for given in captured.graph.inputs]
    assert inputs == [
        *names(captured.params),
        *names(captured.frozen),
        *names(captured.buffers),
        *("x", "y"),
    ]
    assert captured.data_inputs == ("x", "y")
    assert captured.batch == 4


def test_a_parameter_that_the_loss_ignores_is_frozen():
    model = nn.ModuleDict({"used": nn.Linear(6, 3), "idle": nn.Linear(6, 3)})

    def loss(model: nn.Module, given: Batch) -> Tensor:
        return classify(model.get_submodule("used"), given)

    captured = capture(model, loss, batch())
    assert names(captured.params) == ["used.weight", "used.bias"]
    assert names(captured.frozen) == ["idle.weight", "idle.bias"]
    assert len(captured.exports) == 4


def test_tied_weights_are_one():
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(6, 6, bias=False)
            self.second = nn.Linear(6, 6, bias=False)
            self.second.weight = self.first.weight

        def forward(self, x: Tensor) -> Tensor:
            return self.second(torch.tanh(self.first(x)))

    model = Tied()
    captured = capture(model, squared, batch())
    assert names(captured.params) == ["first.weight"]
    assert dict(captured.exports) == {
        "first.weight": "first.weight",
        "second.weight": "first.weight",
    }
    squared(model, batch()).backward()
    assert model.first.weight.grad is not None
    assert torch.equal(outputs_of(captured, batch())[1], model.first.weight.grad)


def test_a_buffer_that_is_replaced_is_an_output():
    class Averaged(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(6, 3)
            self.register_buffer("mean", torch.ones(3))
            self.register_buffer("steps", torch.tensor(5))

        def forward(self, x: Tensor) -> Tensor:
            y = self.linear(x)
            self.mean = 0.5 * self.mean + 0.5 * y.detach().mean(0)
            self.steps += 1
            return y - self.mean

    model = Averaged()
    captured = capture(model, squared, batch())
    assert names(captured.buffers) == ["mean", "steps"]
    assert torch.equal(model.mean, torch.ones(3))
    outputs = outputs_of(captured, batch())
    squared(model, batch())
    assert torch.equal(outputs[captured.buffers[0].output], model.mean)
    assert int(outputs[captured.buffers[1].output]) == 6


def test_buffers_may_change_places():
    class Swapping(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(6, 3)
            self.register_buffer("now", torch.ones(3))
            self.register_buffer("then", torch.zeros(3))

        def forward(self, x: Tensor) -> Tensor:
            self.now, self.then = self.then, self.now
            return self.linear(x) + self.now

    captured = capture(Swapping(), squared, batch())
    assert names(captured.buffers) == ["now", "then"]
    outputs = outputs_of(captured, batch())
    assert torch.equal(outputs[1], torch.zeros(3))
    assert torch.equal(outputs[2], torch.ones(3))


def test_constants_are_frozen_inputs():
    scale = torch.tensor([1.0, 2.0, 3.0])

    def loss(model: nn.Module, given: Batch) -> Tensor:
        inner = torch.tensor([0.5, 0.25, 0.125])
        return (model(given["x"]) * scale * inner).pow(2).mean()

    model = nn.Linear(6, 3)
    captured = capture(model, loss, batch())
    constants = [ref for ref in captured.frozen if ref.name.startswith("constant.")]
    assert len(constants) == 2
    assert torch.equal(outputs_of(captured, batch())[0], loss(model, batch()))


def test_further_results_stand_behind_the_loss():
    def loss(model: nn.Module, given: Batch) -> tuple[Tensor, ...]:
        y = model(given["x"])
        return y.pow(2).mean(), y, y.abs().sum()

    model = nn.Linear(6, 3)
    captured = capture(model, loss, batch())
    assert captured.grad_start == 3
    for mine, theirs in zip(
        outputs_of(captured, batch()), loss(model, batch()), strict=False
    ):
        assert torch.equal(mine, theirs)


def test_equal_gradients_are_apart():
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Parameter(torch.ones(6)), nn.Parameter(torch.ones(6))

        def forward(self, x: Tensor) -> Tensor:
            return x + self.a + self.b

    captured = capture(Twice(), squared, batch())
    _, first, second = outputs_of(captured, batch())
    assert torch.equal(first, second)
    first.zero_()
    assert float(second.abs().sum()) > 0


def test_unused_data_is_no_input():
    given = batch() | {"more": torch.zeros(4, 2)}
    captured = capture(nn.Linear(6, 3), squared, given)
    assert captured.data_inputs == ("x",)


# nothing of the caller's changes


def test_the_model_is_left_as_it_was():
    class Remembering(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear, self.drop = nn.Linear(6, 3), nn.Dropout(0.5)
            self.seen: Tensor | None = None

        def forward(self, x: Tensor) -> Tensor:
            self.seen = x
            return self.drop(self.linear(x))

    model = Remembering()
    model.drop.eval()
    model.linear.weight.grad = torch.ones_like(model.linear.weight)
    modes = [module.training for module in model.modules()]
    captured = capture(model, classify, batch(), metrics={"hit": lambda m, b: b["y"]})
    assert model.seen is None
    assert [module.training for module in model.modules()] == modes
    assert torch.equal(model.linear.weight.grad, torch.ones(3, 6))
    assert torch.backends.mkldnn.enabled
    assert torch.backends.mha.get_fastpath_enabled()
    assert "native_dropout" not in ops_of(captured)


def test_a_model_in_evaluation_mode_is_captured_in_training_mode():
    model = nn.Sequential(nn.Linear(6, 3), nn.Dropout(0.5)).eval()
    assert "native_dropout" in ops_of(capture(model, classify, batch()))
    assert not model.training


def test_another_memory_layout_does_not_matter():
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.Conv2d(4, 2, 3), nn.Flatten())
    image = torch.randn(2, 1, 8, 8)
    captured = capture(
        model.to(memory_format=torch.channels_last),  # pyright: ignore[reportCallIssue]
        squared,
        {"x": image.to(memory_format=torch.channels_last)},
    )
    loss = outputs_of(captured, {"x": image})[0]
    torch.testing.assert_close(loss, squared(model, {"x": image}))


def test_random_numbers_that_nothing_uses_are_not_drawn():
    def loss(model: nn.Module, given: Batch) -> Tensor:
        torch.rand(3)
        return (model(given["x"]) * torch.rand(3)).mean()

    captured = capture(nn.Linear(6, 3), loss, batch())
    assert ops_of(captured).count("rand") == 1


# precision


def test_bf16_is_autocast():
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    captured = capture(model, classify, batch(), precision="bf16")
    assert captured.precision == "bf16"
    assert {ref.dtype for ref in captured.params} == {"float32"}
    outputs = outputs_of(captured, batch())
    with torch.autocast("cpu", torch.bfloat16, cache_enabled=False):
        loss = classify(model, batch())
    loss.backward()
    assert torch.equal(outputs[0], loss)
    for param, grad in zip(model.parameters(), outputs[1:], strict=True):
        assert param.grad is not None
        assert torch.equal(param.grad, grad)
    plain = capture(model, classify, batch())
    assert not torch.equal(outputs_of(plain, batch())[0], outputs[0])


def test_bf16_keeps_batch_norms_statistics_in_fp32():
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))
    captured = capture(model, classify, batch(), precision="bf16")
    outputs = outputs_of(captured, batch())
    with torch.autocast("cpu", torch.bfloat16, cache_enabled=False):
        loss = classify(model, batch())
    loss.backward()
    assert torch.equal(outputs[0], loss)
    grads = outputs[captured.grad_start :]
    for param, grad in zip(model.parameters(), grads, strict=True):
        assert param.grad is not None
        assert torch.equal(param.grad, grad)


# metrics


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(6, 2, 8, dropout=0.3, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.norm = nn.BatchNorm1d(6)
        self.head = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(self.layers(x[:, None]).mean(1)))


def test_metrics_equal_eager_evaluation():
    metrics = {
        "loss": lambda m, b: functional.cross_entropy(
            m(b["x"]), b["y"], reduction="none"
        ),
        "hit": lambda m, b: m(b["x"]).argmax(1) == b["y"],
        "weighted": lambda m, b: b["w"] * torch.tensor(2.0),
    }
    given = batch() | {"w": torch.randn(4)}
    model = Encoder()
    captured = capture(model, classify, given, metrics=metrics)
    assert captured.metrics == ("loss", "hit", "weighted")
    assert captured.data_inputs == ("x", "y")
    assert captured.eval_inputs == ("x", "y", "w")
    assert "w" not in [i.name for i in captured.graph.inputs]
    loss, hit, weighted = metrics_of(captured, given)
    model.eval()
    with torch.no_grad():
        expected = metrics["loss"](model, given)
        right = metrics["hit"](model, given)
    torch.testing.assert_close(loss, expected, rtol=1e-6, atol=1e-7)
    assert torch.equal(hit, right.float())
    assert torch.equal(weighted, given["w"] * 2.0)
    held = {*names(captured.params), *names(captured.frozen), *names(captured.buffers)}
    assert captured.eval_graph is not None
    for given_input in captured.eval_graph.inputs:
        assert given_input.name in held | {"x", "y", "w"}
    assert set(captured.tensors) == held


def test_metrics_need_one_value_per_sample():
    with pytest.raises(CaptureError, match=r"metric 'hit' has shape \[\], not one"):
        capture(nn.Linear(6, 3), classify, batch(), metrics={"hit": classify})


def test_metrics_may_not_change_buffers():
    def metric(model: nn.Module, given: Batch) -> Tensor:
        model.train()
        return model(given["x"]).sum(1)

    model = nn.Sequential(nn.Linear(6, 3), nn.BatchNorm1d(3))
    with pytest.raises(CaptureError, match=r"change the buffer '1\.running_mean'"):
        capture(model, classify, batch(), metrics={"m": metric})


# refusals


def branching(model: nn.Module, given: Batch) -> Tensor:
    y = model(given["x"])
    if y.sum() > 0:  # the line that is named
        return y.mean()
    return -y.mean()


def reading(model: nn.Module, given: Batch) -> Tensor:
    y = model(given["x"]).mean()
    return y * y.item()


def selecting(model: nn.Module, given: Batch) -> Tensor:
    y = model(given["x"])
    return y[given["x"][:, :3] > 0].mean()


def counting(model: nn.Module, given: Batch) -> Tensor:
    return model(given["x"])[given["y"].nonzero()].mean()


def overwriting(model: nn.Module, given: Batch) -> Tensor:
    given["x"].mul_(2.0)
    return model(given["x"]).mean()


def misnaming(model: nn.Module, given: Batch) -> Tensor:
    return model(given["z"]).mean()


def vector(model: nn.Module, given: Batch) -> Tensor:
    return model(given["x"])


def whole(model: nn.Module, given: Batch) -> Tensor:
    return (model(given["x"]).sum() > 0).long().sum()


def detached(model: nn.Module, given: Batch) -> Tensor:
    return model(given["x"]).detach().sum()


OUTSIDE = torch.ones(3, requires_grad=True)


def foreign(model: nn.Module, given: Batch) -> Tensor:
    return (model(given["x"]) * OUTSIDE).mean()


@pytest.mark.parametrize(
    ("loss", "problem"),
    [
        (branching, r"test_capture.py:\d+ \(if y.sum\(\) > 0"),
        (reading, r"_local_scalar_dense.*test_capture.py:\d+ \(return y \* y.item\(\)"),
        (selecting, r"aten.(nonzero|index).*test_capture.py:\d+ \(return y\[given"),
        (counting, r"aten.nonzero.*test_capture.py:\d+ \(return model"),
        (overwriting, "changes the input 'x' in place"),
        (misnaming, r"test_capture.py:\d+ .*'z'"),
        (vector, r"the loss is torch.float32 of shape \[4, 3\], not"),
        (whole, r"the loss is torch.int64 of shape \[\]"),
        (detached, "depends on no trained parameter"),
        (foreign, r"shape \[3\] that requires gradients but is no parameter"),
    ],
)
def test_what_cannot_be_captured_is_refused(loss, problem):
    with pytest.raises(CaptureError, match=problem):
        capture(nn.Linear(6, 3), loss, batch())


def test_custom_operators_are_refused_by_name():
    @torch.library.custom_op("zootest::twice", mutates_args=())
    def twice(x: Tensor) -> Tensor:
        return 2 * x

    twice.register_fake(torch.empty_like)
    twice.register_autograd(lambda ctx, grad: 2 * grad)

    def loss(model: nn.Module, given: Batch) -> Tensor:
        return twice(model(given["x"])).mean()

    with pytest.raises(CaptureError, match=r"zootest\.twice\.default is not among"):
        capture(nn.Linear(6, 3), loss, batch())


def test_operators_outside_the_table_are_refused_by_name():
    def loss(model: nn.Module, given: Batch) -> Tensor:
        return torch.linalg.svd(model(given["x"])).S.sum()

    with pytest.raises(CaptureError, match=r"aten\._linalg_svd.default is not among"):
        capture(nn.Linear(6, 3), loss, batch())


def test_sparse_gradients_are_refused():
    model = nn.Embedding(5, 3, sparse=True)

    def loss(model: nn.Module, given: Batch) -> Tensor:
        return model(given["y"]).mean()

    with pytest.raises(CaptureError, match=r"sparse|embedding"):
        capture(model, loss, batch())


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"x": torch.zeros(4, 6), "y": torch.zeros(3).long()}, r"'y': \[3\]"),
        ({"x": torch.zeros(4, 6), "y": torch.tensor(1)}, r"'y': \[\]"),
        ({}, "every tensor needs the samples"),
    ],
)
def test_batches_without_samples_in_front_are_refused(given, problem):
    with pytest.raises(CaptureError, match=problem):
        capture(nn.Linear(6, 3), classify, given)


def test_names_must_differ():
    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.x = nn.Parameter(torch.ones(3))

        def forward(self, x: Tensor) -> Tensor:
            return x[:, :3] * self.x

    with pytest.raises(CaptureError, match="'x' names a weight and a data input"):
        capture(Named(), squared, batch())


def test_frozen_must_name_something():
    with pytest.raises(CaptureError, match="no parameter or module 'head'"):
        capture(nn.Linear(6, 3), classify, batch(), frozen=["head"])
    with pytest.raises(CaptureError, match="depends on no trained"):
        capture(nn.Linear(6, 3), classify, batch(), frozen=["weight", "bias"])


def test_a_model_that_cannot_be_copied_is_refused():
    model = nn.Linear(6, 3)
    model.cache = model.weight * 2
    with pytest.raises(CaptureError, match="cannot be copied"):
        capture(model, classify, batch())


# the package's own door


def test_the_package_captures():
    assert p2ptrain.capture is capture
    with pytest.raises(AttributeError, match="'nothing'"):
        _ = p2ptrain.nothing


def test_importing_the_package_imports_no_torch():
    code = "import sys, p2ptrain; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
