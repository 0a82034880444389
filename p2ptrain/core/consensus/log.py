"""The log in memory: what is compacted, the entries after it, and configurations."""

from collections.abc import Iterable

from p2ptrain import codec
from p2ptrain.errors import LocalError
from p2ptrain.messages.consensus import (
    Compacted,
    Config,
    Entry,
    EntryKind,
    RecordState,
)

NO_CONFIG = Config((), ())


class RaftLog:
    """Entries by index, and the lowest index changed since ``clean`` was called."""

    def __init__(self, saved: RecordState) -> None:
        self.compacted = saved.compacted
        self.entries: list[Entry] = list(saved.entries)
        self.dirty_from: int | None = None

    @property
    def base(self) -> int:
        """Index up to which the log is compacted."""
        return self.compacted.index if self.compacted else 0

    @property
    def last(self) -> int:
        """Index of the last entry."""
        return self.base + len(self.entries)

    @property
    def last_term(self) -> int:
        """Term of the last entry."""
        return self.term_at(self.last)

    def term_at(self, index: int) -> int:
        """Return an entry's term; 0 at index 0, -1 where it is not known."""
        if index == self.base:
            return self.compacted.term if self.compacted else 0
        if not self.base < index <= self.last:
            return -1
        return self.entries[index - self.base - 1].term

    def at(self, index: int) -> Entry:
        """Return an entry that is not compacted."""
        return self.entries[index - self.base - 1]

    def after(self, index: int, bytes_max: int) -> tuple[Entry, ...]:
        """Return entries after index, at least one if any, up to so many bytes."""
        taken: list[Entry] = []
        size = 0
        for entry in self.entries[index - self.base :]:
            size += len(entry.data) + 32
            if taken and size > bytes_max:
                break
            taken.append(entry)
        return tuple(taken)

    def append(self, entry: Entry) -> None:
        """Add an entry at the end."""
        if entry.index != self.last + 1:
            raise LocalError(f"entry {entry.index} after {self.last}")
        self._touch(entry.index)
        self.entries.append(entry)

    def truncate(self, index: int) -> None:
        """Delete the entries from index on."""
        self._touch(index)
        del self.entries[index - self.base - 1 :]

    def compact(self, compacted: Compacted) -> None:
        """Replace everything up to a point that this log holds."""
        del self.entries[: compacted.index - self.base]
        self.compacted = compacted

    def reset(self, compacted: Compacted) -> None:
        """Replace everything."""
        self.entries.clear()
        self.compacted = compacted
        self._touch(compacted.index + 1)

    def first_of_term(self, index: int) -> int:
        """Return the first index of the run of entries with index's term."""
        term = self.term_at(index)
        while index - 1 > self.base and self.term_at(index - 1) == term:
            index -= 1
        return index

    def configs(self) -> Iterable[tuple[int, Config]]:
        """Yield the configurations with their indexes, newest first."""
        for entry in reversed(self.entries):
            if entry.kind is EntryKind.CONFIG:
                yield entry.index, codec.from_plain(Config, codec.decode(entry.data))
        yield self.base, self.compacted.config if self.compacted else NO_CONFIG

    def config_at(self, index: int) -> Config:
        """Return the configuration that held at an index."""
        return next(config for at, config in self.configs() if at <= index)

    def clean(self) -> int | None:
        """Return the lowest changed index, and forget it."""
        dirty, self.dirty_from = self.dirty_from, None
        return dirty

    def _touch(self, index: int) -> None:
        if self.dirty_from is None or index < self.dirty_from:
            self.dirty_from = index
