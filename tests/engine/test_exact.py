"""Reducers: what a step's sum depends on, and what it does not."""

import math
import random
from collections.abc import Sequence
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from p2ptrain import codec
from p2ptrain.engine.collective import Group, solo
from p2ptrain.engine.exact import (
    EXPONENT_MIN,
    ExactReducer,
    FastReducer,
    Reduced,
    Reducer,
    make_reducer,
    sum_dtype,
)
from p2ptrain.errors import LinkLostError
from tests.engine.ringkit import run_ranks

SHAPES = ((3, 4), (5,), (), (0,), (2, 1, 7))
Part = list[Tensor]
Result = tuple[list[Tensor], list[int], int]  # sums, state, how often it was asked


def likes(dtype: torch.dtype = torch.float32) -> Part:
    return [torch.zeros(shape, dtype=dtype) for shape in SHAPES]


def part(index: int, scale: float = 1.0) -> Part:
    rng = torch.Generator().manual_seed(index)
    return [torch.randn(shape, generator=rng) * scale for shape in SHAPES]


def once(reducer: Reducer, group: Group, mine: Sequence[Part], k: int) -> Result:
    """Do a step, adding again where the reducer asks for it."""
    for asked in range(2):
        reducer.begin(k)
        for values in mine:
            reducer.add(values)
        reduced = reducer.finish(group, b"m")
        if reduced is not None:
            assert reduced.metas == (b"m",) * group.world
            sums = [value.clone() for value in reduced.sums]
            return sums, reducer.state(), asked
    raise AssertionError("asked twice")


def steps(parts: list[list[Part]], group: Group, mine: list[list[int]]) -> list[Result]:
    reducer = ExactReducer(likes())
    return [
        once(reducer, group, [step[i] for i in own], len(step))
        for step, own in zip(parts, mine, strict=True)
    ]


def shares(k: int, world: int, rng: random.Random) -> list[list[int]]:
    """Deal k parts to ranks, in any number and order."""
    order = rng.sample(range(k), k)
    cuts = sorted(rng.choices(range(k + 1), k=world - 1))
    return [order[a:b] for a, b in zip([0, *cuts], [*cuts, k], strict=True)]


def growing(k: int) -> list[list[Part]]:
    """Four steps, among them one that outgrows its room and one of zeros."""
    scales = (1.0, 1e-3, 1e9, 0.0, 1.0)
    return [
        [part(100 * step + i, scale) for i in range(k)]
        for step, scale in enumerate(scales)
    ]


def equal(left: list[Result], right: list[Result]) -> bool:
    return all(
        a[1:] == b[1:]
        and all(torch.equal(x, y) for x, y in zip(a[0], b[0], strict=True))
        for a, b in zip(left, right, strict=True)
    )


@pytest.mark.net
@pytest.mark.parametrize("world", [1, 2, 3, 5])
def test_exact_sums_do_not_depend_on_who_adds_what_in_which_order(world: int) -> None:
    k = 7
    parts = growing(k)
    alone = steps(parts, solo(), [list(range(k)) for _ in parts])
    assert [asked for *_, asked in alone] == [1, 0, 1, 0, 0]
    for seed in range(4):
        rng = random.Random(seed)
        dealt = [shares(k, world, rng) for _ in parts]
        works = [
            partial(
                lambda mine, group: steps(parts, group, mine), [d[r] for d in dealt]
            )
            for r in range(world)
        ]
        for result in run_ranks(works):
            assert isinstance(result, list), result
            assert equal(result, alone)


def naive(parts: list[Part]) -> list[Tensor]:
    return [
        torch.stack([values[i].double() for values in parts]).sum(0)
        for i in range(len(SHAPES))
    ]


@pytest.mark.parametrize("exact", [True, False])
def test_sums_are_near_those_in_double_precision(exact: bool) -> None:
    parts = [part(i) for i in range(9)]
    reducer = make_reducer(likes(), exact=exact)
    sums, _, _ = once(reducer, solo(), parts, len(parts))
    for got, want in zip(sums, naive(parts), strict=True):
        assert got.dtype == torch.float32
        assert got.shape == want.shape
        assert torch.allclose(got.double(), want, rtol=1e-6, atol=1e-6)


def test_exact_rounds_once_to_what_a_float_can_hold() -> None:
    """With 40 bits for the largest value, sums round as if added without error."""
    parts = [part(i) for i in range(5)]
    sums, _, _ = once(ExactReducer(likes()), solo(), parts, len(parts))
    for got, want in zip(sums, naive(parts), strict=True):
        ulp = torch.finfo(torch.float32).eps * want.abs()
        assert ((got.double() - want).abs() <= ulp + 5 * 2.0**-38).all()


