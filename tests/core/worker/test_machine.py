"""A worker obeys orders once, and only those that are in force."""

from dataclasses import replace

import pytest

from p2ptrain.core.worker import (
    EndTrainer,
    Fetch,
    Fetched,
    Fetching,
    Forget,
    Launch,
    Tell,
)
from p2ptrain.ids import session_of
from p2ptrain.messages.session import (
    Prepare,
    Release,
    RingSeat,
    Snapshot,
    StateRef,
    WorkerPhase,
)
from p2ptrain.messages.trainer import Fault, HaltView, RunView, WriteSnapshot
from tests.core.worker.kit import (
    D5,
    D6,
    DATA,
    ME,
    OTHER,
    SESSION,
    SPEC,
    STATE,
    Kit,
    ended,
    halt,
    loaded,
    prepare,
    ready,
    run,
    running,
    seat,
    steps,
)

P = WorkerPhase
AHEAD = StateRef(6, STATE, D6)


def test_prepare_fetches_then_launches_then_is_ready() -> None:
    kit = Kit()
    assert kit.order(prepare()) == [Fetch("prepare", (SPEC, DATA), (OTHER,))]
    assert (kit.state.phase, kit.state.total_bytes) == (P.FETCHING, 300)
    kit.do(Fetching(150, 300))
    assert kit.state.fetched_bytes == 150
    assert kit.do(Fetched("prepare", "")) == [Launch(SPEC, (DATA,))]
    assert kit.state.phase is P.LOADING
    assert kit.hear(loaded()) == []
    state = kit.state
    assert (state.phase, state.step, state.ring) == (P.READY, 0, "host:7000")
    assert (state.device, state.reason) == ("cuda:0", "the fastest")
    assert state.data_digests == ("d" * 64,)


def test_an_address_of_six_groups_stands_in_brackets() -> None:
    kit = Kit("fe80::1")
    kit.order(prepare())
    kit.do(Fetched("prepare", ""))
    kit.hear(loaded())
    assert kit.state.ring == "[fe80::1]:7000"


@pytest.mark.parametrize("view", [1, 2])
def test_a_repeated_prepare_does_nothing(view: int) -> None:
    kit = Kit()
    kit.order(prepare())
    assert kit.order(prepare(view)) == []
    assert kit.state.view == view
    kit.do(Fetched("prepare", ""))
    assert kit.order(prepare(view)) == []
    kit.hear(loaded())
    assert kit.order(prepare(view), prepare(view + 5)) == []
    assert (kit.state.phase, kit.state.view) == (P.READY, view)


def test_run_tells_the_trainer_its_rank_once() -> None:
    kit = ready()
    assert kit.order(run()) == [
        Tell(RunView(1, 1, (seat(OTHER), seat(ME, 2)), 0, ""), None)
    ]
    assert kit.state.phase is P.RUNNING
    assert kit.order(run(), run()) == []


def test_orders_for_another_session_or_of_an_old_term_change_nothing() -> None:
    kit = running()
    other = Release(9, session_of("other"), "over")
    assert kit.order(other, Release(0, SESSION, "over"), halt(term=0)) == []
    kit.order(halt(view=7, term=5))  # a newer master speaks
    assert kit.order(halt(term=4), Release(4, SESSION, "over")) == []
    assert kit.state.phase is P.RUNNING


def test_orders_before_anything_is_loaded_change_nothing() -> None:
    kit = Kit()
    assert kit.order(run(), halt(), Snapshot(1, SESSION, 1)) == []
    kit.order(prepare())
    assert kit.order(run()) == []
    assert kit.state.phase is P.FETCHING


def test_a_run_of_a_view_that_is_over_changes_nothing() -> None:
    kit = running()
    kit.hear(ended())
    kit.order(run(2, first_step=5))
    kit.hear(ended(2, 7))
    assert kit.order(run(1), run(2, first_step=5)) == []
    assert kit.state.phase is P.ENDED


def test_a_run_from_before_it_was_prepared_changes_nothing() -> None:
    kit = Kit()
    kit.order(prepare(3))
    kit.do(Fetched("prepare", ""))
    kit.hear(loaded())
    assert kit.order(run(2)) == []
    assert kit.state.phase is P.READY


