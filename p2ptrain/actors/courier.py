"""The courier: brings blobs here from other nodes, and gives others what is held here.

One job for each blob on its way, however many wait for it; it ends with its last
waiter. ``core.transfer`` decides what a job does; its requests and file are here.
"""

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, assert_never

import structlog
import trio

from p2ptrain.core import transfer
from p2ptrain.errors import (
    ActorGoneError,
    NotFoundError,
    PeerError,
    StorageError,
    UnreachableError,
)
from p2ptrain.ids import Digest, NodeId, is_digest
from p2ptrain.messages import bulk
from p2ptrain.messages.asks import HoldAnswer, HoldAsk
from p2ptrain.messages.record import BlobRef
from p2ptrain.ports import Blobs, Transport
from p2ptrain.runtime.changes import Changes
from p2ptrain.runtime.driver import drive
from p2ptrain.runtime.inbox import Inbox, Mail

INBOX_BOUND: Final = 64
JOBS_AT_ONCE: Final = 4
HOLDS_MAX: Final = 32  # asks to hold blobs that are under way

_TICK: transfer.Event = transfer.Tick()
_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Depot:
    """What the courier works with: this node's id, its blobs, the bulk plane, and where
    a node's bulk plane listens (None when that is unknown).
    """

    me: NodeId
    blobs: Blobs
    bulk: Transport
    resolve: Callable[[NodeId], str | None]


@dataclass(slots=True, eq=False)
class _Job:
    """One blob on its way; once ``over``, it is ``stored`` or ``failure`` says why."""

    blob: BlobRef
    core: transfer.Transfer
    send: trio.MemorySendChannel[transfer.Event]
    receive: trio.MemoryReceiveChannel[transfer.Event]
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)
    waiters: int = 0
    over: bool = False
    stored: bool = False
    failure: UnreachableError | StorageError = field(
        default_factory=lambda: UnreachableError("this node's courier was stopped")
    )


