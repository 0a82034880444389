"""Where a tensor's bytes lie in a file: headers are read, elements are not.

Every header is bounded before it is read, and what it claims is checked against the
file's size.
"""

import json
import math
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final

import numpy as np

from p2ptrain.spec.dtypes import DTYPES
from p2ptrain.spec.graph import Shape

HEADER_BYTES_MAX: Final = 64 * 1024 * 1024
NPY_MAGIC: Final = b"\x93NUMPY"
LOCAL_HEADER_BYTES: Final = 30
SAFETENSORS: Final = {
    "F64": "float64",
    "F32": "float32",
    "F16": "float16",
    "BF16": "bfloat16",
    "I64": "int64",
    "I32": "int32",
    "I16": "int16",
    "I8": "int8",
    "U64": "uint64",
    "U32": "uint32",
    "U16": "uint16",
    "U8": "uint8",
    "BOOL": "bool",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
    "C64": "complex64",
}


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


def find_slab(path: Path, name: str, dtype: str, sample: Shape | None) -> Slab:
    """Return where a tensor lies, whatever the file's format is.

    Args:
        path: of the file.
        name: of the tensor; empty for ``.npy`` and raw files.
        dtype: of a raw file.
        sample: shape of one row of a raw file, or None: a raw file is one dimension.

    Raises:
        SlabError: it is not there, or not as the header says.
        OSError: the file cannot be read.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        magic = file.read(6)
        if name and magic.startswith(b"PK"):
            slab = _npz(path, name)
        elif name:
            slab = _safetensors(path, file, name, size)
        elif magic == NPY_MAGIC:
            slab = _npy(path, file, 0)
        else:
            slab = _raw(path, dtype, sample or (), size)
    if slab.nbytes == 0:
        raise SlabError("it holds no elements")
    if slab.offset + slab.nbytes > size:
        raise SlabError(f"it ends before its {slab.nbytes} bytes of elements")
    return slab


def _raw(path: Path, dtype: str, sample: Shape, size: int) -> Slab:
    row = math.prod(sample) * DTYPES[dtype].itemsize
    if row == 0 or size % row:
        raise SlabError(f"{size} bytes are no whole number of samples of {row} bytes")
    return Slab(path, 0, dtype, (size // row, *sample))


def _npy(path: Path, file: BinaryIO, start: int) -> Slab:
    file.seek(start)
    try:
        version = np.lib.format.read_magic(file)
        read = {
            (1, 0): np.lib.format.read_array_header_1_0,
            (2, 0): np.lib.format.read_array_header_2_0,
        }[version]
        shape, by_columns, dtype = read(file)
    except (ValueError, KeyError) as error:
        raise SlabError(f"its .npy header is not readable: {error}") from error
    name = dtype.name
    if by_columns and len(shape) > 1:
        raise SlabError("it is in column order: save it in row order")
    if dtype.byteorder == ">" or name not in DTYPES:
        raise SlabError(f"elements of {dtype.str!r} are not supported")
    return Slab(path, file.tell(), name, tuple(shape))


def _npz(path: Path, name: str) -> Slab:
    try:
        with zipfile.ZipFile(path) as archive:
            found = archive.getinfo(f"{name}.npy")
    except (KeyError, zipfile.BadZipFile) as error:
        raise SlabError(f"it has no member {name[:80]!r}") from error
    if found.compress_type != zipfile.ZIP_STORED:
        raise SlabError("it is compressed and cannot be mapped: use numpy.savez")
    with path.open("rb") as file:
        file.seek(found.header_offset)
        head = file.read(LOCAL_HEADER_BYTES)
        skip = int.from_bytes(head[26:28], "little")
        skip += int.from_bytes(head[28:30], "little")
        return _npy(path, file, found.header_offset + LOCAL_HEADER_BYTES + skip)


def _safetensors(path: Path, file: BinaryIO, name: str, size: int) -> Slab:
    file.seek(0)
    length = int.from_bytes(file.read(8), "little")
    if not 0 < length <= min(size, HEADER_BYTES_MAX):
        raise SlabError("it is no .npz and no safetensors file")
    try:
        header = json.loads(file.read(length))
        entry = header[name]
        dtype = SAFETENSORS[entry["dtype"]]
        shape = tuple(int(n) for n in entry["shape"])
        first, last = (int(n) for n in entry["data_offsets"])
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise SlabError(f"it has no tensor {name[:80]!r}") from error
    slab = Slab(path, 8 + length + first, dtype, shape)
    if min(shape, default=0) < 0 or first < 0 or last - first != slab.nbytes:
        raise SlabError(f"tensor {name[:80]!r} does not fill its place")
    return slab
