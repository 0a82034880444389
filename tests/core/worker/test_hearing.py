"""What a worker makes of its trainer's frames and of files that became blobs."""

from p2ptrain.core.worker import Adopt, Adopted, EndTrainer
from p2ptrain.ids import digest_of
from p2ptrain.messages.record import BlobRef
from p2ptrain.messages.session import EpochFigures, StateRef, WorkerPhase
from p2ptrain.messages.trainer import (
    EpochEnded,
    Fault,
    ParityDone,
    RunFinished,
    StateWritten,
)
from tests.core.worker.kit import (
    D5,
    D6,
    OTHER,
    STATE,
    Kit,
    ended,
    ready,
    report,
    run,
    running,
    steps,
)

WEIGHTS = BlobRef(digest_of(b"weights"), 1, "model.safetensors")
MANIFEST = BlobRef(digest_of(b"manifest"), 1, "manifest.json")
FINISHED = RunFinished(1, 6, report(), "/w/model", "/w/manifest")


def written(purpose: str, view: int = 1, step: int = 5) -> StateWritten:
    return StateWritten(view, purpose, step, 2, f"/w/{purpose}", D5)


def figures(epoch: int) -> EpochFigures:
    return EpochFigures(epoch, 5 * epoch, 0.5, {"accuracy": 0.9})


def test_steps_add_up() -> None:
    kit = running()
    kit.hear(steps(step=5), steps(step=10))
    state = kit.state
    assert (state.step, state.samples) == (10, 100)
    assert (state.step_s, state.compute_s, state.comm_s) == (0.4, 3.0, 1.0)
    assert state.losses == tuple(1 / (i + 1) for i in range(10))


def test_losses_and_epochs_are_bounded() -> None:
    kit = running()
    kit.hear(steps(step=500, count=500))
    for epoch in range(20):
        kit.hear(EpochEnded(1, figures(epoch)))
    assert len(kit.state.losses) == 64
    assert kit.state.losses[-1] == 1 / 500
    assert [e.epoch for e in kit.state.epochs] == list(range(12, 20))


def test_frames_of_another_view_change_nothing() -> None:
    kit = running()
    before = kit.state
    kit.hear(steps(view=2), ended(view=2), EpochEnded(0, figures(1)))
    assert kit.state == before


def test_no_step_is_no_time() -> None:
    kit = running()
    kit.hear(steps(step=5), steps(step=5, count=0))
    assert kit.state.step_s == 0.4


def test_a_view_that_ends_says_where_and_whom_to_blame() -> None:
    kit = running()
    kit.hear(ended())
    state = kit.state
    assert (state.phase, state.step, state.digest) == (WorkerPhase.ENDED, 5, D5)
    assert (state.reason, state.culprit) == ("a link is lost", OTHER)


def test_a_checkpoint_becomes_a_blob_and_is_reported() -> None:
    kit = running()
    (adopt,) = kit.hear(written("checkpoint"))
    assert adopt == Adopt("checkpoint 1 5", (("/w/checkpoint", "checkpoint-5"),))
    kit.do(Adopted("checkpoint 1 5", (STATE,), ""))
    assert kit.state.checkpoint is not None
    assert kit.state.checkpoint.state == StateRef(5, STATE, D5)
    assert kit.state.checkpoint.epoch == 2


def test_a_checkpoint_of_the_view_before_counts_too() -> None:
    kit = running()
    kit.hear(written("checkpoint"), ended())
    kit.order(run(2, first_step=5))
    kit.do(Adopted("checkpoint 1 5", (STATE,), ""))
    assert kit.state.checkpoint is not None


def test_a_snapshot_becomes_a_blob_and_is_reported() -> None:
    kit = running()
    kit.hear(ended(), written("snapshot", -1))
    kit.do(Adopted("snapshot -1 5", (STATE,), ""))
    assert kit.state.snapshot == StateRef(5, STATE, D5)
    assert kit.state.checkpoint is None


def test_what_nobody_wrote_is_ignored() -> None:
    kit = running()
    kit.do(Adopted("checkpoint 1 5", (STATE,), ""), Adopted("result", (STATE,), ""))
    assert kit.state.checkpoint is None
    assert kit.state.finish is None


def test_files_under_way_are_bounded() -> None:
    kit = running()
    for step in range(50):
        kit.hear(written("checkpoint", step=step))
    assert len(kit.core._written) <= 8
    kit.do(Adopted("checkpoint 1 49", (STATE,), ""))
    assert kit.state.checkpoint is not None


def test_rank_0_finishes_when_its_files_are_blobs() -> None:
    kit = running()
    (adopt,) = kit.hear(FINISHED)
    assert isinstance(adopt, Adopt)
    assert [name for _, name in adopt.files] == ["model.safetensors", "manifest.json"]
    assert kit.state.phase is WorkerPhase.RUNNING
    kit.do(Adopted("result", (WEIGHTS, MANIFEST), ""))
    state = kit.state
    assert (state.phase, state.step, state.digest) == (WorkerPhase.FINISHED, 6, D6)
    assert state.finish is not None
    assert (state.finish.weights, state.finish.manifest) == (WEIGHTS, MANIFEST)


def test_other_ranks_finish_at_once() -> None:
    kit = running()
    assert kit.hear(RunFinished(1, 6, report(), "", "")) == []
    assert kit.state.phase is WorkerPhase.FINISHED
    assert kit.state.finish is not None
    assert kit.state.finish.weights is None


def test_a_file_that_cannot_be_stored_declines() -> None:
    kit = running()
    kit.hear(FINISHED)
    assert kit.do(Adopted("result", (), "the disk is full")) == [EndTrainer()]
    state = kit.state
    assert (state.phase, state.reason) == (WorkerPhase.DECLINED, "the disk is full")
    assert state.of_node


def test_a_fault_of_the_job_is_not_one_of_the_node() -> None:
    kit = running()
    kit.hear(Fault("the loss of step 3 is not finite"))
    assert kit.state.phase is WorkerPhase.DECLINED
    assert not kit.state.of_node
    assert kit.state.reason == "the loss of step 3 is not finite"


def test_parity_is_none_of_a_sessions_business() -> None:
    kit = ready()
    before = kit.state
    assert kit.hear(ParityDone(())) == []
    assert kit.state == before


def test_a_worker_that_never_loaded_has_no_step() -> None:
    assert Kit().state.step == -1
