"""The worker actor with trainers, record, post and blobs in memory.

On the real clock: folders are made in threads, which a virtual clock would outrun.
"""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import trio

from p2ptrain.actors.worker import TrainerSettings, WorkerActor, WorkerPorts
from p2ptrain.actors.worker.actor import Internal
from p2ptrain.core.worker import FromProcess
from p2ptrain.errors import P2PTrainError, StorageError, UnreachableError
from p2ptrain.ids import Digest, NodeId, SessionId, session_of
from p2ptrain.messages.asks import ParityAnswer, ParityAsk, ParityLine
from p2ptrain.messages.record import BlobRef
from p2ptrain.messages.session import (
    Halt,
    Prepare,
    Release,
    RingSeat,
    Run,
    Snapshot,
    StateRef,
    WorkerPhase,
    WorkerState,
)
from p2ptrain.messages.trainer import (
    CheckParity,
    Fault,
    HaltView,
    Load,
    Loaded,
    ParityDone,
    RunView,
    StateWritten,
    ViewEnded,
    WriteSnapshot,
)
from p2ptrain.runtime.inbox import Mail, Reply
from tests.actors.fakes import (
    ME,
    PEER,
    FakeBlobs,
    FakeCourier,
    FakeEngine,
    FakeLog,
    FakePost,
    eventually,
)

SESSION = session_of("key")
OTHER = session_of("other key")
P = WorkerPhase
D0 = Digest("0" * 64)


def loaded(port: int = 7000) -> Loaded:
    return Loaded("cpu", "it is alone", ("cpu",), ("cpu",), port, 0, 9, 1, D0, (), 0.1)


class Kit:
    """An actor, and all that surrounds it."""

    def __init__(self, folder: Path) -> None:
        self.work = folder / "work"
        self.log, self.post = FakeLog(PEER), FakePost()
        self.blobs, self.engine = FakeBlobs(folder), FakeEngine()
        self.courier = FakeCourier(self.blobs)
        self.spec, self.data = self.blobs.add(b"spec"), self.blobs.add(b"data")
        self.settings = TrainerSettings(
            name="a", workdir=self.work, roots=("/data",), threads=2, host="127.0.0.1",
            advertise="host", ports=(0, 0), tls=None, stall_s=3.0,
        )  # fmt: skip
        ports = WorkerPorts(
            self.post, self.log, self.blobs, self.courier, self.engine
        )  # fmt: skip
        self.actor = WorkerActor(ports, self.settings)

    def order(self, order: object, sender: NodeId = PEER) -> None:
        assert self.actor.inbox.ref.offer(Mail(sender, order))

    def prepare(self, session: SessionId = SESSION, view: int = 1) -> None:
        blobs = (self.data,)
        self.order(Prepare(1, session, view, self.spec, blobs, (PEER,)))

    def run(self, state: StateRef | None = None, session: SessionId = SESSION) -> None:
        step = state.step if state else 0
        seats = (RingSeat(ME, 1, "host:7000"),)
        self.order(Run(1, session, 1, seats, step, state, (PEER,) if state else ()))

    @property
    def last(self) -> WorkerState:
        """The state that was reported last."""
        return [m for _, m in self.post.sent if isinstance(m, WorkerState)][-1]

    async def until(
        self, phase: WorkerPhase, session: SessionId = SESSION
    ) -> WorkerState:
        """Wait for the report of a phase."""
        count = 0
        while True:
            count += 1
            await self.post.until_sent(WorkerState, count)
            for to, state in self.post.sent:
                assert to == PEER
                if state.session == session and state.phase is phase:
                    return state


@pytest.fixture
async def kit(tmp_path: Path) -> AsyncIterator[Kit]:
    made = Kit(tmp_path)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(made.actor.run)
        yield made
        nursery.cancel_scope.cancel()


async def test_a_session_from_prepare_to_release(kit: Kit) -> None:
    kit.prepare()
    trainer = await kit.engine.until_started()
    load = await trainer.until_heard(Load)
    assert load.session == SESSION
    assert load.workdir == str(trainer.workdir)
    assert load.spec_path.endswith(kit.spec.digest)
    assert set(load.files) == {kit.spec.digest, kit.data.digest}
    assert (load.node, load.name, load.threads) == (ME, "a", 2)
    assert trainer.workdir.is_dir()
    trainer.say(loaded())
    ready = await kit.until(P.READY)
    assert ready.ring == "host:7000"
    kit.run()
    run = await trainer.until_heard(RunView)
    assert run.state_path == ""
    kit.order(Halt(1, SESSION, 1, "why", drain=True))
    assert (await trainer.until_heard(HaltView)).drain
    trainer.say(ViewEnded(1, 3, D0, "halted", ""))
    await kit.until(P.ENDED)
    kit.order(Release(1, SESSION, "over"))
    await eventually(lambda: not trainer.workdir.exists())
    assert trainer.closed


