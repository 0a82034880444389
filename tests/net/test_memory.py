"""The network in memory: its knobs, under a virtual clock."""

import random
from collections.abc import Callable
from typing import Any

import pytest
import trio
import trio.testing

from p2ptrain.errors import LocalError, UnreachableError
from p2ptrain.ids import NodeId
from p2ptrain.net.memory import MemoryNetwork, MemoryTransport

A, B = NodeId("a" * 32), NodeId("b" * 32)


async def echo(body: bytes, _: NodeId | None) -> bytes:
    return body


@pytest.fixture
def network() -> MemoryNetwork:
    return MemoryNetwork(random.Random(3))


async def serving(
    nursery: trio.Nursery, network: MemoryNetwork, *addresses: str
) -> list[MemoryTransport]:
    made = [
        network.transport(address, NodeId(address[0] * 32)) for address in addresses
    ]
    for one in made:
        await nursery.start(one.serve, echo)
    return made


async def test_the_handler_sees_the_asker(network: MemoryNetwork) -> None:
    async def tell(_: bytes, peer: NodeId | None) -> bytes:
        return str(peer).encode()

    async with trio.open_nursery() as nursery:
        asker, plain = network.transport("a", A), network.transport("c", None)
        server = network.transport("b", B)
        await nursery.start(server.serve, tell)
        assert await asker.request("b", b"", 1.0) == A.encode()
        assert await plain.request("b", b"", 1.0) == b"None"
        nursery.cancel_scope.cancel()


async def test_a_partition_holds_until_healed(
    network: MemoryNetwork, autojump_clock: trio.testing.MockClock
) -> None:
    async with trio.open_nursery() as nursery:
        a, b, c = await serving(nursery, network, "a", "b", "c")
        network.partition("ab", "c")
        assert await a.request("b", b"x", 1.0) == b"x"
        for asker, target in ((a, "c"), (c, "b")):
            started = trio.current_time()
            with pytest.raises(UnreachableError):
                await asker.request(target, b"x", 7.0)
            assert trio.current_time() - started == pytest.approx(7.0)
        network.heal()
        assert await b.request("c", b"x", 1.0) == b"x"
        nursery.cancel_scope.cancel()


async def test_loss_takes_its_share(
    network: MemoryNetwork, autojump_clock: trio.testing.MockClock
) -> None:
    lost = 0
    async with trio.open_nursery() as nursery:
        a, _ = await serving(nursery, network, "a", "b")
        network.loss = 0.5
        for _ in range(200):
            try:
                await a.request("b", b"x", 1.0)
            except UnreachableError:
                lost += 1
        nursery.cancel_scope.cancel()
    assert 120 < lost < 180  # request or reply: three in four


async def test_latency_counts_both_ways(
    network: MemoryNetwork, autojump_clock: trio.testing.MockClock
) -> None:
    async with trio.open_nursery() as nursery:
        a, _ = await serving(nursery, network, "a", "b")
        network.latency_s = lambda: 0.4
        started = trio.current_time()
        assert await a.request("b", b"x", 1.0) == b"x"
        assert trio.current_time() - started == pytest.approx(0.8)
        with pytest.raises(UnreachableError):
            await a.request("b", b"x", 0.7)
        nursery.cancel_scope.cancel()


async def test_the_same_seed_loses_the_same(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async def history() -> list[bool]:
        network = MemoryNetwork(random.Random(9))
        network.loss = 0.5
        results = []
        async with trio.open_nursery() as nursery:
            a, _ = await serving(nursery, network, "a", "b")
            for _ in range(30):
                with trio.move_on_after(1.0):
                    results.append(await answered(lambda: a.request("b", b"x", 0.5)))
            nursery.cancel_scope.cancel()
        return results

    assert await history() == await history()


async def answered(ask: Callable[[], Any]) -> bool:
    try:
        await ask()
    except UnreachableError:
        return False
    return True


async def test_an_address_has_one_owner_at_a_time(network: MemoryNetwork) -> None:
    first = network.transport("a", A)
    with pytest.raises(LocalError, match="two transports"):
        network.transport("a", B)
    await first.aclose()
    assert network.transport("a", B).address == "a"
