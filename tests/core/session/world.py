"""A cluster in memory for the session cores: one master core, worker cores, trainers
that step together in a ring, a record, and a network, all in one virtual time.

Only the trainers are fakes. A fake's state is (step, digest), and the digest follows
from the step alone, as in exact mode; so every history that is right ends with the same
digest, and the ring checks at each view's start that all ranks bring the same state.
"""

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import pairwise

from p2ptrain.core import worker as w
from p2ptrain.core.registry import Registry, SessionRow
from p2ptrain.core.session import (
    AskHold,
    Effect,
    Event,
    Facts,
    Held,
    Note,
    Present,
    Propose,
    Recorded,
    Reported,
    Send,
    SessionConfig,
    SessionMaster,
    StopWanted,
    Tick,
)
from p2ptrain.ids import Digest, NodeId, digest_of, session_of
from p2ptrain.members import Capabilities, Member, MemberStatus
from p2ptrain.messages.record import (
    AddSession,
    BlobRef,
    Command,
    CommitView,
    SessionStatus,
    WorkerReport,
)
from p2ptrain.messages.session import (
    EpochFigures,
    Halt,
    Order,
    RingSeat,
    Run,
    WorkerPhase,
    WorkerState,
)
from p2ptrain.messages.trainer import (
    EpochEnded,
    Fault,
    FromTrainer,
    HaltView,
    Loaded,
    RunFinished,
    RunView,
    StateWritten,
    Steps,
    ToTrainer,
    ViewEnded,
    WriteSnapshot,
)
from tests.sim.world import World

KEY = "a key"
SESSION = session_of(KEY)
SPEC = BlobRef(digest_of(b"spec"), 1000, "spec")
DATA = BlobRef(digest_of(b"data"), 5000, "data")
FINAL = {SessionStatus.DONE, SessionStatus.FAILED, SessionStatus.STOPPED}
ZERO = "0" * 64


def node_id(index: int) -> NodeId:
    return NodeId(f"{index:032x}")


def digest_at(step: int) -> Digest:
    return digest_of(b"state %d" % step)


def member(index: int, *, trains: bool = True, incarnation: int = 1) -> Member:
    return Member(
        node=node_id(index),
        name=chr(ord("a") + index),
        incarnation=incarnation,
        status=MemberStatus.ALIVE,
        control=f"host-{index}:1",
        bulk=f"host-{index}:2",
        capabilities=Capabilities("0", cores=1, memory_bytes=1, trains=trains),
    )


def submission() -> AddSession:
    return AddSession(SESSION, KEY, "job", SPEC, (DATA,), node_id(0), 0.0)


@dataclass(frozen=True)
class Plan:
    """How the lab is."""

    nodes: int = 3
    parts: int = 4
    steps: int = 40
    epochs: int = 2
    step_s: float = 0.05
    load_s: float = 0.3
    swim_s: float = 2.0
    election_s: float = 1.0
    witnesses: frozenset[int] = frozenset()
    config: SessionConfig = field(default_factory=SessionConfig)

    @property
    def facts(self) -> Facts:
        return Facts(self.parts, self.steps, self.epochs, self.parts * 8)


