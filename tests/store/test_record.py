"""The durable record: whole changes or none, whatever happens to the process."""

import os
import random
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest
import trio

from p2ptrain.errors import StorageError
from p2ptrain.ids import ClusterId, NodeId
from p2ptrain.messages.consensus import (
    Compacted,
    Config,
    Entry,
    EntryKind,
    RecordChange,
    RecordState,
)
from p2ptrain.store.record import SCHEMA, SqliteRecord

ROOT = Path(__file__).parents[2]
A = NodeId("a" * 32)


def entry(index: int, term: int = 1, data: bytes = b"x") -> Entry:
    return Entry(index, term, EntryKind.COMMAND, data)


async def reopened(path: Path, *changes: RecordChange) -> RecordState:
    record = SqliteRecord(path)
    for change in changes:
        await record.save(change)
    await record.aclose()
    again = SqliteRecord(path)
    state = await again.load()
    await again.aclose()
    return state


async def test_a_new_record_is_empty(tmp_path: Path) -> None:
    state = await reopened(tmp_path / "r.db")
    assert state == RecordState(None, 0, None, None, ())


async def test_every_field_is_kept(tmp_path: Path) -> None:
    compacted = Compacted(2, 1, Config((A,), ()), b"state")
    state = await reopened(
        tmp_path / "r.db",
        RecordChange(cluster=ClusterId("c"), term=3, vote=A),
        RecordChange(truncate_from=1, entries=tuple(entry(i) for i in range(1, 6))),
        RecordChange(truncate_from=4, entries=(entry(4, 3, b"new"),)),
        RecordChange(compacted=compacted),
    )
    wanted = (entry(3), entry(4, 3, b"new"))
    assert state == RecordState(ClusterId("c"), 3, A, compacted, wanted)


async def test_a_new_term_has_no_vote(tmp_path: Path) -> None:
    first, second = RecordChange(term=3, vote=A), RecordChange(term=4)
    state = await reopened(tmp_path / "r.db", first, second)
    assert (state.term, state.vote) == (4, None)


async def test_a_change_that_fails_leaves_nothing(tmp_path: Path) -> None:
    record = SqliteRecord(tmp_path / "r.db")
    await record.save(RecordChange(term=1, entries=(entry(1),)))
    with pytest.raises(StorageError, match=r"r\.db (failed|cannot be used)"):
        await record.save(RecordChange(term=2, entries=(entry(2), entry(1))))
    state = await record.load()
    assert (state.term, state.entries) == (1, (entry(1),))
    await record.save(RecordChange(term=2, entries=(entry(2),)))
    assert (await record.load()).entries == (entry(1), entry(2))
    await record.aclose()


async def test_a_full_disk_is_a_sentence_and_loses_nothing(tmp_path: Path) -> None:
    record = SqliteRecord(tmp_path / "r.db")
    await record.save(RecordChange(entries=(entry(1),)))
    assert record._connection is not None
    record._connection.execute("pragma max_page_count = 8")
    with pytest.raises(StorageError, match="full"):
        await record.save(RecordChange(entries=(entry(2, data=bytes(100_000)),)))
    assert (await record.load()).entries == (entry(1),)
    await record.aclose()


async def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "r.db"
    path.write_bytes(b"no database at all" * 100)
    with pytest.raises(StorageError, match=r"r\.db"):
        await SqliteRecord(path).load()


async def test_a_gap_in_the_log_is_damage(tmp_path: Path) -> None:
    path = tmp_path / "r.db"
    await reopened(path, RecordChange(entries=(entry(1), entry(2), entry(3))))
    with sqlite3.connect(path) as connection:
        connection.execute("delete from entries where idx = 2")
    connection.close()
    with pytest.raises(StorageError, match="do not follow"):
        await SqliteRecord(path).load()


async def test_a_newer_format_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "r.db"
    await reopened(path)
    with sqlite3.connect(path) as connection:
        newer = (SCHEMA + 1,)
        connection.execute("update meta set value = ? where key = 'schema'", newer)
    connection.close()
    with pytest.raises(StorageError, match="run a newer p2ptrain"):
        await SqliteRecord(path).load()


SAVER = """
import sys, trio
from pathlib import Path
from p2ptrain.messages.consensus import Entry, EntryKind, RecordChange
from p2ptrain.store.record import SqliteRecord

async def main():
    record = SqliteRecord(Path(sys.argv[1]))
    at = len((await record.load()).entries)
    while True:
        at += 1
        entry = Entry(at, at, EntryKind.COMMAND, b"%d" % at * 50)
        await record.save(RecordChange(term=at, entries=(entry,)))
        print(at, flush=True)

trio.run(main)
"""


@pytest.mark.processes
def test_a_kill_loses_no_acknowledged_change(tmp_path: Path) -> None:
    path, rng = tmp_path / "r.db", random.Random(5)
    for _ in range(3):
        process = subprocess.Popen(
            [sys.executable, "-c", SAVER, str(path)],
            stdout=subprocess.PIPE,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
        )
        assert process.stdout is not None
        said = [process.stdout.readline()]
        time.sleep(rng.uniform(0.05, 0.3))  # the kill may come at any instant
        process.kill()
        said += process.stdout.read().splitlines(keepends=True)
        process.wait()
        process.stdout.close()
        acknowledged = int([line for line in said if line.endswith(b"\n")][-1])
        state = trio.run(reopened, path)
        assert len(state.entries) in {acknowledged, acknowledged + 1}
        assert state.term == len(state.entries)
