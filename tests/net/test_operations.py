"""Single NNG operations under cancellation."""

import gc
import os
from pathlib import Path
from typing import Any

import pynng
import pytest
import trio
import trio.testing

from p2ptrain.net.operations import (
    BACKEND,
    close_context,
    open_context,
    receive,
    send,
    set_ms,
)

pytestmark = pytest.mark.net


def resident_mb() -> float:
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGESIZE") / 1e6


@pytest.fixture
def sockets() -> Any:
    server = pynng.Rep0(async_backend=BACKEND)
    server.listen("inproc://operations")
    client = pynng.Req0(async_backend=BACKEND)
    client.dial("inproc://operations", block=False)
    yield client, server
    client.close()
    server.close()


async def test_a_conversation(sockets: Any) -> None:
    asking, serving = (open_context(one) for one in sockets)
    await send(asking, b"question", 1.0)
    assert (await receive(serving)).bytes == b"question"
    await send(serving, b"answer", 1.0)
    assert (await receive(asking)).bytes == b"answer"
    close_context(asking)
    close_context(serving)


async def test_a_time_out_is_nngs_own(sockets: Any) -> None:
    context = open_context(sockets[1])
    set_ms(context, "recv-timeout", 0.05)
    with pytest.raises(pynng.Timeout):
        await receive(context)
    close_context(context)


async def test_a_cancelled_receive_ends_at_once_and_closes_its_context(
    sockets: Any,
) -> None:
    context = open_context(sockets[1])
    started = trio.current_time()
    with trio.move_on_after(0.05) as scope:
        await receive(context)
    assert scope.cancelled_caught
    assert trio.current_time() - started < 0.5
    close_context(context)  # again: harmless
    # The socket still works.
    asking, serving = (open_context(one) for one in sockets)
    await send(asking, b"x", 1.0)
    assert (await receive(serving)).bytes == b"x"
    close_context(asking)
    close_context(serving)


async def test_a_cancelled_send_frees_its_message(sockets: Any) -> None:
    lonely = pynng.Req0(async_backend=BACKEND)  # dialled nowhere: every send waits
    try:
        before = resident_mb()
        for _ in range(100):
            context = open_context(lonely)
            with trio.move_on_after(0.002) as scope:
                await send(context, bytes(1 << 20), 10.0)
            assert scope.cancelled_caught
            close_context(context)
        assert resident_mb() - before < 20
    finally:
        lonely.close()


async def test_closing_the_socket_ends_an_operation(sockets: Any) -> None:
    context = open_context(sockets[1])
    async with trio.open_nursery() as nursery:

        async def wait() -> None:
            with pytest.raises(pynng.Closed):
                await receive(context)

        nursery.start_soon(wait)
        await trio.testing.wait_all_tasks_blocked()
        sockets[1].close()
    close_context(context)
    assert context._context is None
