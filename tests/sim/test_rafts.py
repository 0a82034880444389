"""Consensus under loss, doubling, delay, partitions and crashes."""

import os
from collections.abc import Iterator

import pytest

from tests.sim.rafts import Fleet
from tests.sim.world import CALM, STORM, World

SEEDS = range(int(os.environ.get("P2PTRAIN_SIM_SEEDS", "60")))


def chaos(fleet: Fleet, seconds: float) -> None:
    """Let things go wrong for a while: each half second something changes."""
    world, rng = fleet.world, fleet.world.rng
    end = world.now + seconds
    while world.now < end:
        action = rng.choice(
            ["storm", "calm", "cut", "one way", "heal", "crash", "start"]
        )
        count = len(fleet.members)
        world.note(f"--- {action}")
        if action in {"storm", "calm"}:
            world.weather = STORM if action == "storm" else CALM
        elif action in {"cut", "one way"}:
            nodes = list(range(count))
            rng.shuffle(nodes)
            at = rng.randint(0, count)
            world.partition([nodes[:at], nodes[at:]], one_way=action == "one way")
        elif action == "heal":
            world.cut = set()
        else:
            victim = rng.choice(fleet.members)
            if victim.core is not None and action == "crash":
                victim.crash()
            elif victim.core is None:
                victim.start()
        for _ in range(rng.randint(0, 6)):
            fleet.propose()
            world.run(world.now + rng.uniform(0, 0.2), fleet.check)


def recover(fleet: Fleet) -> None:
    world = fleet.world
    world.weather, world.cut = CALM, set()
    for member in fleet.members:
        if member.core is None:
            member.start()


def trace_of(fleet: Fleet) -> str:
    lines = "\n".join(list(fleet.world.trace)[-80:])
    return f"seed {fleet.world.seed}, {len(fleet.members)} nodes\n{lines}"


@pytest.fixture(params=SEEDS)
def fleet(request: pytest.FixtureRequest) -> Iterator[Fleet]:
    seed = request.param
    return Fleet(World(seed), count=1 + seed % 6)


def test_no_chaos_breaks_raft(fleet: Fleet) -> None:
    world = fleet.world
    try:
        fleet.begin()
        world.run(8.0, fleet.check)
        assert fleet.settled(), "no leader in calm weather"
        chaos(fleet, seconds=12.0)
        recover(fleet)
        world.run(world.now + 10.0, fleet.check)
        assert fleet.settled(), "no recovery"
        before = len(fleet.accepted)
        fleet.propose()
        world.run(world.now + 1.0, fleet.check)
        assert len(fleet.accepted) == before + 1, "nothing is accepted"
        applied = set(fleet.members[0].applied)
        lost = [t for t in fleet.accepted if b"command %d" % t not in applied]
        assert lost == [], "accepted commands were lost"
    except AssertionError as error:
        pytest.fail(f"{error}\n{trace_of(fleet)}")
