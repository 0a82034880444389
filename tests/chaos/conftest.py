"""The jobs of all fault tests, and their undisturbed results."""

from pathlib import Path

import pytest
import trio

from p2ptrain.api import submit_async
from p2ptrain.engine.package import Package
from p2ptrain.spec.train import Reduce
from tests.integration import jobs
from tests.integration.daemons import Cluster

STEPS, LONG_STEPS = 150, 600


def make(folder: Path, steps: int) -> Package:
    return jobs.make(folder, steps=steps, reduce=Reduce.EXACT, checkpoint_every=25)


async def undisturbed(folder: Path, package: Package) -> str:
    """Return the final digest of a run on one node."""
    lone = Cluster(folder, 1)
    await lone.begin()
    try:
        session = await submit_async(package, socket=lone.daemons[0].socket)
        line = await session.wait()
    finally:
        lone.stop()
    assert line.result is not None, line.reason
    return line.result.state_digest


@pytest.fixture(scope="session")
def package(tmp_path_factory: pytest.TempPathFactory) -> Package:
    return make(tmp_path_factory.mktemp("jobs") / "job", STEPS)


@pytest.fixture(scope="session")
def truth(package: Package, tmp_path_factory: pytest.TempPathFactory) -> str:
    return trio.run(undisturbed, tmp_path_factory.mktemp("lone"), package)


@pytest.fixture(scope="session")
def long_package(tmp_path_factory: pytest.TempPathFactory) -> Package:
    return make(tmp_path_factory.mktemp("jobs") / "long", LONG_STEPS)


@pytest.fixture(scope="session")
def long_truth(long_package: Package, tmp_path_factory: pytest.TempPathFactory) -> str:
    return trio.run(undisturbed, tmp_path_factory.mktemp("lone"), long_package)


@pytest.fixture(scope="session")
def endless(tmp_path_factory: pytest.TempPathFactory) -> Package:
    return make(tmp_path_factory.mktemp("jobs") / "endless", 100_000)
