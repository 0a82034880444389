"""The timeline: readable by viewers, whole after a kill, silent without a folder."""

import json
import os
import time

import pytest

from p2ptrain.engine.trace import Trace
from p2ptrain.errors import StorageError


def events(folder):
    (file,) = folder.iterdir()
    return json.loads(file.read_text().rstrip(",\n") + "]")


def test_spans_bear_the_times_of_the_wall(tmp_path):
    before = time.time()
    trace = Trace.to(str(tmp_path / "traces"), "s-1", "ada")
    began = time.perf_counter()
    trace.span("compute", began, began + 0.25, step=3)
    head, span = events(tmp_path / "traces")  # nothing was closed: as after a kill
    assert head["args"] == {"name": "ada"}
    assert (span["ph"], span["name"], span["args"]) == ("X", "compute", {"step": 3})
    assert span["dur"] == 250_000
    assert before - 0.01 <= span["ts"] / 1e6 <= time.time() + 0.01
    assert span["pid"] == os.getpid()
    trace.close()
    trace.span("late", began, began)
    assert len(events(tmp_path / "traces")) == 2


def test_without_a_folder_nothing_is_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Trace.to("", "s-1", "ada").span("compute", 0.0, 1.0)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_made_is_a_sentence(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="cannot make"):
        Trace.to(str(tmp_path / "file"), "s-1", "ada")


def test_a_full_disk_ends_the_timeline_only():
    trace = Trace(None)
    trace._file = os.open("/dev/full", os.O_WRONLY)
    trace.span("compute", 0.0, 1.0)
    trace.span("compute", 1.0, 2.0)
    assert trace._file == -1
