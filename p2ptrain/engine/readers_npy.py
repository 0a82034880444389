"""Reads the headers of ``.npy`` files and of ``.npz`` archives of them."""

import ast
import struct
import zipfile
from pathlib import Path
from typing import BinaryIO, Final

from p2ptrain.engine.readers import HEADER_BYTES_MAX, Slab, SlabError, read_exactly
from p2ptrain.spec.graph import Shape

NPY_MAGIC: Final = b"\x93NUMPY"
NPY_HEADER_BYTES_MAX: Final = 64 * 1024
LOCAL_HEADER: Final = struct.Struct("<4s22xHH")  # of a member: lengths of name, extra
END: Final = struct.Struct("<4s8xIIH")  # of the archive: its directory's size
END64: Final = struct.Struct("<4s36xQ8x")
LOCATOR_BYTES: Final = 20
BEFORE: Final = END64.size + LOCATOR_BYTES
END_COMMENT_MAX: Final = 0xFFFF

_DTYPES: Final = {
    "b1": "bool",
    "i1": "int8",
    "i2": "int16",
    "i4": "int32",
    "i8": "int64",
    "u1": "uint8",
    "u2": "uint16",
    "u4": "uint32",
    "u8": "uint64",
    "f2": "float16",
    "f4": "float32",
    "f8": "float64",
    "c8": "complex64",
    "c16": "complex128",
}
_DEEP: Final = (MemoryError, RecursionError)  # how the parser refuses deep nesting


def npy_slab(path: Path, file: BinaryIO, start: int) -> Slab:
    """Return where the tensor of a ``.npy`` file lies.

    Args:
        path: of the file.
        file: the same, open.
        start: where the ``.npy`` begins in it.

    Raises:
        SlabError: it is none, or one whose elements cannot be mapped.
    """
    file.seek(start)
    head = read_exactly(file, 8)
    major = head[6]
    if not head.startswith(NPY_MAGIC) or major not in {1, 2, 3}:
        raise SlabError("it is no .npy file of version 1 to 3")
    length = int.from_bytes(read_exactly(file, 2 if major == 1 else 4), "little")
    if length > NPY_HEADER_BYTES_MAX:
        raise SlabError(f"its .npy header has {length} bytes")
    dtype, shape = _header(read_exactly(file, length))
    return Slab(path, file.tell(), dtype, shape)


def _header(data: bytes) -> tuple[str, Shape]:
    keys = ("descr", "fortran_order", "shape")
    try:
        header = ast.literal_eval(data.decode().strip())
        descr, by_columns, shape = (header[key] for key in keys)
    except (ValueError, SyntaxError, TypeError, KeyError, *_DEEP) as error:
        raise SlabError("its .npy header is not readable") from error
    native = isinstance(descr, str) and descr[:1] in {"<", "|", "="}
    dtype = _DTYPES.get(descr[1:]) if native else None
    if dtype is None:
        raise SlabError(f"elements of {str(descr)[:40]!r} are not supported")
    sized = isinstance(shape, tuple) and all(
        isinstance(size, int) and 0 <= size < 2**63 for size in shape
    )
    if not sized:
        raise SlabError("its .npy header has no shape")
    if by_columns is not False and len(shape) > 1:
        raise SlabError("it is in column order: save it in row order")
    return dtype, tuple(map(int, shape))


def npz_slab(path: Path, file: BinaryIO, name: str) -> Slab:
    """Return where a member of a ``.npz`` archive lies.

    Raises:
        SlabError: there is none of that name, or it is compressed.
    """
    _check_directory(file)
    try:
        with zipfile.ZipFile(path) as archive:
            found = archive.getinfo(f"{name}.npy")
    except KeyError as error:
        raise SlabError(f"it has no member {name[:80]!r}") from error
    except (zipfile.BadZipFile, ValueError, NotImplementedError, struct.error) as error:
        raise SlabError("it is no readable .npz archive") from error
    if found.compress_type != zipfile.ZIP_STORED or found.flag_bits & 1:
        raise SlabError("it is compressed and cannot be mapped: use numpy.savez")
    file.seek(max(found.header_offset, 0))
    head = read_exactly(file, LOCAL_HEADER.size)
    magic, name_length, extra = LOCAL_HEADER.unpack(head)
    if magic != b"PK\3\4":
        raise SlabError("it is no readable .npz archive")
    return npy_slab(path, file, file.tell() + name_length + extra)


def _check_directory(file: BinaryIO) -> None:
    """Check that an archive's directory, which is read whole, is bounded."""
    size = file.seek(0, 2)
    file.seek(max(size - END.size - END_COMMENT_MAX - BEFORE, 0))
    tail = file.read()
    at = tail.rfind(b"PK\5\6")
    if at < 0 or len(tail) - at < END.size:
        raise SlabError("it is no readable .npz archive")
    lengths = [END.unpack_from(tail, at)[1]]
    if at >= BEFORE and tail[at - LOCATOR_BYTES :][:4] == b"PK\6\7":
        lengths.append(END64.unpack_from(tail, at - BEFORE)[1])
    if max(lengths) > HEADER_BYTES_MAX:
        raise SlabError(f"its directory has more than {HEADER_BYTES_MAX} bytes")
