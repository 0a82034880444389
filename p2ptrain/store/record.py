"""The durable record: consensus's term, vote, log and snapshot in one sqlite file.

WAL with ``synchronous=FULL``: a change is one transaction, and ``save`` returns when it
is on disk. One connection, used by one thread at a time.
"""

import sqlite3
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TypeVar

import trio

from p2ptrain import codec
from p2ptrain.errors import PeerError, StorageError
from p2ptrain.ids import ClusterId, NodeId
from p2ptrain.messages.consensus import (
    Compacted,
    Config,
    Entry,
    EntryKind,
    RecordChange,
    RecordState,
)

SCHEMA = 1
TABLES = """
create table if not exists meta (key text primary key, value) without rowid;
create table if not exists entries (
  idx integer primary key, term integer not null, kind text not null, data blob not null
);
create table if not exists compacted (
  only integer primary key check (only = 0),
  idx integer not null, term integer not null, config blob not null, data blob not null
);
"""
T = TypeVar("T")


class SqliteRecord:
    """Implements ``ports.Record``.

    Args:
        path: the database file; made if it does not exist.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = trio.Lock()
        self._connection: sqlite3.Connection | None = None

    async def load(self) -> RecordState:
        """Return all that was saved.

        Raises:
            StorageError: the file cannot be read, or is of a newer release.
        """
        return await self._run(_load)

    async def save(self, change: RecordChange) -> None:
        """Save atomically and durably.

        Raises:
            StorageError: the disk refused; nothing of the change is stored.
        """
        await self._run(partial(_save, change))

    async def aclose(self) -> None:
        """Close the file."""
        async with self._lock:
            connection, self._connection = self._connection, None
            if connection is not None:
                await trio.to_thread.run_sync(connection.close)

    async def _run(self, work: Callable[[sqlite3.Connection], T]) -> T:
        async with self._lock:
            return await trio.to_thread.run_sync(self._do, work)

    def _do(self, work: Callable[[sqlite3.Connection], T]) -> T:
        try:
            if self._connection is None:
                self._connection = _open(self._path)
            return work(self._connection)
        except sqlite3.DatabaseError as error:
            raise StorageError(f"the record {self._path} failed: {error}") from error
        except PeerError as error:
            raise StorageError(
                f"the record {self._path} is damaged: {error}"
            ) from error


def _open(path: Path) -> sqlite3.Connection:
    with ExitStack() as opened:
        connection = sqlite3.connect(
            path, isolation_level=None, check_same_thread=False, timeout=5.0
        )
        opened.callback(connection.close)
        connection.execute("pragma journal_mode = wal")
        connection.execute("pragma synchronous = full")
        connection.executescript(TABLES)
        connection.execute("insert or ignore into meta values ('schema', ?)", (SCHEMA,))
        _check_format(connection, path)
        opened.pop_all()
    return connection


def _check_format(connection: sqlite3.Connection, path: Path) -> None:
    found = _meta(connection, "schema")
    if not isinstance(found, int) or found > SCHEMA:
        raise StorageError(
            f"the record {path} has format {found!r}, this release reads up to "
            f"{SCHEMA}: run a newer p2ptrain"
        )


def _meta(connection: sqlite3.Connection, key: str) -> object:
    row = connection.execute("select value from meta where key = ?", (key,)).fetchone()
    return row[0] if row else None


def _load(connection: sqlite3.Connection) -> RecordState:
    cluster, term = _meta(connection, "cluster"), _meta(connection, "term")
    vote = _meta(connection, "vote")
    entries = tuple(
        Entry(index, at, EntryKind(kind), bytes(data))
        for index, at, kind, data in connection.execute(
            "select idx, term, kind, data from entries order by idx"
        )
    )
    row = connection.execute("select idx, term, config, data from compacted").fetchone()
    compacted = None
    if row is not None:
        config = codec.from_plain(Config, codec.decode(row[2]))
        compacted = Compacted(row[0], row[1], config, bytes(row[3]))
    first = compacted.index if compacted else 0
    expected = range(first + 1, first + 1 + len(entries))
    if [entry.index for entry in entries] != list(expected):
        raise PeerError(f"its entries do not follow index {first}")
    return RecordState(
        cluster=ClusterId(cluster) if isinstance(cluster, str) else None,
        term=term if isinstance(term, int) else 0,
        vote=NodeId(vote) if isinstance(vote, str) else None,
        compacted=compacted,
        entries=entries,
    )


def _save(change: RecordChange, connection: sqlite3.Connection) -> None:
    with connection:  # commits, or rolls back when anything is raised
        connection.execute("begin immediate")
        _write(change, connection)


def _write(change: RecordChange, connection: sqlite3.Connection) -> None:
    put = "insert or replace into meta values (?, ?)"
    if change.cluster is not None:
        connection.execute(put, ("cluster", change.cluster))
    if change.term is not None:
        connection.execute(put, ("term", change.term))
        connection.execute(put, ("vote", change.vote))
    if change.compacted is not None:
        kept = change.compacted
        config = codec.encode(codec.to_plain(kept.config))
        connection.execute("delete from entries where idx <= ?", (kept.index,))
        connection.execute(
            "insert or replace into compacted values (0, ?, ?, ?, ?)",
            (kept.index, kept.term, config, kept.data),
        )
    if change.truncate_from is not None:
        connection.execute(
            "delete from entries where idx >= ?", (change.truncate_from,)
        )
    connection.executemany(
        "insert into entries values (?, ?, ?, ?)",
        [(e.index, e.term, e.kind.value, e.data) for e in change.entries],
    )
