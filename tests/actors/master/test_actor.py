"""The master actor: leads while it is master, answers, and takes over.

On the real clock: specs are checked in threads, which a virtual clock would outrun.
"""

from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
import trio

from p2ptrain.errors import NoMasterError
from p2ptrain.ids import SessionId
from p2ptrain.members import MemberStatus
from p2ptrain.messages.asks import (
    HoldAnswer,
    LiveAnswer,
    LiveAsk,
    StopAnswer,
    StopAsk,
    SubmitAnswer,
)
from p2ptrain.messages.record import CommitView, SessionStatus, SetStatus
from p2ptrain.messages.session import Halt, Prepare, Release, Run, WorkerPhase
from p2ptrain.spec.train import spec_bytes
from tests.actors.fakes import ME, PEER, eventually, member
from tests.actors.master.kit import KEY, SESSION, Kit, ready, spec


@pytest.fixture
async def kit() -> AsyncIterator[Kit]:
    made = Kit()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(made.actor.run)
        yield made
        nursery.cancel_scope.cancel()


def status(kit: Kit) -> SessionStatus:
    return kit.log.registry.sessions[SESSION].status


async def begin(kit: Kit) -> None:
    """Submit a job and bring it to its first view."""
    answer = await kit.ask(kit.submit(), SubmitAnswer)
    assert answer == SubmitAnswer(SESSION, "")
    await kit.post.until_sent(Prepare, 2)
    kit.tell(ready(ME, 1), ME)
    kit.tell(ready(PEER, 1))
    await kit.post.until_sent(Run)


async def test_a_job_goes_from_submission_to_its_first_view(kit: Kit) -> None:
    await begin(kit)
    prepared = {to: m for to, m in kit.post.sent if isinstance(m, Prepare)}
    assert set(prepared) == {ME, PEER}
    assert prepared[PEER].spec == kit.spec
    assert prepared[PEER].blobs == (kit.data,)
    view = kit.log.registry.sessions[SESSION].views[-1]
    assert {seat.node for seat in view.seats} == {ME}  # one part, one rank
    assert view.term == kit.log.term


async def test_a_job_submitted_twice_is_one_session(kit: Kit) -> None:
    first = await kit.ask(kit.submit(), SubmitAnswer)
    asked = len(kit.post.asked)
    second = await kit.ask(kit.submit(), SubmitAnswer)
    assert first == second == SubmitAnswer(SESSION, "")
    assert len(kit.log.registry.sessions) == 1
    assert len(kit.post.asked) == asked  # what is accepted is held already


async def test_a_job_that_is_not_valid_is_refused_with_field_and_value(
    kit: Kit,
) -> None:
    wrong = kit.blobs.add(spec_bytes(spec(lr_per_epoch=())), "spec")
    answer = await kit.ask(kit.submit(blob=wrong), SubmitAnswer)
    assert answer.session == ""
    assert "lr_per_epoch" in answer.refusal
    assert kit.log.registry.sessions == {}


async def test_who_is_not_master_refuses_everybody(kit: Kit) -> None:
    kit.log.elect(PEER)
    for message in (kit.submit(), StopAsk(SESSION), LiveAsk(SESSION)):
        with pytest.raises(NoMasterError):
            await kit.ask(message, object)
    assert kit.log.commands == []


async def test_a_new_master_leads_what_is_on_record(kit: Kit) -> None:
    kit.log.elect(PEER)
    kit.record()
    await trio.testing.wait_all_tasks_blocked()
    assert kit.post.sent == []
    kit.log.elect(ME)
    order = await kit.post.until_sent(Prepare)
    assert order.term == kit.log.term


async def test_a_master_that_is_replaced_orders_nothing_more(kit: Kit) -> None:
    await begin(kit)
    kit.log.elect(PEER)
    await trio.testing.wait_all_tasks_blocked()
    kit.post.sent.clear()
    kit.tell(replace(ready(ME, 2), phase=WorkerPhase.ENDED), ME)
    await trio.sleep(0.3)  # three ticks of a core, if there were one
    assert kit.post.sent == []


async def test_a_state_in_anothers_name_changes_nothing(kit: Kit) -> None:
    await kit.ask(kit.submit(), SubmitAnswer)
    await kit.post.until_sent(Prepare)
    kit.tell(ready(PEER, 1))
    kit.tell(ready(ME, 1), PEER)
    await trio.sleep(0.3)  # a core acts ten times a second
    assert not [c for c in kit.log.commands if isinstance(c, CommitView)]


async def test_a_stop_ends_the_session(kit: Kit) -> None:
    await begin(kit)
    kit.tell(replace(ready(ME, 2), phase=WorkerPhase.RUNNING, step=2), ME)
    assert await kit.ask(StopAsk(SESSION), StopAnswer) == StopAnswer("")
    halt = await kit.post.until_sent(Halt)
    assert halt.drain
    ended = replace(ready(ME, 3), phase=WorkerPhase.ENDED, step=3)
    kit.tell(ended, ME)
    await eventually(lambda: status(kit) is SessionStatus.STOPPED)
    assert await kit.ask(StopAsk(SESSION), StopAnswer) == StopAnswer("")
    release = await kit.post.until_sent(Release)
    assert release.reason == "stopped at step 3"


