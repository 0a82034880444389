"""The worker: this node's part in each session, and the trainer processes behind it."""

import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import assert_never

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
    Effect,
    EndTrainer,
    Event,
    Fetch,
    Fetched,
    Fetching,
    Forget,
    FromProcess,
    Launch,
    MasterChanged,
    Ordered,
    Report,
    SessionWorker,
    Tell,
    Tick,
)
from p2ptrain.errors import P2PTrainError, UnreachableError
from p2ptrain.ids import SessionId, is_session
from p2ptrain.messages.asks import ParityAnswer, ParityAsk
from p2ptrain.messages.record import BlobRef
from p2ptrain.messages.session import (
    Halt,
    Order,
    Prepare,
    Release,
    Run,
    Snapshot,
    WorkerState,
)
from p2ptrain.messages.trainer import (
    Fault,
    Loaded,
    RunView,
    ToTrainer,
)
from p2ptrain.ports import Trainer
from p2ptrain.runtime.inbox import Inbox, Mail

INBOX_BOUND = 4096
SESSIONS_MAX = 64
ORDERS = (Prepare, Run, Halt, Snapshot, Release)
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


class WorkerActor:
    """Runs the cores of all sessions of this node.

    Args:
        ports: the rest of the daemon.
        settings: for trainers.
    """

    def __init__(self, ports: WorkerPorts, settings: TrainerSettings) -> None:
        self.inbox: Inbox[Mail | Internal] = Inbox("worker", INBOX_BOUND)
        self._ports = ports
        self._settings = settings
        self._slots: dict[SessionId, Slot] = {}
        self._folders = 0  # every trainer has its own, also after a restart of its slot

    async def run(self) -> None:
        """Work until cancelled; trainers end with this task."""
        await trio.to_thread.run_sync(make_empty, self._settings.workdir)
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._watch_master)
                nursery.start_soon(self._warm)
                while True:
                    await self._take(nursery, await self._next())
        finally:
            with trio.CancelScope(shield=True, deadline=trio.current_time() + CLOSE_S):
                await self._ports.engine.aclose()

    async def _take(self, nursery: trio.Nursery, item: Mail | Internal | None) -> None:
        match item:
            case Mail(_, ParityAsk()):
                nursery.start_soon(self._parity, item)
            case Mail(_, message):
                await self._ordered(nursery, message)
            case Internal(session, event, launch):
                slot = self._slots.get(session)
                if slot is not None and launch in {0, slot.launch}:
                    await self._step(nursery, session, event)
            case None:
                await self._tick(nursery)

    async def _next(self) -> Mail | Internal | None:
        """Return the next item, or None when a core's time has come."""
        deadlines = [slot.core.deadline for slot in self._slots.values()]
        with trio.move_on_at(min(deadlines, default=float("inf"))):
            return await self.inbox.receive()
        return None

    async def _tick(self, nursery: trio.Nursery) -> None:
        now = trio.current_time()
        for session, slot in list(self._slots.items()):
            if slot.core.deadline <= now:
                await self._step(nursery, session, Tick())

    async def _ordered(self, nursery: trio.Nursery, message: object) -> None:
        if not isinstance(message, ORDERS) or not is_session(message.session):
            return  # the session names a folder
        order: Order = message
        session = SessionId(order.session)
        if session not in self._slots:
            me, host = self._ports.post.me, self._settings.advertise
            core = SessionWorker(me, session, host, time.time_ns() // 1000)
            if isinstance(order, Halt | Run):
                self._report(core.state)  # the master takes it for another process
            if not isinstance(order, Prepare) or len(self._slots) >= SESSIONS_MAX:
                return
            self._slots[session] = Slot(core)
        await self._step(nursery, session, Ordered(order))

    async def _step(
        self, nursery: trio.Nursery, session: SessionId, event: Event
    ) -> None:
        slot = self._slots.get(session)
        if slot is None:
            return
        for effect in slot.core.step(trio.current_time(), event):
            await self._perform(nursery, session, slot, effect)

    async def _perform(
        self, nursery: trio.Nursery, session: SessionId, slot: Slot, effect: Effect
    ) -> None:
        match effect:
            case Fetch():
                nursery.start_soon(self._fetch, session, effect)
            case Launch():
                slot.scope = trio.CancelScope()
                slot.launch = self._next_folder()
                nursery.start_soon(self._train, session, slot, effect)
            case Tell(frame, state):
                await self._tell(slot, frame, state)
            case Adopt():
                nursery.start_soon(self._adopt, session, effect)
            case Report(state):
                self._report(state)
            case EndTrainer():
                slot.scope.cancel()
                slot.launch = -1
            case Forget():
                slot.scope.cancel()
                del self._slots[session]
                _log.info("session released", session=session)
                if not self._slots:
                    nursery.start_soon(self._warm)
            case _:
                assert_never(effect)

    def _report(self, state: WorkerState) -> None:
        master = self._ports.log.master
        if master is not None:
            self._ports.post.send(master, state)

    def _next_folder(self) -> int:
        self._folders += 1
        return self._folders

    # --- the tasks of a session

    async def _warm(self) -> None:
        """While this node has nothing to do, have a trainer ready for what comes."""
        try:
            await self._ports.engine.warm()
        except P2PTrainError as error:
            _log.warning("no trainer was started ahead", reason=str(error))

    async def _watch_master(self) -> None:
        """Have every core report at once whenever another master leads."""
        seen, before = -1, None
        while True:
            seen = await self._ports.log.changed(seen)
            master = self._ports.log.master
            if master is not None and master != before:
                before = master
                for session in list(self._slots):
                    await self._say(session, MasterChanged())

    async def _say(self, session: SessionId, event: Event, launch: int = 0) -> None:
        await self.inbox.ref.tell(Internal(session, event, launch))

    async def _fetch(self, session: SessionId, effect: Fetch) -> None:
        ref = self.inbox.ref

        def progress(done: int, total: int) -> None:
            ref.offer(Internal(session, Fetching(done, total)))

        fetched = Fetched(effect.tag, "")
        try:
            await self._ports.courier.fetch(effect.blobs, effect.sources, progress)
        except P2PTrainError as error:
            problem = f"node {self._settings.name!r}: {error}"
            of_source = isinstance(error, UnreachableError)
            fetched = Fetched(effect.tag, problem, of_source)
        await self._say(session, fetched)

    async def _train(self, session: SessionId, slot: Slot, effect: Launch) -> None:
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
                await self._say(session, FromProcess(fault), launch)
                return
            slot.trainer = trainer
            _log.info("trainer started", session=session, pid=trainer.pid)
            try:
                await trainer.send(load)
                async for frame in trainer.frames():
                    if isinstance(frame, Loaded):
                        seconds = round(frame.seconds, 2)
                        _log.info("trainer loaded", session=session, seconds=seconds)
                    await self._say(session, FromProcess(frame), launch)
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

    async def _tell(self, slot: Slot, frame: ToTrainer, state: BlobRef | None) -> None:
        if state is not None and isinstance(frame, RunView):
            path = await self._ports.blobs.path(state.digest)
            frame = replace(frame, state_path=str(path or ""))
        if slot.trainer is not None:
            await slot.trainer.send(frame)

    async def _adopt(self, session: SessionId, effect: Adopt) -> None:
        blobs: list[BlobRef] = []
        problem = ""
        try:
            for path, name in effect.files:
                blobs.append(await self._ports.blobs.adopt(Path(path), name))
        except P2PTrainError as error:
            problem = f"node {self._settings.name!r}: {error}"
        await self._say(session, Adopted(effect.tag, tuple(blobs), problem))

    # --- parity

    async def _parity(self, mail: Mail) -> None:
        ask = mail.message
        assert isinstance(ask, ParityAsk)
        assert mail.reply is not None
        try:
            folder = self._settings.workdir / f"parity-{self._next_folder()}"
            answer = await check_parity(self._ports, self._settings, ask, folder)
        except P2PTrainError as error:
            answer = ParityAnswer(str(error), ())
        mail.reply.send(answer)
