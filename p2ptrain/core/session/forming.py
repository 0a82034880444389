"""Forming a view: nodes get ready, agree on data and step, and take their seats.

Which state goes on is decided here. A step is applied by all ranks of a view or by
none, so the states of the last view's seats are at most one step apart, and the newest
counts. A seat that fell behind, or that never ran the view, still holds the state that
the view began from, or the one before it if it had to fetch the former and could not:
that counts too, when nothing newer is left. Without any, training resumes at the newest
checkpoint that a node in reach holds, or at the beginning. Everybody else loads the
state that counts.
"""

from collections import Counter

from p2ptrain.core.placement import place
from p2ptrain.core.session.base import Base, Start
from p2ptrain.core.session.types import Stage
from p2ptrain.core.session.workers import LOADED
from p2ptrain.ids import Digest, NodeId
from p2ptrain.messages.record import CommitView, SessionStatus
from p2ptrain.messages.session import (
    Halt,
    Prepare,
    Snapshot,
    StateRef,
    WorkerPhase,
    WorkerState,
)

SOURCES_MAX = 8
LACK_MAX = 2  # views that may miss a checkpoint before an older one is taken
LACK_AGAIN_S = 30.0
SAID_MAX = 4  # reasons in a sentence
KEEPS_STATE = frozenset({WorkerPhase.ENDED, WorkerPhase.FINISHED})

Loaded = dict[NodeId, WorkerState]


