"""Kills at random while a job runs: what each costs, and whether anything was lost.

    python benchmarks/churn.py [--seconds 60] [--kills 20] [--seed 1] [--json]

Four daemons on this machine train a 4 MiB model in ``exact`` mode. For a minute a
random one of them, at least every fourth time the master, is killed with its trainer
and started again; then some are frozen for a while. The same job runs undisturbed on
one node first: its final state is what the churned one must reach, bit for bit.

Stalls are read off the trainers' timelines: from a fault to the next step that any rank
commits, and for a joiner the longest pause of the others around its first step.
"""

import argparse
import json
import random
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
import trio
from torch import Tensor, nn
from torch.nn import functional

sys.path.insert(0, str(Path(__file__).parent.parent))

from p2ptrain.api import AsyncSession, submit_async
from p2ptrain.cli.audit import gather
from p2ptrain.core.audit import Verdict, replay
from p2ptrain.engine.package import Job, Package, captured, package
from p2ptrain.engine.settings import Settings
from p2ptrain.messages.gate import SessionLine
from p2ptrain.messages.record import SessionStatus
from p2ptrain.spec.train import Reduce
from tests.integration import timeline
from tests.integration.daemons import Cluster, Daemon, view_of, wait_until

NODES = 4
BATCH, PARTS, SAMPLES = 8, 8, 16384
MASTER_EVERY = 4
BACK_S = (0.2, 1.0)  # a killed daemon is started again after so long
FROZEN_S = 8.0
TARGETS = {
    "worker_killed": (0.5, 1.0),
    "master_killed": (1.0, 1.0),
    "worker_frozen": (5.0, 5.0),
    "joined": (0.5, 0.5),
    "rejoin": (3.0, 3.0),
    "election": (5.0, 5.0),
}


@dataclass
class Fault:
    """What was done to whom, when (wall clock)."""

    kind: str
    node: str
    at: float


@dataclass
class Log:
    """What happened."""

    faults: list[Fault] = field(default_factory=list)
    starts: list[tuple[str, float]] = field(default_factory=list)
    elections: list[float] = field(default_factory=list)


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        *(nn.Linear(64, 1024), nn.ReLU(), nn.Linear(1024, 900), nn.ReLU()),
        nn.Linear(900, 10),
    )


