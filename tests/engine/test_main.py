"""Trainers as processes: the real thing, killed with SIGKILL and frozen."""

import json
import os
import signal
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest
import trio

from p2ptrain.engine.process import LOG_NAME, ProcessEngine
from p2ptrain.messages.session import RingSeat
from p2ptrain.messages.trainer import (
    Fault,
    Loaded,
    RunFinished,
    RunView,
    StateWritten,
    Steps,
    ViewEnded,
    WriteSnapshot,
)
from p2ptrain.spec.train import Reduce
from tests.engine import trainjobs as jobs
from tests.engine import trainkit as kit

pytestmark = [pytest.mark.processes, pytest.mark.slow]


@dataclass
class Worker:
    """One trainer process, and what it has said."""

    name: str
    node: str
    process: object
    frames: object
    port: int = 0
    losses: list = field(default_factory=list)

    async def until(self, *kinds):
        while True:
            frame = await self.frames.__anext__()
            if isinstance(frame, Steps):
                self.losses += frame.losses
            if isinstance(frame, (*kinds, Fault)):
                return frame


@asynccontextmanager
async def started(tmp_path, spec, world, **changes):
    """Processes that have loaded the session."""
    cluster = kit.Cluster(tmp_path, spec, [], [], {})
    workers = []
    try:
        for rank in range(world):
            name = f"node-{rank}"
            process = await ProcessEngine().launch(tmp_path / name)
            worker = Worker(name, f"{rank:032x}", process, process.frames())
            workers.append(worker)
            await process.send(kit.load_frame(cluster, worker, **changes))
        for worker in workers:
            loaded = await worker.until(Loaded)
            assert isinstance(loaded, Loaded), loaded
            worker.port = loaded.ring_port
        yield workers
    finally:
        for worker in workers:
            await worker.process.aclose()


async def run(workers, view, shares, first_step=0, states=None):
    seats = tuple(
        RingSeat(w.node, share, f"127.0.0.1:{w.port}")
        for w, share in zip(workers, shares, strict=True)
    )
    for rank, worker in enumerate(workers):
        state = (states or {}).get(worker.name, "")
        await worker.process.send(RunView(view, rank, seats, first_step, state))


def exact_spec(tmp_path, samples):
    task = jobs.gpt_task(samples)
    return jobs.spec_of(
        task, tmp_path, global_batch=8, reduce=Reduce.EXACT, checkpoint_every=1
    )


async def test_a_killed_rank_costs_a_view_and_not_a_bit(tmp_path):
    spec = exact_spec(tmp_path, samples=240)
    [whole] = kit.train(tmp_path, spec, [4])
    truth = {file.step: file.state_digest for file in whole.files}
    async with started(tmp_path, spec, 3, stall_s=10.0) as workers:
        *survivors, victim = workers
        await run(workers, 1, [1, 2, 1])
        await victim.until(Steps)
        os.kill(victim.process.pid, signal.SIGKILL)
        ended = [await worker.until(ViewEnded, RunFinished) for worker in survivors]
        fault = await victim.until()
        assert "was killed by SIGKILL" in fault.sentence
        steps = [last.step for last in ended]
        assert max(steps) - min(steps) <= 1
        assert 0 < min(steps) < len(whole.losses)
        assert [last.digest for last in ended] == [truth[step] for step in steps]
        assert {last.culprit for last in ended} == {victim.node}
        states = {}
        if steps[0] != steps[1]:
            ahead = survivors[steps.index(max(steps))]
            await ahead.process.send(WriteSnapshot())
            written = await ahead.until(StateWritten)
            while written.purpose != "snapshot":
                written = await ahead.until(StateWritten)
            states = {survivors[steps.index(min(steps))].name: written.path}
        await run(survivors, 2, [1, 3], max(steps), states)
        done = [await worker.until(RunFinished, ViewEnded) for worker in survivors]
    assert {last.report.digest for last in done} == {whole.last.report.digest}
    about = json.loads(await trio.Path(done[0].manifest_path).read_text())
    assert about["losses"] == whole.losses
    assert [len(view["seats"]) for view in about["views"]] == [3, 2]


async def test_a_frozen_rank_is_found_by_its_silence(tmp_path):
    spec = exact_spec(tmp_path, samples=400)
    async with started(tmp_path, spec, 2, stall_s=1.5) as workers:
        alive, frozen = workers
        await run(workers, 1, [2, 2])
        await frozen.until(Steps)
        os.kill(frozen.process.pid, signal.SIGSTOP)
        with trio.fail_after(10):
            last = await alive.until(ViewEnded, RunFinished)
        assert isinstance(last, ViewEnded)
        assert last.culprit == frozen.node
        # It wakes up to a view that is over, and says so itself.
        os.kill(frozen.process.pid, signal.SIGCONT)
        with trio.fail_after(10):
            woken = await frozen.until(ViewEnded, RunFinished)
        assert isinstance(woken, ViewEnded)
        assert abs(woken.step - last.step) <= 1


async def test_only_frames_reach_the_pipe_and_the_log_has_the_rest(tmp_path):
    async with started(tmp_path, exact_spec(tmp_path, 16), 1) as [worker]:
        path = tmp_path / worker.name / LOG_NAME
        await run([worker], 1, [4])
        last = await worker.until(RunFinished, ViewEnded)
        assert isinstance(last, RunFinished)
    assert "Traceback" not in path.read_text()
    assert "Fatal" not in path.read_text()


async def test_a_trainer_whose_daemon_dies_ends_in_the_middle_of_a_view(tmp_path):
    spec = exact_spec(tmp_path, samples=4000)
    async with started(tmp_path, spec, 1) as [worker]:
        await run([worker], 1, [4])
        await worker.until(Steps)
        with trio.fail_after(5):
            await worker.process._process.stdin.aclose()
            assert await worker.process._process.wait() == 0
