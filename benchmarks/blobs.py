"""What fetching a blob costs: piece size against window, plain and over mutual TLS.

    python benchmarks/blobs.py [--mib 64] [--rounds 3]

Serving node and fetching node in one process, on loopback, with real files (fsync and
hash included). Prints one line a case, with the rate of ``shutil.copyfile`` plus fsync
and hash of the same bytes as the bound that the disk and the hash set.
"""

import argparse
import logging
import os
import random
import shutil
import statistics
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import structlog
import trio
from blake3 import blake3

from p2ptrain.actors.courier import CourierActor, Depot
from p2ptrain.core.transfer import TransferConfig
from p2ptrain.ids import NodeId
from p2ptrain.messages.bulk import BULK_BYTES_MAX
from p2ptrain.messages.record import BlobRef
from p2ptrain.net.nng import NngTransport
from p2ptrain.security.authority import create_authority, new_key
from p2ptrain.security.identity import save_identity
from p2ptrain.store.blobs import BlobStore
from p2ptrain.tls import TlsMaterial

HOST = "127.0.0.1"
MIB = 1 << 20
A, B = NodeId("a" * 32), NodeId("b" * 32)


def materials(folder: Path) -> list[TlsMaterial | None]:
    authority = create_authority("bench")
    made: list[TlsMaterial | None] = []
    for name in ("server", "client"):
        key = new_key()
        cert = authority.sign(key.public_key(), ())
        made.append(save_identity(folder / name, key, cert, authority.cert).tls)
    return made


@asynccontextmanager
async def pair(
    folder: Path, tls: list[TlsMaterial | None]
) -> AsyncIterator[tuple[BlobStore, NngTransport, NngTransport]]:
    async with (
        NngTransport(HOST, 0, BULK_BYTES_MAX, tls[0]) as server,
        NngTransport(HOST, 0, BULK_BYTES_MAX, tls[1]) as client,
        trio.open_nursery() as nursery,
    ):
        store = BlobStore(folder / "holder")
        depot = Depot(A, store, server, lambda _: None)
        holder = CourierActor(depot, TransferConfig(), random.Random(1))
        await nursery.start(server.serve, holder.handle)
        yield store, server, client
        nursery.cancel_scope.cancel()


async def fetch(
    folder: Path, blob: BlobRef, ends: tuple[str, NngTransport], config: TransferConfig
) -> float:
    """Return the seconds of one fetch into an empty folder."""
    address, client = ends
    with tempfile.TemporaryDirectory(dir=folder) as home:
        depot = Depot(B, BlobStore(Path(home)), client, lambda _: address)
        courier = CourierActor(depot, config, random.Random(1))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(courier.run)
            await trio.lowlevel.checkpoint()
            started = time.perf_counter()
            await courier.fetch((blob,), (A,), lambda *_: None)
            took = time.perf_counter() - started
            nursery.cancel_scope.cancel()
    return took


def copy(source: Path, folder: Path) -> float:
    started = time.perf_counter()
    target = folder / "copy"
    shutil.copyfile(source, target)
    with target.open("rb") as file:
        os.fsync(file.fileno())
    blake3().update_mmap(target)
    took = time.perf_counter() - started
    target.unlink()
    return took


async def main(mib: int, rounds: int) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        plain: list[TlsMaterial | None] = [None, None]
        secure = materials(folder)
        for scheme, tls in (("plain", plain), ("TLS", secure)):
            async with pair(folder, tls) as (store, server, client):
                blob = await store.put(random.Random(1).randbytes(mib * MIB), "")
                ends = (server.address, client)
                for kib in (256, 512, 1024):
                    for window, each in ((1, 1), (4, 4), (8, 4), (8, 8), (16, 16)):
                        config = TransferConfig(kib * 1024, window, each)
                        times = [
                            await fetch(folder, blob, ends, config)
                            for _ in range(rounds)
                        ]
                        rate = mib * MIB / 1e6 / statistics.median(times)
                        case = f"{scheme:5} {kib:4} KiB, window {window:2}/{each:2}"
                        print(f"{case} {rate:6.0f} MB/s", flush=True)
                path = await store.path(blob.digest)
                assert path is not None
                times = [copy(path, folder) for _ in range(rounds)]
                rate = mib * MIB / 1e6 / statistics.median(times)
                print(f"copy, fsync and hash        {rate:6.0f} MB/s")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mib", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    quiet = structlog.make_filtering_bound_logger(logging.WARNING)
    structlog.configure(wrapper_class=quiet)
    trio.run(main, options.mib, options.rounds)
