"""Ring links: one connection in from the previous rank, one out to the next.

Blocking sockets in threads: a sender thread takes what is queued and, when idle, says
once in a while that this process lives; the training thread receives, straight into
tensor memory. Any thread may ``abort``.

Who notices what: a rank watches its previous one, on which nothing may move for
``stall_s`` while something is awaited, and tells the next one whom to blame; so the
news of a loss runs once around the ring. The sending side has no time-out, for a next
rank that computes does not read, and may do so for as long as it likes; only when all
ranks must be in the same reduction (``flush``) is it held to ``stall_s`` too. A sender
that fails waits a moment for the news, which knows better who is to blame.
"""

import queue
import socket
import ssl
import threading
import time
from dataclasses import dataclass
from typing import Final

from p2ptrain.engine.header import BEAT, BLAME, HEADER, NOBODY, Header
from p2ptrain.errors import LinkLostError, PeerError

BLAME_BYTES_MAX: Final = 400
BEAT_S: Final = 0.25
NEWS_S: Final = 0.3  # a failed sender waits so long for news from around the ring
LINGER_S: Final = 1.0
SMALL_BYTES: Final = 4096

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
        self._stall_s = stall_s
        self._queue: queue.SimpleQueue[Frame | None] = queue.SimpleQueue()
        self._queued = 0
        self._sent = 0  # frames; written by the sender only
        self._moved = 0  # bytes; written by the sender only
        self._drained = threading.Condition()
        self._lock = threading.Lock()
        self._broken: LinkLostError | None = None
        self._over = threading.Event()
        ends.incoming.settimeout(stall_s)
        ends.outgoing.settimeout(None)
        self._sender = threading.Thread(target=self._run_sender, name="ring-sender")
        self._sender.daemon = True
        self._sender.start()

    def send(self, header: Header, body: memoryview) -> None:
        """Queue a frame; the body must stay as it is until ``flush`` returns."""
        self._queued += 1
        self._queue.put((header.pack(), body))

    def flush(self) -> None:
        """Wait until all that was queued has left this process; call it when the next
        rank is bound to be receiving.

        Raises:
            LinkLostError: the link is lost, or nothing moves for ``stall_s``.
        """
        seen, since = -1, time.monotonic()
        while self._sent < self._queued:
            if self._broken is not None:
                raise self._broken
            if self._moved != seen:
                seen, since = self._moved, time.monotonic()
            elif time.monotonic() - since > self._stall_s:
                raise self._lost(self._ends.next, "takes nothing")
            with self._drained:
                self._drained.wait_for(self._is_drained, timeout=BEAT_S)

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
        """Send what is queued, let the previous rank finish too, then close both."""
        until = time.monotonic() + LINGER_S
        self._queue.put(None)
        self._sender.join(timeout=LINGER_S)
        if self._broken is None:
            self._linger(until)
        for end in (self._ends.incoming, self._ends.outgoing):
            _shut(end)
            end.close()
        self._sender.join(timeout=LINGER_S)

    def _linger(self, until: float) -> None:
        """Read until the previous rank closes: closing with unread bytes would reset
        its connection, and end a reduction that it has not finished.
        """
        _shut(self._ends.outgoing, socket.SHUT_WR)
        scrap = bytearray(SMALL_BYTES)
        try:
            while (left := until - time.monotonic()) > 0:
                self._ends.incoming.settimeout(left)
                if not self._ends.incoming.recv_into(scrap):
                    return
        except OSError:
            return  # late, or gone

    def _is_drained(self) -> bool:
        return self._sent >= self._queued or self._broken is not None

    def _lost(self, rank: int, problem: str) -> LinkLostError:
        """Note the first loss, shut both connections, and return the error to raise."""
        with self._lock:
            first = self._broken is None
            if self._broken is None:
                self._broken = LinkLostError(rank, problem)
            lost = self._broken
        if first:
            self._over.set()
            self._shut_down()
            with self._drained:
                self._drained.notify_all()
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

    def _run_sender(self) -> None:
        try:
            self._send_all()
        except OSError as error:
            self._over.wait(NEWS_S)
            self._lost(self._ends.next, _reason(error))

    def _send_all(self) -> None:
        beat = Header(BEAT, self._view).pack()
        while True:
            try:
                item = self._queue.get(timeout=BEAT_S)
            except queue.Empty:
                self._push(memoryview(beat))
                continue
            if item is None:
                self._say_blame()
                return
            self._send_one(*item)
            self._sent += 1
            if self._queue.empty():
                with self._drained:
                    self._drained.notify_all()

    def _send_one(self, header: bytes, body: memoryview) -> None:
        if len(body) < SMALL_BYTES:
            self._push(memoryview(header + body))
        else:
            self._push(memoryview(header))
            self._push(body)

    def _push(self, data: memoryview) -> None:
        done = 0
        while done < len(data):
            count = self._ends.outgoing.send(data[done:])
            done += count
            self._moved += count

    def _say_blame(self) -> None:
        lost = self._broken
        if lost is not None:
            text = lost.problem.encode()[:BLAME_BYTES_MAX]
            origin = lost.rank % NOBODY if lost.rank >= 0 else NOBODY
            header = Header(BLAME, self._view, origin=origin, length=len(text))
            self._push(memoryview(header.pack() + text))


def _shut(end: socket.socket, how: int = socket.SHUT_RDWR) -> None:
    """Shut a connection down so that every thread blocked on it returns."""
    try:
        socket.socket.shutdown(end, how)
    except (OSError, ssl.SSLError):
        return  # it is already gone


def _reason(error: OSError) -> str:
    return error.strerror or str(error) or type(error).__name__
