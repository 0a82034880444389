"""Kill cycles, the whole cluster at once, and leaving in good order."""

import random
import signal
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import trio

from p2ptrain.api import AsyncSession, submit_async
from p2ptrain.engine.package import Package
from tests.chaos.judge import Judge
from tests.integration.daemons import Cluster, Daemon, wait_until

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.timeout(240)]
KILLS = 20


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    made = Cluster(tmp_path / "cluster", 3)
    await made.begin()
    yield made
    made.stop()


async def step_past(session: AsyncSession, step: int) -> None:
    with trio.fail_after(60):
        async for live in session.watch():
            if live.step >= step:
                return


async def test_twenty_kills_and_then_all_at_once(
    cluster: Cluster, endless: Package
) -> None:
    """No corrupt blob, no stuck session, nothing counted twice."""
    rng = random.Random(5)
    session = await submit_async(endless, socket=cluster.daemons[0].socket)
    await step_past(session, 5)
    for _ in range(KILLS):
        await trio.sleep(rng.uniform(0.1, 1.5))
        victim = rng.choice(cluster.daemons)
        victim.kill()
        await trio.sleep(rng.uniform(0.0, 0.3))
        victim.start()
    await cluster.meet()

    async def saved() -> bool:
        return (await session.status()).checkpoint_step > 0

    await wait_until(saved, 60)
    for daemon in cluster.daemons:
        daemon.kill()
    for daemon in cluster.daemons:
        daemon.start()
    await cluster.meet()
    resumed = AsyncSession(session.id, cluster.daemons[1].socket)
    kept = (await resumed.status()).checkpoint_step
    assert kept > 0
    await step_past(resumed, kept + 20)
    await resumed.stop()
    with trio.fail_after(30):
        line = await resumed.wait()
    assert line.step > kept
    judge = Judge(cluster, "")
    await judge.audited(resumed, cluster.daemons[0])
    judge.stop_and_look()


async def test_the_whole_cluster_resumes_to_the_same_bits(
    cluster: Cluster, long_package: Package, long_truth: str
) -> None:
    session = await submit_async(long_package, socket=cluster.daemons[0].socket)

    async def saved() -> bool:
        return (await session.status()).checkpoint_step >= 100

    await wait_until(saved, 60)
    for daemon in cluster.daemons:
        daemon.kill()
    for daemon in cluster.daemons:
        daemon.start()
    await cluster.meet()
    at = cluster.daemons[2]
    resumed = AsyncSession(session.id, at.socket)
    judge = Judge(cluster, long_truth)
    await judge.finished(resumed, at)
    judge.stop_and_look()


@pytest.mark.parametrize("index", [0, 2], ids=["the master", "a worker"])
async def test_a_node_that_ends_leaves_at_a_boundary_and_comes_back(
    cluster: Cluster, long_package: Package, long_truth: str, index: int
) -> None:
    other = cluster.daemons[1]
    session = await submit_async(long_package, socket=other.socket)
    await step_past(session, 30)
    leaver = cluster.daemons[index]
    for _ in range(2):
        assert await ended(leaver) < 10.0
        assert "leave" in "".join(daemon.log for daemon in cluster.daemons)
        leaver.start()
        await cluster.meet()
    judge = Judge(cluster, long_truth)
    await judge.finished(session, other)
    logs = "".join(daemon.log for daemon in cluster.daemons)
    assert "ring link" not in logs, "a neighbour's link broke"
    judge.stop_and_look()


async def test_a_lone_node_that_ends_loses_no_step(
    tmp_path: Path, long_package: Package, long_truth: str
) -> None:
    lone = Cluster(tmp_path / "lone", 1)
    await lone.begin()
    daemon = lone.daemons[0]
    try:
        session = await submit_async(long_package, socket=daemon.socket)
        await step_past(session, 30)
        before = (await session.live()).step
        assert await ended(daemon) < 10.0
        daemon.start()
        await lone.meet()
        line = await session.status()
        assert line.checkpoint_step >= before
        await Judge(lone, long_truth).finished(session, daemon)
        line = await session.status()
        assert line.view == 2
    finally:
        lone.stop()


async def ended(daemon: Daemon) -> float:
    """End a daemon as systemd does; return the seconds that it took."""
    assert daemon.process is not None
    began = time.monotonic()
    daemon.process.send_signal(signal.SIGTERM)
    code = await trio.to_thread.run_sync(daemon.process.wait, 20)
    assert code == 0, daemon.log[-2000:]
    return time.monotonic() - began
