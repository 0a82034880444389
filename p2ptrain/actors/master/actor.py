"""The master: leads every session while this node is the record's leader.

When it is not, it knows no session and refuses whoever asks. All that it knows it can
learn again from the record and from the workers, so taking over needs no hand-over.
"""

from typing import assert_never

import structlog
import trio

from p2ptrain.actors.master.admission import Admission, MasterPorts, at_rest
from p2ptrain.actors.master.tasks import Internal, Item, Ready, Tasks, Wake
from p2ptrain.core.registry import SessionRow
from p2ptrain.core.session import (
    AskHold,
    Effect,
    Event,
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
from p2ptrain.errors import NoMasterError
from p2ptrain.ids import NodeId, SessionId
from p2ptrain.members import Member
from p2ptrain.messages.asks import (
    LiveAnswer,
    LiveAsk,
    StopAnswer,
    StopAsk,
    SubmitAsk,
)
from p2ptrain.messages.record import SessionStatus, SetStatus
from p2ptrain.messages.session import Release, WorkerState
from p2ptrain.runtime.inbox import Inbox, Mail

INBOX_BOUND = 4096
FINAL = frozenset({SessionStatus.DONE, SessionStatus.FAILED, SessionStatus.STOPPED})
OVER_KEPT = 16  # cores of sessions that are over, for those who watch their end
_log = structlog.get_logger()


class MasterActor:
    """Runs the master cores of all sessions.

    Args:
        ports: the rest of the daemon.
        config: times of the cores.
    """

    def __init__(self, ports: MasterPorts, config: SessionConfig) -> None:
        self.inbox: Inbox[Item] = Inbox("master", INBOX_BOUND)
        self._ports = ports
        self._admission = Admission(ports)
        self._tasks = Tasks(ports, self._admission, self.inbox.ref)
        self._config = config
        self._term = 0
        self._cores: dict[SessionId, SessionMaster] = {}
        self._loading: dict[SessionId, dict[NodeId, WorkerState]] = {}
        self._to_stop: set[SessionId] = set()
        self._rows: dict[SessionId, SessionRow] = {}
        self._members: tuple[Member, ...] = ()

    async def run(self) -> None:
        """Lead while this node is master, until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._tasks.watch_log)
            nursery.start_soon(self._tasks.watch_roster)
            while True:
                item = await self._next()
                self._sync(nursery)
                match item:
                    case Mail():
                        self._mail(nursery, item)
                    case Ready():
                        self._ready(nursery, item)
                    case Internal(session, event):
                        self._step(nursery, session, event)
                    case Wake() | None:
                        pass
                    case _:
                        assert_never(item)
                self._tick(nursery)

    async def _next(self) -> Item | None:
        deadlines = [core.deadline for core in self._cores.values()]
        with trio.move_on_at(min(deadlines, default=float("inf"))):
            return await self.inbox.receive()
        return None

    def _sync(self, nursery: trio.Nursery) -> None:
        """Bring the cores up to date with the record and the roster."""
        log = self._ports.log
        if not self._admission.is_master() or log.term != self._term:
            self._cores.clear()
            self._loading.clear()
            self._to_stop.clear()
            self._rows.clear()
            self._term = log.term
        if not self._admission.is_master():
            return
        for session, row in list(log.registry.sessions.items()):
            self._sync_row(nursery, session, row)
        over = [session for session, core in self._cores.items() if core.is_over]
        for session in over[:-OVER_KEPT]:
            del self._cores[session]
        members = self._ports.roster.members()
        if members != self._members:
            self._members = members
            for session in list(self._cores):
                self._step(nursery, session, Present(members))

    def _sync_row(
        self, nursery: trio.Nursery, session: SessionId, row: SessionRow
    ) -> None:
        if session in self._cores:
            if row is not self._rows.get(session):
                self._rows[session] = row
                self._step(nursery, session, Recorded(row))
        elif row.status not in FINAL and session not in self._loading:
            self._loading[session] = {}
            nursery.start_soon(self._tasks.read, self._term, row)

    def _tick(self, nursery: trio.Nursery) -> None:
        now = trio.current_time()
        for session, core in list(self._cores.items()):
            if core.deadline <= now:
                self._step(nursery, session, Tick())

    def _step(self, nursery: trio.Nursery, session: SessionId, event: Event) -> None:
        core = self._cores.get(session)
        if core is None:
            return
        for effect in core.step(trio.current_time(), event):
            self._perform(nursery, session, effect)

    def _perform(
        self, nursery: trio.Nursery, session: SessionId, effect: Effect
    ) -> None:
        match effect:
            case Send(to, order):
                self._ports.post.send(to, order)
            case Propose(command):
                nursery.start_soon(self._tasks.propose, command)
            case Note(text):
                _log.info(text, session=session)
            case AskHold():
                nursery.start_soon(self._tasks.ask_hold, session, effect)
            case _:
                assert_never(effect)

    # --- what comes in

    def _mail(self, nursery: trio.Nursery, mail: Mail) -> None:
        match mail.message:
            case WorkerState() as state:
                if state.node == mail.sender:
                    self._reported(nursery, state)
            case SubmitAsk() as ask:
                nursery.start_soon(self._tasks.submit, mail, ask)
            case StopAsk(session):
                self._answer(mail, self._stop(nursery, session))
            case LiveAsk(session):
                self._answer(mail, self._live(session))
            case _:
                pass  # the post routes nothing else here

    def _reported(self, nursery: trio.Nursery, state: WorkerState) -> None:
        """Take a worker's state; let one go whose session is over."""
        row = self._ports.log.registry.sessions.get(state.session)
        if state.session in self._cores:
            self._step(nursery, state.session, Reported(state))
        elif state.session in self._loading:
            self._loading[state.session][state.node] = state
        elif self._admission.is_master() and row is not None and row.status in FINAL:
            release = Release(self._term, state.session, row.reason)
            self._ports.post.send(state.node, release)

    def _answer(self, mail: Mail, answer: object) -> None:
        assert mail.reply is not None
        if self._admission.is_master():
            mail.reply.send(answer)
        else:
            mail.reply.fail(NoMasterError("this node is not the master"))

    def _ready(self, nursery: trio.Nursery, item: Ready) -> None:
        """Begin to lead a session whose spec was read."""
        session = item.session
        if item.term != self._term or session not in self._loading:
            return
        row = self._ports.log.registry.sessions.get(session)
        if row is None or row.status in FINAL:
            return
        if item.facts is not None:
            early = self._loading.pop(session)
            me, term = self._ports.post.me, self._term
            core = SessionMaster(me, term, row, item.facts, self._config)
            self._cores[session], self._rows[session] = core, row
            self._step(nursery, session, Present(self._ports.roster.members()))
            for state in early.values():
                self._step(nursery, session, Reported(state))
            if session in self._to_stop:
                self._step(nursery, session, StopWanted())
        elif item.problem:
            status = SessionStatus.FAILED
            command = SetStatus(session, self._term, status, item.problem, row.step)
            nursery.start_soon(self._tasks.propose, command)
        else:
            del self._loading[session]  # its spec is out of reach: once more
            self._sync_row(nursery, session, row)

    def _stop(self, nursery: trio.Nursery, session: SessionId) -> StopAnswer:
        row = self._ports.log.registry.sessions.get(session)
        if row is None:
            return StopAnswer(f"no session {session!r:.40} is on record")
        if row.status in FINAL:
            stopped = row.status is SessionStatus.STOPPED
            return StopAnswer("" if stopped else f"{session} is {row.status} already")
        self._to_stop.add(session)
        self._step(nursery, session, StopWanted())
        return StopAnswer("")

    def _live(self, session: SessionId) -> LiveAnswer:
        core = self._cores.get(session)
        if core is not None:
            return core.live()
        return at_rest(self._ports.log.registry.sessions.get(session))
