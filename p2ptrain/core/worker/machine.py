"""A node's part in one session, as a pure core: obeys orders, reports what is.

Whatever is ordered twice is done once; an order of an older mastership or view changes
nothing. The trainer process stays loaded between views.
"""

from dataclasses import replace
from typing import assert_never

from p2ptrain.core.worker.hearing import Hearing
from p2ptrain.core.worker.types import (
    Adopted,
    Effect,
    Event,
    Fetch,
    Fetched,
    Fetching,
    Forget,
    FromProcess,
    Launch,
    MasterChanged,
    Ordered,
    Report,
    Tell,
    Tick,
)
from p2ptrain.messages.session import (
    Halt,
    Order,
    Prepare,
    Release,
    Run,
    Snapshot,
    StateRef,
    WorkerPhase,
    WorkerState,
)
from p2ptrain.messages.trainer import HaltView, RunView, WriteSnapshot

REPORT_S = 1.0
RETRY_S = 3.0  # a node that declined tries again at an order later than this
HANG_S = 20.0  # a trainer that is told to end its view has so long, at least
HANG_STEPS = 5
LOADED = frozenset({WorkerPhase.READY, WorkerPhase.ENDED, WorkerPhase.FINISHED})


class SessionWorker(Hearing):
    """The core of one session on one node; see ``Hearing`` for its arguments."""

    @property
    def deadline(self) -> float:
        """When the next Tick is due."""
        return self._report_at

    def step(self, now: float, event: Event) -> list[Effect]:
        """Take one event."""
        self._now = now
        before = self.state
        match event:
            case Tick():
                pass
            case MasterChanged():
                self._report_at = now
            case Ordered(order):
                self._obey(order)
            case Fetching(done, total):
                self._set(fetched_bytes=done, total_bytes=total)
            case Fetched():
                self._fetched(event)
            case FromProcess(frame):
                self._heard(frame)
            case Adopted():
                self._adopted(event)
            case _:
                assert_never(event)
        self._give_up_on_trainer()
        due = now >= self._report_at
        if not self.is_over and (due or _is_news(before, self.state)):
            self._set(serial=self.state.serial + 1)
            self._effects.append(Report(self.state))
            self._report_at = now + REPORT_S
        effects, self._effects = self._effects, []
        return effects

    def _obey(self, order: Order) -> None:
        if order.term < self._term or order.session != self.state.session:
            return
        self._term = order.term
        match order:
            case Prepare():
                self._obey_prepare(order)
            case Run():
                self._obey_run(order)
            case Halt():
                self._obey_halt(order)
            case Snapshot(_, _, view):
                self._obey_snapshot(view)
            case Release():
                self.is_over = True
                self._do(Forget())
            case _:
                assert_never(order)

    def _obey_prepare(self, order: Prepare) -> None:
        if order.view <= self._seen_view() and not self._may_retry():
            return
        state = self.state
        if self._prepare is None or state.phase is WorkerPhase.DECLINED:
            self._prepare = order
            self._set(view=order.view, phase=WorkerPhase.FETCHING, reason="")
            self._set(of_node=False, fetched_bytes=0, total_bytes=_total(order))
            self._do(Fetch("prepare", (order.spec, *order.blobs), order.sources))
        elif state.step < 0:
            self._set(view=order.view)  # still on the way for an earlier view
        # else it is loaded already; the next Run names the view

    def _seen_view(self) -> int:
        return self.state.view if self._prepare is not None else -1

    def _may_retry(self) -> bool:
        declined = self.state.phase is WorkerPhase.DECLINED
        return declined and self._now - self._declined_at >= RETRY_S

    def _obey_run(self, order: Run) -> None:
        known = self._run is not None and order.view <= self._run.view
        if known or order.view < self.state.view:
            return
        if self.state.phase is WorkerPhase.RUNNING:
            self._halt("the next view begins", drain=False)
        if self.state.phase not in LOADED and not self._fetches_state():
            return  # the order will be repeated
        self._run = order
        self._finished = self._snapshot_step = self._ended = None
        fresh = WorkerState(
            node=self.state.node,
            session=self.state.session,
            view=order.view,
            phase=WorkerPhase.FETCHING,
            step=self.state.step,
            digest=self.state.digest,
            ring=self.state.ring,
            device=self.state.device,
            data_digests=self.state.data_digests,
            epochs=tuple(e for e in self.state.epochs if e.step <= order.first_step),
            serial=self.state.serial,
        )
        self.state = fresh
        state = order.state
        if state is None or (state.step, state.state_digest) == (
            fresh.step,
            fresh.digest,
        ):
            self._train(None)
        else:
            self._set(total_bytes=state.blob.size)
            self._do(Fetch(_tag(order), (state.blob,), order.sources))

    def _train(self, state: StateRef | None) -> None:
        order = self._run
        assert order is not None
        nodes = [seat.node for seat in order.seats]
        if self.state.node not in nodes:
            self._decline("the view has no seat for this node", of_node=True)
            return
        rank = nodes.index(self.state.node)
        frame = RunView(order.view, rank, order.seats, order.first_step, "")
        self._do(Tell(frame, state.blob if state else None))
        self._set(phase=WorkerPhase.RUNNING, step=order.first_step)

    def _obey_halt(self, order: Halt) -> None:
        """End the view that the order names; answer in any case."""
        self._report_at = self._now
        if order.view != self.state.view:
            return
        if self.state.phase is WorkerPhase.RUNNING:
            self._halt(order.reason, drain=order.drain)
        elif self._fetches_state():
            self._set(phase=WorkerPhase.ENDED, reason=order.reason)

    def _fetches_state(self) -> bool:
        """Tell whether a loaded worker fetches what a view begins from."""
        return self.state.phase is WorkerPhase.FETCHING and self.state.step >= 0

    def _halt(self, reason: str, *, drain: bool) -> None:
        """Tell the trainer to end its view, unless it knows."""
        view = self.state.view
        if self._halted != (view, drain):
            self._halted, self._halted_at = (view, drain), self._now
            self._do(Tell(HaltView(view, reason, drain)))

    def _give_up_on_trainer(self) -> None:
        """Decline when the trainer does not end a view that was halted: it hangs."""
        told = self._halted == (self.state.view, False)
        if self.state.phase is WorkerPhase.RUNNING and told:
            limit = max(HANG_S, HANG_STEPS * self.state.step_s)
            if self._now - self._halted_at > limit:
                self._decline("the trainer hangs and was ended", of_node=True)

    def _obey_snapshot(self, view: int) -> None:
        state = self.state
        fits = state.phase in LOADED and state.view == view
        if fits and self._snapshot_step != state.step:
            self._snapshot_step = state.step
            self._do(Tell(WriteSnapshot()))

    def _fetched(self, event: Fetched) -> None:
        if self.state.phase is not WorkerPhase.FETCHING:
            return
        run = self._run
        if self._fetches_state():
            if run is not None and event.tag == _tag(run):
                self._fetched_state(event, run)
        elif event.tag == "prepare":
            if event.problem:
                self._decline(event.problem, of_node=True)
                return
            assert self._prepare is not None
            self._has_trainer = True
            self._set(phase=WorkerPhase.LOADING)
            self._do(Launch(self._prepare.spec, self._prepare.blobs))

    def _fetched_state(self, event: Fetched, run: Run) -> None:
        """Train, or stay with the state in memory when no source has the other."""
        if not event.problem:
            self._train(run.state)
        elif event.of_source:
            culprit = run.sources[0] if run.sources else ""
            self._set(phase=WorkerPhase.ENDED, reason=event.problem, culprit=culprit)
            self._set(lacks=run.state.blob.digest if run.state else "")
        else:
            self._decline(event.problem, of_node=True)


def _tag(order: Run) -> str:
    return f"state {order.view}"


def _total(order: Prepare) -> int:
    return order.spec.size + sum(blob.size for blob in order.blobs)


def _is_news(before: WorkerState, after: WorkerState) -> bool:
    """Tell whether a change is worth a report at once; figures alone are not."""
    quiet = {"fetched_bytes": 0, "total_bytes": 0}
    if after.phase is WorkerPhase.RUNNING:
        quiet |= {"samples": 0, "step_s": 0, "compute_s": 0, "comm_s": 0, "step": 0}
        quiet |= {"losses": ()}  # type: ignore[dict-item]  # any value will do
    return replace(before, **quiet) != replace(after, **quiet)  # type: ignore[arg-type]
