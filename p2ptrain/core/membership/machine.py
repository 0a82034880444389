"""Membership: who is in the cluster, who is alive, and where they listen.

SWIM with Lifeguard. Every ``probe_interval_s`` one member, in a reshuffled round, is
probed; a silent one is probed through helpers; still silent, it is suspected, and
everybody hears so. A suspect that hears of it refutes with a higher incarnation. One
that does not is dead after a time that shrinks as independent members confirm. News
rides on every message and is pushed to a few members at a time; once in a while two
compare their tables. Dead members' addresses are tried again for a day, so a cluster
that was cut in two grows together by itself.

A step that comes ``stall_s`` later than asked for means that this node did not run:
then nobody is blamed for the silence, all running times are extended by the pause.
"""

import random
from dataclasses import replace
from typing import assert_never

from p2ptrain.core.membership.beliefs import Beliefs
from p2ptrain.core.membership.probes import Outstanding, Probes
from p2ptrain.core.membership.types import (
    RUMORS_MAX,
    Effect,
    Event,
    Failed,
    Forget,
    Found,
    LeaveNow,
    Load,
    MembershipConfig,
    Received,
    SendTo,
    Tick,
    check_member,
    check_message,
)
from p2ptrain.errors import PeerError
from p2ptrain.ids import NodeId
from p2ptrain.members import Capabilities, Member
from p2ptrain.messages.membership import (
    Gossip,
    Hello,
    MembershipMessage,
    MemberSync,
    Probe,
    ProbeAck,
    ProbeFor,
    ProbeNack,
)


