import pytest
import trio

from p2ptrain.errors import ActorGoneError, DeadlineError
from p2ptrain.runtime.inbox import Inbox, Reply


async def test_items_arrive_in_order() -> None:
    inbox: Inbox[int] = Inbox("counter", bound=8)
    for item in range(5):
        await inbox.ref.tell(item)
    assert [await inbox.receive() for _ in range(5)] == [0, 1, 2, 3, 4]
    assert inbox.receive_nowait() is None


async def test_offer_refuses_when_full() -> None:
    inbox: Inbox[int] = Inbox("small", bound=2)
    assert [inbox.ref.offer(item) for item in range(3)] == [True, True, False]
    inbox.receive_nowait()
    assert inbox.ref.offer(3)


async def test_tell_waits_for_room(autojump_clock: trio.testing.MockClock) -> None:
    inbox: Inbox[str] = Inbox("small", bound=1)
    order: list[str] = []

    async def sender() -> None:
        for item in "abc":
            await inbox.ref.tell(item)
            order.append(f"sent {item}")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(sender)
        await trio.sleep(1)
        assert order == ["sent a"]
        for item in "abc":
            assert await inbox.receive() == item
    assert order == ["sent a", "sent b", "sent c"]


async def test_ask_returns_the_answer() -> None:
    inbox: Inbox[Reply[int]] = Inbox("adder", bound=1)

    async def answer() -> None:
        reply = await inbox.receive()
        reply.send(42)
        reply.send(43)  # only the first counts

    async with trio.open_nursery() as nursery:
        nursery.start_soon(answer)
        assert await inbox.ref.ask(lambda reply: reply, timeout_s=5) == 42


async def test_ask_raises_the_error_it_was_answered_with() -> None:
    inbox: Inbox[Reply[int]] = Inbox("failing", bound=1)

    async def answer() -> None:
        (await inbox.receive()).fail(DeadlineError("no"))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(answer)
        with pytest.raises(DeadlineError, match=r"^no$"):
            await inbox.ref.ask(lambda reply: reply, timeout_s=5)


@pytest.mark.parametrize("taken", [False, True])
async def test_ask_ends_when_the_owner_ends(
    taken: bool, autojump_clock: trio.testing.MockClock
) -> None:
    inbox: Inbox[Reply[int]] = Inbox("mortal", bound=1)

    async def die() -> None:
        if taken:
            await inbox.receive()
        await trio.sleep(1)
        inbox.close()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(die)
        with pytest.raises(ActorGoneError, match="mortal has ended"):
            await inbox.ref.ask(lambda reply: reply, timeout_s=60)
    with pytest.raises(ActorGoneError):
        await inbox.ref.ask(lambda reply: reply, timeout_s=60)
    with pytest.raises(ActorGoneError):
        await inbox.ref.tell(Reply())
    assert not inbox.ref.offer(Reply())


async def test_a_waiting_tell_ends_when_the_owner_ends() -> None:
    inbox: Inbox[int] = Inbox("mortal", bound=1)
    await inbox.ref.tell(1)

    async def tell() -> None:
        with pytest.raises(ActorGoneError):
            await inbox.ref.tell(2)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(tell)
        await trio.testing.wait_all_tasks_blocked()
        inbox.close()


async def test_ask_has_a_deadline(autojump_clock: trio.testing.MockClock) -> None:
    inbox: Inbox[Reply[int]] = Inbox("deaf", bound=1)
    with pytest.raises(DeadlineError, match="deaf did not answer in 3 s"):
        await inbox.ref.ask(lambda reply: reply, timeout_s=3)
    assert trio.current_time() > 0


async def test_oldest_shows_a_starving_owner(
    autojump_clock: trio.testing.MockClock,
) -> None:
    inbox: Inbox[int] = Inbox("starved", bound=4)
    assert inbox.oldest_s(trio.current_time()) == 0
    await inbox.ref.tell(1)
    await trio.sleep(2)
    await inbox.ref.tell(2)
    await trio.sleep(1)
    assert inbox.oldest_s(trio.current_time()) == pytest.approx(3)
    await inbox.receive()
    assert inbox.oldest_s(trio.current_time()) == pytest.approx(1)
