"""Raft's rules one by one; ``tests/sim`` has them all at once."""

import random

import pytest

from p2ptrain import codec
from p2ptrain.core.consensus import (
    Apply,
    Bootstrap,
    Consensus,
    ConsensusConfig,
    Lost,
    Peers,
    ProposeCommand,
    Proposed,
    Received,
    Role,
    Save,
    Send,
    StepDown,
    Tick,
)
from p2ptrain.errors import PeerError
from p2ptrain.ids import ClusterId, NodeId
from p2ptrain.messages.consensus import (
    Append,
    AppendReply,
    Config,
    Entry,
    EntryKind,
    RecordState,
    StandNow,
    Vote,
    VoteReply,
)
from tests.sim.rafts import EMPTY, saved_after

A, B, C = (NodeId(letter * 32) for letter in "abc")
CLUSTER = ClusterId("f" * 32)


def config_entry(index: int, term: int, *voters: NodeId) -> Entry:
    data = codec.encode(codec.to_plain(Config(voters, ())))
    return Entry(index, term, EntryKind.CONFIG, data)


def command(index: int, term: int) -> Entry:
    return Entry(index, term, EntryKind.COMMAND, b"%d" % index)


def three(*entries: Entry, term: int = 1) -> RecordState:
    log = (config_entry(1, 0, A, B, C), *entries)
    return RecordState(CLUSTER, term, None, None, log)


class Lone:
    """One core whose disk is at hand; messages are what it would send."""

    def __init__(self, saved: RecordState, me: NodeId = A) -> None:
        self.disk, self.now = saved, 0.0
        self.core = Consensus(me, saved, ConsensusConfig(), random.Random(1), 0.0)

    def step(self, event: object) -> list[object]:
        effects = self.core.step(self.now, event)
        kinds = [type(effect) for effect in effects]
        assert Save not in kinds[1:], "a save stands behind something that relies on it"
        for effect in effects:
            if isinstance(effect, Save):
                self.disk = saved_after(self.disk, effect.change)
        return effects

    def hear(self, sender: NodeId, message: object) -> list[object]:
        return [
            e.message
            for e in self.step(Received(sender, message))
            if isinstance(e, Send) and e.to == sender
        ]

    def wait(self, seconds: float) -> list[object]:
        effects: list[object] = []
        end = self.now + seconds
        while self.core.deadline <= end:
            self.now = self.core.deadline
            effects += self.step(Tick())
        self.now = end
        return effects

    def restart(self) -> "Lone":
        return Lone(self.disk, self.core.me)

    def lead(self) -> int:
        """Win an election of three; return the term."""
        self.wait(1.3)
        term = self.core.term + 1
        self.hear(B, VoteReply(term, pre=True, granted=True))
        self.hear(B, VoteReply(term, pre=False, granted=True))
        assert self.core.role is Role.LEADER
        return term


def vote(term: int, last: int = 1, last_term: int = 0, *, pre: bool = False) -> Vote:
    return Vote(term, last, last_term, pre=pre, transfer=False)


def granted(replies: list[object]) -> bool:
    (reply,) = replies
    assert isinstance(reply, VoteReply)
    return reply.granted


def test_a_vote_is_given_once_a_term_and_survives_a_restart() -> None:
    node = Lone(three())
    node.now = 0.1
    assert granted(node.hear(B, vote(2)))
    assert not granted(node.hear(C, vote(2)))
    assert node.disk.vote == B
    again = node.restart()
    again.now = 0.1
    assert not granted(again.hear(C, vote(2)))
    assert granted(again.hear(B, vote(2)))


def test_a_stale_log_gets_no_vote() -> None:
    node = Lone(three(command(2, 1)))
    node.now = 0.1
    assert not granted(node.hear(B, vote(3, last=1, last_term=0)))
    assert not granted(node.hear(C, vote(4, last=9, last_term=0)))
    assert granted(node.hear(C, vote(5, last=2, last_term=1)))


