"""Commands reach a running view in the middle of a step, and only that view."""

import os
import threading

import pytest

from p2ptrain.engine.commands import Commands
from p2ptrain.engine.frames import frame_of
from p2ptrain.messages.trainer import HaltView, Quit, WriteSnapshot


class Daemon:
    """The writing end of a Commands's pipe."""

    def __init__(self):
        reading, writing = os.pipe()
        self.pipe = os.fdopen(writing, "wb", buffering=0)
        self.reasons = []
        self.over = threading.Event()
        self.stream = os.fdopen(reading, "rb")
        self.commands = Commands(self.stream, self.ended)
        self.commands.start()

    def ended(self, reason):
        self.reasons.append(reason)
        self.over.set()

    def send(self, *frames):
        for frame in frames:
            self.pipe.write(frame_of(frame))

    def settle(self):
        """Return when all that was sent has been read."""
        self.send(WriteSnapshot())
        assert self.commands.take() == WriteSnapshot()

    def close(self):
        self.pipe.close()
        assert self.over.wait(20)
        self.stream.close()


@pytest.fixture
def daemon():
    made = Daemon()
    yield made
    made.close()


def test_commands_come_in_order_and_halts_do_not_wait_in_line(daemon):
    daemon.send(HaltView(1, "enough", False), WriteSnapshot(), Quit())
    assert [daemon.commands.take(), daemon.commands.take()] == [WriteSnapshot(), Quit()]
    assert daemon.commands.waiting() is None


def test_a_halt_aborts_the_running_view_from_another_thread(daemon):
    aborted = threading.Event()
    with daemon.commands.watching(4, lambda _: aborted.set()):
        assert daemon.commands.reason(4) is None
        daemon.send(HaltView(4, "a rank died", False))
        assert aborted.wait(20)
        assert daemon.commands.reason(4) == "a rank died"


def test_a_halt_that_came_first_aborts_at_once(daemon):
    daemon.send(HaltView(4, "changed my mind", False))
    daemon.settle()
    calls = []
    with daemon.commands.watching(4, calls.append):
        assert calls == ["changed my mind"]


def test_a_view_is_aborted_once(daemon):
    calls = []
    with daemon.commands.watching(4, calls.append):
        daemon.send(HaltView(4, "a", False), HaltView(4, "a", False), Quit())
        assert daemon.commands.take() == Quit()
        daemon.settle()
    assert calls == ["a"]


def test_other_views_and_drains_abort_nothing(daemon):
    calls = []
    with daemon.commands.watching(4, calls.append):
        daemon.send(HaltView(3, "stale", False))
        daemon.settle()
        assert daemon.commands.reason(4) is None
        daemon.send(HaltView(4, "a node joins", True))
        daemon.settle()
        assert daemon.commands.drain(4) == "a node joins"
        assert daemon.commands.drain(3) is None
        assert daemon.commands.reason(4) is None
    assert calls == []


def test_a_halt_overrules_a_drain_and_not_the_other_way(daemon):
    calls = []
    with daemon.commands.watching(4, calls.append):
        daemon.send(HaltView(4, "drain", True), HaltView(4, "now", False))
        daemon.send(HaltView(4, "drain", True))
        daemon.settle()
        assert daemon.commands.reason(4) == "now"
    assert calls == ["now"]


def test_a_view_that_is_over_is_not_aborted(daemon):
    calls = []
    with daemon.commands.watching(4, calls.append):
        pass
    daemon.send(HaltView(4, "late", False))
    daemon.settle()
    assert calls == []


def test_a_quit_aborts_whatever_runs(daemon):
    aborted = threading.Event()
    with daemon.commands.watching(9, lambda _: aborted.set()):
        daemon.send(Quit())
        assert aborted.wait(20)
        assert "quit" in daemon.commands.reason(9)
    assert daemon.commands.take() == Quit()


def test_the_end_of_the_stream_is_told():
    daemon = Daemon()
    daemon.close()
    assert daemon.reasons == ["the stream has ended"]


def test_garbage_ends_the_stream():
    daemon = Daemon()
    daemon.pipe.write(b"\x01\x00\x00\x00\xff")
    assert daemon.over.wait(20)
    assert "malformed" in daemon.reasons[0]
    daemon.close()
