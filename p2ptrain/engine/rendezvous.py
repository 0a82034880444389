"""Where ranks meet: a listener for the previous rank, a connection to the next.

A connection opens with one greeting, a small CBOR map in a length-prefixed frame, and
one answer. Over TLS the certificate must be of the node whose seat it claims. A
stranger, a stale view and garbage cost one bounded thread for a moment, no more.
"""

import queue
import socket
import ssl
import struct
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from p2ptrain import codec
from p2ptrain.engine.links import Ends
from p2ptrain.errors import (
    AuthError,
    ConfigError,
    LinkLostError,
    P2PTrainError,
    PeerError,
)
from p2ptrain.messages.session import RingSeat
from p2ptrain.tls import TlsMaterial, client_context, peer_node, server_context

GREETING_BYTES_MAX: Final = 1024
GREETING_S: Final = 3.0
STRANGERS_MAX: Final = 16  # greetings under way at once
RETRY_S: Final = 0.05
LENGTH: Final = struct.Struct("<I")
CONSENT: Final = b"\x01"
BUFFER_BYTES: Final = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Greeting:
    """Who connects, for which seat of which view."""

    session: str
    view: int
    rank: int
    node: str


@dataclass(frozen=True, slots=True)
class Place:
    """A rank's place in a view's ring."""

    session: str
    view: int
    rank: int
    seats: tuple[RingSeat, ...]

    @property
    def previous(self) -> int:
        """The rank that sends to this one."""
        return (self.rank - 1) % len(self.seats)

    @property
    def next(self) -> int:
        """The rank that this one sends to."""
        return (self.rank + 1) % len(self.seats)


class RingListener:
    """Listens for the previous rank, for as long as the trainer lives.

    Args:
        host: address to listen on.
        ports: inclusive range; (0, 0) for any free port.
        tls: with it, links are mutual TLS.

    Raises:
        ConfigError: no port of the range is free.
    """

    def __init__(
        self, host: str, ports: tuple[int, int], tls: TlsMaterial | None
    ) -> None:
        self._socket = _listen(host, ports)
        self.port: int = self._socket.getsockname()[1]
        self.tls = tls
        self._server = server_context(tls) if tls else None
        self._greeted: queue.Queue[tuple[Greeting, socket.socket]] = queue.Queue(16)
        self._strangers = threading.BoundedSemaphore(STRANGERS_MAX)
        threading.Thread(target=self._accept, name="ring-listener", daemon=True).start()

    def take(self, place: Place, until: float, stop: threading.Event) -> socket.socket:
        """Return the connection of the previous rank of a place.

        Raises:
            LinkLostError: it has not come in time (``time.monotonic``), or ``stop``.
        """
        seat = place.seats[place.previous]
        wanted = Greeting(place.session, place.view, place.previous, seat.node)
        while time.monotonic() < until and not stop.is_set():
            try:
                greeting, connection = self._greeted.get(timeout=RETRY_S)
            except queue.Empty:
                continue
            if greeting == wanted and _consent(connection):
                return connection
            connection.close()  # another view's: it will try again, or is gone
        raise LinkLostError(place.previous, "did not connect")

    def close(self) -> None:
        """Stop listening."""
        socket.socket.shutdown(self._socket, socket.SHUT_RDWR)
        self._socket.close()
        while not self._greeted.empty():
            self._greeted.get()[1].close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return  # closed
            if not self._strangers.acquire(blocking=False):
                connection.close()
                continue
            threading.Thread(
                target=self._greet, args=(connection,), daemon=True
            ).start()

    def _greet(self, raw: socket.socket) -> None:
        connection = raw
        try:
            raw.settimeout(GREETING_S)
            _tune(raw)
            if self._server is not None:
                connection = self._server.wrap_socket(raw, server_side=True)
            greeting = _read_greeting(connection)
            if isinstance(connection, ssl.SSLSocket):
                _check_owner(connection, greeting.node)
            self._hand_over(greeting, connection)
        except (OSError, P2PTrainError):
            connection.close()
        finally:
            self._strangers.release()

    def _hand_over(self, greeting: Greeting, connection: socket.socket) -> None:
        """Queue a connection; when too many wait, the oldest is stale."""
        while True:
            try:
                self._greeted.put_nowait((greeting, connection))
            except queue.Full:
                with suppress(queue.Empty):
                    self._greeted.get_nowait()[1].close()
            else:
                return


