"""The blob folder: real files, real refusals of the kernel, real kills."""

import os
import random
import resource
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import trio

from p2ptrain.errors import NotFoundError, PeerError, StorageError
from p2ptrain.ids import Digest, digest_of
from p2ptrain.messages.record import BlobRef
from p2ptrain.store import blobs
from p2ptrain.store.blobs import BlobStore

ROOM = 1 << 10  # reserve: tests must not depend on the size of this disk
DATA = random.Random(1).randbytes(300_000)


SHM = Path("/dev/shm")


def is_another_file_system(folder: Path, here: Path) -> bool:
    return folder.is_dir() and folder.stat().st_dev != here.stat().st_dev


def ref(data: bytes, name: str = "thing") -> BlobRef:
    return BlobRef(digest_of(data), len(data), name)


@pytest.fixture
def store(tmp_path: Path) -> BlobStore:
    return BlobStore(tmp_path / "state", ROOM)


def files(tmp_path: Path) -> list[str]:
    root = tmp_path / "state"
    return sorted(
        str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()
    )


def place(data: bytes) -> str:
    digest = digest_of(data)
    return f"blobs/{digest[:2]}/{digest}"


@contextmanager
def file_size_limit(most: int) -> Iterator[None]:
    """Let the kernel refuse to make any file longer than this."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


async def receive(store: BlobStore, data: bytes, piece: int = 100_000) -> Path:
    blob = ref(data)
    offset = await store.partial(blob)
    while offset < len(data):
        await store.append(blob, offset, data[offset : offset + piece])
        offset += piece
    return await store.seal(blob)


async def test_put_bytes_can_be_read_back(store: BlobStore, tmp_path: Path) -> None:
    blob = await store.put(DATA, "weights")
    assert blob == BlobRef(digest_of(DATA), len(DATA), "weights")
    where = await store.path(blob.digest)
    assert where is not None
    assert where == tmp_path / "state" / place(DATA)
    assert where.read_bytes() == DATA
    assert await store.read(blob.digest, 10, 20) == DATA[10:30]
    assert await store.read(blob.digest, len(DATA) - 5, 99) == DATA[-5:]
    assert await store.read(blob.digest, len(DATA) + 5, 99) == b""
    assert await store.put(DATA, "again") == ref(DATA, "again")
    assert files(tmp_path) == [place(DATA)]


@pytest.mark.parametrize("data", [b"", b"x", DATA])
async def test_every_way_in_gives_the_same_file(tmp_path: Path, data: bytes) -> None:
    for way in ("put", "adopt", "pieces"):
        store = BlobStore(tmp_path / way, ROOM)
        if way == "put":
            await store.put(data, "")
        elif way == "adopt":
            (tmp_path / "file").write_bytes(data)
            assert await store.adopt(tmp_path / "file", "n") == ref(data, "n")
            assert not (tmp_path / "file").exists()
        else:
            await receive(store, data)
        where = await store.path(digest_of(data))
        assert where is not None
        assert where == tmp_path / way / place(data)
        assert where.read_bytes() == data
        assert where.stat().st_mode & 0o777 == 0o400
        assert not any((tmp_path / way / "partial").iterdir())


async def test_adopting_what_is_stored_removes_the_file(
    store: BlobStore, tmp_path: Path
) -> None:
    await store.put(DATA, "")
    (tmp_path / "file").write_bytes(DATA)
    await store.adopt(tmp_path / "file", "")
    assert not (tmp_path / "file").exists()


async def test_a_damaged_blob_gives_way_to_the_file_that_is_adopted(
    tmp_path: Path,
) -> None:
    await BlobStore(tmp_path).put(DATA, "")
    place_of = tmp_path / place(DATA)
    place_of.chmod(0o600)
    place_of.write_bytes(DATA[:-1] + b"?")
    (tmp_path / "file").write_bytes(DATA)
    restarted = BlobStore(tmp_path)
    await restarted.adopt(tmp_path / "file", "")
    assert place_of.read_bytes() == DATA


async def test_who_finds_damage_does_not_remove_what_another_mends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await BlobStore(tmp_path).put(DATA, "")
    stored = tmp_path / place(DATA)
    stored.chmod(0o600)
    stored.write_bytes(DATA[:-1] + b"?")
    (tmp_path / "file").write_bytes(DATA)
    looks, mended = threading.Event(), threading.Event()
    hash_file, publish = blobs.hash_file, blobs.publish

    def slow_hash(path: Path) -> Digest:
        digest = hash_file(path)
        if path == stored and not looks.is_set():
            looks.set()
            mended.wait(0.3)  # time enough for the other, if nothing holds it back
        return digest

    def tell(source: Path, target: Path) -> None:
        publish(source, target)
        mended.set()

    monkeypatch.setattr(blobs, "hash_file", slow_hash)
    monkeypatch.setattr(blobs, "publish", tell)
    restarted = BlobStore(tmp_path)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(restarted.check, ref(DATA))
        await trio.to_thread.run_sync(looks.wait)
        nursery.start_soon(restarted.adopt, tmp_path / "file", "")
    assert stored.read_bytes() == DATA


async def test_adopting_from_another_file_system(
    store: BlobStore, tmp_path: Path
) -> None:
    if not is_another_file_system(SHM, tmp_path):
        pytest.skip("no second file system here")
    source = SHM / f"blob-test-{os.getpid()}"
    source.write_bytes(DATA)
    assert await store.adopt(source, "") == ref(DATA, "")
    assert not source.exists()
    assert files(tmp_path) == [place(DATA)]


async def test_a_missing_file_cannot_be_adopted(
    store: BlobStore, tmp_path: Path
) -> None:
    with pytest.raises(StorageError, match="No such file"):
        await store.adopt(tmp_path / "nothing", "")


async def test_what_is_not_held_is_not_found(store: BlobStore) -> None:
    digest = digest_of(DATA)
    assert await store.path(digest) is None
    with pytest.raises(NotFoundError, match=digest):
        await store.read(digest, 0, 1)
    await store.partial(ref(DATA))
    assert await store.path(digest) is None
    with pytest.raises(NotFoundError):
        await store.read(digest, 0, 1)


@pytest.mark.parametrize("name", ["../../etc/passwd", "", "A" * 64, "0" * 63, "0" * 65])
async def test_only_digests_become_paths(store: BlobStore, name: str) -> None:
    digest = Digest(name)
    blob = BlobRef(digest, 1, "")
    for act in (
        lambda: store.path(digest),
        lambda: store.read(digest, 0, 1),
        lambda: store.partial(blob),
        lambda: store.append(blob, 0, b"x"),
        lambda: store.seal(blob),
    ):
        with pytest.raises(PeerError, match="is no digest"):
            await act()


async def test_a_restart_goes_on_where_the_pieces_end(tmp_path: Path) -> None:
    blob = ref(DATA)
    before = BlobStore(tmp_path / "state", ROOM)
    assert await before.partial(blob) == 0
    await before.append(blob, 0, DATA[:70_000])
    after = BlobStore(tmp_path / "state", ROOM)
    assert await after.partial(blob) == 70_000
    await receive(after, DATA)
    assert files(tmp_path) == [place(DATA)]


async def test_corrupt_bytes_never_get_the_name(
    store: BlobStore, tmp_path: Path
) -> None:
    blob = ref(DATA)
    await store.partial(blob)
    await store.append(blob, 0, DATA[:-1] + bytes([DATA[-1] ^ 1]))
    with pytest.raises(PeerError, match=blob.digest):
        await store.seal(blob)
    assert files(tmp_path) == []
    assert await store.partial(blob) == 0


@pytest.mark.parametrize(("offset", "size"), [(101, 10), (100, 201), (0, 301)])
async def test_pieces_that_do_not_fit_are_refused(
    store: BlobStore, offset: int, size: int
) -> None:
    blob = BlobRef(digest_of(DATA[:300]), 300, "")
    await store.partial(blob)
    await store.append(blob, 0, DATA[:100])
    with pytest.raises(StorageError, match="100 of 300 bytes"):
        await store.append(blob, offset, bytes(size))
    assert await store.partial(blob) == 100


@pytest.mark.parametrize(("start", "end"), [(0, 10), (0, 100), (90, 150), (100, 300)])
async def test_what_another_writer_put_there_is_skipped(
    store: BlobStore, start: int, end: int
) -> None:
    data = DATA[:300]
    blob = ref(data)
    await store.partial(blob)
    await store.append(blob, 0, data[:100])
    await store.append(blob, start, data[start:end])
    held = await store.partial(blob)
    assert held == max(100, end)
    await store.append(blob, held, data[held:])
    assert (await store.seal(blob)).read_bytes() == data


async def test_an_incomplete_blob_is_not_sealed(store: BlobStore) -> None:
    blob = ref(DATA)
    await store.partial(blob)
    await store.append(blob, 0, DATA[:100])
    with pytest.raises(StorageError, match="100 of 300000 bytes only"):
        await store.seal(blob)
    assert await store.partial(blob) == 100


async def test_a_partial_file_longer_than_announced_begins_anew(
    store: BlobStore, tmp_path: Path
) -> None:
    blob = ref(DATA[:100])
    (tmp_path / "state" / "partial" / blob.digest).write_bytes(DATA)
    assert await store.partial(blob) == 0
    await receive(store, DATA[:100])


async def test_a_blob_that_does_not_fit_is_refused_before_it_is_sent(
    tmp_path: Path,
) -> None:
    store = BlobStore(tmp_path / "state", reserve_bytes=1 << 60)
    with pytest.raises(
        StorageError, match=r"needs 300000 more bytes .* where 0 are free"
    ):
        await store.partial(ref(DATA))
    assert files(tmp_path) == []


async def test_a_piece_that_the_disk_refuses_leaves_what_was_held(
    store: BlobStore, tmp_path: Path
) -> None:
    blob = ref(DATA)
    await store.partial(blob)
    await store.append(blob, 0, DATA[:100_000])
    with (
        file_size_limit(150_000),
        pytest.raises(StorageError, match="make room on this disk"),
    ):
        await store.append(blob, 100_000, DATA[100_000:])
    assert await store.partial(blob) == 100_000
    await receive(store, DATA)
    assert files(tmp_path) == [place(DATA)]


async def test_a_put_that_the_disk_refuses_leaves_nothing(
    store: BlobStore, tmp_path: Path
) -> None:
    with file_size_limit(150_000), pytest.raises(StorageError, match="make room"):
        await store.put(DATA, "")
    assert files(tmp_path) == []


async def test_folders_that_cannot_be_made_are_an_error(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("a file")
    with pytest.raises(StorageError, match="state"):
        BlobStore(tmp_path / "state", ROOM)


async def test_two_fetchers_of_one_blob_do_not_harm_it(
    store: BlobStore, tmp_path: Path
) -> None:
    """Each goes on where the file is when the other was faster."""
    blob = ref(DATA)

    async def fetch(rng: random.Random) -> None:
        while await store.path(blob.digest) is None:
            offset = await store.partial(blob)
            piece = DATA[offset : offset + rng.randrange(1, 30_000)]
            await store.append(blob, offset, piece)
            if offset + len(piece) == len(DATA):
                await store.seal(blob)

    async with trio.open_nursery() as nursery:
        for seed in range(4):
            nursery.start_soon(fetch, random.Random(seed))
    where = await store.path(blob.digest)
    assert where is not None
    assert where.read_bytes() == DATA
    assert files(tmp_path) == [place(DATA)]


async def test_two_fetchers_may_seal_at_once(store: BlobStore) -> None:
    data = bytes(30_000_000)  # long enough to hash for both to be at it
    blob = ref(data)
    await store.partial(blob)
    await store.append(blob, 0, data)
    found: list[Path] = []

    async def seal() -> None:
        found.append(await store.seal(blob))

    async with trio.open_nursery() as nursery:
        for _ in range(4):
            nursery.start_soon(seal)
    assert found == [await store.path(blob.digest)] * 4


async def test_a_late_fetcher_cannot_change_a_stored_blob(store: BlobStore) -> None:
    where = await receive(store, DATA)
    blob = ref(DATA)
    assert await store.partial(blob) == len(DATA)
    await store.append(blob, 0, b"x")
    assert await store.seal(blob) == where
    assert where.read_bytes() == DATA


CHILD = """
import random, sys, trio
from pathlib import Path
from p2ptrain.store import blobs
from p2ptrain.store.blobs import BlobStore
async def main():
    store = BlobStore(Path(sys.argv[1]), 1024)
    rng = random.Random(sys.argv[2])
    print("up", flush=True)
    while True:
        await store.put(rng.randbytes(200_000), "")
