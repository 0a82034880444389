"""A session's master core: from the submission to the released workers.

Level-triggered: at each step it looks at the record, the members and the workers'
states, and does what is missing. It keeps nothing that a successor could not learn from
the record and from one second of worker states.
"""

from typing import assert_never

from p2ptrain.core.registry import SessionRow
from p2ptrain.core.session.halting import NOT_RUNNING
from p2ptrain.core.session.running import Running
from p2ptrain.core.session.types import (
    Effect,
    Event,
    Facts,
    Held,
    Present,
    Recorded,
    Reported,
    SessionConfig,
    Stage,
    StopWanted,
    Tick,
)
from p2ptrain.ids import NodeId
from p2ptrain.messages.asks import LiveAnswer, WorkerLine
from p2ptrain.messages.record import CommitView, SessionStatus
from p2ptrain.messages.session import WorkerPhase, WorkerState

FINAL = frozenset({SessionStatus.DONE, SessionStatus.FAILED, SessionStatus.STOPPED})
TICK_S = 0.05


class SessionMaster(Running):
    """The core; see ``Base`` for its arguments."""

    def __init__(
        self,
        me: NodeId,
        term: int,
        row: SessionRow,
        facts: Facts,
        config: SessionConfig,
    ) -> None:
        super().__init__(me, term, row, facts, config)
        self.deadline = 0.0

    @property
    def is_over(self) -> bool:
        """Whether nothing is left to do."""
        return self.row.status in FINAL and self.stage is Stage.OVER

    def step(self, now: float, event: Event) -> list[Effect]:
        """Take one event."""
        self._now = now
        if self._stage_at is None:
            self._stage_at = now
        match event:
            case Tick():
                pass
            case Reported(state):
                if state.session == self.session:
                    self.workers.report(now, state)
                    self._dismiss(state.node)
            case Recorded(row):
                self._recorded(row)
            case Present(members):
                self.workers.present(members)
            case StopWanted():
                self.stop_wanted = True
            case Held():
                self._take_held(event)
            case _:
                assert_never(event)
        self._act()
        self.deadline = float("inf") if self.is_over else now + TICK_S
        effects, self._effects = self._effects, []
        return effects

    def _recorded(self, row: SessionRow) -> None:
        before = self.number
        self.row = row
        if self.row.status in FINAL:
            self._enter(Stage.OVER)
        elif self.number > before and self.view is not None:
            self._begin(self.view)

    def _act(self) -> None:
        match self.stage:
            case Stage.GATHER:
                self._gather()
            case Stage.FORM:
                self._form()
            case Stage.RUN:
                self._run()
            case Stage.HALT:
                self._halting()
            case Stage.FINISH:
                self._secure_result()
            case Stage.OVER:
                self._dismiss_all()
            case _:
                assert_never(self.stage)

    def _gather(self) -> None:
        """Learn what runs, when this master took a session over."""
        view = self.view
        if self.row.status in FINAL:
            self._enter(Stage.OVER)
        elif view is None:
            self._enter_form()
        elif all(self._is_in(seat.node) for seat in view.seats):
            self._begin(view)
        elif self._since > self.config.gather_s or self._is_broken(view):
            self._halt("a new master finds the view broken")

    def _is_broken(self, view: CommitView) -> bool:
        """Tell whether a seat does not run the view, or is suspected to be dead."""
        out = [seat.node for seat in view.seats if not self._is_in(seat.node)]
        states = (self._state(node) for node in out)
        idle = any(s is not None and s.phase in NOT_RUNNING for s in states)
        return idle or not all(self.workers.is_alive(node) for node in out)

    def _is_in(self, node: NodeId) -> bool:
        state = self._state(node)
        running = {WorkerPhase.RUNNING, WorkerPhase.FINISHED}
        return (
            state is not None and state.view == self.number and state.phase in running
        )

    def _dismiss(self, node: NodeId) -> None:
        """Let go a worker that still speaks of a session that is over."""
        if self.row.status in FINAL:
            self._release(node, self.row.reason)

    def _dismiss_all(self) -> None:
        if self.row.status not in FINAL:
            if self._ending is not None:
                self._set_status(*self._ending)
            return
        for node in list(self.workers.known):
            if self._state(node) is not None:
                self._release(node, self.row.reason)

    def live(self) -> LiveAnswer:
        """Return the figures of this moment, for people."""
        row, view = self.row, self.view
        states = [k.state for k in self.workers.known.values()]
        running = [s for s in states if s.view == self.number and s.losses]
        best = max(running, key=lambda s: s.step, default=None)
        step = self._step()
        losses = best.losses if best else ()
        shares = {seat.node: seat.share for seat in view.seats} if view else {}
        done = step * self.facts.step_samples
        per_epoch = self.facts.steps * self.facts.step_samples / self.facts.epochs
        return LiveAnswer(
            known=True,
            status=row.status,
            reason=row.reason,
            view=self.number,
            step=step,
            steps=self.facts.steps,
            epoch=min(int(done / per_epoch), self.facts.epochs - 1),
            epochs=self.facts.epochs,
            losses_from=(best.step - len(losses)) if best else 0,
            losses=losses,
            samples_per_s=sum(_rate(s) for s in running),
            workers=tuple(self._line(s, shares) for s in states),
        )

    def _line(self, state: WorkerState, shares: dict[NodeId, int]) -> WorkerLine:
        return WorkerLine(
            node=state.node,
            name=self.workers.name(state.node),
            phase=state.phase,
            step=state.step,
            device=state.device,
            share=shares.get(state.node, 0),
            fetched_bytes=state.fetched_bytes,
            total_bytes=state.total_bytes,
            step_s=state.step_s,
            samples_per_s=_rate(state),
            reason=self.workers.why_barred(self._now, state.node) or state.reason,
        )


def _rate(state: WorkerState) -> float:
    """Return a worker's samples a second of its compute and communication time."""
    seconds = state.compute_s + state.comm_s
    return state.samples / seconds if seconds > 0 else 0.0
