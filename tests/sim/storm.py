"""One seed of the whole cluster: everything goes wrong for a while, then nothing more.

First safety: whatever happens, no invariant breaks. Then liveness: in calm weather all
sessions finish with the right bits within bounded time, and a new one is accepted.
"""

from p2ptrain.ids import digest_of
from tests.sim.cluster import SimCluster
from tests.sim.trainers import SimJob
from tests.sim.world import CALM, STORM, World

CHAOS_S = 12.0
RECOVERY_S = 240.0
AFTER_S = 60.0


def disturb(cluster: SimCluster) -> None:
    """Do one bad, or good, thing."""
    world, rng = cluster.world, cluster.world.rng
    count = len(cluster.nodes)
    node = rng.choice(cluster.nodes)
    action = rng.choice(
        [
            *("weather", "cut", "one way", "heal", "crash", "start", "freeze"),
            *("start", "clock", "slow", "full", "trainer"),
        ]
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
        case "clock":
            node.clock_off_s = rng.choice([-900.0, -3.0, 3.0, 900.0])
        case "slow":
            node.slow = rng.choice([1.0, 3.0, 10.0])
        case "full":
            node.full = not node.full
        case "trainer":
            for trainer in list(node.trainers.values()):
                node.trainer_died(trainer)
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
        node.slow, node.full = 1.0, False
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
    cluster.submit("afterwards", SimJob(parts=3, steps=12))
    end = world.now + AFTER_S
    while world.now < end and not cluster.finished():
        world.run(world.now + 0.5, cluster.check)
    assert cluster.finished(), "a new session is not accepted, or does not end"
    for node in cluster.nodes:
        for digest, data in node.blobs.items():
            assert digest_of(data) == digest, "a blob holds other bytes"


def play(seed: int) -> str:
    """Live through a seed; return what broke, with the end of its trace, or nothing."""
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
        again = f"replay it: python -m tests.sim --seed {seed}"
        return f"seed {seed}: {error}\n{tail}\n{rows}\n{again}"
    return ""
