"""What seats report goes on record: figures of epochs, and secured checkpoints."""

from p2ptrain.core.registry import SessionRow
from p2ptrain.core.session.base import Base
from p2ptrain.core.session.types import AskHold, Facts, Held, SessionConfig
from p2ptrain.ids import Digest, NodeId
from p2ptrain.messages.record import AddCheckpoint, AddEpoch, BlobRef, CommitView
from p2ptrain.messages.session import Checkpoint, EpochFigures

HOLD_AGAIN_S = 120.0  # an ask is answered, unless the asking task is lost
CANNOT_S = 30.0
HELD_MAX = 1024


class Recording(Base):
    """Proposals about a view's progress; see ``Base`` for the arguments."""

    def __init__(
        self,
        me: NodeId,
        term: int,
        row: SessionRow,
        facts: Facts,
        config: SessionConfig,
    ) -> None:
        super().__init__(me, term, row, facts, config)
        self._held: set[tuple[NodeId, Digest]] = set()
        self._hold_asked: dict[tuple[NodeId, Digest], float] = {}
        self._cannot_hold: dict[NodeId, float] = {}

    def _record(self, view: CommitView) -> None:
        """Propose what any seat of a view reports and the record lacks."""
        for seat in view.seats:
            state = self._state(seat.node)
            if state is None or state.view != view.view:
                continue
            for figures in state.epochs:
                self._record_epoch(view, figures)
            if state.checkpoint is not None:
                self._record_checkpoint(view, seat.node, state.checkpoint)

    def _record_epoch(self, view: CommitView, figures: EpochFigures) -> None:
        if any(kept.epoch == figures.epoch for kept in self.row.epochs):
            return
        command = AddEpoch(
            view.session,
            self.term,
            view.view,
            figures.epoch,
            figures.step,
            figures.loss,
            figures.metrics,
            figures.digest,
        )
        self._propose(f"epoch {view.view} {figures.epoch}", command)

    def _record_checkpoint(
        self, view: CommitView, writer: NodeId, written: Checkpoint
    ) -> None:
        state = written.state
        newest = max((kept.step for kept in self.row.checkpoints), default=-1)
        if state.step <= newest:
            return
        holders = self._secured((state.blob,), writer)
        if not holders:
            return
        command = AddCheckpoint(
            view.session,
            self.term,
            view.view,
            state.step,
            state.blob,
            state.state_digest,
            holders,
        )
        self._propose(f"checkpoint {view.view} {state.step}", command)

    def _secured(self, blobs: tuple[BlobRef, ...], first: NodeId) -> tuple[NodeId, ...]:
        """Return the holders of blobs; empty while a second node copies them.

        Where no other node can, one holder is better than none.
        """
        others = [n for n in self.workers.able() if n != first and self._can_hold(n)]
        if not others:
            return (first,)
        for node in others:
            if all((node, blob.digest) in self._held for blob in blobs):
                return (first, node)
        node = self.me if self.me in others else others[0]
        key = (node, blobs[0].digest)
        asked = self._hold_asked.get(key)
        if asked is None or self._now - asked > HOLD_AGAIN_S:
            if len(self._hold_asked) >= HELD_MAX:
                self._hold_asked.clear()
            self._hold_asked[key] = self._now
            self._effects.append(AskHold(node, blobs, (first,)))
        return ()

    def _can_hold(self, node: NodeId) -> bool:
        failed = self._cannot_hold.get(node)
        return failed is None or self._now - failed > CANNOT_S

    def _take_held(self, event: Held) -> None:
        for blob in event.blobs:
            self._hold_asked.pop((event.node, blob.digest), None)
        if event.problem:
            if len(self._cannot_hold) >= HELD_MAX:
                self._cannot_hold.clear()
            self._cannot_hold[event.node] = self._now
            return
        if len(self._held) >= HELD_MAX:
            self._held.clear()
        self._held |= {(event.node, blob.digest) for blob in event.blobs}
