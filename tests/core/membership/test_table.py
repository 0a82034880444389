"""Which claim wins, and how long a suspicion lasts."""

from collections.abc import Callable
from dataclasses import replace
from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2ptrain.core.membership.table import Suspicion, Table, as_status, claim
from p2ptrain.core.membership.types import MembershipConfig
from p2ptrain.ids import NodeId
from p2ptrain.members import Capabilities, Member, MemberStatus
from p2ptrain.messages.membership import Rumor

ALIVE, SUSPECT, DEAD, LEFT = MemberStatus
BY = NodeId("f" * 32)
OTHER = NodeId("e" * 32)
Make = Callable[..., Member]

claims = st.builds(
    lambda incarnation, status: Member(
        NodeId("1" * 32),
        "n",
        incarnation,
        status,
        "a:1",
        "a:2",
        Capabilities("0", 1, 1, trains=True),
    ),
    st.integers(0, 3),
    st.sampled_from(MemberStatus),
)


def merged(first: Member, rest: tuple[Member, ...]) -> Member:
    table = Table(MembershipConfig())
    for member in (first, *rest):
        table.hear(0.0, Rumor(member, BY))
    known = table.get(first.node)
    assert known is not None
    return known


@given(claims, st.lists(claims, min_size=1, max_size=4))
def test_the_order_of_rumors_does_not_matter(first: Member, rest: list[Member]) -> None:
    alive = replace(first, status=ALIVE, incarnation=0)
    results = {claim(merged(alive, order)) for order in permutations((first, *rest))}
    assert results == {max(claim(one) for one in (alive, first, *rest))}


def test_a_restart_beats_a_death(make_record: Make) -> None:
    table = Table(MembershipConfig())
    table.hear(0.0, Rumor(make_record(2, 5), BY))
    assert table.hear(0.0, Rumor(as_status(make_record(2, 5), DEAD), BY))
    assert not table.hear(0.0, Rumor(make_record(2, 5), BY))
    assert table.hear(0.0, Rumor(make_record(2, 6), BY))
    assert table.get(make_record(2).node) == make_record(2, 6)


@pytest.mark.parametrize("status", [DEAD, LEFT])
def test_an_unknown_dead_node_is_no_news(make_record: Make, status: object) -> None:
    table = Table(MembershipConfig())
    assert isinstance(status, MemberStatus)
    assert not table.hear(0.0, Rumor(as_status(make_record(2), status), BY))
    assert list(table) == []


def test_members_are_bounded(make_record: Make) -> None:
    table = Table(MembershipConfig(members_max=10))
    for index in range(50):
        table.hear(0.0, Rumor(make_record(index), BY))
    assert len(list(table)) == 9  # and this node


def test_dead_members_are_dropped_in_the_end(make_record: Make) -> None:
    table = Table(MembershipConfig(dead_keep_s=100.0))
    table.hear(0.0, Rumor(make_record(2), BY))
    table.hear(5.0, Rumor(as_status(make_record(2), DEAD), BY))
    assert table.deadline == 105.0
    assert table.reap(104.9) == []
    assert table.reap(105.0) == [as_status(make_record(2), DEAD)]
    assert list(table) == []


def test_independent_voices_shorten_a_suspicion() -> None:
    suspicion = Suspicion(10.0, 1.0, 5.0, 3, {BY})
    deadlines = [suspicion.deadline]
    for voice in "abc":
        assert suspicion.hear(NodeId(voice * 32))
        deadlines.append(suspicion.deadline)
    assert deadlines[0] == 15.0
    assert deadlines == sorted(deadlines, reverse=True)
    assert len(set(deadlines)) == 4
    assert deadlines[-1] == 11.0


def test_one_voice_counts_once_and_voices_are_bounded() -> None:
    suspicion = Suspicion(0.0, 1.0, 5.0, 2, {BY})
    assert not suspicion.hear(BY)
    for index in range(100):
        suspicion.hear(NodeId(f"{index:032x}"))
    assert len(suspicion.voices) == 3


def test_with_nobody_to_confirm_a_suspicion_is_short(make_record: Make) -> None:
    config = MembershipConfig()
    table = Table(config)
    table.hear(0.0, Rumor(make_record(2), BY))
    table.hear(0.0, Rumor(as_status(make_record(2), SUSPECT), BY))
    assert table.deadline == config.suspicion_min_s
    assert table.overdue(config.suspicion_min_s - 0.01) == []
    assert len(table.overdue(config.suspicion_min_s)) == 1


def test_a_confirmation_is_passed_on_once(make_record: Make) -> None:
    table = Table(MembershipConfig())
    for index in (2, 3, 4, 5):
        table.hear(0.0, Rumor(make_record(index), BY))
    suspect = as_status(make_record(2), SUSPECT)
    assert table.hear(0.0, Rumor(suspect, BY))
    assert not table.hear(0.0, Rumor(suspect, BY))
    before = table.deadline
    assert table.hear(0.0, Rumor(suspect, OTHER))
    assert table.deadline < before


def test_a_pause_of_this_node_is_given_to_the_suspects(make_record: Make) -> None:
    table = Table(MembershipConfig())
    table.hear(0.0, Rumor(make_record(2), BY))
    table.hear(0.0, Rumor(as_status(make_record(2), SUSPECT), BY))
    before = table.deadline
    table.shift(7.0)
    assert table.deadline == before + 7.0


def test_questions_about_members(make_record: Make) -> None:
    table = Table(MembershipConfig())
    for index in (2, 3):
        table.hear(0.0, Rumor(make_record(index), BY))
    table.hear(0.0, Rumor(as_status(make_record(3), SUSPECT), BY))
    assert table.present() == [make_record(2), as_status(make_record(3), SUSPECT)]
    assert table.alive_but(make_record(9).node) == [make_record(2)]
    assert table.alive_but(make_record(2).node) == []
    assert table.alive_at(make_record(2).control)
    assert not table.alive_at(make_record(3).control)