async def test_a_state_is_named_by_its_file(kit: Kit) -> None:
    kit.prepare()
    trainer = await kit.engine.until_started()
    trainer.say(loaded())
    await kit.until(P.READY)
    data = b"state"
    blob = BlobRef(FakeBlobs().add(data).digest, len(data))
    kit.courier.elsewhere[blob.digest] = data
    kit.run(StateRef(5, blob, Digest("5" * 64)))
    run = await trainer.until_heard(RunView)
    assert run.state_path.endswith(blob.digest)
    assert kit.courier.fetched[-1] == ((blob,), (PEER,))


async def test_files_of_a_trainer_become_blobs(kit: Kit) -> None:
    kit.prepare()
    trainer = await kit.engine.until_started()
    trainer.say(loaded())
    await kit.until(P.READY)
    kit.order(Snapshot(1, SESSION, 1))
    await trainer.until_heard(WriteSnapshot)
    trainer.say(StateWritten(-1, "snapshot", 0, 0, "/w/snapshot", D0))
    await eventually(lambda: kit.last.snapshot is not None)
    assert kit.blobs.adopted == [("/w/snapshot", "snapshot-0")]


async def test_a_full_disk_is_one_sentence(kit: Kit) -> None:
    kit.prepare()
    trainer = await kit.engine.until_started()
    trainer.say(loaded())
    await kit.until(P.READY)
    kit.blobs.full = True
    trainer.say(StateWritten(-1, "snapshot", 0, 0, "/w/snapshot", D0))
    state = await kit.until(P.DECLINED)
    assert state.reason == "node 'a': cannot store /w/snapshot: the disk is full"
    assert state.of_node
    await eventually(lambda: trainer.closed)


@pytest.mark.parametrize(
    ("error", "step"), [(UnreachableError("b is gone"), 0), (StorageError("full"), -1)]
)
async def test_a_state_that_cannot_be_had(
    kit: Kit, error: P2PTrainError, step: int
) -> None:
    kit.prepare()
    trainer = await kit.engine.until_started()
    trainer.say(loaded())
    await kit.until(P.READY)
    kit.courier.fails = error
    kit.run(StateRef(5, BlobRef(Digest("7" * 64), 1), Digest("5" * 64)))
    state = await kit.until(P.ENDED if step == 0 else P.DECLINED)
    assert state.step == step
    assert state.reason == f"node 'a': {error}"


async def test_what_cannot_be_fetched_declines(kit: Kit) -> None:
    kit.courier.fails = UnreachableError("no source has it")
    kit.prepare()
    state = await kit.until(P.DECLINED)
    assert state.reason == "node 'a': no source has it"
    assert kit.engine.trainers == []


async def test_a_trainer_that_cannot_start_declines(kit: Kit) -> None:
    kit.engine.fails = StorageError("no room for its folder")
    kit.prepare()
    state = await kit.until(P.DECLINED)
    assert state.reason == "node 'a': no room for its folder"
    assert state.of_node


async def test_a_trainer_that_dies_is_replaced_in_another_folder(kit: Kit) -> None:
    kit.prepare()
    first = await kit.engine.until_started()
    first.say(loaded())
    await kit.until(P.READY)
    first.say(Fault("killed by signal 9", of_node=True))
    await kit.until(P.DECLINED)
    kit.prepare(view=2)
    second = await kit.engine.until_started(2)
    assert second.workdir != first.workdir
    second.say(loaded(7001))
    await eventually(lambda: kit.last.ring == "host:7001")


async def test_two_sessions_do_not_meet(kit: Kit) -> None:
    kit.prepare()
    kit.prepare(OTHER)
    await kit.engine.until_started(2)
    by_session = {t.workdir.parent.name: t for t in kit.engine.trainers}
    assert set(by_session) == {SESSION, OTHER}
    by_session[OTHER].say(Fault("this job is wrong"))
    by_session[SESSION].say(loaded())
    assert (await kit.until(P.DECLINED, OTHER)).reason == "this job is wrong"
    assert (await kit.until(P.READY)).reason == "it is alone"
    kit.order(Release(1, OTHER, "over"))
    await eventually(lambda: by_session[OTHER].closed)
    assert not by_session[SESSION].closed