def loss(net: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    return functional.cross_entropy(net(batch["x"]), batch["y"])


def job(folder: Path, steps: int) -> Package:
    """Package the job: 1.0 M parameters in fp32, so many steps."""
    rng = np.random.default_rng(1)
    x = rng.standard_normal((SAMPLES, 64), dtype=np.float32)
    data = {"x": x, "y": (x[:, :10].argmax(axis=1)).astype(np.int64)}
    example = {name: torch.from_numpy(a[:BATCH]) for name, a in data.items()}
    made = Job(model=model(), loss=loss, example_batch=example, data=data)
    folder.mkdir(parents=True)
    epochs = -(-steps * BATCH * PARTS // SAMPLES)
    return package(
        captured(made),
        data=data,
        eval_data=None,
        folder=folder,
        settings=Settings(
            lr_per_epoch=(0.05,) * epochs,
            momentum=0.9,
            global_batch=BATCH * PARTS,
            reduce=Reduce.EXACT,
            seed=3,
        ),
    )


async def end_of(session: AsyncSession) -> SessionLine:
    line = await session.wait()
    if line.status is not SessionStatus.DONE:
        raise SystemExit(f"the session {line.status}: {line.reason}")
    return line


async def undisturbed(folder: Path, steps: int) -> str:
    """Return the final digest of the job on one node."""
    lone = Cluster(folder / "lone", 1)
    await lone.begin()
    try:
        made = job(folder / "lone-job", steps)
        line = await end_of(await submit_async(made, socket=lone.daemons[0].socket))
    finally:
        lone.stop()
    assert line.result is not None
    return line.result.state_digest


class Churn:
    """One run.

    Args:
        cluster: the daemons.
        session: the job on them.
        rng: decides what happens.
    """

    def __init__(self, cluster: Cluster, session: str, rng: random.Random) -> None:
        self.cluster, self.session, self.rng = cluster, session, rng
        self.log = Log()
        self.kills = 0

    @property
    def up(self) -> list[Daemon]:
        """Return the daemons that run."""
        return [d for d in self.cluster.daemons if d.process and not d.process.poll()]

    async def master(self, *, but: Daemon | None = None) -> Daemon | None:
        """Return the master, as a daemon that is up sees it."""
        for daemon in self.up:
            view = None if daemon is but else await view_of(daemon)
            if view is not None and view.master:
                names = {m.node: m.name for m in view.members}
                return self.named(names.get(view.master, ""))
        return None

    def named(self, name: str) -> Daemon | None:
        """Return the daemon of a name, if it runs."""
        return next((d for d in self.up if d.name == name), None)

    async def storm(self, seconds: float, kills: int) -> None:
        """Kill at random moments, evenly spread."""
        began = trio.current_time()
        async with trio.open_nursery() as nursery:
            for number in range(kills):
                at = began + (number + self.rng.random()) * seconds / kills
                await trio.sleep_until(at)
                await self.kill_one(nursery)

    async def kill_one(self, nursery: trio.Nursery) -> None:
        """Kill a daemon and have it brought back; every few times the master."""
        master = await self.master()
        of_master = self.kills % MASTER_EVERY == 0 and master is not None
        others = [d for d in self.up if d is not master]
        victim = master if of_master else self.rng.choice(others)
        assert victim is not None
        self.kills += 1
        kind = "master_killed" if of_master else "worker_killed"
        self.log.faults.append(Fault(kind, victim.name, time.time()))
        victim.kill()
        if of_master:
            nursery.start_soon(self.time_election, victim, time.time())
        nursery.start_soon(self.bring_back, victim)

    async def bring_back(self, victim: Daemon) -> None:
        """Start a killed daemon again after a while."""
        await trio.sleep(self.rng.uniform(*BACK_S))
        self.log.starts.append((victim.name, time.time()))
        victim.start()

    async def time_election(self, old: Daemon, at: float) -> None:
        """Note how long it takes until another node leads."""
        with trio.move_on_after(30):
            while True:
                found = await self.master(but=old)
                if found is not None and found is not old:
                    self.log.elections.append(time.time() - at)
                    return
                await trio.sleep(0.05)

    async def freeze_one(self) -> None:
        """Freeze a worker with its trainer, and thaw it again."""
        master = await self.master()
        victim = self.rng.choice([d for d in self.up if d is not master])
        self.log.faults.append(Fault("worker_frozen", victim.name, time.time()))
        victim.freeze()
        await trio.sleep(FROZEN_S)
        victim.resume()


async def measure_rate(folder: Path, cluster: Cluster) -> float:
    """Return steps a second of the job on all nodes."""
    made = job(folder / "rate-job", 256)
    session = await submit_async(made, socket=cluster.daemons[0].socket)
    await end_of(session)
    seen = timeline.read([d.home for d in cluster.daemons], session.id)
    times = sorted(seen.committed.values())
    return (len(times) - 1) / (times[-1] - times[0])


async def run(arguments: argparse.Namespace, folder: Path) -> dict[str, object]:
    rng = random.Random(arguments.seed)
    cluster = Cluster(folder / "cluster", NODES, {"trace": True, "warm": True})
    await cluster.begin()
    try:
        rate = await measure_rate(folder, cluster)
        busy = arguments.seconds + arguments.freezes * (FROZEN_S + 8)
        steps = arguments.steps or int(1.5 * rate * busy)
        say(f"{rate:.1f} steps/s undisturbed on {NODES} nodes; the job has {steps}")
        made = job(folder / "job", steps)
        session = await submit_async(made, socket=cluster.daemons[0].socket)
        homes = [d.home for d in cluster.daemons]
        await wait_until(lambda: len(timeline.read(homes, session.id).committed) > 20)
        churn = Churn(cluster, session.id, rng)
        await churn.storm(arguments.seconds, arguments.kills)
        await cluster.meet()
        for _ in range(arguments.freezes):
            await trio.sleep(8)
            await churn.freeze_one()
        line = await end_of(session)
        await trio.sleep(2)
        account, _ = await gather(cluster.daemons[0].socket, session.id)
        verdict = replay(account)
        digests = {str(r.digest) for r in line.result.reports} if line.result else set()
    finally:
        cluster.stop()
    seen = timeline.read(homes, session.id)
    (folder / "churn.json").write_text(json.dumps(vars(churn.log), default=vars))
    say("now the same job undisturbed on one node")
    expected = await undisturbed(folder, steps)
    return figures(churn.log, seen, verdict, equal=digests == {expected})


def figures(
    log: Log, seen: timeline.Timeline, verdict: Verdict, *, equal: bool
) -> dict[str, object]:
    by_kind: dict[str, list[float]] = {kind: [] for kind in TARGETS}
    for fault in log.faults:
        by_kind[fault.kind].append(seen.stall(fault.at))
    for node, at in log.starts:
        first = seen.first_of(node, at)
        died = [f.at for f in log.faults if f.node == node and f.at > at]
        if first < min(died, default=float("inf")):
            by_kind["rejoin"].append(first - at)
            by_kind["joined"].append(seen.gap_before(first))
    by_kind["election"] = log.elections
    return {
        "kills": sum(f.kind != "worker_frozen" for f in log.faults),
        "master_kills": sum(f.kind == "master_killed" for f in log.faults),
        "committed_steps": len(seen.committed),
        "aborted_steps": seen.aborted,
        "stall_s": {kind: spread(times) for kind, times in by_kind.items() if times},
        "digest_mismatches": verdict.mismatches,
        "samples_lost": verdict.lost,
        "samples_doubled": verdict.doubled,
        "ledger_clean": verdict.clean,
        "findings": verdict.findings,
        "final_digest_equal": equal,
    }


def spread(times: list[float]) -> dict[str, float]:
    return {
        "median": round(statistics.median(times), 3),
        "worst": round(max(times), 3),
        "count": len(times),
    }


def show(found: dict[str, object]) -> None:
    stalls = found.pop("stall_s")
    assert isinstance(stalls, dict)
    for key, value in found.items():
        print(f"{key:20} {value}")
    print(f"{'seconds':20} {'median':>8} {'worst':>8} {'count':>6}   targets")
    for kind, times in stalls.items():
        middle, worst = TARGETS[kind]
        print(
            f"{kind:20} {times['median']:8.3f} {times['worst']:8.3f} "
            f"{times['count']:6}   {middle:.1f} {worst:.1f}"
        )


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--freezes", type=int, default=3)
    parser.add_argument("--steps", type=int, default=0, help="0: as long as needed")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", type=Path, help="leave all files in this folder")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as made:
        folder = Path(arguments.keep or made)
        found = trio.run(run, arguments, folder)
    if arguments.json:
        print(json.dumps(found))
    else:
        show(found)


if __name__ == "__main__":
    main()
