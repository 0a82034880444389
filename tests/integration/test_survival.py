"""Machines die in mid-run; training goes on, in exact mode to the very same bits."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import trio

from p2ptrain.api import AsyncSession, submit_async
from p2ptrain.messages.gate import SessionLine
from p2ptrain.messages.record import SessionStatus
from p2ptrain.spec.train import Reduce
from tests.integration import jobs
from tests.integration.daemons import Cluster, Daemon, view_of

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.timeout(240)]
STEPS = 600


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    made = Cluster(tmp_path / "cluster", 3)
    await made.begin()
    await voters(made, 3)
    yield made
    made.stop()


async def voters(cluster: Cluster, count: int) -> None:
    with trio.fail_after(30):
        while True:
            view = await view_of(cluster.daemons[0])
            if view is not None and len(view.voters) == count:
                return
            await trio.sleep(0.1)


async def master_of(cluster: Cluster, at: Daemon) -> Daemon:
    view = await view_of(at)
    assert view is not None
    name = next(m.name for m in view.members if m.node == view.master)
    return next(d for d in cluster.daemons if d.name == name)


async def step_past(session: AsyncSession, step: int) -> None:
    with trio.fail_after(90):
        async for live in session.watch():
            if live.step >= step:
                return


def explain(cluster: Cluster, line: SessionLine) -> str:
    logs = "\n".join(f"{d.name}\n{d.log[-3000:]}" for d in cluster.daemons)
    return f"{line.status}: {line.reason}\n{logs}"


async def finish(cluster: Cluster, session: AsyncSession) -> str:
    with trio.fail_after(120):
        line = await session.wait()
    assert line.status is SessionStatus.DONE, explain(cluster, line)
    assert line.result is not None
    assert {r.digest for r in line.result.reports} == {line.result.state_digest}
    return line.result.state_digest


async def test_deaths_change_no_bit(cluster: Cluster, tmp_path: Path) -> None:
    package = jobs.make(tmp_path / "job", steps=STEPS, reduce=Reduce.EXACT)
    first = cluster.daemons[0]
    undisturbed = await finish(
        cluster, await submit_async(package, socket=first.socket)
    )

    master = await master_of(cluster, first)
    worker = next(d for d in cluster.daemons if d is not master)
    session = await submit_async(package, socket=master.socket)
    await step_past(session, 60)
    worker.kill()
    await step_past(session, 150)
    worker.start()  # it comes back and joins
    assert await finish(cluster, session) == undisturbed
    line = await session.status()
    assert line.view >= 2

    await cluster.meet()
    await voters(cluster, 3)
    other = next(d for d in cluster.daemons if d is not master)
    session = await submit_async(package, socket=other.socket)
    await step_past(session, 60)
    master.kill()
    assert await finish(cluster, session) == undisturbed


async def test_a_lone_node_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    lone = Cluster(tmp_path / "lone", 1)
    await lone.begin()
    try:
        daemon = lone.daemons[0]
        package = jobs.make(
            tmp_path / "job", steps=400, reduce=Reduce.EXACT, checkpoint_every=25
        )
        undisturbed = await finish(
            lone, await submit_async(package, socket=daemon.socket)
        )
        session = await submit_async(package, socket=daemon.socket)
        await step_past(session, 120)
        daemon.kill()
        daemon.start()
        await lone.meet()
        assert await finish(lone, session) == undisturbed
        line = await session.status()
        assert line.view == 2
    finally:
        lone.stop()
