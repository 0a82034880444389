"""Metrics are the mean over the samples, whoever ran them and in whatever batches."""

from fractions import Fraction

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from p2ptrain.engine.evaluate import EvalPlan, figures, rank_sums
from p2ptrain.engine.meta import EvalMeta

METRICS = ("accuracy", "error")


def measured(values, batch, world, seen=None):
    plan = EvalPlan(METRICS, len(values), batch)
    table = torch.tensor(values)

    def run(samples, number):
        assert len(samples) == batch
        if seen is not None:
            seen.append((number, list(samples)))
        return table[list(samples)], -2 * table[list(samples)]

    metas = [EvalMeta(0, rank_sums(plan, run, r, world)) for r in range(world)]
    return figures(plan, metas)


@given(
    st.lists(st.floats(-1e6, 1e6, width=32), min_size=1, max_size=30),
    st.integers(1, 7),
    st.integers(1, 6),
)
def test_figures_are_exact_means(values, batch, world):
    got = measured(values, batch, world)
    exact = float(sum(map(Fraction, values))) / len(values)
    assert got == {"accuracy": exact, "error": -2 * exact}


def test_a_group_smaller_than_the_world_leaves_ranks_without_work():
    seen = []
    assert measured([1.0, 2.0], 1, 5, seen) == {"accuracy": 1.5, "error": -3.0}
    assert seen == [(0, [0]), (1, [1])]


def test_the_last_batch_is_filled_with_its_last_sample():
    seen = []
    measured([1.0, 2.0, 3.0, 4.0, 5.0], 3, 2, seen)
    assert seen == [(0, [0, 1, 2]), (1, [3, 4, 4])]


def test_a_graph_with_other_metrics_is_a_bug():
    plan = EvalPlan(METRICS, 2, 2)
    with pytest.raises(ValueError, match="shorter"):
        rank_sums(plan, lambda samples, number: [torch.zeros(2)], 0, 1)


def test_half_precision_metrics_are_summed_in_double():
    plan = EvalPlan(("m",), 4096, 1024)
    third = torch.full((1024,), 1 / 3).bfloat16()
    sums = rank_sums(plan, lambda samples, number: [third], 0, 1)
    assert figures(plan, [EvalMeta(0, sums)])["m"] == float(third[0])
