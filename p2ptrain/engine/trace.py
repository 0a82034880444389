"""A trainer's timeline: what was at work from when to when.

It is in the Chrome trace event format, as an array whose closing bracket viewers do
not need.

Times are wall-clock microseconds, so that the files of several nodes lie on one axis,
as exactly as their clocks agree.
"""

import json
import os
import time
from pathlib import Path
from typing import Final, Self

from p2ptrain.errors import StorageError

_MODE: Final = 0o600


class Trace:
    """Writes events as they come, so that a killed process leaves what it had done.

    Args:
        path: of the file, or None: then nothing is written.
        name: of the node, for people.

    Raises:
        StorageError: the file cannot be made.
    """

    def __init__(self, path: Path | None, name: str = "") -> None:
        self._zero_s = time.time() - time.perf_counter()
        self._file = -1
        if path is None:
            return
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
            self._file = os.open(path, flags, _MODE)
        except OSError as error:
            raise StorageError(f"cannot make {path}: {error.strerror}") from error
        self._write(b"[\n")
        self._event({"ph": "M", "name": "process_name", "args": {"name": name}})

    @classmethod
    def to(cls, folder: str, file: str, name: str) -> Self:
        """Return this process's trace in a folder; an empty folder means none."""
        path = Path(folder) / f"{file}-{os.getpid()}.json"
        return cls(path if folder else None, name)

    def span(self, name: str, began: float, ended: float, **facts: object) -> None:
        """Note work between two readings of ``time.perf_counter``."""
        if self._file < 0:
            return
        self._event(
            {
                "ph": "X",
                "name": name,
                "ts": round((self._zero_s + began) * 1e6),
                "dur": round((ended - began) * 1e6),
                "args": facts,
            }
        )

    def close(self) -> None:
        """Write no more."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _event(self, event: dict[str, object]) -> None:
        event |= {"pid": os.getpid(), "tid": 0}
        self._write(json.dumps(event).encode() + b",\n")

    def _write(self, data: bytes) -> None:
        try:
            os.write(self._file, data)
        except OSError:  # a full disk must not end training
            self.close()
