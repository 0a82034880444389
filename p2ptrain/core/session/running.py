"""A view that runs: orders, progress, joiners, and the result at its end."""

from p2ptrain.core.patience import Patience
from p2ptrain.core.registry import SessionRow
from p2ptrain.core.session.base import Start
from p2ptrain.core.session.halting import Halting
from p2ptrain.core.session.types import Facts, SessionConfig, Stage
from p2ptrain.core.session.workers import LOADED, PREPARING
from p2ptrain.ids import NodeId
from p2ptrain.messages.record import AddResult, CommitView, Seat, SessionStatus
from p2ptrain.messages.session import (
    Finish,
    RingSeat,
    Run,
    WorkerPhase,
    WorkerState,
)

STALL_STEPS = 10
GROW_PAUSES = 5
ALLOWANCE_MAX_S = 3600.0

States = dict[NodeId, WorkerState | None]


class Running(Halting):
    """The RUN and FINISH stages; see ``Base`` for the arguments."""

    def __init__(
        self,
        me: NodeId,
        term: int,
        row: SessionRow,
        facts: Facts,
        config: SessionConfig,
    ) -> None:
        super().__init__(me, term, row, facts, config)
        self._moved_at = self._formed_at = 0.0
        self._joined_at = self._ended_at = float("-inf")
        self._pause_s = 0.0  # from the end of a view to the first step of the next
        self._best_step = -1
        self._patience = Patience(config.stall_s, ALLOWANCE_MAX_S, STALL_STEPS)
        self._allowance_s = config.first_step_s

    def _begin(self, view: CommitView) -> None:
        """Start ordering what was committed."""
        if self._start is None or self._start.step != view.first_step:
            self._start = Start(view.first_step, None, ())
        self._moved_at = self._formed_at = self._now
        self._best_step = view.first_step
        self._patience.forget()
        self._left_out.clear()
        self._drain = False
        shares = {self.workers.name(seat.node): seat.share for seat in view.seats}
        self._note(f"view {view.view} begins after step {view.first_step}: {shares}")
        self._enter(Stage.RUN)

    def _run(self) -> None:
        view = self.view
        assert view is not None
        states: States = {seat.node: self._state(seat.node) for seat in view.seats}
        broken = self._why_broken(view, states)
        if broken:
            self._halt(broken)
            return
        self._order_run(view, states)
        self._record(view)
        if self._finished(view, states) or self._stalled(view, states):
            return
        leaving = [s.node for s in view.seats if self.workers.is_leaving(s.node)]
        if self.stop_wanted:
            self._halt("the session is to stop", drain=True)
        elif leaving:
            self._halt(f"nodes {self.workers.names(leaving)} leave", drain=True)
        elif not any(s and s.phase is WorkerPhase.FINISHED for s in states.values()):
            self._let_join(view, states)

    def _why_broken(self, view: CommitView, states: States) -> str:
        """Return why a view cannot go on, or nothing."""
        for node, state in states.items():
            if self.workers.is_gone(node):
                return f"node {self.workers.name(node)!r} is gone"
            if state is None:
                continue
            if _knows_nothing(state):
                return f"node {self.workers.name(node)!r} was started again"
            ended = state.phase is WorkerPhase.ENDED and state.view == view.view
            if ended or state.phase is WorkerPhase.DECLINED:
                return state.reason or "the view ended"
        return self._why_idle(view, states)

    def _why_idle(self, view: CommitView, states: States) -> str:
        """Return why a view does not begin, or nothing; bar who does not take a seat.

        Obeying takes no time: who does not, hears nothing or cannot be heard.
        """
        if self._now - self._formed_at <= self.config.silent_s:
            return ""
        idle = [n for n, s in states.items() if s is None or not s.ring] or [
            n for n, s in states.items() if s is not None and not _began(s, view)
        ]
        if self._best_step > view.first_step or not idle:
            return ""
        for node in idle:
            reason = f"node {self.workers.name(node)!r} does not take its seat"
            self._bar(node, reason)
        return f"nodes {self.workers.names(idle)} do not take their seats"

    def _order_run(self, view: CommitView, states: States) -> None:
        """Order those to run who do not; wait for a seat whose address is missing."""
        seats: list[RingSeat] = []
        for seat in view.seats:
            state = states[seat.node]
            if state is None and self.workers.is_alive(seat.node):
                self._prepare(seat.node)  # it answers, whatever it is at
            if state is None or not state.ring:
                return
            seats.append(RingSeat(seat.node, seat.share, state.ring))
        start = self._start
        assert start is not None
        order = Run(
            self.term,
            view.session,
            view.view,
            tuple(seats),
            view.first_step,
            start.state,
            start.sources,
        )
        for node, state in states.items():
            if state is not None and not _began(state, view):
                self._order(node, order)

    def _stalled(self, view: CommitView, states: States) -> bool:
        """End a view in which nothing moves.

        The allowance for a view's first step doubles whenever it was not enough, so
        that a job with long steps gets through.
        """
        known = [s for s in states.values() if s is not None and s.view == view.view]
        best = max((s.step for s in known), default=-1)
        if best > self._best_step:
            if self._best_step == view.first_step and self._ended_at > float("-inf"):
                self._pause_s = self._now - self._ended_at
            self._best_step, self._moved_at = best, self._now
            for state in known:
                if state.step_s > 0:
                    self._patience.observe(state.step_s)
        if any(s.phase is WorkerPhase.FETCHING for s in known):
            self._moved_at = self._now
        limit = self._allowance_s
        if self._best_step > view.first_step:
            limit = self._patience.limit_s
        if self._now - self._moved_at <= limit:
            return False
        if self._best_step == view.first_step:
            self._allowance_s = min(2 * self._allowance_s, ALLOWANCE_MAX_S)
        self._halt(f"no step was applied for {limit:.1f} s")
        return True

    def _let_join(self, view: CommitView, states: States) -> None:
        """Prepare nodes that have no seat, and end the view when one is ready."""
        if len(view.seats) >= self.facts.parts:
            return
        seen = {s.data_digests for s in states.values() if s is not None}
        ready = False
        for node in self.workers.candidates(self._now):
            if node in states:
                continue
            state = self._state(node)
            if state is None or state.phase not in LOADED:
                self._get_ready(node, state)
            elif state.data_digests in seen:
                ready = True
            elif seen:
                self._bar_for_data(node)
        if ready and self._is_worth_it(view):
            self._joined_at = self._now
            self._halt("a node joins", drain=True)

    def _is_worth_it(self, view: CommitView) -> bool:
        """Tell whether a change of views pays now: not too soon, nor near the end."""
        pause = max(self.config.grow_s, GROW_PAUSES * self._pause_s)
        settled = self._now - self._joined_at > pause
        left_s = (self.facts.steps - self._best_step) * self._step_s(view)
        near_end = 0 < left_s < pause
        return settled and not near_end and self._best_step > view.first_step

    def _halt(self, reason: str, *, drain: bool = False) -> None:
        self._ended_at = self._now
        super()._halt(reason, drain=drain)

    # --- the end

    def _finished(self, view: CommitView, states: States) -> bool:
        """Move on when every seat has applied the last step."""
        digests = {
            node: state.digest
            for node, state in states.items()
            if state is not None
            and state.view == view.view
            and state.phase is WorkerPhase.FINISHED
        }
        if len(digests) < len(view.seats):
            return False
        if len(set(digests.values())) > 1:
            names = self._odd_ones(digests)
            why = f"nodes {names} compute wrongly: their final states differ"
            self._over(SessionStatus.FAILED, why)
            return True
        self._enter(Stage.FINISH)
        self._secure_result()
        return True

    def _secure_result(self) -> None:
        """Have the result on two nodes, record it, and end."""
        view = self.view
        assert view is not None
        if self.row.result is not None:
            self._over(SessionStatus.DONE, f"finished after step {self._step()}")
            return
        finishes = [self._finish_of(view, seat) for seat in view.seats]
        first = finishes[0]
        if first is None or first.weights is None or first.manifest is None:
            self._halt("the result's writer is gone")
            return
        self._record(view)
        writer = view.seats[0].node
        holders = self._secured((first.weights, first.manifest), writer)
        if not holders:
            return
        command = AddResult(
            view.session,
            self.term,
            view.view,
            self._step(),
            first.weights,
            first.manifest,
            first.report.digest,
            holders,
            tuple(finish.report for finish in finishes if finish),
        )
        self._propose("result", command)

    def _finish_of(self, view: CommitView, seat: Seat) -> Finish | None:
        known = self.workers.known.get(seat.node)
        if known is None or self.workers.is_gone(seat.node):
            return None
        return known.state.finish if known.state.view == view.view else None


def _knows_nothing(state: WorkerState) -> bool:
    """Tell whether a seat's worker has nothing loaded; it had, when it got the seat."""
    return state.step < 0 and state.phase in PREPARING


def _began(state: WorkerState, view: CommitView) -> bool:
    """Tell whether a worker has obeyed the order to run a view."""
    return state.view == view.view and state.phase is not WorkerPhase.READY
