"""The replicated record as a state machine: commands in, session rows out.

Every node applies the same commands in the same order and so holds the same rows.
"""

from dataclasses import dataclass

from p2ptrain.ids import SessionId
from p2ptrain.messages.record import (
    AddCheckpoint,
    AddEpoch,
    AddResult,
    AddSession,
    Command,
    CommitView,
    SessionStatus,
)


@dataclass(frozen=True, slots=True)
class SessionRow:
    """All that the record says of one session.

    ``views`` holds every committed view, oldest first; with each view's ``first_step``
    it says who contributed which samples. ``checkpoints`` are the newest three.
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
        raise NotImplementedError

    def dump(self) -> bytes:
        """Return the whole state, for a compacted log."""
        raise NotImplementedError

    @classmethod
    def restore(cls, data: bytes) -> "Registry":
        """Return the registry that ``dump`` wrote."""
        raise NotImplementedError
