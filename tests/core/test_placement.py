"""Placement: everyone gets a part, shares follow speed, ranks stay where they were."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2ptrain.core.placement import place, share_out
from p2ptrain.ids import NodeId
from p2ptrain.messages.record import Seat

A, B, C, D = (NodeId(letter * 32) for letter in "abcd")

speed = st.floats(0.01, 1e6)


def test_without_measurements_shares_are_equal() -> None:
    assert place(6, [A, B, C], (), {}) == (Seat(A, 2), Seat(B, 2), Seat(C, 2))


def test_what_is_left_over_goes_to_the_first_ranks() -> None:
    assert place(8, [C, A, B], (), {}) == (Seat(A, 3), Seat(B, 3), Seat(C, 2))


def test_shares_follow_speeds() -> None:
    seats = place(12, [A, B], (), {A: 10.0, B: 30.0})
    assert seats == (Seat(A, 4), Seat(B, 8))  # one each, then ten in the ratio 1 to 3


def test_an_unmeasured_node_counts_as_the_average() -> None:
    seats = place(9, [A, B, C], (), {A: 10.0, B: 30.0})
    assert [seat.share for seat in seats] == [2, 4, 3]


def test_a_speed_of_zero_is_no_measurement() -> None:
    assert place(4, [A, B], (), {A: 0.0, B: 5.0}) == (Seat(A, 2), Seat(B, 2))


def test_a_very_slow_node_still_has_a_part() -> None:
    seats = place(10, [A, B], (), {A: 1e-9, B: 1e9})
    assert [seat.share for seat in seats] == [1, 9]


def test_ranks_stay_in_order_and_newcomers_go_last() -> None:
    before = (Seat(C, 1), Seat(B, 1), Seat(D, 1))
    seats = place(6, [A, C, D], before, {})
    assert [seat.node for seat in seats] == [C, D, A]


def test_no_more_ranks_than_parts_and_old_ranks_first() -> None:
    seats = place(2, [A, B, C], (Seat(C, 1),), {})
    assert [seat.node for seat in seats] == [C, A]


def test_one_part_means_one_rank() -> None:
    assert place(1, [B, A], (), {}) == (Seat(A, 1),)


@given(st.lists(speed, min_size=1, max_size=40), st.integers(0, 10_000))
def test_shares_are_whole_and_near_the_exact_ones(
    weights: list[float], spare: int
) -> None:
    parts = len(weights) + spare
    shares = share_out(parts, weights)
    total = sum(Fraction(weight) for weight in weights)
    assert sum(shares) == parts
    for share, weight in zip(shares, weights, strict=True):
        exact = 1 + Fraction(spare) * Fraction(weight) / total
        assert share >= 1
        assert abs(share - exact) < Fraction(1001, 1000)


@given(
    st.permutations([A, B, C, D]), st.dictionaries(st.sampled_from([A, B, C, D]), speed)
)
def test_seats_do_not_depend_on_the_order_of_what_is_known(
    ready: list[NodeId], speeds: dict[NodeId, float]
) -> None:
    before = (Seat(D, 1), Seat(B, 2))
    mixed = dict(sorted(speeds.items(), reverse=True))
    assert place(9, ready, before, speeds) == place(9, [A, B, C, D], before, mixed)


@pytest.mark.parametrize("left", [1, 2])
def test_whoever_is_left_takes_over_all_parts(left: int) -> None:
    nodes = [NodeId(letter * 32) for letter in "abc"]
    before = tuple(Seat(node, 2) for node in nodes)
    seats = place(6, nodes[:left], before, {})
    assert [seat.node for seat in seats] == nodes[:left]
    assert sum(seat.share for seat in seats) == 6
