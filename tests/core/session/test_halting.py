"""How views end: who is waited for, and for how long."""

from p2ptrain.messages.record import SessionStatus
from p2ptrain.messages.session import Halt
from tests.core.session.world import FINAL, Lab, Plan, node_id

DONE = SessionStatus.DONE


def halts(lab: Lab, index: int) -> list[Halt]:
    return [order for order in lab.nodes[index].orders if isinstance(order, Halt)]


def test_a_frozen_trainer_is_left_out_and_does_not_come_back_at_once() -> None:
    lab = Lab(Plan(nodes=3, steps=200))
    lab.until_step(10)
    at = lab.world.now
    trainer = lab.nodes[1].trainer
    assert trainer is not None
    trainer.frozen = True  # its daemon answers, it does not
    lab.until(lambda: len(lab.views) > 1 and 2 in lab.began)
    assert lab.world.now - at < 5.0
    assert set(lab.seats()) == {"a", "c"}
    assert lab.finish().status is DONE
    assert lab.gap(at) < 5.0


def test_a_frozen_daemon_is_left_out() -> None:
    lab = Lab(Plan(nodes=3, steps=200))
    lab.until_step(10)
    at = lab.world.now
    node = lab.nodes[1]
    trainer = node.trainer
    assert trainer is not None
    trainer.frozen = True
    node.up = False
    lab.until(lambda: len(lab.views) > 1 and 2 in lab.began)
    assert lab.world.now - at < 5.0
    assert lab.finish().status is DONE


def test_one_that_answers_but_computes_on_is_waited_for() -> None:
    lab = Lab(Plan(nodes=3))
    lab.until_step(10)
    lab.slow_end[node_id(1)] = 1.0  # a long computation before it sees the halt
    lab.kill(2)
    lab.until(lambda: len(lab.views) > 1)
    assert set(lab.seats()) == {"a", "b"}
    assert lab.finish().status is DONE


def test_a_drain_waits_for_the_step_boundary_and_breaks_nothing() -> None:
    lab = Lab(Plan(nodes=2, parts=4, step_s=2.0, steps=6, epochs=1))
    lab.until_step(1)
    lab.run(0.5)
    lab.stop()
    lab.run(1.0)
    assert lab.row.status is SessionStatus.RUNNING
    assert {order.drain for order in halts(lab, 0)} == {True}
    lab.until(lambda: lab.row.status in FINAL)
    assert lab.row.step == 2


def test_a_drain_without_a_boundary_becomes_a_halt() -> None:
    lab = Lab(Plan(nodes=2, steps=1000))
    lab.until_step(10)
    for node in lab.nodes:
        assert node.trainer is not None
        node.trainer.ignores_drain = True
    lab.stop()
    lab.run(15.0)
    assert {order.drain for order in halts(lab, 0)} == {True}
    lab.until(lambda: lab.row.status in FINAL)
    assert lab.row.status is SessionStatus.STOPPED
    assert halts(lab, 0)[-1].drain is False


def test_halts_of_an_old_view_or_term_change_nothing() -> None:
    lab = Lab(Plan(steps=200))
    lab.until_step(10)
    session = lab.row.submission.session
    node = lab.nodes[1]
    node.order(Halt(0, session, 1, "an old term", drain=False))
    node.order(Halt(lab.term, session, 0, "an old view", drain=False))
    assert lab.finish().status is DONE
    assert len(lab.views) == 1


def test_a_trainer_that_hangs_for_good_is_replaced() -> None:
    lab = Lab(Plan(nodes=1))
    lab.until_step(10)
    lab.rings[1].over = True  # it neither steps nor obeys any more
    lab.until(lambda: len(lab.views) > 1 and 2 in lab.began)
    reasons = {reason for _, reason in lab.statuses}
    assert "no node can train now: the trainer hangs and was ended" in reasons
    assert lab.finish().status is DONE
