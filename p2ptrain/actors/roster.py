"""The roster: runs the membership core and answers who is in the cluster."""

import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import assert_never

import structlog
import trio

from p2ptrain.core.membership import (
    Changed,
    Effect,
    Event,
    Failed,
    Forget,
    Found,
    LeaveNow,
    Load,
    Membership,
    MembershipConfig,
    Received,
    SendTo,
    Tick,
)
from p2ptrain.errors import PeerError
from p2ptrain.ids import NodeId
from p2ptrain.members import Member, MemberStatus
from p2ptrain.messages.membership import MembershipMessage
from p2ptrain.runtime.changes import Changes
from p2ptrain.runtime.driver import drive
from p2ptrain.runtime.inbox import Inbox, Mail

INBOX_BOUND = 1024
FAREWELL_S = 0.5
_TICK: Event = Tick()
_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Neighbourhood:
    """Where a node begins: its own record, and addresses at which others may be."""

    me: Member
    seeds: tuple[str, ...]
    config: MembershipConfig


class RosterActor:
    """Satisfies ``ports.Roster``; ``run`` is its task.

    Args:
        start: this node and its seeds.
        send_to: sends a message to an address, best effort.
        rng: for the core.
    """

    def __init__(
        self,
        start: Neighbourhood,
        send_to: Callable[[str, object], None],
        rng: random.Random,
    ) -> None:
        self.inbox: Inbox[Mail | Event] = Inbox("roster", INBOX_BOUND)
        self._start = start
        self._send_to = send_to
        self._rng = rng
        self._members: dict[NodeId, Member] = {start.me.node: start.me}
        self._core: Membership | None = None
        self._changes = Changes()
        self._refused: set[str] = set()

    async def run(self) -> None:
        """Take part in membership until cancelled."""
        start = self._start
        core = Membership(start.me, start.config, self._rng, trio.current_time())
        self._core = core
        for seed in start.seeds:
            self.found(seed)
        await drive(core, self._next, self._perform, _TICK, self._dropped)

    def members(self) -> tuple[Member, ...]:
        """All known members, this node included."""
        return tuple(self._members.values())

    async def changed(self, seen: int) -> int:
        """Wait until the change count is not ``seen`` any more, and return it."""
        return await self._changes.wait(seen)

    def control_of(self, node: NodeId) -> str | None:
        """Return a node's control address, unless it is unknown or has left."""
        member = self._members.get(node)
        return member.control if member else None

    def bulk_of(self, node: NodeId) -> str | None:
        """Return a node's bulk address, unless it is unknown or has left."""
        member = self._members.get(node)
        return member.bulk if member else None

    def found(self, address: str) -> None:
        """A node may listen at ``address``."""
        self.inbox.ref.offer(Found(address))

    def failed(self, address: str) -> None:
        """A message to ``address`` did not arrive."""
        self.inbox.ref.offer(Failed(address))

    def lost(self, address: str) -> None:
        """The node at ``address`` closed its connection to this one."""
        self.inbox.ref.offer(Failed(address, closed=True))

    def refused(self, address: str, sentence: str) -> None:
        """The node at ``address`` will not talk with us; logged once per sentence."""
        if sentence not in self._refused and len(self._refused) < 64:
            self._refused.add(sentence)
            _log.warning("refused by a node", address=address, reason=sentence)
        self.inbox.ref.offer(Forget(address, sentence))

    def retire(self) -> None:
        """Tell the others that this node trains no more."""
        fewer = replace(self._start.me.capabilities, trains=False)
        self.inbox.ref.offer(Load(fewer))

    async def leave(self) -> None:
        """Tell the others that this node leaves for good, and let the words go out."""
        await self.inbox.ref.tell(LeaveNow())
        await trio.sleep(FAREWELL_S)

    async def _next(self) -> Event:
        item = await self.inbox.receive()
        if not isinstance(item, Mail):
            return item
        message: MembershipMessage = item.message  # type: ignore[assignment]  # routed
        return Received(item.sender, "", message)

    async def _perform(self, effect: Effect) -> None:
        match effect:
            case SendTo(address, message):
                self._send_to(address, message)
            case Changed(member):
                self._note(member)
            case _:
                assert_never(effect)

    def _note(self, member: Member) -> None:
        before = self._members.get(member.node)
        assert self._core is not None
        self._members = {item.node: item for item in self._core.members()}
        if before is None or before.status is not member.status:
            level = _log.info if member.status is MemberStatus.ALIVE else _log.warning
            level("member", node=member.name, id=member.node, status=member.status)
        self._changes.bump()

    def _dropped(self, error: PeerError) -> None:
        _log.debug("membership message dropped", reason=str(error))