class Ring:
    """One view among trainers: they step together, or end."""

    def __init__(self, lab: "Lab", view: int, seats: tuple[RingSeat, ...]) -> None:
        self.lab, self.view = lab, view
        self.nodes = [seat.node for seat in seats]
        self.shares = [seat.share for seat in seats]
        self.trainers: dict[NodeId, Trainer] = {}
        self.drain = ""
        self.over = self.hangs = False

    def join(self, trainer: "Trainer") -> None:
        self.trainers[trainer.node.id] = trainer
        if self.over:
            trainer.end("the ring broke before it stood", "")
        elif len(self.trainers) == len(self.nodes):
            states = {(t.step, t.digest) for t in self.trainers.values()}
            assert len(states) == 1, f"view {self.view} begins with {states}"
            self.lab.began[self.view] = self.lab.world.now
            self._go_on()

    def _go_on(self) -> None:
        """As the trainer does at a boundary: first the end, then the next step."""
        if self.trainers[self.nodes[0]].step >= self.lab.plan.steps:
            self._finish()
        else:
            self._later()

    def _later(self) -> None:
        self.lab.world.later(self.lab.plan.step_s, self._step)

    def _step(self) -> None:
        if self.over or self.hangs:
            return
        if any(trainer.frozen for trainer in self.trainers.values()):
            self.lab.world.later(1.0, self._blame)
            return
        for rank, node in enumerate(self.nodes):
            self.trainers[node].apply(rank, self.shares[rank])
        step = self.trainers[self.nodes[0]].step
        self.lab.applied[step].append(self.view)
        self.lab.stepped.append((self.lab.world.now, step))
        if self.drain and step < self.lab.plan.steps:
            self.over = True
            if len(self.nodes) == 1:
                self.trainers[self.nodes[0]].write("checkpoint", self.view)
            for trainer in self.trainers.values():
                trainer.end(self.drain, "")
        else:
            self._go_on()

    def _blame(self) -> None:
        for node, trainer in self.trainers.items():
            if trainer.frozen:
                self.break_(node)

    def _finish(self) -> None:
        self.over = True
        for rank, node in enumerate(self.nodes):
            self.trainers[node].finish(rank)

    def break_(self, culprit: NodeId) -> None:
        """Lose a rank; of the others, those in ``lab.ahead`` had applied the step."""
        if self.over:
            return
        self.over = True
        complete = len(self.trainers) == len(self.nodes)
        rest = [t for n, t in self.trainers.items() if n != culprit and not t.frozen]
        for trainer in rest:
            rank = self.nodes.index(trainer.node.id)
            if (
                complete
                and rank in self.lab.ahead
                and trainer.step < self.lab.plan.steps
            ):
                trainer.apply(rank, self.shares[rank])
        for trainer in rest:
            name = self.lab.names[culprit]
            trainer.end(f"the link to node {name!r} is lost", culprit)


class Trainer:
    """A trainer process that computes nothing."""

    def __init__(self, node: "Node") -> None:
        self.node, self.lab = node, node.lab
        self.step, self.digest = 0, self.lab.first_digest.get(node.id, digest_at(0))
        self.view, self.share, self.samples = 0, 0, 0
        self.ring: Ring | None = None
        self.frozen = self.dead = self.ignores_drain = False
        self.pending: list[FromTrainer] = []
        self.lab.world.later(self.lab.plan.load_s, self._loaded)

    def say(self, frame: FromTrainer) -> None:
        """Speak, through a pipe: at once, but not before what was said earlier."""
        self.pending.append(frame)
        self.lab.world.later(0.001, self._spoken)

    def _spoken(self) -> None:
        frame = self.pending.pop(0)
        if self.node.trainer is self and not self.frozen:
            self.node.event(w.FromProcess(frame))

    def _loaded(self) -> None:
        fault = self.lab.faults.get(self.node.id)
        if fault is not None:
            self.say(fault)
            return
        data = self.lab.data.get(self.node.id, ("d" * 64,))
        loaded = Loaded(
            "cpu", "the only one", ("cpu",), ("cpu",), 7000, 0, self.lab.plan.steps,
            self.lab.plan.epochs, self.digest, data, 0.1,
        )  # fmt: skip
        self.say(loaded)

    def hear(self, frame: ToTrainer, state: BlobRef | None) -> None:
        if self.frozen or self.dead:
            return
        match frame:
            case RunView(view, _, seats, first_step, _):
                if state is not None:
                    self.step, self.digest = self.lab.blobs[state.digest]
                self.view, self.ring = view, None
                if self.step != first_step:
                    self.end(f"has step {self.step}, not {first_step}", "")
                    return
                self.samples = 0
                ring = self.lab.rings.setdefault(view, Ring(self.lab, view, seats))
                self.ring = ring
                ring.join(self)
            case HaltView(view, reason, drain):
                ring = self.ring
                if ring is None or view != self.view or ring.over:
                    return
                if drain:
                    ring.drain = "" if self.ignores_drain else reason
                else:
                    self.end(reason, "")
                    ring.break_(self.node.id)
            case WriteSnapshot():
                self.write("snapshot", -1)
            case _:
                raise AssertionError(frame)

    def apply(self, rank: int, share: int) -> None:
        plan, count = self.lab.plan, share * 8
        self.step += 1
        self.digest = self.lab.wrong.get((self.node.id, self.step)) or digest_at(
            self.step
        )
        self.samples += count
        s = plan.step_s
        self.say(Steps(self.view, self.step, (1 / self.step,), count, s, s, 0.0))
        per_epoch = plan.steps // plan.epochs
        if self.step % per_epoch == 0:
            epoch = self.step // per_epoch - 1
            figures = EpochFigures(epoch, self.step, 1 / self.step, {"accuracy": 0.5})
            self.say(EpochEnded(self.view, figures))
            if rank == 0:
                self.write("checkpoint", self.view)

    def write(self, purpose: str, view: int) -> None:
        path = f"{purpose} {self.step} {self.digest}"
        self.say(StateWritten(view, purpose, self.step, 1, path, self.digest))

    def end(self, reason: str, culprit: str) -> None:
        frame = ViewEnded(self.view, self.step, self.digest, reason, culprit)
        pause = self.lab.slow_end.pop(self.node.id, 0.0)
        self.lab.world.later(pause, lambda: self.say(frame))

    def finish(self, rank: int) -> None:
        report = WorkerReport(
            self.node.id, "cpu", ("cpu",), ("cpu",), self.samples, 1.0, 1.0, 0.0, 1.0,
            1 / self.step, self.digest,
        )  # fmt: skip
        paths = ("weights", "manifest") if rank == 0 else ("", "")
        self.say(RunFinished(self.view, self.step, report, *paths))

    def die(self) -> None:
        self.dead = True
        if self.ring is not None:
            self.ring.break_(self.node.id)


