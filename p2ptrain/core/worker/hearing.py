"""What a worker makes of its trainer's frames and of files that became blobs."""

from dataclasses import replace
from typing import assert_never

from p2ptrain.core.worker.types import Adopt, Adopted, Effect, EndTrainer
from p2ptrain.ids import NodeId, SessionId
from p2ptrain.messages.record import BlobRef
from p2ptrain.messages.session import (
    Checkpoint,
    Finish,
    Prepare,
    Run,
    StateRef,
    WorkerPhase,
    WorkerState,
)
from p2ptrain.messages.trainer import (
    EpochEnded,
    Fault,
    FromTrainer,
    Loaded,
    ParityDone,
    RunFinished,
    StateWritten,
    Steps,
    ViewEnded,
)

LOSSES_KEPT = 64
EPOCHS_KEPT = 8
WRITTEN_MAX = 8


class Hearing:
    """State of a worker, and the trainer's side of it.

    Args:
        node: this node.
        session: the session.
        host: address of this node's ring listener, as others reach it.
        born_us: wall time in microseconds; more than in any life before this one.
    """

    def __init__(
        self, node: NodeId, session: SessionId, host: str, born_us: int
    ) -> None:
        self.state = WorkerState(node, session, 0, WorkerPhase.FETCHING, serial=born_us)
        self.is_over = False
        self._host = f"[{host}]" if ":" in host else host
        self._term = 0
        self._prepare: Prepare | None = None
        self._run: Run | None = None
        self._declined_at = float("-inf")
        self._has_trainer = False
        self._halted: tuple[int, bool] | None = None  # view and drain, as last told
        self._halted_at = 0.0
        self._snapshot_step: int | None = None  # as last asked of the trainer
        self._written: dict[str, StateWritten] = {}
        self._ended: ViewEnded | None = None  # heard, but not yet said
        self._finished: RunFinished | None = None
        self._report_at = 0.0
        self._now = 0.0
        self._effects: list[Effect] = []

    def _set(self, **changes: object) -> None:
        self.state = replace(self.state, **changes)  # type: ignore[arg-type]

    def _do(self, effect: Effect) -> None:
        self._effects.append(effect)

    def _heard(self, frame: FromTrainer) -> None:
        match frame:
            case Loaded():
                self._loaded(frame)
            case StateWritten():
                self._keep(frame)
            case Fault(sentence, of_node):
                self._has_trainer = False
                self._decline(sentence, of_node=of_node)
            case ParityDone():
                pass
            case _:
                if frame.view == self.state.view:
                    self._heard_of_view(frame)

    def _heard_of_view(
        self, frame: Steps | EpochEnded | ViewEnded | RunFinished
    ) -> None:
        match frame:
            case Steps():
                self._stepped(frame)
            case EpochEnded(_, figures):
                epochs = (*self.state.epochs, figures)
                self._set(epochs=epochs[-EPOCHS_KEPT:])
            case ViewEnded():
                self._ended = frame
                self._end_view()
            case RunFinished():
                self._run_finished(frame)
            case _:
                assert_never(frame)

    def _end_view(self) -> None:
        """Say that the view ended; a lone rank's checkpoint goes with the word."""
        frame, run = self._ended, self._run
        alone = run is not None and len(run.seats) == 1
        if frame is None or (alone and self._written):
            return
        self._ended = None
        self._set(phase=WorkerPhase.ENDED, step=frame.step, digest=frame.digest)
        self._set(reason=frame.reason, culprit=frame.culprit)

    def _loaded(self, frame: Loaded) -> None:
        self._snapshot_step = None
        self._set(
            phase=WorkerPhase.READY,
            step=frame.step,
            digest=frame.digest,
            ring=f"{self._host}:{frame.ring_port}",
            device=frame.device,
            data_digests=frame.data_digests,
            reason=frame.why,
        )

    def _stepped(self, frame: Steps) -> None:
        count = len(frame.losses)
        self._set(
            step=frame.step,
            losses=(*self.state.losses, *frame.losses)[-LOSSES_KEPT:],
            samples=self.state.samples + frame.samples,
            step_s=frame.wall_s / count if count else self.state.step_s,
            compute_s=self.state.compute_s + frame.compute_s,
            comm_s=self.state.comm_s + frame.comm_s,
            reason=frame.note or self.state.reason,
        )

    def _keep(self, frame: StateWritten) -> None:
        tag = f"{frame.purpose} {frame.view} {frame.step}"
        if len(self._written) >= WRITTEN_MAX:
            self._written.pop(next(iter(self._written)))
        self._written[tag] = frame
        self._do(Adopt(tag, ((frame.path, f"{frame.purpose}-{frame.step}"),)))

    def _run_finished(self, frame: RunFinished) -> None:
        self._finished = frame
        if frame.weights_path:
            names = ("model.safetensors", "manifest.json")
            paths = (frame.weights_path, frame.manifest_path)
            self._do(Adopt("result", tuple(zip(paths, names, strict=True))))
        else:
            self._finish(None, None)

    def _finish(self, weights: BlobRef | None, manifest: BlobRef | None) -> None:
        frame = self._finished
        assert frame is not None
        finish = Finish(frame.report, weights, manifest)
        self._set(phase=WorkerPhase.FINISHED, step=frame.step, finish=finish)
        self._set(digest=frame.report.digest)

    def _adopted(self, event: Adopted) -> None:
        if event.problem:
            self._decline(event.problem, of_node=True)
        elif event.tag == "result":
            if self._finished is not None:
                self._finish(*event.blobs)
        elif event.tag in self._written:
            frame = self._written.pop(event.tag)
            state = StateRef(frame.step, event.blobs[0], frame.state_digest)
            if frame.purpose == "snapshot":
                self._set(snapshot=state)
            else:
                self._set(checkpoint=Checkpoint(state, frame.epoch))
            self._end_view()

    def _decline(self, reason: str, *, of_node: bool) -> None:
        """Say why this node cannot take part now."""
        self._declined_at = self._now
        if self._has_trainer:
            self._has_trainer = False
            self._do(EndTrainer())
        self._set(phase=WorkerPhase.DECLINED, reason=reason, of_node=of_node)
        self._set(step=-1, digest="", ring="")