def test_a_run_without_a_seat_for_this_node_is_declined() -> None:
    kit = ready()
    effects = kit.order(run(seats=(RingSeat(OTHER, 1, "b:1"),)))
    assert effects == [EndTrainer()]
    assert kit.state.phase is P.DECLINED


def test_a_run_of_the_next_view_ends_the_one_that_runs() -> None:
    kit = running()
    (tell,) = kit.order(run(2))
    assert tell == Tell(HaltView(1, "the next view begins", drain=False))
    assert kit.order(run(2)) == []  # told already
    kit.hear(ended(1, 5))
    (tell,) = kit.order(run(2, first_step=5))
    assert isinstance(tell, Tell)
    assert isinstance(tell.frame, RunView)


def test_the_figures_of_a_view_begin_anew() -> None:
    kit = running()
    kit.hear(steps(), ended())
    assert kit.state.samples == 50
    kit.order(run(2, first_step=5))
    assert (kit.state.samples, kit.state.losses, kit.state.culprit) == (0, (), "")
    assert kit.state.device == "cuda:0"


# --- the state that a view begins from


def behind() -> Kit:
    kit = running()
    kit.hear(ended())
    assert kit.order(run(2, 6, AHEAD)) == [Fetch("state 2", (STATE,), (OTHER,))]
    return kit


def test_one_that_is_behind_fetches_the_state_first() -> None:
    kit = behind()
    assert kit.state.phase is P.FETCHING
    (tell,) = kit.do(Fetched("state 2", ""))
    assert isinstance(tell, Tell)
    assert tell.state == STATE
    assert kit.state.phase is P.RUNNING


def test_one_that_has_the_state_fetches_nothing() -> None:
    kit = running()
    kit.hear(ended(1, 6, D6))
    (tell,) = kit.order(run(2, 6, AHEAD))
    assert isinstance(tell, Tell)
    assert tell.state is None


def test_a_source_that_is_gone_costs_no_memory() -> None:
    kit = behind()
    assert kit.do(Fetched("state 2", "no source has it", of_source=True)) == []
    state = kit.state
    assert (state.phase, state.step, state.digest) == (P.ENDED, 5, D5)
    assert (state.culprit, state.reason) == (OTHER, "no source has it")
    assert isinstance(kit.order(run(3, first_step=5))[0], Tell)


def test_a_disk_that_is_full_declines() -> None:
    kit = behind()
    assert kit.do(Fetched("state 2", "the disk is full")) == [EndTrainer()]
    assert (kit.state.phase, kit.state.of_node) == (P.DECLINED, True)
    assert kit.state.step == -1


def test_a_halt_while_fetching_leaves_the_state_in_memory() -> None:
    kit = behind()
    assert kit.order(halt(2)) == []
    assert (kit.state.phase, kit.state.step) == (P.ENDED, 5)
    assert kit.do(Fetched("state 2", "")) == []
    assert kit.state.phase is P.ENDED


def test_a_newer_run_replaces_the_fetch() -> None:
    kit = behind()
    newer = StateRef(7, DATA, D6)
    assert kit.order(run(3, 7, newer)) == [Fetch("state 3", (DATA,), (OTHER,))]
    assert kit.do(Fetched("state 2", "")) == []  # that of the older one
    (tell,) = kit.do(Fetched("state 3", ""))
    assert isinstance(tell, Tell)
    assert tell.state == DATA


def test_prepare_does_not_disturb_a_fetch_of_state() -> None:
    kit = behind()
    assert kit.order(prepare(3)) == []
    assert kit.state.view == 2


# --- halts and snapshots


def test_a_halt_is_told_once_and_answered_always() -> None:
    kit = running()
    assert kit.order(halt(drain=True)) == [Tell(HaltView(1, "because", drain=True))]
    assert kit.reports
    assert kit.order(halt(drain=True)) == []
    assert kit.reports
    assert kit.order(halt()) == [Tell(HaltView(1, "because", drain=False))]
    kit.hear(ended())
    assert kit.order(halt()) == []
    assert kit.reports[-1].phase is P.ENDED


def test_a_trainer_that_hangs_is_ended() -> None:
    kit = running()
    kit.order(halt())
    kit.later(19.0)
    assert kit.state.phase is P.RUNNING
    assert kit.later(1.5) == [EndTrainer()]
    assert kit.state.phase is P.DECLINED
    assert kit.state.of_node


