"""Every refusal names its field and its value; nothing else is ever raised."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from p2ptrain import codec
from p2ptrain.errors import PeerError, SpecError
from p2ptrain.spec.graph import Graph, Input, Meta, Node, Ref
from p2ptrain.spec.limits import Limits
from p2ptrain.spec.train import (
    BufferRef,
    DataRef,
    Eval,
    Optimizer,
    TrainSpec,
    WeightRef,
    load_spec,
    spec_bytes,
    spec_id,
)
from p2ptrain.spec.validate import validate

F32 = "float32"
IN, OUT, B = 3, 2, 4


def graph() -> Graph:
    """Return mean(x @ w) with its gradient by hand: values x 0, w 1, then nodes."""
    return Graph(
        inputs=(Input("x", F32, (B, IN)), Input("w", F32, (IN, OUT))),
        nodes=(
            Node("mm", (Ref(0), Ref(1)), {}, (Meta(F32, (B, OUT)),)),
            Node("mean", (Ref(2),), {}, (Meta(F32, ()),)),
            Node("ones_like", (Ref(2),), {}, (Meta(F32, (B, OUT)),)),
            Node("div.Scalar", (Ref(4), B * OUT), {}, (Meta(F32, (B, OUT)),)),
            Node("t", (Ref(0),), {}, (Meta(F32, (IN, B)),)),
            Node("mm", (Ref(6), Ref(5)), {}, (Meta(F32, (IN, OUT)),)),
        ),
        outputs=(3, 7),
    )


def spec() -> TrainSpec:
    return TrainSpec(
        graph=graph(),
        params=(WeightRef("w", "init:normal?std=0.1", F32, (IN, OUT)),),
        grad_start=1,
        loss_index=0,
        data=(DataRef("x", "file:///x.npy", IN, 0, 10, F32, (IN,)),),
        seed_input=None,
        momentum=0.9,
        lr_per_epoch=(0.1, 0.01),
        batch=B,
        exports=(("weight", "w"),),
    )


def test_the_sample_is_valid() -> None:
    validate(spec())


Change = Callable[[TrainSpec], TrainSpec]


def with_node(index: int, **changes: object) -> Change:
    def change(s: TrainSpec) -> TrainSpec:
        nodes = list(s.graph.nodes)
        nodes[index] = replace(nodes[index], **changes)
        return replace(s, graph=replace(s.graph, nodes=tuple(nodes)))

    return change


def with_graph(**changes: object) -> Change:
    return lambda s: replace(s, graph=replace(s.graph, **changes))


def with_data(**changes: object) -> Change:
    return lambda s: replace(s, data=(replace(s.data[0], **changes),))


def with_param(**changes: object) -> Change:
    return lambda s: replace(s, params=(replace(s.params[0], **changes),))


def having(**changes: object) -> Change:
    return lambda s: replace(s, **changes)


HUGE = 2**40
WRONG: list[tuple[str, Change, str, str]] = [
    ("unknown operator", with_node(0, op="system"), "graph.nodes[0]", "system"),
    ("private operator", with_node(0, op="__class__"), "graph.nodes[0]", "__class__"),
    ("in-place operator", with_node(0, op="add_.Tensor"), "graph.nodes[0]", "add_"),
    ("too many arguments", with_node(1, args=(Ref(2),) * 4), "graph.nodes[1]", "mean"),
    ("too few arguments", with_node(0, args=(Ref(0),)), "graph.nodes[0]", "mat2"),
    ("unknown keyword", with_node(0, kwargs={"out": 1}), "graph.nodes[0]", "out"),
    (
        "dangling reference",
        with_node(0, args=(Ref(0), Ref(99))),
        "graph.nodes[0]",
        "99",
    ),
    ("forward reference", with_node(0, args=(Ref(0), Ref(5))), "graph.nodes[0]", "5"),
    (
        "negative reference",
        with_node(0, args=(Ref(0), Ref(-1))),
        "graph.nodes[0]",
        "-1",
    ),
    ("text for a tensor", with_node(0, args=(Ref(0), "w")), "graph.nodes[0]", "w"),
    (
        "wrong result shape",
        with_node(0, results=(Meta(F32, (9, 9)),)),
        "graph.nodes[0]",
        "9",
    ),
    (
        "wrong result dtype",
        with_node(0, results=(Meta("int8", (B, OUT)),)),
        "graph.nodes[0]",
        "int8",
    ),
    (
        "too many results",
        with_node(0, results=(Meta(F32, (B, OUT)),) * 2),
        "graph.nodes[0]",
        "2",
    ),
    (
        "shape overflow",
        with_node(
            2, op="ones", args=((HUGE, HUGE),), results=(Meta(F32, (HUGE, HUGE)),)
        ),
        "graph.nodes[2]",
        str(HUGE),
    ),
    (
        "negative size",
        with_node(2, op="ones", args=((-3,),), results=(Meta(F32, (-3,)),)),
        "graph.nodes[2]",
        "-3",
    ),
    (
        "too large",
        with_node(2, op="ones", args=((2**36,),), results=(Meta(F32, (2**36,)),)),
        "graph.nodes[2]",
        str(2**36),
    ),
    (
        "unknown dtype",
        with_graph(inputs=(Input("x", "float31", (B, IN)),)),
        "graph.inputs[0]",
        "float31",
    ),
    (
        "two inputs of a name",
        with_graph(inputs=(Input("x", F32, (B, IN)),) * 2),
        "graph.inputs",
        "x",
    ),
    ("output out of range", with_graph(outputs=(3, 70)), "graph.outputs", "70"),
    ("loss_index out of range", having(loss_index=5), "loss_index", "5"),
    ("negative loss_index", having(loss_index=-1), "loss_index", "-1"),
    ("non-scalar loss", with_graph(outputs=(2, 7)), "loss_index", "4"),
    ("grad_start out of range", having(grad_start=9), "grad_start", "9"),
    ("a gradient too few", having(grad_start=2), "params", "grad_start 2"),
    ("gradient of another shape", with_graph(outputs=(3, 6)), "params[0]", "4"),
    ("a param that is no input", with_param(name="v"), "params[0]", "v"),
    ("a param of another dtype", with_param(dtype="float64"), "params[0]", "float64"),
    ("a param of another shape", with_param(shape=(OUT, IN)), "params[0]", "2"),
    ("packed and trained", with_param(packed=True), "params[0]", "packed"),
    ("unknown scheme", with_param(uri="http://x/w"), "params[0].uri", "http"),
    ("relative path", with_param(uri="file://w.npy"), "params[0].uri", "w.npy"),
    ("unknown rule", with_param(uri="init:magic"), "params[0].uri", "magic"),
    ("init for samples", with_data(uri="init:zeros"), "data[0].uri", "init"),
    ("no params", having(params=(), grad_start=2), "params", ""),
    ("batch is not the graph's", having(batch=5), "batch", "5"),
    ("batch of none", having(batch=0), "batch", "0"),
    ("global batch no multiple", having(global_batch=6), "global_batch", "6"),
    ("negative rate", having(lr_per_epoch=(0.1, -0.5)), "lr_per_epoch[1]", "-0.5"),
    ("infinite rate", having(lr_per_epoch=(float("inf"),)), "lr_per_epoch[0]", "inf"),
    (
        "rate that is no number",
        having(lr_per_epoch=(float("nan"),)),
        "lr_per_epoch[0]",
        "nan",
    ),
    ("empty schedule", having(lr_per_epoch=()), "lr_per_epoch", ""),
    ("negative momentum", having(momentum=-0.1), "momentum", "-0.1"),
    ("beta of one", having(optimizer=Optimizer(beta1=1.0)), "optimizer.beta1", "1.0"),
    ("negative eps", having(optimizer=Optimizer(eps=-1.0)), "optimizer.eps", "-1.0"),
    ("clip of zero", having(clip_norm=0.0), "clip_norm", "0.0"),
    ("negative seed", having(seed=-1), "seed", "-1"),
    ("elem that is no product", with_data(elem=7), "data[0].elem", "7"),
    ("no samples", with_data(shard_len=0), "data[0].shard_len", "0"),
    ("negative start", with_data(shard_start=-1), "data[0].shard_start", "-1"),
    ("samples of another shape", with_data(shape=(5,), elem=5), "data[0]", "5"),
    ("data for no input", with_data(input="z"), "data[0].input", "z"),
    ("no data", having(data=()), "data", ""),
    ("digest that is none", with_data(digest="abc"), "data[0].digest", "abc"),
    ("seed input that is none", having(seed_input="s"), "seed_input", "s"),
    (
        "buffer that is no input",
        having(buffers=(BufferRef("b", "init:zeros", F32, (1,), 0),)),
        "buffers[0]",
        "b",
    ),
    ("export of nothing", having(exports=(("a", "nothing"),)), "exports", "nothing"),
    ("export twice", having(exports=(("a", "w"), ("a", "w"))), "exports", "a"),
    ("device that is no name", having(device="rm -rf"), "device", "rm -rf"),
    (
        "negative checkpoint_every",
        having(checkpoint_every=-1),
        "checkpoint_every",
        "-1",
    ),
    ("eval without metrics", having(eval=Eval(graph(), (), (), B)), "eval", ""),
]


@pytest.mark.parametrize(
    ("change", "field", "value"),
    [case[1:] for case in WRONG],
    ids=[case[0] for case in WRONG],
)
def test_what_is_wrong_is_named(change: Change, field: str, value: str) -> None:
    with pytest.raises(SpecError) as caught:
        validate(change(spec()))
    sentence = str(caught.value)
    assert caught.value.field.startswith(field), sentence
    assert value in sentence
    assert len(sentence) < 400


@pytest.mark.parametrize(
    ("bound", "change"),
    [
        ("nodes", 5),
        ("inputs", 1),
        ("outputs", 1),
        ("values", 5),
        ("value_bytes", 16),
        ("weight_bytes", 8),
        ("epochs", 1),
        ("samples", 9),
    ],
)
def test_every_bound_holds(bound: str, change: int) -> None:
    validate(spec(), Limits())
    with pytest.raises(SpecError):
        validate(spec(), replace(Limits(), **{bound: change}))


def test_a_round_trip_is_exact() -> None:
    data = spec_bytes(spec())
    assert load_spec(data) == spec()
    assert spec_bytes(load_spec(data)) == data
    assert spec_id(load_spec(data)) == spec_id(spec())
    assert spec_id(replace(spec(), seed=1)) != spec_id(spec())


JUNK = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**65), 2**65),
    st.floats(),
    st.text(max_size=8),
    st.lists(st.integers(-5, 2**50), max_size=3),
    st.just({}),
)


def spots(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the path of every place in a plain value."""
    found = [path]
    items: Any = ()
    if isinstance(value, dict):
        items = value.items()
    elif isinstance(value, list | tuple):
        items = enumerate(value)
    for key, inner in items:
        found += spots(inner, (*path, key))
    return found


def put(value: Any, path: tuple[Any, ...], junk: Any) -> Any:
    if not path:
        return junk
    head, *rest = path
    if isinstance(value, dict):
        return value | {head: put(value[head], tuple(rest), junk)}
    made = list(value)
    made[head] = put(made[head], tuple(rest), junk)
    return made


PLAIN = codec.to_plain(spec())
SPOTS = spots(PLAIN)


@given(st.lists(st.tuples(st.sampled_from(SPOTS), JUNK), min_size=1, max_size=3))
@settings(max_examples=400, deadline=None)
def test_any_bytes_are_a_valid_spec_or_one_refusal(
    changes: list[tuple[tuple[Any, ...], Any]],
) -> None:
    plain = PLAIN
    for path, junk in changes:
        try:
            plain = put(plain, path, junk)
        except (TypeError, KeyError, IndexError):
            continue  # an earlier change took the place away
    sentence = ""
    try:
        validate(load_spec(codec.encode(plain)))
    except (PeerError, SpecError) as error:
        sentence = str(error)
    except OverflowError:  # CBOR has no integers beyond 64 bits: never sent
        numbers = [junk for _, junk in changes if isinstance(junk, int)]
        assert max(map(abs, numbers)) >= 2**64
    assert len(sentence) < 2000
