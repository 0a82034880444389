"""Inbox and Ref: how actors talk. One owner receives; any number of refs send.

``tell`` waits when the inbox is full, ``offer`` never waits, ``ask`` ends with an
answer or an error in every way in which the owner can die.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import trio

from p2ptrain.errors import ActorGoneError, DeadlineError
from p2ptrain.ids import NodeId

T = TypeVar("T")
AnswerT = TypeVar("AnswerT")


class Reply(Generic[AnswerT]):
    """The one answer to an ask; later ones are ignored."""

    def __init__(self) -> None:
        self._done = trio.Event()
        self._value: AnswerT | None = None
        self._error: Exception | None = None

    @property
    def answered(self) -> bool:
        """Whether the asker has its answer."""
        return self._done.is_set()

    def send(self, value: AnswerT) -> None:
        """Answer."""
        if not self.answered:
            self._value = value
            self._done.set()

    def fail(self, error: Exception) -> None:
        """Answer with an error, which ``ask`` raises."""
        if not self.answered:
            self._error = error
            self._done.set()

    async def wait(self) -> AnswerT:
        """Return the answer or raise its error."""
        await self._done.wait()
        if self._error is not None:
            raise self._error
        return self._value  # type: ignore[return-value]  # send() stored an AnswerT


@dataclass(frozen=True, slots=True)
class Mail:
    """A message from a node, as the post delivers it; ``reply`` only when it asks."""

    sender: NodeId
    message: object
    reply: Reply[object] | None = None


class Ref(Generic[T]):
    """The sending side of an inbox; give it away freely."""

    def __init__(self, inbox: "Inbox[T]") -> None:
        self._inbox = inbox

    async def tell(self, item: T) -> None:
        """Send, waiting while the inbox is full.

        Raises:
            ActorGoneError: the inbox is closed.
        """
        await self._inbox.put(item)

    def offer(self, item: T) -> bool:
        """Send if there is room; tell whether it was taken."""
        return self._inbox.put_nowait(item)

    async def ask(
        self, make: Callable[[Reply[AnswerT]], T], timeout_s: float
    ) -> AnswerT:
        """Send ``make(reply)`` and wait for the reply.

        Raises:
            ActorGoneError: the owner ended first.
            DeadlineError: no answer in time.
        """
        reply: Reply[AnswerT] = Reply()
        with trio.move_on_after(timeout_s):
            self._inbox.expect(reply)
            try:
                await self._inbox.put(make(reply))
                return await reply.wait()
            finally:
                self._inbox.forget(reply)
        raise DeadlineError(f"{self._inbox.name} did not answer in {timeout_s:g} s")


class Inbox(Generic[T]):
    """A bounded queue with one receiver, who is the actor.

    Args:
        name: the actor's name, for errors and logs.
        bound: how many items may wait.
    """

    def __init__(self, name: str, bound: int) -> None:
        self.name = name
        self.ref: Ref[T] = Ref(self)
        self._bound = bound
        self._items: deque[tuple[float, T]] = deque()
        self._outstanding: set[Reply[Any]] = set()
        self._closed = False
        self._lot = trio.lowlevel.ParkingLot()  # senders wait for room
        self._arrived = trio.lowlevel.ParkingLot()  # the receiver waits for items

    async def put(self, item: T) -> None:
        """Add an item, waiting for room; ``Ref.tell`` calls it."""
        await trio.lowlevel.checkpoint_if_cancelled()
        while not self.put_nowait(item):
            if self._closed:
                raise ActorGoneError(f"{self.name} has ended")
            await self._lot.park()

    def put_nowait(self, item: T) -> bool:
        """Add an item if there is room; ``Ref.offer`` calls it."""
        if self._closed or len(self._items) >= self._bound:
            return False
        self._items.append((trio.current_time(), item))
        self._arrived.unpark()
        return True

    def expect(self, reply: Reply[AnswerT]) -> None:
        """Note an ask that must end when this inbox closes."""
        if self._closed:
            raise ActorGoneError(f"{self.name} has ended")
        self._outstanding.add(reply)

    def forget(self, reply: Reply[AnswerT]) -> None:
        """The ask is over."""
        self._outstanding.discard(reply)

    async def receive(self) -> T:
        """Return the next item, waiting for it."""
        await trio.lowlevel.checkpoint_if_cancelled()
        while not self._items:
            await self._arrived.park()
        return self._take()

    def receive_nowait(self) -> T | None:
        """Return the next item, or None."""
        return self._take() if self._items else None

    def oldest_s(self, now: float) -> float:
        """Return how long the oldest item has been waiting, in seconds; 0 if none.

        An owner that hangs or starves shows here; the watchdog looks.
        """
        return now - self._items[0][0] if self._items else 0.0

    def close(self) -> None:
        """End: outstanding asks fail, later sends are refused. Idempotent."""
        self._closed = True
        for reply in self._outstanding:
            reply.fail(ActorGoneError(f"{self.name} has ended"))
        self._outstanding.clear()
        self._lot.unpark_all()

    def _take(self) -> T:
        _, item = self._items.popleft()
        self._lot.unpark()
        return item
