"""Two machines that train and a witness without torch: either may die."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import trio

from p2ptrain.api import submit_async
from p2ptrain.messages.record import SessionStatus
from p2ptrain.spec.train import Reduce
from tests.integration import jobs
from tests.integration.daemons import Cluster, view_of, wait_until

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.timeout(180)]


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    made = Cluster(tmp_path / "cluster", 3)
    poison = tmp_path / "poison" / "torch"
    poison.mkdir(parents=True)
    (poison / "__init__.py").write_text("raise ImportError('there is no torch here')")
    witness = made.daemons[2]
    witness.settings = witness.settings | {"witness": True}
    witness.environment = {"PYTHONPATH": str(poison.parent)}
    await made.begin()
    yield made
    made.stop()


@pytest.mark.parametrize("victim", [0, 1], ids=["the master", "the worker"])
async def test_either_of_two_may_die_where_a_third_votes(
    cluster: Cluster, tmp_path: Path, victim: int
) -> None:
    witness = cluster.daemons[2]

    async def all_vote() -> bool:
        view = await view_of(witness)
        return view is not None and len(view.voters) == 3

    await wait_until(all_vote)
    view = await view_of(witness)
    assert view is not None
    me = next(m for m in view.members if m.node == view.me)
    assert me.capabilities.witness
    assert not me.capabilities.trains
    package = jobs.make(tmp_path / "job", steps=400, reduce=Reduce.EXACT)
    session = await submit_async(package, socket=witness.socket)
    with trio.fail_after(60):
        async for live in session.watch():
            if live.step > 50:
                break
    cluster.daemons[victim].kill()
    with trio.fail_after(60):
        line = await session.wait()
    assert line.status is SessionStatus.DONE, line.reason
    assert view.me not in line.members
    assert line.view >= 2
    assert not witness.trainers
