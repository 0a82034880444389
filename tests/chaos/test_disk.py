"""Disks that are full, read-only or rotten: one sentence, and the session goes on."""

import os
import shutil
import signal
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest
import trio

from p2ptrain.api import AsyncSession, submit_async
from p2ptrain.engine.package import Package
from p2ptrain.messages.record import SessionStatus
from tests.chaos.judge import Judge
from tests.integration.daemons import Cluster, Daemon, wait_until

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.timeout(180)]
MB = 1 << 20
Mount = Callable[[Daemon, int], Path]


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    made = Cluster(tmp_path / "cluster", 3)
    yield made
    made.stop()


@pytest.fixture
def judge(cluster: Cluster, truth: str) -> Judge:
    return Judge(cluster, truth)


@pytest.fixture
def small_disk() -> Iterator[Mount]:
    """Give a node a file system of so many megabytes."""
    mounted: list[Path] = []

    def mount(daemon: Daemon, size_mb: int) -> Path:
        daemon.home.mkdir(parents=True)
        options = ["-t", "tmpfs", "-o", f"size={size_mb}m", "tmpfs"]
        done = subprocess.run(
            ["mount", *options, str(daemon.home)], capture_output=True, check=False
        )
        if done.returncode:
            pytest.skip("mounting needs the rights of root")
        mounted.append(daemon.home)
        return daemon.home

    yield mount
    for folder in mounted:
        subprocess.run(["umount", "-l", str(folder)], check=True)


async def step_past(session: AsyncSession, step: int) -> None:
    with trio.fail_after(60):
        async for live in session.watch():
            if live.step >= step:
                return


async def reason_of(session: AsyncSession, name: str) -> str:
    live = await session.live()
    return next((w.reason for w in live.workers if w.name == name), "")


async def said(session: AsyncSession, name: str, words: str) -> None:
    async def found() -> bool:
        return words in await reason_of(session, name)

    await wait_until(found)


def fill(folder: Path) -> None:
    """Take all the room that there is."""
    try:
        with (folder / "filler").open("wb", buffering=0) as file:
            while file.write(bytes(MB // 4)):
                pass
    except OSError:
        pass


async def test_a_node_without_room_says_so_and_is_left_out(
    cluster: Cluster, judge: Judge, package: Package, small_disk: Mount
) -> None:
    small_disk(cluster.daemons[2], 60)  # less than what is kept for the record
    await cluster.begin()
    session = await submit_async(package, socket=cluster.daemons[0].socket)
    await said(session, "n2", "make room there")
    assert "'n2'" in await reason_of(session, "n2")
    await judge.finished(session, cluster.daemons[0])


@pytest.fixture(params=[0, 2], ids=["of the master", "of a worker"])
def victim(
    request: pytest.FixtureRequest, cluster: Cluster, small_disk: Mount
) -> Daemon:
    """A node with a small disk."""
    daemon = cluster.daemons[request.param]
    small_disk(daemon, 100)
    return daemon


async def test_a_disk_that_fills_up_in_mid_run(
    cluster: Cluster, long_package: Package, long_truth: str, victim: Daemon
) -> None:
    await cluster.begin()
    other = cluster.daemons[1]
    session = await submit_async(long_package, socket=other.socket)
    await step_past(session, 20)
    fill(victim.home)
    await Judge(cluster, long_truth).finished(session, other)
    log = victim.log
    assert "disk is full" in log or "No space left" in log, log[-3000:]
    assert "Traceback" not in log


def flip(path: Path) -> None:
    """Change one byte in the middle of a file."""
    path.chmod(0o600)
    with path.open("r+b") as file:
        file.seek(path.stat().st_size // 2)
        byte = file.read(1)
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte[0] ^ 0x10]))


def blobs_by_age(home: Path) -> list[Path]:
    return sorted((home / "blobs").glob("*/*"), key=lambda p: p.stat().st_mtime)


async def test_a_rotten_checkpoint_gives_way_to_the_one_before(
    tmp_path: Path, package: Package, truth: str
) -> None:
    lone = Cluster(tmp_path / "lone", 1)
    await lone.begin()
    daemon = lone.daemons[0]
    try:
        session = await submit_async(package, socket=daemon.socket)

        async def kept() -> bool:
            return (await session.status()).checkpoint_step >= 75

        await wait_until(kept)
        daemon.kill()
        newest = (await_status := blobs_by_age(daemon.home))[-1]
        assert len(await_status) > 3
        flip(newest)
        daemon.start()
        await lone.meet()
        await Judge(lone, truth).finished(session, daemon)
        assert not newest.exists() or newest.stat().st_mode & 0o200 == 0
    finally:
        lone.stop()


async def test_rotten_samples_are_fetched_again(
    cluster: Cluster, judge: Judge, endless: Package
) -> None:
    await cluster.begin()
    daemon, other = cluster.daemons[2], cluster.daemons[0]
    session = await submit_async(endless, socket=other.socket)
    await step_past(session, 10)
    daemon.kill()
    rotten = [b for b in blobs_by_age(daemon.home) if b.name in endless.files]
    assert rotten
    for blob in rotten:
        flip(blob)

    async def trains_without() -> bool:
        return len((await session.status()).members) == 2

    async def trains_again() -> bool:
        return len((await session.status()).members) == 3

    await wait_until(trains_without)
    daemon.start()
    await wait_until(trains_again)
    await judge.audited(session, other)
    judge.stop_and_look()


@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGKILL])
async def test_a_trainer_that_dies_is_named_with_its_cause(
    cluster: Cluster, judge: Judge, package: Package, number: signal.Signals
) -> None:
    await cluster.begin()
    daemon = cluster.daemons[2]
    session = await submit_async(package, socket=cluster.daemons[0].socket)
    await step_past(session, 20)
    (trainer,) = daemon.trainers
    os.kill(trainer, number)
    await said(session, "n2", f"was killed by {number.name}")
    await judge.finished(session, cluster.daemons[0])


async def test_a_folder_that_is_gone_is_a_sentence(
    cluster: Cluster, judge: Judge, package: Package
) -> None:
    """Somebody removes a node's work folder: it cannot write, the others can."""
    await cluster.begin()
    session = await submit_async(package, socket=cluster.daemons[1].socket)
    await step_past(session, 20)
    shutil.rmtree(cluster.daemons[0].home / "work")
    await judge.finished(session, cluster.daemons[1])
    line = await session.status()
    assert line.status is SessionStatus.DONE
