"""How often news is told."""

from collections.abc import Callable

from p2ptrain.core.membership.rumors import Rumors
from p2ptrain.ids import NodeId
from p2ptrain.members import Member
from p2ptrain.messages.membership import Rumor

BY = NodeId("f" * 32)
Make = Callable[..., Member]


def test_news_is_told_a_bounded_number_of_times(make_record: Make) -> None:
    rumors = Rumors(4)
    rumors.add(Rumor(make_record(2), BY))
    told = 0
    while rumors:
        told += len(rumors.take(12, 7))
    assert told == 4 * 3  # 4 * log2(7 + 1)
    assert rumors.take(12, 7) == ()


def test_the_least_told_comes_first(make_record: Make) -> None:
    rumors = Rumors(4)
    for index in range(5):
        rumors.add(Rumor(make_record(index), BY))
    first, second = rumors.take(3, 100), rumors.take(2, 100)
    assert {one.member.node for one in (*first, *second)} == {
        make_record(index).node for index in range(5)
    }


def test_newer_news_of_a_member_replaces_older(make_record: Make) -> None:
    rumors = Rumors(4)
    rumors.add(Rumor(make_record(2, 1), BY))
    rumors.add(Rumor(make_record(2, 2), BY))
    assert len(rumors) == 1
    assert rumors.take(12, 3)[0].member == make_record(2, 2)
    rumors.drop(make_record(2).node)
    assert len(rumors) == 0
