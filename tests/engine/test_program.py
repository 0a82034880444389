"""The executor: what it computes, refuses, lets go of, and never shares."""

import resource
import sys
import threading

import pytest
import torch
from torch import Tensor

from p2ptrain.engine.kernels import safe_softmax
from p2ptrain.engine.program import KEPT_BYTES, Program, strides_of
from p2ptrain.engine.randomness import is_random, overload, seedable
from p2ptrain.errors import SpecError
from p2ptrain.spec.graph import Graph, Input, Meta, Node, Ref
from p2ptrain.spec.ops import OPS

CPU = torch.device("cpu")
F32 = "float32"


def node(op: str, *args, shape=(2, 3), dtype=F32, **kwargs) -> Node:
    return Node(op, args, kwargs, (Meta(dtype, shape),))


def graph(*nodes: Node, outputs, shapes=((2, 3),)) -> Graph:
    inputs = tuple(Input(f"x{i}", F32, shape) for i, shape in enumerate(shapes))
    return Graph(inputs, nodes, tuple(outputs))


def run(made: Graph, *values: Tensor, seed: int = 0) -> list[Tensor]:
    program = Program(made, CPU)
    first = program.run(values, seed)
    second = program.run(values, seed)
    for one, two in zip(first, second, strict=True):
        assert torch.equal(one, two)
    return second


def test_every_operator_of_the_table_is_in_this_torch():
    for name in OPS:
        assert overload(name) is not None


def test_arguments_of_every_form():
    x = torch.arange(6.0).reshape(2, 3)
    made = graph(
        Node(
            "split.Tensor", (Ref(0), 2, 1), {}, (Meta(F32, (2, 2)), Meta(F32, (2, 1)))
        ),
        node("cat", (Ref(2), Ref(1)), 1),
        Node("_to_copy", (Ref(0),), {"dtype": "float64"}, (Meta("float64", (2, 3)),)),
        node("arange", 3, shape=(3,), dtype="int64"),
        node("index.Tensor", Ref(0), (None, Ref(5)), shape=(2, 3)),
        node("sum.dim_IntList", Ref(0), (1,), True, shape=(2, 1)),
        node("clone", Ref(0), memory_format="contiguous"),
        outputs=[3, 4, 6, 7, 8],
    )
    joined, wide, picked, total, copied = run(made, x)
    assert torch.equal(joined, x[:, [2, 0, 1]])
    assert wide.dtype == torch.float64
    assert torch.equal(picked, x)
    assert torch.equal(total, x.sum(1, keepdim=True))
    assert torch.equal(copied, x)


def test_a_tensor_may_be_given_by_keyword():
    sequence, values = torch.tensor([3.0, 1.0, 2.0]), torch.tensor([1.5, 2.5])
    order = sequence.argsort()
    made = Graph(
        (Input("s", F32, (3,)), Input("v", F32, (2,)), Input("o", "int64", (3,))),
        (
            Node(
                "searchsorted.Tensor",
                (Ref(0), Ref(1)),
                {"right": False, "sorter": Ref(2)},
                (Meta("int64", (2,)),),
            ),
        ),
        (3,),
    )
    (found,) = run(made, sequence, values, order)
    assert found.tolist() == [1, 2]


def test_results_without_a_tensor():
    small, large, kernel = (1, 1, 2, 2), (1, 1, 4, 4), (1, 1, 3, 3)
    geometry = ((1,), (1, 1), (0, 0), (1, 1), False, (0, 0), 1)
    made = graph(
        Node(
            "convolution_backward",
            (Ref(0), Ref(1), Ref(2), *geometry, (False, True, False)),
            {},
            (None, Meta(F32, kernel), None),
        ),
        outputs=[4],
        shapes=(small, large, kernel),
    )
    (grad,) = run(made, torch.ones(small), torch.ones(large), torch.ones(kernel))
    assert torch.equal(grad, torch.full(kernel, 4.0))


def test_outputs_never_share_memory():
    made = graph(
        node("t", Ref(0), shape=(3, 2)),
        node("mul.Scalar", Ref(0), 2.0),
        node("view", Ref(2), (3, 2), shape=(3, 2)),
        node("select.int", Ref(2), 0, 0, shape=(3,)),
        node("expand", Ref(4), (4, 3), shape=(4, 3)),
        node("ones", (2, 3)),
        outputs=[0, 1, 2, 2, 3, 5, 6, 6],
    )
    x = torch.arange(6.0).reshape(2, 3)
    program = Program(made, CPU)
    expected = [o.clone() for o in program.run([x], 0)]
    assert torch.equal(x, torch.arange(6.0).reshape(2, 3))
    for _ in range(3):
        outputs = program.run([x], 0)
        for index, output in enumerate(outputs):
            assert torch.equal(output, expected[index]), index
            assert output.is_contiguous()
            output.mul_(-7.0)
            output.add_(100.0 + index)
        for index, output in enumerate(outputs):
            assert torch.equal(output, expected[index] * -7.0 + (100.0 + index))
        assert torch.equal(x, torch.arange(6.0).reshape(2, 3))


