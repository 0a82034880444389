"""Trainer processes, with small Python programs in the trainer's place."""

import os
import subprocess
import sys

import pytest
import trio

from p2ptrain.engine.process import LOG_NAME, ProcessEngine
from p2ptrain.messages.trainer import Fault, ParityDone, Quit, WriteSnapshot

pytestmark = pytest.mark.processes

PREAMBLE = """
import os, sys, time
from p2ptrain import codec
from p2ptrain.engine import frames
from p2ptrain.messages.trainer import *
table = codec.kinds(ToTrainer)
def read():
    return frames.read_frame(sys.stdin.buffer, table)
def write(message):
    sys.stdout.buffer.write(frames.frame_of(message))
    sys.stdout.buffer.flush()
"""

ECHO = """
while (frame := read()) is not None and not isinstance(frame, Quit):
    write(ParityDone(()))
"""


async def launch(tmp_path, program):
    command = (sys.executable, "-P", "-c", PREAMBLE + program)
    return await ProcessEngine(command).launch(tmp_path)


async def drain(trainer):
    return [frame async for frame in trainer.frames()]


def gone(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


async def test_frames_go_both_ways_and_quit_is_silent(tmp_path):
    trainer = await launch(tmp_path, ECHO)
    await trainer.send(WriteSnapshot())
    await trainer.send(WriteSnapshot())
    await trainer.send(Quit())
    assert await drain(trainer) == [ParityDone(()), ParityDone(())]
    await trainer.aclose()
    assert gone(trainer.pid)


async def test_aclose_reaps_a_trainer_that_obeys(tmp_path):
    trainer = await launch(tmp_path, ECHO)
    with trio.fail_after(4):  # less than the grace period
        await trainer.aclose()
    assert gone(trainer.pid)


async def test_aclose_kills_a_trainer_that_does_not_obey(tmp_path, monkeypatch):
    monkeypatch.setattr("p2ptrain.engine.process.GRACE_S", 0.2)
    trainer = await launch(tmp_path, "write(ParityDone(()))\ntime.sleep(60)")
    async for frame in trainer.frames():
        assert frame == ParityDone(())
        break
    await trainer.aclose()
    assert gone(trainer.pid)


async def test_a_killed_trainer_is_a_fault_that_says_so(tmp_path):
    trainer = await launch(tmp_path, "write(ParityDone(()))\ntime.sleep(60)")
    got = []
    async for frame in trainer.frames():
        got.append(frame)
        if len(got) == 1:
            os.kill(trainer.pid, 9)
    assert got[0] == ParityDone(())
    assert isinstance(got[1], Fault)
    assert "was killed by SIGKILL (often: out of memory)" in got[1].sentence
    assert got[1].of_node
    assert len(got) == 2
    await trainer.send(WriteSnapshot())  # no error
    await trainer.aclose()


async def test_a_crash_is_told_with_the_last_words(tmp_path):
    trainer = await launch(tmp_path, "raise ValueError('the flux is dry')")
    [fault] = await drain(trainer)
    assert "exited with code 1" in fault.sentence
    assert "ValueError: the flux is dry" in fault.sentence
    assert fault.of_node
    assert "Traceback" in (tmp_path / LOG_NAME).read_text()
    await trainer.aclose()


async def test_its_own_fault_is_the_last_frame(tmp_path):
    trainer = await launch(tmp_path, "write(Fault('no such data'))\nsys.exit(1)")
    assert await drain(trainer) == [Fault("no such data")]
    await trainer.aclose()


async def test_garbage_ends_it(tmp_path):
    trainer = await launch(tmp_path, "print('hello', flush=True)\ntime.sleep(60)")
    [fault] = await drain(trainer)
    assert "sent garbage" in fault.sentence
    await trainer.aclose()
    assert gone(trainer.pid)


async def test_a_trainer_ends_with_its_standard_input(tmp_path):
    trainer = await launch(tmp_path, ECHO)
    await trainer._process.stdin.aclose()
    [fault] = await drain(trainer)
    assert "exited with code 0" in fault.sentence
    await trainer.aclose()


async def test_leaving_the_frames_early_leaves_nothing_behind(tmp_path):
    trainer = await launch(tmp_path, ECHO)
    await trainer.send(WriteSnapshot())
    with trio.move_on_after(5):
        async for _ in trainer.frames():
            break
    await trainer.send(WriteSnapshot())
    async for frame in trainer.frames():
        assert frame == ParityDone(())
        break
    await trainer.aclose()


def test_the_daemon_side_needs_no_torch():
    code = "import sys, p2ptrain.engine.process as p; print('torch' in sys.modules)"
    out = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert out.stdout.strip() == "False"
