"""What the worker does beside its loop: fetching, trainer processes, adopting files."""

from dataclasses import dataclass, field, replace
from pathlib import Path

import structlog
import trio

from p2ptrain.actors.worker.jobs import (
    CLOSE_S,
    TrainerSettings,
    WorkerPorts,
    check_parity,
    load_frame,
    make_empty,
    remove,
)
from p2ptrain.core.worker import (
    Adopt,
    Adopted,
    Event,
    Fetch,
    Fetched,
    Fetching,
    FromProcess,
    Launch,
    SessionWorker,
)
from p2ptrain.errors import P2PTrainError, UnreachableError
from p2ptrain.ids import SessionId
from p2ptrain.messages.asks import ParityAnswer, ParityAsk
from p2ptrain.messages.record import BlobRef
from p2ptrain.messages.trainer import Fault, Loaded, RunView, ToTrainer
from p2ptrain.ports import Trainer
from p2ptrain.runtime.inbox import Mail, Ref

_log = structlog.get_logger()


@dataclass(slots=True)
class Slot:
    """One session on this node: its core, and its trainer while there is one."""

    core: SessionWorker
    trainer: Trainer | None = None
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)
    launch: int = 0  # number of the present trainer, 0 when there is none


@dataclass(frozen=True, slots=True)
class Internal:
    """An event of a session's core, from one of its tasks.

    What comes of a trainer bears its ``launch``: late words of one that was ended, or
    of an earlier slot of the session, are dropped.
    """

    session: SessionId
    event: Event
    launch: int = 0


class Tasks:
    """The tasks; each ends with an event for the loop.

    Args:
        ports: the rest of the daemon.
        settings: for trainers.
        worker: the inbox of the loop.
    """

    def __init__(
        self,
        ports: WorkerPorts,
        settings: TrainerSettings,
        worker: Ref[Mail | Internal],
    ) -> None:
        self._ports = ports
        self._settings = settings
        self._worker = worker
        self._folders = 0  # every trainer has its own, also after a restart of its slot

    def next_folder(self) -> int:
        """Return a number that no trainer had before."""
        self._folders += 1
        return self._folders

    async def warm(self) -> None:
        """While this node has nothing to do, have a trainer ready for what comes."""
        try:
            await self._ports.engine.warm()
        except P2PTrainError as error:
            _log.warning("no trainer was started ahead", reason=str(error))

    async def say(self, session: SessionId, event: Event, launch: int = 0) -> None:
        """Hand an event to the loop."""
        await self._worker.tell(Internal(session, event, launch))

    async def fetch(self, session: SessionId, effect: Fetch) -> None:
        """Have blobs here."""
        ref = self._worker

        def progress(done: int, total: int) -> None:
            ref.offer(Internal(session, Fetching(done, total)))

        fetched = Fetched(effect.tag, "")
        try:
            await self._ports.courier.fetch(effect.blobs, effect.sources, progress)
        except P2PTrainError as error:
            problem = f"node {self._settings.name!r}: {error}"
            of_source = isinstance(error, UnreachableError)
            _log.warning("cannot fetch", session=session, reason=str(error))
            fetched = Fetched(effect.tag, problem, of_source)
        await self.say(session, fetched)

    async def train(self, session: SessionId, slot: Slot, effect: Launch) -> None:
        """Run one trainer process, from its start to its end."""
        launch = slot.launch
        folder = self._settings.workdir / session / f"{launch}"
        with slot.scope as scope:
            try:
                await trio.to_thread.run_sync(make_empty, folder)
                blobs = (effect.spec, *effect.blobs)
                load = await load_frame(
                    self._ports, self._settings, session, blobs, folder
                )
                trainer = await self._ports.engine.launch(folder)
            except P2PTrainError as error:
                fault = Fault(f"node {self._settings.name!r}: {error}", of_node=True)
                await self.say(session, FromProcess(fault), launch)
                return
            slot.trainer = trainer
            _log.info("trainer started", session=session, pid=trainer.pid)
            try:
                await trainer.send(load)
                async for frame in trainer.frames():
                    if isinstance(frame, Loaded):
                        seconds = round(frame.seconds, 2)
                        _log.info("trainer loaded", session=session, seconds=seconds)
                    elif isinstance(frame, Fault):
                        _log.warning("trainer gave up", reason=frame.sentence)
                    await self.say(session, FromProcess(frame), launch)
            finally:
                if slot.trainer is trainer:
                    slot.trainer = None
                with trio.CancelScope(
                    shield=True, deadline=trio.current_time() + CLOSE_S
                ):
                    await trainer.aclose()
                    await trio.to_thread.run_sync(remove, folder)
        if scope.cancelled_caught:
            _log.info("trainer ended", session=session)

    async def tell(self, slot: Slot, frame: ToTrainer, state: BlobRef | None) -> None:
        """Send a frame to a trainer, which may be gone."""
        if state is not None and isinstance(frame, RunView):
            path = await self._ports.blobs.path(state.digest)
            frame = replace(frame, state_path=str(path or ""))
        if slot.trainer is not None:
            await slot.trainer.send(frame)

    async def adopt(self, session: SessionId, effect: Adopt) -> None:
        """Make files of a trainer blobs."""
        blobs: list[BlobRef] = []
        problem = ""
        try:
            for path, name in effect.files:
                blobs.append(await self._ports.blobs.adopt(Path(path), name))
        except P2PTrainError as error:
            problem = f"node {self._settings.name!r}: {error}"
            _log.warning("cannot keep a trainer's file", reason=str(error))
        await self.say(session, Adopted(effect.tag, tuple(blobs), problem))

    async def parity(self, mail: Mail) -> None:
        """Answer how this node's devices compute."""
        ask = mail.message
        assert isinstance(ask, ParityAsk)
        assert mail.reply is not None
        try:
            folder = self._settings.workdir / f"parity-{self.next_folder()}"
            answer = await check_parity(self._ports, self._settings, ask, folder)
        except P2PTrainError as error:
            answer = ParityAnswer(str(error), ())
        mail.reply.send(answer)
