"""A view that runs: orders, progress, joiners, checkpoints, and how it ends."""

import statistics

from p2ptrain.core.session.base import Start
from p2ptrain.core.session.forming import Forming
from p2ptrain.core.session.types import Held, Stage
from p2ptrain.core.session.workers import LOADED
from p2ptrain.ids import NodeId
from p2ptrain.messages.record import (
    AddCheckpoint,
    AddEpoch,
    AddResult,
    BlobRef,
    CommitView,
    Seat,
    SessionStatus,
)
from p2ptrain.messages.session import (
    Finish,
    Halt,
    RingSeat,
    Run,
    WorkerPhase,
    WorkerState,
)

DRAIN_S = 20.0
HOLD_AGAIN_S = 10.0
ENDED = frozenset({WorkerPhase.ENDED, WorkerPhase.FINISHED, WorkerPhase.DECLINED})


class Running(Forming):
    """The RUN, HALT and FINISH stages."""

    def _begin(self, view: CommitView) -> None:
        """Start ordering what was committed."""
        if self._start is None or self._start.step != view.first_step:
            self._start = Start(view.first_step, None, ())
        self._moved_at = self._formed_at = self._now
        self._best_step = view.first_step
        self._drain = False
        self._enter(Stage.RUN)

    def _run(self) -> None:
        view = self.view
        assert view is not None
        states = {seat.node: self._state(seat.node) for seat in view.seats}
        for seat in view.seats:
            state = states[seat.node]
            if state is not None and state.view == view.view:
                if state.phase is WorkerPhase.ENDED:
                    self._halt(state.reason)
                    return
                if state.phase is WorkerPhase.DECLINED:
                    self._halt(state.reason)
                    return
            if self.workers.is_gone(seat.node):
                self._halt(f"node {self.workers.name(seat.node)!r} is gone")
                return
        self._order_run(view, states)
        self._record(view, states)
        if self._finished(view, states) or self._stalled(view, states):
            return
        if self.stop_wanted:
            self._halt("the session is to stop", drain=True)
        elif not any(s and s.phase is WorkerPhase.FINISHED for s in states.values()):
            self._let_join(view)

    def _order_run(
        self, view: CommitView, states: dict[NodeId, WorkerState | None]
    ) -> None:
        seats: list[RingSeat] = []
        for seat in view.seats:
            state = states[seat.node]
            if state is None or not state.ring:
                return  # an address is missing: its node is about to speak
            seats.append(RingSeat(seat.node, seat.share, state.ring))
        assert self._start is not None
        for node, state in states.items():
            began = state is not None and state.view == view.view
            if not began or (state is not None and state.phase is WorkerPhase.READY):
                order = Run(
                    self.term,
                    view.session,
                    view.view,
                    tuple(seats),
                    view.first_step,
                    self._start.state,
                    self._start.sources,
                )
                self._order(node, order)

    def _stalled(
        self, view: CommitView, states: dict[NodeId, WorkerState | None]
    ) -> bool:
        """End a view in which nothing moves."""
        steps = [s.step for s in states.values() if s and s.view == view.view]
        best = max(steps, default=-1)
        fetched = any(s and s.phase is WorkerPhase.FETCHING for s in states.values())
        if best > self._best_step or fetched:
            self._best_step = max(best, self._best_step)
            self._moved_at = self._now
        if self._best_step > view.first_step:
            usual = [s.step_s for s in states.values() if s and s.step_s > 0]
            slow = 10 * statistics.median(usual) if usual else 0.0
            limit = max(self.config.stall_s, slow)
        else:
            limit = self.config.first_step_s
        if self._now - self._moved_at > limit:
            self._halt(f"no step was applied for {limit:.1f} s")
            return True
        return False

    def _let_join(self, view: CommitView) -> None:
        """Prepare nodes that have no seat, and end the view when one is ready."""
        seated = {seat.node for seat in view.seats}
        if len(seated) >= self.facts.parts:
            return
        ready = False
        for node in self.workers.candidates(self._now):
            if node in seated:
                continue
            state = self._state(node)
            if state is not None and state.phase in LOADED:
                ready = True
            elif state is not None and state.phase is WorkerPhase.DECLINED:
                self.workers.bar(self._now, node, state.reason)
            else:
                self._prepare(node)
        settled = self._now - self._formed_at > self.config.grow_s
        if ready and settled and self._best_step > view.first_step:
            self._halt("a node joins", drain=True)

    def _halt(self, reason: str, *, drain: bool = False) -> None:
        self._drain = drain
        self._halt_reason = reason
        self._first_end = None
        self._enter(Stage.HALT)
        self._halting()

    def _halting(self) -> None:
        """Wait until the seats have ended the view; leave out who does not answer."""
        view = self.view
        assert view is not None
        open_nodes: list[NodeId] = []
        for seat in view.seats:
            state = self._state(seat.node)
            ended = state is not None and (
                state.phase in ENDED or state.view < view.view
            )
            if ended:
                self._first_end = self._first_end or self._now
            elif not self.workers.is_gone(seat.node):
                open_nodes.append(seat.node)
                reason, session = self._halt_reason, view.session
                order = Halt(self.term, session, view.view, reason, self._drain)
                self._order(seat.node, order)
        if open_nodes and not self._given_up():
            return
        for node in open_nodes:
            name = self.workers.name(node)
            self.workers.bar(self._now, node, f"node {name!r} did not end its view")
        self._record(view, {s.node: self._state(s.node) for s in view.seats})
        self.workers.forget_asked()
        self._enter(Stage.FORM)
        self._form()

    def _given_up(self) -> bool:
        if self._drain:
            return self._since > DRAIN_S
        begun = self._first_end or self._now
        settled = self._now - begun > self.config.settle_s
        return (self._first_end is not None and settled) or (
            self._since > self.config.stall_s
        )

    def _record(
        self, view: CommitView, states: dict[NodeId, WorkerState | None]
    ) -> None:
        """Propose what rank 0 reports: figures of epochs, and checkpoints."""
        state = states[view.seats[0].node]
        if state is None or state.view != view.view:
            return
        done = {epoch.epoch for epoch in self.row.epochs}
        for figures in state.epochs:
            if figures.epoch not in done:
                self._propose(
                    f"epoch {figures.epoch}",
                    AddEpoch(
                        view.session,
                        self.term,
                        view.view,
                        figures.epoch,
                        figures.step,
                        figures.loss,
                        figures.metrics,
                    ),
                )
        written = state.checkpoint
        if written is None:
            return
        kept = [c.step for c in self.row.checkpoints]
        if written.state.step > max(kept, default=-1):
            holders = self._secured((written.state.blob,), view.seats[0])
            if holders:
                self._propose(
                    f"checkpoint {written.state.step}",
                    AddCheckpoint(
                        view.session,
                        self.term,
                        view.view,
                        written.state.step,
                        written.state.blob,
                        written.state.state_digest,
                        holders,
                    ),
                )

    def _secured(self, blobs: tuple[BlobRef, ...], first: Seat) -> tuple[NodeId, ...]:
        """Return two holders of blobs; empty while the second one copies them."""
        others = [n for n in self.workers.candidates(self._now) if n != first.node]
        if not others:
            return (first.node,)
        for node in others:
            if all((node, blob.digest) in self._held for blob in blobs):
                return (first.node, node)
        node = others[0] if self.me not in others else self.me
        key = (node, blobs[0].digest)
        asked = self._hold_asked.get(key)
        if asked is None or self._now - asked > HOLD_AGAIN_S:
            self._hold_asked[key] = self._now
            self._ask_hold(node, blobs, (first.node,))
        return ()

    def _take_held(self, event: Held) -> None:
        if not event.problem:
            if len(self._held) > 1024:
                self._held.clear()
            self._held |= {(event.node, blob.digest) for blob in event.blobs}
        else:
            self.workers.bar(self._now, event.node, event.problem)

    def _finished(
        self, view: CommitView, states: dict[NodeId, WorkerState | None]
    ) -> bool:
        """Move on when every seat has applied the last step."""
        done = [s for s in states.values() if s and s.phase is WorkerPhase.FINISHED]
        if len(done) < len(view.seats):
            return False
        if len({state.digest for state in done}) > 1:
            names = self.workers.names(states)
            self._over(
                SessionStatus.FAILED,
                f"nodes {names} ended with different states: one computes wrongly",
            )
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
        finishes = [self._finish_of(seat.node) for seat in view.seats]
        first = finishes[0]
        if first is None or first.weights is None or first.manifest is None:
            self._halt("the result's writer is gone")
            return
        holders = self._secured((first.weights, first.manifest), view.seats[0])
        states = self.workers.known[view.seats[0].node].state
        self._record(view, {s.node: self._state(s.node) for s in view.seats})
        if holders:
            self._propose(
                "result",
                AddResult(
                    view.session,
                    self.term,
                    view.view,
                    states.step,
                    first.weights,
                    first.manifest,
                    first.report.digest,
                    holders,
                    tuple(finish.report for finish in finishes if finish),
                ),
            )

    def _finish_of(self, node: NodeId) -> Finish | None:
        known = self.workers.known.get(node)
        if known is None or self.workers.is_gone(node):
            return None
        return known.state.finish
