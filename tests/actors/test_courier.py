"""Couriers with real files, over the memory network and over NNG.

On the real clock: files are touched in threads, which a virtual clock would outrun.
"""

import random
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from p2ptrain import codec
from p2ptrain.actors.courier import HOLDS_MAX, CourierActor, Depot
from p2ptrain.core.transfer import TransferConfig
from p2ptrain.errors import ActorGoneError, PeerError, StorageError, UnreachableError
from p2ptrain.ids import Digest, NodeId, digest_of
from p2ptrain.messages.asks import HoldAnswer, HoldAsk
from p2ptrain.messages.bulk import BULK_BYTES_MAX, PieceAsk, unpack_ask, unpack_reply
from p2ptrain.messages.record import BlobRef
from p2ptrain.net.memory import MemoryNetwork
from p2ptrain.net.nng import NngTransport
from p2ptrain.ports import Transport
from p2ptrain.runtime.inbox import Mail, Reply
from p2ptrain.security.authority import create_authority, new_key
from p2ptrain.security.identity import save_identity
from p2ptrain.store.blobs import BlobStore

PIECE = 1000
CONFIG = TransferConfig(
    piece_bytes=PIECE, timeout_s=0.2, patience_s=0.1, pause_min_s=0.02, strikes=3
)
DATA = random.Random(3).randbytes(50_500)
OTHER = random.Random(4).randbytes(7_000)
Filter = Callable[[bytes, bytes], Awaitable[bytes]]  # (request, reply) -> reply


def node(name: str) -> NodeId:
    return NodeId(name.encode().hex().ljust(32, "0"))


class Peer:
    """A node: its blobs and its courier; ``change`` sees each reply that it gives."""

    def __init__(self, name: str, folder: Path, transport: Transport) -> None:
        self.id = node(name)
        self.folder = folder
        self.store = BlobStore(folder, 1024)
        self.transport = transport
        self.addresses: dict[NodeId, str] = {}
        self.served: Counter[tuple[Digest, int]] = Counter()
        self.change: Filter | None = None
        self.courier = self.make()

    def make(self) -> CourierActor:
        depot = Depot(self.id, self.store, self.transport, self.addresses.get)
        return CourierActor(depot, CONFIG, random.Random(1))

    async def handle(self, body: bytes, peer: NodeId | None) -> bytes:
        reply = await self.courier.handle(body, peer)
        ask = unpack_ask(body)
        self.served[ask.digest, ask.offset] += 1
        return await self.change(body, reply) if self.change else reply

    def held(self, digest: Digest) -> bytes:
        return (self.folder / "blobs" / digest[:2] / digest).read_bytes()

    def partial_bytes(self) -> int:
        return sum(path.stat().st_size for path in (self.folder / "partial").iterdir())


class Lab:
    """Peers that know each other, on one memory network."""

    def __init__(self, tmp_path: Path, nursery: trio.Nursery) -> None:
        self.network = MemoryNetwork(random.Random(2))
        self.nursery = nursery
        self.tmp_path = tmp_path
        self.peers: dict[str, Peer] = {}

    async def add(self, name: str) -> Peer:
        transport = self.network.transport(name, node(name), BULK_BYTES_MAX)
        peer = Peer(name, self.tmp_path / name, transport)
        self.peers[name] = peer
        for each in self.peers.values():
            each.addresses.update({p.id: n for n, p in self.peers.items()})
        await self.nursery.start(transport.serve, peer.handle)
        self.nursery.start_soon(peer.courier.run)
        await trio.testing.wait_all_tasks_blocked()
        return peer


@pytest.fixture
async def lab(tmp_path: Path) -> AsyncIterator[Lab]:
    async with trio.open_nursery() as nursery:
        yield Lab(tmp_path, nursery)
        nursery.cancel_scope.cancel()


def silent(done: int, total: int) -> None:
    """Watch nothing."""


def spoil(peer: Peer, digest: Digest) -> None:
    """Turn one bit of a stored file, as a bad disk does."""
    path = peer.folder / "blobs" / digest[:2] / digest
    path.chmod(0o600)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


async def test_blobs_come_from_a_holder(lab: Lab) -> None:
    a, b = await lab.add("a"), await lab.add("b")
    blobs = (
        await a.store.put(DATA, "data"),
        await a.store.put(OTHER, "other"),
        await a.store.put(b"", "empty"),
        await b.store.put(b"mine", "mine"),
    )
    seen: list[tuple[int, int]] = []
    await b.courier.fetch(
        (*blobs, blobs[0]), (a.id,), lambda *figures: seen.append(figures)
    )
    for blob, data in zip(blobs, (DATA, OTHER, b"", b"mine"), strict=True):
        assert b.held(blob.digest) == data
    total = len(DATA) + len(OTHER) + 4
    assert seen == sorted(seen)
    assert seen[0] == (4, total)
    assert seen[-1] == (total, total)
    assert len(seen) > 10
    assert set(a.served.values()) == {1}
    assert b.partial_bytes() == 0