class Node:
    """A daemon: its worker core, its blobs, and perhaps a trainer."""

    def __init__(self, lab: "Lab", index: int) -> None:
        self.lab, self.index, self.id = lab, index, node_id(index)
        self.up = True
        self.held: set[Digest] = {SPEC.digest, DATA.digest} if index == 0 else set()
        self.core: w.SessionWorker | None = None
        self.trainer: Trainer | None = None
        self.life = 0
        self.orders: list[Order] = []

    def order(self, order: Order) -> None:
        if not self.up or self.index in self.lab.deaf:
            return
        self.orders.append(order)
        if self.core is None:
            if isinstance(order, Run | Halt):  # it is not known here
                serial = int(self.lab.world.now * 1e6)
                fetching = WorkerPhase.FETCHING
                state = WorkerState(self.id, SESSION, 0, fetching, serial=serial)
                self.lab.report(self, state)
            if type(order).__name__ != "Prepare":
                return
            self.core = w.SessionWorker(
                self.id, SESSION, f"host-{self.index}", int(self.lab.world.now * 1e6)
            )
        self.event(w.Ordered(order))

    def event(self, event: w.Event) -> None:
        core = self.core
        if core is None or not self.up:
            return
        for effect in core.step(self.lab.world.now, event):
            self._perform(effect)
        if self.core is core:
            life, pause = self.life, max(0.0, core.deadline - self.lab.world.now)
            self.lab.world.later(pause + 1e-6, lambda: self._tick(life, core))

    def _tick(self, life: int, core: w.SessionWorker) -> None:
        is_mine = self.core is core and self.life == life
        if is_mine and core.deadline <= self.lab.world.now:
            self.event(w.Tick())

    def _later(self, delay: float, make: Callable[[], w.Event]) -> None:
        life, core = self.life, self.core

        def act() -> None:
            if self.life == life and self.core is core:
                self.event(make())

        self.lab.world.later(delay, act)

    def _perform(self, effect: w.Effect) -> None:
        match effect:
            case w.Fetch(tag, blobs, sources):
                self._later(0.03, lambda: self._fetched(tag, blobs, sources))
            case w.Launch():
                self.trainer = Trainer(self)
            case w.Tell(frame, state):
                if self.trainer is not None:
                    self.trainer.hear(frame, state)
            case w.Adopt(tag, files):
                self._later(0.005, lambda: self._adopted(tag, files))
            case w.Report(state):
                self.lab.report(self, state)
            case w.EndTrainer():
                self.kill_trainer()
            case w.Forget():
                self.kill_trainer()
                self.core = None
                self.lab.forgot.add(self.id)
            case _:
                raise AssertionError(effect)

    def _fetched(
        self, tag: str, blobs: tuple[BlobRef, ...], sources: tuple[NodeId, ...]
    ) -> w.Event:
        for blob in blobs:
            if blob.digest not in self.held and not self.lab.holds(sources, blob):
                return w.Fetched(tag, f"no source has {blob.name}", of_source=True)
            self.held.add(blob.digest)
        return w.Fetched(tag, "")

    def _adopted(self, tag: str, files: tuple[tuple[str, str], ...]) -> w.Event:
        blobs = []
        for path, name in files:
            blob = BlobRef(digest_of(path.encode()), 10, name)
            self.held.add(blob.digest)
            blobs.append(blob)
            purpose, *rest = path.split()
            if purpose in {"snapshot", "checkpoint"}:
                self.lab.blobs[blob.digest] = (int(rest[0]), Digest(rest[1]))
        return w.Adopted(tag, tuple(blobs), "")

    def kill_trainer(self) -> None:
        trainer, self.trainer = self.trainer, None
        if trainer is not None:
            trainer.die()


