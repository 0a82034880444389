"""The command loop: order of commands, sentences of faults, and what ends a process."""

from dataclasses import replace

import pytest
import torch

from p2ptrain.engine.meta import TrainingFaultError
from p2ptrain.engine.session import sentence
from p2ptrain.errors import LocalError, RefError, SpecError, StorageError
from p2ptrain.messages.trainer import (
    Fault,
    HaltView,
    Loaded,
    RunFinished,
    RunView,
    ViewEnded,
    WriteSnapshot,
)
from tests.engine import trainjobs as jobs
from tests.engine import trainkit as kit


@pytest.fixture(autouse=True)
def one_thread():
    torch.set_num_threads(1)


@pytest.fixture
def spec(tmp_path):
    return jobs.spec_of(jobs.cnn_task(), tmp_path, global_batch=4)


def test_loaded_says_what_is_ready(tmp_path, spec):
    cluster = kit.start(tmp_path, spec, 2)
    one, two = cluster.loaded
    assert (one.device, one.lanes) == ("cpu", ("cpu",))
    assert one.why == "the job asks for cpu"
    assert one.inventory[-1].startswith("cpu (")
    assert (one.step, one.steps, one.epochs) == (0, 11, 2)
    assert one.digest == two.digest
    assert one.data_digests == two.data_digests
    assert len(set(one.data_digests)) == len(spec.data) + len(spec.eval.data)
    assert 0 < one.ring_port != two.ring_port
    assert one.seconds > 0
    cluster.close()


def test_auto_on_a_machine_without_accelerators_is_the_cpu(tmp_path):
    spec = jobs.spec_of(jobs.cnn_task(), tmp_path, device="auto")
    cluster = kit.start(tmp_path, spec, 1)
    assert cluster.loaded[0].device == "cpu"
    assert cluster.loaded[0].why == "cpu is the only device here"
    cluster.close()


@pytest.mark.parametrize("command", [WriteSnapshot(), RunView(1, 0, (), 0, "")])
def test_a_command_before_load_is_our_own_fault(command):
    trainer = kit.Trainer("ant")
    trainer.send(command)
    fault = trainer.until().last
    assert fault == Fault("node '?': a trainer must load a session first", of_node=True)
    trainer.close()


def test_a_second_load_is_our_own_fault(tmp_path, spec):
    cluster = kit.start(tmp_path, spec, 1)
    [trainer] = cluster.trainers
    trainer.send(kit.load_frame(cluster, trainer))
    assert "loads one session only" in trainer.until().last.sentence
    cluster.close()


def test_a_spec_that_may_not_run_is_refused_with_its_field(tmp_path, spec):
    cluster = kit.Cluster(tmp_path, replace(spec, loss_index=99), [], [], {})
    fault = cluster.load("ant").until(Loaded).last
    assert isinstance(fault, Fault)
    assert fault.sentence.startswith("loss_index: ")
    assert not fault.of_node
    cluster.close()


def test_halts_at_rest_and_of_other_views_change_nothing(tmp_path, spec):
    cluster = kit.start(tmp_path, spec, 1)
    [trainer] = cluster.trainers
    trainer.send(HaltView(0, "stale", drain=False))
    trainer.send(HaltView(7, "not yet", drain=True))
    cluster.run([2])
    assert isinstance(trainer.until(ViewEnded, RunFinished).last, RunFinished)
    cluster.close()


def test_a_halt_that_overtakes_its_view_ends_it_at_once(tmp_path, spec):
    cluster = kit.start(tmp_path, spec, 2)
    for trainer in cluster.trainers:
        trainer.send(HaltView(1, "changed my mind", drain=False))
    cluster.run([1, 1])
    for trainer, loaded in zip(cluster.trainers, cluster.loaded, strict=True):
        last = trainer.until(ViewEnded, RunFinished).last
        assert (last.step, last.digest) == (0, loaded.digest)
        assert last.reason == "changed my mind"
        assert last.culprit == ""
    cluster.close()


def test_a_quit_ends_a_running_view_and_the_process(tmp_path, spec):
    cluster = kit.start(tmp_path, spec, 2)
    one, two = cluster.trainers
    # Its neighbour never comes: without the quit it would wait for half a minute.
    cluster.view = 1
    seats = tuple(
        kit.RingSeat(t.node, 1, f"127.0.0.1:{cluster.port(t)}") for t in (one, two)
    )
    one.send(RunView(1, 0, seats, 0, ""))
    one.close()
    assert one.code == 0
    assert one.next().reason == "the trainer was told to quit"
    assert one.next() is None
    two.close()


def test_a_state_that_is_none_is_a_fault_and_names_the_file(tmp_path, spec):
    cluster = kit.start(tmp_path, spec, 1)
    bad = tmp_path / "bad.safetensors"
    bad.write_bytes(b"\0" * 20)
    cluster.run([2], states={cluster.trainers[0]: str(bad)})
    fault = cluster.trainers[0].until(ViewEnded, RunFinished).last
    assert isinstance(fault, Fault)
    assert str(bad) in fault.sentence
    assert fault.of_node
    cluster.close()


def test_torch_errors_are_one_sentence_with_the_node(tmp_path, spec, monkeypatch):
    cluster = kit.start(tmp_path, spec, 1)

    def run(self, step, part):
        raise torch.OutOfMemoryError("CUDA out of memory.\nTried to allocate a lot")

    monkeypatch.setattr("p2ptrain.engine.lanes.Lanes.results", run)
    cluster.run([2])
    fault = cluster.trainers[0].until(ViewEnded, RunFinished).last
    assert fault == Fault("node 'node-0': CUDA out of memory.", of_node=True)
    cluster.close()


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (TrainingFaultError("node 'bee': the loss is not finite"), "node 'bee': the"),
        (SpecError("batch", "is 0"), "batch: is 0"),
        (RefError("ant", "file:///x", "is missing"), "node 'ant' cannot resolve"),
        (StorageError("cannot write x"), "node 'ant': cannot write x"),
        (LocalError("two\nlines"), "node 'ant': two"),
        (MemoryError(), "node 'ant': MemoryError"),
    ],
)
def test_sentences_name_the_node_once(error, said):
    got = sentence("ant", error)
    assert got.startswith(said)
    assert "\n" not in got
