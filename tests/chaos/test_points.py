"""Real daemons; a fault strikes one node at a chosen point of the protocol.

After each: the session is finished, all digests are those of an undisturbed run on one
node, the audit is clean, and nothing is left behind.
"""

from collections.abc import AsyncIterator
from dataclasses import asdict, dataclass
from pathlib import Path

import pytest
import trio

from p2ptrain.api import AsyncSession, submit_async
from p2ptrain.engine.package import Package
from tests.chaos.judge import Judge
from tests.integration.daemons import Cluster, Daemon, view_of, wait_until

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.timeout(120)]
FROZEN_S = 3.0


@dataclass(frozen=True)
class Case:
    """A fault, and the node that it strikes: the master, another one, or any: whichever
    comes to the point first.
    """

    point: str
    when: str
    nth: int
    act: str
    node: str = "worker"

    def __str__(self) -> str:
        return f"{self.act} {self.when} {self.point} on the {self.node}"


CASES = [
    Case("ship", "before", 1, "kill node"),
    Case("seal", "before", 1, "kill node"),
    Case("seal", "after", 2, "kill node"),
    Case("greet", "before", 1, "kill node"),
    Case("scatter", "before", 31, "kill node"),
    Case("scatter", "after", 32, "kill trainer"),
    Case("gather", "before", 33, "kill node"),
    Case("gather", "after", 60, "kill node", "master"),
    Case("apply", "before", 40, "kill trainer"),
    Case("apply", "after", 40, "kill node", "master"),
    Case("apply", "before", 20, "raise"),
    Case("scatter", "before", 31, "freeze node"),
    Case("apply", "before", 31, "freeze node", "master"),
    Case("checkpoint", "before", 1, "kill node", "any"),
    Case("checkpoint", "after", 1, "kill node", "any"),
    Case("adopt", "before", 1, "kill node", "any"),
    Case("adopt", "after", 1, "kill node", "any"),
    Case("save", "before", 3, "kill node"),
    Case("save", "after", 4, "kill node", "master"),
    Case("view", "before", 1, "kill node", "master"),
    Case("view", "after", 1, "kill node", "master"),
]


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    made = Cluster(tmp_path / "cluster", 3)
    yield made
    made.stop()


@pytest.fixture
def judge(cluster: Cluster, truth: str) -> Judge:
    return Judge(cluster, truth)


async def begin(cluster: Cluster, case: Case) -> None:
    """Start the cluster, and arm the fault when it stands."""
    victims = {"master": [0], "worker": [2], "any": [0, 1, 2]}[case.node]
    for index in victims:
        folder = str(cluster.folder)
        cluster.daemons[index].fault = asdict(case) | {"folder": folder}
    await cluster.begin()
    await voters(cluster, 3)
    (cluster.folder / "armed").touch()


async def voters(cluster: Cluster, count: int) -> None:
    async def enough() -> bool:
        view = await view_of(cluster.daemons[1])
        return view is not None and len(view.voters) == count

    await wait_until(enough)


async def bring_back(cluster: Cluster, case: Case) -> None:
    """Wait for the fault; then let the node live on."""
    await wait_until((cluster.folder / "struck").exists)
    if case.act == "freeze node":
        (victim,) = [d for d in cluster.daemons if d.fault is not None]
        await wait_until(lambda: victim.is_stopped)
        await trio.sleep(FROZEN_S)
        victim.resume()
    elif case.act == "kill node":
        await wait_until(lambda: any(map(is_dead, cluster.daemons)))
        (victim,) = filter(is_dead, cluster.daemons)
        victim.fault = None
        victim.start()


def is_dead(daemon: Daemon) -> bool:
    assert daemon.process is not None
    return daemon.process.poll() is not None


@pytest.mark.parametrize("case", CASES, ids=str)
async def test_a_fault_at(
    case: Case, cluster: Cluster, judge: Judge, package: Package
) -> None:
    await begin(cluster, case)
    sane = cluster.daemons[1]
    session: AsyncSession = await submit_async(package, socket=sane.socket)
    await bring_back(cluster, case)
    await cluster.meet()
    await judge.finished(session, sane)
    judge.stop_and_look()
