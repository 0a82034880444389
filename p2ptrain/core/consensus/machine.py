"""Consensus over the session record: Raft as a pure core.

After Ongaro, "Consensus: Bridging Theory and Practice" (2014): pre-vote (9.6), leader
stickiness and check-quorum (6.2), single-server changes (4.1), learners (4.2.1),
leadership transfer (3.10), compaction (5). In each step everything that changed is
saved first, in one Save, and every other effect stands behind it.
"""

import random
from typing import assert_never

from p2ptrain.core.consensus.election import Election
from p2ptrain.core.consensus.following import check_run
from p2ptrain.core.consensus.types import (
    Bootstrap,
    Compact,
    ConsensusConfig,
    Effect,
    Event,
    Lost,
    Peers,
    ProposeCommand,
    Received,
    Role,
    StepDown,
    Tick,
)
from p2ptrain.ids import NodeId
from p2ptrain.messages.consensus import (
    Append,
    AppendReply,
    RaftMessage,
    RecordState,
    Snap,
    SnapReply,
    StandNow,
    Vote,
    VoteReply,
)


class Consensus(Election):
    """The core of one node.

    Args:
        me: this node.
        saved: what was saved before this start.
        config: times and bounds.
        rng: for election time-outs.
        now: the time of birth.
    """

    def __init__(
        self,
        me: NodeId,
        saved: RecordState,
        config: ConsensusConfig,
        rng: random.Random,
        now: float = 0.0,
    ) -> None:
        super().__init__(me, saved, config, rng, now)

    @property
    def deadline(self) -> float:
        """When the next Tick is due."""
        if self.role is Role.LEADER:
            return self._beat_at
        return self._stand_at if self.cluster is not None else float("inf")

    def step(self, now: float, event: Event) -> list[Effect]:
        """Take one event.

        Raises:
            PeerError: a message that no honest member sends; nothing has changed.
        """
        self._now = now
        match event:
            case Tick():
                pass
            case Received(sender, message):
                self._received(sender, message)
            case ProposeCommand(token, data):
                self._propose(token, data)
            case Peers():
                self._peers_changed(event)
            case Lost(node):
                self._lost(node)
            case Compact(index, data):
                self._compact(index, data)
            case Bootstrap(cluster):
                self._bootstrap(cluster)
            case StepDown():
                self._leaving = True
            case _:
                assert_never(event)
        self._timers()
        return self._flush()

    def _received(self, sender: NodeId, message: RaftMessage) -> None:
        match message:
            case Append():
                check_run(message)
                if self._follows(sender, message.term, message.cluster):
                    self._append_entries(sender, message)
            case Snap():
                if self._follows(sender, message.term, message.cluster):
                    self._take_snapshot(sender, message)
            case AppendReply():
                if self._leads(message.term):
                    self._append_answered(sender, message)
            case SnapReply():
                if self._leads(message.term):
                    self._snapshot_answered(sender, message)
            case _:
                self._elected(sender, message)

    def _elected(self, sender: NodeId, message: Vote | VoteReply | StandNow) -> None:
        match message:
            case Vote():
                self._asked_to_vote(sender, message)
            case VoteReply():
                self._vote_came(sender, message)
            case StandNow(term):
                if term == self.term and sender == self.leader:
                    self._stand(transfer=True)
            case _:
                assert_never(message)

    def _timers(self) -> None:
        if self.role is Role.LEADER:
            self._check_quorum()
        if self.role is Role.LEADER:
            self._change_seats()
            self._hand_over()
            if self._now >= self._beat_at:
                self._beat()
        elif self.cluster is not None and self._now >= self._stand_at:
            self._stand(transfer=False)