def test_a_trainer_with_long_steps_has_longer() -> None:
    kit = running()
    kit.hear(steps(count=1))  # 2 s
    kit.core.state = replace(kit.state, step_s=60.0)
    kit.order(halt())
    kit.later(200.0)
    assert kit.state.phase is P.RUNNING
    kit.later(101.0)
    assert kit.state.phase is P.DECLINED


def test_a_snapshot_is_asked_for_once_a_step() -> None:
    kit = running()
    order = Snapshot(1, SESSION, 1)
    assert kit.order(order) == []  # it runs
    kit.hear(ended())
    assert kit.order(order, order) == [Tell(WriteSnapshot())]
    assert kit.order(Snapshot(1, SESSION, 9)) == []
    kit.order(run(2, first_step=5))
    kit.hear(ended(2, 5))
    assert kit.order(Snapshot(1, SESSION, 2)) == [Tell(WriteSnapshot())]


# --- declining and coming back


def test_a_fetch_that_fails_declines_and_is_tried_again_later() -> None:
    kit = Kit()
    kit.order(prepare())
    assert kit.do(Fetched("prepare", "no source has it", of_source=True)) == []
    assert (kit.state.phase, kit.state.reason) == (P.DECLINED, "no source has it")
    assert kit.order(prepare()) == []  # too early
    kit.now += 3.1
    assert kit.order(prepare()) == [Fetch("prepare", (SPEC, DATA), (OTHER,))]
    assert (kit.state.phase, kit.state.reason) == (P.FETCHING, "")


def test_a_later_view_is_reason_enough_to_try_again_at_once() -> None:
    kit = Kit()
    kit.order(prepare())
    kit.do(Fetched("prepare", "no source has it"))
    assert isinstance(kit.order(prepare(2))[0], Fetch)


def test_a_trainer_that_dies_is_started_again() -> None:
    kit = running()
    assert kit.hear(Fault("killed by signal 9", of_node=True)) == []
    assert (kit.state.phase, kit.state.step) == (P.DECLINED, -1)
    assert kit.state.of_node
    assert isinstance(kit.order(prepare(2))[0], Fetch)
    assert kit.do(Fetched("prepare", "")) == [Launch(SPEC, (DATA,))]
    kit.hear(loaded())
    assert kit.state.phase is P.READY
    assert isinstance(kit.order(run(2, 6, AHEAD))[0], Fetch)


def test_late_words_of_a_fetch_change_nothing() -> None:
    kit = ready()
    assert kit.do(Fetched("prepare", ""), Fetched("state 1", "gone")) == []
    assert kit.state.phase is P.READY


def test_release_forgets_and_says_nothing_more() -> None:
    kit = running()
    assert kit.order(Release(1, SESSION, "done")) == [Forget()]
    assert kit.core.is_over
    assert kit.reports == []
    assert kit.later(10.0) == []
    assert kit.reports == []


# --- reports


def test_news_is_reported_at_once_and_figures_once_a_second() -> None:
    kit = Kit()
    kit.order(prepare())
    assert kit.reports[0].phase is P.FETCHING
    kit.do(Fetching(10, 300))
    assert kit.reports == []
    assert kit.core.deadline == 1.0
    kit.later(1.0)
    assert kit.reports[0].fetched_bytes == 10
    kit.do(Fetched("prepare", ""))
    kit.hear(loaded())
    kit.order(run())
    kit.hear(steps())
    assert kit.reports == []
    kit.hear(ended())
    assert kit.reports[0].phase is P.ENDED


def test_serials_rise_with_every_report() -> None:
    kit = running()
    serials = []
    for _ in range(5):
        kit.later(1.0)
        serials += [state.serial for state in kit.reports]
    kit.order(halt())
    kit.hear(ended())
    kit.order(run(2, first_step=5))
    serials += [state.serial for state in kit.reports]
    assert len(serials) == 6
    assert serials == sorted(set(serials))
    assert serials[0] > 1000


def test_a_prepare_order_names_its_blobs() -> None:
    order = Prepare(1, SESSION, 1, SPEC, (), ())
    kit = Kit()
    assert kit.order(order) == [Fetch("prepare", (SPEC,), ())]
    assert kit.state.total_bytes == SPEC.size
