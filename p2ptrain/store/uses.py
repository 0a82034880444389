"""Which blobs are known to be good and when each was used last, and the removal of what
nobody needs.
"""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from p2ptrain.ids import Digest
from p2ptrain.store.files import refuse

KEEP_S: Final = 3600.0  # what nothing on record names stays so long after its last use
KEEP_STATE_S: Final = 120.0  # the same for states: there are many, and soon a newer one
STATES: Final = ("snapshot-", "checkpoint-")  # how their names begin
PARTIAL_S: Final = 24 * 3600.0


class Uses:
    """What this process knows of blobs; all in it were verified in its life.

    Args:
        clock: in seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._born = clock()
        self._used: dict[Digest, tuple[float, str]] = {}  # when last, and the name

    def __contains__(self, digest: Digest) -> bool:
        """Tell whether a blob was verified in this process's life."""
        return digest in self._used

    def note(self, digest: Digest, name: str) -> None:
        """A blob is good, and was used now."""
        known = self._used.get(digest, (0.0, ""))[1]
        self._used[digest] = (self._clock(), name or known)

    def touch(self, digest: Digest) -> None:
        """A blob was used now, if it is known."""
        if digest in self._used:
            self.note(digest, "")

    def forget(self, digest: Digest) -> None:
        """A blob is gone."""
        self._used.pop(digest, None)

    def is_stale(self, digest: Digest) -> bool:
        """Tell whether nobody has used a blob for longer than one of its kind stays."""
        used, name = self._used.get(digest, (self._born, ""))
        keep = KEEP_STATE_S if name.startswith(STATES) else KEEP_S
        return self._clock() - used > keep


def sweep(
    blobs: Path, partial: Path, uses: Uses, referenced: frozenset[Digest]
) -> list[Digest]:
    """Remove stale blobs that nothing names, and what was never finished.

    Args:
        blobs: folder of complete blobs.
        partial: folder of the others.
        uses: of the complete ones.
        referenced: what is named.

    Returns:
        What was removed.

    Raises:
        StorageError: the disk refused.
    """
    removed: list[Digest] = []
    try:
        for file in blobs.glob("*/*"):
            digest = Digest(file.name)
            if digest not in referenced and uses.is_stale(digest):
                file.unlink(missing_ok=True)
                uses.forget(digest)
                removed.append(digest)
        for file in partial.iterdir():
            if time.time() - file.stat().st_mtime > PARTIAL_S:
                file.unlink(missing_ok=True)
    except OSError as error:
        refuse(blobs, error)
    return removed