def test_results_are_ordinary_tensors():
    (output,) = run(graph(node("exp", Ref(0)), outputs=[1]), torch.zeros(2, 3))
    assert not output.is_inference()
    assert not output.requires_grad
    weight = torch.ones(2, 3, requires_grad=True)
    (weight * output).sum().backward()
    assert weight.grad is not None


def test_parameters_with_gradients_may_be_given():
    weight = torch.nn.Parameter(torch.zeros(2, 3))
    (output,) = run(graph(node("exp", Ref(0)), outputs=[1]), weight)
    assert not output.requires_grad


@pytest.mark.parametrize(
    ("meta", "problem"),
    [
        (
            Meta(F32, (3, 2)),
            r"nodes\[0\] \(exp\): gives float32\[2, 3\], but float32\[3, 2\]",
        ),
        (Meta("float64", (2, 3)), r"nodes\[0\] \(exp\): gives float32"),
    ],
)
def test_a_result_that_differs_from_its_declaration_is_refused(meta, problem):
    made = graph(Node("exp", (Ref(0),), {}, (meta,)), outputs=[1])
    with pytest.raises(SpecError, match=problem):
        Program(made, CPU).run([torch.zeros(2, 3)], 0)


def test_too_many_results_are_refused():
    two = (Meta(F32, (2,)), Meta("int64", (2,)))
    bad = Node("max.dim", (Ref(0), 1), {}, (*two, Meta(F32, (2,))))
    with pytest.raises(SpecError, match="has 2 results"):
        Program(graph(bad, outputs=[1]), CPU).run([torch.zeros(2, 3)], 0)


def test_inputs_that_differ_are_refused():
    program = Program(graph(node("exp", Ref(0)), outputs=[1]), CPU)
    with pytest.raises(SpecError, match=r"inputs\[0\]: gives float64\[2, 3\]"):
        program.run([torch.zeros(2, 3, dtype=torch.float64)], 0)
    with pytest.raises(SpecError, match="2 values were given"):
        program.run([torch.zeros(2, 3), torch.zeros(2, 3)], 0)


def test_an_operator_outside_the_table_is_refused():
    for name in ("system", "exp_", "add_.Tensor", "_local_scalar_dense"):
        with pytest.raises(SpecError, match=r"nodes\[0\].op: .* not in the operator"):
            Program(graph(node(name, Ref(0)), outputs=[1]), CPU)


def test_inputs_in_another_layout():
    made = graph(node("view", Ref(0), (6,), shape=(6,)), outputs=[1])
    x = torch.arange(6.0).reshape(3, 2).t()
    (flat,) = run(made, x)
    assert torch.equal(flat, x.reshape(-1))


def test_a_view_that_is_impossible_becomes_a_copy():
    made = graph(
        node("t", Ref(0), shape=(3, 2)),
        node("view", Ref(1), (6,), shape=(6,)),
        node("exp", Ref(2), shape=(6,)),
        outputs=[2, 3],
    )
    x = torch.arange(6.0).reshape(2, 3)
    flat, grown = run(made, x)
    assert torch.equal(flat, x.t().reshape(6))
    assert torch.equal(grown, flat.exp())


def test_strides_are_those_of_torch():
    for shape in [(), (3,), (2, 3, 4), (2, 1, 5), (0, 4), (4, 0, 2)]:
        assert strides_of(shape) == torch.empty(shape).stride()


def test_values_are_let_go_after_their_last_use():
    size = 2 * 1024 * 1024
    nodes = [node("add.Scalar", Ref(i), 1.0, shape=(size,)) for i in range(100)]
    made = graph(*nodes, outputs=[100], shapes=((size,),))
    program = Program(made, CPU)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(2):
        (output,) = program.run([torch.zeros(size)], 0)
        assert output[0] == 100
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
    assert grown < 20 * size * 4  # a hundred values would need 100 * size * 4


def test_what_never_changes_is_kept_but_not_without_bound():
    big = KEPT_BYTES // 4
    made = graph(
        node("ones", (2, 3)),
        node("tril", Ref(1)),
        node("ones", (big,), shape=(big,)),
        node("sum", Ref(3), shape=()),
        node("add.Tensor", Ref(0), Ref(2)),
        node("add.Tensor", Ref(5), Ref(4)),
        outputs=[6],
    )
    program = Program(made, CPU)
    x = torch.arange(6.0).reshape(2, 3)
    expected = x + torch.ones(2, 3).tril() + float(big)
    for _ in range(3):
        assert torch.equal(program.run([x], 0)[0], expected)
    kept = [t for t in program._rest if isinstance(t, Tensor)]
    assert len(kept) >= 1
    assert sum(t.nbytes for t in kept) <= KEPT_BYTES


# random numbers

