"""Addresses that are tried, and those that are not."""

import math

from p2ptrain.core.membership.seeds import Seeds
from p2ptrain.core.membership.types import MembershipConfig
from p2ptrain.ids import NodeId

NODE = NodeId("a" * 32)


def nobody(_: str, __: NodeId | None) -> bool:
    return False


def due_times(seeds: Seeds, until: float) -> list[float]:
    times = []
    while seeds.deadline < until:
        now = seeds.deadline
        times += [now] * len(seeds.due(now, nobody))
    return times


def test_retries_slow_down_to_a_steady_pace() -> None:
    seeds = Seeds(MembershipConfig())
    seeds.find(0.0, "x:1")
    assert due_times(seeds, 15.0) == [0.0, 0.5, 1.5, 3.5, 7.5, 12.5]


def test_a_live_owner_is_left_in_peace_and_greeted_soon_after_its_end() -> None:
    seeds = Seeds(MembershipConfig())
    seeds.find(0.0, "x:1")
    seeds.answered("x:1", NODE)
    asked: list[NodeId | None] = []

    def alive(_: str, owner: NodeId | None) -> bool:
        asked.append(owner)
        return True

    assert seeds.due(0.0, alive) == []
    assert asked == [NODE]
    assert seeds.deadline == 5.0
    seeds.retry(1.0, "x:1")
    assert seeds.deadline == 1.5


def test_a_dead_members_address_is_tried_for_a_while_only() -> None:
    seeds = Seeds(MembershipConfig(seed_keep_s=20.0))
    seeds.retry(0.0, "x:1")
    times = due_times(seeds, 1000.0)
    assert 15.0 < max(times) <= 20.0
    assert math.isinf(seeds.deadline)


def test_a_configured_address_is_tried_for_ever() -> None:
    seeds = Seeds(MembershipConfig(seed_keep_s=20.0))
    seeds.retry(0.0, "x:1")
    seeds.find(0.0, "x:1")
    assert max(due_times(seeds, 1000.0)) > 990.0


def test_a_leavers_address_is_dropped_unless_configured() -> None:
    seeds = Seeds(MembershipConfig())
    seeds.retry(0.0, "x:1")
    seeds.stop("x:1")
    assert math.isinf(seeds.deadline)
    seeds.find(0.0, "x:1")
    seeds.stop("x:1")
    assert seeds.deadline == 0.0
    seeds.stop("unknown:1")


def test_a_forgotten_address_is_shunned_for_a_while() -> None:
    config = MembershipConfig(forget_s=30.0)
    seeds = Seeds(config)
    seeds.retry(0.0, "x:1")
    seeds.forget(1.0, "x:1")
    assert math.isinf(seeds.deadline)
    seeds.find(2.0, "x:1")
    assert due_times(seeds, 40.0)[0] == 31.0


def test_everything_is_bounded() -> None:
    seeds = Seeds(MembershipConfig(seeds_max=10))
    for index in range(100):
        seeds.find(0.0, f"x:{index}")
        seeds.forget(0.0, f"y:{index}")
        seeds.own(f"z:{index}")
    assert len(seeds._seeds) == len(seeds._shunned) == len(seeds._own) == 10
    seeds.forget(1000.0, "new:1")
    assert list(seeds._shunned) == ["new:1"]  # the old ones have served their time


def test_a_death_does_not_end_shunning() -> None:
    seeds = Seeds(MembershipConfig(forget_s=30.0))
    seeds.find(0.0, "x:1")
    seeds.forget(1.0, "x:1")
    seeds.retry(2.0, "x:1")
    assert due_times(seeds, 40.0)[0] >= 31.0
