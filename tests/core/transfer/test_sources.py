"""Who may be asked, and for how long an answer is awaited."""

import math
import random

import pytest

from p2ptrain.core.transfer.sources import SOURCES_MAX, Source, Sources
from p2ptrain.core.transfer.types import TransferConfig
from p2ptrain.ids import NodeId
from tests.core.transfer.world import node

CONFIG = TransferConfig(per_source=2, strikes=3, timeout_s=5.0, timeout_max_s=60.0)


def make(*names: str, seed: int = 0) -> tuple[Sources, list[NodeId]]:
    sources = Sources(CONFIG, random.Random(seed))
    nodes = [node(name) for name in names]
    sources.add(tuple(nodes))
    return sources, nodes


def pick(sources: Sources, now: float = 0.0) -> Source:
    picked = sources.pick(now)
    assert picked is not None
    return picked


def test_the_idlest_is_asked_first() -> None:
    sources, nodes = make("a", "b", "c")
    asked = []
    for offset in range(3):
        source = pick(sources)
        source.flying[offset] = 0.0
        asked.append(source.node)
    assert sorted(asked) == sorted(nodes)
    assert sources.pick(0.0) is None  # none has answered: one request each


def test_an_answer_opens_the_window_and_a_failure_shuts_it() -> None:
    sources, _ = make("a")
    source = pick(sources)
    source.answered(0.1)
    for offset in range(CONFIG.per_source):
        pick(sources).flying[offset] = 1.0
    assert sources.pick(1.0) is None
    landed = sources.landed(source.node, 0)
    assert landed == (source, 1.0)
    assert sources.landed(source.node, 0) is None
    sources.strike(source, 1.0, 2.0, "no answer")
    assert sources.pick(2.0) is None  # it rests, and one is under way
    assert sources.next_again(2.0) == pytest.approx(2.0 + CONFIG.pause_min_s)
    sources.landed(source.node, 1)
    assert pick(sources, 3.0) is source
    assert not source.proven


def test_time_outs_have_a_floor_and_a_ceiling() -> None:
    sources, _ = make("a")
    source = pick(sources)
    assert sources.timeout_s(source) == 5.0
    source.answered(0.01)
    assert sources.timeout_s(source) == 5.0
    source.answered(4.0)
    assert sources.timeout_s(source) == 16.0
    source.answered(1000.0)
    assert sources.timeout_s(source) == 60.0
    sources.strike(source, 1.0, 2.0, "no answer")
    assert sources.timeout_s(source) == 10.0


def test_strikes_end_a_source_and_an_answer_forgives_them() -> None:
    sources, _ = make("a")
    source = pick(sources)
    for now in (1.0, 2.0):
        sources.strike(source, now, now, "no answer")
    source.answered(0.1)
    for now in (3.0, 4.0):
        sources.strike(source, now, now, "no answer")
    assert not source.out
    sources.strike(source, 5.0, 5.0, "no answer")
    assert source.out
    assert sources.exhausted
    assert sources.next_again(0.0) == math.inf
    assert sources.problems() == f"{source.node}: no answer"


def test_a_source_that_is_out_is_still_waited_for() -> None:
    sources, _ = make("a")
    source = pick(sources)
    source.flying[0] = 0.0
    source.drop("does not hold it")
    assert not sources.exhausted
    sources.landed(source.node, 0)
    assert sources.exhausted


def test_blame_falls_on_a_single_supplier_only() -> None:
    for suppliers, resumed, out in ((1, False, 1), (1, True, 0), (2, False, 0)):
        sources, nodes = make("a", "b", "c")
        picked = []
        for offset in range(3):
            source = pick(sources)
            source.flying[offset] = 0.0
            picked.append(source)
        for source in picked[:suppliers]:
            source.supplied = True
        assert sources.blame(resumed=resumed)
        assert [source.out for source in picked] == [True] * out + [False] * (3 - out)
        assert sources.alone
        assert sum(sources.may_send(source) for source in picked) == 1
        assert len(nodes) == 3


def test_each_gets_its_turn_alone() -> None:
    sources, nodes = make("a", "b", "c")
    turns = []
    for _ in nodes:
        assert sources.blame(resumed=False)
        turns.append(pick(sources).node)
    assert sorted(turns) == sorted(nodes)


def test_without_anybody_left_blame_says_so() -> None:
    sources, _ = make("a")
    pick(sources).supplied = True
    assert not sources.blame(resumed=False)


def test_receivers_spread_over_holders() -> None:
    firsts = {pick(make("a", "b", "c", seed=seed)[0]).node for seed in range(20)}
    assert len(firsts) == 3


def test_holders_are_noted_once_and_within_the_bound() -> None:
    sources, _ = make("a")
    sources.add((node("a"), node("b"), node("b")))
    assert sources.problems().count(":") == 2
    sources.add(tuple(node(f"n{at}") for at in range(2 * SOURCES_MAX)))
    assert sources.problems().count(":") == SOURCES_MAX
