"""Views end together, faults are told alike by all, and boundaries are worked once."""

import json
import math
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from p2ptrain.engine import evaluate, trainloop, writer
from p2ptrain.messages.trainer import (
    EpochEnded,
    Fault,
    HaltView,
    Loaded,
    RunFinished,
    Steps,
    ViewEnded,
    WriteSnapshot,
)
from p2ptrain.spec.train import Reduce
from tests.engine import trainjobs as jobs
from tests.engine import trainkit as kit


@pytest.fixture(autouse=True)
def one_thread():
    torch.set_num_threads(1)


def exact_spec(tmp_path, samples=40, **settings):
    settings = {"global_batch": 8, "reduce": Reduce.EXACT} | settings
    return jobs.spec_of(jobs.cnn_task(samples), tmp_path, **settings)


def undisturbed(tmp_path, spec):
    [heard] = kit.train(tmp_path, spec, [spec.step_parts])
    return heard


def lasts(cluster):
    return [t.until(RunFinished, ViewEnded).last for t in cluster.trainers]


def state_of(trainer):
    return trainer.session._job.state


def at_step(monkeypatch, step, act, rank=0):
    """Have ``act`` called once, in a rank's own thread, at the boundary before a
    step.
    """
    real = trainloop.ViewRun._take_commands
    done = []

    def take(self):
        here = (self._job.state.step, self._frame.rank)
        if here == (step, rank) and not done:
            done.append(step)
            act()
        real(self)

    monkeypatch.setattr(trainloop.ViewRun, "_take_commands", take)


def test_a_drain_told_to_one_rank_ends_all_at_one_step(tmp_path, monkeypatch):
    spec = exact_spec(tmp_path)
    truth = undisturbed(tmp_path, spec)
    cluster = kit.start(tmp_path, spec, 3)
    told = HaltView(1, "a node joins", drain=True)
    at_step(monkeypatch, 3, lambda: cluster.trainers[0].commands._note(told))
    cluster.run([1, 2, 1])
    ended = lasts(cluster)
    assert [last.step for last in ended] == [4, 4, 4]
    assert len({last.digest for last in ended}) == 1
    assert [last.reason for last in ended] == [
        "a node joins",
        "another rank was told to end the view",
        "another rank was told to end the view",
    ]
    cluster.run([4, 0, 0], first_step=4)
    assert {last.report.digest for last in lasts(cluster)} == {truth.last.report.digest}
    cluster.close()


def test_a_joiner_enters_with_a_snapshot_taken_while_training(tmp_path, monkeypatch):
    spec = exact_spec(tmp_path)
    truth = undisturbed(tmp_path, spec)
    cluster = kit.start(tmp_path, spec, 1)
    old = cluster.trainers[0]
    drain = HaltView(1, "join", drain=True)
    at_step(monkeypatch, 2, lambda: old.commands._queue.put(WriteSnapshot()))
    at_step(monkeypatch, 5, lambda: old.commands._note(drain))
    cluster.run([4])
    heard = old.until(ViewEnded, RunFinished)
    assert (heard.last.step, heard.last.reason) == (6, "join")
    [early] = [file for file in heard.files if file.purpose == "snapshot"]
    assert (early.step, early.view) == (2, 1)
    joiner = cluster.load("joiner")
    cluster.loaded.append(joiner.until(Loaded).last)
    # A state too old is not what the view begins with.
    cluster.run([1, 3], first_step=6, states={joiner: early.path})
    late, stuck = joiner.until(ViewEnded).last, HaltView(2, "retry", drain=False)
    assert "has step 2, the view begins at step 6" in late.reason
    old.send(stuck)
    assert old.until(ViewEnded).last.reason == "retry"
    state = old.snapshot()
    assert state.state_digest == heard.last.digest
    cluster.run([1, 3], first_step=6, states={joiner: state.path})
    assert {last.report.digest for last in lasts(cluster)} == {truth.last.report.digest}
    cluster.close()


def test_a_snapshot_at_rest_restores_the_session(tmp_path):
    spec = exact_spec(tmp_path)
    cluster = kit.start(tmp_path, spec, 2)
    written = cluster.trainers[0].snapshot()
    assert (written.step, written.state_digest) == (0, cluster.loaded[1].digest)
    cluster.run([2, 2], states={cluster.trainers[1]: written.path})
    assert all(isinstance(last, RunFinished) for last in lasts(cluster))
    cluster.close()


def test_a_rank_at_another_step_keeps_the_view_from_beginning(tmp_path):
    spec = exact_spec(tmp_path)
    cluster = kit.start(tmp_path, spec, 1)
    cluster.run([4], first_step=3)
    [last] = lasts(cluster)
    assert "has step 0, the view begins at step 3" in last.reason
    assert (last.step, last.digest) == (0, cluster.loaded[0].digest)
    cluster.run([4])
    assert isinstance(lasts(cluster)[0], RunFinished)
    cluster.close()


