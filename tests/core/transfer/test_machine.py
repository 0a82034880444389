"""Transfers from holders of every kind, in virtual time."""

import random
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2ptrain.core.transfer import (
    Arrived,
    Done,
    Effect,
    Failed,
    Fetch,
    GiveUp,
    Offered,
    Open,
    Opened,
    Seal,
    Sealed,
    Tick,
    Transfer,
    TransferConfig,
    Write,
)
from tests.core.transfer.world import (
    Holder,
    World,
    corrupt,
    dead,
    dies_at,
    empty,
    flaky,
    honest,
    node,
    short,
)

CONFIG = TransferConfig(piece_bytes=10, window=4, per_source=2, strikes=4)
DATA = random.Random(1).randbytes(305)
BAD: dict[str, Holder] = {
    "dead": dead,
    "empty": empty,
    "short": short,
    "corrupt": corrupt,
    "dies": dies_at(100),
}


def fetches(effects: list[Effect]) -> list[Fetch]:
    return [effect for effect in effects if isinstance(effect, Fetch)]


def world(holders: dict[str, Holder], data: bytes = DATA) -> World:
    return World(data, holders, CONFIG)


@pytest.mark.parametrize("size", [0, 1, 9, 10, 11, 305])
def test_a_blob_comes_whole(size: int) -> None:
    run = world({"a": honest(), "b": honest()}, DATA[:size])
    assert run.run() == Done()
    assert bytes(run.disk) == DATA[:size]
    assert sum(ask.length for ask in run.asks) == size


def test_all_sources_send_at_once() -> None:
    run = world({name: honest() for name in "abc"})
    assert run.run() == Done()
    assert {ask.source for ask in run.asks} == {node(name) for name in "abc"}
    assert run.most_in_flight == CONFIG.window


def test_one_source_is_not_flooded() -> None:
    run = world({"a": honest()})
    assert run.run() == Done()
    assert run.most_in_flight == CONFIG.per_source


def test_a_restart_asks_for_what_is_missing_only() -> None:
    first = world({"a": honest()})
    assert first.run(halt_at=100) is None
    held = len(first.disk)
    second = World(DATA, {"a": honest()}, CONFIG, first.disk)
    assert second.run() == Done()
    assert min(ask.offset for ask in second.asks) == held
    assert sum(ask.length for ask in second.asks) == len(DATA) - held


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("seed", range(6))
def test_one_honest_source_is_enough(bad: str, seed: int) -> None:
    run = World(DATA, {"a": BAD[bad], "b": honest(), "c": BAD[bad]}, CONFIG, seed=seed)
    assert run.run() == Done()
    assert bytes(run.disk) == DATA
    assert run.now < 120


@pytest.mark.parametrize("bad", BAD)
def test_without_an_honest_source_it_gives_up_and_says_why(bad: str) -> None:
    run = world({"a": BAD[bad], "b": BAD[bad]})
    end = run.run()
    assert isinstance(end, GiveUp)
    said = {
        "dead": "no answer",
        "dies": "no answer",
        "empty": "is not held here",
        "short": "sent 9 bytes of 10",
        "corrupt": "sent bytes that do not match the digest",
    }[bad]
    for name in "ab":
        assert f"{node(name)}: {said}" in end.reason


def test_nobody_to_ask_is_said() -> None:
    assert world({}).run() == GiveUp("no node is known to hold it")


def test_a_source_that_sent_it_all_wrong_is_never_asked_again() -> None:
    run = world({"a": corrupt})
    assert isinstance(run.run(), GiveUp)
    assert run.seals == 1


def test_who_is_wrong_among_many_is_found_by_asking_each_alone() -> None:
    """Bytes of several are mixed, so the first wrong hash blames nobody."""
    run = world({"a": corrupt, "b": honest(), "c": honest(), "d": honest()})
    assert run.run() == Done()
    assert 2 <= run.seals <= 3


def test_bytes_from_before_a_restart_blame_no_source() -> None:
    """What a crash left need not be what was written."""
    run = World(DATA, {"a": honest()}, CONFIG, bytearray(100))
    assert run.run() == Done()
    assert run.seals == 2


