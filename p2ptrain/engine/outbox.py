"""Frames on their way to the daemon, written by a thread of its own.

Progress never holds training up: ``Steps`` frames that wait are merged into one. All
other frames keep their order and are never dropped; only when a thousand of them wait,
so when the daemon has read nothing for very long, does ``send`` wait too.
"""

import threading
from collections import deque
from typing import BinaryIO, Final

from p2ptrain.engine.frames import frame_of
from p2ptrain.messages.trainer import FromTrainer, Steps

WAITING_MAX: Final = 1000
LOSSES_MAX: Final = 4096  # the newest are kept


def merged(old: Steps, new: Steps) -> Steps:
    """Return one frame for two successive ones of a view."""
    return Steps(
        view=new.view,
        step=new.step,
        losses=(old.losses + new.losses)[-LOSSES_MAX:],
        samples=old.samples + new.samples,
        wall_s=old.wall_s + new.wall_s,
        compute_s=old.compute_s + new.compute_s,
        comm_s=old.comm_s + new.comm_s,
        note=new.note or old.note,
    )


class Outbox:
    """The only writer of a stream; any thread may send.

    Args:
        stream: where the frames go. When it breaks (the daemon is gone) the rest is
            dropped: the reader of the other pipe ends the process.
    """

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._waiting: deque[FromTrainer] = deque()
        self._changed = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._write, name="outbox", daemon=True)
        self._thread.start()

    def send(self, frame: FromTrainer) -> None:
        """Send a frame; see the module's head on waiting."""
        with self._changed:
            last = self._waiting[-1] if self._waiting else None
            if (
                isinstance(frame, Steps)
                and isinstance(last, Steps)
                and last.view == frame.view
            ):
                self._waiting[-1] = merged(last, frame)
                return
            self._changed.wait_for(
                lambda: self._closed or len(self._waiting) < WAITING_MAX
            )
            if not self._closed:
                self._waiting.append(frame)
                self._changed.notify_all()

    def close(self) -> None:
        """Return when all that was sent is written, or cannot be."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join()

    def _write(self) -> None:
        while (frame := self._next()) is not None:
            try:
                self._stream.write(frame_of(frame))
                self._stream.flush()
            except OSError:
                break
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _next(self) -> FromTrainer | None:
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._waiting)
            frame = self._waiting.popleft() if self._waiting else None
            self._changed.notify_all()
            return frame