async def test_a_stop_before_the_spec_was_read_is_not_forgotten(kit: Kit) -> None:
    kit.log.elect(PEER)
    kit.record()
    await trio.testing.wait_all_tasks_blocked()
    kit.log.elect(ME)
    assert await kit.ask(StopAsk(SESSION), StopAnswer) == StopAnswer("")
    await eventually(lambda: status(kit) is SessionStatus.STOPPED)


async def test_a_stop_of_nothing_or_of_what_is_over_is_refused(kit: Kit) -> None:
    unknown = SessionId("s-000000000000")
    answer = await kit.ask(StopAsk(unknown), StopAnswer)
    assert answer.refusal == "no session 's-000000000000' is on record"
    kit.record()
    failed = SetStatus(SESSION, 1, SessionStatus.FAILED, "why", 0)
    kit.log.apply(failed)
    answer = await kit.ask(StopAsk(SESSION), StopAnswer)
    assert answer.refusal == f"{SESSION} is failed already"


async def test_live_figures_of_a_session_that_runs(kit: Kit) -> None:
    await begin(kit)
    running = replace(
        ready(ME, 2), phase=WorkerPhase.RUNNING, step=2, losses=(0.5, 0.25)
    )
    kit.tell(running, ME)
    live = await kit.ask(LiveAsk(SESSION), LiveAnswer)
    assert (live.known, live.status) == (True, SessionStatus.RUNNING)
    assert (live.step, live.steps, live.epochs) == (2, 5, 2)
    assert (live.losses_from, live.losses) == (0, (0.5, 0.25))
    assert {line.node for line in live.workers} == {ME, PEER}


async def test_live_figures_of_what_is_unknown_or_over(kit: Kit) -> None:
    live = await kit.ask(LiveAsk(SessionId("s-000000000000")), LiveAnswer)
    assert not live.known
    kit.record()
    kit.log.apply(SetStatus(SESSION, 1, SessionStatus.FAILED, "why", 7))
    live = await kit.ask(LiveAsk(SESSION), LiveAnswer)
    assert (live.known, live.status, live.reason, live.step) == (
        True, SessionStatus.FAILED, "why", 7,
    )  # fmt: skip


async def test_a_worker_of_a_session_that_is_over_is_let_go(kit: Kit) -> None:
    kit.record()
    kit.log.apply(SetStatus(SESSION, 1, SessionStatus.FAILED, "why", 7))
    kit.tell(ready(PEER, 1))
    release = await kit.post.until_sent(Release)
    assert (release.session, release.reason) == (SESSION, "why")


async def test_a_worker_of_an_unknown_session_is_left_alone(kit: Kit) -> None:
    kit.tell(ready(PEER, 1))  # this record may lag behind
    await kit.ask(LiveAsk(SESSION), LiveAnswer)
    assert kit.post.sent == []


async def test_a_recorded_job_whose_spec_is_wrong_fails(kit: Kit) -> None:
    kit.record(blob=kit.blobs.add(spec_bytes(spec(batch=0)), "spec"))
    await eventually(lambda: status(kit) is SessionStatus.FAILED)
    assert "batch" in kit.log.registry.sessions[SESSION].reason


async def test_a_spec_out_of_reach_is_looked_for_again(kit: Kit) -> None:
    data = kit.blobs.held.pop(kit.spec.digest)
    kit.record()
    await eventually(lambda: len(kit.courier.fetched) == 1)
    kit.courier.elsewhere[kit.spec.digest] = data
    await kit.post.until_sent(Prepare)
    assert status(kit) is SessionStatus.QUEUED
    assert kit.courier.fetched[0][1] == (PEER, ME)


async def test_a_member_that_dies_is_seen_by_the_session(kit: Kit) -> None:
    await begin(kit)
    kit.roster.set(member(ME, MemberStatus.DEAD), member(PEER))
    kit.tell(ready(PEER, 2))
    await eventually(lambda: len(kit.log.registry.sessions[SESSION].views) == 2)
    seats = kit.log.registry.sessions[SESSION].views[-1].seats
    assert [seat.node for seat in seats] == [PEER]


async def test_two_sessions_are_led_apart(kit: Kit) -> None:
    await begin(kit)
    other = kit.record("other key")
    await eventually(
        lambda: any(
            isinstance(m, Prepare) and m.session == other for _, m in kit.post.sent
        )
    )
    kit.tell(ready(PEER, 1, other))
    kit.tell(ready(ME, 1, other), ME)
    await eventually(lambda: bool(kit.log.registry.sessions[other].views))
    assert len(kit.log.registry.sessions[SESSION].views) == 1
    assert kit.submit().key == KEY


async def test_no_majority_is_a_refusal(kit: Kit) -> None:
    kit.post.answers = lambda to, _: HoldAnswer("" if to == ME else "the disk is full")
    answer = await kit.ask(kit.submit(), SubmitAnswer)
    assert answer.refusal == ("no majority of voters holds the job: the disk is full")
    assert kit.log.commands == []