def test_a_pre_vote_changes_nothing() -> None:
    node = Lone(three())
    node.now = 0.1
    assert granted(node.hear(B, vote(2, pre=True)))
    assert (node.core.term, node.disk.term, node.core.vote) == (1, 1, None)


def test_who_hears_a_leader_does_not_help_another() -> None:
    node = Lone(three())
    node.hear(B, Append(1, CLUSTER, 1, 0, (), 0))
    node.now += 0.3
    assert not granted(node.hear(C, vote(1)))
    assert node.hear(C, vote(9)) == []
    assert node.core.term == 1
    node.now += 1.0
    assert granted(node.hear(C, vote(9)))


def test_an_entry_of_an_old_term_is_not_committed_by_counting() -> None:
    node = Lone(three(command(2, 1)))
    term = node.lead()
    effects = node.step(Received(B, AppendReply(term, ok=True, match=2)))
    assert node.core.commit < 2
    assert not [e for e in effects if isinstance(e, Apply)]
    effects = node.step(Received(B, AppendReply(term, ok=True, match=3)))
    assert node.core.commit == 3
    assert [e.entry.index for e in effects if isinstance(e, Apply)] == [2]


def test_a_majority_is_more_than_half() -> None:
    node = Lone(three())
    term = node.lead()
    node.step(ProposeCommand(7, b"x"))
    assert node.core.commit == 0
    effects = node.step(Received(C, AppendReply(term, ok=True, match=3)))
    assert Proposed(7, 3, "") in effects


def test_even_voters_need_more_than_half() -> None:
    node = Lone(RecordState(CLUSTER, 1, None, None, (config_entry(1, 0, A, B),)))
    node.wait(1.3)
    assert node.core.role is Role.CANDIDATE
    node.lead()
    node.step(ProposeCommand(7, b"x"))
    assert node.core.commit == 0


def test_one_change_of_seats_at_a_time() -> None:
    node = Lone(three())
    term = node.lead()
    newcomers = tuple((NodeId(letter * 32), 9.0) for letter in "de")
    node.step(Peers(newcomers, ()))
    before = node.core.log.last
    assert node.core.config.learners == (), "a leader first commits in its own term"
    node.step(Received(B, AppendReply(term, ok=True, match=before)))
    assert len(node.core.config.learners) == 1
    node.step(Peers(newcomers, ()))
    assert node.core.log.last == before + 1, "a second change began before the first"
    node.step(Received(B, AppendReply(term, ok=True, match=before + 1)))
    assert len(node.core.config.learners) == 2


def test_a_leader_without_a_majority_steps_down() -> None:
    node = Lone(three())
    node.lead()
    node.step(ProposeCommand(1, b"x"))
    effects = node.wait(1.5)
    assert node.core.role is not Role.LEADER
    assert node.core.leader is None
    refusals = [e for e in effects if isinstance(e, Proposed)]
    assert [(e.token, e.index) for e in refusals] == [(1, None)]


def test_a_follower_replaces_what_conflicts() -> None:
    node = Lone(three(command(2, 1), command(3, 1)))
    entry = Entry(2, 2, EntryKind.COMMAND, b"new")
    (reply,) = node.hear(B, Append(2, CLUSTER, 1, 0, (entry,), 2))
    assert reply == AppendReply(2, ok=True, match=2)
    assert node.core.log.last == 2
    assert [e.data for e in node.disk.entries[1:]] == [b"new"]


def test_a_gap_is_refused_with_where_to_go_on() -> None:
    node = Lone(three(command(2, 1)))
    (reply,) = node.hear(B, Append(2, CLUSTER, 7, 1, (), 0))
    assert reply == AppendReply(2, ok=False, match=2)


@pytest.mark.parametrize(
    "entries",
    [
        (command(3, 1),),
        (command(2, 1), command(4, 1)),
        (command(2, 9),),
        (command(2, 1), command(3, 0)),
    ],
)
def test_entries_that_are_no_run_are_a_peers_fault(entries: tuple[Entry, ...]) -> None:
    node = Lone(three())
    with pytest.raises(PeerError):
        node.hear(B, Append(1, CLUSTER, 1, 0, entries, 0))
    assert node.core.log.last == 1


