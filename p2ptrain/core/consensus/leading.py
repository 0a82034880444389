"""What a leader does: replicate, commit, change seats, hand over; see ``machine``."""

from p2ptrain import codec
from p2ptrain.core.consensus.following import Following
from p2ptrain.core.consensus.progress import Progress, majority_match
from p2ptrain.core.consensus.seats import Rules, Situation, next_config
from p2ptrain.core.consensus.types import Peers, Proposed, Role
from p2ptrain.ids import NodeId
from p2ptrain.messages.consensus import (
    Append,
    AppendReply,
    EntryKind,
    Snap,
    SnapReply,
    StandNow,
)

CAUGHT_UP = 16  # entries that a learner may be behind when it is promoted


class Leading(Following):
    """The leader's side of replication."""

    def _lead(self) -> None:
        self._become(Role.LEADER, self.me)
        self._beat_at = self._now
        self.followers.by_node.clear()
        self._seated()
        self._add(EntryKind.NOOP, b"")
        self._advance()

    def _leads(self, term: int) -> bool:
        if term > self.term:
            self._follow(term, None)
        return self.role is Role.LEADER and term == self.term

    def _propose(self, token: int, data: bytes) -> None:
        if self.role is not Role.LEADER or self._leaving:
            self._emit(Proposed(token, None, "this node is not the master"))
        elif len(self._proposals) >= self.settings.proposals_max:
            self._emit(Proposed(token, None, "the master is overloaded: try again"))
        elif len(data) > self.settings.append_bytes:
            self._emit(Proposed(token, None, f"a command of {len(data)} bytes"))
        else:
            self._add(EntryKind.COMMAND, data)
            self._proposals[self.log.last] = (token, self.term)
            self._advance()
            self._replicate()

    def _beat(self) -> None:
        self._beat_at = self._now + self.settings.heartbeat_s
        for node, known in self.followers.by_node.items():
            known.in_flight = 0
            self._feed(node, known, beat=True)

    def _replicate(self) -> None:
        for node, known in self.followers.by_node.items():
            self._feed(node, known, beat=False)

    def _feed(self, node: NodeId, known: Progress, *, beat: bool) -> None:
        """Send what comes next, as far as the window allows; a beat sends anyway."""
        if known.next <= self.log.base:
            self._feed_snapshot(node, known, beat=beat)
            return
        while beat or (known.next <= self.log.last and known.in_flight < self.window):
            entries = self.log.after(known.next - 1, self.settings.append_bytes)
            previous = known.next - 1
            where = (previous, self.log.term_at(previous))
            self._send(
                node, Append(self.term, self._cluster_id, *where, entries, self.commit)
            )
            known.next += len(entries)
            known.in_flight += 1
            beat = False

    def _feed_snapshot(self, node: NodeId, known: Progress, *, beat: bool) -> None:
        compacted = self.log.compacted
        if compacted is None or (known.in_flight and not beat):
            return
        offset = known.snap_offset or 0
        data = compacted.data[offset : offset + self.settings.snapshot_bytes]
        known.in_flight += 1
        self._send(
            node,
            Snap(
                self.term,
                self._cluster_id,
                compacted.index,
                compacted.term,
                compacted.config,
                len(compacted.data),
                offset,
                data,
            ),
        )

    def _append_answered(self, sender: NodeId, reply: AppendReply) -> None:
        known = self.followers.by_node.get(sender)
        if known is None:
            return
        known.heard_at = self._now
        known.in_flight = max(0, known.in_flight - 1)
        if reply.ok:
            known.match = max(known.match, min(reply.match, self.log.last))
            known.next = max(known.next, known.match + 1)
            self._advance()
        else:
            known.next = max(known.match, min(reply.match, known.next - 2)) + 1
            known.snap_offset = 0
        self._feed(sender, known, beat=False)

    def _snapshot_answered(self, sender: NodeId, reply: SnapReply) -> None:
        known, compacted = self.followers.by_node.get(sender), self.log.compacted
        if known is None or compacted is None or reply.index != compacted.index:
            return
        known.heard_at = self._now
        known.in_flight = 0
        known.snap_offset = max(0, reply.offset)
        if reply.offset >= len(compacted.data):
            known.match = max(known.match, reply.index)
            known.next = max(known.next, reply.index + 1)
        self._feed(sender, known, beat=False)

    def _advance(self) -> None:
        """Commit what a majority has, if it is of this term (Ongaro 3.6.2)."""
        matches = [
            self.log.last if node == self.me else self.followers.match(node)
            for node in self.config.voters
        ]
        index = majority_match(matches)
        if index > self.commit and self.log.term_at(index) == self.term:
            self._commit_to(index)
            self._replicate()

    def _check_quorum(self) -> None:
        since = self._now - self.settings.election_max_s
        voters = set(self.config.voters)
        heard = self.followers.heard(voters, since) + (self.me in voters)
        if 2 * heard <= len(voters) or self._is_seatless():
            self._follow(self.term, None)

    def _is_seatless(self) -> bool:
        """Whether this leader lost its seat by a committed change."""
        return self.me not in self.config.voters and self.config_index <= self.commit

    def _peers_changed(self, peers: Peers) -> None:
        back = {node for node, _ in peers.alive} - self._alive.keys()
        if self.leader is None and back & set(self.config.voters):
            self._stand_soon()  # it may be the one whose vote was missing
        self._alive = dict(peers.alive[:512])
        self._gone = frozenset(peers.gone[:512])
        for node in self._alive:
            self._seen_at[node] = self._now
        members = {*self.config.voters, *self.config.learners}
        self._seen_at = {n: at for n, at in self._seen_at.items() if n in members}

    def _change_seats(self) -> None:
        settled = self.config_index <= self.commit
        if not settled or self.log.term_at(self.commit) != self.term:
            return
        wanted = next_config(self._situation(), self._rules())
        if wanted is not None:
            self._add(EntryKind.CONFIG, codec.encode(codec.to_plain(wanted)))
            self._seated()
            self._advance()
            self._replicate()

    def _rules(self) -> Rules:
        s = self.settings
        return Rules(s.voters_max, s.promote_after_s, s.replace_after_s)

    def _situation(self) -> Situation:
        near = self.commit - CAUGHT_UP
        for node in self.config.voters:
            self._seen_at.setdefault(node, self._now)
        return Situation(
            me=self.me,
            config=self.config,
            alive={**self._alive, self.me: float("inf")},
            gone=self._gone,
            dead_s={
                node: self._now - self._seen_at[node]
                for node in self.config.voters
                if node not in self._alive and node != self.me
            },
            ready=frozenset(
                node
                for node in self.config.learners
                if self.followers.match(node) >= max(near, 1)
            ),
            leaving=self._leaving,
        )

    def _seated(self) -> None:
        """Know the members of the configuration now in force."""
        members = {*self.config.voters, *self.config.learners} - {self.me}
        self.followers.reset(members, self.log.last, self._now)

    def _hand_over(self) -> None:
        """Ask the best voter to stand, when this leader is about to leave."""
        if not self._leaving:
            return
        others = [n for n in self.config.voters if n != self.me]
        able = [n for n in others if self.followers.match(n) == self.log.last]
        if able and self.config_index <= self.commit:
            best = max(able, key=lambda n: (self.followers.by_node[n].heard_at, n))
            self._send(best, StandNow(self.term))
