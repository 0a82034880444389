"""Views that run: joiners, stalls, seats that are not taken, results."""

from dataclasses import replace

from p2ptrain.ids import digest_of
from p2ptrain.members import MemberStatus
from p2ptrain.messages.record import SessionStatus
from tests.core.session.world import Lab, Plan, node_id

DONE, FAILED = SessionStatus.DONE, SessionStatus.FAILED


def test_a_joiner_is_prepared_while_others_train_and_then_enters() -> None:
    lab = Lab(Plan(nodes=2, steps=300, load_s=5.0))
    lab.until_step(10)
    lab.add(2)
    at = lab.world.now
    lab.until(lambda: "c" in lab.seats())
    assert lab.world.now - at > 5.0
    lab.until(lambda: len(lab.views) in lab.began)
    assert lab.finish().status is DONE
    assert lab.gap(at) < 0.5
    assert len(lab.views) == 2
    assert [len(views) for views in lab.applied.values()] == [1] * 300


def test_many_joiners_do_not_end_the_view_again_and_again() -> None:
    lab = Lab(Plan(nodes=1, parts=8, steps=400))
    lab.until_step(10)
    for index in range(1, 6):
        lab.add(index)
        lab.run(0.4)
    assert lab.finish().status is DONE
    assert len(lab.views) <= 4
    assert len(lab.seats()) == 6


def test_a_seat_that_hears_nothing_is_given_to_others() -> None:
    lab = Lab(Plan(steps=100))
    lab.until_step(10)
    lab.deaf.add(2)
    lab.kill_trainer(0)
    at = lab.world.now
    lab.until(lambda: len(lab.views) == 3 and 3 in lab.began)
    assert lab.world.now - at < 5.0
    assert set(lab.seats()) == {"a", "b"}
    lab.deaf.clear()
    assert lab.finish().status is DONE


def test_a_trainer_that_dies_after_its_node_was_seated() -> None:
    lab = Lab(Plan(nodes=4))
    lab.until_step(10)
    lab.kill(3)
    lab.until(lambda: len(lab.views) == 2)
    lab.kill_trainer(2)  # before it can run
    at = lab.world.now
    lab.until(lambda: len(lab.views) == 3 and 3 in lab.began)
    assert lab.world.now - at < 1.0
    assert lab.finish().status is DONE


def test_a_view_in_which_nothing_moves_is_ended() -> None:
    lab = Lab(Plan(nodes=2))
    lab.until_step(10)
    lab.rings[1].hangs = True  # no link tells
    at = lab.world.now
    lab.until(lambda: len(lab.views) == 2)
    assert 3.0 < lab.world.now - at < 6.0
    assert lab.finish().status is DONE


def test_long_steps_get_through() -> None:
    lab = Lab(Plan(nodes=2, step_s=80.0, steps=4, epochs=1))
    assert lab.finish(2000.0).status is DONE
    assert len(lab.views) <= 3  # the allowance for a first step grew twice


def test_final_states_that_differ_fail_the_session() -> None:
    lab = Lab()
    lab.wrong[node_id(2), 40] = digest_of(b"other")
    row = lab.finish()
    assert row.status is FAILED
    assert row.reason == "nodes 'c' compute wrongly: their final states differ"


def test_two_nodes_that_differ_are_both_named() -> None:
    lab = Lab(Plan(nodes=2))
    lab.wrong[node_id(1), 40] = digest_of(b"other")
    assert lab.finish().reason.startswith("nodes 'a', 'b' compute wrongly")


def test_a_rank_that_dies_before_the_last_step_is_reported_is_replaced() -> None:
    lab = Lab(Plan(nodes=3))
    lab.until_step(39)
    lab.kill(1)
    assert lab.finish().status is DONE


def test_the_result_is_made_again_when_its_writer_dies_before_it_is_safe() -> None:
    lab = Lab(Plan(nodes=4, witnesses=frozenset({3})))
    lab.lead(3)
    lab.cannot_hold |= {1, 2}
    lab.hold_s = 5.0
    lab.until_step(40)
    lab.run(0.1)
    assert lab.row.result is None
    lab.kill(0)
    lab.cannot_hold.clear()
    row = lab.finish()
    assert row.status is DONE
    assert row.result is not None
    assert node_id(0) not in row.result.holders
    assert len(lab.views) == 2


def test_a_node_that_leaves_steps_out_at_a_boundary() -> None:
    lab = Lab(Plan(nodes=3, steps=200))
    lab.until_step(10)
    at = lab.world.now
    lab.retire(2)
    lab.until(lambda: len(lab.views) == 2 and 2 in lab.began)
    assert set(lab.seats()) == {"a", "b"}
    assert lab.gap(at) < 0.3
    assert lab.nodes[2].trainer is not None
    assert lab.nodes[2].trainer.step == lab.views[1].first_step
    assert lab.finish().status is DONE
    assert [len(views) for views in lab.applied.values()] == [1] * 200


def test_what_only_a_leaving_node_holds_is_recorded_first() -> None:
    lab = Lab(Plan(nodes=1, steps=200))
    lab.until_step(13)
    lab.retire(0)
    lab.until(lambda: lab.row.status is SessionStatus.PAUSED)
    (kept,) = lab.row.checkpoints
    assert kept.step == lab.nodes[0].trainer.step >= 13
    lab.kill(0)
    lab.restart(0)
    lab.retire(0, trains=True)
    assert lab.finish().status is DONE
    assert lab.views[1].first_step == kept.step
    assert [len(views) for views in lab.applied.values()] == [1] * 200


def test_a_seat_whose_node_was_started_again_ends_the_view_at_once() -> None:
    """No neighbour notices, and it was back before it was given up."""
    lab = Lab(Plan(nodes=3, steps=200, swim_s=30.0))
    lab.until_step(10)
    for node in lab.nodes[:2]:
        assert node.trainer is not None
        assert node.trainer.ring is not None
        node.trainer.ring.hangs = True
    node = lab.nodes[2]
    node.core = node.trainer = None
    was = lab.members[node.id]
    lab.set_member(replace(was, status=MemberStatus.SUSPECT))
    lab.set_member(replace(was, incarnation=was.incarnation + 1))
    at = lab.world.now
    lab.until(lambda: len(lab.views) == 2 and 2 in lab.began)
    assert lab.world.now - at < 1.0
    assert lab.finish().status is DONE