def meet(
    listener: RingListener, place: Place, timeout_s: float, stop: threading.Event
) -> Ends:
    """Connect a rank to both its neighbours.

    Raises:
        LinkLostError: a neighbour cannot be reached in time, or ``stop`` was set.
    """
    until = time.monotonic() + timeout_s
    outgoing = _reach(listener.tls, place, until, stop)
    try:
        # The next rank's consent comes when it takes us; meanwhile we take ours.
        incoming = listener.take(place, until, stop)
    except LinkLostError:
        outgoing.close()
        raise
    try:
        while not _await_consent(outgoing, place.next, until, stop):
            # It was still at another view, and let us go.
            outgoing.close()
            stop.wait(RETRY_S)
            outgoing = _reach(listener.tls, place, until, stop)
    except LinkLostError:
        incoming.close()
        outgoing.close()
        raise
    return Ends(incoming, outgoing, place.previous, place.next)


def _reach(
    tls: TlsMaterial | None, place: Place, until: float, stop: threading.Event
) -> socket.socket:
    seat = place.seats[place.next]
    me = place.seats[place.rank].node
    greeting = Greeting(place.session, place.view, place.rank, me)
    problem = "did not listen"
    while time.monotonic() < until and not stop.is_set():
        try:
            return _dial(tls, seat, greeting)
        except (OSError, ValueError, AuthError) as error:
            problem = str(error)
            stop.wait(RETRY_S)
    raise LinkLostError(place.next, problem)


def _dial(tls: TlsMaterial | None, seat: RingSeat, greeting: Greeting) -> socket.socket:
    host, _, port = seat.ring.rpartition(":")
    raw = socket.create_connection((host.strip("[]"), int(port)), timeout=GREETING_S)
    connection = raw
    try:
        _tune(raw)
        if tls is not None:
            context = client_context(tls)
            connection = context.wrap_socket(raw, server_hostname=seat.node)
        body = codec.encode(codec.to_plain(greeting))
        connection.sendall(LENGTH.pack(len(body)) + body)
    except OSError:
        connection.close()
        raise
    return connection


def _consent(connection: socket.socket) -> bool:
    """Tell the previous rank that it is taken; false when it is gone."""
    try:
        connection.sendall(CONSENT)
    except OSError:
        return False
    return True


def _await_consent(
    outgoing: socket.socket, rank: int, until: float, stop: threading.Event
) -> bool:
    """Wait to be taken; false when the next rank closed the connection instead."""
    outgoing.settimeout(RETRY_S)
    while time.monotonic() < until and not stop.is_set():
        try:
            return outgoing.recv(1) == CONSENT
        except TimeoutError:
            continue
        except OSError:
            return False
    raise LinkLostError(rank, "did not answer")


def _read_greeting(connection: socket.socket) -> Greeting:
    until = time.monotonic() + GREETING_S
    (length,) = LENGTH.unpack(_exactly(connection, LENGTH.size, until))
    if length > GREETING_BYTES_MAX:
        raise PeerError(f"greeting of {length} bytes")
    body = _exactly(connection, length, until)
    return codec.from_plain(Greeting, codec.decode(body))


def _exactly(connection: socket.socket, size: int, until: float) -> bytes:
    data = b""
    while len(data) < size:
        left = until - time.monotonic()
        if left <= 0:  # bytes that drip must not hold a thread for longer
            raise PeerError("greets too slowly")
        connection.settimeout(left)
        piece = connection.recv(size - len(data))
        if not piece:
            raise PeerError("closed in its greeting")
        data += piece
    return data


def _check_owner(connection: ssl.SSLSocket, node: str) -> None:
    owner = peer_node(connection)
    if owner != node:
        raise AuthError(f"the certificate is of {owner}, the greeting of {node!r:.40}")


def _listen(host: str, ports: tuple[int, int]) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for port in range(ports[0], ports[1] + 1):
        listener = socket.socket(family, socket.SOCK_STREAM)
        # A trainer that starts again must not wait for its last life's connections.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host.strip("[]"), port))
            listener.listen(STRANGERS_MAX)
        except OSError:
            listener.close()
        else:
            return listener
    raise ConfigError(f"no free port for the ring in {ports[0]}-{ports[1]} on {host}")


def _tune(connection: socket.socket) -> None:
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
        connection.setsockopt(socket.SOL_SOCKET, option, BUFFER_BYTES)
