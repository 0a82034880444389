"""Writes copies of the state while training goes on: one at a time, in a thread."""

import itertools
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from p2ptrain.engine.state import Copy
from p2ptrain.messages.trainer import StateWritten

LONE_S: Final = 1.0
AT_LEAST_S: Final = 5.0
AT_MOST_S: Final = 1800.0
COPY_SHARE: Final = 100.0
BYTES_PER_S: Final = 2e6


@dataclass(frozen=True, slots=True)
class Label:
    """What a file is for."""

    view: int
    purpose: str  # ``checkpoint`` or ``snapshot``
    epoch: int  # complete epochs


class Pace:
    """When the next checkpoint is due, beside those that the job asks for.

    Often, for what was trained since is lost with the last rank that holds it; but a
    copy may take a hundredth of the time, and on its way to a second node
    ``BYTES_PER_S`` of the network.

    Args:
        world: ranks of the view; a lone one's state is nowhere else.
        now: the clock, in seconds.
    """

    def __init__(self, world: int, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._floor_s = LONE_S if world == 1 else AT_LEAST_S
        self._since = now()
        self._pause_s = self._floor_s

    def wrote(self, copy_s: float, nbytes: int) -> None:
        """Learn from a checkpoint: the seconds of its copy, and its size."""
        wanted = max(self._floor_s, COPY_SHARE * copy_s, nbytes / BYTES_PER_S)
        self._pause_s = min(AT_MOST_S, wanted)
        self._since = self._now()

    def is_due(self, writer: "StateWriter") -> bool:
        """Tell whether it is time, and nothing is being written."""
        return self._now() - self._since >= self._pause_s and not writer.busy


class StateWriter:
    """The thread; its failures are raised where the next file is begun or awaited.

    Args:
        workdir: where the files go.
        send: told of each durable file, in the thread.
    """

    def __init__(self, workdir: Path, send: Callable[[StateWritten], None]) -> None:
        self._workdir = workdir
        self._send = send
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="writer")
        self._current: Future[None] | None = None
        self._count = itertools.count()  # no name is used twice

    @property
    def busy(self) -> bool:
        """Whether a file is being written."""
        return self._current is not None and not self._current.done()

    def begin(self, copy: Copy, label: Label) -> None:
        """Write a copy; waits only while the file before it is unfinished.

        Raises:
            StorageError: the file before it could not be written.
        """
        self.wait()
        self._current = self._pool.submit(self._write, copy, label)

    def wait(self) -> None:
        """Return when no file is being written.

        Raises:
            StorageError: it could not be written.
        """
        current, self._current = self._current, None
        if current is not None:
            current.result()

    def close(self) -> None:
        """End the thread when it has done what it is at."""
        self._pool.shutdown()

    def _write(self, copy: Copy, label: Label) -> None:
        number = next(self._count)
        name = f"{label.purpose}-{label.view}-{copy.step}-{number}.safetensors"
        path = self._workdir / name
        digest = copy.write(path)
        self._send(
            StateWritten(
                view=label.view,
                purpose=label.purpose,
                step=copy.step,
                epoch=label.epoch,
                path=str(path),
                state_digest=digest,
            )
        )
