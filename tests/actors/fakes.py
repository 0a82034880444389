"""Ports of the actors in memory: record, roster, post, blobs, courier, trainers."""

from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable
from pathlib import Path
from typing import Any

import trio

from p2ptrain.core.registry import Registry
from p2ptrain.errors import (
    NoMasterError,
    NotFoundError,
    P2PTrainError,
    StorageError,
    UnreachableError,
)
from p2ptrain.ids import Digest, NodeId, digest_of
from p2ptrain.members import Capabilities, Member, MemberStatus
from p2ptrain.messages.record import BlobRef, Command
from p2ptrain.messages.trainer import Fault, FromTrainer, ToTrainer
from p2ptrain.runtime.changes import Changes

ME = NodeId("a" * 32)
PEER = NodeId("b" * 32)
THIRD = NodeId("c" * 32)


def member(node: NodeId, status: MemberStatus = MemberStatus.ALIVE) -> Member:
    capabilities = Capabilities("0", cores=1, memory_bytes=1, trains=True)
    return Member(node, node[:1], 1, status, "host:1", "host:2", capabilities)


async def eventually(wanted: Callable[[], bool]) -> None:
    """Wait for what has no event of its own, such as a folder's end."""
    with trio.fail_after(5):
        while not wanted():  # noqa: ASYNC110
            await trio.sleep(0.01)


class FakeLog:
    """A record of one node that commits at once."""

    def __init__(self, master: NodeId | None = ME) -> None:
        self.master = master
        self.term = 1
        self.leaderless_s = 0.0
        self.registry = Registry()
        self.commands: list[Command] = []
        self.fails: P2PTrainError | None = None
        self._changes = Changes()

    @property
    def applied(self) -> int:
        return self._changes.count

    async def changed(self, seen: int) -> int:
        return await self._changes.wait(seen)

    def elect(self, master: NodeId | None) -> None:
        self.master, self.term = master, self.term + 1
        self._changes.bump()

    def apply(self, command: Command) -> str:
        self.commands.append(command)
        word = self.registry.apply(command)
        self._changes.bump()
        return word

    async def propose(self, command: Command) -> str:
        await trio.lowlevel.checkpoint()
        if self.fails is not None:
            raise self.fails
        if self.master != ME:
            raise NoMasterError("this node is not the master")
        return self.apply(command)


class FakeRoster:
    """Members as the test sets them."""

    def __init__(self, nodes: Iterable[NodeId] = (ME, PEER)) -> None:
        self._members = tuple(member(node) for node in nodes)
        self._changes = Changes()

    def members(self) -> tuple[Member, ...]:
        return self._members

    async def changed(self, seen: int) -> int:
        return await self._changes.wait(seen)

    def set(self, *members: Member) -> None:
        self._members = members
        self._changes.bump()


class FakePost:
    """Keeps what is sent; asks are answered by ``answers``."""

    def __init__(self, me: NodeId = ME) -> None:
        self.me = me
        self.sent: list[tuple[NodeId, Any]] = []
        self.asked: list[tuple[NodeId, Any]] = []
        self.answers: Callable[[NodeId, Any], Any] = self._nobody
        self._changes = Changes()

    def _nobody(self, to: NodeId, message: object) -> object:
        raise UnreachableError(f"node {to} does not answer to {type(message).__name__}")

    def send(self, to: NodeId, message: object) -> None:
        self.sent.append((to, message))
        self._changes.bump()

    async def ask(
        self, to: NodeId, message: object, answer: type[Any], timeout_s: float
    ) -> Any:
        await trio.lowlevel.checkpoint()
        assert timeout_s > 0
        self.asked.append((to, message))
        given = self.answers(to, message)
        assert isinstance(given, answer)
        return given

    async def until_sent(self, kind: type[Any], count: int = 1) -> Any:
        """Wait for so many messages of a kind; return the last one."""
        seen = -1
        with trio.fail_after(5):
            while len(found := [m for _, m in self.sent if type(m) is kind]) < count:
                seen = await self._changes.wait(seen)
        return found[-1]


