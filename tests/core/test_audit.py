"""The replay of a record: what it proves, and which step it names when it cannot."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2ptrain.core.audit import (
    Account,
    Contribution,
    Said,
    Stretch,
    contributions,
    replay,
    stretches,
    words_of,
)
from p2ptrain.core.stream import Schedule
from p2ptrain.messages.record import CommitView, Seat

A, B, C = ("a" * 32, "b" * 32, "c" * 32)
PLAN = Schedule(samples=50, epochs=4, step_samples=12, batch=3)  # 17 steps, 4 parts


def view(number, first, *shares, digest="", agreed=()):
    seats = tuple(Seat(n, s) for n, s in zip((A, B, C), shares, strict=False))
    return CommitView("s-1", 1, number, seats, first, digest, agreed)


VIEWS = (view(1, 0, 2, 2), view(2, 5, 4), view(3, 5, 1, 1, 2), view(4, 11, 2, 2))
GOOD = Account(PLAN, PLAN.steps, VIEWS)


def ranges(found):
    return [(s.view, s.first, s.end) for s in found]


def test_a_view_without_steps_counts_nothing():
    verdict = replay(GOOD)
    assert ranges(verdict.stretches) == [(1, 0, 5), (3, 5, 11), (4, 11, 17)]
    assert verdict.clean
    assert (verdict.epochs, verdict.lost, verdict.doubled) == (4, 0, 0)


def test_steps_that_were_taken_back_belong_to_the_later_view():
    back = (*VIEWS, view(5, 3, 4))
    verdict = replay(replace(GOOD, views=back))
    assert ranges(verdict.stretches) == [(1, 0, 3), (5, 3, 17)]
    assert verdict.clean


def test_an_unfinished_session_proves_its_complete_epochs():
    assert replay(replace(GOOD, applied=9)).epochs == 2


@pytest.mark.parametrize(
    ("shares", "lost", "doubled"), [((2, 1), 18, 0), ((3, 2), 0, 18), ((), 72, 0)]
)
def test_a_view_that_does_not_split_a_step_whole(shares, lost, doubled):
    views = (*VIEWS[:2], view(3, 5, *shares), *VIEWS[3:])
    verdict = replay(replace(GOOD, views=views))
    assert (verdict.lost, verdict.doubled) == (lost, doubled)
    assert verdict.findings == [
        f"steps 5 to 10: view 3 counts {sum(shares)} parts of 4"
    ]
    assert verdict.epochs == 2  # samples 60 to 131 are of the second and third


def test_a_record_whose_begin_is_gone_says_so():
    verdict = replay(replace(GOOD, views=VIEWS[2:]))
    assert verdict.findings == ["steps 0 to 4: their views are gone"]
    assert verdict.epochs == 2
    assert "no view is on record" in replay(replace(GOOD, views=())).findings[0]


def test_the_ranks_own_account_must_say_the_same():
    ours = replay(GOOD).stretches
    assert replay(replace(GOOD, ranks=ours)).clean
    other = replace(ours[1], seats=(Seat(A, 4),))
    said = replay(replace(GOOD, ranks=(ours[0], other, ours[2]))).findings
    (sentence,) = said
    assert sentence.startswith("from step 5 on the record and the ranks' own account")
    shifted = (replace(ours[0], end=6), replace(ours[1], first=6), ours[2])
    assert not replay(replace(GOOD, ranks=shifted)).clean
    assert not replay(replace(GOOD, ranks=ours[:2])).clean
    assert replay(replace(GOOD, views=VIEWS[2:], ranks=ours)).findings == [
        "steps 0 to 4: their views are gone"
    ]


def test_digests_of_one_step_must_be_equal():
    words = (Said(5, "x", "node a"), Said(5, "x", "node b"), Said(9, "y", "epoch 2"))
    verdict = replay(replace(GOOD, digests=words))
    assert (verdict.clean, verdict.compared, verdict.mismatches) == (True, 1, 0)
    odd = (*words, Said(5, "z", "a checkpoint"), Said(9, "", "nobody"))
    verdict = replay(replace(GOOD, digests=odd))
    assert (verdict.compared, verdict.mismatches) == (2, 1)
    assert verdict.findings == [
        "after step 5: node a says state x, a checkpoint says z"
    ]


def test_only_views_that_count_bear_witness():
    views = (
        view(1, 0, 4, digest="d0", agreed=(A, B)),
        view(2, 8, 4, digest="dead", agreed=(A,)),
        view(3, 4, 4, digest="d4"),
    )
    assert words_of(views, 17) == [
        Said(0, "d0", "node aaaaaaaa (view 1)"),
        Said(0, "d0", "node bbbbbbbb (view 1)"),
        Said(4, "d4", "a checkpoint (view 3)"),
    ]


def test_contributions_of_a_step():
    assert contributions(GOOD, 6) == (
        Contribution(A, 72, 75),
        Contribution(B, 75, 78),
        Contribution(C, 78, 84),
    )
    assert contributions(GOOD, 17) == ()


@given(st.lists(st.integers(0, 40), max_size=12), st.integers(0, 40))
def test_each_step_belongs_to_the_last_view_that_began_before_it(firsts, applied):
    """Against the naive way: play the views one after the other."""
    owner: list[int] = []
    firsts = [0, *firsts]
    for number in range(len(firsts)):
        first = firsts[number] = min(firsts[number], len(owner))
        end = applied if number == len(firsts) - 1 else min(applied, first + 7)
        owner[first:] = [number] * (end - first)
    found = stretches(((n, f, ()) for n, f in enumerate(firsts)), len(owner))
    played = [s.view for s in found for _ in range(s.first, s.end)]
    assert played == owner
    assert all(isinstance(s, Stretch) for s in found)