async def test_what_is_here_is_not_fetched(lab: Lab) -> None:
    b = await lab.add("b")
    blob = await b.store.put(DATA, "")
    seen: list[tuple[int, int]] = []
    await b.courier.fetch((blob,), (), lambda *figures: seen.append(figures))
    assert seen == [(len(DATA), len(DATA))]


async def test_all_holders_send(lab: Lab) -> None:
    holders = [await lab.add(name) for name in "abc"]
    for holder in holders:
        await holder.store.put(DATA, "")
    blob = BlobRef(digest_of(DATA), len(DATA), "")
    d = await lab.add("d")
    await d.courier.fetch((blob,), tuple(each.id for each in holders), silent)
    assert all(each.served for each in holders)
    assert d.held(blob.digest) == DATA


async def test_a_corrupt_holder_costs_time_only(lab: Lab) -> None:
    a, b, c = [await lab.add(name) for name in "abc"]
    for holder in (a, b):
        blob = await holder.store.put(DATA, "")
    spoil(a, blob.digest)
    await c.courier.fetch((blob,), (a.id, b.id), silent)
    assert c.held(blob.digest) == DATA


async def test_corrupt_bytes_alone_are_refused_with_the_node_named(lab: Lab) -> None:
    a, b = await lab.add("a"), await lab.add("b")
    blob = await a.store.put(DATA, "weights")
    spoil(a, blob.digest)
    with pytest.raises(UnreachableError) as refused:
        await b.courier.fetch((blob,), (a.id,), silent)
    assert str(refused.value) == (
        f"cannot fetch weights ({blob.digest}): "
        f"{a.id}: sent bytes that do not match the digest"
    )
    assert await b.store.path(blob.digest) is None
    assert b.partial_bytes() == 0


async def test_a_holder_that_dies_midway_is_replaced(lab: Lab) -> None:
    a, b, c = [await lab.add(name) for name in "abc"]
    for holder in (a, b):
        blob = await holder.store.put(DATA, "")

    def cut(done: int, total: int) -> None:
        if done > total // 2:
            lab.network.partition("a", ("b", "c"))

    with trio.fail_after(5):
        await c.courier.fetch((blob,), (a.id, b.id), cut)
    assert c.held(blob.digest) == DATA


async def test_nobody_there_is_said_in_time(lab: Lab) -> None:
    a, b = await lab.add("a"), await lab.add("b")
    blob = await a.store.put(DATA, "")
    lab.network.partition("a", "b")
    with trio.fail_after(10), pytest.raises(UnreachableError, match="no answer from a"):
        await b.courier.fetch((blob,), (a.id,), silent)


async def test_who_does_not_hold_it_is_said(lab: Lab) -> None:
    a, b = await lab.add("a"), await lab.add("b")
    blob = BlobRef(digest_of(DATA), len(DATA), "")
    stranger = node("x")
    with pytest.raises(UnreachableError) as refused:
        await b.courier.fetch((blob,), (a.id, stranger, b.id), silent)
    assert f"{a.id}: blob {blob.digest} is not held here" in str(refused.value)
    assert f"{stranger}: has no known address" in str(refused.value)
    assert b.id not in str(refused.value)
    with pytest.raises(UnreachableError, match="no node is known to hold it"):
        await b.courier.fetch((blob,), (b.id,), silent)


@pytest.mark.parametrize("blob", [("../x", 1), (digest_of(b""), -1), ("", 0)])
async def test_a_malformed_reference_is_refused(
    lab: Lab, blob: tuple[str, int]
) -> None:
    b = await lab.add("b")
    with pytest.raises(UnreachableError, match="names no blob"):
        await b.courier.fetch((BlobRef(Digest(blob[0]), blob[1], ""),), (), silent)


@pytest.mark.parametrize("size", [len(DATA) - 1, len(DATA) + 1, 0, 10**6])
async def test_a_wrong_size_is_found_out(lab: Lab, size: int) -> None:
    a, b = await lab.add("a"), await lab.add("b")
    blob = await a.store.put(DATA, "")
    with pytest.raises(UnreachableError):
        await b.courier.fetch((BlobRef(blob.digest, size, ""),), (a.id,), silent)
    assert await b.store.path(blob.digest) is None
    await b.courier.fetch((blob,), (a.id,), silent)
    assert b.held(blob.digest) == DATA