class Forming(Base):
    """The FORM stage."""

    def _form(self) -> None:
        if self.stop_wanted:
            self._over(SessionStatus.STOPPED, f"stopped at step {self._step()}")
            return
        loaded: Loaded = {}
        waiting: list[NodeId] = []
        for node in self.workers.candidates(self._now):
            state = self._state(node)
            if state is not None and state.phase in LOADED:
                loaded[node] = state
            elif self._get_ready(node, state):
                waiting.append(node)
        if not loaded:
            self._none_loaded(waiting)
        elif not self._waits_for(waiting) and self._agree_on_data(loaded):
            self._settle(loaded)

    def _get_ready(self, node: NodeId, state: WorkerState | None) -> bool:
        """Order what gets a node loaded; tell whether it is on its way.

        One that was heard running may have been started again since: it gets both
        orders, and obeys the one that fits.
        """
        if state is not None and self.workers.has_declined(node):
            self._bar(node, state.reason)
            return False
        if state is not None and state.phase is WorkerPhase.RUNNING:
            session, why = self.row.submission.session, "the view is over"
            self._order(node, Halt(self.term, session, state.view, why, drain=False))
        self._prepare(node)
        return self.workers.is_getting_ready(self._now, node)

    def _prepare(self, node: NodeId) -> None:
        submission = self.row.submission
        able = [other for other in self.workers.able() if other != node]
        sources = tuple(dict.fromkeys((submission.submitter, self.me, *able)))
        self._order(
            node,
            Prepare(
                self.term,
                submission.session,
                self.number + 1,
                submission.spec,
                submission.blobs,
                sources[:SOURCES_MAX],
            ),
        )

    def _waits_for(self, waiting: list[NodeId]) -> bool:
        """Wait for all in the beginning; later, who is not ready joins the next view,
        and only seats of the last one get a moment.
        """
        if self.view is None:
            return bool(waiting)
        seats = {seat.node for seat in self.view.seats} - self._left_out
        return self._since < self.config.settle_s and bool(seats & set(waiting))

    def _none_loaded(self, waiting: list[NodeId]) -> None:
        """Pause when nobody can train now; fail when every node refuses the job."""
        if waiting:
            return
        able = self.workers.able()
        states = {n: s for n in able if (s := self._state(n)) is not None}
        declined = [s for s in states.values() if s.phase is WorkerPhase.DECLINED]
        if (
            declined
            and not any(s.of_node for s in declined)
            and declined == [*states.values()]
        ):
            self._over(SessionStatus.FAILED, declined[0].reason)
            return
        busy = [n for n, s in states.items() if s not in declined]
        if busy:
            reason = f"nodes {self.workers.names(busy)} are still getting ready"
        elif declined:
            said = "; ".join(sorted({state.reason for state in declined})[:SAID_MAX])
            reason = f"no node can train now: {said}"
        elif self._since <= self.config.silent_s:
            return
        else:
            reason = "no node that trains answers" if able else "no node can train"
        self._set_status(SessionStatus.PAUSED, reason)

    def _agree_on_data(self, loaded: Loaded) -> bool:
        """Leave out nodes that see other data than those that trained already, or than
        most; where neither settles it, nobody is right and the session fails.
        """
        trained = {s.data_digests for n, s in loaded.items() if self._counts(n, s)}
        counts = Counter(state.data_digests for state in loaded.values())
        (best, most), *rest = counts.most_common()
        if len(trained) == 1:
            best = trained.pop()
        elif rest and rest[0][1] == most:
            names = self.workers.names(sorted(loaded))
            why = f"nodes {names} see different data: make it equal or push it"
            self._over(SessionStatus.FAILED, why)
            return False
        for node, state in list(loaded.items()):
            if state.data_digests != best:
                self._bar_for_data(node)
                del loaded[node]
        return True

    def _bar_for_data(self, node: NodeId) -> None:
        reason = f"node {self.workers.name(node)!r} sees other data than most"
        self._bar(node, reason)

    def _settle(self, loaded: Loaded) -> None:
        """Decide where the view starts; then take seats."""
        live = {n: s for n, s in loaded.items() if self._counts(n, s)}
        if live:
            start = self._from_memory(loaded, live)
        elif self.row.checkpoints:
            start = self._from_checkpoint()
        else:
            start = self._from_nothing(loaded)
        if start is not None:
            self._take_seats(loaded, start)

    def _counts(self, node: NodeId, state: WorkerState) -> bool:
        """Tell whether a worker's state may be the newest that there is."""
        view = self.view
        if view is None or state.phase not in KEEPS_STATE:
            return False
        if all(seat.node != node for seat in view.seats):
            return False
        if state.view == view.view and state.step >= view.first_step:
            return True
        before = self.row.views[-2:-1]
        was_there = any(seat.node == node for v in before for seat in v.seats)
        kept = state.step in {view.first_step, view.first_step - 1}
        return was_there and kept and state.view >= before[0].view

    def _from_memory(self, loaded: Loaded, live: Loaded) -> Start | None:
        step = max(state.step for state in live.values())
        ahead = {n: s for n, s in live.items() if s.step == step}
        digests = {n: s.digest for n, s in ahead.items()}
        if len(set(digests.values())) > 1:
            names = self._odd_ones(digests)
            why = f"nodes {names} compute wrongly: states differ after step {step}"
            self._over(SessionStatus.FAILED, why)
            return None
        digest = next(iter(digests.values()))
        if all((s.step, s.digest) == (step, digest) for s in loaded.values()):
            return Start(step, None, (), digest, tuple(sorted(ahead)))
        return self._snapshot_of(ahead, step)

    def _snapshot_of(self, ahead: Loaded, step: int) -> Start | None:
        """Return the state that one of those ahead wrote; ask for it if need be."""
        for node, state in ahead.items():
            written = state.snapshot
            fits = written is not None and written.step == step
            if fits and written is not None and written.state_digest == state.digest:
                return Start(step, written, (node,), state.digest, tuple(sorted(ahead)))
        donor = min(ahead)
        if self._since > self.config.snapshot_s:
            reason = f"node {self.workers.name(donor)!r} did not write its state"
            self._bar(donor, reason)
            return None
        session = self.row.submission.session
        self._order(donor, Snapshot(self.term, session, ahead[donor].view))
        return None

    def _from_checkpoint(self) -> Start | None:
        """Start at the newest checkpoint that is in reach and whose bytes are good."""
        kept_all = self.row.checkpoints
        good = [kept for kept in kept_all if not self._is_lost(kept.blob.digest)]
        for kept in reversed(good):
            holders = tuple(n for n in kept.holders if self.workers.is_alive(n))
            if holders:
                state = StateRef(kept.step, kept.blob, kept.state_digest)
                return Start(kept.step, state, holders, kept.state_digest)
        newest = (good or kept_all)[-1]
        names = self.workers.names(newest.holders)
        why = f"checkpoint {newest.step} is on {names} only: bring one of them back"
        if not good:
            why = (
                f"no checkpoint can be read: the newest, {newest.step}, was on {names}"
            )
            if self._since > LACK_AGAIN_S:
                self._lacked.clear()  # they may have been out of reach only
        self._set_status(SessionStatus.PAUSED, why)
        return None

    def _is_lost(self, digest: Digest) -> bool:
        return len(self._lacked.get(digest, ())) >= LACK_MAX

    def _from_nothing(self, loaded: Loaded) -> Start | None:
        """Start at step 0; a worker that trained elsewhere must load anew."""
        for node, state in list(loaded.items()):
            if state.step != 0:
                self._release(node, "its state belongs to no view on record")
                self.workers.forget(node)
                del loaded[node]
        digests = {node: state.digest for node, state in loaded.items()}
        if len(set(digests.values())) > 1:
            names = self._odd_ones(digests)
            why = f"nodes {names} begin with other weights"
            self._over(SessionStatus.FAILED, why)
            return None
        if not loaded:
            return None
        return Start(0, None, (), next(iter(digests.values())), tuple(sorted(loaded)))

    def _take_seats(self, loaded: Loaded, start: Start) -> None:
        before = self.view.seats if self.view else ()
        speeds = self.workers.speeds
        seats = place(self.facts.parts, sorted(loaded), before, speeds)
        view = self.number + 1
        session = self.row.submission.session
        command = CommitView(
            *(session, self.term, view, seats, start.step),
            digest=start.digest,
            agreed=start.agreed,
        )
        if self._propose(f"view {view}", command):
            self._start = start

    def _enter_form(self) -> None:
        self.workers.forget_asked()
        self._enter(Stage.FORM)
        self._form()
