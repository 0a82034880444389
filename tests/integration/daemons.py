"""Daemons as processes on loopback, each in a folder of its own."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import trio

from p2ptrain.cli.demo import free_ports
from p2ptrain.client import connect
from p2ptrain.errors import NoDaemonError
from p2ptrain.members import MemberStatus
from p2ptrain.messages.gate import Nodes, NodesRequest

START_S = 60.0
ROOT = Path(__file__).parent.parent.parent


@dataclass
class Daemon:
    """One node's process; ``start`` may be called again after ``kill``."""

    name: str
    home: Path
    settings: dict[str, object]
    process: subprocess.Popen[bytes] | None = None
    environment: dict[str, str] = field(default_factory=dict)
    prefix: tuple[str, ...] = ()  # what its command begins with
    fault: dict[str, object] | None = None  # as in ``tests.chaos.victim``

    @property
    def socket(self) -> Path:
        return self.home / "gate.sock"

    @property
    def log(self) -> str:
        return (self.home / "daemon.log").read_text()

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def start(self) -> None:
        self.home.mkdir(parents=True, exist_ok=True)
        file = self.home / "node.toml"
        lines = [
            f"{key} = {json.dumps(value)}\n" for key, value in self.settings.items()
        ]
        file.write_text("".join(lines))
        environment = os.environ | {"OMP_NUM_THREADS": "1"} | self.environment
        module = "p2ptrain"
        if self.fault is not None:
            module = "tests.chaos.victim"
            environment |= {"CHAOS": json.dumps(self.fault)}
        command = (sys.executable, "-m", module)
        with (self.home / "daemon.log").open("ab") as output:
            self.process = subprocess.Popen(
                [*self.prefix, *command, "join", "--config", str(file)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=environment,
                cwd=ROOT,
            )

    def kill(self) -> None:
        """As a power cut: no goodbye. Its trainers end with its pipes."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    @property
    def trainers(self) -> list[int]:
        """Pids of the processes that the daemon has started."""
        children = Path(f"/proc/{self.pid}/task").glob("*/children")
        return [int(pid) for file in children for pid in file.read_text().split()]

    @property
    def is_stopped(self) -> bool:
        """Whether the daemon is frozen."""
        stat = Path(f"/proc/{self.pid}/stat").read_text()
        return stat.rpartition(")")[2].split()[0] == "T"

    def freeze(self) -> None:
        """Stop the daemon and its trainers, as a machine that hangs."""
        for pid in (self.pid, *self.trainers):
            os.kill(pid, signal.SIGSTOP)

    def resume(self) -> None:
        for pid in (self.pid, *self.trainers):
            os.kill(pid, signal.SIGCONT)

    def stop(self) -> None:
        if self.process is None or self.process.poll() is not None:
            return
        self.process.send_signal(signal.SIGCONT)
        self.process.terminate()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


@dataclass
class Cluster:
    """Daemons that know each other by one seed, the first of which founds."""

    folder: Path
    count: int
    extra: dict[str, object] = field(default_factory=dict)
    daemons: list[Daemon] = field(default_factory=list)

    def __post_init__(self) -> None:
        ports = free_ports(2 * self.count)[::2]
        for index in range(self.count):
            home = self.folder / f"n{index}"
            settings: dict[str, object] = {
                "name": f"n{index}",
                "state_dir": str(home),
                "runtime_dir": str(home),
                "host": "127.0.0.1",
                "port": ports[index],
                "ring_ports": [0, 0],
                "plain": True,
                "mdns": False,
                "threads": 1,
                "warm": False,  # trainers that nobody uses cost these tests seconds
                "bootstrap": index == 0,
                "seeds": [f"127.0.0.1:{ports[0]}"] if index else [],
            }
            self.daemons.append(Daemon(f"n{index}", home, settings | self.extra))

    def start(self) -> None:
        trio.run(self.begin)

    async def begin(self) -> None:
        for daemon in self.daemons:
            daemon.start()
        await self.meet()

    def stop(self) -> None:
        for daemon in self.daemons:
            daemon.stop()

    async def meet(self) -> None:
        """Wait until all running daemons see one another and one master."""
        up = [d for d in self.daemons if d.process and d.process.poll() is None]
        deadline = time.monotonic() + START_S
        views: list[Nodes | None] = []
        while time.monotonic() < deadline:
            views = [await view_of(daemon) for daemon in up]
            if all(view and is_whole(view, len(up)) for view in views):
                return
            await trio.sleep(0.05)
        logs = "\n".join(daemon.log[-1500:] for daemon in self.daemons)
        raise AssertionError(f"the daemons did not meet: {views}\n{logs}")


def is_whole(view: Nodes, count: int) -> bool:
    alive = [m for m in view.members if m.status is MemberStatus.ALIVE]
    return len(alive) == count and bool(view.master)


async def wait_until(
    holds: Callable[[], bool] | Callable[[], Awaitable[bool]], seconds: float = 30
) -> None:
    """Wait until something holds; the deadline makes it a failure, not a guess."""
    with trio.fail_after(seconds):
        while True:
            found = holds()
            if found if isinstance(found, bool) else await found:
                return
            await trio.sleep(0.05)


class HasSocket(Protocol):
    @property
    def socket(self) -> Path: ...


async def view_of(daemon: HasSocket) -> Nodes | None:
    try:
        async with connect(daemon.socket) as gate:
            return await gate.ask(NodesRequest(), Nodes)
    except NoDaemonError:
        return None
