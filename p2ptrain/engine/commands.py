"""Frames from the daemon, read by a thread of their own.

Most wait in a queue until the session takes them. What must not wait for a step is
seen to here, in the reading thread: a halt at once or a quit aborts the running view,
and the end of the stream (the daemon is gone) ends the process.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from queue import Empty, SimpleQueue
from typing import BinaryIO, Final

from p2ptrain import codec
from p2ptrain.engine.frames import read_frame
from p2ptrain.errors import PeerError
from p2ptrain.messages.trainer import HaltView, Quit, ToTrainer

TABLE: Final[dict[str, type[ToTrainer]]] = codec.kinds(ToTrainer)


class Commands:
    """The only reader of a stream.

    Args:
        stream: where the frames come from.
        ended: called in the reading thread, with a reason, when the stream ends.
    """

    def __init__(self, stream: BinaryIO, ended: Callable[[str], None]) -> None:
        self._stream = stream
        self._ended = ended
        self._queue: SimpleQueue[ToTrainer] = SimpleQueue()
        self._lock = threading.Lock()
        self._halt: HaltView | None = None  # the newest
        self._quit = False
        self._view = -1  # the view that runs
        self._abort: Callable[[str], None] | None = None

    def start(self) -> None:
        """Begin to read."""
        threading.Thread(target=self._read, name="commands", daemon=True).start()

    def take(self) -> ToTrainer:
        """Wait for the next command."""
        return self._queue.get()

    def waiting(self) -> ToTrainer | None:
        """Return the next command if there is one."""
        try:
            return self._queue.get_nowait()
        except Empty:
            return None

    @contextmanager
    def watching(self, view: int, abort: Callable[[str], None]) -> Iterator[None]:
        """Have ``abort`` called with the reason, once and in any thread, when the view
        must end at once: now, if that was commanded before.
        """
        with self._lock:
            self._view, self._abort = view, abort
        self._abort_if_told()
        try:
            yield
        finally:
            with self._lock:
                self._view, self._abort = -1, None

    def reason(self, view: int) -> str | None:
        """Return why the view must end at once, or None."""
        with self._lock:
            if self._quit:
                return "the trainer was told to quit"
            halt = self._halt
        if halt is None or halt.view != view or halt.drain:
            return None
        return halt.reason

    def drain(self, view: int) -> str | None:
        """Return why the view must end at a step boundary, or None."""
        with self._lock:
            halt = self._halt
        if halt is None or halt.view != view or not halt.drain:
            return None
        return halt.reason

    def _read(self) -> None:
        reason = "the stream has ended"
        try:
            while (command := read_frame(self._stream, TABLE)) is not None:
                self._note(command)
        except (PeerError, OSError, ValueError) as error:
            reason = str(error)
        self._ended(reason)

    def _note(self, command: ToTrainer) -> None:
        with self._lock:
            if isinstance(command, HaltView):
                self._halt = self._sharper(command)
            elif isinstance(command, Quit):
                self._quit = True
        if isinstance(command, HaltView):
            self._abort_if_told()
            return
        self._queue.put(command)
        self._abort_if_told()

    def _sharper(self, new: HaltView) -> HaltView:
        """A halt at once is not softened by a later drain of the same view."""
        old = self._halt
        if old is not None and old.view == new.view and not old.drain:
            return old
        return new

    def _abort_if_told(self) -> None:
        with self._lock:
            view, abort = self._view, self._abort
        reason = self.reason(view)
        if abort is None or reason is None:
            return
        with self._lock:
            if self._abort is not abort:
                return
            self._abort = None
        abort(reason)
