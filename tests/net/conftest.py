"""Pairs of transports of each kind, and certificates."""

import random
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import pytest

from p2ptrain.ids import NodeId
from p2ptrain.net.memory import MemoryNetwork
from p2ptrain.net.nng import NngTransport
from p2ptrain.ports import Transport
from p2ptrain.security.authority import Authority, create_authority, new_key
from p2ptrain.security.identity import Identity, save_identity

BYTES_MAX = 1 << 20
Pair = Callable[[], AbstractAsyncContextManager[tuple[Transport, Transport]]]


def member(folder: Path, authority: Authority) -> Identity:
    """Give a new node of a cluster its files."""
    key = new_key()
    cert = authority.sign(key.public_key(), ())
    return save_identity(folder, key, cert, authority.cert)


@pytest.fixture(scope="session")
def authority() -> Authority:
    return create_authority("lab")


@pytest.fixture
def enlist(tmp_path: Path, authority: Authority) -> Callable[[str], Identity]:
    return lambda name: member(tmp_path / name, authority)


@pytest.fixture(
    params=[
        "memory",
        pytest.param("plain", marks=pytest.mark.net),
        pytest.param("tls", marks=pytest.mark.net),
    ]
)
def pair(request: pytest.FixtureRequest, enlist: Callable[[str], Identity]) -> Pair:
    """Two transports: the first one asks, the second one serves."""

    @asynccontextmanager
    async def memory() -> AsyncIterator[tuple[Transport, Transport]]:
        network = MemoryNetwork(random.Random(1))
        first = network.transport("a:1", NodeId("a" * 32), BYTES_MAX)
        second = network.transport("b:1", NodeId("b" * 32), BYTES_MAX)
        yield first, second
        await first.aclose()
        await second.aclose()

    @asynccontextmanager
    async def nng() -> AsyncIterator[tuple[Transport, Transport]]:
        tls = request.param == "tls"
        one, two = (enlist(name).tls if tls else None for name in ("one", "two"))
        async with (
            NngTransport("127.0.0.1", 0, BYTES_MAX, one) as first,
            NngTransport("127.0.0.1", 0, BYTES_MAX, two) as second,
        ):
            yield first, second

    return memory if request.param == "memory" else nng
