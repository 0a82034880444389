"""Whole nodes in one deterministic world: membership, consensus, registry, session
masters, workers, transfers and rings, wired as the daemon's actors wire them.
"""

import random
from collections.abc import Callable
from typing import Any, get_args

from p2ptrain import codec
from p2ptrain.core import consensus as raft
from p2ptrain.core import membership as swim
from p2ptrain.core import session as lead
from p2ptrain.core import transfer as move
from p2ptrain.core import worker as work
from p2ptrain.core.registry import Registry
from p2ptrain.errors import PeerError
from p2ptrain.ids import ClusterId, Digest, NodeId, SessionId, digest_of, session_of
from p2ptrain.members import Capabilities, Member, MemberStatus
from p2ptrain.messages.consensus import RaftMessage, RecordState, Vote, VoteReply
from p2ptrain.messages.membership import MembershipMessage
from p2ptrain.messages.record import AddSession, BlobRef, Command, SessionStatus
from p2ptrain.messages.session import Order, WorkerState
from p2ptrain.messages.trainer import Fault
from tests.sim.rafts import EMPTY, node_id, saved_after
from tests.sim.trainers import RingFrame, SimJob, SimTrainer, digest_at, oracle
from tests.sim.world import World

COMMANDS = codec.kinds(Command)
CLUSTER = ClusterId("c" * 32)
ASK_S = 1.0
FINAL = {SessionStatus.DONE, SessionStatus.FAILED, SessionStatus.STOPPED}
Answer = Callable[[Any], None]


