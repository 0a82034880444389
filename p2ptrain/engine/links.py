"""Ring links: one connection in from the previous rank, one out to the next.

Blocking sockets in threads: a sender thread takes what is queued and, when idle, says
once in a while that this process lives; the training thread receives, straight into
tensor memory. A link on which nothing moves for ``stall_s`` is lost, however long the
neighbour computes. Any thread may ``abort``: both connections are shut down, and the
next rank is told whom to blame.
"""

import queue
import socket
import ssl
import struct
import threading
from dataclasses import dataclass
from typing import Final

from p2ptrain.errors import LinkLostError, PeerError

HEADER: Final = struct.Struct("<4sBIQHHQQ")
MAGIC: Final = b"p2pr"
BLAME_BYTES_MAX: Final = 400
BEAT_S: Final = 0.25
SMALL_BYTES: Final = 4096
NOBODY: Final = 0xFFFF  # blames no rank: the view was halted on purpose

PIECE, META, BEAT, BLAME = range(4)  # kinds of frames


@dataclass(frozen=True, slots=True)
class Header:
    """What stands before a frame's bytes.

    Args:
        kind: PIECE, META, BEAT (no bytes) or BLAME (a sentence on rank ``origin``).
        view: the view that the link was made for.
        turn: which reduction of the view.
        op: operation of the reduction.
        origin: rank that a meta is of, or that is blamed.
        start: first element of a piece.
        length: bytes that follow.
    """

    kind: int
    view: int
    turn: int = 0
    op: int = 0
    origin: int = 0
    start: int = 0
    length: int = 0

    def pack(self) -> bytes:
        """Return the header's bytes."""
        where = (self.turn, self.op, self.origin, self.start, self.length)
        return HEADER.pack(MAGIC, self.kind, self.view, *where)

    @classmethod
    def unpack(cls, data: bytes) -> "Header":
        """Return the header that bytes hold.

        Raises:
            PeerError: they hold none.
        """
        magic, *fields = HEADER.unpack(data)
        if magic != MAGIC or fields[0] > BLAME:
            raise PeerError("not a ring frame")
        return cls(*fields)


Frame = tuple[bytes, memoryview]  # a packed header and its bytes


@dataclass(frozen=True, slots=True)
class Ends:
    """The two connections of a rank, and who is at the other ends.

    ``incoming`` only receives and ``outgoing`` only sends, so that TLS, which is not
    safe for two threads on one connection, needs no lock.
    """

    incoming: socket.socket
    outgoing: socket.socket
    previous: int
    next: int


class Links:
    """Framed sending and receiving over a rank's two connections.

    Args:
        ends: the connections.
        view: the view that they were made for.
        stall_s: seconds without a byte after which a link is lost.
    """

    def __init__(self, ends: Ends, view: int, stall_s: float) -> None:
        self._ends = ends
        self._view = view
        self._queue: queue.SimpleQueue[Frame | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._broken: LinkLostError | None = None
        for end in (ends.incoming, ends.outgoing):
            end.settimeout(stall_s)
        self._sender = threading.Thread(target=self._send_all, name="ring-sender")
        self._sender.daemon = True
        self._sender.start()

    def send(self, header: Header, body: memoryview) -> None:
        """Queue a frame; the body must stay as it is until it is sent."""
        self._queue.put((header.pack(), body))

    def receive_header(self) -> Header:
        """Return the next frame's header; signs of life are skipped.

        Raises:
            LinkLostError: the link is lost, or the previous rank blames someone.
        """
        buffer = bytearray(HEADER.size)
        while True:
            self.receive_into(memoryview(buffer))
            try:
                header = Header.unpack(bytes(buffer))
            except PeerError as error:
                raise self._lost(self._ends.previous, str(error)) from error
            if header.kind == BLAME:
                raise self._blamed(header)
            if header.view != self._view:
                wrong = f"sent a frame of view {header.view}, this is {self._view}"
                raise self._lost(self._ends.previous, wrong)
            if header.kind != BEAT:
                return header

    def receive_into(self, buffer: memoryview) -> None:
        """Fill a buffer from the previous rank.

        Raises:
            LinkLostError: the link is lost.
        """
        incoming, rank = self._ends.incoming, self._ends.previous
        done = 0
        while done < len(buffer):
            try:
                count = incoming.recv_into(buffer[done:])
            except TimeoutError:
                raise self._lost(rank, "nothing moves") from None
            except OSError as error:
                raise self._lost(rank, _reason(error)) from error
            if count == 0:
                raise self._lost(rank, "the connection was closed")
            done += count

    def abort(self, rank: int, problem: str) -> None:
        """End both links now; every waiting call raises. From any thread."""
        self._lost(rank, problem)

    def close(self) -> None:
        """Send what is queued, then close both connections."""
        self._queue.put(None)
        self._sender.join(timeout=5.0)
        for end in (self._ends.incoming, self._ends.outgoing):
            _shut(end)
            end.close()

    def _lost(self, rank: int, problem: str) -> LinkLostError:
        """Note the first loss, shut both connections, and return the error to raise."""
        with self._lock:
            first = self._broken is None
            if self._broken is None:
                self._broken = LinkLostError(rank, problem)
            lost = self._broken
        if first:
            self._shut_down()
        return lost

    def _shut_down(self) -> None:
        """Let the sender tell the next rank whom to blame, if it can, then shut."""
        self._queue.put(None)
        _shut(self._ends.incoming)
        if threading.current_thread() is not self._sender:
            self._sender.join(timeout=BEAT_S)
        _shut(self._ends.outgoing)

    def _blamed(self, header: Header) -> LinkLostError:
        length = min(header.length, BLAME_BYTES_MAX)
        buffer = bytearray(length)
        self.receive_into(memoryview(buffer))
        rank = header.origin if header.origin != NOBODY else -1
        return self._lost(rank, bytes(buffer).decode(errors="replace"))

    def _send_all(self) -> None:
        beat = Header(BEAT, self._view).pack()
        empty = memoryview(b"")
        try:
            while True:
                try:
                    item = self._queue.get(timeout=BEAT_S)
                except queue.Empty:
                    item = (beat, empty)
                if item is None:
                    self._say_blame()
                    return
                self._send_one(*item)
        except OSError as error:
            self._lost(self._ends.next, _reason(error))

    def _send_one(self, header: bytes, body: memoryview) -> None:
        if len(body) < SMALL_BYTES:
            self._push(memoryview(header + body))
        else:
            self._push(memoryview(header))
            self._push(body)

    def _push(self, data: memoryview) -> None:
        """Send it all; ``sendall`` would give the whole of it one ``stall_s`` only."""
        done = 0
        while done < len(data):
            done += self._ends.outgoing.send(data[done:])

    def _say_blame(self) -> None:
        lost = self._broken
        if lost is not None:
            text = lost.problem.encode()[:BLAME_BYTES_MAX]
            origin = lost.rank % NOBODY if lost.rank >= 0 else NOBODY
            header = Header(BLAME, self._view, origin=origin, length=len(text))
            self._push(memoryview(header.pack() + text))


def _shut(end: socket.socket) -> None:
    """Shut a connection down so that every thread blocked on it returns."""
    try:
        socket.socket.shutdown(end, socket.SHUT_RDWR)
    except (OSError, ssl.SSLError):
        return  # it is already gone


def _reason(error: OSError) -> str:
    return error.strerror or str(error) or type(error).__name__