class Membership:
    """The core of one node.

    Args:
        me: this node's record, ALIVE, with an incarnation above that of its last start
            (seconds of the wall clock will do; a stale one is corrected by the others).
        config: times.
        rng: randomness.
        now: the time of birth.
    """

    def __init__(
        self, me: Member, config: MembershipConfig, rng: random.Random, now: float
    ) -> None:
        check_member(me)
        self._config = config
        self._rng = rng
        self._effects: list[Effect] = []
        self._probes = Probes(config, rng)
        self._beliefs = Beliefs(me, config, self._probes.health, self._effects)
        self._table = self._beliefs.table
        self._seeds = self._beliefs.seeds
        self._probe_at = now + rng.uniform(0, config.probe_interval_s)
        self._sync_at = now + rng.uniform(0, config.sync_interval_s)
        self._gossiped_at = now

    @property
    def me(self) -> Member:
        """This node's own record as it is told to others."""
        return self._beliefs.me

    @property
    def health(self) -> int:
        """Lifeguard's local health score; 0 is well."""
        return self._probes.health.score

    def members(self) -> tuple[Member, ...]:
        """All known members, this node first."""
        return (self.me, *self._table)

    @property
    def deadline(self) -> float:
        """When the next Tick is due."""
        times = [self._table.deadline, self._probes.deadline]
        if self._beliefs.rumors and self._table.present():
            times.append(self._gossiped_at + self._config.gossip_interval_s)
        if not self._beliefs.gone:
            times += [self._probe_at, self._sync_at, self._seeds.deadline]
        return min(times)

    def step(self, now: float, event: Event) -> list[Effect]:
        """Take one event; messages of effects are best effort.

        Raises:
            PeerError: a message that no honest member sends; nothing has changed.
        """
        self._effects.clear()
        late = now - self.deadline
        if late > self._config.stall_s:
            self._after_pause(late)
        match event:
            case Tick():
                pass
            case Received(sender, _, message):
                self._received(now, sender, message)
            case Found(address) if address == self.me.control:
                pass
            case Found(address):
                self._seeds.find(now, address)
            case Failed(address, closed):
                self._failed(now, address, closed=closed)
            case Forget(address, _):
                self._seeds.forget(now, address)
            case Load(capabilities):
                self._load(capabilities)
            case LeaveNow():
                self._beliefs.leave()
            case _:
                assert_never(event)
        self._timers(now)
        return self._effects.copy()

    def _received(self, now: float, sender: NodeId, message: MembershipMessage) -> None:
        check_message(sender, message)
        if sender == self.me.node:
            self._reflected(message)
            return
        if self._beliefs.gone:
            return
        match message:
            case Hello(me, at):
                self._beliefs.met(now, me)
                self._beliefs.sync(me.control, at, ask=True)
            case MemberSync():
                self._synced(now, message)
            case Probe():
                self._probed(now, message)
            case ProbeFor():
                self._asked_to_probe(now, message)
            case ProbeAck(seq, target, rumors):
                self._beliefs.hear_all(now, rumors)
                self._acked(now, seq, target)
            case ProbeNack(seq):
                self._probes.refused(seq)
            case Gossip(rumors):
                self._beliefs.hear_all(now, rumors)
            case _:
                assert_never(message)

    def _reflected(self, message: MembershipMessage) -> None:
        """Our own message came back, or somebody else runs under our identity."""
        if isinstance(message, Hello) and message.me.control == self.me.control:
            self._seeds.own(message.at)
            return
        raise PeerError(
            f"another node runs with this node's identity {self.me.node}: was the "
            "state folder copied? give each node its own"
        )

    def _failed(self, now: float, address: str, *, closed: bool) -> None:
        self._probes.unreachable(now, address)
        if closed:
            self._beliefs.suspect_at(now, address)

    def _load(self, capabilities: Capabilities) -> None:
        me = self.me
        if capabilities != me.capabilities:
            changed = replace(me, capabilities=capabilities)
            self._beliefs.raise_incarnation(changed, me.incarnation)

    def _synced(self, now: float, page: MemberSync) -> None:
        self._beliefs.met(now, page.me)
        if page.at:
            self._seeds.answered(page.at, page.me.node)
        self._beliefs.hear_page(now, page)
        if page.ask:
            self._beliefs.sync(page.me.control, "", ask=False)

    def _probed(self, now: float, probe: Probe) -> None:
        self._beliefs.met(now, probe.me)
        self._beliefs.hear_all(now, probe.rumors)
        if probe.target != self.me.node:
            # Another node had our address before: tell who is here now.
            hello = Hello(self.me, probe.me.control)
            self._effects.append(SendTo(probe.me.control, hello))
            return
        news = self._beliefs.news_for(probe.me.node, probe.me)
        ack = ProbeAck(probe.seq, probe.target, news)
        self._effects.append(SendTo(probe.me.control, ack))

    def _asked_to_probe(self, now: float, ask: ProbeFor) -> None:
        self._beliefs.met(now, ask.me)
        self._beliefs.hear_all(now, ask.rumors)
        target = self._table.get(ask.target)
        seq = None
        if target is not None:
            seq = self._probes.relay(now, ask.me.control, ask.seq, ask.target)
        if target is None or seq is None:
            self._effects.append(SendTo(ask.me.control, ProbeNack(ask.seq)))
            return
        self._send_probe(seq, target)

    def _acked(self, now: float, seq: int, target: NodeId) -> None:
        relay = self._probes.relayed(seq, target)
        if relay is None:
            self._probes.answered(now, seq, target)
        else:
            ack = ProbeAck(relay.asked, target, ())
            self._effects.append(SendTo(relay.asker, ack))

    def _after_pause(self, late_s: float) -> None:
        self._probes.shift(late_s)
        self._table.shift(late_s)
        self._probes.health.note(1)

    def _timers(self, now: float) -> None:
        for relay in self._probes.relays_due(now):
            self._effects.append(SendTo(relay.asker, ProbeNack(relay.asked)))
        for probe in self._probes.due(now):
            self._silent(now, probe)
        # After the probes: this node's own voice may be the one that was missing.
        self._beliefs.age(now)
        if not self._beliefs.gone:
            self._probe_next(now)
            self._greet(now)
            self._compare(now)
        self._spread(now)

    def _silent(self, now: float, probe: Outstanding) -> None:
        helpers = self._helpers(probe)
        if not helpers:
            self._probes.failed(probe)
            self._beliefs.suspect(now, probe.target.node)
            return
        self._probes.go_indirect(now, probe, len(helpers))
        self._send_probe(probe.seq, probe.target)
        for helper in helpers:
            news = self._beliefs.news_for(helper.node)
            self._send(helper, ProbeFor(self.me, probe.seq, probe.target.node, news))

    def _helpers(self, probe: Outstanding) -> list[Member]:
        if probe.indirect:
            return []
        others = self._table.alive_but(probe.target.node)
        return self._rng.sample(others, min(self._config.helpers, len(others)))

    def _probe_next(self, now: float) -> None:
        if now < self._probe_at:
            return
        pause = self._config.probe_interval_s * self._probes.health.factor
        self._probe_at = now + pause
        target = self._probes.next_target(self._table.present())
        if target is not None:
            self._send_probe(self._probes.start(now, target).seq, target)

    def _greet(self, now: float) -> None:
        for address in self._seeds.due(now, self._beliefs.is_alive):
            self._effects.append(SendTo(address, Hello(self.me, address)))

    def _compare(self, now: float) -> None:
        if now < self._sync_at:
            return
        self._sync_at = now + self._config.sync_interval_s
        present = self._table.present()
        if present:
            self._beliefs.sync(self._rng.choice(present).control, "", ask=True)

    def _spread(self, now: float) -> None:
        if now < self._gossiped_at + self._config.gossip_interval_s:
            return
        present = self._table.present()
        if not self._beliefs.rumors or not present:
            return
        self._gossiped_at = now
        for member in self._rng.sample(present, min(self._config.fanout, len(present))):
            rumors = self._beliefs.rumors.take(RUMORS_MAX, len(present) + 1)
            if rumors:
                self._send(member, Gossip(rumors))

    def _send(self, member: Member, message: MembershipMessage) -> None:
        self._effects.append(SendTo(member.control, message))

    def _send_probe(self, seq: int, target: Member) -> None:
        news = self._beliefs.news_for(target.node)
        self._send(target, Probe(self.me, seq, target.node, news))
