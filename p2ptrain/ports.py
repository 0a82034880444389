"""What actors need of the outside world, as Protocols; ``node.py`` hands them adapters
that satisfy these.

Actors never import an adapter. Every method that waits is a trio checkpoint and may be
cancelled; adapters translate foreign exceptions into those of ``errors.py``.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Protocol, TypeVar

import trio

from p2ptrain.core.registry import Registry
from p2ptrain.ids import Digest, NodeId
from p2ptrain.members import Member
from p2ptrain.messages.consensus import RecordChange, RecordState
from p2ptrain.messages.record import BlobRef, Command
from p2ptrain.messages.trainer import FromTrainer, ToTrainer

EventT_contra = TypeVar("EventT_contra", contravariant=True)
EffectT = TypeVar("EffectT")
AnswerT = TypeVar("AnswerT")

# (body, authenticated peer or None on a plain transport) -> reply body
Handler = Callable[[bytes, NodeId | None], Awaitable[bytes]]


class Core(Protocol[EventT_contra, EffectT]):
    """A pure protocol core: no clock, no I/O, no logging; same seed and events, same
    effects.
    """

    @property
    def deadline(self) -> float:
        """When it wants to be stepped with a Tick at the latest (``inf``: never), on
        the clock of ``now``.
        """
        ...

    def step(self, now: float, event: EventT_contra) -> list[EffectT]:
        """Take one event, return effects in the order in which they must be done."""
        ...


class Transport(Protocol):
    """Request and reply between nodes, at most once, by ``host:port`` address."""

    @property
    def address(self) -> str:
        """Where this node listens, as bound."""
        ...

    async def request(self, address: str, body: bytes, timeout_s: float) -> bytes:
        """Send one request and return the reply.

        Raises:
            UnreachableError: no reply in time, or no connection; the connection is
                dialled afresh next time.
        """
        ...

    async def serve(
        self,
        handler: Handler,
        *,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Answer requests until cancelled; several at a time.

        A handler that raises PeerError costs the peer its reply.
        """
        ...

    async def aclose(self) -> None:
        """Close every socket; returns when they are closed."""
        ...


class Record(Protocol):
    """Durable storage of consensus: term, vote, log and snapshot.

    Every method returns when the bytes are safe.
    """

    async def load(self) -> RecordState:
        """Return all that was saved."""
        ...

    async def save(self, change: RecordChange) -> None:
        """Save atomically and durably.

        Raises:
            StorageError: the disk refused; nothing of the change is stored.
        """
        ...


class Blobs(Protocol):
    """Content-addressed files.

    What is under a digest has been verified.
    """

    async def path(self, digest: Digest) -> Path | None:
        """Return the file of a stored blob, or None."""
        ...

    async def check(self, blob: BlobRef) -> bool:
        """Tell whether a blob is stored whole; what is damaged is removed."""
        ...

    async def adopt(self, path: Path, name: str) -> BlobRef:
        """Move a finished local file in under its digest (hashed in a thread)."""
        ...

    async def put(self, data: bytes, name: str) -> BlobRef:
        """Store bytes."""
        ...

    async def partial(self, blob: BlobRef) -> int:
        """Return how many bytes of an unfinished blob are held; creates the partial
        file (bounded by free space).
        """
        ...

    async def append(self, blob: BlobRef, offset: int, data: bytes) -> None:
        """Write the next piece of a partial blob at offset.

        Raises:
            StorageError: full disk, wrong offset, more bytes than announced.
        """
        ...

    async def seal(self, blob: BlobRef) -> Path:
        """Verify a complete partial blob, make it durable and visible under its digest.

        Raises:
            PeerError: the bytes do not hash to the digest; the partial file is deleted.
        """
        ...

    async def read(self, digest: Digest, offset: int, length: int) -> bytes:
        """Return a piece of a stored blob.

        Raises:
            NotFoundError: not held here.
        """
        ...


class Trainer(Protocol):
    """One trainer process."""

    @property
    def pid(self) -> int:
        """Its process id."""
        ...

    async def send(self, frame: ToTrainer) -> None:
        """Send a frame; a dead process makes this a no-op (``frames`` tells)."""
        ...

    def frames(self) -> AsyncIterator[FromTrainer]:
        """Yield its frames; ends with a ``Fault`` that says how it died unless it quit
        when told.
        """
        ...

    async def aclose(self) -> None:
        """Ask it to quit, kill it after a grace period, reap it."""
        ...


class Engine(Protocol):
    """Starts trainer processes."""

    async def launch(self, workdir: Path) -> Trainer:
        """Return one that works in an empty folder."""
        ...

    async def warm(self) -> None:
        """Start one ahead for the next ``launch``, where that is wanted."""
        ...

    async def aclose(self) -> None:
        """End what was started ahead."""
        ...


class Beacon(Protocol):
    """Finds peers on the local network."""

    async def run(self, found: Callable[[str], None]) -> None:
        """Announce this node and call ``found(address)`` for each peer of the same
        cluster, until cancelled.
        """
        ...


class Post(Protocol):
    """Control messages to nodes by id; a message to this node itself goes straight to
    its actor.
    """

    @property
    def me(self) -> NodeId:
        """This node."""
        ...

    def send(self, to: NodeId, message: object) -> None:
        """Send without an answer, best effort: dropped when the peer is unknown, gone,
        or its queue is full.
        """
        ...

    async def ask(
        self, to: NodeId, message: object, answer: type[AnswerT], timeout_s: float
    ) -> AnswerT:
        """Send and wait for the answer.

        Raises:
            UnreachableError: no answer in time, or not of the expected kind.
        """
        ...


class Log(Protocol):
    """The replicated record as the actors see it."""

    @property
    def master(self) -> NodeId | None:
        """The master that this node follows now."""
        ...

    @property
    def leaderless_s(self) -> float:
        """Seconds since this node last knew of a master; 0 while it does."""
        ...

    @property
    def term(self) -> int:
        """The current term."""
        ...

    @property
    def registry(self) -> Registry:
        """What is committed, as applied here; read it, never change it."""
        ...

    @property
    def applied(self) -> int:
        """How many changes (entries, role, master) were seen; rises only."""
        ...

    async def changed(self, seen: int) -> int:
        """Wait until ``applied`` is not ``seen`` any more, and return it."""
        ...

    async def propose(self, command: Command) -> str:
        """Commit a command; return once it is applied here: "" or the registry's
        refusal.

        Raises:
            NoMasterError: this node is not the master, or lost that role before the
                command was committed.
        """
        ...


class Roster(Protocol):
    """Who is in the cluster, as membership sees it."""

    def members(self) -> tuple[Member, ...]:
        """All known members, this node included."""
        ...

    async def changed(self, seen: int) -> int:
        """Wait until the change count is not ``seen`` any more, and return it."""
        ...


class Courier(Protocol):
    """Fetches blobs from other nodes."""

    async def fetch(
        self,
        blobs: tuple[BlobRef, ...],
        sources: tuple[NodeId, ...],
        progress: Callable[[int, int], None],
    ) -> None:
        """Have all blobs stored and verified here; ``progress(done_bytes,
        total_bytes)`` is called now and then.

        Raises:
            UnreachableError: no source has what is missing; names the blob and the
                sources tried.
            StorageError: the disk refused.
        """
        ...