async def test_nonsense_is_no_answer(lab: Lab) -> None:
    a, b = await lab.add("a"), await lab.add("b")
    blob = await a.store.put(DATA, "")

    async def nonsense(body: bytes, reply: bytes) -> bytes:
        return b"\xff" * 100

    a.change = nonsense
    with pytest.raises(UnreachableError, match="answered nonsense"):
        await b.courier.fetch((blob,), (a.id,), silent)


async def slowly(body: bytes, reply: bytes) -> bytes:
    await trio.sleep(0.01)
    return reply


class EnoughError(Exception):
    """The test stops a fetch here."""


async def fetch_half(peer: Peer, blob: BlobRef, source: NodeId) -> None:
    """Fetch, and stop at about half."""

    def stop(done: int, total: int) -> None:
        if done > total // 2:
            raise EnoughError

    with pytest.raises(EnoughError):
        await peer.courier.fetch((blob,), (source,), stop)


async def test_a_restart_fetches_the_rest_only(lab: Lab) -> None:
    a, b = await lab.add("a"), await lab.add("b")
    blob = await a.store.put(DATA, "")
    a.change = slowly
    await fetch_half(b, blob, a.id)
    a.served.clear()
    b.store = BlobStore(b.folder, 1024)
    again = b.make()
    lab.nursery.start_soon(again.run)
    await trio.testing.wait_all_tasks_blocked()
    assert b.partial_bytes() > len(DATA) // 2
    await again.fetch((blob,), (a.id,), silent)
    assert b.held(blob.digest) == DATA
    assert min(offset for _, offset in a.served) >= len(DATA) // 2


async def test_one_blob_is_fetched_once_for_all_who_wait(lab: Lab) -> None:
    a, b = await lab.add("a"), await lab.add("b")
    blob = await a.store.put(DATA, "")
    a.change = slowly
    async with trio.open_nursery() as nursery:
        for _ in range(5):
            nursery.start_soon(b.courier.fetch, (blob,), (a.id,), silent)
    assert set(a.served.values()) == {1}
    assert len(a.served) == 51


async def test_a_waiter_that_leaves_does_not_take_the_blob_with_it(lab: Lab) -> None:
    a, b = await lab.add("a"), await lab.add("b")
    blob = await a.store.put(DATA, "")
    a.change = slowly
    async with trio.open_nursery() as nursery:
        nursery.start_soon(fetch_half, b, blob, a.id)
        await b.courier.fetch((blob,), (a.id,), silent)
    assert b.held(blob.digest) == DATA
    assert set(a.served.values()) == {1}


async def test_nothing_is_fetched_for_nobody(lab: Lab) -> None:
    a, b = await lab.add("a"), await lab.add("b")
    blob = await a.store.put(DATA, "")
    a.change = slowly
    await fetch_half(b, blob, a.id)
    await trio.sleep(0.05)
    served = sum(a.served.values())
    await trio.sleep(0.1)
    assert sum(a.served.values()) == served < 51
    await b.courier.fetch((blob,), (a.id,), silent)
    assert b.held(blob.digest) == DATA


async def test_a_source_that_a_second_waiter_names_is_used(lab: Lab) -> None:
    a, b, c = [await lab.add(name) for name in "abc"]
    blob = await a.store.put(DATA, "")
    await b.store.put(DATA, "")
    a.change = slowly
    async with trio.open_nursery() as nursery:
        nursery.start_soon(c.courier.fetch, (blob,), (a.id,), silent)
        await trio.testing.wait_all_tasks_blocked()
        await c.courier.fetch((blob,), (b.id,), silent)
    assert b.served


async def test_a_full_disk_is_said(lab: Lab) -> None:
    a, b = await lab.add("a"), await lab.add("b")
    blob = await a.store.put(DATA, "weights")
    b.store = BlobStore(b.folder, reserve_bytes=1 << 60)
    full = b.make()
    lab.nursery.start_soon(full.run)
    await trio.testing.wait_all_tasks_blocked()
    with pytest.raises(StorageError, match="blob weights needs 50500 more bytes"):
        await full.fetch((blob,), (a.id,), silent)
    assert not a.served


def start(lab: Lab, courier: CourierActor) -> trio.CancelScope:
    """Run a courier until its scope is cancelled."""
    scope = trio.CancelScope()

    async def run() -> None:
        with scope:
            await courier.run()

    lab.nursery.start_soon(run)
    return scope


async def test_a_stopped_courier_leaves_nobody_waiting(lab: Lab) -> None:
    a, b = await lab.add("a"), await lab.add("b")
    blob = await a.store.put(DATA, "")
    courier = b.make()
    with pytest.raises(UnreachableError, match="is not running"):
        await courier.fetch((blob,), (a.id,), silent)
    for _ in range(2):  # a supervisor may start it again
        scope = start(lab, courier)
        await trio.testing.wait_all_tasks_blocked()

        async def stop(body: bytes, reply: bytes) -> bytes:
            scope.cancel()  # noqa: B023  # runs in this turn only
            return await slowly(body, reply)

        a.change = stop
        with pytest.raises(UnreachableError, match="was stopped"):
            await courier.fetch((blob,), (a.id,), silent)


