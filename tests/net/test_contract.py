"""What every Transport promises, on memory, on NNG and on NNG over TLS."""

from typing import Any

import pytest
import trio

from p2ptrain.errors import LocalError, PeerError, UnreachableError
from p2ptrain.ids import NodeId
from p2ptrain.ports import Handler, Transport

BYTES_MAX = 1 << 20


async def echo(body: bytes, _: NodeId | None) -> bytes:
    return body


async def provoke(asker: Transport, server: Transport, handler: Handler) -> None:
    """Serve with a handler that breaks on the first request."""
    async with trio.open_nursery() as nursery:
        await nursery.start(server.serve, handler)
        with pytest.raises(UnreachableError):
            await asker.request(server.address, b"x", 0.5)


async def test_a_request_gets_its_reply(pair: Any) -> None:
    async with pair() as (asker, server), trio.open_nursery() as nursery:
        await nursery.start(server.serve, echo)
        for body in (b"", b"x", bytes(BYTES_MAX)):
            assert await asker.request(server.address, body, 5.0) == body
        nursery.cancel_scope.cancel()


async def test_many_at_once_keep_their_replies_apart(pair: Any) -> None:
    async def slow(body: bytes, _: NodeId | None) -> bytes:
        await trio.sleep(0.001 * (body[0] % 7))
        return body

    done: list[int] = []

    async def ask(asker: Transport, address: str, index: int) -> None:
        body = index.to_bytes(1, "little") * 100
        assert await asker.request(address, body, 5.0) == body
        done.append(index)

    async with pair() as (asker, server), trio.open_nursery() as nursery:
        await nursery.start(server.serve, slow)
        async with trio.open_nursery() as askers:
            for index in range(100):
                askers.start_soon(ask, asker, server.address, index)
        nursery.cancel_scope.cancel()
    assert sorted(done) == list(range(100))


async def test_a_slow_request_does_not_hold_up_the_others(pair: Any) -> None:
    async def handle(body: bytes, _: NodeId | None) -> bytes:
        if body == b"slow":
            await trio.sleep_forever()
        return body

    async def ask_slowly(asker: Transport, address: str) -> None:
        with pytest.raises(UnreachableError):
            await asker.request(address, b"slow", 0.5)

    async with pair() as (asker, server), trio.open_nursery() as nursery:
        await nursery.start(server.serve, handle)
        async with trio.open_nursery() as askers:
            for _ in range(10):
                askers.start_soon(ask_slowly, asker, server.address)
            for _ in range(10):
                assert await asker.request(server.address, b"x", 0.4) == b"x"
        nursery.cancel_scope.cancel()


async def test_nobody_there(pair: Any) -> None:
    async with pair() as (asker, server):
        address = server.address
        await server.aclose()
        started = trio.current_time()
        with pytest.raises(UnreachableError, match=address):
            await asker.request(address, b"x", 0.2)
        assert 0.15 < trio.current_time() - started < 1.0


async def test_a_handler_that_refuses_costs_the_reply(pair: Any) -> None:
    async def refuse(body: bytes, _: NodeId | None) -> bytes:
        if body == b"bad":
            raise PeerError("no")
        return body

    async with pair() as (asker, server), trio.open_nursery() as nursery:
        await nursery.start(server.serve, refuse)
        with pytest.raises(UnreachableError):
            await asker.request(server.address, b"bad", 0.2)
        assert await asker.request(server.address, b"good", 2.0) == b"good"
        nursery.cancel_scope.cancel()


async def test_a_fault_of_the_handler_ends_the_server(pair: Any) -> None:
    async def broken(_: bytes, __: NodeId | None) -> bytes:
        raise LocalError("ours")

    async with pair() as (asker, server):
        with pytest.raises(ExceptionGroup) as caught:
            await provoke(asker, server, broken)
        assert caught.group_contains(LocalError)


async def test_a_cancelled_request_ends_at_once(pair: Any) -> None:
    async def never(_: bytes, __: NodeId | None) -> bytes:
        await trio.sleep_forever()
        raise AssertionError

    async with pair() as (asker, server), trio.open_nursery() as nursery:
        await nursery.start(server.serve, never)
        started = trio.current_time()
        with trio.move_on_after(0.2) as scope:
            await asker.request(server.address, b"x", 30.0)
        assert scope.cancelled_caught
        assert trio.current_time() - started < 1.0
        nursery.cancel_scope.cancel()


async def test_in_a_cancelled_scope_nothing_is_sent(pair: Any) -> None:
    seen: list[bytes] = []

    async def note(body: bytes, _: NodeId | None) -> bytes:
        seen.append(body)
        return body

    async with pair() as (asker, server), trio.open_nursery() as nursery:
        await nursery.start(server.serve, note)
        await asker.request(server.address, b"first", 2.0)
        with trio.CancelScope() as scope:
            scope.cancel()
            await asker.request(server.address, b"never", 2.0)
        assert scope.cancelled_caught
        await asker.request(server.address, b"last", 2.0)
        nursery.cancel_scope.cancel()
    assert seen == [b"first", b"last"]


async def test_closing_ends_what_is_under_way(pair: Any) -> None:
    async def never(_: bytes, __: NodeId | None) -> bytes:
        await trio.sleep_forever()
        raise AssertionError

    async def ask(asker: Transport, address: str) -> None:
        with pytest.raises(UnreachableError):
            await asker.request(address, b"x", 30.0)

    async with pair() as (asker, server), trio.open_nursery() as nursery:
        await nursery.start(server.serve, never)
        with trio.fail_after(2.0):
            async with trio.open_nursery() as askers:
                askers.start_soon(ask, asker, server.address)
                await trio.sleep(0.1)
                await asker.aclose()
        with pytest.raises(UnreachableError):
            await asker.request(server.address, b"x", 0.1)
        nursery.cancel_scope.cancel()


async def test_closing_ends_serving(pair: Any) -> None:
    async with pair() as (_, server):
        with trio.fail_after(2.0):
            async with trio.open_nursery() as nursery:
                await nursery.start(server.serve, echo)
                await server.aclose()


async def test_a_request_over_the_bound_is_our_own_fault(pair: Any) -> None:
    async with pair() as (asker, server):
        with pytest.raises(LocalError, match="at most"):
            await asker.request(server.address, bytes(BYTES_MAX + 1), 1.0)


async def test_a_reply_over_the_bound_is_our_own_fault(pair: Any) -> None:
    async def chatty(_: bytes, __: NodeId | None) -> bytes:
        return bytes(BYTES_MAX + 1)

    async with pair() as (asker, server):
        with pytest.raises(ExceptionGroup) as caught:
            await provoke(asker, server, chatty)
        assert caught.group_contains(LocalError)
