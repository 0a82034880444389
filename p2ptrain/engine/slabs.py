"""Where a tensor's bytes lie in a file, whatever its format: headers are read,
elements are not.
"""

import json
import math
from pathlib import Path
from typing import BinaryIO, Final

from p2ptrain.engine.readers import HEADER_BYTES_MAX, Slab, SlabError
from p2ptrain.engine.readers_npy import NPY_MAGIC, npy_slab, npz_slab
from p2ptrain.spec.dtypes import DTYPES
from p2ptrain.spec.graph import Shape

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
            slab = npz_slab(path, file, name)
        elif name:
            slab = _safetensors(path, file, name, size)
        elif magic == NPY_MAGIC:
            slab = npy_slab(path, file, 0)
        else:
            slab = _raw(path, dtype, sample or (), size)
    if slab.nbytes <= 0:
        raise SlabError("it holds no elements")
    if slab.offset + slab.nbytes > size:
        raise SlabError(f"it ends before its {slab.nbytes} bytes of elements")
    return slab


def _raw(path: Path, dtype: str, sample: Shape, size: int) -> Slab:
    row = math.prod(sample) * DTYPES[dtype].itemsize
    if row == 0 or size % row:
        raise SlabError(f"{size} bytes are no whole number of samples of {row} bytes")
    return Slab(path, 0, dtype, (size // row, *sample))


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
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise SlabError(f"it has no tensor {name[:80]!r}") from error
    slab = Slab(path, 8 + length + first, dtype, shape)
    if min(shape, default=0) < 0 or first < 0 or last - first != slab.nbytes:
        raise SlabError(f"tensor {name[:80]!r} does not fill its place")
    return slab
