"""What all stages of a session's master share: state, orders, proposals."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from p2ptrain.core.registry import SessionRow
from p2ptrain.core.session.types import (
    AskHold,
    Effect,
    Facts,
    Note,
    Propose,
    Send,
    SessionConfig,
    Stage,
)
from p2ptrain.core.session.workers import Workers
from p2ptrain.ids import Digest, NodeId
from p2ptrain.messages.record import (
    BlobRef,
    Command,
    CommitView,
    SessionStatus,
    SetStatus,
)
from p2ptrain.messages.session import Order, Release, StateRef, WorkerState

PROPOSE_AGAIN_S = 5.0
SENT_MAX = 8192


@dataclass(frozen=True, slots=True)
class Start:
    """Where a view starts: the step, and the state for those who do not have it."""

    step: int
    state: StateRef | None
    sources: tuple[NodeId, ...]
    digest: str = ""
    agreed: tuple[NodeId, ...] = ()


class Base:
    """State of one session at the master.

    Args:
        me: the master's own node.
        term: of this mastership.
        row: the session as recorded.
        facts: of the job.
        config: times.
    """

    def __init__(
        self,
        me: NodeId,
        term: int,
        row: SessionRow,
        facts: Facts,
        config: SessionConfig,
    ) -> None:
        self.me = me
        self.term = term
        self.row = row
        self.facts = facts
        self.config = config
        self.workers = Workers(config)
        self.stage = Stage.GATHER
        self.stop_wanted = False
        self._now = 0.0
        self._stage_at: float | None = None
        self._effects: list[Effect] = []
        self._sent: dict[tuple[NodeId, str, int], float] = {}
        self._proposed: dict[str, float] = {}
        self._start: Start | None = None
        self._ending: tuple[SessionStatus, str] | None = None
        self._drain = False
        self._halt_reason = ""
        self._first_end: float | None = None
        self._lacked: dict[Digest, set[int]] = {}  # states, and views that missed them
        self._left_out: set[NodeId] = set()  # seats that did not answer at the end

    @property
    def session(self) -> str:
        """The session's id."""
        return self.row.submission.session

    @property
    def view(self) -> CommitView | None:
        """The view that was committed last."""
        return self.row.views[-1] if self.row.views else None

    @property
    def number(self) -> int:
        """Its number, 0 before the first."""
        return self.view.view if self.view else 0

    @property
    def _since(self) -> float:
        """Seconds in this stage."""
        assert self._stage_at is not None
        return self._now - self._stage_at

    def _note(self, text: str) -> None:
        self._effects.append(Note(text))

    def _bar(self, node: NodeId, reason: str) -> None:
        """Do not count on a node for a while."""
        self.workers.bar(self._now, node, reason)
        self._note(f"node {self.workers.name(node)!r} is left out: {reason}")

    def _enter(self, stage: Stage) -> None:
        self.stage = stage
        self._stage_at = self._now

    def _state(self, node: NodeId) -> WorkerState | None:
        return self.workers.state(self._now, node)

    def _order(self, to: NodeId, order: Order) -> None:
        """Send an order, unless the same one went out a moment ago."""
        key = (to, type(order).__name__, getattr(order, "view", 0))
        last = self._sent.get(key)
        if last is not None and self._now - last < self.config.repeat_s:
            return
        if len(self._sent) >= SENT_MAX:
            self._sent.clear()
        self._sent[key] = self._now
        self._effects.append(Send(to, order))

    def _ask_hold(
        self, node: NodeId, blobs: tuple[BlobRef, ...], sources: tuple[NodeId, ...]
    ) -> None:
        self._effects.append(AskHold(node, blobs, sources))

    def _propose(self, key: str, command: Command) -> bool:
        """Propose a command, unless it is under way; tell whether it was proposed."""
        last = self._proposed.get(key)
        if last is not None and self._now - last < PROPOSE_AGAIN_S:
            return False
        if len(self._proposed) >= SENT_MAX:
            self._proposed.clear()
        self._proposed[key] = self._now
        self._effects.append(Propose(command))
        return True

    def _set_status(self, status: SessionStatus, reason: str) -> None:
        if self.row.status is status and self.row.reason == reason:
            return
        command = SetStatus(
            self.row.submission.session, self.term, status, reason, self._step()
        )
        if self._propose(f"{status} {reason}", command):
            self._note(f"{status}: {reason}")

    def _step(self) -> int:
        """Return the newest step that any worker of the last view reports."""
        steps = [self.row.step]
        for seat in self.view.seats if self.view else ():
            known = self.workers.known.get(seat.node)
            if known is not None and known.state.view == self.number:
                steps.append(known.state.step)
        return max(steps)

    def _over(self, status: SessionStatus, reason: str) -> None:
        """End the session; once that is recorded, workers are released."""
        self._ending = (status, reason)
        self._set_status(status, reason)
        self._enter(Stage.OVER)

    def _odd_ones(self, said: Mapping[NodeId, object]) -> str:
        """Return the names of those who say something else than most do, for a
        sentence; all names where no majority is right.
        """
        counts = Counter(said.values()).most_common(2)
        tie = len(counts) > 1 and counts[0][1] == counts[1][1]
        odd = [node for node in sorted(said) if tie or said[node] != counts[0][0]]
        return self.workers.names(odd)

    def _release(self, node: NodeId, reason: str) -> None:
        session = self.row.submission.session
        self._order(node, Release(self.term, session, reason))
