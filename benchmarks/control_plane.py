"""What the control and bulk planes cost, against bare pynng in the same run.

    python benchmarks/control_plane.py [--seconds 2]

Prints one line a case: round trips of one asker and of sixteen, and 1 MiB replies with
eight requests in flight; each with pynng alone and through ``NngTransport``, plain and
over mutual TLS, all on loopback within one process. Then the cost of a dead peer.
"""

import argparse
import statistics
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pynng
import trio

from p2ptrain.errors import UnreachableError
from p2ptrain.net.nng import NngTransport
from p2ptrain.security.authority import create_authority, new_key
from p2ptrain.security.identity import save_identity
from p2ptrain.tls import SERVER_NAME, TlsMaterial

HOST = "127.0.0.1"
BYTES_MAX = (1 << 20) + (64 << 10)
SMALL, CHUNK = b"x" * 200, bytes(1 << 20)
Ask = Callable[[bytes], Awaitable[bytes]]


async def answer(body: bytes, _: object) -> bytes:
    return CHUNK if body == b"chunk" else body


@asynccontextmanager
async def ours(pair: list[TlsMaterial | None]) -> AsyncIterator[Ask]:
    async with (
        NngTransport(HOST, 0, BYTES_MAX, pair[0]) as server,
        NngTransport(HOST, 0, BYTES_MAX, pair[1]) as asker,
        trio.open_nursery() as nursery,
    ):
        await nursery.start(server.serve, answer)
        yield lambda body: asker.request(server.address, body, 10.0)
        nursery.cancel_scope.cancel()


def bare_tls(tls: TlsMaterial, mode: int) -> pynng.TLSConfig:
    return pynng.TLSConfig(
        mode,
        server_name=SERVER_NAME if mode == pynng.TLSConfig.MODE_CLIENT else None,
        ca_string=tls.ca.read_text(),
        own_key_string=tls.key.read_text(),
        own_cert_string=tls.cert.read_text(),
        auth_mode=pynng.TLSConfig.AUTH_MODE_REQUIRED,
    )


@asynccontextmanager
async def bare(pair: list[TlsMaterial | None]) -> AsyncIterator[Ask]:
    """The shortest use of pynng: contexts on two sockets, nothing else."""
    server, client = pynng.Rep0(), pynng.Req0()
    scheme = "tcp"
    if pair[0] is not None and pair[1] is not None:
        scheme = "tls+tcp"
        server.tls_config = bare_tls(pair[0], pynng.TLSConfig.MODE_SERVER)
        client.tls_config = bare_tls(pair[1], pynng.TLSConfig.MODE_CLIENT)
    listener = server.listen(f"{scheme}://{HOST}:0")
    client.dial(listener.url, block=False)

    async def loop() -> None:
        with server.new_context() as context:
            while True:
                await context.asend(await answer(await context.arecv(), None))

    async def ask(body: bytes) -> bytes:
        with client.new_context() as context:
            await context.asend(body)
            return bytes(await context.arecv())

    async with trio.open_nursery() as nursery:
        for _ in range(64):
            nursery.start_soon(loop)
        yield ask
        nursery.cancel_scope.cancel()
    client.close()
    server.close()


async def rate(ask: Ask, body: bytes, askers: int, seconds: float) -> list[float]:
    """Return the time of each round trip, all askers together."""
    times: list[float] = []
    await ask(SMALL)

    async def one() -> None:
        while True:
            started = trio.current_time()
            await ask(body)
            times.append(trio.current_time() - started)

    with trio.move_on_after(seconds):
        async with trio.open_nursery() as nursery:
            for _ in range(askers):
                nursery.start_soon(one)
    return times


async def case(
    name: str, make: Callable[[], object], body: bytes, askers: int, seconds: float
) -> None:
    async with make() as ask:  # type: ignore[attr-defined]
        times = await rate(ask, body, askers, seconds)
    per_second = len(times) / seconds
    middle = statistics.median(times) * 1e6
    worst = statistics.quantiles(times, n=100)[98] * 1e6
    line = f"{name:34} {per_second:8.0f}/s   p50 {middle:7.0f} us  p99 {worst:7.0f} us"
    if body == b"chunk":
        line += f"  {per_second * len(CHUNK) / 1e6:7.0f} MB/s"
    print(line)


async def dead_peer() -> None:
    async with NngTransport(HOST, 0, BYTES_MAX, None) as asker:
        times = []
        for _ in range(20):
            started = trio.current_time()
            try:
                await asker.request(f"{HOST}:1", SMALL, 0.1)
            except UnreachableError:
                times.append(trio.current_time() - started)
    print(f"dead peer, time-out 0.100 s          worst {max(times):.3f} s")


def materials(folder: Path) -> list[TlsMaterial | None]:
    authority = create_authority("bench")
    made: list[TlsMaterial | None] = []
    for name in ("server", "client"):
        key = new_key()
        cert = authority.sign(key.public_key(), ())
        made.append(save_identity(folder / name, key, cert, authority.cert).tls)
    return made


async def main(seconds: float) -> None:
    with tempfile.TemporaryDirectory() as folder:
        tls = materials(Path(folder))
        for scheme, pair in (("plain", [None, None]), ("TLS", tls)):
            for what, body, askers in (
                ("1 asker", SMALL, 1),
                ("16 askers", SMALL, 16),
                ("1 MiB, 8 in flight", b"chunk", 8),
            ):
                for who, make in (("pynng", bare), ("ours", ours)):
                    name = f"{scheme}, {what}, {who}"
                    await case(name, lambda m=make, p=pair: m(p), body, askers, seconds)
    await dead_peer()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=2.0, help="a case")
    trio.run(main, parser.parse_args().seconds)