class FakeBlobs:
    """Blobs in memory, each also a file where a folder is given."""

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder
        self.held: dict[Digest, bytes] = {}
        self.adopted: list[tuple[str, str]] = []
        self.full = False

    def add(self, data: bytes, name: str = "") -> BlobRef:
        blob = BlobRef(digest_of(data), len(data), name)
        self.held[blob.digest] = data
        return blob

    async def path(self, digest: Digest) -> Path | None:
        await trio.lowlevel.checkpoint()
        if digest not in self.held:
            return None
        return (self.folder or Path("/blobs")) / digest

    async def check(self, blob: BlobRef) -> bool:
        await trio.lowlevel.checkpoint()
        return blob.digest in self.held

    async def adopt(self, path: Path, name: str) -> BlobRef:
        await trio.lowlevel.checkpoint()
        if self.full:
            raise StorageError(f"cannot store {path}: the disk is full")
        self.adopted.append((str(path), name))
        return self.add(str(path).encode(), name)

    async def read(self, digest: Digest, offset: int, length: int) -> bytes:
        await trio.lowlevel.checkpoint()
        if digest not in self.held:
            raise NotFoundError(f"blob {digest} is not here")
        return self.held[digest][offset : offset + length]

    async def put(self, data: bytes, name: str) -> BlobRef:
        raise AssertionError("not used")

    async def partial(self, blob: BlobRef) -> int:
        raise AssertionError("not used")

    async def append(self, blob: BlobRef, offset: int, data: bytes) -> None:
        raise AssertionError("not used")

    async def seal(self, blob: BlobRef) -> Path:
        raise AssertionError("not used")


class FakeCourier:
    """Finds blobs in a dictionary of what others hold."""

    def __init__(self, blobs: FakeBlobs) -> None:
        self.blobs = blobs
        self.elsewhere: dict[Digest, bytes] = {}
        self.fetched: list[tuple[tuple[BlobRef, ...], tuple[NodeId, ...]]] = []
        self.fails: P2PTrainError | None = None

    async def fetch(
        self,
        blobs: tuple[BlobRef, ...],
        sources: tuple[NodeId, ...],
        progress: Callable[[int, int], None],
    ) -> None:
        await trio.lowlevel.checkpoint()
        self.fetched.append((blobs, sources))
        if self.fails is not None:
            raise self.fails
        total = sum(blob.size for blob in blobs)
        progress(0, total)
        for blob in blobs:
            if blob.digest not in self.blobs.held:
                if blob.digest not in self.elsewhere:
                    raise UnreachableError(f"no source has blob {blob.digest}")
                self.blobs.held[blob.digest] = self.elsewhere[blob.digest]
        progress(total, total)


class FakeTrainer:
    """A trainer that says what the test lets it say."""

    def __init__(self, workdir: Path, pid: int) -> None:
        self.workdir, self.pid = workdir, pid
        self.heard: list[ToTrainer] = []
        self.closed = False
        self._said: deque[FromTrainer] = deque()
        self._changes = Changes()
        self._ended = False

    async def send(self, frame: ToTrainer) -> None:
        await trio.lowlevel.checkpoint()
        self.heard.append(frame)
        self._changes.bump()

    def say(self, *frames: FromTrainer) -> None:
        self._said.extend(frames)
        self._ended = self._ended or isinstance(frames[-1], Fault)
        self._changes.bump()

    def frames(self) -> AsyncIterator[FromTrainer]:
        return self

    def __aiter__(self) -> AsyncIterator[FromTrainer]:
        return self

    async def __anext__(self) -> FromTrainer:
        seen = -1
        while not self._said:
            if self._ended:
                raise StopAsyncIteration
            seen = await self._changes.wait(seen)
        return self._said.popleft()

    async def until_heard(self, kind: type[Any]) -> Any:
        seen = -1
        with trio.fail_after(5):
            while not (found := [f for f in self.heard if type(f) is kind]):
                seen = await self._changes.wait(seen)
        return found[-1]

    async def aclose(self) -> None:
        await trio.lowlevel.checkpoint()
        self.closed = True


class FakeEngine:
    """Starts fake trainers."""

    def __init__(self) -> None:
        self.trainers: list[FakeTrainer] = []
        self.fails: P2PTrainError | None = None
        self._changes = Changes()

    async def launch(self, workdir: Path) -> FakeTrainer:
        await trio.lowlevel.checkpoint()
        if self.fails is not None:
            raise self.fails
        trainer = FakeTrainer(workdir, len(self.trainers) + 1)
        self.trainers.append(trainer)
        self._changes.bump()
        return trainer

    async def warm(self) -> None:
        await trio.lowlevel.checkpoint()

    async def aclose(self) -> None:
        await trio.lowlevel.checkpoint()

    async def until_started(self, count: int = 1) -> FakeTrainer:
        seen = -1
        with trio.fail_after(5):
            while len(self.trainers) < count:
                seen = await self._changes.wait(seen)
        return self.trainers[count - 1]
