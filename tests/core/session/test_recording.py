"""What goes on record, and how many nodes hold it."""

from dataclasses import replace

from p2ptrain.core.session import Held
from p2ptrain.messages.record import AddCheckpoint, AddEpoch, SessionStatus
from tests.core.session.world import Lab, Plan, node_id

DONE = SessionStatus.DONE


def test_a_node_that_cannot_hold_is_passed_over() -> None:
    lab = Lab()
    lab.cannot_hold.add(0)
    lab.lead(0)
    assert lab.finish().status is DONE
    assert all(len(kept.holders) == 2 for kept in lab.row.checkpoints)
    assert lab.row.result is not None
    first, second = lab.row.result.holders
    assert {first, second} == {node_id(0), node_id(1)} or first == node_id(0)
    assert set(lab.seats()) == {"a", "b", "c"}  # it may train all the same


def test_one_holder_is_better_than_none() -> None:
    lab = Lab()
    lab.cannot_hold |= {1, 2}
    assert lab.finish().status is DONE
    assert lab.row.result is not None
    assert lab.row.result.holders == (node_id(0),)
    assert [kept.holders for kept in lab.row.checkpoints] == [(node_id(0),)] * 2


def test_nothing_is_recorded_twice() -> None:
    lab = Lab(Plan(epochs=4, steps=80))
    lab.until_step(50)
    lab.kill(2)
    assert lab.finish().status is DONE
    epochs = [c.epoch for _, c in lab.committed if isinstance(c, AddEpoch)]
    kept = [c.step for _, c in lab.committed if isinstance(c, AddCheckpoint)]
    assert epochs == [0, 1, 2, 3]
    assert kept == sorted(set(kept))


def test_what_is_on_record_is_not_proposed_again() -> None:
    lab = Lab(Plan(steps=400))
    assert lab.finish().status is DONE
    epochs = [c.epoch for _, c in lab.committed if isinstance(c, AddEpoch)]
    assert epochs == [0, 1]  # though rank 0 reports the first for ten seconds


def test_any_rank_may_report_an_epoch() -> None:
    lab = Lab(Plan(nodes=3, steps=40))
    lab.until(lambda: bool(lab.views) and 1 in lab.began)
    core = lab.core
    assert core is not None
    lab.until_step(20)
    known = core.workers.known
    known[node_id(0)].state = replace(known[node_id(0)].state, epochs=())
    lab.until_step(30)
    assert [e.epoch for e in lab.row.epochs] == [0]
    assert lab.finish().status is DONE


def test_answers_about_unknown_blobs_are_bounded() -> None:
    lab = Lab(Plan(nodes=2))
    core = lab.core
    assert core is not None
    for index in range(3000):
        core.step(1.0, Held(node_id(index), lab.row.submission.blobs, "no"))
        core.step(1.0, Held(node_id(index), lab.row.submission.blobs, ""))
    assert len(core._held) <= 1024
    assert len(core._cannot_hold) <= 1024
