"""A lost majority: one node's record goes on, old voters change nothing."""

import shutil
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import trio

from p2ptrain.api import AsyncSession, submit_async
from p2ptrain.ids import NodeId
from p2ptrain.spec.train import Reduce
from tests.integration import jobs
from tests.integration.daemons import ROOT, Cluster, Daemon, view_of, wait_until

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.timeout(180)]


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    made = Cluster(tmp_path / "cluster", 3)
    await made.begin()
    yield made
    made.stop()


async def run(daemon: Daemon, *words: str) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "p2ptrain", "cluster", "recover", *words]
    command += ["--config", str(daemon.home / "node.toml")]
    return await trio.run_process(
        command, capture_stdout=True, capture_stderr=True, check=False, cwd=ROOT
    )


async def voters(at: Daemon) -> set[str]:
    view = await view_of(at)
    if view is None:
        return set()
    names = {member.node: member.name for member in view.members}
    return {names[node] for node in view.voters if node in names}


async def node_ids(at: Daemon) -> dict[str, NodeId]:
    view = await view_of(at)
    assert view is not None
    return {member.name: member.node for member in view.members}


async def test_a_session_goes_on_after_a_lost_majority(
    cluster: Cluster, tmp_path: Path
) -> None:
    first, *others = cluster.daemons

    async def all_vote() -> bool:
        return len(await voters(first)) == 3

    await wait_until(all_vote)
    ids = await node_ids(first)
    package = jobs.make(
        tmp_path / "job", steps=100_000, reduce=Reduce.EXACT, checkpoint_every=25
    )
    session = await submit_async(package, socket=first.socket)

    async def saved() -> bool:
        return (await session.status()).checkpoint_step >= 50

    await wait_until(saved, 60)
    savers = (await session.status()).members[:2]  # these ranks keep checkpoints
    others.sort(key=lambda daemon: ids[daemon.name] in savers)
    second, last = others
    refused = await run(last, "--yes")
    assert refused.returncode == 8
    assert b"stop it first" in refused.stderr

    for daemon in cluster.daemons:
        daemon.kill()
    shutil.rmtree(second.home)
    asked = await run(last)
    assert asked.returncode == 2
    assert b"WARNING" in asked.stderr
    assert b"add --yes" in asked.stderr
    done = await run(last, "--yes")
    assert done.returncode == 0, done.stderr
    last.start()

    async def leads() -> bool:
        return await voters(last) == {last.name} and bool((await view_of(last)).master)  # type: ignore[union-attr]

    await wait_until(leads)
    session = AsyncSession(session.id, last.socket)
    kept = (await session.status()).checkpoint_step

    async def moves() -> bool:
        return (await session.live()).step > kept + 50

    await wait_until(moves, 60)

    first.start()  # it thinks that it is a voter, even the founder
    await wait_until(lambda: "two clusters cannot merge" in last.log, 30)
    assert "cluster recover --follow" in last.log
    assert await voters(last) == {last.name}
    view = await view_of(first)
    assert view is not None
    assert not view.master
    first.kill()

    followed = await run(first, "--follow")
    assert followed.returncode == 0, followed.stderr
    assert list(first.home.glob("record.db.before-*"))
    assert "bootstrap" not in (first.home / "node.toml").read_text()
    seeds = [f"127.0.0.1:{last.settings['port']}"]
    first.settings = first.settings | {"bootstrap": False, "seeds": seeds}
    first.start()

    async def follows() -> bool:
        seen, here = await view_of(first), await view_of(last)
        return bool(seen and here and seen.master == here.me)

    await wait_until(follows, 30)
    line = await session.status()
    assert line.step > kept
