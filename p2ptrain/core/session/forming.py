"""Forming a view: nodes get ready, agree on data and step, and take their seats.

Which state goes on is decided here. A step is applied by all ranks of a view or by
none, so the live states that count are those of workers whose last view is the last one
on record; or, if a seat of that view never ran it, no step of it was applied, and the
state it began from counts. Without either, training resumes at the newest checkpoint,
or at the beginning. Everybody else loads the state that counts.
"""

from collections import Counter

from p2ptrain.core.placement import place
from p2ptrain.core.session.base import Base, Start
from p2ptrain.core.session.types import Stage
from p2ptrain.core.session.workers import LOADED
from p2ptrain.ids import NodeId
from p2ptrain.messages.record import CommitView, SessionStatus
from p2ptrain.messages.session import (
    Prepare,
    Snapshot,
    StateRef,
    WorkerPhase,
    WorkerState,
)

SNAPSHOT_S = 30.0


class Forming(Base):
    """The FORM stage."""

    def _form(self) -> None:
        if self.stop_wanted:
            self._over(SessionStatus.STOPPED, f"stopped at step {self._step()}")
            return
        nodes = self.workers.candidates(self._now)
        loaded: dict[NodeId, WorkerState] = {}
        waiting: list[NodeId] = []
        for node in nodes:
            state = self._state(node)
            if state is not None and state.phase in LOADED:
                loaded[node] = state
                continue
            if state is not None and state.phase is WorkerPhase.DECLINED:
                self.workers.bar(self._now, node, state.reason)
                continue
            self._prepare(node)
            if self.workers.is_getting_ready(self._now, node):
                waiting.append(node)
        if not loaded:
            self._none_loaded(waiting)
        elif not self._waits_for(waiting) and self._agree_on_data(loaded):
            self._settle(loaded)

    def _prepare(self, node: NodeId) -> None:
        submission = self.row.submission
        sources = tuple(dict.fromkeys((submission.submitter, self.me)))
        self._order(
            node,
            Prepare(
                self.term,
                submission.session,
                self.number + 1,
                submission.spec,
                submission.blobs,
                sources,
            ),
        )

    def _waits_for(self, waiting: list[NodeId]) -> bool:
        """Wait for all in the beginning; later, who is not ready joins the next view,
        and only seats of the last one get a moment.
        """
        if self.view is None:
            return bool(waiting)
        seats = {seat.node for seat in self.view.seats}
        return self._since < self.config.settle_s and bool(seats & set(waiting))

    def _none_loaded(self, waiting: list[NodeId]) -> None:
        """Pause when nobody can train now; fail when the job itself is refused."""
        if waiting:
            return
        declined = [
            known.state
            for node, known in self.workers.known.items()
            if known.state.phase is WorkerPhase.DECLINED
            and not self.workers.is_gone(node)
        ]
        of_job = [state for state in declined if not state.of_node]
        if of_job:
            self._over(SessionStatus.FAILED, of_job[0].reason)
        elif declined:
            reasons = "; ".join(sorted({state.reason for state in declined})[:4])
            self._set_status(SessionStatus.PAUSED, f"no node can train now: {reasons}")
        elif self._since > self.config.silent_s:
            able = [m for m in self.workers.members.values() if m.capabilities.trains]
            reason = "no node that trains is in reach" if able else "no node can train"
            self._set_status(SessionStatus.PAUSED, reason)

    def _agree_on_data(self, loaded: dict[NodeId, WorkerState]) -> bool:
        """Leave out nodes that see other data; without a majority nobody is right."""
        counts = Counter(state.data_digests for state in loaded.values())
        (best, most), *rest = counts.most_common()
        if not rest:
            return True
        if rest[0][1] == most:
            names = self.workers.names(sorted(loaded))
            self._over(SessionStatus.FAILED, f"nodes {names} see different data")
            return False
        for node, state in list(loaded.items()):
            if state.data_digests != best:
                reason = f"node {self.workers.name(node)!r} sees other data than most"
                self.workers.bar(self._now, node, reason)
        return False

    def _settle(self, loaded: dict[NodeId, WorkerState]) -> None:
        """Decide where the view starts; then take seats."""
        live = {n: s for n, s in loaded.items() if self._counts(n, s)}
        if live:
            start = self._from_memory(loaded, live)
        elif self.row.checkpoints:
            newest = self.row.checkpoints[-1]
            state = StateRef(newest.step, newest.blob, newest.state_digest)
            start = Start(newest.step, state, newest.holders)
        else:
            start = self._from_nothing(loaded)
        if start is not None:
            self._take_seats(loaded, start)

    def _counts(self, node: NodeId, state: WorkerState) -> bool:
        """Tell whether a worker's state is the newest that the record knows of."""
        if self.view is None:
            return False
        if all(seat.node != node for seat in self.view.seats) or state.step < 0:
            return False
        never_ran = state.view < self.number and state.step == self.view.first_step
        before = self.row.views[-2:-1]
        was_there = any(s.node == node for view in before for s in view.seats)
        ended = state.phase in {WorkerPhase.ENDED, WorkerPhase.FINISHED}
        if state.view == self.number:
            return ended
        return never_ran and was_there and state.view == before[0].view and ended

    def _from_memory(
        self, loaded: dict[NodeId, WorkerState], live: dict[NodeId, WorkerState]
    ) -> Start | None:
        step = max(state.step for state in live.values())
        ahead = {n: s for n, s in live.items() if s.step == step}
        if len({state.digest for state in ahead.values()}) > 1:
            names = self.workers.names(sorted(ahead))
            self._over(
                SessionStatus.FAILED,
                f"nodes {names} hold different states after step {step}: "
                "one of them computes wrongly",
            )
            return None
        digest = next(iter(ahead.values())).digest
        if all((s.step, s.digest) == (step, digest) for s in loaded.values()):
            return Start(step, None, ())
        return self._snapshot_of(ahead, step)

    def _snapshot_of(self, ahead: dict[NodeId, WorkerState], step: int) -> Start | None:
        """Return the state that one of those ahead wrote; ask for it if need be."""
        for node, state in ahead.items():
            written = state.snapshot
            fits = written is not None and written.step == step
            if fits and written is not None and written.state_digest == state.digest:
                return Start(step, written, (node,))
        donor = min(ahead)
        if self._since > SNAPSHOT_S:
            self.workers.bar(self._now, donor, "did not write its state in time")
            return None
        session = self.row.submission.session
        self._order(donor, Snapshot(self.term, session, ahead[donor].view))
        return None

    def _from_nothing(self, loaded: dict[NodeId, WorkerState]) -> Start | None:
        """Start at step 0; a worker that trained elsewhere must load anew."""
        fresh = {n: s for n, s in loaded.items() if s.step == 0}
        for node in loaded.keys() - fresh.keys():
            self._release(node, "its state belongs to no view on record")
        digests = Counter(state.digest for state in fresh.values())
        if len(digests) > 1:
            names = self.workers.names(sorted(fresh))
            self._over(SessionStatus.FAILED, f"nodes {names} begin differently")
            return None
        return Start(0, None, ()) if fresh else None

    def _take_seats(self, loaded: dict[NodeId, WorkerState], start: Start) -> None:
        speeds = {
            node: state.samples / state.compute_s
            for node, state in loaded.items()
            if state.samples > 0 and state.compute_s > 0
        }
        before = self.view.seats if self.view else ()
        seats = place(self.facts.parts, sorted(loaded), before, speeds)
        self._start = start
        view = self.number + 1
        session = self.row.submission.session
        self._propose(
            f"view {view}", CommitView(session, self.term, view, seats, start.step)
        )

    def _over(self, status: SessionStatus, reason: str) -> None:
        """End the session; once that is recorded, workers are released."""
        self._ending = (status, reason)
        self._set_status(status, reason)
        self._enter(Stage.OVER)