async def test_a_session_that_was_released_may_come_again(kit: Kit) -> None:
    kit.prepare()
    first = await kit.engine.until_started()
    first.say(loaded())
    await kit.until(P.READY)
    kit.order(Release(1, SESSION, "its state belongs to no view on record"))
    kit.prepare(view=2)
    second = await kit.engine.until_started(2)
    await eventually(lambda: first.closed and not first.workdir.exists())
    assert second.workdir.exists()
    late = FromProcess(Fault("a late word"))
    kit.actor.inbox.ref.offer(Internal(SESSION, late, launch=1))
    second.say(loaded(7001))
    await eventually(lambda: kit.last.ring == "host:7001")
    assert not [s for _, s in kit.post.sent if s.phase is P.DECLINED]


@pytest.mark.parametrize("name", ["../../escape", "s-xyz", "", "/etc"])
async def test_a_name_that_is_no_session_touches_nothing(kit: Kit, name: str) -> None:
    kit.prepare(SessionId(name))
    kit.prepare()
    await kit.engine.until_started()
    assert [p.name for p in kit.work.iterdir()] == [SESSION]


async def test_orders_without_a_prepare_start_nothing(kit: Kit) -> None:
    kit.order("no order at all")
    kit.order(Release(1, SESSION, "over"))
    kit.prepare(OTHER)
    await kit.engine.until_started()
    assert {s.session for _, s in kit.post.sent} == {OTHER}
    assert len(kit.engine.trainers) == 1


async def test_a_session_that_is_not_known_here_is_said_to_be(kit: Kit) -> None:
    """The master takes this process for an earlier one, which knew it."""
    for order in (kit.run, lambda: kit.order(Halt(1, SESSION, 1, "why", drain=False))):
        order()
        count = len(kit.post.sent) + 1
        await kit.post.until_sent(WorkerState, count)
        state = kit.last
        assert (state.session, state.view, state.step) == (SESSION, 0, -1)
    assert not kit.engine.trainers


async def test_reports_go_to_whoever_is_master(kit: Kit) -> None:
    kit.log.elect(None)
    kit.prepare()
    await kit.engine.until_started()
    assert kit.post.sent == []
    kit.log.elect(PEER)
    kit.order(Halt(2, SESSION, 1, "who is there?", drain=False))
    await kit.post.until_sent(WorkerState)


async def test_what_an_earlier_life_left_is_removed(tmp_path: Path) -> None:
    old = tmp_path / "work" / SESSION / "1"
    old.mkdir(parents=True)
    (old / "checkpoint").write_bytes(b"half")
    kit = Kit(tmp_path)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(kit.actor.run)
        kit.prepare(OTHER)
        await kit.engine.until_started()
        assert not old.exists()
        nursery.cancel_scope.cancel()
    assert kit.engine.trainers[0].closed


LINES = (ParityLine("cpu", "float64", "loss", 0.0, 0.0, 1.0, fault=False),)


async def parity(kit: Kit) -> ParityAnswer:
    reply: Reply[object] = Reply()
    ask = ParityAsk(kit.spec, (kit.data,), (PEER,))
    kit.actor.inbox.ref.offer(Mail(PEER, ask, reply))
    with trio.fail_after(5):
        answer = await reply.wait()
    assert isinstance(answer, ParityAnswer)
    return answer


async def test_parity_runs_in_a_process_of_its_own(
    kit: Kit, nursery: trio.Nursery
) -> None:
    async def answer() -> None:
        trainer = await kit.engine.until_started()
        frame = await trainer.until_heard(CheckParity)
        assert frame.spec_path.endswith(kit.spec.digest)
        trainer.say(ParityDone(LINES))

    nursery.start_soon(answer)
    assert await parity(kit) == ParityAnswer("", LINES)
    assert kit.engine.trainers[0].closed
    assert not kit.engine.trainers[0].workdir.exists()


async def test_parity_says_why_not(kit: Kit, nursery: trio.Nursery) -> None:
    kit.engine.fails = StorageError("no room")
    assert await parity(kit) == ParityAnswer("no room", ())
    kit.engine.fails = None

    async def answer() -> None:
        trainer = await kit.engine.until_started()
        trainer.say(Fault("no such operator"))

    nursery.start_soon(answer)
    assert await parity(kit) == ParityAnswer("no such operator", ())
