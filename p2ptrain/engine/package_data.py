"""Samples of a job: arrays written to files, files hashed, nothing held twice."""

import io
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import numpy as np
from blake3 import blake3
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from torch import Tensor

from p2ptrain.engine import safefile
from p2ptrain.engine.convert import dtype_name
from p2ptrain.errors import StorageError, UserError
from p2ptrain.ids import Digest
from p2ptrain.spec.graph import Input
from p2ptrain.spec.train import DataRef
from p2ptrain.spec.uri import PathUri, Scheme, Uri, parse_uri

Samples = NDArray[np.generic] | Tensor
Array = Samples | str | Path

CHUNK_BYTES: Final = 8 * 1024 * 1024
NPY: Final = frozenset(
    {"bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"}
    | {"float16", "float32", "float64", "complex64", "complex128"}
)


class Store:
    """The files of a job.

    Args:
        folder: where new files are written.
        is_pushed: files that paths and URIs name travel with the job.
    """

    def __init__(self, folder: Path, *, is_pushed: bool) -> None:
        self.folder = folder
        self.files: dict[Digest, Path] = {}
        self._is_pushed = is_pushed

    def data(self, given: Input, source: Array) -> DataRef:
        """Return a reference to the samples of an input; write them where needed.

        Raises:
            UserError: they do not fit the input, or there is no such file.
            StorageError: the disk refused.
        """
        if isinstance(source, str | Path):
            return self._named(given, str(source))
        array = source.detach().cpu() if isinstance(source, Tensor) else source
        self._check(given, array)
        path = self.folder / f".{given.name.replace('/', '_')}.new"
        digest = write_array(path, array)
        blob = file_digest(path)
        final = self.folder / f"{blob}.npy"
        path.replace(final)
        self.files[blob] = final
        return _ref(given, f"blob:{blob}", len(array), digest)

    def _named(self, given: Input, text: str) -> DataRef:
        uri = uri_of(text)
        array = opened(uri, given)
        self._check(given, array)
        digest = Digest(_hashed(array).hexdigest())
        if not self._is_pushed or uri.startswith("blob:"):
            return _ref(given, uri, len(array), digest)
        if not uri.startswith("file:"):
            return self.data(given, array)
        path = Path(uri.removeprefix("file://"))
        blob = file_digest(path)
        self.files[blob] = path
        return _ref(given, f"blob:{blob}", len(array), digest)

    def _check(self, given: Input, array: Samples) -> None:
        dtype = _dtype(array)
        sample = tuple(array.shape[1:])
        if array.ndim and dtype == given.dtype and sample == given.shape[1:]:
            if len(array):
                return
            raise UserError(f"data: {given.name!r} has no samples")
        raise UserError(
            f"data: {given.name!r} is {dtype}{list(array.shape)}, but the graph takes "
            f"{given.dtype}{list(given.shape)}: convert it"
        )


def _ref(given: Input, uri: str, samples: int, digest: Digest) -> DataRef:
    shape = given.shape[1:]
    return DataRef(
        input=given.name,
        uri=uri,
        elem=math.prod(shape),
        shard_start=0,
        shard_len=samples,
        dtype=given.dtype,
        shape=shape,
        digest=digest,
    )


def uri_of(text: str) -> str:
    """Return the URI of a path, and a URI as it is."""
    if re.match(r"[a-z]+:", text):
        return text
    return f"file://{Path(text).expanduser().absolute()}"


def opened(uri: str, given: Input) -> Samples:
    """Return the samples behind a URI, mapped into memory where the format allows.

    Raises:
        UserError: there is nothing, or nothing that could be samples.
    """
    try:
        return _read(parse_uri(uri), given)
    except (OSError, ValueError, KeyError, SafetensorError) as error:
        raise UserError(f"data: {given.name!r}: cannot read {uri}: {error}") from error


def _read(uri: Uri, given: Input) -> Samples:
    if not isinstance(uri, PathUri):
        raise ValueError("it names no file of this machine")  # noqa: TRY004  # of a value
    match uri.scheme:
        case Scheme.FILE:
            return _mapped(Path(uri.path), given)
        case Scheme.NPZ:
            with np.load(uri.path, allow_pickle=False) as archive:
                found: NDArray[np.generic] = archive[uri.name]
                return found
        case Scheme.SAFETENSORS:
            with safe_open(uri.path, framework="pt") as file:
                tensor: Tensor = file.get_tensor(uri.name)
                return tensor
        case Scheme.GGUF:
            raise ValueError("it holds weights, not samples")


def _mapped(path: Path, given: Input) -> NDArray[np.generic]:
    with path.open("rb") as file:
        if file.read(6) == b"\x93NUMPY":
            found: NDArray[np.generic] = np.load(path, "r", allow_pickle=False)
            return found
    if given.dtype not in NPY:
        raise ValueError(f"numpy has no {given.dtype}")
    return np.memmap(path, given.dtype, "r").reshape(-1, *given.shape[1:])


def write_array(path: Path, array: Samples) -> Digest:
    """Write samples, piece by piece, and return the digest of their bytes.

    The file is ``.npy``, or raw little-endian where numpy lacks the dtype.

    Raises:
        StorageError: the disk refused.
    """
    hasher = blake3(max_threads=blake3.AUTO)
    try:
        with path.open("wb") as file:
            file.write(_header(array))
            for piece in _pieces(array):
                file.write(piece)
                hasher.update(piece)
    except OSError as error:
        raise StorageError(f"cannot write {path}: {error.strerror}") from error
    return Digest(hasher.hexdigest())


def _header(array: Samples) -> bytes:
    name = _dtype(array)
    if name not in NPY:
        return b""
    head = io.BytesIO()
    descr = np.dtype(name).newbyteorder("<").str
    np.lib.format.write_array_header_1_0(
        head, {"descr": descr, "fortran_order": False, "shape": tuple(array.shape)}
    )
    return head.getvalue()


def _dtype(array: Samples) -> str:
    if isinstance(array, Tensor):
        return dtype_name(array.dtype)
    return array.dtype.name  # without the order of bytes


def _hashed(array: Samples) -> blake3:
    hasher = blake3(max_threads=blake3.AUTO)
    for piece in _pieces(array):
        hasher.update(piece)
    return hasher


def _pieces(array: Samples) -> Iterator[memoryview]:
    """Yield the bytes of samples in row-major order, a bounded piece at a time."""
    row = max(1, array[:1].nbytes)
    step = max(1, CHUNK_BYTES // row)
    for start in range(0, len(array), step):
        part = array[start : start + step]
        if isinstance(part, Tensor):
            yield safefile.bytes_of(part)
        else:
            little = part.astype(part.dtype.newbyteorder("<"), copy=False)
            yield np.ascontiguousarray(little).reshape(-1).view(np.uint8).data


def file_digest(path: Path) -> Digest:
    """Return the BLAKE3 of a file, read through a memory map.

    Raises:
        StorageError: it cannot be read.
    """
    try:
        return Digest(blake3(max_threads=blake3.AUTO).update_mmap(path).hexdigest())
    except OSError as error:
        raise StorageError(f"cannot read {path}: {error.strerror}") from error
