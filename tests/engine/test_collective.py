"""All-reduce over loopback connections, ranks as threads."""

import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import Tensor

from p2ptrain.engine import rendezvous
from p2ptrain.engine.collective import META_BYTES_MAX, PIECE_BYTES, Group, solo
from p2ptrain.engine.header import META, PIECE, Header
from p2ptrain.errors import LinkLostError
from p2ptrain.security.authority import create_authority, new_key
from p2ptrain.security.identity import save_identity
from tests.engine.ringkit import Work, run_ranks

pytestmark = pytest.mark.net

PIECE_FLOATS = PIECE_BYTES // 4
SIZES = [0, 1, 2, 10, 1000, PIECE_FLOATS - 1, PIECE_FLOATS * 5 + 3]


def vector(rank: int, size: int, dtype: torch.dtype = torch.float32) -> Tensor:
    rng = torch.Generator().manual_seed(100 + rank)
    if dtype == torch.int64:
        return torch.randint(-(2**50), 2**50, (size,), generator=rng)
    return torch.randn(size, generator=rng, dtype=torch.float64).to(dtype)


def naive(vectors: list[Tensor]) -> Tensor:
    """Sum chunk c from rank c on, one rank after the other."""
    world = len(vectors)
    columns = [torch.tensor_split(each, world) for each in vectors]
    sums = []
    for chunk in range(world):
        total = columns[chunk][chunk].clone()
        for at in range(1, world):
            total = columns[(chunk + at) % world][chunk] + total
        sums.append(total)
    return torch.cat(sums)


def reduced(rank: int, size: int, dtype: torch.dtype, group: Group) -> Tensor:
    flat = vector(rank, size, dtype)
    metas = group.reduce(flat, f"meta of {rank}".encode())
    assert metas == tuple(f"meta of {at}".encode() for at in range(group.world))
    return flat


def works(
    world: int, sizes: list[int], dtype: torch.dtype = torch.float32
) -> list[Work[list[Tensor]]]:
    def work(rank: int, group: Group) -> list[Tensor]:
        return [reduced(rank, size, dtype, group) for size in sizes]

    return [partial(work, rank) for rank in range(world)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64])
@pytest.mark.parametrize("world", [2, 3, 4, 5])
def test_all_ranks_hold_the_bits_of_the_naive_sum(
    world: int, dtype: torch.dtype
) -> None:
    for result in run_ranks(works(world, SIZES, dtype)):
        assert isinstance(result, list)
        for size, flat in zip(SIZES, result, strict=True):
            expected = naive([vector(rank, size, dtype) for rank in range(world)])
            assert torch.equal(flat, expected)


@pytest.mark.slow
def test_a_vector_larger_than_64_mib() -> None:
    size = (80 << 20) // 4 + 7
    expected = naive([vector(rank, size) for rank in range(3)])
    for result in run_ranks(works(3, [size]), stall_s=30):
        assert isinstance(result, list)
        assert torch.equal(result[0], expected)


def test_over_tls(tmp_path: Path) -> None:
    authority = create_authority("lab")
    people = []
    for name in "abc":
        key = new_key()
        cert = authority.sign(key.public_key(), ())
        people.append(save_identity(tmp_path / name, key, cert, authority.cert))
    results = run_ranks(
        works(3, SIZES),
        tls=[person.tls for person in people if person.tls],
        nodes=[person.node for person in people],
    )
    assert all(isinstance(result, list) for result in results), results
    expected = naive([vector(rank, SIZES[-1]) for rank in range(3)])
    assert all(torch.equal(result[-1], expected) for result in results)  # type: ignore[index]


def test_the_largest_meta_goes_around() -> None:
    def work(rank: int, group: Group) -> tuple[bytes, ...]:
        return group.exchange(bytes([rank]) * META_BYTES_MAX)

    expected = tuple(bytes([rank]) * META_BYTES_MAX for rank in range(3))
    ranks = [partial(work, rank) for rank in range(3)]
    assert run_ranks(ranks) == [expected] * 3


def test_alone_nothing_is_copied() -> None:
    flat = torch.arange(10.0)
    before = flat.data_ptr()
    group = solo()
    assert group.reduce(flat, b"m") == (b"m",)
    assert flat.data_ptr() == before
    assert torch.equal(flat, torch.arange(10.0))
    assert group.exchange(b"x") == (b"x",)
    group.abort("enough")
    with pytest.raises(LinkLostError, match="enough"):
        group.exchange(b"")
    group.close()


