"""References resolved on a node: weights into tensors, samples into mapped memory.

A path is followed only into the folders that the node's owner allows, links included;
a blob is a file that the daemon named. What cannot be resolved is a ``RefError`` with
node and URI, never empty weights. Files are mapped, so a shard costs the pages that are
read.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from blake3 import blake3
from torch import Tensor

from p2ptrain.engine.initial import initial
from p2ptrain.engine.readers import Slab, SlabError
from p2ptrain.engine.readers_gguf import MAGIC, find_gguf
from p2ptrain.engine.slabs import find_slab
from p2ptrain.errors import RefError
from p2ptrain.ids import Digest
from p2ptrain.spec.graph import Shape
from p2ptrain.spec.train import BufferRef, DataRef, WeightRef
from p2ptrain.spec.uri import (
    BlobUri,
    InitUri,
    Uri,
    UriError,
    parse_uri,
)

HASH_BYTES = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Site:
    """A node as a place where references are resolved.

    Args:
        node: its name, for errors.
        files: files of blobs, by digest.
        roots: folders that paths may point into.
    """

    node: str
    files: Mapping[Digest, Path]
    roots: tuple[Path, ...]


class Array:
    """A tensor in a file, mapped; its first axis is samples.

    Args:
        slab: where it lies.

    Raises:
        SlabError: the system refuses to map it.
    """

    def __init__(self, slab: Slab) -> None:
        self.shape = slab.shape
        self.dtype: torch.dtype = getattr(torch, slab.dtype)
        end = slab.offset + slab.nbytes
        try:
            mapped = torch.from_file(
                str(slab.path), shared=False, size=end, dtype=torch.uint8
            )
        except RuntimeError as error:
            raise SlabError("its bytes cannot be mapped into memory") from error
        rows = slab.shape[0] if slab.shape else 1
        self._rows = mapped[slab.offset :].view(rows, -1)

    def read(self, start: int, length: int) -> Tensor:
        """Return samples ``[start, start + length)`` as a tensor of their own."""
        return self._typed(self._rows[start : start + length].clone())

    def take(self, indices: Tensor) -> Tensor:
        """Return the samples at indices (int64 ``[n]``), shape ``[n, *sample]``."""
        return self._typed(self._rows.index_select(0, indices))

    def hash_into(self, hasher: blake3, start: int, length: int) -> None:
        """Feed the bytes of some samples to a hash, a piece at a time."""
        flat = self._rows[start : start + length].reshape(-1).numpy()
        for at in range(0, len(flat), HASH_BYTES):
            hasher.update(flat[at : at + HASH_BYTES].data)

    def _typed(self, rows: Tensor) -> Tensor:
        shape = (len(rows), *self.shape[1:]) if self.shape else ()
        return rows.view(-1).view(self.dtype).view(shape)


class SampleSource:
    """The samples of one input: ranges of arrays, one after the other.

    Args:
        refs: in order, all of one input.
        site: where they are resolved.

    Raises:
        RefError: one of them cannot be resolved, or is not as it says.
    """

    def __init__(self, refs: Sequence[DataRef], site: Site) -> None:
        self._parts = [(ref, _open_samples(ref, site)) for ref in refs]
        lengths = torch.tensor([ref.shard_len for ref in refs])
        self._ends = lengths.cumsum(0)
        self.count = int(self._ends[-1])
        self.digests = tuple(_digest(ref, array, site) for ref, array in self._parts)

    def take(self, indices: Tensor) -> Tensor:
        """Return samples by number (int64 ``[n]``), shape ``[n, *sample]``."""
        if len(self._parts) == 1:
            ref, array = self._parts[0]
            return array.take(indices + ref.shard_start)
        which = torch.bucketize(indices, self._ends, right=True)
        made: Tensor | None = None
        for part, (ref, array) in enumerate(self._parts):
            here = (which == part).nonzero().squeeze(1)
            begin = int(self._ends[part]) - ref.shard_len
            found = array.take(indices[here] - begin + ref.shard_start)
            if made is None:
                made = torch.empty((len(indices), *ref.shape), dtype=array.dtype)
            made[here] = found
        assert made is not None
        return made


def resolve_weight(ref: WeightRef | BufferRef, site: Site) -> Tensor:
    """Return the initial value of a weight or buffer.

    Raises:
        RefError: it cannot be resolved, or is of another dtype or shape.
    """
    try:
        uri = parse_uri(ref.uri)
        if isinstance(uri, InitUri):
            return initial(uri, ref.name, getattr(torch, ref.dtype), ref.shape)
        path = _file(uri, site)
        if _is_gguf(path):
            return _from_gguf(path, uri.name, ref)
        return _whole(path, uri.name, ref)
    except (UriError, SlabError, OSError, ValueError) as error:
        raise RefError(site.node, ref.uri, _clause(error)) from error


def _expect(ref: WeightRef | BufferRef, dtype: str, shape: Shape) -> None:
    """Check a tensor before its bytes are read.

    Raises:
        SlabError: it is of another dtype or shape.
    """
    if (dtype, shape) != (ref.dtype, ref.shape):
        raise SlabError(
            f"it is {dtype}{list(shape)}, "
            f"{ref.name!r} needs {ref.dtype}{list(ref.shape)}"
        )


def _whole(path: Path, name: str, ref: WeightRef | BufferRef) -> Tensor:
    """Return a whole tensor; a raw file has the shape that is expected."""
    slab = find_slab(path, name, ref.dtype, ref.shape[1:] if ref.shape else None)
    # a raw file does not say whether its one element is a scalar
    scalar = not ref.shape and slab.shape == (1,)
    _expect(ref, slab.dtype, () if scalar else slab.shape)
    value = Array(slab).read(0, slab.shape[0] if slab.shape else 1)
    return value.reshape(ref.shape)


def _from_gguf(path: Path, name: str, ref: WeightRef | BufferRef) -> Tensor:
    found = find_gguf(path, name)
    if isinstance(ref, WeightRef) and ref.packed:
        _expect(ref, "uint8", found.packed_shape)
        return found.packed()
    _expect(ref, found.dtype, found.shape)
    return found.numbers()


def _open_samples(ref: DataRef, site: Site) -> Array:
    try:
        uri = parse_uri(ref.uri)
        path = _file(uri, site)
        name = "" if isinstance(uri, InitUri) else uri.name
        slab = find_slab(path, name, ref.dtype, ref.shape)
        _check_samples(slab, ref)
        return Array(slab)
    except (UriError, SlabError, OSError, ValueError) as error:
        raise RefError(site.node, ref.uri, _clause(error)) from error


def _digest(ref: DataRef, array: Array, site: Site) -> Digest:
    hasher = blake3(max_threads=blake3.AUTO)
    array.hash_into(hasher, ref.shard_start, ref.shard_len)
    digest = Digest(hasher.hexdigest())
    if ref.digest and ref.digest != digest:
        raise RefError(
            site.node, ref.uri, f"its samples hash to {digest}, not {ref.digest}"
        )
    return digest


def _check_samples(slab: Slab, ref: DataRef) -> None:
    if slab.dtype != ref.dtype or slab.shape[1:] != ref.shape or not slab.shape:
        raise SlabError(
            f"it holds {slab.dtype}{list(slab.shape)}, "
            f"input {ref.input!r} needs {ref.dtype} samples of {list(ref.shape)}"
        )
    end = ref.shard_start + ref.shard_len
    if end > slab.shape[0]:
        raise SlabError(f"it has {slab.shape[0]} samples, the shard ends at {end}")


def _file(uri: Uri, site: Site) -> Path:
    """Return the file of a URI, if this node may read it.

    Raises:
        UriError: it may not, does not have it, or the URI names none.
    """
    if isinstance(uri, InitUri):
        raise UriError("samples are not made by rules")
    if isinstance(uri, BlobUri):
        path = site.files.get(uri.digest)
        if path is None:
            raise UriError("this node does not hold the blob")
        return path
    try:
        path = Path(uri.path).resolve()
    except RuntimeError as error:  # so says pathlib
        raise UriError("its links lead in a circle") from error
    if not any(path.is_relative_to(root.resolve()) for root in site.roots):
        raise UriError("it is outside the node's data_roots")
    if path.exists() and not path.is_file():
        raise UriError("it is no regular file")
    return path


def _is_gguf(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(len(MAGIC)) == MAGIC


def _clause(error: Exception) -> str:
    """Return an error's reason without the path, which the URI has."""
    if isinstance(error, OSError):
        return error.strerror or type(error).__name__
    return str(error)
