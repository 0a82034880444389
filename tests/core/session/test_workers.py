"""What the master keeps of each node."""

from dataclasses import replace

from p2ptrain.core.session.types import SessionConfig
from p2ptrain.core.session.workers import NODES_MAX, Workers
from p2ptrain.members import MemberStatus
from p2ptrain.messages.session import WorkerPhase, WorkerState
from tests.core.session.world import SESSION, member, node_id

CONFIG = SessionConfig(bar_s=3.0, bar_max_s=20.0, silent_s=4.0, patience_s=20.0)
A, B = node_id(0), node_id(1)


def state(serial: int, phase: WorkerPhase, **more: object) -> WorkerState:
    made = WorkerState(A, SESSION, 1, phase, serial=serial)
    return replace(made, **more)  # type: ignore[arg-type]


def workers() -> Workers:
    made = Workers(CONFIG)
    made.present([member(0), member(1)])
    return made


def test_an_older_state_that_comes_late_is_dropped() -> None:
    known = workers()
    known.report(1.0, state(5, WorkerPhase.READY))
    known.report(1.1, state(4, WorkerPhase.LOADING))
    known.report(1.2, state(5, WorkerPhase.LOADING))
    found = known.state(1.2, A)
    assert found is not None
    assert found.phase is WorkerPhase.READY
    assert known.known[A].at == 1.0


def test_a_clock_that_was_set_back_is_believed_after_a_silence() -> None:
    known = workers()
    known.report(1.0, state(5, WorkerPhase.READY))
    known.report(5.1, state(2, WorkerPhase.LOADING))
    assert known.known[A].state.serial == 2


def test_a_state_is_stale_after_a_silence() -> None:
    known = workers()
    known.report(1.0, state(1, WorkerPhase.READY))
    assert known.state(5.0, A) is not None
    assert known.state(5.1, A) is None


def test_speeds_outlive_the_view_that_they_were_measured_in() -> None:
    known = workers()
    known.report(1.0, state(1, WorkerPhase.RUNNING, samples=50, compute_s=2.0))
    known.report(2.0, state(2, WorkerPhase.RUNNING))
    assert known.speeds == {A: 25.0}


def test_bars_grow_up_to_a_bound_and_are_forgiven() -> None:
    known = workers()
    now, pauses = 0.0, []
    for _ in range(5):
        known.bar(now, A, "why")
        began = now
        while known.why_barred(now, A):
            now += 0.5
        pauses.append(now - began)
    assert pauses == [3.0, 6.0, 12.0, 20.0, 20.0]
    known.bar(now + 21.0, A, "why")
    assert known.why_barred(now + 23.9, A) == "why"
    assert not known.why_barred(now + 24.0, A)


def test_who_was_started_again_is_not_barred_any_more() -> None:
    known = workers()
    known.bar(0.0, A, "why")
    known.bar(0.0, B, "why")
    assert known.candidates(1.0) == []
    known.present([member(0, incarnation=2), member(1)])
    assert known.candidates(1.0) == [A]


def test_only_those_who_live_and_train_are_candidates() -> None:
    known = workers()
    suspect = replace(member(2), status=MemberStatus.SUSPECT)
    known.present([member(0), member(1, trains=False), suspect])
    assert known.candidates(0.0) == [A]
    assert not known.is_gone(node_id(2))
    assert not known.is_alive(node_id(2))
    assert known.is_gone(node_id(3))


def test_a_decline_counts_once() -> None:
    known = workers()
    known.report(1.0, state(1, WorkerPhase.DECLINED))
    assert known.has_declined(A)
    known.bar(1.0, A, "why")
    known.report(2.0, state(2, WorkerPhase.DECLINED))
    assert not known.has_declined(A)
    known.report(3.0, state(3, WorkerPhase.FETCHING))
    known.report(4.0, state(4, WorkerPhase.DECLINED))
    assert known.has_declined(A)


def test_patience_with_one_that_gets_ready_depends_on_progress() -> None:
    known = workers()
    assert known.is_getting_ready(0.0, A)  # just asked
    assert not known.is_getting_ready(4.0, A)  # never answered
    known.report(5.0, state(1, WorkerPhase.FETCHING, fetched_bytes=1))
    assert known.is_getting_ready(24.0, A)
    known.report(24.5, state(2, WorkerPhase.FETCHING, fetched_bytes=2))
    assert known.is_getting_ready(44.0, A)
    known.report(44.0, state(3, WorkerPhase.FETCHING, fetched_bytes=2))
    assert not known.is_getting_ready(44.5, A)


def test_states_of_nodes_are_bounded() -> None:
    known = workers()
    for index in range(NODES_MAX + 10):
        one = WorkerState(node_id(index), SESSION, 1, WorkerPhase.READY, serial=1)
        known.report(0.0, one)
    assert len(known.known) == NODES_MAX


def test_names_are_for_people() -> None:
    assert workers().names([A, B, node_id(255)]) == f"'a', 'b', {node_id(255)[:8]!r}"
