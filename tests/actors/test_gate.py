"""The gate over real Unix sockets, with the client that programs use."""

import struct
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import trio

from p2ptrain.actors.gate import GateActor, GatePorts
from p2ptrain.actors.master.admission import at_rest
from p2ptrain.client import GateClient, RefusedError, connect
from p2ptrain.errors import ExitCode, NoDaemonError, UnreachableError
from p2ptrain.ids import NodeId, digest_of, session_of
from p2ptrain.messages.asks import (
    LiveAnswer,
    StopAnswer,
    SubmitAnswer,
    SubmitAsk,
)
from p2ptrain.messages.gate import (
    Done,
    GetRequest,
    Info,
    InfoRequest,
    LeaveRequest,
    LiveRequest,
    Nodes,
    NodesRequest,
    Sessions,
    SessionsRequest,
    StopRequest,
    SubmitRequest,
    Submitted,
)
from p2ptrain.messages.record import AddSession, BlobRef
from p2ptrain.node.sockets import open_gate
from p2ptrain.store.blobs import BlobStore
from tests.actors.fakes import (
    ME,
    PEER,
    FakeBlobs,
    FakeCourier,
    FakeLog,
    FakePost,
    FakeRoster,
)

pytestmark = pytest.mark.net
SESSION = session_of("key")
DATA = bytes(range(256)) * 9000  # more than two pieces


@dataclass
class Daemon:
    """A gate with real blobs and fake everything else."""

    folder: Path
    log: FakeLog = field(default_factory=FakeLog)
    post: FakePost = field(default_factory=FakePost)
    left: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.path = self.folder / "gate.sock"
        self.blobs = BlobStore(self.folder)
        self.courier = FakeCourier(FakeBlobs())

    async def leave(self) -> None:
        self.left.append("left")

    async def start(self, nursery: trio.Nursery) -> None:
        ports = GatePorts(
            log=self.log,
            roster=FakeRoster(),
            post=self.post,
            blobs=self.blobs,
            courier=self.courier,
            voters=lambda: (ME,),
            cluster=lambda: "c1",
            leave=self.leave,
        )
        nursery.start_soon(GateActor(ports, "1.2").run, await open_gate(self.path))


@pytest.fixture
async def daemon(tmp_path: Path, nursery: trio.Nursery) -> Daemon:
    made = Daemon(tmp_path)
    await made.start(nursery)
    return made


@pytest.fixture
async def gate(daemon: Daemon) -> AsyncIterator[GateClient]:
    async with connect(daemon.path) as client:
        yield client


async def test_it_says_who_and_where(gate: GateClient) -> None:
    info = await gate.ask(InfoRequest(), Info)
    assert (info.node, info.version, info.cluster, info.master) == (ME, "1.2", "c1", ME)
    nodes = await gate.ask(NodesRequest(), Nodes)
    assert {member.node for member in nodes.members} == {ME, PEER}


async def test_a_blob_goes_in_and_comes_out(
    gate: GateClient, daemon: Daemon, tmp_path: Path
) -> None:
    (tmp_path / "file").write_bytes(DATA)
    blob = BlobRef(digest_of(DATA), len(DATA), "file")
    told: list[int] = []
    await gate.put(blob, tmp_path / "file", told.append)
    assert sum(told) == len(DATA)
    path = await daemon.blobs.path(blob.digest)
    assert path is not None
    assert path.read_bytes() == DATA
    pieces = [piece async for piece in gate.get(GetRequest(blob, ()))]
    assert b"".join(pieces) == DATA
    told.clear()
    await gate.put(blob, tmp_path / "file", told.append)
    assert told == [len(DATA)]


async def test_a_put_goes_on_where_it_broke(
    gate: GateClient, daemon: Daemon, tmp_path: Path
) -> None:
    (tmp_path / "file").write_bytes(DATA)
    blob = BlobRef(digest_of(DATA), len(DATA), "file")
    await daemon.blobs.partial(blob)
    await daemon.blobs.append(blob, 0, DATA[:1000])
    told: list[int] = []
    await gate.put(blob, tmp_path / "file", told.append)
    assert sum(told) == len(DATA) - 1000
    assert await daemon.blobs.path(blob.digest) is not None


