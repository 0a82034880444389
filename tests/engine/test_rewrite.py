"""Rewritten graphs compute what they did, wider or with their random numbers given."""

from dataclasses import replace

import pytest
import torch

from p2ptrain.engine.program import Program
from p2ptrain.engine.rewrite import drawn, widened
from p2ptrain.spec.graph import Graph, Input, Meta, Node, Ref
from tests.engine import trainjobs as jobs

CPU = torch.device("cpu")
F = Meta("float32", (2, 3))
# x -> x + rand_like(x) + cast(bernoulli(rand_like(x))), with the noise given out too
GRAPH = Graph(
    inputs=(Input("x", "float32", (2, 3)),),
    nodes=(
        Node("rand_like", (Ref(0),), {}, (F,)),  # 1
        Node("add.Tensor", (Ref(0), Ref(1)), {}, (F,)),  # 2
        Node("rand_like", (Ref(2),), {"dtype": "float32"}, (F,)),  # 3
        Node("cat", ((Ref(2), Ref(3)), 1), {}, (Meta("float32", (2, 6)),)),  # 4
    ),
    outputs=(4, 3, 0),
)


def test_given_draws_replace_drawn_ones():
    x = torch.randn(2, 3)
    before = Program(GRAPH, CPU).run([x], 7)
    split = drawn(GRAPH)
    assert split.values == (1, 3)
    noise = Program(replace(GRAPH, outputs=split.values), CPU).run([x], 7)
    after = Program(split.graph, CPU).run([x, *noise], 99)
    assert all(map(torch.equal, before, after))
    assert [node.op for node in split.graph.nodes] == ["add.Tensor", "cat"]


def test_a_graph_that_draws_nothing_is_left_as_it_is():
    graph = Graph(GRAPH.inputs, GRAPH.nodes[1:2], (2,))
    still = replace(graph, nodes=(replace(graph.nodes[0], args=(Ref(0), Ref(0))),))
    still = replace(still, outputs=(1,))
    assert drawn(still).graph == still
    assert drawn(still).values == ()


@pytest.mark.parametrize("make", [jobs.cnn_task, jobs.gpt_task])
def test_a_captured_step_can_be_widened(tmp_path, make):
    spec = jobs.spec_of(make(), tmp_path)
    split = drawn(spec.graph)
    assert split.values  # dropout
    wide = widened(split.graph)
    dtypes = {given.dtype for given in wide.inputs}
    dtypes |= {m.dtype for node in wide.nodes for m in node.results if m}
    assert dtypes <= {"float64", "int64", "bool"}
    gen = torch.Generator().manual_seed(0)
    values = [
        torch.rand(i.shape, generator=gen, dtype=torch.float64)
        if i.dtype == "float64"
        else torch.zeros(i.shape, dtype=getattr(torch, i.dtype))
        for i in wide.inputs
    ]
    narrow = [v.float() if v.is_floating_point() else v for v in values]
    want = Program(wide, CPU).run(values, 0)
    got = Program(split.graph, CPU).run(narrow, 0)
    for a, b in zip(got, want, strict=True):
        assert torch.allclose(a.double(), b.double(), rtol=1e-3, atol=1e-4)