class SimNode:
    """One machine: what is on its disk survives ``crash``, the rest does not."""

    def __init__(self, cluster: "SimCluster", index: int) -> None:
        self.cluster, self.index, self.id = cluster, index, node_id(index)
        self.disk: RecordState = EMPTY
        self.blobs: dict[Digest, bytes] = {}
        self.partial: dict[Digest, bytearray] = {}
        self.life = 0
        self.clock_off_s = 0.0  # of the wall clock, which nothing but numbers follow
        self.slow = 1.0  # everything takes so many times as long
        self.full = False  # the disk takes no more files
        self.up = self.frozen = False
        self.deferred: list[Callable[[], None]] = []

    # --- life

    def start(self) -> None:
        world = self.cluster.world
        self.life += 1
        self.up = True
        self.files: dict[str, bytes] = {}
        self.registry = Registry()
        self.masters: dict[SessionId, lead.SessionMaster] = {}
        self.rows: dict[SessionId, Any] = {}
        self.workers: dict[SessionId, work.SessionWorker] = {}
        self.trainers: dict[SessionId, SimTrainer] = {}
        self.moves: dict[Digest, tuple[move.Transfer, list[Answer]]] = {}
        self.since: dict[NodeId, float] = {}
        self.led_term = 0
        rng = random.Random(world.rng.random())
        me = self.member()
        self.swim = swim.Membership(me, swim.MembershipConfig(), rng, world.now)
        self.raft = raft.Consensus(
            self.id, self.disk, raft.ConsensusConfig(compact_after=60), rng, world.now
        )
        self.raft_step(raft.Tick())
        if self.index == 0 and self.raft.cluster is None:
            self.raft_step(raft.Bootstrap(CLUSTER))
        else:
            self.swim_step(swim.Found("host-0"))
        self.pulse()

    def member(self) -> Member:
        return Member(
            node=self.id,
            name=f"n{self.index}",
            incarnation=max(0, int(self.wall_s * 1000) + self.life),
            status=MemberStatus.ALIVE,
            control=f"host-{self.index}",
            bulk=f"host-{self.index}",
            capabilities=Capabilities("0", 1, 1, trains=True),
        )

    @property
    def wall_s(self) -> float:
        return 1000.0 + self.cluster.world.now + self.clock_off_s

    def crash(self) -> None:
        rng = self.cluster.world.rng
        self.up = self.frozen = False
        self.life += 1
        self.deferred.clear()
        for data in self.partial.values():  # it was never synced
            kept = rng.randint(0, len(data))
            del data[kept if rng.random() < 0.5 else len(data) :]
            if data and rng.random() < 0.3:
                data[-1] ^= 0x40
        for trainer in list(self.trainers.values()):
            self.kill_trainer(trainer)

    def later(self, delay: float, act: Callable[[], None]) -> None:
        """Do something on this node after a while, if it lives; a frozen one does it
        when it thaws.
        """
        life = self.life

        def guarded() -> None:
            if self.life != life or not self.up:
                return
            if self.frozen:
                self.deferred.append(guarded)
            else:
                act()

        self.cluster.world.later(delay * self.slow, guarded)

    def thaw(self) -> None:
        self.frozen = False
        deferred, self.deferred = self.deferred, []
        for act in deferred:
            self.cluster.world.later(0.0, act)

    def pulse(self) -> None:
        """What the actors' own timers do."""
        now = self.cluster.world.now
        if self.swim.deadline <= now:
            self.swim_step(swim.Tick())
        if self.raft.deadline <= now:
            self.raft_step(raft.Tick())
        for session, worker in list(self.workers.items()):
            if worker.deadline <= now:
                self.work_step(session, work.Tick())
        for digest, (core, _) in list(self.moves.items()):
            if core.deadline <= now:
                self.move_step(digest, move.Tick())
        self.sync()
        for session, core in list(self.masters.items()):
            if core.deadline <= now:
                self.lead_step(session, lead.Tick())
        self.later(0.05, self.pulse)

    # --- messages

    def send(self, to: NodeId, message: object) -> None:
        self.cluster.carry(self.index, int(to, 16), message)

    def receive(self, sender: NodeId, message: object) -> None:
        if isinstance(message, get_args(MembershipMessage)):
            self.swim_step(swim.Received(sender, "", message))
        elif isinstance(message, get_args(RaftMessage)):
            self.raft_step(raft.Received(sender, message))
        elif isinstance(message, get_args(Order)):
            self.ordered(message)
        else:
            assert isinstance(message, WorkerState)
            self.lead_step(SessionId(message.session), lead.Reported(message))

    def ask(
        self, to: NodeId, question: Callable[["SimNode", Answer], None], done: Answer
    ) -> None:
        """Ask another node; ``done`` gets the answer, or None after a while."""
        cluster, index = self.cluster, int(to, 16)
        answered: list[bool] = []

        def finish(answer: Any) -> None:
            if not answered:
                answered.append(True)
                done(answer)

        def reply(answer: Any) -> None:
            cluster.world.send(
                index, self.index, lambda: self.later(0.0, lambda: finish(answer))
            )

        target = cluster.nodes[index]
        cluster.world.send(
            self.index,
            index,
            lambda: target.later(0.0, lambda: question(target, reply)),
        )
        self.later(ASK_S, lambda: finish(None))

    # --- cores

    def swim_step(self, event: Any) -> None:
        for effect in self.swim.step(self.cluster.world.now, event):
            if isinstance(effect, swim.SendTo):
                target = int(effect.address.removeprefix("host-"))
                self.send(node_id(target), effect.message)

    def raft_step(self, event: Any) -> None:
        life = self.life
        try:
            effects = self.raft.step(self.cluster.world.now, event)
        except PeerError:
            return
        for effect in effects:
            if self.cluster.crashes_between():
                self.crash()
            if self.life != life:
                return
            self.raft_effect(effect)

    def raft_effect(self, effect: Any) -> None:
        cluster = self.cluster
        match effect:
            case raft.Save(change):
                self.disk = saved_after(self.disk, change)
                if cluster.crashes_on_save():
                    self.crash()
            case raft.Send(to, message):
                cluster.promised(self.id, to, message)
                self.send(to, message)
            case raft.Apply(entry):
                cluster.committed(entry)
                self.registry.apply(codec.unpack(COMMANDS, entry.data))
                self.applied = entry.index
            case raft.Install(compacted):
                self.registry = Registry.restore(compacted.data)
                self.applied = compacted.index
            case raft.RoleChanged(role, term, leader):
                cluster.world.note(f"n{self.index} {role} in term {term}")
                if role is raft.Role.LEADER:
                    cluster.leads(term, self.id)
                del leader
            case raft.WantCompact():
                data, index = self.registry.dump(), self.applied
                self.later(0.0, lambda: self.raft_step(raft.Compact(index, data)))
            case raft.Proposed():
                pass

    def propose(self, command: Command) -> None:
        self.raft_step(raft.ProposeCommand(1, codec.pack(command)))

    def sync(self) -> None:
        """Feed consensus and the masters what membership and the record say."""
        now, members = self.cluster.world.now, self.swim.members()
        alive = {m.node for m in members if m.status is MemberStatus.ALIVE}
        self.since = {node: self.since.get(node, now) for node in alive}
        peers = tuple((node, now - at) for node, at in self.since.items())
        self.raft_step(raft.Peers(peers, ()))
        leading = self.raft.role is raft.Role.LEADER
        if not leading or self.raft.term != self.led_term:
            self.masters.clear()
            self.rows.clear()
            self.led_term = self.raft.term
        if not leading:
            return
        for session, row in list(self.registry.sessions.items()):
            if session not in self.masters and row.status not in FINAL:
                job = self.cluster.jobs[session]
                facts = lead.Facts(job.parts, job.steps, 1, job.parts)
                self.masters[session] = lead.SessionMaster(
                    self.id, self.raft.term, row, facts, lead.SessionConfig()
                )
                self.rows[session] = row
            elif session in self.masters and self.rows[session] is not row:
                self.rows[session] = row
                self.lead_step(session, lead.Recorded(row))
            self.lead_step(session, lead.Present(members))

    def lead_step(self, session: SessionId, event: Any) -> None:
        core = self.masters.get(session)
        if core is None:
            return
        for effect in core.step(self.cluster.world.now, event):
            match effect:
                case lead.Send(to, order):
                    self.send(to, order)
                case lead.Propose(command):
                    self.propose(command)
                case lead.AskHold(node, blobs, sources):
                    self.ask_hold(node, blobs, sources, session)

    def ask_hold(
        self,
        node: NodeId,
        blobs: tuple[BlobRef, ...],
        sources: tuple[NodeId, ...],
        session: SessionId,
    ) -> None:
        def hold(other: "SimNode", reply: Answer) -> None:
            other.fetch(blobs, sources, reply)

        def done(problem: Any) -> None:
            said = "no answer" if problem is None else problem
            self.lead_step(session, lead.Held(node, blobs, said))

        self.ask(node, hold, done)

    def ordered(self, order: Any) -> None:
        session = SessionId(order.session)
        if session not in self.workers:
            if type(order).__name__ != "Prepare":
                return
            born = int(self.wall_s * 1e6) + self.life
            host = f"host-{self.index}"
            self.workers[session] = work.SessionWorker(self.id, session, host, born)
        self.work_step(session, work.Ordered(order))

    def work_step(self, session: SessionId, event: Any) -> None:
        core = self.workers.get(session)
        if core is None:
            return
        for effect in core.step(self.cluster.world.now, event):
            self.work_effect(session, effect)

    def work_effect(self, session: SessionId, effect: Any) -> None:
        match effect:
            case work.Fetch(tag, blobs, sources):
                core = self.workers[session]

                def done(problem: Any) -> None:
                    if self.workers.get(session) is core:
                        of_source = bool(problem) and not self.full
                        fetched = work.Fetched(tag, problem, of_source=of_source)
                        self.work_step(session, fetched)

                self.fetch(blobs, sources, done)
            case work.Launch():
                job = self.cluster.jobs[session]
                self.trainers[session] = SimTrainer(self, session, job)
            case work.Tell(frame, state):
                trainer = self.trainers.get(session)
                if trainer is not None:
                    data = self.blobs[state.digest] if state else None
                    trainer.hear(frame, data)
            case work.Adopt(tag, files):
                problem = "the disk is full" if self.full else ""
                blobs = tuple(self.adopt(path, name) for path, name in files)
                adopted = work.Adopted(tag, () if problem else blobs, problem)
                self.later(0.01, lambda: self.work_step(session, adopted))
            case work.Report(state):
                if self.raft.leader is not None:
                    self.send(self.raft.leader, state)
            case work.EndTrainer() | work.Forget():
                trainer = self.trainers.get(session)
                if trainer is not None:
                    self.kill_trainer(trainer)
                if isinstance(effect, work.Forget):
                    del self.workers[session]

    def adopt(self, path: str, name: str) -> BlobRef:
        data = self.files[path]
        digest = digest_of(data)
        self.blobs[digest] = data
        return BlobRef(digest, len(data), name)

    def trainer_said(self, trainer: SimTrainer, frame: Any) -> None:
        session = SessionId(trainer.session)
        if self.trainers.get(session) is trainer:
            self.work_step(session, work.FromProcess(frame))

    def trainer_died(self, trainer: SimTrainer) -> None:
        """A trainer process dies by itself; its daemon hears of it."""
        self.kill_trainer(trainer)
        session = SessionId(trainer.session)
        fault = Fault("the trainer process was killed", of_node=True)
        self.later(0.01, lambda: self.work_step(session, work.FromProcess(fault)))

    def kill_trainer(self, trainer: SimTrainer) -> None:
        trainer.dead = True
        self.trainers.pop(SessionId(trainer.session), None)
        for node in self.cluster.nodes:
            if (self.index, node.index) not in self.cluster.world.cut and node.up:
                node.later(0.01, lambda node=node: node.neighbour_died(trainer))

    def neighbour_died(self, trainer: SimTrainer) -> None:
        mine = self.trainers.get(SessionId(trainer.session))
        if mine is not None and mine is not trainer:
            mine.reset(trainer.node.id)

    def ring_send(self, to: NodeId, frame: RingFrame) -> None:
        self.cluster.ring_carry(self.index, int(to, 16), frame)

    # --- blobs

    def fetch(
        self, blobs: tuple[BlobRef, ...], sources: tuple[NodeId, ...], done: Answer
    ) -> None:
        missing = [blob for blob in blobs if blob.digest not in self.blobs]
        others = tuple(node for node in sources if node != self.id)
        left = len(missing)
        if not left or self.full:
            self.later(0.001, lambda: done("the disk is full" if left else ""))
            return
        problems: list[str] = []

        def one(problem: str) -> None:
            nonlocal left
            left -= 1
            problems.append(problem)
            if left == 0:
                done("; ".join(filter(None, problems)))

        for blob in missing:
            known = self.moves.get(blob.digest)
            if known is not None:
                known[1].append(one)
                continue
            rng = random.Random(self.cluster.world.rng.random())
            config = move.TransferConfig(piece_bytes=8, timeout_s=ASK_S)
            core = move.Transfer(blob.size, config, rng)
            self.moves[blob.digest] = (core, [one])
            self.move_step(blob.digest, move.Offered(others))

    def move_step(self, digest: Digest, event: Any) -> None:
        known = self.moves.get(digest)
        if known is None:
            return
        for effect in known[0].step(self.cluster.world.now, event):
            self.move_effect(digest, effect)

    def move_effect(self, digest: Digest, effect: Any) -> None:
        match effect:
            case move.Open():
                held = len(self.partial.setdefault(digest, bytearray()))
                self.later(0.001, lambda: self.move_step(digest, move.Opened(held)))
            case move.Fetch(source, offset, length, _):
                self.ask_piece(digest, source, offset, length)
            case move.Write(offset, data):
                assert offset == len(self.partial[digest])
                self.partial[digest] += data
            case move.Seal():
                data = bytes(self.partial.pop(digest))
                good = digest_of(data) == digest
                if good:
                    self.blobs[digest] = data
                self.later(0.001, lambda: self.move_step(digest, move.Sealed(good)))
            case move.Done() | move.GiveUp():
                _, waiters = self.moves.pop(digest)
                problem = effect.reason if isinstance(effect, move.GiveUp) else ""
                for waiter in waiters:
                    waiter(problem)

    def ask_piece(
        self, digest: Digest, source: NodeId, offset: int, length: int
    ) -> None:
        def give(other: "SimNode", reply: Answer) -> None:
            data = other.blobs.get(digest)
            piece = data[offset : offset + length] if data is not None else b""
            reply((data is not None, self.cluster.corrupted(piece)))

        def done(answer: Any) -> None:
            event: Any
            if answer is None:
                event = move.Failed(source, offset, "no answer")
            elif not answer[0]:
                event = move.Refused(source, offset, "is not held")
            else:
                event = move.Arrived(source, offset, answer[1])
            self.move_step(digest, event)

        self.ask(source, give, done)


