"""Raft's messages and log entries (Ongaro, "Consensus: Bridging Theory and Practice",
2014).
"""

from dataclasses import dataclass
from enum import StrEnum

from p2ptrain.ids import ClusterId, NodeId


class EntryKind(StrEnum):
    """What an entry's data holds."""

    NOOP = "noop"  # a leader's first entry of its term
    COMMAND = "command"  # codec.pack of a record command
    CONFIG = "config"  # codec.pack of a Config


@dataclass(frozen=True, slots=True)
class Entry:
    """One log entry; indexes start at 1."""

    index: int
    term: int
    kind: EntryKind
    data: bytes


@dataclass(frozen=True, slots=True)
class Config:
    """Voters and learners of the record, by node id; single-server changes only."""

    voters: tuple[NodeId, ...]
    learners: tuple[NodeId, ...]


@dataclass(frozen=True, slots=True)
class Compacted:
    """The log up to ``index`` as one state: ``data`` is the registry's own encoding."""

    index: int
    term: int
    config: Config
    data: bytes


@dataclass(frozen=True, slots=True)
class RecordState:
    """All that a node saved: what it restarts from."""

    cluster: ClusterId | None
    term: int
    vote: NodeId | None
    compacted: Compacted | None
    entries: tuple[Entry, ...]


@dataclass(frozen=True, slots=True)
class RecordChange:
    """One atomic durable change; None fields stay as they are.

    ``truncate_from`` deletes entries from that index on, before ``entries`` are added;
    ``compacted`` replaces all entries up to its index.
    """

    cluster: ClusterId | None = None
    term: int | None = None
    vote: NodeId | None = None  # with term: the vote of that term, None for none
    truncate_from: int | None = None
    entries: tuple[Entry, ...] = ()
    compacted: Compacted | None = None


@dataclass(frozen=True, slots=True)
class Vote:
    """A candidate asks for a vote in ``term``, or with ``pre`` if it would get one.

    ``transfer`` is set when the leader itself asked the candidate to stand.
    """

    term: int
    last_index: int
    last_term: int
    pre: bool
    transfer: bool


@dataclass(frozen=True, slots=True)
class VoteReply:
    """The answer; ``term`` is the one asked for if granted, else the voter's own."""

    term: int
    pre: bool
    granted: bool


@dataclass(frozen=True, slots=True)
class Append:
    """Entries after (``prev_index``, ``prev_term``), none for a heartbeat."""

    term: int
    cluster: ClusterId
    prev_index: int
    prev_term: int
    entries: tuple[Entry, ...]
    commit: int


@dataclass(frozen=True, slots=True)
class AppendReply:
    """``match`` is the last index known to agree if ``ok``, else where to try next."""

    term: int
    ok: bool
    match: int


@dataclass(frozen=True, slots=True)
class Snap:
    """A piece of the leader's compacted state, ``total`` bytes long."""

    term: int
    cluster: ClusterId
    index: int
    index_term: int
    config: Config
    total: int
    offset: int
    data: bytes


@dataclass(frozen=True, slots=True)
class SnapReply:
    """``offset`` is the first byte still missing; ``total`` when installed."""

    term: int
    index: int
    offset: int


@dataclass(frozen=True, slots=True)
class StandNow:
    """The leader hands over: stand for election at once."""

    term: int


RaftMessage = Vote | VoteReply | Append | AppendReply | Snap | SnapReply | StandNow