def test_endless_corruption_ends() -> None:
    """Honest sources on a disk that lies."""

    class Liar(World):
        def _seal(self) -> None:
            self.disk.clear()
            self.seals += 1
            self._after(0.01, Sealed(good=False))

    run = Liar(DATA, {name: honest() for name in "abcdefghijklmnop"}, CONFIG)
    assert isinstance(run.run(), GiveUp)
    assert run.seals <= 8


def test_a_failing_source_is_left_alone_for_longer_and_longer() -> None:
    run = World(DATA[:5], {"a": dead}, CONFIG)
    at: list[float] = []
    holder = run.holders["a"]

    def watched(ask: Fetch, right: bytes, rng: random.Random):  # type: ignore[no-untyped-def]
        at.append(run.now)
        return 0.001, holder(ask, right, rng)[1]

    run.holders = {"a": watched}
    assert isinstance(run.run(), GiveUp)
    pauses = [b - a for a, b in pairwise(at)]
    assert len(at) == CONFIG.strikes
    assert pauses == pytest.approx([0.201, 0.401, 0.801])


def test_a_window_that_fails_together_is_one_failure() -> None:
    config = TransferConfig(piece_bytes=10, per_source=4, strikes=2)
    core, a = Transfer(100, config, random.Random(0)), node("a")
    core.step(0, Offered((a,)))
    core.step(0, Opened(0))
    lost = fetches(core.step(1, Arrived(a, 0, bytes(10))))
    assert len(lost) == 4
    for fetch in lost:
        assert core.step(2, Failed(a, fetch.offset, "no answer")) == []
    assert [fetch.offset for fetch in fetches(core.step(3, Tick()))] == [10]


def test_a_late_piece_is_asked_for_twice_at_most() -> None:
    core = Transfer(10, CONFIG, random.Random(0))
    core.step(0, Offered((node("a"), node("b"), node("c"))))
    (first,) = fetches(core.step(0, Opened(0)))
    assert core.deadline == CONFIG.patience_s
    (second,) = fetches(core.step(core.deadline, Tick()))
    assert (second.offset, second.source == first.source) == (0, False)
    assert core.step(2, Failed(first.source, 0, "no answer")) == []
    assert fetches(core.step(2.1, Tick())) == []


def test_who_sends_it_alone_is_not_mixed_with_a_late_answer() -> None:
    """A second source that was asked for a late piece answers after the wrong hash."""
    core = Transfer(20, CONFIG, random.Random(0))
    core.step(0, Offered((node("a"), node("b"), node("c"))))
    first, second = fetches(core.step(0, Opened(0)))
    (late,) = fetches(core.step(core.deadline, Tick()))
    core.step(2, Arrived(second.source, 10, bytes(10)))
    assert Seal() in core.step(2, Arrived(first.source, 0, bytes(10)))
    assert core.step(3, Sealed(good=False)) == [Open()]
    alone = fetches(core.step(3, Opened(0)))
    assert {fetch.source for fetch in alone}.isdisjoint({late.source})
    assert core.step(4, Arrived(late.source, late.offset, bytes(10))) == []


def test_a_slow_source_does_not_hold_up_what_another_has() -> None:
    """The due piece sleeps at a: b is asked for it long before the time-out."""
    run = world({"a": dead, "b": honest()})
    assert run.run() == Done()
    assert run.now < CONFIG.timeout_s


def test_a_source_must_answer_before_it_is_asked_for_more() -> None:
    core = Transfer(100, CONFIG, random.Random(0))
    a = node("a")
    core.step(0, Offered((a,)))
    assert len(fetches(core.step(0, Opened(0)))) == 1
    assert len(fetches(core.step(1, Arrived(a, 0, bytes(10))))) == 2
    core.step(2, Failed(a, 10, "no answer"))
    core.step(2, Failed(a, 20, "no answer"))
    assert len(fetches(core.step(core.deadline, Tick()))) == 1


