"""The replicated record as a state machine: commands in, session rows out.

Every node applies the same commands in the same order and so holds the same rows. A
command that does not fit changes nothing and gives a sentence.
"""

from dataclasses import dataclass, replace
from typing import assert_never

from p2ptrain import codec
from p2ptrain.ids import Digest, SessionId
from p2ptrain.messages.record import (
    AddCheckpoint,
    AddEpoch,
    AddResult,
    AddSession,
    Command,
    CommitView,
    SessionStatus,
    SetStatus,
)

SESSIONS_MAX = 1000
VIEWS_MAX = 2000
EPOCHS_MAX = 10_000
CHECKPOINTS_KEPT = 3
STATE_BYTES_MAX = 64 * 1024 * 1024

_ENDS = {SessionStatus.DONE, SessionStatus.FAILED, SessionStatus.STOPPED}
_OPEN = {SessionStatus.PAUSED, SessionStatus.FAILED, SessionStatus.STOPPED}
LEGAL: dict[SessionStatus, set[SessionStatus]] = {
    SessionStatus.QUEUED: _OPEN | {SessionStatus.QUEUED},
    SessionStatus.RUNNING: _OPEN | {SessionStatus.RUNNING, SessionStatus.DONE},
    SessionStatus.PAUSED: _OPEN,
    **{end: set() for end in _ENDS},
}


@dataclass(frozen=True, slots=True)
class SessionRow:
    """All that the record says of one session.

    ``views`` are the committed views, oldest first, the newest ``VIEWS_MAX``; with each
    view's ``first_step`` they say who contributed which samples: a step belongs to the
    last view that starts at or before it. ``checkpoints`` are the newest three.
    """

    submission: AddSession
    status: SessionStatus
    reason: str
    step: int
    term: int
    views: tuple[CommitView, ...]
    checkpoints: tuple[AddCheckpoint, ...]
    epochs: tuple[AddEpoch, ...]
    result: AddResult | None


class Registry:
    """The rows; ``apply`` is the only way in."""

    def __init__(self) -> None:
        self.sessions: dict[SessionId, SessionRow] = {}

    def apply(self, command: Command) -> str:
        """Apply one committed command; return a refusal sentence, or "" when done."""
        if isinstance(command, AddSession):
            return self._add(command)
        row = self.sessions.get(command.session)
        if row is None:
            return f"no session {command.session!r:.40} is on record"
        if command.term < row.term:
            return f"term {command.term} is over: {row.term} has begun"
        if row.status in _ENDS:
            return f"session {command.session} is {row.status}"
        if isinstance(command, SetStatus):
            changed = _set_status(row, command)
        else:
            changed = _extend(row, command)
        if isinstance(changed, str):
            return changed
        self.sessions[command.session] = replace(changed, term=command.term)
        return ""

    def blobs(self) -> set[Digest]:
        """Return all blobs that the rows name."""
        named: set[Digest] = set()
        for row in self.sessions.values():
            job = row.submission
            named |= {job.spec.digest, *(blob.digest for blob in job.blobs)}
            named |= {kept.blob.digest for kept in row.checkpoints}
            if row.result is not None:
                named |= {row.result.weights.digest, row.result.manifest.digest}
        return named

    def dump(self) -> bytes:
        """Return the whole state, for a compacted log."""
        rows = [codec.to_plain(row) for row in self.sessions.values()]
        return codec.encode({"sessions": rows})

    @classmethod
    def restore(cls, data: bytes) -> "Registry":
        """Return the registry that ``dump`` wrote.

        Raises:
            PeerError: it is no such thing.
        """
        plain = codec.decode(data, STATE_BYTES_MAX)
        rows = codec.from_plain(dict[str, tuple[SessionRow, ...]], plain)
        registry = cls()
        for row in rows.get("sessions", ()):
            registry.sessions[row.submission.session] = row
        return registry

    def _add(self, command: AddSession) -> str:
        known = self.sessions.get(command.session)
        if known is not None:
            if (
                known.submission.spec == command.spec
                and known.submission.key == command.key
            ):
                return ""
            return f"the key of session {command.session} named another job before"
        if len(self.sessions) >= SESSIONS_MAX:
            ended = [s for s, row in self.sessions.items() if row.status in _ENDS]
            if not ended:
                return f"{SESSIONS_MAX} sessions are open: stop one first"
            del self.sessions[ended[0]]
        status = SessionStatus.QUEUED
        self.sessions[command.session] = SessionRow(
            command, status, "", 0, 0, (), (), (), None
        )
        return ""


def _set_status(row: SessionRow, command: SetStatus) -> SessionRow | str:
    if command.status not in LEGAL[row.status]:
        return f"a session that is {row.status} cannot become {command.status}"
    if command.status is SessionStatus.DONE and row.result is None:
        return "a session without a result is not done"
    step = max(row.step, command.step)
    return replace(row, status=command.status, reason=command.reason, step=step)


def _extend(
    row: SessionRow, command: CommitView | AddCheckpoint | AddEpoch | AddResult
) -> SessionRow | str:
    match command:
        case CommitView():
            return _commit_view(row, command)
        case AddCheckpoint() | AddEpoch() if _is_taken_back(row, command):
            return f"view {command.view} is over: training went on before that step"
        case AddCheckpoint():
            newest = sorted((*row.checkpoints, command), key=lambda kept: kept.step)
            kept = tuple(newest[-CHECKPOINTS_KEPT:])
            return replace(row, checkpoints=kept, step=max(row.step, command.step))
        case AddEpoch():
            others = [e for e in row.epochs if e.epoch != command.epoch]
            epochs = sorted((*others, command), key=lambda figures: figures.epoch)
            kept_epochs = tuple(epochs[-EPOCHS_MAX:])
            return replace(row, epochs=kept_epochs, step=max(row.step, command.step))
        case AddResult():
            if row.result is not None:
                return f"session {command.session} has a result"
            return replace(row, result=command, step=max(row.step, command.step))
        case _:
            assert_never(command)


def _is_taken_back(row: SessionRow, command: AddCheckpoint | AddEpoch) -> bool:
    """Tell whether a later view than the command's began before the command's step."""
    last = row.views[-1] if row.views else None
    return (
        last is not None and command.view < last.view and command.step > last.first_step
    )


def _commit_view(row: SessionRow, command: CommitView) -> SessionRow | str:
    last = row.views[-1].view if row.views else 0
    if command.view != last + 1:
        return f"view {command.view} does not follow view {last}"
    nodes = [seat.node for seat in command.seats]
    if not nodes or len(set(nodes)) != len(nodes):
        return f"view {command.view} needs seats of different nodes"
    if min(seat.share for seat in command.seats) < 0 or command.first_step < 0:
        return f"view {command.view} has a negative share or step"
    begin = command.first_step
    # What lies beyond the step where training goes on is of a life that nobody leads
    # any more: it will be reached again, perhaps with other bits.
    return replace(
        row,
        status=SessionStatus.RUNNING,
        reason="",
        step=begin,
        views=(*row.views, command)[-VIEWS_MAX:],
        epochs=tuple(kept for kept in row.epochs if kept.step <= begin),
        checkpoints=tuple(kept for kept in row.checkpoints if kept.step <= begin),
    )
