"""What one node makes of what it hears."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from p2ptrain.core.membership.beliefs import Beliefs
from p2ptrain.core.membership.probes import Health
from p2ptrain.core.membership.table import as_status
from p2ptrain.core.membership.types import (
    INCARNATION_MAX,
    PAGE_MAX,
    Changed,
    Effect,
    MembershipConfig,
    SendTo,
)
from p2ptrain.members import Member, MemberStatus
from p2ptrain.messages.membership import MemberSync, Rumor

ALIVE, SUSPECT, DEAD, LEFT = MemberStatus
Make = Callable[..., Member]


@pytest.fixture
def effects() -> list[Effect]:
    return []


@pytest.fixture
def beliefs(make_record: Make, effects: list[Effect]) -> Beliefs:
    return Beliefs(make_record(1, 5), MembershipConfig(), Health(8), effects)


def page(sender: Member, *members: Member) -> MemberSync:
    return MemberSync(sender, "", members, ask=False)


def test_a_change_is_told_once(
    beliefs: Beliefs, effects: list[Effect], make_record: Make
) -> None:
    for _ in range(3):
        beliefs.met(0.0, make_record(2))
    assert effects == [Changed(make_record(2))]
    assert len(beliefs.rumors) == 1


@pytest.mark.parametrize("believed", [ALIVE, SUSPECT])
def test_a_death_on_a_page_only_makes_a_suspect(
    beliefs: Beliefs, make_record: Make, believed: Any
) -> None:
    beliefs.met(0.0, make_record(2))
    beliefs.met(0.0, make_record(4))
    beliefs.hear(0.0, beliefs.claimed(as_status(make_record(2), believed)))
    beliefs.hear_page(0.0, page(make_record(3), as_status(make_record(2), DEAD)))
    known = beliefs.table.get(make_record(2).node)
    assert known is not None
    assert known.status is SUSPECT


def test_a_leave_on_a_page_is_believed(beliefs: Beliefs, make_record: Make) -> None:
    beliefs.met(0.0, make_record(2))
    beliefs.hear_page(0.0, page(make_record(3), as_status(make_record(2), LEFT)))
    assert beliefs.table.present() == []


def test_the_receiver_hears_first_what_is_believed_of_it(
    beliefs: Beliefs, make_record: Make
) -> None:
    for index in range(2, 20):
        beliefs.met(0.0, make_record(index))
    beliefs.suspect(0.0, make_record(7).node)
    news = beliefs.news_for(make_record(7).node)
    assert news[0].member == as_status(make_record(7), SUSPECT)
    assert len(news) == 12


def test_the_receiver_hears_that_its_record_is_stale(
    beliefs: Beliefs, make_record: Make
) -> None:
    beliefs.met(0.0, make_record(2, 9))
    news = beliefs.news_for(make_record(2).node, make_record(2, 3))
    assert news[0].member == make_record(2, 9)
    beliefs.rumors.drop(make_record(2).node)
    assert beliefs.news_for(make_record(2).node, make_record(2, 9)) == ()


def test_another_record_under_its_own_incarnation_is_refuted(
    beliefs: Beliefs, make_record: Make
) -> None:
    beliefs.hear(0.0, Rumor(make_record(1, 5), make_record(2).node))
    assert beliefs.me.incarnation == 5
    moved = replace(make_record(1, 5), control="10.0.0.99:1")
    beliefs.hear(0.0, Rumor(moved, make_record(2).node))
    assert beliefs.me.incarnation == 6


def test_an_incarnation_at_the_bound_cannot_be_raised(
    beliefs: Beliefs, make_record: Make
) -> None:
    last = as_status(make_record(1, INCARNATION_MAX), DEAD)
    beliefs.hear(0.0, Rumor(last, make_record(2).node))
    assert beliefs.me.incarnation == 5


def test_after_leaving_nothing_is_refuted(
    beliefs: Beliefs, effects: list[Effect], make_record: Make
) -> None:
    beliefs.leave()
    assert beliefs.gone
    assert effects == [Changed(beliefs.me)]
    beliefs.hear(0.0, Rumor(as_status(make_record(1, 9), DEAD), make_record(2).node))
    assert beliefs.me == as_status(make_record(1, 5), LEFT)


def test_only_who_is_present_can_be_suspected(
    beliefs: Beliefs, effects: list[Effect], make_record: Make
) -> None:
    beliefs.suspect(0.0, make_record(2).node)
    beliefs.met(0.0, make_record(2))
    beliefs.hear(0.0, beliefs.claimed(as_status(make_record(2), DEAD)))
    effects.clear()
    beliefs.suspect(0.0, make_record(2).node)
    assert effects == []


def test_pages_cover_the_table_and_only_the_last_one_asks(
    beliefs: Beliefs, effects: list[Effect], make_record: Make
) -> None:
    count = 2 * PAGE_MAX + 3
    for index in range(2, 2 + count):
        beliefs.met(0.0, make_record(index))
    effects.clear()
    beliefs.sync("x:1", "", ask=True)
    pages = [
        one.message
        for one in effects
        if isinstance(one, SendTo) and isinstance(one.message, MemberSync)
    ]
    assert [len(one.members) for one in pages] == [PAGE_MAX, PAGE_MAX, 3]
    assert [one.ask for one in pages] == [False, False, True]
    assert {one.node for one in sum((p.members for p in pages), ())} == {
        make_record(index).node for index in range(2, 2 + count)
    }


def test_time_buries_suspects_and_then_forgets_them(
    beliefs: Beliefs, effects: list[Effect], make_record: Make
) -> None:
    beliefs.met(0.0, make_record(2))
    beliefs.suspect(0.0, make_record(2).node)
    beliefs.age(0.1)
    assert beliefs.table.present()
    beliefs.age(5.0)
    dead = as_status(make_record(2), DEAD)
    assert effects[-1] == Changed(dead)
    assert beliefs.seeds.deadline == 5.5  # its address is tried again
    beliefs.age(5.0 + 600.0)
    assert list(beliefs.table) == []
    assert effects[-1] == Changed(dead)
    assert not any(r.member == dead for r in beliefs.rumors.take(12, 3))
