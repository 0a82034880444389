"""Every architecture of the zoo, captured and run, equals eager PyTorch bit for bit.

Eager attention runs on the math backend, as it is captured; the eager LSTM runs without
oneDNN, whose fused kernel no graph can hold.
"""

import pytest
import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from p2ptrain import codec
from p2ptrain.engine.capture import Capture, capture
from p2ptrain.engine.package import package
from p2ptrain.engine.program import Program
from p2ptrain.engine.settings import Settings
from p2ptrain.spec.graph import Graph
from p2ptrain.spec.train import load_spec, spec_bytes, spec_id
from p2ptrain.spec.validate import validate
from tests.engine import zoo

CPU = torch.device("cpu")
SEED = 5


def bits(tensor: Tensor) -> tuple[torch.dtype, tuple[int, ...], bytes]:
    raw = tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    return tensor.dtype, tuple(tensor.shape), raw


def values_of(graph: Graph, captured: Capture, batch: zoo.Batch) -> list[Tensor]:
    both = {name: t.clone() for name, t in captured.tensors.items()} | batch
    return [both[given.name] for given in graph.inputs]


@pytest.mark.parametrize("animal", zoo.ZOO, ids=lambda animal: animal.name)
def test_equals_eager(animal, tmp_path):
    torch.manual_seed(1)
    model, loss, batch = animal.make()
    before = {key: bits(value) for key, value in model.state_dict().items()}
    random = torch.get_rng_state()
    captured = capture(model, loss, batch)
    assert torch.equal(torch.get_rng_state(), random)
    assert {key: bits(value) for key, value in model.state_dict().items()} == before
    assert set(dict(captured.exports)) == set(before)

    made = package(
        captured, data=batch, folder=tmp_path, settings=Settings(lr_per_epoch=(0.1,))
    )
    again = load_spec(spec_bytes(made.spec))
    validate(again)
    assert again == made.spec
    assert spec_id(again) == spec_id(made.spec)
    plain = codec.decode(codec.encode(codec.to_plain(captured.graph)), 2**25)
    assert codec.from_plain(Graph, plain) == captured.graph

    program = Program(again.graph, CPU)
    values = values_of(again.graph, captured, batch)
    given = [bits(value) for value in values]
    first = program.run(values, SEED)
    outputs = program.run(values, SEED)
    assert [bits(o) for o in first] == [bits(o) for o in outputs]
    assert [bits(value) for value in values] == given
    compare(animal, captured, outputs, eager(animal, (model, loss, batch)))
    if animal.is_random:
        others = program.run(values, SEED + 1)
        assert bits(others[0]) != bits(outputs[0])


def eager(animal, parts) -> tuple[torch.nn.Module, list[Tensor]]:
    model, loss, batch = parts
    torch.manual_seed(SEED)
    with (
        sdpa_kernel(SDPBackend.MATH),
        torch.backends.mkldnn.flags(enabled=animal.name != "lstm"),
    ):
        results = loss(model, batch)
        results = list(results) if isinstance(results, tuple) else [results]
        results[0].backward()
    return model, results


def compare(animal, captured: Capture, outputs: list[Tensor], theirs) -> None:
    model, results = theirs
    for mine, other in zip(outputs, results, strict=False):
        assert bits(mine) == bits(other)
    buffers = dict(model.named_buffers())
    for ref in captured.buffers:
        assert bits(outputs[ref.output]) == bits(buffers[ref.name]), ref.name
    params = dict(model.named_parameters())
    grads = outputs[captured.grad_start :]
    assert len(grads) == len(captured.params)
    for ref, grad in zip(captured.params, grads, strict=True):
        expected = params[ref.name].grad
        assert expected is not None
        assert bits(grad) == bits(expected), ref.name
    trained = {ref.name for ref in captured.params}
    for name, param in params.items():
        assert (param.grad is not None) == (name in trained), name


def test_there_are_twenty_architectures():
    assert len(zoo.ZOO) >= 20
    assert sum(animal.is_random for animal in zoo.ZOO) >= 3