def test_a_halt_in_the_middle_of_an_evaluation_has_it_done_again_once(
    tmp_path, monkeypatch
):
    spec = exact_spec(tmp_path, samples=16)
    truth = undisturbed(tmp_path, spec)
    cluster = kit.start(tmp_path, spec, 2)
    real, halts = evaluate.rank_sums, []

    def rank_sums(plan, run, rank, world):
        if rank == 1 and not halts:
            halts.append(1)
            cluster.trainers[1].commands._note(HaltView(1, "now", drain=False))
        return real(plan, run, rank, world)

    monkeypatch.setattr(evaluate, "rank_sums", rank_sums)
    cluster.run([2, 2])
    heards = [t.until(RunFinished, ViewEnded) for t in cluster.trainers]
    assert [heard.last.step for heard in heards] == [2, 2]
    assert [heard.epochs for heard in heards] == [[], []]
    assert heards[0].last.culprit in ("", cluster.trainers[1].node)
    assert heards[1].last.reason == "now"
    cluster.run([1, 3], first_step=2)
    heards = [t.until(RunFinished, ViewEnded) for t in cluster.trainers]
    for heard in heards:
        assert heard.last.report.digest == truth.last.report.digest
        assert [e.figures for e in heard.epochs] == [e.figures for e in truth.epochs]
    cluster.close()


def test_figures_that_one_rank_lacks_are_made_again_by_all(tmp_path, monkeypatch):
    spec = exact_spec(tmp_path, samples=16)
    truth = undisturbed(tmp_path, spec)
    cluster = kit.start(tmp_path, spec, 2)
    told = HaltView(1, "now", drain=False)
    at_step(monkeypatch, 2, lambda: cluster.trainers[0].commands._note(told))
    cluster.run([2, 2])
    assert [last.step for last in lasts(cluster)] == [2, 2]
    # As if the ring had broken when one rank had all the sums and the other had not.
    state_of(cluster.trainers[1]).figures.clear()
    cluster.run([2, 2], first_step=2)
    for trainer in cluster.trainers:
        heard = trainer.until(RunFinished, ViewEnded)
        assert [e.figures for e in heard.epochs] == [e.figures for e in truth.epochs]
    cluster.close()


def test_what_is_not_finite_is_a_fault_that_names_node_and_step(tmp_path):
    task = jobs.cnn_task(samples=16)
    task.data["x"][5] = math.inf
    spec = jobs.spec_of(task, tmp_path, global_batch=8, skip_max=0)
    cluster = kit.start(tmp_path, spec, 2)
    cluster.run([2, 2])
    faults = [t.until(RunFinished, ViewEnded).last for t in cluster.trainers]
    assert faults[0] == faults[1]
    assert isinstance(faults[0], Fault)
    assert faults[0].sentence.startswith(("node 'node-0'", "node 'node-1'"))
    assert "is not finite at step" in faults[0].sentence
    cluster.close()


@pytest.mark.parametrize(
    ("world", "sentence"),
    [
        (3, "the state of node 'node-1' differs from that of 2 other nodes after"),
        (2, "the states of nodes 'node-0', 'node-1' differ after step"),
    ],
)
def test_a_replica_that_differs_is_found_and_named(
    tmp_path, monkeypatch, world, sentence
):
    spec = exact_spec(tmp_path, digest_every=2)
    cluster = kit.start(tmp_path, spec, world)

    def flip():
        weight = state_of(cluster.trainers[1]).tensors["param/head.weight"]
        weight.view(torch.int32)[0, 0] ^= 1 << 20

    at_step(monkeypatch, 3, flip, rank=1)
    cluster.run([4, *[0] * (world - 1)])
    faults = {t.until(RunFinished, ViewEnded).last for t in cluster.trainers}
    [fault] = faults
    assert sentence in fault.sentence
    assert "step 4" in fault.sentence
    cluster.close()


