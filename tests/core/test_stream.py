"""The sample stream: against a naive twin that writes the whole stream down."""

import math
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2ptrain.core import stream
from p2ptrain.core.stream import Schedule

sizes = st.integers(1, 40)
small = st.integers(1, 6)


def plan_of(samples, epochs, parts, batch):
    return Schedule(samples, epochs, parts * batch, batch)


def written_out(seed, plan):
    """The stream as one list, an epoch more than is needed to fill the last step."""
    taken = []
    epoch = 0
    while len(taken) < plan.steps * plan.step_samples:
        taken += stream.permutation(seed, epoch, plan.samples)
        epoch += 1
    return taken


def order_of(seed, samples):
    return lambda epoch: stream.permutation(seed, epoch, samples)


@given(sizes, small, small, small, st.integers(0, 2**63))
def test_steps_are_the_stream_cut_in_order(samples, epochs, parts, batch, seed):
    plan = plan_of(samples, epochs, parts, batch)
    order = order_of(seed, samples)
    cut = []
    for step in range(plan.steps):
        for part in range(plan.parts):
            start = plan.start_of(step, part)
            cut += stream.take(order, samples, start, batch)
    assert cut == written_out(seed, plan)[: len(cut)]
    assert len(cut) == plan.steps * plan.step_samples


@given(sizes, small, small, small)
def test_every_sample_is_seen_once_an_epoch(samples, epochs, parts, batch):
    plan = plan_of(samples, epochs, parts, batch)
    seen = stream.take(order_of(1, samples), samples, 0, samples * epochs)
    assert set(Counter(seen).values()) == {epochs}
    # The session covers all of them, and would not without its last step.
    assert (plan.steps - 1) * plan.step_samples < samples * epochs
    assert plan.steps * plan.step_samples >= samples * epochs


@given(sizes, small, small, small)
def test_rate_follows_the_first_sample(samples, epochs, parts, batch):
    plan = plan_of(samples, epochs, parts, batch)
    for step in range(plan.steps):
        assert plan.epoch_of(step) == plan.start_of(step, 0) // samples
    assert plan.epoch_of(plan.steps - 1) < epochs


@given(sizes, small, small, small)
def test_an_epoch_is_complete_when_all_its_samples_were_taken(
    samples, epochs, parts, batch
):
    plan = plan_of(samples, epochs, parts, batch)
    for applied in range(plan.steps + 1):
        taken = applied * plan.step_samples
        assert plan.complete(applied) == min(epochs, math.floor(taken / samples))
    for epoch in range(epochs):
        end = plan.epoch_end(epoch)
        assert plan.complete(end) > epoch
        assert plan.complete(end - 1) <= epoch


@given(sizes, small, small, small)
def test_each_step_counts_for_the_epoch_it_begins_in(samples, epochs, parts, batch):
    plan = plan_of(samples, epochs, parts, batch)
    for epoch in range(epochs):
        begun = [s for s in range(plan.steps) if plan.epoch_of(s) == epoch]
        counted = list(plan.steps_of(epoch))
        assert counted == (begun or [plan.epoch_end(epoch) - 1])


def test_an_epoch_smaller_than_a_step_spans_several_permutations():
    plan = Schedule(samples=3, epochs=4, step_samples=8, batch=4)
    assert plan.steps == 2
    assert [plan.complete(n) for n in range(3)] == [0, 2, 4]
    first = stream.take(order_of(5, 3), 3, 0, 8)
    assert sorted(first[:3]) == sorted(first[3:6]) == [0, 1, 2]


@given(st.lists(st.integers(0, 5), min_size=1, max_size=7))
def test_shares_tile_the_parts(shares):
    parts = [m for rank in range(len(shares)) for m in stream.parts_of(shares, rank)]
    assert parts == list(range(sum(shares)))


def test_seeds_differ_and_fit_a_generator():
    seeds = {
        stream.part_seed(seed, step, part)
        for seed in range(4)
        for step in range(12)
        for part in range(12)
    }
    assert len(seeds) == 4 * 12 * 12
    assert all(0 <= s < 2**63 for s in seeds)


def test_orders_differ_by_seed_and_epoch():
    orders = {tuple(stream.permutation(s, e, 20)) for s in range(5) for e in range(5)}
    assert len(orders) == 25


@pytest.mark.parametrize("place", range(4))
def test_orders_are_not_skewed(place):
    """Each sample comes to each place about equally often (chi-squared, 5 degrees)."""
    counts = Counter(stream.permutation(7, e, 6)[place] for e in range(1200))
    spread = sum((counts[i] - 200) ** 2 / 200 for i in range(6))
    assert spread < 25.7  # p = 1e-4; the draw is fixed, so this cannot flake


def test_the_definition_is_frozen():
    """These values are part of the format: all nodes of all versions share them."""
    assert stream.permutation(0, 0, 8) == FROZEN_ORDER
    assert stream.part_seed(0, 0, 0) == FROZEN_SEED


FROZEN_ORDER = [2, 5, 0, 1, 4, 6, 7, 3]
FROZEN_SEED = 8472550745902671330
