"""A part gives loss, gradients and buffers, and leaves what it started from alone."""

import torch

from p2ptrain.core import stream
from p2ptrain.core.stream import Schedule
from p2ptrain.engine.data import Feed, SampleOrder
from p2ptrain.engine.parts import GraphRunner, PartRunner, is_float, split_buffers
from tests.engine import trainjobs as jobs

CPU = torch.device("cpu")


class Rows:
    def __init__(self, table):
        self.table = table

    def take(self, indices):
        return self.table[indices]


def runner_of(tmp_path):
    task = jobs.cnn_task(samples=10)
    spec = jobs.spec_of(task, tmp_path, global_batch=4)
    state = task.model.state_dict()
    held = {name: tensor.clone() for name, tensor in state.items()}
    feed = Feed({name: Rows(table) for name, table in task.data.items()}, CPU)
    plan = Schedule(10, 2, 4, 2)
    order = SampleOrder(spec.seed, 10)
    graph = GraphRunner(spec.graph, CPU, held, feed)
    return task, spec, held, PartRunner(spec, plan, order, graph)


def test_a_part_is_what_eager_pytorch_gives(tmp_path):
    task, spec, held, runner = runner_of(tmp_path)
    before = {name: tensor.clone() for name, tensor in held.items()}
    for step, part in ((0, 1), (3, 0), (0, 1)):  # whatever was run before
        result = runner.run(step, part)
        order = stream.permutation(spec.seed, 0, 10)
        order += stream.permutation(spec.seed, 1, 10)
        taken = order[step * 4 + part * 2 :][:2]
        task.model.load_state_dict(before)
        task.model.zero_grad()
        torch.manual_seed(stream.part_seed(spec.seed, step, part))
        loss = task.loss(task.model, {n: v[taken] for n, v in task.data.items()})
        loss.backward()
        assert result.loss == loss.item()
        grads = [task.model.get_parameter(ref.name).grad for ref in spec.params]
        after = task.model.state_dict()
        floats = [after[b.name] for b in split_buffers(spec)[0]]
        for ours, theirs in zip(result.sums, [*grads, *floats], strict=True):
            assert torch.equal(ours, theirs)
        assert int.from_bytes(result.ints, "little") == 1
    assert all(torch.equal(held[name], before[name]) for name in before)


def test_buffers_are_split_by_dtype(tmp_path):
    spec = jobs.spec_of(jobs.cnn_task(), tmp_path)
    floats, ints = split_buffers(spec)
    assert [b.name for b in floats] == ["norm.running_mean", "norm.running_var"]
    assert [b.name for b in ints] == ["norm.num_batches_tracked"]


def test_float_dtypes_are_known_by_name():
    floats = ["float32", "float64", "float16", "bfloat16", "float8_e5m2"]
    assert all(map(is_float, floats))
    assert not any(map(is_float, ["int64", "uint8", "bool", "complex64", "qint8"]))
