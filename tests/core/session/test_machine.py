"""Whole sessions: a master core, worker cores and trainers in one virtual time."""

from dataclasses import replace

from p2ptrain.core.session import Reported
from p2ptrain.ids import SessionId
from p2ptrain.messages.record import SessionStatus
from p2ptrain.messages.session import WorkerPhase
from tests.core.session.world import SESSION, Lab, Plan, digest_at, node_id

DONE = SessionStatus.DONE


def assert_done(lab: Lab) -> None:
    """Check what holds at every good end."""
    row = lab.finish()
    assert row.status is DONE, row.reason
    assert row.result is not None
    assert row.result.state_digest == digest_at(lab.plan.steps)
    assert row.result.step == lab.plan.steps
    assert [e.epoch for e in row.epochs] == list(range(lab.plan.epochs))
    assert lab.refused == []
    alive = {node.id for node in lab.nodes if node.up}
    assert not [node for node in lab.nodes if node.id in alive and node.core]


def test_three_nodes_train_one_job() -> None:
    lab = Lab()
    assert_done(lab)
    assert len(lab.views) == 1
    assert lab.seats() == {"a": 2, "b": 1, "c": 1}
    assert [len(views) for views in lab.applied.values()] == [1] * lab.plan.steps
    assert lab.forgot == {node_id(i) for i in range(3)}
    assert lab.row.result is not None
    assert len(lab.row.result.holders) == 2
    assert len(lab.row.result.reports) == 3
    assert all(len(kept.holders) == 2 for kept in lab.row.checkpoints)
    assert [kept.step for kept in lab.row.checkpoints] == [20, 40]


def test_one_node_trains_alone() -> None:
    lab = Lab(Plan(nodes=1))
    assert_done(lab)
    assert lab.row.result is not None
    assert lab.row.result.holders == (node_id(0),)


def test_a_killed_worker_costs_less_than_a_second() -> None:
    lab = Lab()
    lab.until_step(10)
    at = lab.world.now
    lab.kill(2)
    assert_done(lab)
    assert lab.gap(at) < 1.0
    assert lab.seats() == {"a": 2, "b": 2}
    assert lab.views[-1].first_step >= 10
    assert [len(views) for views in lab.applied.values()] == [1] * lab.plan.steps


def test_a_restarted_worker_is_back_soon() -> None:
    lab = Lab(Plan(steps=400))
    lab.until_step(100)
    lab.kill(2)
    lab.run(1.0)
    lab.restart(2)
    assert lab.until(lambda: "c" in lab.seats()) < 3.0
    lab.until(lambda: len(lab.views) in lab.began)
    assert lab.began[len(lab.views)] - lab.stepped[-1][0] < 0.5
    assert_done(lab)


def test_a_killed_master_costs_less_than_five_seconds() -> None:
    lab = Lab()
    lab.until_step(10)
    at = lab.world.now
    lab.kill(0)
    assert_done(lab)
    assert lab.gap(at) < 5.0
    assert set(lab.seats()) == {"b", "c"}


def test_workers_train_on_while_the_master_changes() -> None:
    lab = Lab(Plan(nodes=4, witnesses=frozenset({3}), steps=100))
    lab.lead(3)
    lab.until_step(10)
    at = lab.world.now
    lab.kill(3)
    assert_done(lab)
    assert len(lab.views) == 1
    assert lab.gap(at) < 0.1


def test_a_master_that_dies_after_a_commit_is_followed_by_one_that_goes_on() -> None:
    lab = Lab(Plan(nodes=4, witnesses=frozenset({3})))
    lab.lead(3)
    lab.until(lambda: bool(lab.views))  # committed, nobody was ordered to run yet
    lab.kill(3)
    at = lab.world.now
    lab.until_step(1)
    assert lab.world.now - at < 5.0
    assert_done(lab)


def test_a_master_that_returns_from_the_record_alone_goes_on() -> None:
    lab = Lab(Plan(nodes=1))
    lab.until_step(25)
    lab.kill(0)
    lab.run(0.1)
    lab.restart(0)
    assert_done(lab)
    assert lab.views[-1].first_step == 20  # the newest checkpoint


def test_a_stop_ends_at_a_step_boundary() -> None:
    lab = Lab()
    lab.until_step(10)
    lab.stop()
    row = lab.finish()
    assert row.status is SessionStatus.STOPPED
    assert row.step == lab.stepped[-1][1]
    assert row.reason == f"stopped at step {row.step}"
    assert lab.forgot == {node_id(i) for i in range(3)}


def test_a_stop_before_the_first_view_ends_the_session() -> None:
    lab = Lab()
    lab.stop()
    assert lab.finish().status is SessionStatus.STOPPED
    assert lab.views == ()


def test_a_stop_while_a_node_dies_does_not_wait_for_it() -> None:
    lab = Lab()
    lab.until_step(10)
    lab.stop()
    lab.kill(1)
    at = lab.world.now
    lab.until(lambda: lab.row.status is SessionStatus.STOPPED)
    assert lab.world.now - at < 1.0


def test_a_session_that_is_over_rests_and_lets_late_workers_go() -> None:
    lab = Lab()
    lab.deaf.add(1)
    lab.until(lambda: lab.core is not None and lab.core.stage == "run")
    assert set(lab.seats()) == {"a", "c"}  # who does not answer is not waited for
    lab.finish()
    core = lab.core
    assert core is not None
    assert core.is_over
    assert core.deadline == float("inf")


def test_live_figures_follow_the_workers() -> None:
    lab = Lab(Plan(steps=100))
    lab.until_step(60)
    core = lab.core
    assert core is not None
    live = core.live()
    assert live.known
    assert live.status is SessionStatus.RUNNING
    assert (live.steps, live.epochs, live.view) == (100, 2, 1)
    assert 40 <= live.step <= 60
    assert live.epoch == (live.step >= 50)
    assert live.losses == tuple(
        1 / step for step in range(live.losses_from + 1, live.step + 1)
    )
    assert {line.name: line.share for line in live.workers} == {"a": 2, "b": 1, "c": 1}
    assert live.samples_per_s > 0


def test_another_sessions_state_changes_nothing() -> None:
    lab = Lab()
    lab.until_step(5)
    core = lab.core
    assert core is not None
    known = dict(core.workers.known)
    state = next(iter(known.values())).state
    other = replace(
        state,
        session=SessionId("s-other"),
        serial=state.serial + 1,
        phase=WorkerPhase.ENDED,
    )
    assert core.session == SESSION
    core.step(lab.world.now, Reported(other))
    assert dict(core.workers.known) == known
