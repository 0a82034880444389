"""How views are formed: readiness, data, the step that counts, seats."""

from dataclasses import replace

import pytest

from p2ptrain.core.session.base import Start
from p2ptrain.ids import digest_of
from p2ptrain.messages.record import SessionStatus
from p2ptrain.messages.session import Release, Snapshot, WorkerPhase, WorkerState
from p2ptrain.messages.trainer import Fault
from tests.core.session.world import SESSION, Lab, Plan, digest_at, node_id

DONE, FAILED, PAUSED = (
    SessionStatus.DONE,
    SessionStatus.FAILED,
    SessionStatus.PAUSED,
)
OTHER = digest_of(b"other")


def snapshots(lab: Lab) -> int:
    orders = [order for node in lab.nodes for order in node.orders]
    return sum(isinstance(order, Snapshot) for order in orders)


# --- who takes part


def test_a_node_that_declines_is_left_out_and_asked_again_later() -> None:
    lab = Lab(Plan(steps=200))
    lab.faults[node_id(1)] = Fault("node 'b': out of memory", of_node=True)
    lab.until_step(1)
    assert set(lab.seats()) == {"a", "c"}
    core = lab.core
    assert core is not None
    reasons = {line.name: line.reason for line in core.live().workers}
    assert reasons["b"] == "node 'b': out of memory"
    del lab.faults[node_id(1)]
    lab.until(lambda: "b" in lab.seats())
    assert lab.world.now < 10
    assert lab.finish().status is DONE


def test_one_that_declines_again_and_again_is_asked_less_and_less() -> None:
    lab = Lab(Plan(steps=1000))
    lab.faults[node_id(1)] = Fault("node 'b': no device", of_node=True)
    lab.until_step(900)
    launches = [o for o in lab.nodes[1].orders if type(o).__name__ == "Prepare"]
    assert 4 <= len(launches) <= 20  # some repeated, in five rounds at most
    assert lab.finish().status is DONE
    assert len(lab.views) == 1


def test_a_job_that_every_node_refuses_fails_with_its_sentence() -> None:
    lab = Lab()
    for i in range(3):
        lab.faults[node_id(i)] = Fault("the loss of step 0 is not finite")
    row = lab.finish()
    assert (row.status, row.reason) == (FAILED, "the loss of step 0 is not finite")


def test_a_job_that_fails_everywhere_while_training_fails() -> None:
    lab = Lab()
    lab.until_step(5)
    for i in range(3):
        lab.kill_trainer_of_job(i, "the loss of step 6 is not finite")
    row = lab.finish()
    assert (row.status, row.reason) == (FAILED, "the loss of step 6 is not finite")


def test_a_node_that_refuses_does_not_fail_what_another_one_could_do() -> None:
    lab = Lab(Plan(nodes=2))
    lab.faults[node_id(0)] = Fault("node 'a' cannot resolve file:///x: no such file")
    lab.faults[node_id(1)] = Fault("node 'b': out of memory", of_node=True)
    lab.until(lambda: lab.row.status is PAUSED)
    assert "node 'b': out of memory" in lab.row.reason
    assert "node 'a' cannot resolve" in lab.row.reason
    del lab.faults[node_id(1)]
    assert lab.finish().status is DONE
    assert lab.seats() == {"b": 4}


def test_no_node_that_trains_is_a_pause_until_one_comes() -> None:
    lab = Lab(Plan(nodes=1, witnesses=frozenset({0})))
    lab.until(lambda: lab.row.status is PAUSED)
    assert lab.row.reason == "no node can train"
    lab.add(1)
    assert lab.finish().status is DONE
    assert lab.seats() == {"b": 4}


def test_nodes_that_do_not_answer_are_a_pause() -> None:
    lab = Lab()
    lab.deaf |= {0, 1, 2}
    lab.until(lambda: lab.row.status is PAUSED)
    assert lab.row.reason == "no node that trains answers"
    lab.deaf.clear()
    assert lab.finish().status is DONE


def test_slow_loading_is_waited_for_and_named_when_it_is_very_slow() -> None:
    lab = Lab(Plan(load_s=15.0))
    lab.until_step(1)
    assert lab.statuses[0][0] is SessionStatus.RUNNING
    assert lab.world.now < 16
    lab = Lab(Plan(nodes=1, load_s=30.0))
    lab.until(lambda: lab.row.status is PAUSED)
    assert lab.row.reason == "nodes 'a' are still getting ready"
    assert lab.finish(120).status is DONE


# --- data


def test_a_node_that_sees_other_data_is_left_out_and_named() -> None:
    lab = Lab(Plan(steps=200))
    lab.data[node_id(2)] = ("e" * 64,)
    lab.until_step(150)
    assert set(lab.seats()) == {"a", "b"}
    assert len(lab.views) == 1  # it does not end the view again and again
    core = lab.core
    assert core is not None
    reasons = {line.name: line.reason for line in core.live().workers}
    assert reasons["c"] == "node 'c' sees other data than most"
    assert lab.finish().status is DONE


