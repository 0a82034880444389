"""The writer overlaps with training, one file at a time, and hides no failure."""

import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from p2ptrain.engine.state import TrainState
from p2ptrain.engine.writer import (
    AT_LEAST_S,
    AT_MOST_S,
    BYTES_PER_S,
    COPY_SHARE,
    LONE_S,
    Label,
    Pace,
    StateWriter,
)
from p2ptrain.errors import StorageError


def state():
    return TrainState("s" * 64, {"param/w": torch.zeros(4)})


def test_a_file_is_announced_when_it_is_durable(tmp_path):
    sent = []
    writer = StateWriter(tmp_path, lambda frame: sent.append((frame, exists(frame))))
    made = state()
    writer.begin(made.copy(), Label(2, "checkpoint", 1))
    made.tensors["param/w"].add_(1)
    made.applied(0.5)
    writer.begin(made.copy(), Label(2, "snapshot", 1))
    writer.wait()
    assert not writer.busy
    [(first, there), (second, _)] = sent
    assert there
    assert (first.purpose, first.step, first.epoch, first.view) == (
        "checkpoint",
        0,
        1,
        2,
    )
    assert (second.purpose, second.step) == ("snapshot", 1)
    assert second.state_digest == made.digest()
    other = state()
    other.restore(first.path)
    assert other.digest() == first.state_digest == state().digest()


def exists(frame):
    return Path(frame.path).exists()


def test_one_file_at_a_time(tmp_path):
    gate, entered, running = threading.Event(), threading.Event(), []

    def send(frame):
        running.append(frame.step)
        entered.set()
        assert gate.wait(20)

    writer = StateWriter(tmp_path, send)
    made = state()
    writer.begin(made.copy(), Label(1, "snapshot", 0))
    assert entered.wait(20)
    assert writer.busy
    made.applied(1.0)
    thread = threading.Thread(
        target=writer.begin, args=(made.copy(), Label(1, "snapshot", 0))
    )
    thread.start()
    thread.join(0.2)
    assert thread.is_alive()
    assert running == [0]
    gate.set()
    thread.join(20)
    writer.wait()
    assert running == [0, 1]


def test_a_failure_is_raised_in_the_trainer(tmp_path):
    writer = StateWriter(tmp_path / "nowhere", lambda _: None)
    writer.begin(state().copy(), Label(1, "checkpoint", 0))
    with pytest.raises(StorageError, match=r"cannot write .*checkpoint-1-0"):
        writer.wait()
    writer.wait()  # told once
    writer.begin(state().copy(), Label(1, "checkpoint", 0))
    with pytest.raises(StorageError):
        writer.begin(state().copy(), Label(1, "checkpoint", 0))


def test_checkpoints_are_paced_by_what_they_cost():
    now = 0.0
    pace = Pace(3, lambda: now)
    idle = SimpleNamespace(busy=False)
    assert not pace.is_due(idle)
    now = AT_LEAST_S
    assert pace.is_due(idle)
    assert not pace.is_due(SimpleNamespace(busy=True))
    for copy_s, nbytes, pause in [
        (0.0, 0, AT_LEAST_S),
        (0.2, 0, 0.2 * COPY_SHARE),
        (0.0, 200_000_000, 200_000_000 / BYTES_PER_S),
        (60.0, 0, AT_MOST_S),
    ]:
        pace.wrote(copy_s, nbytes)
        at = now
        now = at + pause - 0.01
        assert not pace.is_due(idle)
        now = at + pause
        assert pace.is_due(idle)


def test_a_lone_rank_saves_soon():
    now = 0.0
    pace = Pace(1, lambda: now)
    now = LONE_S
    assert pace.is_due(SimpleNamespace(busy=False))