class Counting(nn.Module):
    """A buffer of integers that depends on the samples, as none must."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(64, 3)
        self.register_buffer("seen", torch.tensor(0))

    def forward(self, x):
        self.seen.add_((x > 0).sum())
        return self.head(x.flatten(1))


def test_integers_that_depend_on_the_samples_are_a_fault(tmp_path):
    task = jobs.Task(Counting(), jobs.classify, jobs.images(16, 1))
    spec = jobs.spec_of(task, tmp_path, global_batch=8, skip_max=0)
    cluster = kit.start(tmp_path, spec, 2)
    cluster.run([2, 2])
    faults = {t.until(RunFinished, ViewEnded).last for t in cluster.trainers}
    [fault] = faults
    assert "the integer buffers of node" in fault.sentence
    cluster.close()


def test_integers_of_one_part_a_step_may_depend_on_the_samples(tmp_path):
    task = jobs.Task(Counting(), jobs.classify, jobs.images(6, 1))
    spec = jobs.spec_of(task, tmp_path)
    heards = kit.train(tmp_path, spec, [0, 1])
    assert len({heard.last.report.digest for heard in heards}) == 1


def test_a_lost_neighbour_is_blamed(tmp_path, monkeypatch):
    spec = exact_spec(tmp_path)
    cluster = kit.start(tmp_path, spec, 3, stall_s=5.0)
    real = trainloop.ViewRun._step

    def step(self, group):
        if self._frame.rank == 2 and self._job.state.step == 3:
            # As the kernel does for a process that is killed.
            group._links._ends.outgoing.close()
            group._links._ends.incoming.close()
            raise ZeroDivisionError
        return real(self, group)

    monkeypatch.setattr(trainloop.ViewRun, "_step", step)
    monkeypatch.setattr("p2ptrain.engine.session.FOREIGN", (ZeroDivisionError, OSError))
    cluster.run([1, 2, 1])
    ended = [t.until(ViewEnded, RunFinished).last for t in cluster.trainers]
    assert isinstance(ended[2], Fault)
    assert [last.step for last in ended[:2]] == [3, 3]
    assert {last.culprit for last in ended[:2]} == {cluster.trainers[2].node}
    assert ended[0].digest == ended[1].digest
    cluster.close()


def test_checkpoints_come_at_epochs_ends_and_every_so_many_steps(tmp_path):
    spec = exact_spec(tmp_path, samples=40, checkpoint_every=3)
    heards = kit.train(tmp_path, spec, [3, 1])
    assert [(f.step, f.epoch) for f in heards[0].files] == [
        (3, 0), (5, 1), (6, 1), (9, 1), (10, 2)
    ]  # fmt: skip
    assert heards[1].files == []
    assert all(f.purpose == "checkpoint" for f in heards[0].files)
    assert heards[0].files[-1].state_digest == heards[1].last.report.digest
    assert all(Path(f.path).exists() for f in heards[0].files)


def test_a_view_of_a_finished_session_writes_the_result_again(tmp_path):
    spec = exact_spec(tmp_path)
    cluster = kit.start(tmp_path, spec, 2)
    cluster.run([2, 2])
    first = lasts(cluster)
    # Rank 0 died before its files were safe: another rank writes them.
    cluster.run([4], ranks=[cluster.trainers[1]], first_step=first[0].step)
    again = cluster.trainers[1].until(RunFinished, ViewEnded).last
    assert again.report.digest == first[0].report.digest
    one, two = (
        json.loads(Path(f.manifest_path).read_text()) for f in (first[0], again)
    )
    assert one["losses"] == two["losses"]
    assert one["epochs"] == two["epochs"]
    cluster.close()


def test_steps_are_told_with_their_figures(tmp_path):
    spec = exact_spec(tmp_path)
    [heard] = kit.train(tmp_path, spec, [4])
    assert sum(f.samples for f in heard.steps) == 8 * len(heard.losses)
    assert [f.step for f in heard.steps] == sorted({f.step for f in heard.steps})
    assert heard.steps[-1].step == 10
    for frame in heard.steps:
        assert frame.wall_s >= frame.compute_s > 0
        assert isinstance(frame, Steps)
    # An epoch's steps are told before its figures.
    assert isinstance(heard.epochs[0], EpochEnded)


def test_a_disk_that_refuses_is_a_fault(tmp_path):
    spec = replace(exact_spec(tmp_path), checkpoint_every=2)
    cluster = kit.start(tmp_path, spec, 1)
    shutil.rmtree(tmp_path / "node-0")
    cluster.run([4])
    fault = cluster.trainers[0].until(RunFinished, ViewEnded).last
    assert isinstance(fault, Fault)
    assert "node 'node-0'" in fault.sentence
    assert "cannot write" in fault.sentence
    assert fault.of_node
    cluster.close()


def test_rank_0_asks_for_checkpoints_in_between_and_all_compare(tmp_path, monkeypatch):
    spec = exact_spec(tmp_path, digest_every=0)
    truth = undisturbed(tmp_path, spec)
    monkeypatch.setattr(writer, "AT_LEAST_S", 0.0)
    cluster = kit.start(tmp_path, spec, 2)
    cluster.run([1, 3])
    heard = [t.until(RunFinished, ViewEnded) for t in cluster.trainers]
    assert {h.last.report.digest for h in heard} == {truth.last.report.digest}
    steps = [file.step for file in heard[0].files]
    assert len(steps) > len(truth.files)
    assert steps == sorted(set(steps))
    assert heard[1].files == []
    cluster.close()


def test_a_lone_rank_leaves_a_checkpoint_when_it_is_drained(tmp_path, monkeypatch):
    spec = exact_spec(tmp_path)
    cluster = kit.start(tmp_path, spec, 1)
    told = HaltView(1, "it leaves", drain=True)
    at_step(monkeypatch, 3, lambda: cluster.trainers[0].commands._note(told))
    cluster.run([4])
    heard = cluster.trainers[0].until(RunFinished, ViewEnded)
    assert heard.last.step == 4
    assert [(f.purpose, f.step) for f in heard.files] == [("checkpoint", 4)]
    assert heard.files[0].state_digest == heard.last.digest
    cluster.close()