def test_without_a_majority_on_data_the_session_fails() -> None:
    lab = Lab(Plan(nodes=2))
    lab.data[node_id(1)] = ("e" * 64,)
    row = lab.finish()
    assert row.status is FAILED
    assert row.reason == "nodes 'a', 'b' see different data: make it equal or push it"


def test_those_that_trained_are_right_about_data() -> None:
    lab = Lab()
    lab.until_step(5)
    core = lab.core
    assert core is not None
    one, *others = (core.workers.known[node_id(i)].state for i in range(3))
    loaded = {one.node: replace(one, phase=WorkerPhase.ENDED, step=5, view=1)}
    for state in others:
        phase = WorkerPhase.READY
        loaded[state.node] = replace(state, phase=phase, data_digests=("e" * 64,))
    assert core._agree_on_data(loaded)
    assert list(loaded) == [one.node]


def test_a_joiner_with_other_data_does_not_end_the_view() -> None:
    lab = Lab(Plan(nodes=1, steps=200))
    lab.data[node_id(1)] = ("e" * 64,)
    lab.until_step(10)
    lab.add(1)
    assert lab.finish().status is DONE
    assert len(lab.views) == 1


# --- the state that counts


@pytest.mark.parametrize("ahead", [{0}, {1}, {0, 2}])
def test_the_newest_applied_step_counts(ahead: set[int]) -> None:
    lab = Lab(Plan(nodes=4))
    lab.until_step(10)
    lab.ahead = ahead
    step = lab.stepped[-1][1]
    at = lab.world.now
    lab.kill(3)
    lab.until(lambda: len(lab.views) > 1)
    assert lab.views[-1].first_step == step + 1
    assert set(lab.seats()) == {"a", "b", "c"}
    assert snapshots(lab) == 1  # one node writes, the others load
    assert lab.finish().status is DONE
    assert lab.gap(at) < 1.0
    assert len(lab.views) == 2


def test_no_snapshot_is_written_when_all_are_equal() -> None:
    lab = Lab()
    lab.until_step(10)
    lab.kill(2)
    assert lab.finish().status is DONE
    assert snapshots(lab) == 0


def test_live_memory_outlives_the_one_that_was_ahead() -> None:
    lab = Lab(Plan(nodes=4, swim_s=1.0))
    lab.lead(1)
    lab.until_step(10)
    lab.ahead = {0}
    lab.kill(3)
    lab.until(lambda: len(lab.views) == 2)
    lab.ahead = set()
    lab.kill(0)  # the others are about to fetch its state
    lab.until(lambda: len(lab.views) == 3 and 3 in lab.began)
    assert lab.views[-1].first_step == lab.views[1].first_step - 1
    assert set(lab.seats()) == {"b", "c"}
    assert lab.finish().status is DONE


def test_survivors_that_differ_at_one_step_fail_the_session() -> None:
    lab = Lab(Plan(nodes=4))
    lab.until_step(9)
    lab.wrong[node_id(1), 10] = OTHER
    lab.until_step(10)
    lab.kill(3)
    row = lab.finish()
    assert row.status is FAILED
    assert row.reason == "nodes 'b' compute wrongly: states differ after step 10"


def test_nodes_that_begin_differently_fail_the_session() -> None:
    lab = Lab()
    lab.first_digest[node_id(2)] = OTHER
    row = lab.finish()
    assert (row.status, row.reason) == (FAILED, "nodes 'c' begin with other weights")


def test_training_resumes_at_a_checkpoint_when_no_memory_is_left() -> None:
    lab = Lab()
    lab.until_step(25)
    for i in range(3):
        lab.kill_trainer(i)
    assert lab.finish().status is DONE
    assert lab.views[1].first_step == 20
    assert lab.row.result is not None
    assert lab.row.result.state_digest == digest_at(40)


def test_training_starts_anew_when_nothing_is_left() -> None:
    lab = Lab()
    lab.until_step(5)
    for i in range(3):
        lab.kill_trainer(i)
    assert lab.finish().status is DONE
    assert lab.views[1].first_step == 0


def test_a_checkpoint_out_of_reach_is_a_pause_that_names_its_holders() -> None:
    lab = Lab(Plan(nodes=4, witnesses=frozenset({3}), swim_s=0.5))
    lab.lead(3)
    lab.until(lambda: bool(lab.row.checkpoints))
    holders = [int(node, 16) for node in lab.row.checkpoints[0].holders]
    (other,) = {0, 1, 2} - set(holders)
    for index in holders:
        lab.kill(index)
    lab.kill_trainer(other)
    names = ", ".join(repr(lab.names[node_id(i)]) for i in holders)
    lab.until(lambda: "only" in lab.row.reason)
    assert lab.row.status is PAUSED
    assert lab.row.reason == (
        f"checkpoint 20 is on {names} only: bring one of them back"
    )
    lab.restart(holders[1])
    assert lab.finish().status is DONE
    assert lab.views[1].first_step == 20


