"""Ledgers in one process that hand each other their mail."""

import random
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field

import pytest
import trio

from p2ptrain.actors.ledger import LedgerActor, LedgerPorts
from p2ptrain.core.consensus import ConsensusConfig
from p2ptrain.errors import NoMasterError
from p2ptrain.ids import ClusterId, NodeId, session_of
from p2ptrain.members import Capabilities, Member, MemberStatus
from p2ptrain.messages.consensus import RecordChange, RecordState
from p2ptrain.messages.record import AddSession, BlobRef, SessionStatus, SetStatus
from p2ptrain.runtime.inbox import Mail
from tests.integration.daemons import wait_until
from tests.sim.rafts import EMPTY, saved_after

CLUSTER = ClusterId("c" * 32)
BLOB = BlobRef("d" * 64, 1, "spec")


def submission(key: str) -> AddSession:
    return AddSession(session_of(key), key, key, BLOB, (), NodeId("a" * 32), 0.0)


@dataclass
class Disk:
    """A record in memory; a save takes a moment, and is noted."""

    state: RecordState = EMPTY
    saves: int = 0

    async def load(self) -> RecordState:
        return self.state

    async def save(self, change: RecordChange) -> None:
        await trio.sleep(0.001)
        self.state = saved_after(self.state, change)
        self.saves += 1


class Office:
    """A post that delivers at once, and checks that what it says was saved."""

    def __init__(self, town: "Town", me: NodeId) -> None:
        self.town, self.me = town, me

    def send(self, to: NodeId, message: object) -> None:
        term = getattr(message, "term", 0)
        pre = getattr(message, "pre", False)
        if not pre:
            assert term <= self.town.disks[self.me].state.term, (
                "sent before it is saved"
            )
        if not {self.me, to} & self.town.away and to in self.town.actors:
            self.town.actors[to].inbox.ref.offer(Mail(self.me, message))

    async def ask(self, *_: object) -> object:
        raise AssertionError


@dataclass
class Town:
    count: int
    disks: dict[NodeId, Disk] = field(default_factory=dict)
    actors: dict[NodeId, LedgerActor] = field(default_factory=dict)
    away: set[NodeId] = field(default_factory=set)

    @property
    def nodes(self) -> list[NodeId]:
        return [NodeId(f"{index:032x}") for index in range(self.count)]

    def members(self) -> tuple[Member, ...]:
        can = Capabilities("0", 1, 1, trains=True)
        return tuple(
            Member(node, node[-2:], 1, MemberStatus.ALIVE, "x", "y", can)
            for node in self.nodes
            if node not in self.away
        )

    async def changed(self, _seen: int) -> int:
        await trio.sleep_forever()
        raise AssertionError

    def running(self) -> AbstractAsyncContextManager[list[LedgerActor]]:
        return self._running()

    @asynccontextmanager
    async def _running(self):  # type: ignore[no-untyped-def]
        async with trio.open_nursery() as nursery:
            for index, node in enumerate(self.nodes):
                disk = self.disks.setdefault(node, Disk())
                ports = LedgerPorts(disk, Office(self, node), self)
                rng = random.Random(index)
                actor = LedgerActor(ports, disk.state, ConsensusConfig(), rng)
                self.actors[node] = actor
                nursery.start_soon(actor.run)
            self.actors[self.nodes[0]].found(CLUSTER)
            yield list(self.actors.values())
            nursery.cancel_scope.cancel()


async def until(holds: Callable[[], bool]) -> None:
    await wait_until(holds, seconds=60)


async def test_a_founder_alone_commits(autojump_clock: trio.testing.MockClock) -> None:
    async with Town(1).running() as (actor,):
        await until(lambda: actor.master is not None)
        assert await actor.propose(submission("a")) == ""
        assert session_of("a") in actor.registry.sessions
        stop = SetStatus(session_of("zz"), 9, SessionStatus.STOPPED, "", 0)
        assert "is on record" in await actor.propose(stop)
        assert actor.cluster == CLUSTER


async def test_three_follow_one_master(autojump_clock: trio.testing.MockClock) -> None:
    town = Town(3)
    async with town.running() as actors:
        first, second, third = actors
        await until(lambda: third.master == town.nodes[0])
        await until(lambda: len(second.voters) == 3)
        assert await first.propose(submission("a")) == ""
        for actor in actors:
            await until(lambda a=actor: session_of("a") in a.registry.sessions)
        with pytest.raises(NoMasterError, match="is not the master"):
            await second.propose(submission("b"))


async def test_another_takes_over_and_nothing_is_lost(
    autojump_clock: trio.testing.MockClock,
) -> None:
    town = Town(3)
    async with town.running() as actors:
        first, second, third = actors
        await until(lambda: len(second.voters) == 3)
        await first.propose(submission("a"))
        town.away = {town.nodes[0]}
        rest = {town.nodes[1], town.nodes[2]}
        await until(lambda: second.master in rest)
        await until(lambda: third.master in rest)
        master = next(a for n, a in town.actors.items() if n == second.master)
        assert await master.propose(submission("b")) == ""
        with pytest.raises(NoMasterError):
            await first.propose(submission("c"))
        town.away = set()
        await until(lambda: session_of("b") in first.registry.sessions)
        assert session_of("c") not in first.registry.sessions


async def test_a_restart_keeps_what_was_saved(
    autojump_clock: trio.testing.MockClock,
) -> None:
    town = Town(1)
    async with town.running() as (actor,):
        await until(lambda: actor.master is not None)
        await actor.propose(submission("a"))
    again = Town(1, disks=town.disks)
    async with again.running() as (actor,):
        await until(lambda: session_of("a") in actor.registry.sessions)
        assert actor.cluster == CLUSTER


async def test_a_leader_that_leaves_is_replaced_first(
    autojump_clock: trio.testing.MockClock,
) -> None:
    town = Town(3)
    async with town.running() as actors:
        first, second, _ = actors
        await until(lambda: len(second.voters) == 3)
        await first.hand_over()
        await until(lambda: second.master in town.nodes[1:])