def test_another_cluster_is_a_peers_fault() -> None:
    node = Lone(three())
    with pytest.raises(PeerError, match="leads cluster"):
        node.hear(B, Append(1, ClusterId("0" * 32), 1, 0, (), 0))


def test_a_founder_commits_alone_and_once() -> None:
    node = Lone(EMPTY)
    assert node.core.deadline == float("inf")
    node.step(Bootstrap(CLUSTER))
    assert node.core.role is Role.LEADER
    effects = node.step(ProposeCommand(1, b"x"))
    assert [type(e) for e in effects[:3]] == [Save, Apply, Proposed]
    again = node.restart()
    again.step(Bootstrap(ClusterId("0" * 32)))
    assert again.core.cluster == CLUSTER


def test_a_leader_that_leaves_hands_over() -> None:
    node = Lone(three())
    term = node.lead()
    node.step(Received(B, AppendReply(term, ok=True, match=node.core.log.last)))
    effects = node.step(StepDown())
    assert Send(B, StandNow(term)) in effects
    refusal = node.step(ProposeCommand(1, b"x"))
    assert any(isinstance(e, Proposed) and e.index is None for e in refusal)


def test_who_is_asked_to_stand_stands_at_once() -> None:
    node = Lone(three())
    node.hear(B, Append(1, CLUSTER, 1, 0, (), 0))
    votes = node.hear(B, StandNow(1))
    assert node.core.term == 2
    assert votes == [Vote(2, 1, 0, pre=False, transfer=True)]


def test_a_leader_that_is_not_counted_on_is_replaced_at_once() -> None:
    node = Lone(three())
    node.hear(B, Append(1, CLUSTER, 1, 0, (), 1))
    assert node.core.leader == B
    node.wait(0.1)
    assert node.hear(C, vote(2, pre=True)) == []  # B was heard a moment ago
    node.step(Lost(C))  # another one: nothing changes
    assert node.hear(C, vote(2, pre=True)) == []
    node.step(Lost(B))
    assert granted(node.hear(C, vote(2, pre=True)))
    asked = [e for e in node.wait(0.16) if isinstance(e, Send)]
    assert {type(e.message) for e in asked} == {Vote}
    assert node.core.term == 1  # it only asks whether it would be elected


def test_a_leader_that_lives_after_all_keeps_its_place() -> None:
    node = Lone(three())
    node.hear(B, Append(1, CLUSTER, 1, 0, (), 1))
    node.step(Lost(B))
    node.hear(B, Append(1, CLUSTER, 1, 0, (), 1))
    assert node.hear(C, vote(2, pre=True)) == []
    assert not [e for e in node.wait(0.5) if isinstance(e, Send)]
    assert node.core.leader == B


def test_an_election_is_tried_again_when_a_voter_returns() -> None:
    node = Lone(three())
    node.step(Peers(((A, 9.0),), ()))
    node.wait(1.2)
    assert node.core.role is Role.CANDIDATE
    until = node.core.deadline
    node.step(Peers(((A, 9.0), (NodeId("d" * 32), 0.0)), ()))  # no voter
    assert node.core.deadline == until
    node.step(Peers(((A, 9.0), (B, 0.0)), ()))
    assert node.core.deadline <= node.now + 0.15


def test_a_vote_in_a_term_that_was_known_before_outlives_a_crash() -> None:
    node = Lone(three())
    node.hear(B, VoteReply(2, pre=False, granted=False))  # so term 2 has begun
    assert node.core.term == 2
    assert granted(node.hear(C, vote(2)))
    assert node.disk.vote == C
    assert not granted(node.restart().hear(B, vote(2)))


def test_a_term_that_was_heard_of_outlives_a_crash() -> None:
    node = Lone(three())
    node.hear(B, VoteReply(7, pre=False, granted=False))
    assert node.core.term == node.disk.term == 7
    assert node.disk.vote is None
    assert node.restart().core.term == 7
