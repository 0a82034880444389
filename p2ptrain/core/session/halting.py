"""Ending a view: every seat says that it ended, or is left out of the next one.

A seat that answers nothing is given up after a moment: it was killed, or is cut off. A
seat that answers but goes on, such as one in the middle of a long computation, gets
more time, unless its neighbours blame it: then it is the one that hangs.
"""

from p2ptrain.core.session.forming import Forming
from p2ptrain.core.session.recording import Recording
from p2ptrain.core.session.types import Stage
from p2ptrain.core.session.workers import LOADED
from p2ptrain.ids import Digest, NodeId
from p2ptrain.messages.record import CommitView
from p2ptrain.messages.session import Halt, WorkerPhase

ANSWER_S = 1.0  # who lives and is asked twice has answered by now
NOT_RUNNING = LOADED | {WorkerPhase.DECLINED, WorkerPhase.LOADING}
DRAIN_STEPS = 5  # a boundary is at most this many of its steps away
LINGER_STEPS = 2


class Halting(Forming, Recording):
    """The HALT stage."""

    def _halt(self, reason: str, *, drain: bool = False) -> None:
        self._drain = drain
        self._halt_reason = reason
        self._first_end = None
        self._note(f"view {self.number} ends: {reason}")
        self._enter(Stage.HALT)
        self._halting()

    def _halting(self) -> None:
        """Order seats to end the view until they have, or are given up."""
        view = self.view
        assert view is not None
        self._note_lack(view)
        open_nodes = [s.node for s in view.seats if not self._has_ended(s.node, view)]
        if self._first_end is None and len(open_nodes) < len(view.seats):
            self._first_end = self._now
        for node in open_nodes:
            self._order_halt(node, view)
        given_up = [node for node in open_nodes if self._is_given_up(node, view)]
        if len(given_up) < len(open_nodes):
            if self._drain and self._since > self._drain_limit(view):
                self._halt(f"{self._halt_reason}; no step boundary came")
            return
        for node in given_up:
            self._left_out.add(node)
            if self._answers(node) and self.workers.is_alive(node):
                reason = f"node {self.workers.name(node)!r} did not end its view"
                self._bar(node, reason)
            else:
                self.workers.forget(node)  # if it comes back, it knows nothing
        self._record(view)
        if not self._waits_for_checkpoint(view):
            self._enter_form()

    def _note_lack(self, view: CommitView) -> None:
        """Count views that could not begin because nobody had what they begin from."""
        for seat in view.seats:
            state = self._state(seat.node)
            if state is not None and state.lacks and state.view == view.view:
                self._lacked.setdefault(Digest(state.lacks), set()).add(view.view)

    def _waits_for_checkpoint(self, view: CommitView) -> bool:
        """Tell whether a checkpoint of what only leaving nodes hold is on its way."""
        states = [self._state(seat.node) for seat in view.seats]
        written = [
            s.checkpoint.state.step
            for s in states
            if s and s.view == view.view and s.checkpoint is not None
        ]
        newest = max((kept.step for kept in self.row.checkpoints), default=-1)
        stays = any(not self.workers.is_leaving(seat.node) for seat in view.seats)
        late = self._since > self.config.leave_s
        return not stays and not late and max(written, default=-1) > newest

    def _has_ended(self, node: NodeId, view: CommitView) -> bool:
        """Tell whether a seat does not run; one with nothing loaded cannot.

        What one said before it was blamed does not show that it still lives.
        """
        if self.workers.is_gone(node):
            return True
        if self._is_blamed(node, view) and not self._answers(node):
            return False
        state = self._state(node)
        return state is not None and (state.phase in NOT_RUNNING or state.step < 0)

    def _order_halt(self, node: NodeId, view: CommitView) -> None:
        state = self._state(node)
        number = state.view if state is not None else view.view
        reason, drain = self._halt_reason, self._drain
        self._order(node, Halt(self.term, view.session, number, reason, drain=drain))

    def _is_given_up(self, node: NodeId, view: CommitView) -> bool:
        suspected = not self.workers.is_alive(node)
        if suspected or not self._answers(node):
            limit = self.config.gone_s if suspected else self.config.settle_s
            waited = self._since > limit
            return waited and (self._first_end is not None or self._since > ANSWER_S)
        if self._first_end is None:
            return not self._drain and self._since > self._linger(view) * 2
        ended = self._now - self._first_end
        if self._is_blamed(node, view):
            return ended > self.config.settle_s
        return ended > self._linger(view)

    def _answers(self, node: NodeId) -> bool:
        """Tell whether a node said anything since the view was to end."""
        known = self.workers.known.get(node)
        assert self._stage_at is not None
        return known is not None and known.at > self._stage_at

    def _is_blamed(self, node: NodeId, view: CommitView) -> bool:
        return any(
            state.culprit == node and state.view == view.view
            for seat in view.seats
            if (state := self._state(seat.node)) is not None
        )

    def _linger(self, view: CommitView) -> float:
        slowest = LINGER_STEPS * self._step_s(view)
        return max(self.config.linger_s, slowest)

    def _drain_limit(self, view: CommitView) -> float:
        return max(self.config.drain_s, DRAIN_STEPS * self._step_s(view))

    def _step_s(self, view: CommitView) -> float:
        """Return the longest step time that a seat has measured, in seconds."""
        known = (self.workers.known.get(seat.node) for seat in view.seats)
        return max((k.state.step_s for k in known if k is not None), default=0.0)