def test_the_vector_may_be_overwritten_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The next rank still receives when this one has its sum: its bytes must stand."""
    monkeypatch.setattr(rendezvous, "BUFFER_BYTES", 64 * 1024)
    size = 4_000_000

    def fast(group: Group) -> int:
        flat = torch.full((size,), 1.0)
        group.reduce(flat, b"")
        wrong = int((flat != 3).sum())
        flat.zero_()
        group.exchange(b"")
        return wrong

    def slow(group: Group) -> int:
        links = group._links
        assert links is not None
        at_once = links.receive_into

        def later(buffer: memoryview) -> None:
            if len(buffer) > 1000:
                time.sleep(0.02)
            at_once(buffer)

        links.receive_into = later  # type: ignore[method-assign]
        flat = torch.full((size,), 2.0)
        group.reduce(flat, b"")
        wrong = int((flat != 3).sum())
        group.exchange(b"")
        return wrong

    assert run_ranks([fast, slow]) == [0, 0]


def assert_all_lost(results: list[int | Exception], ranks: list[int]) -> None:
    for rank in ranks:
        assert isinstance(results[rank], LinkLostError), results


def many(steps: int, size: int, group: Group) -> int:
    flat = torch.zeros(size)
    for _ in range(steps):
        group.reduce(flat, b"")
    return 0


def differs(change: Callable[[Group], None], group: Group) -> int:
    group.exchange(b"")
    change(group)
    return many(5, 100_000, group)


WRONGS: dict[str, Callable[[Group], object]] = {
    "another length": lambda group: group.reduce(torch.zeros(99_999), b""),
    "a longer vector": lambda group: group.reduce(torch.zeros(300_000), b""),
    "another dtype": lambda group: group.reduce(
        torch.zeros(100_000, dtype=torch.int64), b""
    ),
    "a reduction too many": lambda group: setattr(group, "_turn", 7),
    "another view": lambda group: (
        setattr(group._links, "_view", 2) or setattr(group, "_view", 2)
    ),
    "only metas": lambda group: group.exchange(b""),
}


@pytest.mark.parametrize("wrong", WRONGS)
@pytest.mark.parametrize("world", [2, 3])
def test_ranks_that_disagree_get_no_sum(wrong: str, world: int) -> None:
    odd = partial(differs, WRONGS[wrong])  # type: ignore[arg-type]
    even = partial(differs, lambda group: None)
    results = run_ranks([odd, *[even] * (world - 1)], stall_s=2.0)
    assert_all_lost(results, list(range(world)))


def test_a_piece_that_is_no_whole_number_of_elements_is_refused() -> None:
    """The last piece of the last operation: nothing after it would show the slip."""

    def odd(group: Group) -> int:
        assert group._links is not None
        for header in (
            Header(META, 1, turn=1, origin=1),
            Header(PIECE, 1, turn=1, start=2, length=8),
            Header(PIECE, 1, turn=1, op=1, start=0, length=11),
        ):
            group._links.send(header, memoryview(bytes(header.length)))
        group._links.receive_into(memoryview(bytearray(10**6)))
        return 0

    assert_all_lost(run_ranks([partial(many, 1, 4), odd]), [0, 1])


@pytest.mark.parametrize("world", [2, 3, 4, 5])
def test_a_rank_that_dies_ends_the_view_for_all_soon(world: int) -> None:
    lost_after: list[float] = []
    died = threading.Event()

    def survivor(group: Group) -> int:
        try:
            while True:
                many(1, 200_000, group)
        except LinkLostError:
            died.wait(5)
            lost_after.append(time.monotonic() - died_at[0])
            raise

    died_at: list[float] = []

    def victim(group: Group) -> int:
        many(3, 200_000, group)
        assert group._links is not None
        died_at.append(time.monotonic())
        died.set()
        # as the kernel does for a killed process
        for end in (group._links._ends.incoming, group._links._ends.outgoing):
            end.shutdown(2)
        raise RuntimeError("killed")

    results = run_ranks([victim, *[survivor] * (world - 1)])
    assert_all_lost(results, list(range(1, world)))
    assert [result.rank for result in results[1:]] == [0] * (world - 1)  # type: ignore[union-attr]
    assert max(lost_after) < 1.0


@pytest.mark.parametrize("world", [2, 3])
def test_abort_at_one_rank_ends_all_and_blames_none(world: int) -> None:
    def told(group: Group) -> int:
        threading.Timer(0.2, group.abort, ("the owner wants it",)).start()
        return many(10**6, 100, group)

    results = run_ranks([told, *[partial(many, 10**6, 100)] * (world - 1)])
    for result in results:
        assert isinstance(result, LinkLostError)
        assert (result.rank, result.problem) == (-1, "the owner wants it")


def test_abort_before_the_ring_is_open_says_why() -> None:
    group = Group(0, 2, 1, 5.0)
    group.abort("told to halt")
    with pytest.raises(LinkLostError, match="told to halt"):
        group.exchange(b"")


def test_ranks_that_end_at_different_times_end_in_peace() -> None:
    """The last exchange is complete here and not yet there when a rank closes."""

    def work(rank: int, group: Group) -> int:
        for _ in range(20):
            group.exchange(bytes(rank))
        return 0

    ranks = [partial(work, rank) for rank in range(5)]
    for _ in range(5):
        assert run_ranks(ranks) == [0] * 5
