"""The Req sockets of a transport: one for each address it talks to.

After a failure a socket takes no more requests, the next one dials afresh, and the old
socket is closed when its last request is over. At most ``PEERS_MAX`` stay open.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import pynng
import trio

from p2ptrain.errors import LocalError, UnreachableError
from p2ptrain.net.operations import (
    BACKEND,
    close_context,
    open_context,
    receive,
    send,
    set_ms,
    tls_config,
)
from p2ptrain.tls import TlsMaterial

IN_FLIGHT_MAX = 128  # requests to one address
HEADER_BYTES = 64  # NNG counts its own, one word a hop
PEERS_MAX = 256  # the least recently used goes first
REDIAL_MS_MIN = 100
REDIAL_MS_MAX = 1000


def bound(socket: Any, bytes_max: int, tls: Any) -> None:
    """Bound what a socket receives, and give it TLS, before it is dialled or bound.

    Raises:
        LocalError: NNG did not take the bound (its setter swallows errors).
    """
    socket.recv_max_size = bytes_max + HEADER_BYTES
    if socket.recv_max_size != bytes_max + HEADER_BYTES:
        raise LocalError("NNG did not take the bound on received messages")
    if tls is not None:
        socket.tls_config = tls


class Peer:
    """The Req socket of one address, and who uses it."""

    def __init__(self, socket: Any) -> None:
        self.users = 0
        self.retired = False
        self.heard_at = 0.0
        self._socket = socket

    async def exchange(self, body: bytes, deadline: float) -> bytes:
        """Send a request in a context of its own and return the reply.

        Raises:
            pynng.NNGException: no reply by the deadline, connection lost, or closed.
        """
        context = open_context(self._socket)
        try:
            await send(context, body, deadline - trio.current_time())
            set_ms(context, "recv-timeout", deadline - trio.current_time())
            message = await receive(context)
        finally:
            close_context(context)
        self.heard_at = trio.current_time()
        return bytes(message.bytes)

    def dial(self, url: str) -> None:
        """Connect in the background, again and again.

        Raises:
            UnreachableError: this is no URL.
        """
        try:
            # Without block=False the dial would stall the whole loop.
            self._socket.dial(url, block=False)
        except pynng.NNGException as error:
            self._socket.close()
            raise UnreachableError(f"{url!r:.80} is no address: {error}") from error

    def watch(self, lost: Callable[[], None]) -> None:
        """Have ``lost`` called in this loop when the other end closes a connection.

        A killed process's connections are closed at once; a cut network's are not.
        """
        token = trio.lowlevel.current_trio_token()

        def removed(_: object) -> None:  # on a thread of NNG's
            with suppress(trio.RunFinishedError):
                token.run_sync_soon(lost)

        self._socket.add_post_pipe_remove_cb(removed)

    def close(self) -> None:
        """Close the socket; what is under way ends with ``pynng.Closed``."""
        self.retired = True
        self._socket.close()


class Peers:
    """The sockets by address.

    Attributes:
        on_lost: told of each address that closed its connection.

    Args:
        scheme: of NNG's URLs: ``tcp`` or ``tls+tcp``.
        bytes_max: the largest reply.
        tls: the certificates to show, or None.
    """

    def __init__(self, scheme: str, bytes_max: int, tls: TlsMaterial | None) -> None:
        self._scheme = scheme
        self._bytes_max = bytes_max
        self._tls = tls_config(tls, pynng.TLSConfig.MODE_CLIENT)
        self.on_lost: Callable[[str], None] = lambda _: None
        self._current: OrderedDict[str, Peer] = OrderedDict()
        self._old: set[Peer] = set()
        self._closed = False

    def __len__(self) -> int:
        """Return how many sockets are open."""
        return len(self._current) + len(self._old)

    @contextmanager
    def use(self, address: str) -> Iterator[Peer]:
        """Give the socket of an address for one request.

        Raises:
            UnreachableError: not an address, too many requests to it are under way,
                or this transport is closing.
        """
        peer = self._get(address)
        if peer.users >= IN_FLIGHT_MAX:
            raise UnreachableError(f"{peer.users} requests to {address} are under way")
        peer.users += 1
        try:
            yield peer
        finally:
            peer.users -= 1
            self._close_if_unused(peer)

    def retire(self, address: str, peer: Peer) -> None:
        """Let a socket take no more requests."""
        if self._current.get(address) is peer:
            del self._current[address]
            peer.retired = True
            self._old.add(peer)
            self._close_if_unused(peer)

    def close(self) -> None:
        """Close all sockets, for ever."""
        self._closed = True
        for peer in (*self._current.values(), *self._old):
            peer.close()
        self._current.clear()
        self._old.clear()

    def _get(self, address: str) -> Peer:
        if self._closed:
            raise UnreachableError(f"cannot reach {address}: this node is closing")
        peer = self._current.get(address)
        if peer is None:
            peer = self._open(address)
            if len(self._current) > PEERS_MAX:
                self.retire(*next(iter(self._current.items())))
        self._current.move_to_end(address)
        return peer

    def _open(self, address: str) -> Peer:
        peer = Peer(self._socket())
        peer.watch(partial(self._lost, address, peer))
        peer.dial(f"{self._scheme}://{address}")
        self._current[address] = peer
        return peer

    def _lost(self, address: str, peer: Peer) -> None:
        """End what waits for an answer that will not come, and tell."""
        if peer.retired or self._closed:
            return
        if self._current.get(address) is peer:
            del self._current[address]
        peer.close()
        self.on_lost(address)

    def _socket(self) -> Any:
        socket = pynng.Req0(async_backend=BACKEND)
        socket.reconnect_time_min = REDIAL_MS_MIN
        socket.reconnect_time_max = REDIAL_MS_MAX
        socket.resend_time = -1
        bound(socket, self._bytes_max, self._tls)
        return socket

    def _close_if_unused(self, peer: Peer) -> None:
        if peer.retired and peer.users == 0 and peer in self._old:
            self._old.discard(peer)
            peer.close()