trio.run(main)
"""


@pytest.mark.processes
@pytest.mark.slow
def test_a_kill_leaves_no_half_file_under_a_real_name(tmp_path: Path) -> None:
    state = tmp_path / "state"
    rng = random.Random(7)
    for life in range(6):
        child = subprocess.Popen(
            [sys.executable, "-c", CHILD, str(state), str(life)],
            stdout=subprocess.PIPE,
        )
        assert child.stdout is not None
        child.stdout.readline()
        with pytest.raises(subprocess.TimeoutExpired):
            child.wait(rng.uniform(0.02, 0.2))
        child.kill()
        child.wait()
        child.stdout.close()
        BlobStore(state, ROOM)
        assert list((state / "partial").iterdir()) == []
        for path in (state / "blobs").rglob("*"):
            if path.is_file():
                assert digest_of(path.read_bytes()) == path.name
    assert any((state / "blobs").iterdir())


async def test_a_damaged_blob_is_found_out_once_and_removed(tmp_path: Path) -> None:
    blob = await BlobStore(tmp_path, ROOM).put(DATA, "x")
    store = BlobStore(tmp_path, ROOM)  # the next life of the process
    path = await store.path(blob.digest)
    assert path is not None
    assert await store.check(blob)
    path.chmod(0o600)
    damaged = bytearray(DATA)
    damaged[7] ^= 1
    path.write_bytes(damaged)
    assert await store.check(blob)  # read once in a life
    later = BlobStore(tmp_path, ROOM)
    assert not await later.check(blob)
    assert await later.path(blob.digest) is None
    await later.put(DATA, "x")
    assert await later.check(blob)


async def test_what_nothing_names_goes_after_a_while(tmp_path: Path) -> None:
    now = 0.0
    store = BlobStore(tmp_path, ROOM, lambda: now)
    job = await store.put(b"job", "spec")
    named = await store.put(b"named", "checkpoint-1")
    state = await store.put(b"state", "checkpoint-2")
    served = await store.put(b"served", "snapshot-3")
    now = 100.0
    await store.read(served.digest, 0, 1)  # somebody is fetching it
    now = 130.0
    assert await store.sweep({named.digest}) == [state.digest]
    now = 230.0
    assert await store.sweep({named.digest}) == [served.digest]
    now = 3500.0
    assert await store.sweep(set()) == [named.digest]
    assert await store.path(job.digest) is not None
    now = 3700.0
    assert await store.sweep(set()) == [job.digest]
    assert await store.path(job.digest) is None


async def test_what_an_earlier_life_stored_is_kept_for_a_while(tmp_path: Path) -> None:
    blob = await BlobStore(tmp_path, ROOM).put(b"old", "checkpoint-1")
    now = 0.0
    store = BlobStore(tmp_path, ROOM, lambda: now)
    now = 3599.0
    assert await store.sweep(set()) == []
    now = 3601.0
    assert await store.sweep(set()) == [blob.digest]


async def test_a_blob_that_was_never_finished_goes_after_a_day(tmp_path: Path) -> None:
    store = BlobStore(tmp_path, ROOM)
    blob = BlobRef(digest_of(DATA), len(DATA), "x")
    await store.partial(blob)
    (half,) = (tmp_path / "partial").iterdir()
    await store.sweep(set())
    assert half.exists()
    day = 24 * 3600 + 10
    os.utime(half, (half.stat().st_atime - day, half.stat().st_mtime - day))
    await store.sweep(set())
    assert not half.exists()