async def test_bytes_that_are_not_the_blob_are_refused(
    gate: GateClient, daemon: Daemon, tmp_path: Path
) -> None:
    (tmp_path / "file").write_bytes(b"other bytes")
    blob = BlobRef(digest_of(b"these bytes"), 11, "file")
    with pytest.raises((RefusedError, NoDaemonError)):
        await gate.put(blob, tmp_path / "file", lambda _: None)
    assert await daemon.blobs.path(blob.digest) is None


async def test_a_submission_goes_to_the_master(
    gate: GateClient, daemon: Daemon
) -> None:
    spec = BlobRef(digest_of(b"spec"), 4, "spec")

    def answer(_to: NodeId, message: object) -> object:
        assert isinstance(message, SubmitAsk)
        assert message.holder == ME
        added = AddSession(SESSION, "key", "job", spec, (), ME, 1.0)
        daemon.log.apply(added)
        return SubmitAnswer(SESSION, "")

    daemon.post.answers = answer
    submitted = await gate.ask(SubmitRequest("key", "job", spec, ()), Submitted)
    assert submitted.session == SESSION
    listed = await gate.ask(SessionsRequest(""), Sessions)
    assert [line.session for line in listed.lines] == [SESSION]


async def test_a_refusal_has_its_sentence_and_code(
    gate: GateClient, daemon: Daemon
) -> None:
    spec = BlobRef(digest_of(b"spec"), 4, "spec")
    daemon.post.answers = lambda *_: SubmitAnswer("", "batch: 0 is no batch")
    with pytest.raises(RefusedError, match="batch: 0 is no batch") as caught:
        await gate.ask(SubmitRequest("key", "job", spec, ()), Submitted)
    assert caught.value.exit_code is ExitCode.FAILED
    daemon.post.answers = lambda *_: StopAnswer("no session is on record")
    with pytest.raises(RefusedError) as caught:
        await gate.ask(StopRequest(SESSION), Done)
    assert caught.value.exit_code is ExitCode.NOT_FOUND
    with pytest.raises(RefusedError) as caught:
        await gate.ask(SessionsRequest(SESSION), Sessions)
    assert caught.value.exit_code is ExitCode.NOT_FOUND


async def test_a_new_master_is_asked_when_one_falls(
    gate: GateClient, daemon: Daemon
) -> None:
    asked: list[NodeId] = []

    def answer(to: NodeId, _: object) -> object:
        asked.append(to)
        if to == PEER:
            daemon.log.elect(ME)
            raise UnreachableError("it fell")
        return StopAnswer("")

    daemon.log.elect(PEER)
    daemon.post.answers = answer
    assert await gate.ask(StopRequest(SESSION), Done) == Done()
    assert asked == [PEER, ME]


async def test_leaving_is_answered_before_the_daemon_ends(
    gate: GateClient, daemon: Daemon
) -> None:
    assert await gate.ask(LeaveRequest(), Done) == Done()
    assert daemon.left == ["left"]


@pytest.mark.parametrize(
    "noise",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        struct.pack("<I", 2**31) + b"x",
        struct.pack("<I", 3) + b"\xff\xff\xff",
        struct.pack("<I", 0),
        struct.pack("<I", 5),
    ],
)
async def test_noise_costs_its_connection_only(
    gate: GateClient, daemon: Daemon, noise: bytes
) -> None:
    async with await trio.open_unix_socket(str(daemon.path)) as stream:
        await stream.send_all(noise)
        await stream.send_eof()
        with trio.fail_after(5):
            assert await stream.receive_some() == b""
    assert (await gate.ask(InfoRequest(), Info)).node == ME


async def test_no_daemon_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(NoDaemonError, match="start one with 'p2ptrain join'"):
        async with connect(tmp_path / "none.sock"):
            pass


async def test_live_figures_are_the_masters(gate: GateClient, daemon: Daemon) -> None:
    daemon.post.answers = lambda *_: at_rest(None)
    live = await gate.ask(LiveRequest(SESSION), LiveAnswer)
    assert not live.known
