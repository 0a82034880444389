"""Trainers for tests: the real session and its command loop, each in a thread, spoken
to over real pipes and joined by real ring links; or as processes of their own.
"""

import os
import queue
import threading
from dataclasses import dataclass, field
from pathlib import Path

from p2ptrain import codec
from p2ptrain.engine.commands import Commands
from p2ptrain.engine.frames import frame_of, read_frame
from p2ptrain.engine.outbox import Outbox
from p2ptrain.engine.session import Session
from p2ptrain.messages.session import RingSeat
from p2ptrain.messages.trainer import (
    EpochEnded,
    Fault,
    FromTrainer,
    Load,
    Loaded,
    Quit,
    RunFinished,
    RunView,
    StateWritten,
    Steps,
    ViewEnded,
    WriteSnapshot,
)
from p2ptrain.spec.train import TrainSpec, spec_bytes

TABLE = codec.kinds(FromTrainer)
WAIT_S = 60.0
LAST = (RunFinished, ViewEnded, Fault)


@dataclass
class Heard:
    """What a trainer said in one view."""

    last: FromTrainer
    losses: list[float] = field(default_factory=list)
    epochs: list[EpochEnded] = field(default_factory=list)
    files: list[StateWritten] = field(default_factory=list)
    steps: list[Steps] = field(default_factory=list)


class Trainer:
    """One session in a thread."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.node = f"{abs(hash(name)) % 16**8:08x}" * 4
        inward, self._to = os.pipe()
        self._from, outward = os.pipe()
        self._stdin = os.fdopen(inward, "rb")
        self._stdout = os.fdopen(outward, "wb")
        self._said = os.fdopen(self._from, "rb")
        self.heard: queue.Queue[FromTrainer | None] = queue.Queue()
        self.commands = Commands(self._stdin, lambda _: self._stdin.close())
        self.outbox = Outbox(self._stdout)
        self.session = Session(self.commands, self.outbox)
        self.code: int | None = None
        threading.Thread(target=self._listen, daemon=True).start()
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
        self.commands.start()
        self._thread.start()

    def _serve(self) -> None:
        try:
            self.code = self.session.serve()
        finally:
            self.outbox.close()
            self._stdout.close()

    def _listen(self) -> None:
        while (frame := read_frame(self._said, TABLE)) is not None:
            self.heard.put(frame)
        self._said.close()
        self.heard.put(None)

    def send(self, frame) -> None:
        os.write(self._to, frame_of(frame))

    def next(self) -> FromTrainer | None:
        return self.heard.get(timeout=WAIT_S)

    def until(self, *kinds) -> Heard:
        """Listen until one of the kinds; a Fault always ends it."""
        heard = Heard(last=Fault("nothing"))
        while True:
            frame = self.next()
            assert frame is not None, f"{self.name} has ended"
            if isinstance(frame, Steps):
                heard.losses += frame.losses
                heard.steps.append(frame)
            elif isinstance(frame, EpochEnded):
                heard.epochs.append(frame)
            elif isinstance(frame, StateWritten):
                heard.files.append(frame)
            if isinstance(frame, (*kinds, Fault)):
                heard.last = frame
                return heard

    def snapshot(self) -> StateWritten:
        """Ask for a snapshot; a checkpoint may still be on its way before it."""
        self.send(WriteSnapshot())
        while True:
            written = self.until(StateWritten).last
            assert isinstance(written, StateWritten), written
            if written.purpose == "snapshot":
                return written

    def close(self) -> None:
        if self._thread.is_alive():
            self.send(Quit())
            self._thread.join(WAIT_S)
        assert not self._thread.is_alive()
        os.close(self._to)


@dataclass
class Cluster:
    """Several trainers that have loaded one session."""

    folder: Path
    spec: TrainSpec
    trainers: list[Trainer]
    loaded: list[Loaded]
    files: dict[str, str]
    view: int = 0

    def load(self, name: str, **changes) -> Trainer:
        """Start one more trainer and have it load the session."""
        trainer = Trainer(name)
        trainer.send(load_frame(self, trainer, **changes))
        self.trainers.append(trainer)
        return trainer

    def run(self, shares, ranks=None, first_step=0, states=None) -> None:
        """Send a view of some trainers (all, where ``ranks`` is None)."""
        self.view += 1
        chosen = self.trainers if ranks is None else ranks
        seats = tuple(
            RingSeat(t.node, share, f"127.0.0.1:{self.port(t)}")
            for t, share in zip(chosen, shares, strict=True)
        )
        for rank, trainer in enumerate(chosen):
            state = (states or {}).get(trainer, "")
            trainer.send(RunView(self.view, rank, seats, first_step, state))

    def port(self, trainer: Trainer) -> int:
        return self.loaded[self.trainers.index(trainer)].ring_port

    def close(self) -> None:
        for trainer in self.trainers:
            trainer.close()


def load_frame(cluster: Cluster, trainer: Trainer, **changes) -> Load:
    workdir = cluster.folder / trainer.name
    workdir.mkdir(exist_ok=True)
    path = workdir / "spec"
    path.write_bytes(spec_bytes(cluster.spec))
    settings = {
        "session": "s-000000000001",
        "node": trainer.node,
        "name": trainer.name,
        "spec_path": str(path),
        "files": cluster.files,
        "roots": (str(cluster.folder),),
        "workdir": str(workdir),
        "threads": 1,
        "host": "127.0.0.1",
        "ports": (0, 0),
        "tls": None,
        "stall_s": 20.0,
    }
    return Load(**settings | changes)


def start(folder: Path, spec: TrainSpec, world: int, files=None, **changes) -> Cluster:
    """Start trainers that have all loaded the session."""
    cluster = Cluster(folder, spec, [], [], files or {})
    for rank in range(world):
        cluster.load(f"node-{rank}", **changes)
    for trainer in cluster.trainers:
        heard = trainer.until(Loaded)
        assert isinstance(heard.last, Loaded), heard.last
        cluster.loaded.append(heard.last)
    return cluster


def train(folder: Path, spec: TrainSpec, shares, files=None) -> list[Heard]:
    """Train from start to end with one share a rank; return what each rank said."""
    cluster = start(folder, spec, len(shares), files)
    try:
        cluster.run(shares)
        return [trainer.until(RunFinished, ViewEnded) for trainer in cluster.trainers]
    finally:
        cluster.close()