@given(
    values=st.lists(
        st.floats(width=32, allow_nan=False, allow_infinity=False),
        min_size=1,
        max_size=12,
    ),
    before=st.floats(width=32, allow_nan=False, allow_infinity=False),
)
@settings(max_examples=300)
def test_exact_never_overflows_and_is_asked_once_at_most(
    values: list[float], before: float
) -> None:
    reducer = ExactReducer([torch.zeros(1)])
    once(reducer, solo(), [[torch.tensor([before])]], 1)
    parts = [[torch.tensor([value])] for value in values]
    (got,), state, _ = once(reducer, solo(), parts, len(parts))
    total = math.fsum(values)
    room = len(values) * 2.0 ** (state[0] + 1)
    assert abs(got.item() - total) <= abs(total) * 1e-7 + room or math.isinf(got.item())
    shuffled = list(reversed(parts))
    again = ExactReducer([torch.zeros(1)])
    once(again, solo(), [[torch.tensor([before])]], 1)
    (other,), other_state, _ = once(again, solo(), shuffled, len(parts))
    assert torch.equal(got, other)
    assert state == other_state


def test_the_largest_sum_that_fits_is_right() -> None:
    """All parts at the very edge of their room."""
    reducer = ExactReducer([torch.zeros(1)])
    reducer.load([-62])
    k = 3
    edge = 2.0**-2 * (1 - 2.0**-24)  # 60 bits; three of them need 62
    (got,), _, asked = once(reducer, solo(), [[torch.tensor([edge])]] * k, k)
    assert asked == 0
    assert got.item() == pytest.approx(k * edge, rel=1e-7)
    reducer.load([-62])
    (got,), _, asked = once(reducer, solo(), [[torch.tensor([2 * edge])]] * k, k)
    assert asked == 1
    assert got.item() == pytest.approx(2 * k * edge, rel=1e-7)


def test_a_state_carries_a_session_on() -> None:
    parts = growing(3)
    whole = steps(parts, solo(), [[0, 1, 2]] * len(parts))
    for at in range(1, len(parts)):
        resumed = ExactReducer(likes())
        resumed.load(whole[at - 1][1])
        rest = [once(resumed, solo(), step, 3) for step in parts[at:]]
        assert equal(rest, whole[at:])


@pytest.mark.parametrize("bad", [math.inf, -math.inf, math.nan])
@pytest.mark.parametrize("first", [True, False])
def test_what_is_not_finite_reaches_the_caller_and_leaves_the_state(
    bad: float, first: bool
) -> None:
    reducer = ExactReducer([torch.zeros(2)])
    if not first:
        once(reducer, solo(), [[torch.ones(2)]], 1)
    before = reducer.state()
    reducer.begin(1)
    reducer.add([torch.tensor([1.0, bad])])
    assert isinstance(reducer.finish(solo(), b"not finite"), Reduced)
    assert reducer.state() == before


def test_zeros_for_a_while_cost_no_second_pass() -> None:
    reducer = ExactReducer([torch.zeros(1)])
    once(reducer, solo(), [[torch.ones(1)]], 1)
    for _ in range(10):
        once(reducer, solo(), [[torch.zeros(1)]], 1)
    assert once(reducer, solo(), [[torch.ones(1)]], 1)[2] == 0
    assert reducer.state()[0] > EXPONENT_MIN


def test_one_part_keeps_its_bits_in_fast_mode() -> None:
    values = part(1)
    values[0][0, 0] = -0.0
    sums, state, asked = once(FastReducer(likes()), solo(), [values], 1)
    assert [s.numpy().tobytes() for s in sums] == [v.numpy().tobytes() for v in values]
    assert (state, asked) == ([], 0)


def test_fast_steps_do_not_leak_into_each_other() -> None:
    reducer = FastReducer(likes())
    once(reducer, solo(), [part(1), part(2)], 2)
    sums, _, _ = once(reducer, solo(), [], 2)
    assert all(not value.any() for value in sums)
    sums, _, _ = once(reducer, solo(), [part(3)], 1)
    assert all(torch.equal(a, b) for a, b in zip(sums, part(3), strict=True))


def test_doubles_are_summed_as_doubles() -> None:
    assert (
        sum_dtype([torch.zeros(1), torch.zeros(1, dtype=torch.float64)])
        == torch.float64
    )
    assert (
        sum_dtype([torch.zeros(1), torch.zeros(1, dtype=torch.bfloat16)])
        == torch.float32
    )
    for exact in (True, False):
        reducer = make_reducer([torch.zeros(1, dtype=torch.float64)], exact=exact)
        third = torch.tensor([1 / 3], dtype=torch.float64)
        (got,), _, _ = once(reducer, solo(), [[third], [third]], 2)
        assert got.dtype == torch.float64
        assert got.item() == pytest.approx(2 / 3, rel=1e-11)


@pytest.mark.net
@pytest.mark.parametrize(
    "told",
    [
        b"\x00",
        codec.encode([b"m"]),
        codec.encode([b"m", [1.0]]),
        codec.encode([b"m", "x"]),
    ],
)
def test_a_rank_that_tells_nonsense_is_named(told: bytes) -> None:
    def liar(group: Group) -> int:
        group.exchange(told)
        return 0

    def honest(group: Group) -> int:
        once(ExactReducer(likes()), group, [part(1)], 2)
        return 0

    results = run_ranks([honest, liar])
    assert isinstance(results[0], LinkLostError)
    assert results[0].rank == 1