async def hold(peer: Peer, blobs: tuple[BlobRef, ...], source: NodeId) -> HoldAnswer:
    ask = HoldAsk(blobs, (source,))

    def mail(reply: Reply[object]) -> Mail:
        return Mail(source, ask, reply)

    answer = await peer.courier.inbox.ref.ask(mail, timeout_s=10)
    assert isinstance(answer, HoldAnswer)
    return answer


async def test_holds_are_answered_when_all_is_stored(lab: Lab) -> None:
    a, b = await lab.add("a"), await lab.add("b")
    blobs = (await a.store.put(DATA, ""), await a.store.put(OTHER, ""))
    assert await hold(b, blobs, a.id) == HoldAnswer("")
    assert b.held(blobs[0].digest) == DATA
    assert b.held(blobs[1].digest) == OTHER
    missing = BlobRef(digest_of(b"?"), 1, "")
    answer = await hold(b, (missing, blobs[0]), a.id)
    assert "is not held here" in answer.problem


async def test_holds_are_bounded(lab: Lab) -> None:
    a, b = await lab.add("a"), await lab.add("b")
    blob = await a.store.put(DATA, "")
    release = trio.Event()

    async def later(body: bytes, reply: bytes) -> bytes:
        await release.wait()
        return reply

    a.change = later
    answers: list[HoldAnswer] = []

    async def one() -> None:
        answers.append(await hold(b, (blob,), a.id))

    async with trio.open_nursery() as nursery:
        for _ in range(HOLDS_MAX):
            nursery.start_soon(one)
        await trio.testing.wait_all_tasks_blocked()
        answer = await hold(b, (blob,), a.id)
        assert "already fetches for 32 others" in answer.problem
        assert answers == []
        release.set()
    assert answers == [HoldAnswer("")] * HOLDS_MAX
    assert await hold(b, (blob,), a.id) == HoldAnswer("")


async def test_a_hold_ends_with_its_courier(lab: Lab) -> None:
    a, b = await lab.add("a"), await lab.add("b")
    blob = await a.store.put(DATA, "")
    courier = b.courier = b.make()
    scope = start(lab, courier)

    async def stop(body: bytes, reply: bytes) -> bytes:
        scope.cancel()
        return await slowly(body, reply)

    a.change = stop
    with pytest.raises(ActorGoneError, match="was stopped"):
        await hold(b, (blob,), a.id)


async def test_pieces_are_served_to_who_knows_the_digest(lab: Lab) -> None:
    a = await lab.add("a")
    blob = await a.store.put(DATA, "")
    reply = await a.courier.handle(PieceAsk(blob.digest, 10, 20).pack(), None)
    assert unpack_reply(reply)[1] == DATA[10:30]
    unknown = PieceAsk(digest_of(b"?"), 0, 1).pack()
    header, _ = unpack_reply(await a.courier.handle(unknown, None))
    assert (header.ok, header.problem[-16:]) == (False, "is not held here")
    for bad in (b"", b"\x00", codec.encode(["../../etc/passwd", 0, 9])):
        with pytest.raises(PeerError):
            await a.courier.handle(bad, None)


@pytest.mark.net
@pytest.mark.parametrize("secure", [False, True])
async def test_blobs_travel_over_nng(tmp_path: Path, secure: bool) -> None:
    authority = create_authority("lab")
    data = random.Random(5).randbytes(20_000_000)

    @asynccontextmanager
    async def peer(name: str) -> AsyncIterator[Peer]:
        tls = None
        if secure:
            key = new_key()
            cert = authority.sign(key.public_key(), ())
            folder = tmp_path / f"tls {name}"
            tls = save_identity(folder, key, cert, authority.cert).tls
        async with NngTransport("127.0.0.1", 0, BULK_BYTES_MAX, tls) as transport:
            yield Peer(name, tmp_path / name, transport)

    async with peer("a") as a, peer("b") as b, trio.open_nursery() as nursery:
        await nursery.start(a.transport.serve, a.courier.handle)
        b.addresses[a.id] = a.transport.address
        blob = await a.store.put(data, "")
        depot = Depot(b.id, b.store, b.transport, b.addresses.get)
        courier = CourierActor(depot, TransferConfig(), random.Random(1))
        nursery.start_soon(courier.run)
        await trio.testing.wait_all_tasks_blocked()
        with trio.fail_after(20):
            await courier.fetch((blob,), (a.id,), silent)
        assert b.held(blob.digest) == data
        nursery.cancel_scope.cancel()
