"""A cluster with certificates, made by the commands that a person types."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from p2ptrain.api import submit_async
from p2ptrain.cli.demo import free_ports
from p2ptrain.errors import ExitCode
from p2ptrain.members import MemberStatus
from p2ptrain.messages.record import SessionStatus
from tests.integration import jobs
from tests.integration.daemons import view_of, wait_until

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.timeout(180)]


class Machine:
    """A person's machine: a state folder, and what is typed there."""

    def __init__(self, home: Path, port: int) -> None:
        self.home, self.port = home, port
        self.home.mkdir()
        self.process: subprocess.Popen[bytes] | None = None
        self.environment = os.environ | {
            "P2PTRAIN_STATE_DIR": str(home),
            "P2PTRAIN_RUNTIME_DIR": str(home),
            "P2PTRAIN_NAME": home.name,
            "P2PTRAIN_HOST": "127.0.0.1",
            "P2PTRAIN_ADVERTISE": "127.0.0.1",
            "P2PTRAIN_PORT": str(port),
            "P2PTRAIN_RING_PORTS": "0,0",
            "P2PTRAIN_THREADS": "1",
        }

    @property
    def socket(self) -> Path:
        return self.home / "gate.sock"

    def type(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "p2ptrain", *arguments],
            capture_output=True,
            text=True,
            timeout=60,
            env=self.environment,
            check=False,
        )

    def run(self, *arguments: str) -> None:
        with (self.home / "daemon.log").open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "p2ptrain", "join", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self.environment,
            )

    def stop(self) -> None:
        if self.process is not None:
            self.process.terminate()
            self.process.wait(20)


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[tuple[Machine, Machine]]:
    ports = free_ports(8)  # control, bulk and enrolment of each
    pair = Machine(tmp_path / "ada", ports[0]), Machine(tmp_path / "emmy", ports[4])
    yield pair
    for machine in pair:
        machine.stop()


async def test_two_machines_by_token(
    machines: tuple[Machine, Machine], tmp_path: Path
) -> None:
    ada, emmy = machines
    founded = ada.type("init")
    assert founded.returncode == ExitCode.OK, founded.stderr
    found = re.search(r"p2ptrain join (\S+@127\.0\.0\.1:\d+)", founded.stderr)
    assert found is not None
    invitation = found.group(1)
    ada.run()
    await wait_until(ada.socket.exists)

    forged = re.sub(r"^....", "AAAA", invitation)
    refused = emmy.type("join", forged)
    assert refused.returncode == ExitCode.AUTH, refused.stderr
    assert len(refused.stderr.strip().splitlines()) == 1

    emmy.run(invitation)
    await wait_until(emmy.socket.exists)

    async def together() -> bool:
        views = [await view_of(machine) for machine in machines]
        return all(
            view is not None
            and view.master
            and sum(m.status is MemberStatus.ALIVE for m in view.members) == 2
            for view in views
        )

    await wait_until(together)
    again = ada.type("token")
    third = Machine(tmp_path / "used", free_ports(2)[0])
    spent = third.type("join", invitation)
    assert spent.returncode == ExitCode.AUTH, spent.stderr
    assert again.returncode == ExitCode.OK

    package = jobs.make(tmp_path / "job", steps=20, parts=2)
    session = await submit_async(package, socket=emmy.socket)
    line = await session.wait()
    assert line.status is SessionStatus.DONE, line.reason
    assert len(line.members) == 2

    left = emmy.type("leave")
    assert left.returncode == ExitCode.OK, left.stderr
    assert emmy.process is not None
    assert emmy.process.wait(20) == 0

    async def alone() -> bool:
        view = await view_of(ada)
        return view is not None and {
            m.name for m in view.members if m.status is MemberStatus.ALIVE
        } == {"ada"}

    await wait_until(alone)


def test_keys_are_private(machines: tuple[Machine, Machine]) -> None:
    ada, _ = machines
    ada.type("init")
    for key in (ada.home / "ca" / "ca.key", ada.home / "tls" / "node.key"):
        assert key.stat().st_mode & 0o077 == 0
