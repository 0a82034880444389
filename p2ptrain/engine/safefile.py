"""Files that are whole or absent: temporary name, fsync, rename, fsync of the folder.

Tensors are written in the safetensors format, piece by piece from their own memory:
the library's writer first copies every tensor into a byte string, which for a large
model would double the memory that a checkpoint takes.
"""

import json
import os
import struct
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO, Final

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from p2ptrain.errors import LocalError, StorageError

NAMES: Final = {
    torch.float64: "F64",
    torch.int64: "I64",
    torch.uint64: "U64",
    torch.complex64: "C64",
    torch.float32: "F32",
    torch.int32: "I32",
    torch.uint32: "U32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int16: "I16",
    torch.uint16: "U16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
}


def bytes_of(tensor: Tensor) -> memoryview:
    """Return a tensor's bytes in row-major order; a view of its memory where it is a
    contiguous one of the host's, else of a copy.
    """
    host = tensor.detach().cpu().contiguous().reshape(-1)
    return host.view(torch.uint8).numpy().data


def fill(tensors: Sequence[Tensor], data: bytes) -> None:
    """Overwrite tensors, in order, with the bytes of tensors like them.

    Raises:
        LocalError: too few bytes or too many; nothing is changed.
    """
    sizes = [tensor.nbytes for tensor in tensors]
    if sum(sizes) != len(data):
        raise LocalError(f"{len(data)} bytes for tensors of {sum(sizes)}")
    start = 0
    for tensor, size in zip(tensors, sizes, strict=True):
        piece = bytearray(data[start : start + size])
        start += size
        if piece:
            new = torch.frombuffer(piece, dtype=tensor.dtype)
            tensor.copy_(new.reshape(tensor.shape))


def write_tensors(
    path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]
) -> None:
    """Write a safetensors file, whole or not at all.

    Args:
        path: the file's final name.
        tensors: what it holds, by name; not changed meanwhile.
        metadata: texts for the file's ``__metadata__``.

    Raises:
        StorageError: the disk refused; nothing is under the name.
        LocalError: a dtype that the format lacks.
    """
    # Wide elements first, so that every tensor is aligned, as the library does.
    order = sorted(tensors, key=lambda name: (-tensors[name].itemsize, name))
    header = _header(order, tensors, metadata)

    def write(file: BinaryIO) -> None:
        file.write(struct.pack("<Q", len(header)) + header)
        file.writelines(bytes_of(tensors[name]) for name in order)

    replace_file(path, write)


def _header(
    order: list[str], tensors: Mapping[str, Tensor], metadata: Mapping[str, str]
) -> bytes:
    entries: dict[str, object] = {"__metadata__": dict(metadata)}
    end = 0
    for name in order:
        tensor = tensors[name]
        if tensor.dtype not in NAMES:
            raise LocalError(f"tensor {name!r}: no safetensors dtype {tensor.dtype}")
        begin, end = end, end + tensor.nbytes
        entries[name] = {
            "dtype": NAMES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [begin, end],
        }
    text = json.dumps(entries, separators=(",", ":")).encode()
    return text + b" " * (-len(text) % 8)


def write_json(path: Path, value: object) -> None:
    """Write a JSON file, whole or not at all.

    Raises:
        StorageError: the disk refused; nothing is under the name.
    """
    text = json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False)
    replace_file(path, lambda file: file.write((text + "\n").encode()))


def replace_file(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """Put under a name what ``write`` writes, durable, whole or not at all.

    Raises:
        StorageError: the disk refused; what was under the name before still is.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{time.monotonic_ns()}")
    try:
        try:
            with temporary.open("xb") as file:
                write(file)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
            _sync_folder(path.parent)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        raise StorageError(f"cannot write {path}: {error.strerror}") from error


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return the tensors (on the host) and the metadata of a safetensors file.

    Raises:
        StorageError: there is no such file, or it is damaged.
    """
    try:
        with safe_open(path, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  # not a mapping
            return tensors, dict(file.metadata() or {})
    except (OSError, SafetensorError) as error:
        raise StorageError(f"cannot read {path}: {error}") from error