class CourierActor:
    """Implements ``ports.Courier``; ``run`` is its task, ``handle`` serves the bulk
    plane, ``inbox`` takes ``HoldAsk``.

    Args:
        depot: what it works with.
        config: of each transfer.
        rng: spreads the load over sources.
    """

    def __init__(
        self, depot: Depot, config: transfer.TransferConfig, rng: random.Random
    ) -> None:
        self.inbox: Inbox[Mail] = Inbox("courier", INBOX_BOUND)
        self._depot = depot
        self._config = config
        self._rng = rng
        self._jobs: dict[Digest, _Job] = {}
        self._limit = trio.CapacityLimiter(JOBS_AT_ONCE)
        self._changes = Changes()
        self._holds = 0
        self._nursery: trio.Nursery | None = None

    async def run(self) -> None:
        """Carry out fetches and holds until cancelled; all that wait then fail."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            try:
                while True:
                    self._accept(nursery, await self.inbox.receive())
            finally:
                self._nursery = None

    async def fetch(
        self,
        blobs: tuple[BlobRef, ...],
        sources: tuple[NodeId, ...],
        progress: Callable[[int, int], None],
    ) -> None:
        """Have all blobs stored and verified here.

        Raises:
            UnreachableError: no source has what is missing; names the blob and the
                sources tried.
            StorageError: the disk refused.
        """
        wanted = {blob.digest: _sane(blob) for blob in blobs}
        check = self._depot.blobs.check
        missing = [blob for blob in wanted.values() if not await check(blob)]
        total = sum(blob.size for blob in wanted.values())
        here = total - sum(blob.size for blob in missing)
        others = tuple(node for node in sources if node != self._depot.me)
        jobs: list[_Job] = []
        try:
            jobs.extend(self._join(blob, others) for blob in missing)
            await self._watch(jobs, lambda done: progress(here + done, total))
        finally:
            for job in jobs:
                self._leave(job)

    async def handle(self, body: bytes, peer: NodeId | None) -> bytes:
        """Answer one request of the bulk plane.

        Raises:
            PeerError: it is malformed.
        """
        del peer  # every member may read every blob: it must know the digest
        ask = bulk.unpack_ask(body)
        try:
            blobs = self._depot.blobs
            data = await blobs.read(ask.digest, ask.offset, ask.length)
        except (NotFoundError, StorageError) as error:
            return bulk.pack_problem(str(error))
        return bulk.pack_piece(data)

    async def _watch(self, jobs: list[_Job], progress: Callable[[int], None]) -> None:
        """Wait for all jobs or for the first that fails."""
        while True:
            seen = self._changes.count
            progress(sum(job.core.held for job in jobs))
            for job in jobs:
                if job.over and not job.stored:
                    raise type(job.failure)(str(job.failure))
            if all(job.over for job in jobs):
                return
            await self._changes.wait(seen)

    def _join(self, blob: BlobRef, sources: tuple[NodeId, ...]) -> _Job:
        if self._nursery is None:
            raise UnreachableError("this node's courier is not running")
        job = self._jobs.get(blob.digest)
        if job is None:
            core = transfer.Transfer(blob.size, self._config, self._rng)
            # Unbounded, for the driver itself sends to it; the core's window bounds it.
            send, receive = trio.open_memory_channel[transfer.Event](math.inf)
            job = self._jobs[blob.digest] = _Job(blob, core, send, receive)
            self._nursery.start_soon(self._work, job)
        job.send.send_nowait(transfer.Offered(sources))
        job.waiters += 1
        return job

    def _leave(self, job: _Job) -> None:
        job.waiters -= 1
        if not job.waiters:
            self._forget(job)
            job.scope.cancel()

    def _forget(self, job: _Job) -> None:
        if self._jobs.get(job.blob.digest) is job:
            del self._jobs[job.blob.digest]

    async def _work(self, job: _Job) -> None:
        """Do a job; whoever waits learns how it ended."""
        try:
            with job.scope, job.send, job.receive:
                async with self._limit:
                    await self._transfer(job)
        finally:
            job.over = True
            self._forget(job)
            self._changes.bump()

    async def _transfer(self, job: _Job) -> None:
        async with trio.open_nursery() as nursery:

            async def perform(effect: transfer.Effect) -> None:
                if await self._finishes(job, nursery, effect):
                    nursery.cancel_scope.cancel()

            await drive(job.core, job.receive.receive, perform, _TICK, _unexpected)

    async def _finishes(
        self, job: _Job, nursery: trio.Nursery, effect: transfer.Effect
    ) -> bool:
        """Do an effect; tell whether the job is over."""
        try:
            match effect:
                case transfer.Fetch():
                    nursery.start_soon(self._ask, job, effect)
                case transfer.Done():
                    _log.info("blob fetched", digest=job.blob.digest)
                    job.stored = True
                    return True
                case transfer.GiveUp(reason):
                    name = f"{job.blob.name or 'blob'} ({job.blob.digest})"
                    job.failure = UnreachableError(f"cannot fetch {name}: {reason}")
                    return True
                case transfer.Open():
                    held = await self._depot.blobs.partial(job.blob)
                    job.send.send_nowait(transfer.Opened(held))
                case transfer.Write(offset, data):
                    await self._depot.blobs.append(job.blob, offset, data)
                    self._changes.bump()
                case transfer.Seal():
                    good = await self._seal(job.blob)
                    job.send.send_nowait(transfer.Sealed(good))
                case _:
                    assert_never(effect)
        except StorageError as error:
            job.failure = error
            return True
        return False

    async def _seal(self, blob: BlobRef) -> bool:
        try:
            await self._depot.blobs.seal(blob)
        except PeerError as error:
            _log.warning("blob corrupt", digest=blob.digest, reason=str(error))
            return False
        return True

    async def _ask(self, job: _Job, fetch: transfer.Fetch) -> None:
        job.send.send_nowait(await self._answer(job.blob.digest, fetch))

    async def _answer(
        self, digest: Digest, fetch: transfer.Fetch
    ) -> transfer.Arrived | transfer.Failed | transfer.Refused:
        source, offset = fetch.source, fetch.offset
        address = self._depot.resolve(source)
        if address is None:
            return transfer.Failed(source, offset, "has no known address")
        body = bulk.PieceAsk(digest, offset, fetch.length).pack()
        try:
            reply = await self._depot.bulk.request(address, body, fetch.timeout_s)
            header, data = bulk.unpack_reply(reply)
        except UnreachableError as error:
            return transfer.Failed(source, offset, str(error))
        except PeerError as error:
            return transfer.Refused(source, offset, f"answered nonsense: {error}")
        if not header.ok:
            return transfer.Refused(source, offset, header.problem)
        return transfer.Arrived(source, offset, data)

    def _accept(self, nursery: trio.Nursery, mail: Mail) -> None:
        if not isinstance(mail.message, HoldAsk) or mail.reply is None:
            return
        if self._holds >= HOLDS_MAX:
            problem = f"this node already fetches for {HOLDS_MAX} others: ask again"
            mail.reply.send(HoldAnswer(problem))
            return
        self._holds += 1
        nursery.start_soon(self._hold, mail, mail.message)

    async def _hold(self, mail: Mail, ask: HoldAsk) -> None:
        assert mail.reply is not None
        try:
            await self.fetch(ask.blobs, ask.sources, _silently)
            mail.reply.send(HoldAnswer(""))
        except (UnreachableError, StorageError) as error:
            mail.reply.send(HoldAnswer(str(error)))
        finally:
            self._holds -= 1
            mail.reply.fail(ActorGoneError("this node's courier was stopped"))


def _sane(blob: BlobRef) -> BlobRef:
    if not is_digest(blob.digest) or blob.size < 0:
        raise UnreachableError(f"{blob!r:.120} names no blob")
    return blob


def _silently(done_bytes: int, total_bytes: int) -> None:
    """Nobody watches."""


def _unexpected(error: PeerError) -> None:
    """The core takes every event."""
    raise AssertionError from error
