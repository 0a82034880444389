"""Bounds of what others may send, and the size of what we send."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2ptrain import codec
from p2ptrain.core.membership.types import (
    ADDRESS_BYTES_MAX,
    INCARNATION_MAX,
    NAME_BYTES_MAX,
    PAGE_MAX,
    RUMORS_MAX,
    VERSION_BYTES_MAX,
    check_member,
    check_message,
)
from p2ptrain.errors import PeerError
from p2ptrain.ids import NodeId
from p2ptrain.members import Capabilities, Member, MemberStatus
from p2ptrain.messages.membership import (
    Gossip,
    Hello,
    MembershipMessage,
    MemberSync,
    Probe,
    ProbeAck,
    Rumor,
)

Make = Callable[..., Member]
BIGGEST = Member(
    NodeId("f" * 32),
    "é" * (NAME_BYTES_MAX // 2),
    INCARNATION_MAX,
    MemberStatus.SUSPECT,
    "x" * ADDRESS_BYTES_MAX,
    "x" * ADDRESS_BYTES_MAX,
    Capabilities("v" * VERSION_BYTES_MAX, 2**62, 2**62, trains=True, witness=True),
)
RUMORS = (Rumor(BIGGEST, BIGGEST.node),) * RUMORS_MAX


@pytest.mark.parametrize(
    "message",
    [
        Probe(BIGGEST, 2**62, BIGGEST.node, RUMORS),
        ProbeAck(2**62, BIGGEST.node, RUMORS),
        Gossip(RUMORS),
        MemberSync(BIGGEST, "x" * ADDRESS_BYTES_MAX, (BIGGEST,) * PAGE_MAX, ask=True),
    ],
)
def test_the_largest_message_is_small(message: MembershipMessage) -> None:
    check_message(BIGGEST.node, message)
    assert len(codec.pack(message)) < 8 * 1024


@pytest.mark.parametrize(
    "change",
    [
        {"node": "no id"},
        {"name": "x" * (NAME_BYTES_MAX + 1)},
        {"name": "é" * NAME_BYTES_MAX},
        {"name": "a\nb"},
        {"control": "x" * (ADDRESS_BYTES_MAX + 1)},
        {"bulk": "\x1b[2J"},
        {"incarnation": -1},
        {"incarnation": INCARNATION_MAX + 1},
        {"capabilities": Capabilities("v" * 33, 1, 1, trains=True)},
    ],
)
def test_a_record_over_its_bounds_is_refused(
    make_record: Make, change: dict[str, object]
) -> None:
    check_member(make_record(2))
    with pytest.raises(PeerError):
        check_member(replace(make_record(2), **change))  # type: ignore[arg-type]


def test_bounds_hold_inside_messages(make_record: Make) -> None:
    me, bad = make_record(2), replace(make_record(3), name="x" * 65)
    for message in (
        Gossip((Rumor(bad, me.node),)),
        Gossip((Rumor(me, NodeId("nobody")),)),
        Gossip((Rumor(me, me.node),) * (RUMORS_MAX + 1)),
        MemberSync(me, "", (bad,), ask=False),
        MemberSync(me, "", (me,) * (PAGE_MAX + 1), ask=False),
        MemberSync(me, "x" * 129, (), ask=False),
        Hello(me, "\n"),
        Hello(bad, ""),
    ):
        with pytest.raises(PeerError):
            check_message(me.node, message)


@given(st.text())
def test_any_text_is_a_name_or_an_error(text: str) -> None:
    member = replace(BIGGEST, name=text)
    try:
        check_member(member)
    except PeerError:
        return
    assert len(text.encode()) <= NAME_BYTES_MAX
