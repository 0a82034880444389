"""Consensus and registry cores of several nodes in one world, and Raft's invariants."""

import itertools
import random
from dataclasses import replace

from p2ptrain.core.consensus import (
    Apply,
    Bootstrap,
    Compact,
    Consensus,
    ConsensusConfig,
    Install,
    Peers,
    ProposeCommand,
    Proposed,
    Received,
    Role,
    RoleChanged,
    Save,
    Send,
    StepDown,
    Tick,
    WantCompact,
)
from p2ptrain.errors import PeerError
from p2ptrain.ids import ClusterId, NodeId
from p2ptrain.messages.consensus import Entry, RecordChange, RecordState
from tests.sim.world import World

EMPTY = RecordState(None, 0, None, None, ())
CLUSTER = ClusterId("c" * 32)


def node_id(index: int) -> NodeId:
    return NodeId(f"{index:032x}")


def saved_after(state: RecordState, change: RecordChange) -> RecordState:
    """Return what a disk holds after a change."""
    entries = list(state.entries)
    if change.compacted is not None:
        base = change.compacted.index
        entries = [entry for entry in entries if entry.index > base]
    if change.truncate_from is not None:
        entries = [e for e in entries if e.index < change.truncate_from]
    entries += change.entries
    return RecordState(
        cluster=change.cluster or state.cluster,
        term=state.term if change.term is None else change.term,
        vote=state.vote if change.term is None else change.vote,
        compacted=change.compacted or state.compacted,
        entries=tuple(entries),
    )


class Member:
    """One node: a core, a disk, and a state machine that lists what it applied."""

    def __init__(self, fleet: "Fleet", index: int) -> None:
        self.fleet, self.index, self.me = fleet, index, node_id(index)
        self.disk = EMPTY
        self.core: Consensus | None = None
        self.life = 0
        self.applied: list[bytes] = []
        self.up_since = 0.0

    def start(self) -> None:
        world = self.fleet.world
        self.life += 1
        self.applied = []
        self.up_since = world.now
        settings = replace(ConsensusConfig(), compact_after=self.fleet.compact_after)
        rng = random.Random(world.rng.random())
        self.core = Consensus(self.me, self.disk, settings, rng, world.now)
        self.do(Tick())

    def crash(self) -> None:
        self.core = None

    def do(self, event: object) -> None:
        if self.core is None:
            return
        try:
            effects = self.core.step(self.fleet.world.now, event)
        except PeerError as error:
            self.fleet.world.note(f"n{self.index} refused: {error}")
            return
        for effect in effects:
            self.perform(effect)
        self.sleep()

    def sleep(self) -> None:
        if self.core is None or self.core.deadline == float("inf"):
            return
        life, world = self.life, self.fleet.world
        drift = world.rng.uniform(1.0, 1.1)  # no clock is exact
        delay = max(0.0, self.core.deadline - world.now) * drift

        def wake() -> None:
            if self.core and self.life == life and self.core.deadline <= world.now:
                self.do(Tick())

        world.later(delay, wake)

    def perform(self, effect: object) -> None:
        match effect:
            case Save(change):
                self.disk = saved_after(self.disk, change)
            case Send(to, message):
                self.fleet.carry(self.index, int(to, 16), message)
            case Apply(entry):
                self.applied.append(entry.data)
                self.fleet.committed(self, entry)
            case Install(compacted):
                self.applied = compacted.data.split(b"\n") if compacted.data else []
                self.fleet.world.note(f"n{self.index} installs {compacted.index}")
            case Proposed(token, index, refusal):
                self.fleet.answered(token, index, refusal)
            case RoleChanged(role, term, leader):
                self.fleet.roles(self, role, term, leader)
            case WantCompact():
                assert self.core is not None
                state = b"\n".join(self.applied)
                index = self.core.commit
                self.fleet.world.later(
                    0.01, lambda: self.do(Compact(index, state)) if state else None
                )


class Fleet:
    """The nodes, what they promised, and the checks after each event."""

    def __init__(self, world: World, count: int, compact_after: int = 40) -> None:
        self.world = world
        self.compact_after = compact_after
        self.members = [Member(self, index) for index in range(count)]
        self.leaders: dict[int, NodeId] = {}
        self.log: dict[int, Entry] = {}  # committed entries by index
        self.accepted: list[int] = []
        self.left: set[int] = set()
        self._token = 0

    def begin(self) -> None:
        for member in self.members:
            member.start()
        self.members[0].do(Bootstrap(CLUSTER))
        self.watch()

    def watch(self) -> None:
        """Tell every node, now and then, who is up and not cut off from it."""
        for member in self.members:
            alive = tuple(
                (other.me, self.world.now - other.up_since)
                for other in self.members
                if other.core is not None
                and (other.index, member.index) not in self.world.cut
                and other.index not in self.left
            )
            gone = tuple(node_id(index) for index in self.left)
            member.do(Peers(alive, gone))
        self.world.later(0.5, self.watch)

    def carry(self, source: int, target: int, message: object) -> None:
        receiver, life = self.members[target], self.members[target].life

        def deliver() -> None:
            if receiver.life == life:
                receiver.do(Received(node_id(source), message))

        self.world.send(source, target, deliver)

    def propose(self) -> None:
        """Hand a command to whoever believes to lead."""
        for member in self.members:
            if member.core is not None and member.core.role is Role.LEADER:
                self._token += 1
                data = b"command %d" % self._token
                member.do(ProposeCommand(self._token, data))

    def leave(self, index: int) -> None:
        self.members[index].do(StepDown())

    def answered(self, token: int, index: int | None, refusal: str) -> None:
        assert (index is None) == bool(refusal)
        if index is not None:
            assert self.log[index].data == b"command %d" % token
            self.accepted.append(token)

    def committed(self, member: Member, entry: Entry) -> None:
        known = self.log.setdefault(entry.index, entry)
        assert known == entry, f"n{member.index} applied another entry {entry.index}"

    def roles(
        self, member: Member, role: Role, term: int, leader: NodeId | None
    ) -> None:
        self.world.note(f"n{member.index} {role} of term {term}, leader {leader}")
        if role is Role.LEADER:
            other = self.leaders.setdefault(term, member.me)
            assert other == member.me, f"two leaders in term {term}"

    def check(self) -> None:
        """Log matching: where terms agree at an index, all before agrees too."""
        live = [m.core for m in self.members if m.core is not None]
        for left, right in itertools.pairwise(live):
            low = max(left.log.base, right.log.base)
            top = min(left.log.last, right.log.last)
            while top > low and left.log.term_at(top) != right.log.term_at(top):
                top -= 1
            if top > low:
                ours = left.log.entries[low - left.log.base : top - left.log.base]
                theirs = right.log.entries[low - right.log.base : top - right.log.base]
                assert ours == theirs, "logs agree at an index and differ before it"

    def settled(self) -> bool:
        """Whether there is one leader and all who are up applied the same."""
        up = [
            m for m in self.members if m.core is not None and m.index not in self.left
        ]
        leads = [m for m in up if m.core and m.core.role is Role.LEADER]
        return len(leads) == 1 and all(m.applied == leads[0].applied for m in up)
