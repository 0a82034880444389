"""Verdicts of the ring: the same on every rank, and naming the right node."""

import math
from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2ptrain.engine import meta
from p2ptrain.engine.meta import (
    DigestMeta,
    EvalMeta,
    HelloMeta,
    StepMeta,
    TrainingFaultError,
)
from p2ptrain.errors import LinkLostError

NAMES = ("ant", "bee", "cow")
GOOD = StepMeta(4, (1.0, 2.0), "", b"\x05", False, False)
IDLE = StepMeta(4, (), "", b"", False, False)
HELLO = HelloMeta(2, 10, "d1", 1, "ant", "spec")


@pytest.mark.parametrize(
    "message",
    [GOOD, IDLE, replace(GOOD, losses=(math.inf,)), EvalMeta(3, ((0.1, 1e-20), ()))],
)
def test_metas_survive_the_wire(message):
    assert meta.unpack(type(message), [meta.pack(message)] * 2) == [message] * 2


def test_garbage_names_its_rank():
    with pytest.raises(LinkLostError, match="sent no StepMeta") as caught:
        meta.unpack(StepMeta, [meta.pack(GOOD), b"\xff\x00"])
    assert caught.value.rank == 1
    with pytest.raises(LinkLostError, match="sent no StepMeta"):
        meta.unpack(StepMeta, [meta.pack(DigestMeta(1, "d"))])


def test_good_steps_pass_and_give_loss_and_ints():
    metas = [IDLE, GOOD, replace(GOOD, losses=(6.0,))]
    assert meta.check_steps(metas, NAMES, (0, 2, 1)) == ""
    assert meta.step_loss(metas) == 3.0
    assert meta.int_bytes(metas) == b"\x05"


def test_what_is_not_finite_names_node_and_step():
    bad = replace(GOOD, bad="the gradient of 'w'")
    why = meta.check_steps([GOOD, IDLE, bad], NAMES, (2, 0, 2))
    assert why == "node 'cow': the gradient of 'w' is not finite at step 4"


@pytest.mark.parametrize("shares", [(2, 1), (1, 0), (2, 2)])
def test_a_rank_that_counts_other_parts_ends_the_view(shares):
    with pytest.raises(LinkLostError, match=r"counts \d parts, not \d"):
        meta.check_steps([GOOD, IDLE], NAMES[:2], shares)


def test_a_rank_at_another_step_ends_the_view():
    with pytest.raises(LinkLostError, match="is at step 5, not 4"):
        meta.check_steps([GOOD, replace(GOOD, step=5)], NAMES[:2], (2, 2))


def test_integer_buffers_must_agree():
    other = replace(GOOD, ints=b"\x06")
    with pytest.raises(TrainingFaultError, match=r"nodes 'ant', 'cow' differ .* 4"):
        meta.check_steps([GOOD, IDLE, other], NAMES, (2, 0, 2))
    with pytest.raises(TrainingFaultError, match="buffers of node 'bee' differ"):
        meta.check_steps([IDLE, replace(GOOD, uneven=True), GOOD], NAMES, (0, 2, 2))


def test_a_step_that_nobody_computed_is_refused():
    with pytest.raises(LinkLostError, match="no rank has computed"):
        meta.check_steps([IDLE, IDLE], NAMES[:2], (0, 0))


def test_the_odd_node_is_named_by_the_majority():
    with pytest.raises(TrainingFaultError, match=r"state of node 'bee' differs .* 2"):
        meta.check_digests(["x", "y", "x"], NAMES, 50)


def test_without_a_majority_all_are_named():
    with pytest.raises(TrainingFaultError, match="nodes 'ant', 'bee' differ after"):
        meta.check_digests(["x", "y"], NAMES[:2], 50)
    with pytest.raises(TrainingFaultError, match="'ant', 'bee', 'cow' differ after"):
        meta.check_digests(["x", "y", "z"], NAMES, 50)


def test_equal_digests_pass():
    meta.check_digests(["x"], NAMES[:1], 1)
    meta.check_digests(["x", "x", "x"], NAMES, 1)


@pytest.mark.parametrize(("field", "value"), [("view", 3), ("step", 9), ("spec", "o")])
def test_a_view_begins_only_together(field, value):
    other = replace(HELLO, name="bee", **{field: value})
    with pytest.raises(LinkLostError, match=f"'bee' brings {field} {value}") as caught:
        meta.check_hellos([HELLO, other])
    assert caught.value.rank == 1


def test_states_that_differ_at_the_start_are_a_fault():
    with pytest.raises(TrainingFaultError, match="after step 10"):
        meta.check_hellos([HELLO, replace(HELLO, name="bee", digest="d2")])
    meta.check_hellos([HELLO, replace(HELLO, name="bee", figures=0)])


floats = st.floats(-1e200, 1e200, allow_nan=False)


@given(st.lists(floats, max_size=30), st.integers(1, 5))
def test_grouped_sums_are_exact(values, world):
    metas = [
        EvalMeta(0, (meta.exact_parts(values[rank::world]),)) for rank in range(world)
    ]
    exact = sum(map(Fraction, values), Fraction(0))
    assert meta.total(metas, 0) == float(exact) == math.fsum(values)


@given(st.lists(floats, max_size=30))
def test_parts_hold_the_whole_sum(values):
    parts = meta.exact_parts(values)
    assert sum(map(Fraction, parts)) == sum(map(Fraction, values))


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, 1.7e308])
def test_a_sum_with_what_is_not_finite_is_not_a_number(bad):
    metas = [
        EvalMeta(0, (meta.exact_parts([bad, bad, 1.0]),)),
        EvalMeta(0, (meta.exact_parts([math.inf, -math.inf]),)),
    ]
    assert math.isnan(meta.total(metas, 0))
