"""What the readers of file formats share: where a tensor lies, and bounded reading.

A file may come from anybody. Every header is bounded before it is read, what it claims
is checked against the file's size, and whatever is wrong is a ``SlabError``.
"""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final

from p2ptrain.spec.dtypes import DTYPES
from p2ptrain.spec.graph import Shape

HEADER_BYTES_MAX: Final = 64 * 1024 * 1024


class SlabError(ValueError):
    """There is no such tensor in the file; one clause for a sentence."""


@dataclass(frozen=True, slots=True)
class Slab:
    """A tensor in a file: row-major, little-endian, from ``offset`` on."""

    path: Path
    offset: int
    dtype: str
    shape: Shape

    @property
    def nbytes(self) -> int:
        """Bytes of the tensor."""
        return math.prod(self.shape) * DTYPES[self.dtype].itemsize


def read_exactly(file: BinaryIO, count: int) -> bytes:
    """Return the next bytes of a header.

    Raises:
        SlabError: the file ends before, or these are more than a header may have.
    """
    if count > HEADER_BYTES_MAX:
        raise SlabError(f"its header has more than {HEADER_BYTES_MAX} bytes")
    data = file.read(count)
    if len(data) < count:
        raise SlabError("it ends within its header")
    return data
