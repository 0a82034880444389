"""Reads tensors from GGUF files: bytes as they are, or dequantised.

The header is walked here and not by the ``gguf`` package's reader, which believes the
counts that it finds (a file of a few bytes can keep it busy for ever) and reads every
tensor's entry into objects. Layout after the GGUF specification, version 2 and 3,
little-endian.
"""

import math
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final

import gguf
import numpy as np
import torch
from torch import Tensor

from p2ptrain.engine.readers import HEADER_BYTES_MAX, SlabError, read_exactly
from p2ptrain.spec.graph import Shape

MAGIC: Final = b"GGUF"
DIMS_MAX: Final = 8
ALIGNMENT: Final = 32  # where the file does not say
DEPTH_MAX: Final = 4  # of arrays in arrays

STRING, ARRAY = 8, 9  # kinds of values; the others have a size
_SIZES: Final = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
UINT32: Final = 4

_Type = gguf.GGMLQuantizationType
_PLAIN: Final[dict[Any, str]] = {  # not quantised, and kept in their own dtype
    _Type.F64: "float64",
    _Type.F32: "float32",
    _Type.I8: "int8",
    _Type.I16: "int16",
    _Type.I32: "int32",
    _Type.I64: "int64",
}


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """A tensor of a GGUF file.

    Args:
        path: of the file.
        offset: of its bytes.
        kind: how they are quantised, a ``gguf.GGMLQuantizationType``.
        shape: of its numbers.
    """

    path: Path
    offset: int
    kind: Any
    shape: Shape

    @property
    def packed_shape(self) -> Shape:
        """Shape of its bytes: rows as they are, each row's bytes in the last place."""
        block, size = gguf.GGML_QUANT_SIZES[self.kind]
        return (*self.shape[:-1], self.shape[-1] // block * size)

    @property
    def dtype(self) -> str:
        """Dtype of its numbers once dequantised."""
        return _PLAIN.get(self.kind, "float32")

    def packed(self) -> Tensor:
        """Return its bytes, uint8 ``packed_shape``."""
        return torch.from_numpy(self._bytes().copy())

    def numbers(self) -> Tensor:
        """Return its numbers.

        Raises:
            SlabError: the package cannot dequantise this kind.
        """
        if self.kind in _PLAIN:
            return self.packed().view(getattr(torch, self.dtype))
        try:
            values = gguf.quants.dequantize(self._bytes(), self.kind)
        except NotImplementedError as error:
            raise SlabError(
                f"it cannot be dequantised from {self.kind.name}"
            ) from error
        return torch.from_numpy(np.array(values, np.float32)).reshape(self.shape)

    def _bytes(self) -> np.ndarray:
        mapped = np.memmap(self.path, np.uint8, "r", self.offset, self.packed_shape)
        return np.asarray(mapped)


def find_gguf(path: Path, name: str) -> GgufTensor:
    """Return a tensor of a GGUF file.

    Raises:
        SlabError: it is none, is damaged, or has no such tensor.
        OSError: the file cannot be read.
    """
    wanted = name.encode()
    with path.open("rb") as file:
        walk = _Walk(file)
        version, tensors, pairs = walk.unpack("<4xIQQ")
        if version not in {2, 3}:
            raise SlabError(f"GGUF version {version} is not supported")
        alignment = _alignment(walk, pairs)
        found = [entry for entry in _entries(walk, tensors) if entry[0] == wanted]
        start = -(-file.tell() // alignment) * alignment
        size = file.seek(0, 2)
    if len(found) != 1:
        raise SlabError(f"it has {len(found) or 'no'} tensor {name[:80]!r}")
    _, shape, code, offset = found[0]
    if code not in list(_Type):
        raise SlabError(f"quantisation {code} is not known")
    tensor = GgufTensor(path, start + offset, _Type(code), shape)
    _check(tensor, size)
    return tensor


def _check(tensor: GgufTensor, size: int) -> None:
    block, _ = gguf.GGML_QUANT_SIZES[tensor.kind]
    if not tensor.shape or min(tensor.shape) < 1 or tensor.shape[-1] % block:
        raise SlabError(f"shape {list(tensor.shape)} does not fit {tensor.kind.name}")
    count = math.prod(tensor.packed_shape)
    if tensor.offset + count > size:
        raise SlabError(f"it ends before its {count} bytes of elements")


class _Walk:
    """Goes through a header, all of it within ``HEADER_BYTES_MAX``.

    Args:
        file: at the header's begin.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    def take(self, count: int) -> bytes:
        """Return the next bytes.

        Raises:
            SlabError: the header ends before, or is beyond its bound.
        """
        if self._file.tell() + count > HEADER_BYTES_MAX:
            raise SlabError(f"its header has more than {HEADER_BYTES_MAX} bytes")
        return read_exactly(self._file, count)

    def unpack(self, layout: str) -> tuple[int, ...]:
        """Return the next integers."""
        return struct.unpack(layout, self.take(struct.calcsize(layout)))

    def text(self) -> bytes:
        """Return the next string."""
        return self.take(self.unpack("<Q")[0])

    def skip(self, kind: int, depth: int = 0) -> None:
        """Pass over a value."""
        if kind in _SIZES:
            self.take(_SIZES[kind])
        elif kind == STRING:
            self.text()
        elif kind == ARRAY and depth < DEPTH_MAX:
            self._skip_array(depth)
        else:
            raise SlabError(f"its header has a value of kind {kind}")

    def _skip_array(self, depth: int) -> None:
        kind, count = self.unpack("<IQ")
        if kind in _SIZES:
            self.take(_SIZES[kind] * count)
            return
        # every other element takes 8 bytes or more: the header's bound ends the loop
        for _ in range(count):
            self.skip(kind, depth + 1)


def _alignment(walk: _Walk, pairs: int) -> int:
    """Pass over the key-value pairs; return the alignment of tensors."""
    alignment = ALIGNMENT
    for _ in range(pairs):
        key = walk.text()
        (kind,) = walk.unpack("<I")
        if key == b"general.alignment" and kind == UINT32:
            (alignment,) = walk.unpack("<I")
        else:
            walk.skip(kind)
    if alignment < 1 or alignment & (alignment - 1):
        raise SlabError(f"alignment {alignment} is no power of two")
    return alignment


def _entries(walk: _Walk, count: int) -> Iterator[tuple[bytes, Shape, int, int]]:
    """Yield each tensor's name, shape, quantisation and offset."""
    for _ in range(count):
        name = walk.text()
        (dims,) = walk.unpack("<I")
        if dims > DIMS_MAX:
            raise SlabError(f"a tensor has {dims} dimensions")
        shape = walk.unpack(f"<{dims}Q")
        code, offset = walk.unpack("<IQ")
        yield name, shape[::-1], code, offset
