"""What an idle daemon costs, read from the kernel."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.daemons import Cluster

pytestmark = [pytest.mark.processes, pytest.mark.slow]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    made = Cluster(tmp_path / "c", 2)
    made.start()
    yield made
    made.stop()


def test_an_idle_daemon_is_small_and_has_no_torch(cluster: Cluster) -> None:
    for daemon in cluster.daemons:
        status = Path(f"/proc/{daemon.pid}/status").read_text()
        resident = next(x for x in status.splitlines() if x.startswith("VmRSS"))
        assert int(resident.split()[1]) < 80 * 1000
        maps = Path(f"/proc/{daemon.pid}/maps").read_text()
        assert "libtorch" not in maps
        assert "numpy" not in maps
