"""Cuts, one-way cuts, loss and slow links between hosts of their own."""

import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import trio

from p2ptrain.api import AsyncSession, submit_async
from p2ptrain.client import connect
from p2ptrain.engine.package import Package
from p2ptrain.messages.gate import Info, InfoRequest
from p2ptrain.messages.record import SessionStatus
from p2ptrain.security.authority import create_authority, new_key
from p2ptrain.security.identity import save_identity
from tests.chaos.judge import Judge
from tests.chaos.netns import Lan, lan, why_not
from tests.integration import timeline
from tests.integration.daemons import Cluster, Daemon, view_of, wait_until

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.timeout(240)]
PORT = 7700


class LanCluster(Cluster):
    """Daemons on hosts of their own, with certificates."""

    def __init__(self, folder: Path, net: Lan) -> None:
        super().__init__(folder, net.count, {"trace": True})
        authority = create_authority("lan")
        for index, daemon in enumerate(self.daemons):
            daemon.home.mkdir(parents=True)
            key = new_key()
            cert = authority.sign(key.public_key(), ())
            save_identity(daemon.home, key, cert, authority.cert)
            daemon.prefix = net.inside(index)
            daemon.settings = daemon.settings | {
                "host": net.address(index),
                "port": PORT,
                "plain": False,
                "seeds": [f"{net.address(0)}:{PORT}"] if index else [],
            }


@pytest.fixture(scope="module")
def possible() -> None:
    reason = why_not()
    if reason:
        pytest.skip(reason)


@pytest.fixture
async def world(possible: None, tmp_path: Path) -> AsyncIterator[tuple[Lan, Cluster]]:
    with lan(3) as net:
        cluster = LanCluster(tmp_path / "cluster", net)
        try:
            await cluster.begin()
            await all_vote(cluster)
            yield net, cluster
        finally:
            net.heal()
            cluster.stop()


async def all_vote(cluster: Cluster) -> None:
    async def enough() -> bool:
        view = await view_of(cluster.daemons[1])
        return view is not None and len(view.voters) == 3

    await wait_until(enough)


def homes(cluster: Cluster) -> list[Path]:
    return [daemon.home for daemon in cluster.daemons]


async def step_past(session: AsyncSession, step: int) -> None:
    with trio.fail_after(60):
        async for live in session.watch():
            if live.step >= step:
                return


async def begun(cluster: Cluster, package: Package, at: int) -> AsyncSession:
    socket = cluster.daemons[at].socket
    session = await submit_async(package, socket=socket)
    await step_past(session, 20)
    return session


async def master(at: Daemon) -> str:
    view = await view_of(at)
    return view.master if view else ""


@pytest.mark.parametrize("index", [2, 0], ids=["a worker", "the master"])
async def test_a_node_that_is_cut_off_pauses_and_comes_back_by_itself(
    world: tuple[Lan, Cluster], endless: Package, index: int
) -> None:
    net, cluster = world
    lonely, other = cluster.daemons[index], cluster.daemons[1]
    session = await begun(cluster, endless, 1)
    here = AsyncSession(session.id, lonely.socket)
    old = await master(other)
    cut = time.time()
    net.isolate(index)

    async def paused() -> bool:
        return (await here.status()).status is SessionStatus.PAUSED

    await wait_until(paused, 20)
    assert "1 of 3 voters" in (await here.status()).reason
    await trio.sleep(2)
    seen = timeline.read(homes(cluster), session.id)
    stall = seen.stall(cut + 0.3)  # what was on its way is no proof
    assert stall < 6.0
    new = await master(other)
    assert new
    assert (new == old) == (index != 0)
    term = await term_of(other)
    net.heal()
    healed = time.time()

    def back() -> bool:
        times = timeline.read(homes(cluster), session.id)
        return times.first_of(lonely.name, healed) < float("inf")

    await wait_until(back, 30)
    took = timeline.read(homes(cluster), session.id).first_of(lonely.name, healed)
    assert took - healed < 15.0
    assert await term_of(other) == term  # it disturbed nobody
    await session.stop()
    with trio.fail_after(30):
        await session.wait()
    assert await Judge(cluster, "").audited(session, other) is False


async def term_of(daemon: Daemon) -> int:
    async with connect(daemon.socket) as gate:
        return (await gate.ask(InfoRequest(), Info)).term


@pytest.mark.parametrize(("source", "target"), [(0, 2), (2, 1)], ids=lambda i: f"n{i}")
async def test_a_one_way_cut_is_survived(
    world: tuple[Lan, Cluster],
    long_package: Package,
    long_truth: str,
    source: int,
    target: int,
) -> None:
    net, cluster = world
    session = await begun(cluster, long_package, 1)
    net.cut_one_way(source, target)
    await trio.sleep(6)
    net.heal()
    await Judge(cluster, long_truth).finished(session, cluster.daemons[1])


async def test_loss_makes_it_slow_never_wrong(
    world: tuple[Lan, Cluster], package: Package, truth: str
) -> None:
    net, cluster = world
    net.lose(2, 10)
    session = await submit_async(package, socket=cluster.daemons[1].socket)
    await Judge(cluster, truth).finished(session, cluster.daemons[1])


async def test_without_any_majority_all_stand_still_and_then_go_on(
    world: tuple[Lan, Cluster], long_package: Package, long_truth: str
) -> None:
    net, cluster = world
    session = await begun(cluster, long_package, 1)
    for index in range(3):
        net.isolate(index)
    await trio.sleep(8)
    before = len(timeline.read(homes(cluster), session.id).committed)
    await trio.sleep(2)
    assert len(timeline.read(homes(cluster), session.id).committed) == before
    net.heal()
    await Judge(cluster, long_truth).finished(session, cluster.daemons[1])


async def test_a_slow_link_is_not_a_dead_one(
    world: tuple[Lan, Cluster], package: Package, truth: str
) -> None:
    net, cluster = world
    net.limit(2, 5)
    session = await submit_async(package, socket=cluster.daemons[1].socket)
    await Judge(cluster, truth).finished(session, cluster.daemons[1])
    line = await session.status()
    assert len(line.members) == 3, "the slow node was left out"
