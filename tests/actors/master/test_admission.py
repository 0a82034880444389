"""What it takes for a job to be accepted."""

import pytest
import trio

from p2ptrain.actors.master.admission import Admission, at_rest, facts_of, hold_s
from p2ptrain.core.session import Facts
from p2ptrain.errors import (
    NoMasterError,
    PeerError,
    SpecError,
    UnreachableError,
)
from p2ptrain.ids import NodeId
from p2ptrain.messages.asks import HoldAnswer, HoldAsk, SubmitAnswer
from p2ptrain.messages.record import AddSession, BlobRef, SessionStatus
from p2ptrain.spec.train import SPEC_BYTES_MAX, DataRef
from tests.actors.fakes import ME, PEER, THIRD
from tests.actors.master.kit import SESSION, Kit, spec


def admission(kit: Kit) -> Admission:
    return Admission(kit.ports)


async def test_a_job_is_recorded_once_a_majority_holds_it() -> None:
    kit = Kit()
    held: list[NodeId] = []

    def answer(to: NodeId, message: object) -> HoldAnswer:
        assert isinstance(message, HoldAsk)
        assert message.blobs == (kit.spec, kit.data)
        assert message.sources == (PEER,)
        assert kit.log.commands == []
        held.append(to)
        return HoldAnswer("" if to != THIRD else "the disk is full")

    kit.post.answers = answer
    assert await admission(kit).accept(kit.submit()) == SubmitAnswer(SESSION, "")
    assert {ME, PEER} <= set(held)
    (command,) = kit.log.commands
    assert isinstance(command, AddSession)
    assert (command.submitter, command.submitted_s) == (PEER, 1000.0)
    assert (command.spec, command.blobs) == (kit.spec, (kit.data,))


async def test_a_voter_that_cannot_yet_is_asked_again() -> None:
    kit = Kit()
    kit.voters = (ME,)
    answers = iter(["later", "later", ""])
    kit.post.answers = lambda _to, _message: HoldAnswer(next(answers))
    assert (await admission(kit).accept(kit.submit())).session == SESSION


async def test_half_of_the_voters_is_no_majority(
    autojump_clock: trio.testing.MockClock,
) -> None:
    kit = Kit()
    kit.voters = (ME, PEER)
    kit.post.answers = lambda to, _: HoldAnswer("" if to == ME else "full")
    with pytest.raises(UnreachableError, match="no majority of voters"):
        await admission(kit)._have_held((kit.spec,), PEER)
    assert autojump_clock.current_time() > 0


async def test_a_key_names_one_job_for_ever() -> None:
    kit = Kit()
    await admission(kit).accept(kit.submit())
    other = kit.blobs.add(b"another spec")
    answer = await admission(kit).accept(kit.submit(blob=other))
    assert answer.session == ""
    assert "named another job before" in answer.refusal


async def test_a_spec_comes_from_its_holder_or_from_anyone() -> None:
    kit = Kit()
    data = kit.blobs.held.pop(kit.spec.digest)
    kit.courier.elsewhere[kit.spec.digest] = data
    assert await admission(kit).spec(kit.spec, (THIRD,)) == spec()
    assert kit.courier.fetched == [((kit.spec,), (THIRD, ME, PEER))]


async def test_a_huge_spec_is_not_even_fetched() -> None:
    kit = Kit()
    huge = BlobRef(kit.spec.digest, SPEC_BYTES_MAX + 1)
    with pytest.raises(SpecError, match="bytes"):
        await admission(kit).spec(huge, (PEER,))
    assert kit.courier.fetched == []


async def test_bytes_that_are_no_spec_are_refused() -> None:
    kit = Kit()
    with pytest.raises(PeerError):
        await admission(kit).spec(kit.blobs.add(b"\xff\x00"), (PEER,))


async def test_only_the_master_accepts() -> None:
    kit = Kit()
    kit.log.elect(PEER)
    with pytest.raises(NoMasterError):
        await admission(kit).accept(kit.submit())
    assert kit.post.asked == []


def test_facts_count_all_shards_of_one_input() -> None:
    shards = tuple(
        DataRef("x", "file:///x.npy", 3, start, 5, "float32", (3,))
        for start in (0, 5, 10)
    )
    job = spec(data=shards, global_batch=8)
    assert facts_of(job) == Facts(parts=2, steps=4, epochs=2, step_samples=8)


def test_large_blobs_may_take_longer() -> None:
    small, large = BlobRef(SESSION, 10), BlobRef(SESSION, 10**9)  # type: ignore[arg-type]
    assert 60 <= hold_s((small,)) < 61
    assert hold_s((large, large)) == 60 + 2000


def test_a_session_that_nobody_leads_has_figures_of_the_record() -> None:
    assert not at_rest(None).known
    kit = Kit()
    kit.record()
    live = at_rest(kit.log.registry.sessions[SESSION])
    assert (live.known, live.status, live.view) == (True, SessionStatus.QUEUED, 0)
