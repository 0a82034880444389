"""What this node believes of itself and of the others, and whom it tells.

Hearing a claim is the only way in: it may change the table, be passed on, or, when it
is about this node itself, be refuted.
"""

from dataclasses import replace

from p2ptrain.core.membership.probes import Health
from p2ptrain.core.membership.rumors import Rumors
from p2ptrain.core.membership.seeds import Seeds
from p2ptrain.core.membership.table import PRESENT, Table, as_status, claim
from p2ptrain.core.membership.types import (
    INCARNATION_MAX,
    PAGE_MAX,
    RUMORS_MAX,
    Changed,
    Effect,
    MembershipConfig,
    SendTo,
)
from p2ptrain.ids import NodeId
from p2ptrain.members import Member, MemberStatus
from p2ptrain.messages.membership import Gossip, MemberSync, Rumor


class Beliefs:
    """The table, this node's own record, the seeds and the news that go with them.

    Args:
        me: this node's record.
        config: times and bounds.
        health: worsened by each suspicion of this node itself.
        effects: where effects are appended.
    """

    def __init__(
        self,
        me: Member,
        config: MembershipConfig,
        health: Health,
        effects: list[Effect],
    ) -> None:
        self.me = me
        self.table = Table(config)
        self.seeds = Seeds(config)
        self.rumors = Rumors(config.transmit_factor)
        self._health = health
        self._effects = effects

    @property
    def gone(self) -> bool:
        """Whether this node has left."""
        return self.me.status is MemberStatus.LEFT

    def claimed(self, member: Member) -> Rumor:
        """Return this node's own claim about a member."""
        return Rumor(member, self.me.node)

    def met(self, now: float, member: Member) -> None:
        """The member speaks for itself."""
        self.hear(now, Rumor(member, member.node))

    def hear_all(self, now: float, rumors: tuple[Rumor, ...]) -> None:
        """Take all claims of a message."""
        for rumor in rumors:
            self.hear(now, rumor)

    def hear(self, now: float, rumor: Rumor) -> None:
        """Take one claim."""
        member = rumor.member
        if member.node == self.me.node:
            self._defend(member)
            return
        before = self.table.get(member.node)
        if not self.table.hear(now, rumor):
            return
        self.rumors.add(rumor)
        if before != member:
            self._believe(now, member)

    def hear_page(self, now: float, page: MemberSync) -> None:
        """Take the claims of a whole-table comparison.

        A death heard of this way, late, only makes a suspect of one that is believed
        present: it can still refute.
        """
        for member in page.members:
            mine = self.table.get(member.node)
            dead = member.status is MemberStatus.DEAD
            soften = dead and mine is not None and mine.status in PRESENT
            claimed = as_status(member, MemberStatus.SUSPECT) if soften else member
            self.hear(now, Rumor(claimed, page.me.node))

    def suspect(self, now: float, node: NodeId) -> None:
        """This node could not reach a member."""
        member = self.table.get(node)
        if member is not None and member.status in PRESENT:
            self.hear(now, self.claimed(as_status(member, MemberStatus.SUSPECT)))

    def suspect_at(self, now: float, address: str) -> None:
        """Suspect whoever listens at an address."""
        for member in self.table.present():
            if member.control == address:
                self.suspect(now, member.node)

    def age(self, now: float) -> None:
        """Bury the suspects whose time is up; drop who has long been dead."""
        for member in self.table.overdue(now):
            self.hear(now, self.claimed(as_status(member, MemberStatus.DEAD)))
        for member in self.table.reap(now):
            self.rumors.drop(member.node)
            self._effects.append(Changed(member))

    def raise_incarnation(self, me: Member, above: int) -> None:
        """Tell the others of a record of this node that beats all older ones."""
        if above < INCARNATION_MAX:
            self.me = replace(me, incarnation=above + 1)
            self.rumors.add(self.claimed(self.me))
            self._effects.append(Changed(self.me))

    def leave(self) -> None:
        """This node is LEFT from now on; the others are told."""
        self.me = as_status(self.me, MemberStatus.LEFT)
        self.rumors.add(self.claimed(self.me))
        self._effects.append(Changed(self.me))
        news = Gossip((self.claimed(self.me),))
        for member in self.table.present():
            self._effects.append(SendTo(member.control, news))

    def news_for(self, node: NodeId, said: Member | None = None) -> tuple[Rumor, ...]:
        """Return rumors to ride along in a message to ``node``.

        First comes what is believed of the receiver if that is not what it ``said``
        (by default: that it is alive), so that it can refute at once (Lifeguard's
        buddy system).
        """
        member = self.table.get(node)
        agreed = member is None or (
            member.status is MemberStatus.ALIVE if said is None else member == said
        )
        first = () if member is None or agreed else (self.claimed(member),)
        count = len(self.table.present()) + 1
        return (*first, *self.rumors.take(RUMORS_MAX - len(first), count))

    def sync(self, address: str, at: str, *, ask: bool) -> None:
        """Send the whole table, in pages."""
        members = list(self.table)
        starts = range(0, max(1, len(members)), PAGE_MAX)
        for start in starts:
            page = tuple(members[start : start + PAGE_MAX])
            last = start == starts[-1]
            message = MemberSync(self.me, at, page, ask and last)
            self._effects.append(SendTo(address, message))

    def is_alive(self, address: str, owner: NodeId | None) -> bool:
        """Tell whether a live member (or this node) is behind an address."""
        member = self.table.get(owner) if owner else None
        if member is not None and member.status is MemberStatus.ALIVE:
            return True
        return address == self.me.control or self.table.alive_at(address)

    def _believe(self, now: float, member: Member) -> None:
        self._effects.append(Changed(member))
        if member.status is MemberStatus.DEAD:
            self.seeds.retry(now, member.control)
        elif member.status is MemberStatus.LEFT:
            self.seeds.stop(member.control)

    def _defend(self, said: Member) -> None:
        """Refute what is said of this node when it is not what this node says."""
        if self.gone or said == self.me or claim(said) < claim(self.me):
            return
        if said.status is not MemberStatus.ALIVE:
            self._health.note(1)
        self.raise_incarnation(self.me, said.incarnation)