DRAWS = [
    node("rand", (2, 3)),
    node("randn", (5, 7), shape=(5, 7)),
    node("randint", 10, (2, 3), dtype="int64"),
    node("randint.low", 3, 10, (4,), shape=(4,), dtype="int64"),
    node("randperm", 9, shape=(9,), dtype="int64"),
    node("rand_like", Ref(0)),
    node("randn_like", Ref(0)),
    node("randint_like", Ref(0), 9),
    node("bernoulli.p", Ref(0), 0.4),
    node("normal_functional", Ref(0), 1.0, 2.0),
    node("uniform", Ref(0), -1.0, 1.0),
    node("exponential", Ref(0)),
    node("normal.float_float", 0.0, 1.0, (3, 3), shape=(3, 3)),
]
DROPOUT = Node(
    "native_dropout",
    (Ref(0), 0.3, True),
    {},
    (Meta(F32, (2, 3)), Meta("bool", (2, 3))),
)


def random_graph(repeats: int = 1) -> Graph:
    nodes = (*DRAWS, DROPOUT, *DRAWS[::-1]) * repeats
    count = sum(len(made.results) for made in nodes)
    return graph(*nodes, outputs=range(1, 1 + count))


def eagerly(seed: int, repeats: int = 1) -> list[Tensor]:
    """Draw the same from torch's default generator."""
    x = torch.zeros(2, 3)
    forms = {
        "rand": lambda: torch.rand(2, 3),
        "randn": lambda: torch.randn(5, 7),
        "randint": lambda: torch.randint(10, (2, 3)),
        "randint.low": lambda: torch.randint(3, 10, (4,)),
        "randperm": lambda: torch.randperm(9),
        "rand_like": lambda: torch.rand_like(x),
        "randn_like": lambda: torch.randn_like(x),
        "randint_like": lambda: torch.randint_like(x, 9),
        "bernoulli.p": lambda: x.bernoulli(0.4),
        "normal_functional": lambda: torch.empty(2, 3).normal_(1.0, 2.0),
        "uniform": lambda: torch.empty(2, 3).uniform_(-1.0, 1.0),
        "exponential": lambda: torch.empty(2, 3).exponential_(),
        "normal.float_float": lambda: torch.normal(0.0, 1.0, (3, 3)),
        "native_dropout": lambda: torch.native_dropout(x, 0.3, True),
    }
    torch.manual_seed(seed)
    drawn: list[Tensor] = []
    for made in (*DRAWS, DROPOUT, *DRAWS[::-1]) * repeats:
        result = forms[made.op]()
        drawn += result if isinstance(result, tuple) else [result]
    return drawn


def test_random_operators_draw_what_the_default_generator_draws():
    expected = eagerly(11)
    torch.manual_seed(77)
    before = torch.get_rng_state()
    drawn = run(random_graph(), torch.zeros(2, 3), seed=11)
    assert torch.equal(torch.get_rng_state(), before)
    for index, (mine, theirs) in enumerate(zip(drawn, expected, strict=True)):
        assert torch.equal(mine, theirs), index
    others = run(random_graph(), torch.zeros(2, 3), seed=12)
    assert not torch.equal(others[1], drawn[1])


def test_both_ways_to_draw_are_tested():
    ways = {seedable(made.op) is None for made in (*DRAWS, DROPOUT)}
    assert ways == {True, False}
    assert all(is_random(made.op) for made in (*DRAWS, DROPOUT))
    assert not is_random("add.Tensor")


def test_programs_in_threads_draw_apart():
    x = torch.zeros(2, 3)
    expected = {seed: eagerly(seed, 20) for seed in range(4)}
    got: dict[int, list[Tensor]] = {}
    barrier = threading.Barrier(4)

    def work(seed: int) -> None:
        program = Program(random_graph(20), CPU)
        barrier.wait()
        for _ in range(3):
            got[seed] = program.run([x], seed)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)  # so that they meet within an operator
    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    sys.setswitchinterval(interval)
    for seed in range(4):
        for mine, theirs in zip(got[seed], expected[seed], strict=True):
            assert torch.equal(mine, theirs)


# kernels


def test_safe_softmax_equals_atens():
    x = torch.randn(3, 4, 5)
    holes = [x, x.clone(), x.clone(), x.clone(), torch.full((2, 3), -torch.inf)]
    holes[1][1, 2] = -torch.inf
    holes[2][0, 0, 0] = torch.nan
    holes[3][:, 1:, 2] = -torch.inf
    for values in holes:
        for dim in range(values.dim()):
            mine = safe_softmax(values, dim)
            theirs = torch.ops.aten._safe_softmax(values, dim)
            assert torch.equal(mine.nan_to_num(9.0), theirs.nan_to_num(9.0))
    assert safe_softmax(x, 1, torch.float64).dtype == torch.float64
    assert safe_softmax(torch.zeros(0, 3), 1).shape == (0, 3)
