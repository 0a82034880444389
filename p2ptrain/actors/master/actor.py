"""The master: leads every session while this node is the record's leader.

When it is not, it knows no session and refuses whoever asks. All that it knows it can
learn again from the record and from the workers, so taking over needs no hand-over.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import assert_never

import structlog
import trio

from p2ptrain.actors.master.admission import (
    HOLD_S,
    Admission,
    MasterPorts,
    at_rest,
    facts_of,
)
from p2ptrain.core.registry import SessionRow
from p2ptrain.core.session import (
    AskHold,
    Effect,
    Event,
    Facts,
    Held,
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
from p2ptrain.errors import NoMasterError, P2PTrainError, UnreachableError
from p2ptrain.ids import SessionId
from p2ptrain.members import Member
from p2ptrain.messages.asks import (
    HoldAnswer,
    HoldAsk,
    LiveAnswer,
    LiveAsk,
    StopAnswer,
    StopAsk,
    SubmitAnswer,
    SubmitAsk,
)
from p2ptrain.messages.record import (
    Command,
    SessionStatus,
    SetStatus,
)
from p2ptrain.messages.session import WorkerState
from p2ptrain.runtime.inbox import Inbox, Mail

INBOX_BOUND = 4096
FINAL = frozenset({SessionStatus.DONE, SessionStatus.FAILED, SessionStatus.STOPPED})
_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Wake:
    """The record or the roster has changed."""


@dataclass(frozen=True, slots=True)
class Ready:
    """The facts of a session, read from its spec; None with a problem."""

    term: int
    session: SessionId
    facts: Facts | None
    problem: str


@dataclass(frozen=True, slots=True)
class Internal:
    """An event of a session's core, from one of its tasks."""

    session: SessionId
    event: Event


Item = Mail | Wake | Ready | Internal


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
        self._config = config
        self._term = 0
        self._cores: dict[SessionId, SessionMaster] = {}
        self._loading: set[SessionId] = set()
        self._rows: dict[SessionId, SessionRow] = {}
        self._members: tuple[Member, ...] = ()

    async def run(self) -> None:
        """Lead while this node is master, until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._watch, self._ports.log.changed)
            nursery.start_soon(self._watch, self._ports.roster.changed)
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

    async def _watch(self, changed: Callable[[int], object]) -> None:
        seen = -1
        while True:
            seen = await changed(seen)  # type: ignore[misc]  # both ports' method
            self.inbox.ref.offer(Wake())

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
            self._rows.clear()
            self._term = log.term
        if not self._admission.is_master():
            return
        members = self._ports.roster.members()
        for session, row in list(log.registry.sessions.items()):
            core = self._cores.get(session)
            if core is None:
                if row.status not in FINAL and session not in self._loading:
                    self._loading.add(session)
                    nursery.start_soon(self._read, self._term, row)
            elif row is not self._rows.get(session):
                self._rows[session] = row
                self._step(nursery, session, Recorded(row))
        if members != self._members:
            self._members = members
            for session in list(self._cores):
                self._step(nursery, session, Present(members))

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
                nursery.start_soon(self._propose, command)
            case AskHold():
                nursery.start_soon(self._ask_hold, session, effect)
            case _:
                assert_never(effect)

    # --- what comes in

    def _mail(self, nursery: trio.Nursery, mail: Mail) -> None:
        match mail.message:
            case WorkerState() as state:
                self._step(nursery, SessionId(state.session), Reported(state))
            case SubmitAsk() as ask:
                nursery.start_soon(self._submit, mail, ask)
            case StopAsk(session):
                self._answer(mail, self._stop(nursery, session))
            case LiveAsk(session):
                self._answer(mail, self._live(session))
            case _:
                pass  # the post routes nothing else here

    def _answer(self, mail: Mail, answer: object) -> None:
        assert mail.reply is not None
        if self._admission.is_master():
            mail.reply.send(answer)
        else:
            mail.reply.fail(NoMasterError("this node is not the master"))

    def _ready(self, nursery: trio.Nursery, item: Ready) -> None:
        """Begin to lead a session whose spec was read."""
        if item.term != self._term or not self._admission.is_master():
            return
        row = self._ports.log.registry.sessions.get(item.session)
        if row is None:
            return
        if item.facts is None:
            reason, step = item.problem, row.step
            failed = SessionStatus.FAILED
            command = SetStatus(item.session, self._term, failed, reason, step)
            nursery.start_soon(self._propose, command)
            return
        me, term = self._ports.post.me, self._term
        core = SessionMaster(me, term, row, item.facts, self._config)
        self._cores[item.session] = core
        self._rows[item.session] = row
        members = self._ports.roster.members()
        self._step(nursery, item.session, Present(members))

    def _stop(self, nursery: trio.Nursery, session: SessionId) -> StopAnswer:
        row = self._ports.log.registry.sessions.get(session)
        if row is None:
            return StopAnswer(f"no session {session!r:.40} is on record")
        self._step(nursery, session, StopWanted())
        return StopAnswer("")

    def _live(self, session: SessionId) -> LiveAnswer:
        core = self._cores.get(session)
        if core is not None:
            return core.live()
        return at_rest(self._ports.log.registry.sessions.get(session))

    # --- tasks

    async def _propose(self, command: Command) -> None:
        try:
            word = await self._ports.log.propose(command)
        except P2PTrainError as error:
            _log.info("not recorded", command=type(command).__name__, reason=str(error))
            return
        if word:
            _log.info("not recorded", command=type(command).__name__, reason=word)
        self.inbox.ref.offer(Wake())

    async def _ask_hold(self, session: SessionId, effect: AskHold) -> None:
        ask = HoldAsk(effect.blobs, effect.sources)
        try:
            answer = await self._ports.post.ask(effect.node, ask, HoldAnswer, HOLD_S)
            problem = answer.problem
        except UnreachableError as error:
            problem = str(error)
        held = Held(effect.node, effect.blobs, problem)
        await self.inbox.ref.tell(Internal(session, held))

    async def _read(self, term: int, row: SessionRow) -> None:
        """Read a session's spec for its facts."""
        submission = row.submission
        session = SessionId(submission.session)
        try:
            spec = await self._admission.spec(submission.spec, (submission.submitter,))
            ready = Ready(term, session, facts_of(spec), "")
        except UnreachableError:
            await trio.sleep(1.0)  # no holder is in reach: once more
            self._loading.discard(session)
            self.inbox.ref.offer(Wake())
            return
        except P2PTrainError as error:
            ready = Ready(term, session, None, str(error))
        await self.inbox.ref.tell(ready)

    async def _submit(self, mail: Mail, ask: SubmitAsk) -> None:
        assert mail.reply is not None
        try:
            answer = await self._admission.accept(ask)
        except NoMasterError as error:
            mail.reply.fail(error)
            return
        except P2PTrainError as error:
            answer = SubmitAnswer("", str(error))
        self._answer(mail, answer)