class Lab:
    """The cluster; ``run`` lets time pass."""

    def __init__(self, plan: Plan | None = None, seed: int = 0) -> None:
        self.plan = plan or Plan()
        self.world = World(seed)
        self.registry = Registry()
        self.registry.apply(submission())
        self.members = {
            node_id(i): member(i, trains=i not in self.plan.witnesses)
            for i in range(self.plan.nodes)
        }
        self.names = {node: m.name for node, m in self.members.items()}
        self.nodes = [Node(self, i) for i in range(self.plan.nodes)]
        self.rings: dict[int, Ring] = {}
        self.blobs: dict[Digest, tuple[int, Digest]] = {}
        self.applied: dict[int, list[int]] = defaultdict(list)
        self.stepped: list[tuple[float, int]] = []
        self.began: dict[int, float] = {}
        self.committed: list[tuple[float, Command]] = []
        self.refused: list[str] = []
        self.ahead: set[int] = set()  # ranks that apply the step in which a ring breaks
        self.faults: dict[NodeId, Fault] = {}
        self.data: dict[NodeId, tuple[str, ...]] = {}
        self.wrong: dict[tuple[NodeId, int], Digest] = {}
        self.first_digest: dict[NodeId, Digest] = {}
        self.deaf: set[int] = set()
        self.slow_end: dict[NodeId, float] = {}
        self.hold_s = 0.02
        self.cannot_hold: set[int] = set()
        self.forgot: set[NodeId] = set()
        self.statuses: list[tuple[SessionStatus, str]] = []
        self.core: SessionMaster | None = None
        self.master = self.term = 0
        self.lead(0)

    # --- what happens to the cluster

    def lead(self, index: int) -> None:
        """Make a node the master."""
        self.master, self.term = index, self.term + 1
        self.core = SessionMaster(
            node_id(index), self.term, self.row, self.plan.facts, self.plan.config
        )
        self.event(Present(tuple(self.members.values())))

    def kill(self, index: int) -> None:
        """Kill a daemon with its trainer; membership and election notice later."""
        node, now = self.nodes[index], self.world.now
        node.up, node.core, node.life = False, None, node.life + 1
        node.kill_trainer()
        self.world.note(f"kill {index}")
        life = node.life
        self.world.later(self.plan.swim_s, lambda: self._found_dead(node, life))
        if index == self.master:
            self.core = None
            self.world.later(self.plan.election_s, self._elect)
        assert now == self.world.now

    def restart(self, index: int) -> None:
        """Start a killed daemon again; its disk is as it was."""
        node = self.nodes[index]
        node.up, node.life = True, node.life + 1
        old = self.members[node.id]
        incarnation = old.incarnation + 1
        self.set_member(
            replace(old, incarnation=incarnation, status=MemberStatus.ALIVE)
        )

    def retire(self, index: int, *, trains: bool = False) -> None:
        """A node says that it trains no more (or again)."""
        old = self.members[node_id(index)]
        capabilities = replace(old.capabilities, trains=trains)
        self.set_member(
            replace(old, incarnation=old.incarnation + 1, capabilities=capabilities)
        )

    def kill_trainer(self, index: int, sentence: str = "killed by signal 9") -> None:
        """Kill a trainer; its daemon sees it at once."""
        node = self.nodes[index]
        node.kill_trainer()
        node.event(w.FromProcess(Fault(sentence, of_node=True)))

    def kill_trainer_of_job(self, index: int, sentence: str) -> None:
        """Let a trainer end because the job itself cannot go on."""
        node = self.nodes[index]
        self.faults[node.id] = Fault(sentence)
        node.kill_trainer()
        node.event(w.FromProcess(Fault(sentence)))

    def set_member(self, changed: Member) -> None:
        self.members[changed.node] = changed
        self.names[changed.node] = changed.name
        self.event(Present(tuple(self.members.values())))

    def add(self, index: int) -> None:
        """Let a new node come."""
        assert index == len(self.nodes)
        self.nodes.append(Node(self, index))
        self.set_member(member(index))

    def _found_dead(self, node: Node, life: int) -> None:
        if node.life == life:
            status = MemberStatus.DEAD
            self.set_member(replace(self.members[node.id], status=status))

    def _elect(self) -> None:
        alive = [node.index for node in self.nodes if node.up]
        if alive and self.core is None:
            self.lead(self.world.rng.choice(alive))
        elif self.core is None:
            self.world.later(self.plan.election_s, self._elect)

    # --- the master

    def event(self, event: Event) -> None:
        core = self.core
        if core is None:
            return
        for effect in core.step(self.world.now, event):
            self._perform(effect)
        pause = core.deadline - self.world.now
        if pause < float("inf"):
            self.world.later(max(pause, 0.0) + 1e-6, lambda: self._tick(core))

    def _tick(self, core: SessionMaster) -> None:
        if self.core is core and core.deadline <= self.world.now:
            self.event(Tick())

    def _perform(self, effect: Effect) -> None:
        match effect:
            case Send(to, order):
                index = int(to, 16)
                self.world.note(f"order {index} {brief(order)}")
                self.world.send(
                    self.master, index, lambda: self.nodes[index].order(order)
                )
            case Propose(command):
                core = self.core
                self.world.later(0.01, lambda: self._commit(core, command))
            case AskHold(node, blobs, sources):
                core = self.core
                self.world.later(
                    self.hold_s, lambda: self._hold(core, AskHold(node, blobs, sources))
                )
            case Note(text):
                self.world.note(text)
            case _:
                raise AssertionError(effect)

    def _commit(self, core: SessionMaster | None, command: Command) -> None:
        if self.core is not core:
            return
        word = self.registry.apply(command)
        self.world.note(f"commit {brief(command)} {word}")
        if word:
            self.refused.append(word)
            return
        self.committed.append((self.world.now, command))
        if isinstance(command, CommitView):
            assert sum(seat.share for seat in command.seats) == self.plan.parts
        said = (self.row.status, self.row.reason)
        if not self.statuses or self.statuses[-1] != said:
            self.statuses.append(said)
        self.event(Recorded(self.row))

    def _hold(self, core: SessionMaster | None, ask: AskHold) -> None:
        index = int(ask.node, 16)
        problem = ""
        if not self.nodes[index].up:
            problem = "no answer"
        elif index in self.cannot_hold:
            problem = "the disk is full"
        elif not all(self.holds(ask.sources, blob) for blob in ask.blobs):
            problem = "no source has it"
        else:
            self.nodes[index].held |= {blob.digest for blob in ask.blobs}
        if self.core is core:
            self.event(Held(ask.node, ask.blobs, problem))

    def report(self, node: Node, state: w.Report | object) -> None:
        life = node.life

        def arrive() -> None:
            if life <= node.life and self.core is not None:
                self.event(Reported(state))  # type: ignore[arg-type]

        self.world.send(node.index, self.master, arrive)

    # --- what is asked of it

    @property
    def row(self) -> SessionRow:
        return self.registry.sessions[SESSION]

    @property
    def views(self) -> tuple[CommitView, ...]:
        return self.row.views

    def seats(self, view: int = -1) -> dict[str, int]:
        """Return the shares of a view by node name."""
        return {self.names[s.node]: s.share for s in self.views[view].seats}

    def holds(self, sources: tuple[NodeId, ...], blob: BlobRef) -> bool:
        nodes = (self.nodes[int(node, 16)] for node in sources)
        return any(node.up and blob.digest in node.held for node in nodes)

    def until(self, wanted: Callable[[], bool], limit: float = 60.0) -> float:
        """Let time pass until something is so; return how long it took."""
        began = self.world.now
        while not wanted():
            assert self.world.now < began + limit, "\n".join(
                (*list(self.world.trace)[-25:], str(self.row.status), self.row.reason)
            )
            self.world.run(self.world.now + 0.01, lambda: None)
        return self.world.now - began

    def until_step(self, step: int) -> None:
        self.until(lambda: bool(self.stepped) and self.stepped[-1][1] >= step)

    def run(self, seconds: float) -> None:
        self.world.run(self.world.now + seconds, lambda: None)

    def finish(self, limit: float = 60.0) -> SessionRow:
        """Let the session end, and its workers go."""
        self.until(lambda: self.row.status in FINAL, limit)
        self.run(3.0)
        return self.row

    def gap(self, since: float) -> float:
        """Return the longest pause between steps after a time."""
        times = [at for at, _ in self.stepped if at >= since - 0.2]
        return max(b - a for a, b in pairwise(times))

    def stop(self) -> None:
        self.event(StopWanted())


def brief(item: object) -> str:
    """Return what matters of an order or command, for a trace."""
    names = ("view", "first_step", "status", "reason", "drain", "state", "seats")
    shown = {n: getattr(item, n) for n in names if hasattr(item, n)}
    shown["seats"] = [int(seat.node, 16) for seat in shown.get("seats", ())]
    return f"{type(item).__name__} {shown}"
