"""Every core together: jobs are trained to the right bits, whatever happens."""

import os

import pytest

from p2ptrain.ids import digest_of
from tests.sim.cluster import SimCluster
from tests.sim.trainers import SimJob
from tests.sim.world import CALM, STORM, World

SEEDS = range(int(os.environ.get("P2PTRAIN_SIM_SEEDS", "300")))
CHAOS_S = 12.0
RECOVERY_S = 240.0


def disturb(cluster: SimCluster) -> None:
    """Do one bad, or good, thing."""
    world, rng = cluster.world, cluster.world.rng
    count = len(cluster.nodes)
    node = rng.choice(cluster.nodes)
    action = rng.choice(
        ["weather", "cut", "one way", "heal", "crash", "start", "freeze"]
    )
    world.note(f"--- {action} n{node.index}")
    match action:
        case "weather":
            world.weather = rng.choice([CALM, STORM])
        case "cut" | "one way":
            nodes = rng.sample(range(count), count)
            at = rng.randint(0, count)
            world.partition([nodes[:at], nodes[at:]], one_way=action == "one way")
        case "heal":
            world.cut = set()
        case "crash":
            if node.up:
                node.crash()
        case "start":
            if not node.up:
                node.start()
        case "freeze":
            if node.up and not node.frozen:
                node.frozen = True
                life = node.life

                def thaw() -> None:
                    if node.life == life:
                        node.thaw()

                world.later(rng.uniform(0.1, 6.0), thaw)


def recover(cluster: SimCluster) -> None:
    world = cluster.world
    cluster.is_cruel = False
    world.weather, world.cut = CALM, set()
    for node in cluster.nodes:
        if not node.up:
            node.start()
        elif node.frozen:
            node.thaw()


def live(cluster: SimCluster) -> None:
    world, rng = cluster.world, cluster.world.rng
    cluster.begin()
    world.run(2.0, cluster.check)
    for number in range(rng.randint(1, 2)):
        job = SimJob(parts=rng.randint(1, 6), steps=rng.randint(15, 60))
        cluster.submit(f"job {number}", job)
    cluster.is_cruel = True
    end = world.now + CHAOS_S
    while world.now < end:
        disturb(cluster)
        world.run(world.now + rng.uniform(0.1, 1.5), cluster.check)
    recover(cluster)
    end = world.now + RECOVERY_S
    while world.now < end and not cluster.finished():
        world.run(world.now + 1.0, cluster.check)
    assert cluster.finished(), "the sessions did not end"
    for node in cluster.nodes:
        for digest, data in node.blobs.items():
            assert digest_of(data) == digest, "a blob holds other bytes"


@pytest.mark.parametrize("seed", SEEDS)
def test_chaos_changes_no_bit(seed: int) -> None:
    cluster = SimCluster(World(seed), count=1 + seed % 5)
    try:
        live(cluster)
    except AssertionError as error:
        tail = "\n".join(list(cluster.world.trace)[-60:])
        rows = [
            (row.status, row.reason, row.step, len(row.views))
            for node in cluster.nodes
            if node.up
            for row in node.registry.sessions.values()
        ]
        pytest.fail(f"seed {seed}: {error}\n{tail}\n{rows}")
