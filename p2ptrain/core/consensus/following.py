"""What every node does: keep the log, commit, apply, and be told by a leader."""

import random

from p2ptrain import codec
from p2ptrain.core.consensus.log import RaftLog
from p2ptrain.core.consensus.progress import WINDOW, Followers
from p2ptrain.core.consensus.types import (
    Apply,
    ConsensusConfig,
    Effect,
    Install,
    Proposed,
    Role,
    RoleChanged,
    Save,
    Send,
    WantCompact,
)
from p2ptrain.errors import LocalError, PeerError
from p2ptrain.ids import ClusterId, NodeId
from p2ptrain.messages.consensus import (
    Append,
    AppendReply,
    Compacted,
    Config,
    Entry,
    EntryKind,
    RaftMessage,
    RecordChange,
    RecordState,
    Snap,
    SnapReply,
)

SNAPSHOT_BYTES_MAX = 64 * 1024 * 1024


class Following:
    """State and replication; roles are in the classes above."""

    def __init__(
        self,
        me: NodeId,
        saved: RecordState,
        config: ConsensusConfig,
        rng: random.Random,
        now: float,
    ) -> None:
        self.me = me
        self.settings = config
        self.window = WINDOW
        self.cluster = saved.cluster
        self.term = saved.term
        self.vote = saved.vote
        self.log = RaftLog(saved)
        self.commit = self.log.base
        self.role = Role.FOLLOWER
        self.leader: NodeId | None = None
        self.followers = Followers()
        self.config_index, self.config = next(iter(self.log.configs()))
        self._rng = rng
        self._now = now
        self._heard_at = float("-inf")
        self._beat_at = now
        self._votes: set[NodeId] = set()
        self._standing_pre = False
        self._leaving = False
        self._alive: dict[NodeId, float] = {}
        self._gone: frozenset[NodeId] = frozenset()
        self._seen_at: dict[NodeId, float] = {}
        self._proposals: dict[int, tuple[int, int]] = {}
        self._incoming: tuple[int, int, bytearray] = (0, 0, bytearray())
        self._effects: list[Effect] = []
        self._dirty_term = self._dirty_cluster = False
        self._dirty_compacted = self._wants_compact = False
        self._restart_timer()
        if self.log.compacted is not None:
            self._emit(Install(self.log.compacted))

    @property
    def _cluster_id(self) -> ClusterId:
        assert self.cluster is not None
        return self.cluster

    def _emit(self, effect: Effect) -> None:
        self._effects.append(effect)

    def _send(self, to: NodeId, message: RaftMessage) -> None:
        self._effects.append(Send(to, message))

    def _restart_timer(self) -> None:
        low, high = self.settings.election_min_s, self.settings.election_max_s
        self._stand_at = self._now + self._rng.uniform(low, high)

    def _stand_soon(self) -> None:
        soon = self._now + self._rng.uniform(0, self.settings.lost_s)
        self._stand_at = min(self._stand_at, soon)

    def _flush(self) -> list[Effect]:
        """Return the step's effects, what changed saved before all else."""
        effects, self._effects = self._effects, []
        dirty = self.log.clean()
        changed = dirty is not None or self._dirty_term or self._dirty_cluster
        if changed or self._dirty_compacted:
            entries = self.log.entries[dirty - self.log.base - 1 :] if dirty else ()
            change = RecordChange(
                cluster=self.cluster if self._dirty_cluster else None,
                term=self.term if self._dirty_term else None,
                vote=self.vote if self._dirty_term else None,
                truncate_from=dirty,
                entries=tuple(entries),
                compacted=self.log.compacted if self._dirty_compacted else None,
            )
            effects.insert(0, Save(change))
        self._dirty_term = self._dirty_cluster = self._dirty_compacted = False
        return effects

    def _follow(self, term: int, leader: NodeId | None) -> None:
        if term > self.term:
            self.term, self.vote = term, None
            self._dirty_term = True
        if self.role is not Role.FOLLOWER:
            self._restart_timer()
        self._become(Role.FOLLOWER, leader)

    def _become(self, role: Role, leader: NodeId | None) -> None:
        if role is not Role.LEADER:
            for token, _ in self._proposals.values():
                problem = "this node lost the mastership before it was committed"
                self._emit(Proposed(token, None, problem))
            self._proposals.clear()
        before = (self.role, self.leader)
        self.role, self.leader = role, leader
        if before != (role, leader):
            self._emit(RoleChanged(role, self.term, leader))

    def _found(self) -> None:
        """Write a new cluster's first entry: this node is its only voter."""
        config = Config(voters=(self.me,), learners=())
        self._add(EntryKind.CONFIG, codec.encode(codec.to_plain(config)))

    def _add(self, kind: EntryKind, data: bytes) -> None:
        self._store(Entry(self.log.last + 1, self.term, kind, data))

    def _store(self, entry: Entry) -> None:
        self.log.append(entry)
        if entry.kind is EntryKind.CONFIG:
            self.config = codec.from_plain(Config, codec.decode(entry.data))
            self.config_index = entry.index

    def _commit_to(self, index: int) -> None:
        while self.commit < index:
            self.commit += 1
            entry = self.log.at(self.commit)
            if entry.kind is EntryKind.COMMAND:
                self._emit(Apply(entry))
            token, term = self._proposals.pop(entry.index, (0, -1))
            if term == entry.term:
                self._emit(Proposed(token, entry.index, ""))
        long = len(self.log.entries) > self.settings.compact_after
        if long and not self._wants_compact:
            self._wants_compact = True
            self._emit(WantCompact())

    def _compact(self, index: int, data: bytes) -> None:
        self._wants_compact = False
        if not self.log.base < index <= self.commit:
            return
        config, term = self.log.config_at(index), self.log.term_at(index)
        self.log.compact(Compacted(index, term, config, data))
        self._dirty_compacted = True

    def _refuse_append(self, sender: NodeId) -> None:
        self._send(sender, AppendReply(self.term, ok=False, match=self.log.last))

    def _append_entries(self, sender: NodeId, message: Append) -> None:
        log, previous = self.log, message.prev_index
        if previous >= log.base and log.term_at(previous) != message.prev_term:
            hint = min(previous - 1, log.last)
            if previous <= log.last:
                hint = log.first_of_term(previous) - 1
            hint = max(hint, self.commit)
            self._send(sender, AppendReply(self.term, ok=False, match=hint))
            return
        for entry in message.entries:
            if entry.index <= log.base or log.term_at(entry.index) == entry.term:
                continue
            if entry.index <= log.last:
                self._truncate(entry.index)
            self._store(entry)
        match = max(previous + len(message.entries), log.base)
        self._commit_to(min(message.commit, match))
        self._send(sender, AppendReply(self.term, ok=True, match=match))

    def _truncate(self, index: int) -> None:
        if index <= self.commit:
            raise LocalError(f"entry {index} is committed and must not be replaced")
        self.log.truncate(index)
        self.config_index, self.config = next(iter(self.log.configs()))

    def _take_snapshot(self, sender: NodeId, message: Snap) -> None:
        if message.total > SNAPSHOT_BYTES_MAX:
            raise PeerError(f"snapshot of {message.total} bytes")
        if message.index <= self.commit:
            done = SnapReply(self.term, message.index, message.total)
            self._send(sender, done)
            return
        index, term, data = self._incoming
        if (index, term) != (message.index, message.index_term) or not message.offset:
            data = bytearray()
        if message.offset == len(data):
            data += message.data
        if len(data) > message.total:
            raise PeerError(f"snapshot longer than its {message.total} bytes")
        self._incoming = (message.index, message.index_term, data)
        if len(data) == message.total:
            self._install(message, bytes(data))
        self._send(sender, SnapReply(self.term, message.index, len(data)))

    def _install(self, message: Snap, data: bytes) -> None:
        self._incoming = (0, 0, bytearray())
        where = (message.index, message.index_term)
        compacted = Compacted(*where, message.config, data)
        self.log.reset(compacted)
        self._dirty_compacted = True
        self.commit = message.index
        self.config_index, self.config = message.index, message.config
        self._emit(Install(compacted))


def check_run(message: Append) -> None:
    """Refuse entries that are not one run after ``prev_index``.

    Raises:
        PeerError: they are not.
    """
    before = message.prev_term
    for i, entry in enumerate(message.entries, start=message.prev_index + 1):
        if entry.index != i or not before <= entry.term <= message.term:
            raise PeerError(f"entry {entry.index} of term {entry.term} came as {i}")
        before = entry.term
