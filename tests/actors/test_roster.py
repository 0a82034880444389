"""Roster actors that hand each other their mail, under a mock clock."""

import random

import pytest
import trio

from p2ptrain.actors.roster import Neighbourhood, RosterActor
from p2ptrain.core.membership import MembershipConfig
from p2ptrain.ids import NodeId
from p2ptrain.members import Capabilities, Member, MemberStatus
from p2ptrain.runtime.inbox import Mail

Statuses = dict[str, MemberStatus]


def member(index: int) -> Member:
    return Member(
        node=NodeId(f"{index:032x}"),
        name=f"n{index}",
        incarnation=1,
        status=MemberStatus.ALIVE,
        control=f"host-{index}:1",
        bulk=f"host-{index}:2",
        capabilities=Capabilities("0", cores=2, memory_bytes=1, trains=True),
    )


class Lan:
    """Actors by address; an address in ``down`` neither sends nor receives."""

    def __init__(self) -> None:
        self.actors: dict[str, RosterActor] = {}
        self.down: set[str] = set()

    def add(self, index: int, seeds: tuple[str, ...]) -> RosterActor:
        me = member(index)

        def send(address: str, message: object) -> None:
            if not {me.control, address} & self.down and address in self.actors:
                self.actors[address].inbox.ref.offer(Mail(me.node, message))

        start = Neighbourhood(me, seeds, MembershipConfig())
        actor = RosterActor(start, send, random.Random(index))
        self.actors[me.control] = actor
        return actor


def seen(actor: RosterActor) -> Statuses:
    return {item.name: item.status for item in actor.members()}


async def until(actor: RosterActor, wanted: Statuses) -> None:
    count = -1
    with trio.fail_after(60):
        while seen(actor) != wanted:
            count = await actor.changed(count)


ALIVE, DEAD, LEFT = MemberStatus.ALIVE, MemberStatus.DEAD, MemberStatus.LEFT


@pytest.fixture
def lan() -> Lan:
    return Lan()


async def test_three_find_each_other_by_one_seed(
    lan: Lan, autojump_clock: trio.testing.MockClock
) -> None:
    actors = [lan.add(index, seeds=("host-0:1",)) for index in range(3)]
    async with trio.open_nursery() as nursery:
        for actor in actors:
            nursery.start_soon(actor.run)
        for actor in actors:
            await until(actor, {"n0": ALIVE, "n1": ALIVE, "n2": ALIVE})
        assert actors[0].control_of(member(2).node) == "host-2:1"
        assert actors[0].bulk_of(member(2).node) == "host-2:2"
        assert actors[0].control_of(NodeId("f" * 32)) is None
        nursery.cancel_scope.cancel()


async def test_a_silent_one_is_dead_and_comes_back(
    lan: Lan, autojump_clock: trio.testing.MockClock
) -> None:
    actors = [lan.add(index, seeds=("host-0:1",)) for index in range(3)]
    async with trio.open_nursery() as nursery:
        for actor in actors:
            nursery.start_soon(actor.run)
        await until(actors[0], {"n0": ALIVE, "n1": ALIVE, "n2": ALIVE})
        lan.down.add("host-2:1")
        await until(actors[0], {"n0": ALIVE, "n1": ALIVE, "n2": DEAD})
        await until(actors[1], {"n0": ALIVE, "n1": ALIVE, "n2": DEAD})
        lan.down.clear()
        await until(actors[0], {"n0": ALIVE, "n1": ALIVE, "n2": ALIVE})
        nursery.cancel_scope.cancel()


async def test_one_that_leaves_says_so(
    lan: Lan, autojump_clock: trio.testing.MockClock
) -> None:
    actors = [lan.add(index, seeds=("host-0:1",)) for index in range(2)]
    async with trio.open_nursery() as nursery:
        for actor in actors:
            nursery.start_soon(actor.run)
        await until(actors[0], {"n0": ALIVE, "n1": ALIVE})
        await actors[1].leave()
        await until(actors[0], {"n0": ALIVE, "n1": LEFT})
        nursery.cancel_scope.cancel()
