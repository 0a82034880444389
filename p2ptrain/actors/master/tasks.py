"""What the master does beside its loop; each task ends with an item for its inbox."""

from dataclasses import dataclass

import structlog
import trio

from p2ptrain.actors.master.admission import (
    Admission,
    MasterPorts,
    facts_of,
    hold_s,
)
from p2ptrain.core.registry import SessionRow
from p2ptrain.core.session import AskHold, Event, Facts, Held
from p2ptrain.errors import NoMasterError, P2PTrainError, UnreachableError
from p2ptrain.ids import SessionId
from p2ptrain.messages.asks import HoldAnswer, HoldAsk, SubmitAnswer, SubmitAsk
from p2ptrain.messages.record import Command
from p2ptrain.runtime.inbox import Mail, Ref

READ_AGAIN_S = 1.0
_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Wake:
    """The record or the roster has changed."""


@dataclass(frozen=True, slots=True)
class Ready:
    """The facts of a session, read from its spec.

    None with a problem; None without one when the spec is out of reach for now.
    """

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


class Tasks:
    """The tasks.

    Args:
        ports: the rest of the daemon.
        admission: of jobs.
        master: the inbox of the loop.
    """

    def __init__(
        self, ports: MasterPorts, admission: Admission, master: Ref[Item]
    ) -> None:
        self._ports = ports
        self._admission = admission
        self._master = master

    async def watch_log(self) -> None:
        """Wake the loop whenever the record has changed."""
        seen = -1
        while True:
            seen = await self._ports.log.changed(seen)
            self._master.offer(Wake())

    async def watch_roster(self) -> None:
        """Wake the loop whenever the roster has changed."""
        seen = -1
        while True:
            seen = await self._ports.roster.changed(seen)
            self._master.offer(Wake())

    async def propose(self, command: Command) -> None:
        """Have a command recorded; the core proposes again what was not."""
        try:
            word = await self._ports.log.propose(command)
        except P2PTrainError as error:
            word = str(error)
        if word:
            _log.info("not recorded", command=type(command).__name__, reason=word)
        self._master.offer(Wake())

    async def ask_hold(self, session: SessionId, effect: AskHold) -> None:
        """Have a node hold blobs."""
        ask = HoldAsk(effect.blobs, effect.sources)
        limit = hold_s(effect.blobs)
        try:
            answer = await self._ports.post.ask(effect.node, ask, HoldAnswer, limit)
            problem = answer.problem
        except UnreachableError as error:
            problem = str(error)
        held = Held(effect.node, effect.blobs, problem)
        await self._master.tell(Internal(session, held))

    async def read(self, term: int, row: SessionRow) -> None:
        """Read a session's spec for its facts."""
        submission = row.submission
        session = submission.session
        try:
            spec = await self._admission.spec(submission.spec, (submission.submitter,))
            ready = Ready(term, session, facts_of(spec), "")
        except UnreachableError:
            await trio.sleep(READ_AGAIN_S)
            ready = Ready(term, session, None, "")
        except P2PTrainError as error:
            ready = Ready(term, session, None, str(error))
        await self._master.tell(ready)

    async def submit(self, mail: Mail, ask: SubmitAsk) -> None:
        """Answer a submission."""
        assert mail.reply is not None
        try:
            answer = await self._admission.accept(ask)
        except NoMasterError as error:
            mail.reply.fail(error)
            return
        except P2PTrainError as error:
            answer = SubmitAnswer("", str(error))
        mail.reply.send(answer)
