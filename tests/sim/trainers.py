"""Trainers of the simulated cluster: integers instead of tensors, real ring cores.

A trainer's state is (step, value). A step sums one integer a part around the ring with
``core.ring`` and hashes the sum into the value, so the value after so many steps tells
whether every part of every step was counted exactly once. Links are like TCP: in order,
silent when cut, reset when the other side dies.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from p2ptrain.core import stream
from p2ptrain.core.ring import Item, MetaPiece, Reduction, Shape
from p2ptrain.errors import PeerError
from p2ptrain.ids import Digest, digest_of
from p2ptrain.messages.record import WorkerReport
from p2ptrain.messages.session import EpochFigures
from p2ptrain.messages.trainer import (
    EpochEnded,
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

if TYPE_CHECKING:
    from tests.sim.cluster import SimNode

ELEMENTS = 5
PART_S = 0.004
BEAT_S = 0.3
SILENCE_S = 1.5
LOAD_S = 0.2
CHECKPOINT_STEPS = 10


@dataclass(frozen=True)
class SimJob:
    """What is trained: ``parts`` in each of ``steps``."""

    parts: int
    steps: int


def contribution(step: int, part: int) -> list[int]:
    return [stream.part_seed(7, step, part) >> (20 + i) for i in range(ELEMENTS)]


def total(job: SimJob, step: int) -> list[int]:
    columns = zip(*(contribution(step, part) for part in range(job.parts)), strict=True)
    return [sum(column) for column in columns]


def following(value: str, sums: list[int]) -> str:
    return digest_of(f"{value} {sums}".encode())[:16]


def oracle(job: SimJob) -> list[str]:
    """Return the value after each step of an undisturbed run."""
    values = ["start"]
    for step in range(job.steps):
        values.append(following(values[-1], total(job, step)))
    return values


def digest_at(step: int, value: str) -> Digest:
    return digest_of(f"{step} {value}".encode())


@dataclass(frozen=True)
class RingFrame:
    """What travels on a link; ``kind`` is item, beat, or blame."""

    session: str
    view: int
    turn: int
    kind: str
    item: Item | None = None
    payload: tuple[int, ...] | bool = ()


class SimTrainer:
    """One trainer process; ``hear`` takes frames of the daemon."""

    def __init__(self, node: "SimNode", session: str, job: SimJob) -> None:
        self.node, self.session, self.job = node, session, job
        self.world = node.cluster.world
        self.step, self.value = 0, "start"
        self.run: RunView | None = None
        self.dead = False
        self.drain = ""
        self.waiting: list[RingFrame] = []
        self.reduction: Reduction | None = None
        self.heard_at = 0.0
        self.later(LOAD_S, self._loaded)

    def later(self, delay: float, act: object) -> None:
        life = self.node.life

        def guarded() -> None:
            if not self.dead and self.node.life == life:
                act()  # type: ignore[operator]

        self.node.later(delay, guarded)

    def say(self, frame: FromTrainer) -> None:
        self.later(0.001, lambda: self.node.trainer_said(self, frame))

    def _loaded(self) -> None:
        digest = digest_at(self.step, self.value)
        devices = ("cpu",)
        self.say(
            Loaded(
                *("cpu", "the only one", devices, devices, 1, self.step),
                *(self.job.steps, 1, digest, ("d",), 0.1),
            )
        )

    @property
    def rank(self) -> int:
        assert self.run is not None
        return self.run.rank

    @property
    def world_size(self) -> int:
        assert self.run is not None
        return len(self.run.seats)

    def hear(self, frame: ToTrainer, state: bytes | None) -> None:
        match frame:
            case RunView():
                if state is not None:
                    step, _, value = state.decode().partition(" ")
                    self.step, self.value = int(step), value
                self._begin(frame)
            case HaltView(view, reason, drain):
                if self.run is not None and self.run.view == view:
                    if drain:
                        self.drain = reason
                    else:
                        self.end(reason, "")
            case WriteSnapshot():
                self.write("snapshot")

    def _begin(self, run: RunView) -> None:
        self.run, self.drain = run, ""
        self.heard_at = self.world.now
        if self.step != run.first_step:
            self.end(f"has step {self.step}", "")
            return
        self._beat(run.view)
        self._compute()

    def _beat(self, view: int) -> None:
        if self.run is None or self.run.view != view:
            return
        if self.world_size > 1:
            self.link(RingFrame(self.session, view, 0, "beat"))
            if self.world.now - self.heard_at > SILENCE_S:
                self.lost((self.rank - 1) % self.world_size)
                return
        self.later(BEAT_S, lambda: self._beat(view))

    def _compute(self) -> None:
        run = self.run
        assert run is not None
        if self.step >= self.job.steps:
            self._finish()
            return
        shares = [seat.share for seat in run.seats]
        parts = stream.parts_of(shares, run.rank)
        step = self.step
        self.later(PART_S * len(parts), lambda: self._reduce(run, step, parts))

    def _reduce(self, run: RunView, step: int, parts: range) -> None:
        if self.run is not run:
            return
        self.vector = [0] * ELEMENTS
        for part in parts:
            added = zip(self.vector, contribution(step, part), strict=True)
            self.vector = [a + b for a, b in added]
        self.metas = {run.rank: bool(self.drain)}
        if self.world_size == 1:
            self._apply()
            return
        shape = Shape(run.rank, self.world_size, ELEMENTS, piece=2)
        self.reduction = Reduction(shape)
        for item in shape.outgoing():
            self._send(item)
        waiting, self.waiting = self.waiting, []
        for frame in waiting:
            self.ring(frame)

    def _send(self, item: Item) -> None:
        assert self.run is not None
        payload: tuple[int, ...] | bool
        if isinstance(item, MetaPiece):
            payload = self.metas[item.origin]
        else:
            payload = tuple(self.vector[item.start : item.stop])
        frame = RingFrame(self.session, self.run.view, self.step, "item", item, payload)
        self.link(frame)

    def link(self, frame: RingFrame) -> None:
        assert self.run is not None
        seat = self.run.seats[(self.rank + 1) % self.world_size]
        self.node.ring_send(seat.node, frame)

    def ring(self, frame: RingFrame) -> None:
        """Take a frame of the previous rank."""
        run = self.run
        if run is None or frame.view > run.view:
            if frame.kind == "item":
                self.waiting.append(frame)
            return
        if frame.view < run.view:
            return
        self.heard_at = self.world.now
        if frame.kind == "blame":
            self.end("a neighbour lost its link", "")
        elif frame.kind == "item":
            self._item(frame)

    def _item(self, frame: RingFrame) -> None:
        reduction, item = self.reduction, frame.item
        if reduction is None or frame.turn > self.step:
            self.waiting.append(frame)
            return
        assert item is not None
        assert frame.turn == self.step, "a frame of an earlier turn"
        try:
            reduction.received(item)
        except PeerError:
            self.lost((self.rank - 1) % self.world_size)
            return
        if isinstance(item, MetaPiece):
            assert isinstance(frame.payload, bool)
            self.metas[item.origin] = frame.payload
        else:
            assert isinstance(frame.payload, tuple)
            for i, number in enumerate(frame.payload, start=item.start):
                adds = reduction.shape.adds(item.op)
                self.vector[i] = self.vector[i] + number if adds else number
        onward = reduction.shape.passed_on(item)
        if onward is not None:
            self._send(onward)
        if reduction.done:
            self._apply()

    def _apply(self) -> None:
        run = self.run
        assert run is not None
        assert self.vector == total(self.job, self.step), "a partial sum is applied"
        self.reduction = None
        self.value = following(self.value, self.vector)
        self.step += 1
        self.node.cluster.stepped(self)
        share = run.seats[run.rank].share
        self.say(Steps(run.view, self.step, (1.0,), share, 0.01, 0.01, 0.0))
        if self.step % CHECKPOINT_STEPS == 0 and run.rank == 0:
            self.write("checkpoint")
        if any(self.metas.values()) and self.step < self.job.steps:
            self.end("drained", "")
        else:
            self._compute()

    def write(self, purpose: str) -> None:
        path = f"{self.session}/{purpose}-{self.step}"
        self.node.files[path] = f"{self.step} {self.value}".encode()
        view = self.run.view if self.run else -1
        digest = digest_at(self.step, self.value)
        self.say(StateWritten(view, purpose, self.step, 0, path, digest))

    def lost(self, rank: int) -> None:
        assert self.run is not None
        self.end("a link is lost", self.run.seats[rank].node)

    def end(self, reason: str, culprit: str) -> None:
        run = self.run
        assert run is not None
        if self.world_size > 1:
            self.link(RingFrame(self.session, run.view, 0, "blame"))
        self.run = self.reduction = None
        self.waiting = [f for f in self.waiting if f.view > run.view]
        digest = digest_at(self.step, self.value)
        self.say(ViewEnded(run.view, self.step, digest, reason, culprit))

    def reset(self, node: str) -> None:
        """The connection to a neighbour was reset: it died."""
        if self.run is not None and self.world_size > 1:
            near = {
                (self.rank - 1) % self.world_size,
                (self.rank + 1) % self.world_size,
            }
            for rank in near:
                if self.run is not None and self.run.seats[rank].node == node:
                    self.lost(rank)

    def _finish(self) -> None:
        run = self.run
        assert run is not None
        digest = digest_at(self.step, self.value)
        node = self.node.id
        report = WorkerReport(
            *(node, "cpu", ("cpu",), ("cpu",), 1, 1.0, 1.0, 0.0, 1.0, 1.0, digest)
        )
        paths = ("", "")
        if run.rank == 0:
            paths = (f"{self.session}/weights", f"{self.session}/manifest")
            for path in paths:
                self.node.files[path] = f"{path} {digest}".encode()
            figures = EpochFigures(0, self.step, 1.0, {})
            self.say(EpochEnded(run.view, figures))
        self.run = None
        self.say(RunFinished(run.view, self.step, report, *paths))
