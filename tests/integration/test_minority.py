"""A node without a majority says so, trains nothing, and comes back by itself."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import trio

from p2ptrain.api import AsyncSession, submit_async
from p2ptrain.messages.record import SessionStatus
from p2ptrain.spec.train import Reduce
from tests.integration import jobs, timeline
from tests.integration.daemons import Cluster, view_of, wait_until

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.timeout(180)]


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    made = Cluster(tmp_path / "cluster", 3, {"trace": True})
    await made.begin()
    yield made
    made.stop()


async def test_a_minority_stands_still_and_says_why(
    cluster: Cluster, tmp_path: Path
) -> None:
    lonely = cluster.daemons[2]

    async def all_vote() -> bool:
        view = await view_of(lonely)
        return view is not None and len(view.voters) == 3

    await wait_until(all_vote)
    package = jobs.make(tmp_path / "job", steps=3000, reduce=Reduce.EXACT)
    session = await submit_async(package, socket=lonely.socket)
    with trio.fail_after(60):
        async for live in session.watch():
            if live.step > 50:
                break
    for daemon in cluster.daemons[:2]:
        daemon.freeze()
    here = AsyncSession(session.id, lonely.socket)

    async def paused() -> bool:
        return (await here.status()).status is SessionStatus.PAUSED

    await wait_until(paused, 20)
    line = await here.status()
    assert "no master in reach: 1 of 3 voters are on this side" in line.reason
    homes = [daemon.home for daemon in cluster.daemons]
    before = len(timeline.read(homes, session.id).committed)
    await trio.sleep(2)
    assert len(timeline.read(homes, session.id).committed) == before
    for daemon in cluster.daemons[:2]:
        daemon.resume()

    async def goes_on() -> bool:
        seen = timeline.read(homes, session.id)
        return len(seen.committed) > before + 50

    await wait_until(goes_on, 30)
    line = await here.status()
    assert line.status is SessionStatus.RUNNING
    await here.stop()
