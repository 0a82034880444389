"""The outbox keeps order, merges progress, and waits only where it must."""

import os
import threading

import pytest

from p2ptrain import codec
from p2ptrain.engine import frames, outbox
from p2ptrain.engine.outbox import Outbox
from p2ptrain.messages.trainer import Fault, FromTrainer, Steps

TABLE = codec.kinds(FromTrainer)


def steps(step, view=1):
    return Steps(view, step, (float(step),), 2, 0.5, 0.25, 0.125)


class Gate:
    """A stream whose writes wait until it is opened."""

    def __init__(self):
        self.opened = threading.Event()
        self.entered = threading.Event()
        self.bytes = b""

    def write(self, data):
        self.entered.set()
        assert self.opened.wait(20)
        self.bytes += data

    def flush(self):
        pass

    def frames(self):
        return frames.Splitter(TABLE).feed(self.bytes)


@pytest.fixture
def gate():
    return Gate()


def jam(gate):
    """An outbox whose writer is stuck with a first frame in hand."""
    box = Outbox(gate)
    box.send(Fault("first"))
    assert gate.entered.wait(20)
    return box


def test_progress_that_waits_is_merged_and_nothing_else(gate):
    box = jam(gate)
    for frame in (steps(1), steps(2), Fault("a"), steps(3), steps(4), steps(5, 2)):
        box.send(frame)
    gate.opened.set()
    box.close()
    assert gate.frames() == [
        Fault("first"),
        Steps(1, 2, (1.0, 2.0), 4, 1.0, 0.5, 0.25),
        Fault("a"),
        Steps(1, 4, (3.0, 4.0), 4, 1.0, 0.5, 0.25),
        steps(5, 2),
    ]


def test_progress_of_a_daemon_that_never_reads_stays_small(gate):
    box = jam(gate)
    for step in range(20_000):
        box.send(steps(step))
    gate.opened.set()
    box.close()
    [_, frame] = gate.frames()
    assert len(frame.losses) == outbox.LOSSES_MAX
    assert (frame.step, frame.losses[-1]) == (19_999, 19_999.0)
    assert frame.samples == 40_000


def test_a_thousand_waiting_frames_make_the_sender_wait(gate, monkeypatch):
    monkeypatch.setattr(outbox, "WAITING_MAX", 3)
    box = jam(gate)
    sent = []

    def send():
        for i in range(6):
            box.send(Fault(str(i)))
            sent.append(i)

    thread = threading.Thread(target=send)
    thread.start()
    thread.join(0.3)
    assert len(sent) == 3
    gate.opened.set()
    thread.join(20)
    box.close()
    assert gate.frames() == [Fault("first"), *(Fault(str(i)) for i in range(6))]


def test_a_broken_pipe_frees_the_sender(monkeypatch):
    monkeypatch.setattr(outbox, "WAITING_MAX", 3)
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "wb", buffering=0) as stream:
        box = Outbox(stream)
        for i in range(20):
            box.send(Fault(str(i)))
        box.close()
