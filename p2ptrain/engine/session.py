"""The trainer's command loop: one session, one view after the other.

Runs in the main thread; two more threads read commands and write frames. What goes
wrong with the session itself ends the process with one ``Fault``; a lost link or a halt
ends only the view, and the state waits in memory for the next one.
"""

import os
import time
import traceback
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import Final, assert_never

from p2ptrain.engine import parity
from p2ptrain.engine.collective import Group
from p2ptrain.engine.commands import Commands
from p2ptrain.engine.job import Job
from p2ptrain.engine.load import load_job, loaded
from p2ptrain.engine.meta import TrainingFaultError
from p2ptrain.engine.outbox import Outbox
from p2ptrain.engine.rendezvous import Place
from p2ptrain.engine.trainloop import ViewRun
from p2ptrain.engine.writer import Label
from p2ptrain.errors import (
    LinkLostError,
    LocalError,
    P2PTrainError,
    RefError,
    SpecError,
    StorageError,
)
from p2ptrain.messages.trainer import (
    CheckParity,
    Fault,
    FromTrainer,
    HaltView,
    Load,
    Quit,
    RunView,
    ToTrainer,
    WriteSnapshot,
)

NICE: Final = 10
CONNECT_S: Final = 30.0  # a neighbour may still be restoring its state

# torch says "out of memory", "no kernel for this device" and the like with these
FOREIGN: Final = (RuntimeError, MemoryError, OSError, ValueError, TypeError)


class Session:
    """A trainer process's work.

    Args:
        commands: from the daemon.
        outbox: to the daemon.
    """

    def __init__(self, commands: Commands, outbox: Outbox) -> None:
        self._commands = commands
        self._outbox = outbox
        self._deferred: deque[ToTrainer] = deque()
        self._job: Job | None = None
        self._name = "?"

    def serve(self) -> int:
        """Obey commands until told to quit; return the process's exit code."""
        try:
            while not isinstance(command := self._next(), Quit):
                self._obey(command)
            if self._job is not None:
                self._job.writer.wait()
        except P2PTrainError as error:
            of_node = isinstance(error, StorageError | LocalError)
            self._outbox.send(Fault(sentence(self._name, error), of_node))
            return 1
        except FOREIGN as error:
            traceback.print_exc()
            self._outbox.send(Fault(sentence(self._name, error), of_node=True))
            return 1
        finally:
            if self._job is not None:
                self._job.close()
        return 0

    def _next(self) -> ToTrainer:
        return self._deferred.popleft() if self._deferred else self._commands.take()

    def _obey(self, command: ToTrainer) -> None:
        match command:
            case Load():
                self._load(command)
            case RunView():
                self._outbox.send(self._run(command))
            case WriteSnapshot():
                self._snapshot()
            case CheckParity():
                self._name = command.name
                self._outbox.send(parity.check(command))
            case HaltView() | Quit():
                pass  # no view runs
            case _:
                assert_never(command)

    def _load(self, command: Load) -> None:
        if self._job is not None:
            raise LocalError("a trainer loads one session only")
        self._name = command.name
        began = time.monotonic()
        self._job = load_job(command, self._outbox.send)
        give_way()
        self._outbox.send(loaded(self._job, time.monotonic() - began))

    def _run(self, frame: RunView) -> FromTrainer:
        """Run a view and return its last frame."""
        job = self._loaded()
        view = ViewRun(job, frame, self._commands, self._outbox)
        try:
            if frame.state_path:
                job.restore(Path(frame.state_path))
            if job.state.step != frame.first_step:
                return view.ended(
                    f"node {self._name!r} has step {job.state.step}, "
                    f"the view begins at step {frame.first_step}",
                    "",
                )
            return self._trained(view, frame)
        except LinkLostError as error:
            reason = self._commands.reason(frame.view)
            if reason is not None:
                return view.ended(reason, "")
            known = 0 <= error.rank < len(frame.seats)
            culprit = frame.seats[error.rank].node if known else ""
            return view.ended(str(error), culprit)
        finally:
            self._deferred.extend(view.deferred)

    def _trained(self, view: ViewRun, frame: RunView) -> FromTrainer:
        load = self._loaded().load
        group = Group(frame.rank, len(frame.seats), frame.view, load.stall_s)
        place = Place(load.session, frame.view, frame.rank, frame.seats)
        try:
            with self._commands.watching(frame.view, group.abort):
                group.open(self._loaded().listener, place, CONNECT_S)
                return view.train(group)
        finally:
            group.close()

    def _snapshot(self) -> None:
        job = self._loaded()
        epochs = job.schedule.complete(job.state.step)
        view = job.state.views[-1].view if job.state.views else 0
        job.writer.begin(job.state.copy(), Label(view, "snapshot", epochs))

    def _loaded(self) -> Job:
        if self._job is None:
            raise LocalError("a trainer must load a session first")
        return self._job


def give_way() -> None:
    """Run behind this node's daemon, which must answer in time, and behind trainers
    that are still loading; an idle machine notices nothing.
    """
    for task in Path("/proc/self/task").glob("*"):  # Linux has it by thread
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, int(task.name), NICE)
    with suppress(OSError):  # and, where sessions share the processors, by session
        Path("/proc/self/autogroup").write_text(str(NICE))


def sentence(name: str, error: BaseException) -> str:
    """Return what the submitter reads about an error of the node of this name.

    What all nodes say alike, or what names its node itself, is left as it is.
    """
    said = str(error).strip() or type(error).__name__
    first = said.splitlines()[0]
    alike = isinstance(error, TrainingFaultError | SpecError | RefError)
    return first if alike else f"node {name!r}: {first}"
