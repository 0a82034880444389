"""The ledger: runs the consensus core, saves before it sends, applies what is committed
to the registry, and tells who is master.
"""

import random
from dataclasses import dataclass
from typing import assert_never

import structlog
import trio

from p2ptrain import codec
from p2ptrain.core.consensus import (
    Apply,
    Bootstrap,
    Compact,
    Consensus,
    ConsensusConfig,
    Effect,
    Event,
    Install,
    Lost,
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
from p2ptrain.core.registry import Registry
from p2ptrain.errors import ActorGoneError, LocalError, NoMasterError, PeerError
from p2ptrain.ids import ClusterId, NodeId
from p2ptrain.members import MemberStatus
from p2ptrain.messages.consensus import Entry, RaftMessage, RecordState
from p2ptrain.messages.record import Command
from p2ptrain.ports import Post, Record, Roster
from p2ptrain.runtime.changes import Changes
from p2ptrain.runtime.driver import drive
from p2ptrain.runtime.inbox import Inbox, Mail, Reply

INBOX_BOUND = 1024
COMMANDS = codec.kinds(Command)
PROPOSE_TIMEOUT_S = 30.0
PEERS_EVERY_S = 1.0
HAND_OVER_S = 3.0
_TICK: Event = Tick()
_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Proposal:
    """A command to commit; the reply is the registry's word."""

    command: Command
    reply: Reply[str]


@dataclass(frozen=True, slots=True)
class LedgerPorts:
    """What the ledger uses."""

    record: Record
    post: Post
    roster: Roster


class LedgerActor:
    """Satisfies ``ports.Log``; ``run`` is its task.

    Args:
        ports: the outside.
        saved: what the record held at this start.
        config: times and bounds of the core.
        rng: for the core.
    """

    def __init__(
        self,
        ports: LedgerPorts,
        saved: RecordState,
        config: ConsensusConfig,
        rng: random.Random,
    ) -> None:
        self.inbox: Inbox[Mail | Proposal | Event] = Inbox("ledger", INBOX_BOUND)
        self._ports = ports
        self._core = Consensus(ports.post.me, saved, config, rng, trio.current_time())
        self._registry = Registry()
        self._changes = Changes()
        self._waiting: dict[int, Reply[str]] = {}
        self._word = (0, "")  # the registry's word on the entry applied last
        self._token = 0
        self._leaderless_since: float | None = trio.current_time()

    @property
    def cluster(self) -> ClusterId | None:
        """The cluster that this node belongs to, once it has one."""
        return self._core.cluster

    @property
    def master(self) -> NodeId | None:
        """The master that this node follows now."""
        return self._core.leader

    @property
    def leaderless_s(self) -> float:
        """Seconds since this node last knew of a master; 0 while it does."""
        lost = self._leaderless_since
        return 0.0 if lost is None else trio.current_time() - lost

    @property
    def term(self) -> int:
        """The current term."""
        return self._core.term

    @property
    def voters(self) -> tuple[NodeId, ...]:
        """Who votes on the record."""
        return self._core.config.voters

    @property
    def registry(self) -> Registry:
        """What is committed, as applied here; read it, never change it."""
        return self._registry

    @property
    def applied(self) -> int:
        """How many changes (entries, role, master) were seen; rises only."""
        return self._changes.count

    async def changed(self, seen: int) -> int:
        """Wait until ``applied`` is not ``seen`` any more, and return it."""
        return await self._changes.wait(seen)

    async def propose(self, command: Command) -> str:
        """Commit a command; return the registry's word once it is applied here.

        Raises:
            NoMasterError: this node is not the master, or lost that role before the
                command was committed.
        """
        try:
            return await self.inbox.ref.ask(
                lambda reply: Proposal(command, reply), PROPOSE_TIMEOUT_S
            )
        except ActorGoneError as error:
            raise NoMasterError(str(error)) from error

    def found(self, cluster: ClusterId) -> None:
        """Found a cluster, if this node has none."""
        self.inbox.ref.offer(Bootstrap(cluster))

    async def hand_over(self) -> None:
        """Before leaving: let another node take the mastership, if one can."""
        if self._core.role is not Role.LEADER or len(self.voters) == 1:
            return
        await self.inbox.ref.tell(StepDown())
        seen = -1
        with trio.move_on_after(HAND_OVER_S):
            while self._core.role is Role.LEADER:
                seen = await self.changed(seen)

    async def run(self) -> None:
        """Take part in consensus until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._watch_roster)
            await drive(self._core, self._next, self._perform, _TICK, self._dropped)

    async def _next(self) -> Event:
        item = await self.inbox.receive()
        match item:
            case Mail(sender, message):
                raft: RaftMessage = message  # type: ignore[assignment]  # routed
                return Received(sender, raft)
            case Proposal(command, reply):
                self._token += 1
                self._waiting[self._token] = reply
                return ProposeCommand(self._token, codec.pack(command))
            case _:
                return item

    async def _perform(self, effect: Effect) -> None:
        match effect:
            case Save(change):
                await self._ports.record.save(change)
            case Send(to, message):
                self._ports.post.send(to, message)
            case Apply(entry):
                self._apply(entry)
            case Install(compacted):
                self._registry = Registry.restore(compacted.data)
                self._word = (compacted.index, "")
                self._changes.bump()
            case Proposed(token, index, refusal):
                self._answer(token, index, refusal)
            case RoleChanged(role, term, leader):
                self._note_leader(leader)
                _log.info("master", role=role, term=term, master=leader or "none")
                self._changes.bump()
            case WantCompact():
                state = Compact(self._word[0], self._registry.dump())
                self.inbox.ref.offer(state)
            case _:
                assert_never(effect)

    def _note_leader(self, leader: NodeId | None) -> None:
        if leader is not None:
            self._leaderless_since = None
        elif self._leaderless_since is None:
            self._leaderless_since = trio.current_time()

    def _apply(self, entry: Entry) -> None:
        try:
            command = codec.unpack(COMMANDS, entry.data)
        except PeerError as error:
            raise LocalError(
                f"entry {entry.index} of the record cannot be read: {error}; "
                "run the same p2ptrain release on all nodes"
            ) from error
        self._word = (entry.index, self._registry.apply(command))
        self._changes.bump()

    def _answer(self, token: int, index: int | None, refusal: str) -> None:
        reply = self._waiting.pop(token, None)
        if reply is None:
            return
        if index is None:
            reply.fail(NoMasterError(refusal))
        else:  # a proposal's end follows its Apply at once
            assert self._word[0] == index
            reply.send(self._word[1])

    async def _watch_roster(self) -> None:
        since: dict[NodeId, float] = {}
        seen = -1
        while True:
            now = trio.current_time()
            members = self._ports.roster.members()
            alive = {m.node for m in members if m.status is MemberStatus.ALIVE}
            for node in since.keys() - alive:
                self.inbox.ref.offer(Lost(node))
            since = {node: since.get(node, now) for node in alive}
            gone = tuple(m.node for m in members if m.status is MemberStatus.LEFT)
            peers = Peers(tuple((n, now - at) for n, at in since.items()), gone)
            self.inbox.ref.offer(peers)
            with trio.move_on_after(PEERS_EVERY_S):
                seen = await self._ports.roster.changed(seen)

    def _dropped(self, error: PeerError) -> None:
        _log.warning("consensus message dropped", reason=str(error))
