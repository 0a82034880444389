"""The daemon's cost: memory, start-up, and how long its loop keeps a caller waiting
while its node trains. The peer is a bare trio program that answers the same request.
"""

import statistics
import sys
import tempfile
import time
from pathlib import Path

import trio

sys.path.insert(0, str(Path(__file__).parent.parent))

from p2ptrain import codec
from p2ptrain.api import FINAL, submit_async
from p2ptrain.client import GateClient, connect
from p2ptrain.frames import FrameStream
from p2ptrain.messages.gate import FRAME_BYTES_MAX, Done, Info, InfoRequest
from tests.integration import jobs
from tests.integration.daemons import Cluster

ROUNDS = 400


def quantiles(times: list[float]) -> str:
    cuts = statistics.quantiles(times, n=100)
    return f"median {cuts[49] * 1e3:6.2f} ms   p99 {cuts[98] * 1e3:6.2f} ms"


async def rounds(gate: GateClient, answer: type) -> list[float]:
    times = []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        await gate.ask(InfoRequest(), answer)
        times.append(time.perf_counter() - began)
        await trio.sleep(0.01)
    return times


async def bare(path: Path) -> list[float]:
    """Measure a bare trio server over the same kind of socket."""
    listener = trio.socket.socket(trio.socket.AF_UNIX, trio.socket.SOCK_STREAM)
    await listener.bind(str(path))
    listener.listen()

    async def serve() -> None:
        connection, _ = await listener.accept()
        frames = FrameStream(trio.SocketStream(connection), FRAME_BYTES_MAX)
        while await frames.receive() is not None:
            await frames.send(codec.pack(Done()))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve)
        async with connect(path) as gate:
            times = await rounds(gate, Done)
        nursery.cancel_scope.cancel()
    return times


def resident(pid: int) -> int:
    text = Path(f"/proc/{pid}/status").read_text()
    return int(text.split("VmRSS:")[1].split()[0])


async def measure(folder: Path) -> None:
    began = time.perf_counter()
    cluster = Cluster(folder / "cluster", 2)
    try:
        await cluster.begin()
        print(f"two daemons are one cluster after {time.perf_counter() - began:.2f} s")
        sizes = [resident(daemon.pid) / 1000 for daemon in cluster.daemons]
        print(f"idle daemon: {max(sizes):.0f} MB resident")
        socket = cluster.daemons[0].socket
        async with connect(socket) as gate:
            print("idle:          ", quantiles(await rounds(gate, Info)))
        package = jobs.make(folder / "job", steps=20_000)
        session = await submit_async(package, socket=socket)
        async for live in session.watch():
            if live.step > 20:
                break
        async with connect(socket) as gate:
            training = await rounds(gate, Info)
        print("while training:", quantiles(training))
        peer = await bare(folder / "bare.sock")
        print("bare trio peer:", quantiles(peer), "(same load)")
        ratio = statistics.median(training) / statistics.median(peer)
        print(f"median, daemon / bare peer: {ratio:.2f}")
        assert (await session.live()).status not in FINAL
        await session.stop()
        await session.wait()
    finally:
        cluster.stop()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        trio.run(measure, Path(name))
