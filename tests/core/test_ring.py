"""The ring's plan, run by several ranks over ordered links with random delays."""

import random
from collections import deque
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2ptrain.core.ring import Item, MetaPiece, Piece, Reduction, Shape
from p2ptrain.errors import PeerError

# What an element is made of, in order: lets a test see who was added to whom.
Element = tuple[str, ...]
Message = tuple[Item, list[Element] | str]


class Rank:
    """One rank; a vector of traces instead of numbers, so that order shows."""

    def __init__(self, shape: Shape) -> None:
        self.reduction = Reduction(shape)
        self.vector: list[Element] = [
            (f"r{shape.rank}",) for _ in range(shape.elements)
        ]
        self.metas = {shape.rank: f"meta {shape.rank}"}

    def message(self, item: Item) -> Message:
        if isinstance(item, MetaPiece):
            return item, self.metas[item.origin]
        return item, self.vector[item.start : item.stop]

    def start(self) -> list[Message]:
        return [self.message(item) for item in self.reduction.shape.outgoing()]

    def take(self, message: Message) -> Message | None:
        item, payload = message
        self.reduction.received(item)
        if isinstance(item, MetaPiece):
            assert isinstance(payload, str)
            assert item.origin not in self.metas, "a meta came twice"
            self.metas[item.origin] = payload
        else:
            assert isinstance(payload, list)
            assert len(payload) == item.stop - item.start
            for at, theirs in enumerate(payload, item.start):
                mine = self.vector[at]
                adds = self.reduction.shape.adds(item.op)
                self.vector[at] = theirs + mine if adds else theirs
        following = self.reduction.shape.passed_on(item)
        return None if following is None else self.message(following)


def make(world: int, elements: int, piece: int) -> list[Rank]:
    return [Rank(Shape(rank, world, elements, piece)) for rank in range(world)]


def run(ranks: list[Rank], rng: random.Random) -> int:
    """Deliver in a random order among links; return the most that was in flight."""
    links = [deque(rank.start()) for rank in ranks]
    most = 0
    while any(links):
        most = max(most, sum(map(len, links)))
        sender = rng.choice([at for at, link in enumerate(links) if link])
        receiver = (sender + 1) % len(ranks)
        answer = ranks[receiver].take(links[sender].popleft())
        if answer is not None:
            links[receiver].append(answer)
    return most


@given(
    world=st.integers(2, 7),
    elements=st.integers(0, 60),
    piece=st.integers(1, 9),
    seed=st.integers(0, 1000),
)
def test_every_rank_ends_with_the_same_sum_in_the_same_order(
    world: int, elements: int, piece: int, seed: int
) -> None:
    ranks = make(world, elements, piece)
    run(ranks, random.Random(seed))
    shape = ranks[0].reduction.shape
    for chunk in range(world):
        order = tuple(f"r{(chunk + at) % world}" for at in range(world))
        for at in shape.chunk(chunk):
            assert {rank.vector[at] for rank in ranks} == {order}
    metas = {rank: f"meta {rank}" for rank in range(world)}
    assert all(rank.metas == metas for rank in ranks)
    assert all(rank.reduction.done for rank in ranks)


@given(world=st.integers(2, 9), elements=st.integers(0, 1000))
def test_chunks_cover_the_vector_and_differ_by_one_at_most(
    world: int, elements: int
) -> None:
    shape = Shape(0, world, elements, 1)
    chunks = [shape.chunk(index) for index in range(world)]
    assert [at for chunk in chunks for at in chunk] == list(range(elements))
    assert max(map(len, chunks)) - min(map(len, chunks)) <= 1


@given(world=st.integers(2, 6), elements=st.integers(0, 64), piece=st.integers(1, 64))
def test_each_rank_sends_two_nths_of_the_vector_an_operation(
    world: int, elements: int, piece: int
) -> None:
    for rank in range(world):
        shape = Shape(rank, world, elements, piece)
        received = [item for item in shape.incoming() if isinstance(item, Piece)]
        amount = sum(item.stop - item.start for item in received)
        assert amount <= 2 * (world - 1) * -(-elements // world)
        assert all(0 < item.stop - item.start <= piece for item in received)


def test_what_is_received_is_what_the_previous_rank_sends() -> None:
    for world in range(2, 6):
        for rank in range(world):
            me, before = (Shape(at, world, 23, 3) for at in (rank, (rank - 1) % world))
            passed = [before.passed_on(item) for item in before.incoming()]
            sent = [*before.outgoing(), *(item for item in passed if item)]
            assert sent == list(me.incoming())


def incoming(shape: Shape) -> list[Item]:
    return list(shape.incoming())


SHAPE = Shape(1, 3, 20, 3)


@pytest.mark.parametrize("at", range(len(incoming(SHAPE))))
def test_anything_but_the_next_item_is_refused(at: int) -> None:
    due = incoming(SHAPE)
    reduction = Reduction(SHAPE)
    for item in due[:at]:
        reduction.received(item)
    wrong: list[Item] = [item for item in due if item != due[at]]
    if isinstance(due[at], Piece):
        wrong += [replace(due[at], stop=due[at].stop + 1)]  # type: ignore[call-arg]
        wrong += [replace(due[at], op=due[at].op + 1)]
    for item in wrong:
        with pytest.raises(PeerError, match=r"where .* was due"):
            reduction.received(item)
    assert not reduction.done


def test_an_item_after_the_last_is_refused() -> None:
    reduction = Reduction(SHAPE)
    for item in incoming(SHAPE):
        reduction.received(item)
    assert reduction.done
    with pytest.raises(PeerError):
        reduction.received(incoming(SHAPE)[-1])


def test_pieces_are_passed_on_before_their_chunk_is_complete() -> None:
    ranks = make(2, 100, 1)
    in_flight = run(ranks, random.Random(0))
    assert in_flight <= 2 * 51  # its own chunk and metas, never more
    shape = Shape(0, 2, 100, 1)
    first = next(item for item in shape.incoming() if isinstance(item, Piece))
    assert shape.passed_on(first) == replace(first, op=1)