class SimCluster:
    """All nodes, what was promised, and what must hold at any time."""

    def __init__(self, world: World, count: int) -> None:
        self.world = world
        self.nodes = [SimNode(self, index) for index in range(count)]
        self.jobs: dict[SessionId, SimJob] = {}
        self.oracles: dict[SessionId, list[str]] = {}
        self.accepted: set[SessionId] = set()
        self.log: dict[int, Any] = {}
        self.leaders: dict[int, NodeId] = {}
        self.votes: dict[tuple[NodeId, int], NodeId] = {}
        self.is_cruel = False
        self._arrival: dict[tuple[int, int], float] = {}

    def begin(self) -> None:
        for node in self.nodes:
            node.start()

    def carry(self, source: int, target: int, message: object) -> None:
        receiver = self.nodes[target]
        sender = self.nodes[source].id
        self.world.send(
            source,
            target,
            lambda: receiver.later(0.0, lambda: receiver.receive(sender, message)),
        )

    def ring_carry(self, source: int, target: int, frame: RingFrame) -> None:
        """Carry a frame as TCP does: in order, once, or never when the path is cut."""
        if (source, target) in self.world.cut:
            return
        at = self.world.now + self.world.rng.uniform(0.0005, 0.003)
        at = max(at, self._arrival.get((source, target), 0.0) + 1e-6)
        self._arrival[source, target] = at
        receiver = self.nodes[target]

        def deliver() -> None:
            trainer = receiver.trainers.get(SessionId(frame.session))
            if trainer is not None:
                trainer.ring(frame)

        if receiver.up:
            receiver.later(at - self.world.now, deliver)

    def submit(self, key: str, job: SimJob) -> SessionId:
        """Have a client hand in a job at some node, until the record has it."""
        session = session_of(key)
        self.jobs[session], self.oracles[session] = job, oracle(job)
        data = f"spec of {key}".encode() * 4
        spec = BlobRef(digest_of(data), len(data), "spec")
        self._attempt(session, key, spec, data)
        return session

    def _attempt(
        self, session: SessionId, key: str, spec: BlobRef, data: bytes
    ) -> None:
        if session in self.accepted:
            return
        up = [n for n in self.nodes if n.up and not n.frozen and n.raft.leader]
        if up:
            client = self.world.rng.choice(up)
            client.blobs[spec.digest] = data
            leader = self.nodes[int(client.raft.leader or "0", 16)]
            if leader.up and not leader.frozen:
                self._admit(leader, client, session, key, spec)
        again = self.world.rng.uniform(0.5, 1.5)
        self.world.later(again, lambda: self._attempt(session, key, spec, data))

    def _admit(
        self,
        leader: SimNode,
        client: SimNode,
        session: SessionId,
        key: str,
        spec: BlobRef,
    ) -> None:
        voters = leader.raft.config.voters
        held: list[str] = []

        def one(problem: Any) -> None:
            if problem == "":
                held.append("")
            if 2 * len(held) > len(voters) and leader.up:
                leader.propose(AddSession(session, key, key, spec, (), client.id, 0.0))

        def hold(other: SimNode, reply: Answer) -> None:
            other.fetch((spec,), (client.id,), reply)

        for voter in voters:
            leader.ask(voter, hold, one)

    # --- invariants

    def leads(self, term: int, node: NodeId) -> None:
        assert self.leaders.setdefault(term, node) == node, f"two leaders in {term}"

    def promised(self, node: NodeId, to: NodeId, message: object) -> None:
        """A node votes once in a term, whatever happens to it in between."""
        if isinstance(message, Vote) and not message.pre:
            vote = node
        elif isinstance(message, VoteReply) and message.granted and not message.pre:
            vote = to
        else:
            return
        known = self.votes.setdefault((node, message.term), vote)
        assert known == vote, f"{node[:4]} votes twice in term {message.term}"

    def committed(self, entry: Any) -> None:
        known = self.log.setdefault(entry.index, entry)
        assert known == entry, f"two entries are committed at {entry.index}"
        command = codec.unpack(COMMANDS, entry.data)
        if isinstance(command, AddSession):
            self.accepted.add(SessionId(command.session))

    def stepped(self, trainer: SimTrainer) -> None:
        """A rank applied a step: check its state, and that no rank is further off."""
        session = SessionId(trainer.session)
        wanted = self.oracles[session][trainer.step]
        assert trainer.value == wanted, f"wrong state after step {trainer.step}"
        assert trainer.run is not None
        for node in self.nodes:
            other = node.trainers.get(session)
            if other is None or other.run is None or not node.up:
                continue
            if other.run.view == trainer.run.view:
                apart = abs(other.step - trainer.step)
                assert apart <= 1, f"ranks are {apart} steps apart"

    def crashes_between(self) -> bool:
        return self.is_cruel and self.world.rng.random() < 0.0005

    def crashes_on_save(self) -> bool:
        return self.is_cruel and self.world.rng.random() < 0.002

    def corrupted(self, piece: bytes) -> bytes:
        if self.is_cruel and piece and self.world.rng.random() < 0.01:
            return bytes([piece[0] ^ 1]) + piece[1:]
        return piece

    def check(self) -> None:
        """Nothing to do after each event: the checks above see every change."""

    def finished(self) -> bool:
        """Whether every node knows every session's right result."""
        for node in self.nodes:
            if not node.up or set(node.registry.sessions) != set(self.jobs):
                return False
            for session, row in node.registry.sessions.items():
                if row.status not in FINAL:
                    return False
                assert row.status is SessionStatus.DONE, row.reason
                assert row.result is not None
                job = self.jobs[session]
                wanted = digest_at(job.steps, self.oracles[session][-1])
                assert row.result.state_digest == wanted
                views = [view.view for view in row.views]
                assert views == list(range(views[0], views[0] + len(views)))
        return True