def test_time_outs_follow_what_a_source_takes() -> None:
    core = Transfer(100, CONFIG, random.Random(0))
    a = node("a")
    core.step(0, Offered((a,)))
    (first,) = fetches(core.step(0, Opened(0)))
    assert first.timeout_s == 5.0
    core.step(5, Failed(a, 0, "no answer"))
    (again,) = fetches(core.step(core.deadline, Tick()))
    assert again.timeout_s == 10.0
    now = core.deadline if core.deadline < 100 else 5.2
    slow = fetches(core.step(now + 8, Arrived(a, 0, bytes(10))))
    assert [fetch.timeout_s for fetch in slow] == pytest.approx([32.0, 32.0])
    more = fetches(core.step(now + 60, Arrived(a, 10, bytes(10))))
    assert [fetch.timeout_s for fetch in more] == [60.0]


def test_early_pieces_wait_for_the_due_one() -> None:
    core = Transfer(25, CONFIG, random.Random(0))
    a = node("a")
    assert core.step(0, Offered((a,))) == [Open()]
    core.step(0, Opened(0))
    (write, *asked) = core.step(1, Arrived(a, 0, b"0" * 10))
    assert write == Write(0, b"0" * 10)
    assert [fetch.offset for fetch in fetches(asked)] == [10, 20]
    assert core.step(1, Arrived(a, 20, b"2" * 5)) == []
    assert core.held == 10
    assert core.step(1, Arrived(a, 10, b"1" * 10)) == [
        Write(10, b"1" * 10),
        Write(20, b"2" * 5),
        Seal(),
    ]
    assert core.step(2, Sealed(good=True)) == [Done()]


def test_answers_to_nothing_change_nothing() -> None:
    core = Transfer(25, CONFIG, random.Random(0))
    a = node("a")
    assert core.step(0, Sealed(good=True)) == []
    assert core.step(0, Opened(5)) == []
    core.step(0, Offered((a,)))
    core.step(0, Opened(0))
    for wrong in (
        Arrived(node("x"), 0, b"0" * 10),
        Arrived(a, 20, b"5" * 5),
        Arrived(a, 3, b"0" * 10),
        Sealed(good=True),
        Opened(7),
        Offered((a,)),
    ):
        assert core.step(0, wrong) == []
    assert core.held == 0
    core.step(0, Arrived(a, 0, b"0" * 10))
    assert core.step(0, Arrived(a, 0, b"0" * 10)) == []  # the same once more
    assert core.held == 10


def test_a_source_that_is_offered_later_is_used() -> None:
    core = Transfer(100, CONFIG, random.Random(0))
    core.step(0, Offered((node("a"),)))
    core.step(0, Opened(0))
    later = core.step(0, Offered((node("a"), node("b"))))
    assert {e.source for e in later if isinstance(e, Fetch)} == {node("b")}


KINDS = st.sampled_from(
    [honest(), honest(30.0), dead, empty, short, corrupt, flaky(0.3), dies_at(150)]
)


@given(
    holders=st.lists(KINDS, max_size=6),
    size=st.integers(0, 305),
    held=st.integers(0, 400),
    good_start=st.booleans(),
    seed=st.integers(0, 10_000),
)
def test_it_ends_with_the_blob_or_with_a_reason(
    holders: list[Holder], size: int, held: int, good_start: bool, seed: int
) -> None:
    data = DATA[:size]
    start = bytearray(data[:held] if good_start else bytes(min(held, size)))
    names = {f"n{at}": holder for at, holder in enumerate([*holders, honest()])}
    run = World(data, names, CONFIG, start, seed=seed)
    end = run.run()
    if isinstance(end, Done):
        assert bytes(run.disk) == data
    else:
        # up to eight corrupt holders may be found out before the honest one's turn
        assert run.seals >= 8


def test_more_sources_than_the_bound_are_not_kept() -> None:
    core = Transfer(
        10_000, TransferConfig(piece_bytes=10, window=1000), random.Random(0)
    )
    core.step(0, Offered(tuple(node(f"n{at}") for at in range(100))))
    core.step(0, Offered(tuple(node(f"m{at}") for at in range(100))))
    asked = fetches(core.step(0, Opened(0)))
    assert len({fetch.source for fetch in asked}) == 64
