"""The worker: this node's part in each session, and the trainer processes behind it."""

import time
from typing import assert_never

import structlog
import trio

from p2ptrain.actors.worker.jobs import (
    CLOSE_S,
    TrainerSettings,
    WorkerPorts,
    make_empty,
)
from p2ptrain.actors.worker.tasks import Internal, Slot, Tasks
from p2ptrain.core.worker import (
    Adopt,
    Effect,
    EndTrainer,
    Event,
    Fetch,
    Forget,
    Launch,
    MasterChanged,
    Ordered,
    Report,
    SessionWorker,
    Tell,
    Tick,
)
from p2ptrain.ids import SessionId, is_session
from p2ptrain.messages.asks import ParityAsk
from p2ptrain.messages.session import (
    Halt,
    Order,
    Prepare,
    Release,
    Run,
    Snapshot,
    WorkerPhase,
    WorkerState,
)
from p2ptrain.runtime.changes import Changes
from p2ptrain.runtime.inbox import Inbox, Mail

INBOX_BOUND = 4096
SESSIONS_MAX = 64
ORDERS = (Prepare, Run, Halt, Snapshot, Release)
_log = structlog.get_logger()


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
        self._tasks = Tasks(ports, settings, self.inbox.ref)
        self._changes = Changes()

    async def run(self) -> None:
        """Work until cancelled; trainers end with this task."""
        await trio.to_thread.run_sync(make_empty, self._settings.workdir)
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._watch_master)
                nursery.start_soon(self._tasks.warm)
                while True:
                    await self._take(nursery, await self._next())
        finally:
            with trio.CancelScope(shield=True, deadline=trio.current_time() + CLOSE_S):
                await self._ports.engine.aclose()

    async def drained(self) -> None:
        """Wait until this node trains in no view, and what it alone held is on record.

        The master ends its views once the roster says that this node trains no more.
        """
        seen = -1
        while any(map(self._is_needed, self._slots.values())):
            seen = await self._changes.wait(seen)

    def _is_needed(self, slot: Slot) -> bool:
        state = slot.core.state
        row = self._ports.log.registry.sessions.get(SessionId(state.session))
        saved = row.checkpoints[-1].step if row and row.checkpoints else -1
        written = state.checkpoint.state.step if state.checkpoint else -1
        return state.phase is WorkerPhase.RUNNING or written > saved

    async def _take(self, nursery: trio.Nursery, item: Mail | Internal | None) -> None:
        match item:
            case Mail(_, ParityAsk()):
                nursery.start_soon(self._tasks.parity, item)
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
        self._changes.bump()

    async def _perform(
        self, nursery: trio.Nursery, session: SessionId, slot: Slot, effect: Effect
    ) -> None:
        match effect:
            case Fetch():
                nursery.start_soon(self._tasks.fetch, session, effect)
            case Launch():
                slot.scope = trio.CancelScope()
                slot.launch = self._tasks.next_folder()
                nursery.start_soon(self._tasks.train, session, slot, effect)
            case Tell(frame, state):
                await self._tasks.tell(slot, frame, state)
            case Adopt():
                nursery.start_soon(self._tasks.adopt, session, effect)
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
                    nursery.start_soon(self._tasks.warm)
            case _:
                assert_never(effect)

    def _report(self, state: WorkerState) -> None:
        master = self._ports.log.master
        if master is not None:
            self._ports.post.send(master, state)

    async def _watch_master(self) -> None:
        """Have every core report at once whenever another master leads."""
        seen, before = -1, None
        while True:
            seen = await self._ports.log.changed(seen)
            self._changes.bump()
            master = self._ports.log.master
            if master is not None and master != before:
                before = master
                for session in list(self._slots):
                    await self._tasks.say(session, MasterChanged())