def test_a_state_of_no_view_on_record_is_dropped() -> None:
    lab = Lab(Plan(nodes=3, swim_s=0.3, steps=400))
    lab.lead(1)
    lab.until_step(5)
    lab.deaf.add(2)  # cut off, with the state of step 5 or so in memory
    lab.kill_trainer(0)
    lab.until(lambda: set(lab.seats()) == {"a", "b"} and len(lab.views) in lab.began)
    lab.run(0.5)
    for i in range(2):
        lab.kill_trainer(i)
    lab.deaf.clear()
    assert lab.finish(120).status is DONE
    releases = [o for o in lab.nodes[2].orders if isinstance(o, Release)]
    assert releases[0].reason == "its state belongs to no view on record"
    assert "c" in lab.seats()


# --- seats


def test_shares_follow_measured_speeds() -> None:
    lab = Lab(Plan(parts=12, steps=100))
    lab.until_step(30)
    core = lab.core
    assert core is not None
    for index, speed in enumerate((10.0, 30.0, 20.0)):
        core.workers.speeds[node_id(index)] = speed
    known = core.workers.known[node_id(0)]
    lab.add(3)
    lab.until(lambda: len(lab.views) > 1)
    assert sum(lab.seats().values()) == 12
    assert set(lab.seats()) == {"a", "b", "c", "d"}
    assert known.state.samples > 0


def test_no_more_ranks_than_parts() -> None:
    lab = Lab(Plan(nodes=4, parts=2))
    assert lab.finish().status is DONE
    assert lab.seats() == {"a": 1, "b": 1}


def test_prepare_names_many_sources() -> None:
    lab = Lab()
    lab.nodes[1].held |= lab.nodes[0].held
    lab.lead(1)
    lab.set_member(replace(lab.members[node_id(0)]))
    lab.kill(0)  # the submitter
    assert lab.finish().status is DONE
    assert set(lab.seats()) == {"b", "c"}


# --- which states count


def test_a_seat_that_never_caught_up_does_not_count() -> None:
    lab = Lab(Plan(nodes=2, steps=200))
    lab.until_step(10)
    lab.add(2)
    lab.until(lambda: len(lab.views) == 2)
    core = lab.core
    assert core is not None
    first = lab.views[-1].first_step
    joined = WorkerState(node_id(2), SESSION, 2, WorkerPhase.ENDED, step=0)
    stayed = replace(joined, node=node_id(1))
    assert not core._counts(node_id(2), joined)
    assert core._counts(node_id(2), replace(joined, step=first))
    assert core._counts(node_id(2), replace(joined, step=first + 7))
    assert not core._counts(node_id(2), replace(joined, step=first - 1))
    assert core._counts(node_id(1), replace(stayed, step=first - 1))
    assert core._counts(node_id(1), replace(stayed, view=1, step=first))
    assert not core._counts(node_id(1), replace(stayed, view=1, step=first + 1))
    assert not core._counts(node_id(1), replace(stayed, view=1, step=first - 2))
    assert not core._counts(node_id(1), replace(stayed, view=0, step=first))
    running = replace(stayed, phase=WorkerPhase.RUNNING, step=first)
    assert not core._counts(node_id(1), running)


def test_a_start_belongs_to_the_view_that_was_proposed_with_it() -> None:
    lab = Lab()
    core = lab.core
    assert core is not None
    state = WorkerState(node_id(0), SESSION, 1, WorkerPhase.READY, step=0)
    core._take_seats({node_id(0): state}, Start(5, None, ()))
    core._take_seats({node_id(0): state}, Start(6, None, ()))
    assert core._start == Start(5, None, ())


def damage(lab: Lab, step: int) -> None:
    """Nobody holds the bytes of a checkpoint any more."""
    for kept in lab.row.checkpoints:
        if kept.step == step:
            for node in lab.nodes:
                node.held.discard(kept.blob.digest)


def test_a_damaged_checkpoint_gives_way_to_the_one_before() -> None:
    lab = Lab(Plan(epochs=4))
    lab.until(lambda: len(lab.row.checkpoints) == 2)
    damage(lab, 20)
    for i in range(3):
        lab.kill_trainer(i)
    assert lab.finish().status is DONE
    begins = [view.first_step for view in lab.views]
    assert 10 in begins
    assert begins.index(10) <= 3
    assert lab.row.result is not None
    assert lab.row.result.state_digest == digest_at(40)
    assert [e.epoch for e in lab.row.epochs] == [0, 1, 2, 3]


def test_without_a_readable_checkpoint_the_session_waits_and_says_so() -> None:
    lab = Lab(Plan(epochs=4))
    lab.until(lambda: len(lab.row.checkpoints) == 1)
    (kept,) = lab.row.checkpoints
    damage(lab, kept.step)
    for i in range(3):
        lab.kill_trainer(i)
    lab.until(lambda: "no checkpoint can be read" in lab.row.reason, 60)
    assert lab.row.status is PAUSED
    names = ", ".join(repr(lab.names[node]) for node in kept.holders)
    assert lab.row.reason == (
        f"no checkpoint can be read: the newest, {kept.step}, was on {names}"
    )
    lab.nodes[0].held.add(kept.blob.digest)  # a disk is put back
    assert lab.finish(120).status is DONE
