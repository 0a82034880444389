"""A network in memory, for tests under a virtual clock.

The same contract as NNG's transport, with knobs that a real network does not have. It
owns nothing outside its process, opens no socket and starts no thread, so it is safe
under ``trio.testing.MockClock``.
"""

import random
from collections.abc import Callable, Iterable

import trio

from p2ptrain.errors import LocalError, PeerError, UnreachableError
from p2ptrain.ids import NodeId
from p2ptrain.ports import Handler


class MemoryNetwork:
    """Connects its transports; the knobs may be turned at any time.

    Attributes:
        loss: the probability that a request, and again that its reply, is lost.
        latency_s: returns each message's time on the way.

    Args:
        rng: randomness.
    """

    def __init__(self, rng: random.Random) -> None:
        self.loss = 0.0
        self.latency_s: Callable[[], float] = lambda: 0.0
        self._rng = rng
        self._transports: dict[str, MemoryTransport] = {}
        self._islands: tuple[frozenset[str], ...] = ()

    def transport(
        self, address: str, node: NodeId | None, bytes_max: int = 1 << 20
    ) -> "MemoryTransport":
        """Return a new transport at an address; a closed one's place can be taken.

        Args:
            address: where it listens.
            node: the identity that its peers' handlers see, as with TLS; None for a
                plain transport.
            bytes_max: the largest request and reply.
        """
        if address in self._transports:
            raise LocalError(f"two transports at {address}")
        made = MemoryTransport(self, address, node, bytes_max)
        self._transports[address] = made
        return made

    def partition(self, *islands: Iterable[str]) -> None:
        """Cut the network: addresses reach each other within an island only.

        An address in no island reaches nobody. ``heal`` ends it.
        """
        self._islands = tuple(frozenset(island) for island in islands)

    def heal(self) -> None:
        """Connect everybody again."""
        self._islands = ()

    def find(self, here: str, there: str) -> "MemoryTransport | None":
        """Return who receives a message sent now, or None when it is lost."""
        cut = self._islands and not any(
            here in island and there in island for island in self._islands
        )
        if cut or self._rng.random() < self.loss:
            return None
        return self._transports.get(there)

    def remove(self, address: str) -> None:
        """Forget a closed transport."""
        self._transports.pop(address, None)


class MemoryTransport:
    """Implements ``ports.Transport``; made by ``MemoryNetwork.transport``."""

    def __init__(
        self, network: MemoryNetwork, address: str, node: NodeId | None, bytes_max: int
    ) -> None:
        self._network = network
        self._address = address
        self._node = node
        self._bytes_max = bytes_max
        self._handler: Handler | None = None
        self._nursery: trio.Nursery | None = None
        self._closed = trio.Event()

    @property
    def address(self) -> str:
        """Where this node listens."""
        return self._address

    async def request(self, address: str, body: bytes, timeout_s: float) -> bytes:
        """Send one request and return the reply; at most once.

        Raises:
            UnreachableError: no reply in time, or closed.
        """
        if len(body) > self._bytes_max:
            raise LocalError(
                f"request of {len(body)} bytes, at most {self._bytes_max} are allowed"
            )
        replies = _Replies()
        with trio.move_on_after(timeout_s):
            await self._carry()
            peer = self._network.find(self._address, address)
            if peer is not None and not self._closed.is_set():
                peer._take(self, body, replies)  # noqa: SLF001  # its own class
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._watch, nursery.cancel_scope)
                await replies.done.wait()
                nursery.cancel_scope.cancel()
        if replies.value is None:
            raise UnreachableError(f"no answer from {address} within {timeout_s:g} s")
        return replies.value

    async def serve(
        self,
        handler: Handler,
        *,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Answer requests until cancelled or closed."""
        async with trio.open_nursery() as nursery:
            self._handler, self._nursery = handler, nursery
            try:
                task_status.started()
                await self._closed.wait()
                nursery.cancel_scope.cancel()
            finally:
                self._handler = self._nursery = None

    async def aclose(self) -> None:
        """Close; what is under way ends with UnreachableError."""
        self._network.remove(self._address)
        self._closed.set()
        await trio.lowlevel.checkpoint()

    async def _carry(self) -> None:
        await trio.sleep(self._network.latency_s())

    async def _watch(self, scope: trio.CancelScope) -> None:
        await self._closed.wait()
        scope.cancel()

    def _take(
        self, sender: "MemoryTransport", body: bytes, replies: "_Replies"
    ) -> None:
        if self._nursery is not None:
            self._nursery.start_soon(self._answer, sender, body, replies)

    async def _answer(
        self, sender: "MemoryTransport", body: bytes, replies: "_Replies"
    ) -> None:
        assert self._handler is not None
        try:
            reply = await self._handler(body, sender._node)  # noqa: SLF001
        except PeerError:
            return
        if len(reply) > self._bytes_max:
            raise LocalError(
                f"reply of {len(reply)} bytes, at most {self._bytes_max} are allowed"
            )
        await self._carry()
        if self._network.find(self._address, sender.address) is sender:
            replies.value = reply
            replies.done.set()


class _Replies:
    """Where the reply of one request arrives."""

    def __init__(self) -> None:
        self.value: bytes | None = None
        self.done = trio.Event()
