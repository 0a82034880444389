"""One job on real daemons: against plain PyTorch, alone and in parallel."""

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
import trio
from safetensors.torch import load_file

from p2ptrain.api import AsyncSession, submit_async
from p2ptrain.engine.package import Package
from p2ptrain.messages.gate import SessionLine
from p2ptrain.messages.record import SessionStatus
from p2ptrain.spec.train import Reduce
from tests.integration import jobs
from tests.integration.daemons import Cluster, view_of

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.timeout(180)]


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path_factory.mktemp("three"), 3)
    cluster.start()
    yield cluster
    cluster.stop()


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path_factory.mktemp("one"), 1)
    cluster.start()
    yield cluster
    cluster.stop()


async def run(cluster: Cluster, package: Package, at: int = 0) -> SessionLine:
    session = await submit_async(package, socket=cluster.daemons[at].socket)
    with trio.fail_after(120):
        return await session.wait()


async def result(
    cluster: Cluster, line: SessionLine, folder: Path
) -> tuple[dict[str, torch.Tensor], dict[str, object]]:
    session = AsyncSession(line.session, cluster.daemons[0].socket)
    weights, manifest = await session.fetch(folder)
    return load_file(weights), json.loads(manifest.read_text())


def check(cluster: Cluster, line: SessionLine) -> None:
    logs = "\n".join(daemon.log[-2000:] for daemon in cluster.daemons)
    assert line.status is SessionStatus.DONE, f"{line.reason}\n{logs}"
    assert line.result is not None
    digests = {report.digest for report in line.result.reports}
    assert digests == {line.result.state_digest}


async def test_three_daemons_train_as_plain_pytorch_does(
    three: Cluster, tmp_path: Path
) -> None:
    package = jobs.make(tmp_path / "job", steps=200, parts=5)
    line = await run(three, package, at=2)
    check(three, line)
    assert line.result is not None
    assert len(line.members) == 3
    weights, manifest = await result(three, line, tmp_path)
    losses, state = await trio.to_thread.run_sync(
        partial(jobs.train_plainly, line.result.step, 5)
    )
    assert line.result.step >= 200
    np.testing.assert_allclose(manifest["losses"], losses, rtol=1e-4)
    for name, value in state.items():
        difference = (weights[name].double() - value.double()).norm()
        assert difference <= 1e-5 * value.double().norm().clamp(min=1e-12), name


async def test_one_rank_has_pytorchs_bits(one: Cluster, tmp_path: Path) -> None:
    package = jobs.make(tmp_path / "job", steps=120, parts=1)
    line = await run(one, package)
    check(one, line)
    assert line.result is not None
    weights, manifest = await result(one, line, tmp_path)
    losses, state = await trio.to_thread.run_sync(
        partial(jobs.train_plainly, line.result.step, 1)
    )
    assert manifest["losses"] == losses
    for name, value in state.items():
        assert torch.equal(weights[name], value), name


async def test_exact_sums_do_not_depend_on_the_cluster(
    three: Cluster, one: Cluster, tmp_path: Path
) -> None:
    package = jobs.make(tmp_path / "job", steps=30, reduce=Reduce.EXACT)
    lines = [await run(three, package), await run(one, package)]
    check(three, lines[0])
    check(one, lines[1])
    digests = {line.result.state_digest for line in lines if line.result}
    assert len(digests) == 1


async def test_two_runs_have_equal_bits(three: Cluster, tmp_path: Path) -> None:
    package = jobs.make(tmp_path / "job", steps=20)
    lines = [await run(three, package) for _ in range(2)]
    assert lines[0].session != lines[1].session
    assert lines[0].members == lines[1].members
    digests = {line.result.state_digest for line in lines if line.result}
    assert len(digests) == 1


async def test_two_jobs_at_once_are_isolated(three: Cluster, tmp_path: Path) -> None:
    packages = [
        jobs.make(tmp_path / "a", steps=30, reduce=Reduce.EXACT),
        jobs.make(tmp_path / "b", steps=30, parts=3, reduce=Reduce.EXACT),
    ]
    apart = [await run(three, package) for package in packages]
    together: list[SessionLine] = []

    async def one(package: Package, at: int) -> None:
        together.append(await run(three, package, at))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(one, packages[0], 0)
        nursery.start_soon(one, packages[1], 1)
    for line in together:
        check(three, line)
    wanted = {line.result.state_digest for line in apart if line.result}
    got = {line.result.state_digest for line in together if line.result}
    assert got == wanted
    assert len(wanted) == 2


async def test_the_same_key_names_the_same_session(
    three: Cluster, tmp_path: Path
) -> None:
    package = jobs.make(tmp_path / "job", steps=5)
    sockets = [daemon.socket for daemon in three.daemons]
    sessions = [
        await submit_async(package, socket=socket, key="once") for socket in sockets
    ]
    assert len({session.id for session in sessions}) == 1
    check(three, await sessions[0].wait())


async def test_data_may_lie_on_the_nodes(tmp_path: Path) -> None:
    roots = tmp_path / "data"
    roots.mkdir()
    paths: dict[str, object] = {}
    for name, array in jobs.arrays(jobs.SAMPLES, seed=1).items():
        np.save(roots / f"{name}.npy", array)
        paths[name] = str(roots / f"{name}.npy")
    cluster = Cluster(tmp_path / "c", 2, extra={"data_roots": [str(roots)]})
    await cluster.begin()
    try:
        package = jobs.make(
            tmp_path / "job", steps=10, data=paths, push_data=False, parts=2
        )
        assert all(ref.uri.startswith("file://") for ref in package.spec.data)
        line = await run(cluster, package)
        check(cluster, line)
    finally:
        cluster.stop()


async def test_data_outside_the_roots_fails_with_node_and_uri(
    one: Cluster, tmp_path: Path
) -> None:
    paths: dict[str, object] = {}
    for name, array in jobs.arrays(jobs.SAMPLES, seed=1).items():
        np.save(tmp_path / f"{name}.npy", array)
        paths[name] = str(tmp_path / f"{name}.npy")
    package = jobs.make(tmp_path / "job", data=paths, push_data=False)
    line = await run(one, package)
    assert line.status is SessionStatus.FAILED
    assert "n0" in line.reason
    assert f"file://{paths['x']}" in line.reason


async def test_a_session_stops_when_told(three: Cluster, tmp_path: Path) -> None:
    package = jobs.make(tmp_path / "job", steps=100_000)
    session = await submit_async(package, socket=three.daemons[1].socket)
    async for live in session.watch():
        if live.step > 20:
            await session.stop()
            break
    with trio.fail_after(60):
        line = await session.wait()
    assert line.status is SessionStatus.STOPPED
    assert line.step > 20


async def test_every_daemon_knows_the_same(three: Cluster) -> None:
    views = [await view_of(daemon) for daemon in three.daemons]
    assert len({view.master for view in views if view}) == 1
    assert all(view and len(view.members) == 3 for view in views)
