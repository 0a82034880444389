"""All-reduce of fp32 vectors around our ring, against gloo in the same run.

    python benchmarks/ring.py [--worlds 2 3 4] [--rounds 10]

One process a rank, all on loopback; the three (ours, ours over mutual TLS, gloo) take
turns within each round. Prints the median time at rank 0 and its ratio to gloo's, one
line a case, and the same for the exact mode's 64-bit integers (twice the bytes).
"""

import argparse
import multiprocessing
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist

from p2ptrain.engine.collective import Group
from p2ptrain.engine.rendezvous import Place, RingListener
from p2ptrain.ids import NodeId
from p2ptrain.messages.session import RingSeat
from p2ptrain.security.authority import create_authority, new_key
from p2ptrain.security.identity import save_identity
from p2ptrain.tls import TlsMaterial

HOST = "127.0.0.1"
MIB = 1 << 20
SIZES = (MIB, 64 * MIB)


@dataclass(frozen=True)
class Job:
    """What all the ranks of one run know."""

    world: int
    rounds: int
    people: tuple[tuple[NodeId, TlsMaterial], ...]
    store: str


def enlist(folder: Path, count: int) -> tuple[tuple[NodeId, TlsMaterial], ...]:
    authority = create_authority("bench")
    made = []
    for rank in range(count):
        key = new_key()
        cert = authority.sign(key.public_key(), ())
        person = save_identity(folder / str(rank), key, cert, authority.cert)
        assert person.tls is not None
        made.append((person.node, person.tls))
    return tuple(made)


def join(job: Job, rank: int, view: int, tls: TlsMaterial | None) -> Group:
    """Meet the others; gloo carries the port numbers."""
    listener = RingListener(HOST, (0, 0), tls)
    ports = [torch.zeros(1, dtype=torch.int64) for _ in range(job.world)]
    dist.all_gather(ports, torch.tensor([listener.port]))
    seats = tuple(
        RingSeat(node, 1, f"{HOST}:{int(port)}")
        for (node, _), port in zip(job.people, ports, strict=True)
    )
    group = Group(rank, job.world, view, stall_s=60.0)
    group.open(listener, Place("bench", view, rank, seats), timeout_s=30.0)
    return group


def timed(reduce: Callable[[], object]) -> float:
    dist.barrier()
    started = time.perf_counter()
    reduce()
    return time.perf_counter() - started


def measure(ways: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Return each way's median, in seconds; the ways take turns."""
    times: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(rounds + 2):
        for name, way in ways.items():
            took = timed(way)
            if turn >= 2:  # the first ones open connections and touch memory
                times[name].append(took)
    return {name: statistics.median(each) for name, each in times.items()}


def run_rank(job: Job, rank: int) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{job.store}", rank=rank, world_size=job.world
    )
    plain = join(job, rank, 1, None)
    secure = join(job, rank, 2, job.people[rank][1])
    for size in SIZES:
        flat = torch.ones(size // 4)
        ints = torch.ones(size // 4, dtype=torch.int64)
        medians = measure(
            {
                "ours": lambda v=flat: plain.reduce(v, b""),
                "gloo": lambda v=flat: dist.all_reduce(v),
                "ours, TLS": lambda v=flat: secure.reduce(v, b""),
                "ours, exact": lambda v=ints: plain.reduce(v, b""),
            },
            job.rounds,
        )
        if rank == 0:
            report(job.world, size, medians)
    plain.close()
    secure.close()
    dist.destroy_process_group()


def report(world: int, size: int, medians: dict[str, float]) -> None:
    for name, median in medians.items():
        ratio = median / medians["gloo"]
        head = f"n={world} {size // MIB:3} MiB  {name}"
        print(f"{head:28} {median * 1e3:8.2f} ms  {ratio:5.2f} x gloo", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--worlds", type=int, nargs="+", default=[2, 3, 4])
    parser.add_argument("--rounds", type=int, default=10)
    options = parser.parse_args()
    context = multiprocessing.get_context("spawn")
    for world in options.worlds:
        with tempfile.TemporaryDirectory() as folder:
            people = enlist(Path(folder), world)
            job = Job(world, options.rounds, people, f"{folder}/store")
            ranks = [
                context.Process(target=run_rank, args=(job, rank))
                for rank in range(world)
            ]
            for rank in ranks:
                rank.start()
            for rank in ranks:
                rank.join()


if __name__ == "__main__":
    main()
