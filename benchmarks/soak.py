"""Whether anything grows: memory, descriptors and threads of daemons and trainers.

    python benchmarks/soak.py --minutes 30 [--json]

Three daemons on this machine train one long session; a short one comes and goes every
few seconds, and now and then the master is asked for all there is to ask. Each process
is looked at every five seconds; after a fifth of the time as a warm-up, a line is
fitted through what was seen. Its slopes are an hour's growth.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import trio

sys.path.insert(0, str(Path(__file__).parent.parent))

from p2ptrain.api import AsyncSession, submit_async
from p2ptrain.cli.audit import gather
from p2ptrain.engine.package import Package
from p2ptrain.messages.record import SessionStatus
from tests.integration import jobs
from tests.integration.daemons import Cluster

EVERY_S = 5.0
PAGE = os.sysconf("SC_PAGE_SIZE")
WARM_UP = 0.2


@dataclass
class Seen:
    """What one process was, over time."""

    times: list[float] = field(default_factory=list)
    mb: list[float] = field(default_factory=list)
    descriptors: list[int] = field(default_factory=list)
    threads: list[int] = field(default_factory=list)

    def look(self, pid: int) -> None:
        """Take one sample, if the process lives."""
        try:
            pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
            descriptors = sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())
            threads = sum(1 for _ in Path(f"/proc/{pid}/task").iterdir())
        except OSError:
            return
        self.times.append(time.monotonic())
        self.mb.append(pages * PAGE / 1e6)
        self.descriptors.append(descriptors)
        self.threads.append(threads)

    def summary(self) -> dict[str, float]:
        """Return the last values and the growth an hour."""
        return {
            "mb": round(self.mb[-1], 1),
            "mb_per_hour": slope(self.times, self.mb),
            "descriptors": self.descriptors[-1],
            "descriptors_per_hour": slope(self.times, self.descriptors),
            "threads": self.threads[-1],
            "threads_per_hour": slope(self.times, self.threads),
        }


def slope(times: list[float], values: list[float] | list[int]) -> float:
    """Return the growth an hour of the line through the samples after the warm-up."""
    first = int(len(times) * WARM_UP)
    if len(times) - first < 3:
        return float("nan")
    hours = np.array(times[first:]) / 3600
    return round(float(np.polyfit(hours - hours[0], values[first:], 1)[0]), 2)


class Soak:
    """The run.

    Args:
        cluster: the daemons.
        folder: for jobs.
    """

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self.cluster = cluster
        self.seen: dict[str, Seen] = defaultdict(Seen)
        self.short = jobs.make(folder / "short", steps=30)
        self.sessions = 0
        self.long: AsyncSession | None = None

    async def train_long(self, package: Package) -> None:
        """Keep one session running."""
        while True:
            socket = self.cluster.daemons[0].socket
            self.long = await submit_async(package, socket=socket)
            await self.long.wait()

    async def come_and_go(self) -> None:
        """Have short sessions come and go."""
        while True:
            at = self.cluster.daemons[self.sessions % len(self.cluster.daemons)]
            session = await submit_async(self.short, socket=at.socket)
            line = await session.wait()
            if line.status is not SessionStatus.DONE:
                raise SystemExit(f"a short session {line.status}: {line.reason}")
            await gather(at.socket, session.id)
            self.sessions += 1
            await trio.sleep(1)

    async def look(self) -> None:
        """Look at every process, again and again."""
        while True:
            await trio.sleep(EVERY_S)
            for daemon in self.cluster.daemons:
                self.seen[daemon.name].look(daemon.pid)
                oldest = min(daemon.trainers, default=0)  # the long session's
                if oldest:
                    self.seen[f"{daemon.name} trainer {oldest}"].look(oldest)


async def run(minutes: float, folder: Path) -> dict[str, object]:
    cluster = Cluster(folder / "cluster", 3, {"warm": True})
    await cluster.begin()
    soak = Soak(cluster, folder)
    steps, samples = int(minutes * 60 * 400), jobs.arrays(50_000, seed=1)
    endless = jobs.make(folder / "long", steps=steps, data=samples)
    try:
        with trio.move_on_after(minutes * 60):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(soak.train_long, endless)
                await trio.sleep(5)
                nursery.start_soon(soak.come_and_go)
                nursery.start_soon(soak.look)
        disk = sum(f.stat().st_size for f in cluster.folder.rglob("*") if f.is_file())
    finally:
        cluster.stop()
    long = {n: s for n, s in soak.seen.items() if len(s.times) > 10}
    return {
        "minutes": minutes,
        "sessions": soak.sessions,
        "disk_mb": round(disk / 1e6, 1),
        "processes": {name: seen.summary() for name, seen in long.items()},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = trio.run(run, arguments.minutes, Path(folder))
    if arguments.json:
        print(json.dumps(found))
        return
    processes = found.pop("processes")
    assert isinstance(processes, dict)
    print(found)
    for name, figures in processes.items():
        print(f"{name:20}", "  ".join(f"{k} {v}" for k, v in figures.items()))


if __name__ == "__main__":
    main()
