"""Blobs in a folder: bytes under the name of their BLAKE3.

``blobs/ab/abcd...`` holds what is complete: verified, fsynced, then renamed into place
and never written again. ``partial/abcd...`` holds the first bytes of what is on its
way: its size says how far it has come, and a crash costs at most what the file system
had not written, which ``seal`` finds out. A name is always a digest, never text that a
peer sent.

Files are touched in threads. What changes one partial file (``append``, ``seal``)
happens one at a time for each digest, so two fetchers of one blob cannot harm it.
"""

import errno
import os
import secrets
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn, ParamSpec, TypeVar

import trio
from blake3 import blake3

from p2ptrain.errors import NotFoundError, PeerError, StorageError
from p2ptrain.ids import Digest, digest_of, is_digest
from p2ptrain.messages.record import BlobRef

RESERVE_BYTES = 64 << 20  # kept free for the record and the logs
FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}

P = ParamSpec("P")
T = TypeVar("T")


class BlobStore:
    """Implements ``ports.Blobs``.

    Args:
        folder: where ``blobs/`` and ``partial/`` are; made when it does not exist.
        reserve_bytes: space that no incoming blob may take.

    Raises:
        StorageError: the folders cannot be made.
    """

    def __init__(self, folder: Path, reserve_bytes: int = RESERVE_BYTES) -> None:
        self._folder = folder
        self._reserve = reserve_bytes
        self._blobs = folder / "blobs"
        self._partial = folder / "partial"
        self._locks = [trio.Lock() for _ in range(256)]  # one for each first byte
        try:
            for each in (self._blobs, self._partial):
                each.mkdir(parents=True, exist_ok=True, mode=0o700)
            for leftover in self._partial.glob("new-*"):
                leftover.unlink()  # of a ``put`` that a crash cut off
        except OSError as error:
            _refuse(folder, error)

    async def path(self, digest: Digest) -> Path | None:
        """Return the file of a stored blob, or None."""
        where = self._stored(digest)
        return where if await _in_thread(where.is_file) else None

    async def adopt(self, path: Path, name: str) -> BlobRef:
        """Move a finished local file in under its digest.

        Raises:
            StorageError: it cannot be read or moved; it stays where it was.
        """
        return await _in_thread(self._adopt, path, name)

    async def put(self, data: bytes, name: str) -> BlobRef:
        """Store bytes.

        Raises:
            StorageError: the disk refused; nothing is left behind.
        """
        return await _in_thread(self._put, data, name)

    async def partial(self, blob: BlobRef) -> int:
        """Return how many bytes of an unfinished blob are held (all, when it is stored
        already); creates the partial file.

        Raises:
            StorageError: what is missing does not fit on the disk; says how much room
                there is.
        """
        async with self._lock(blob.digest):
            return await _in_thread(self._open_partial, blob)

    async def append(self, blob: BlobRef, offset: int, data: bytes) -> None:
        """Write the next piece of a partial blob; what another writer of the same blob
        has put there already is skipped.

        Raises:
            StorageError: full disk (what was held stays), a gap, too many bytes.
        """
        async with self._lock(blob.digest):
            await _in_thread(self._append, blob, offset, data)

    async def seal(self, blob: BlobRef) -> Path:
        """Verify a complete partial blob, make it durable and visible.

        Raises:
            PeerError: the bytes do not hash to the digest; the partial file is deleted.
            StorageError: the disk refused, or bytes are missing.
        """
        async with self._lock(blob.digest):
            return await _in_thread(self._seal, blob)

    async def read(self, digest: Digest, offset: int, length: int) -> bytes:
        """Return a piece of a stored blob, shorter at its end.

        Raises:
            NotFoundError: not held here.
            StorageError: the disk refused.
        """
        return await _in_thread(self._read, digest, offset, length)

    def _stored(self, digest: Digest) -> Path:
        return self._blobs / _checked(digest)[:2] / digest

    def _unfinished(self, digest: Digest) -> Path:
        return self._partial / _checked(digest)

    def _lock(self, digest: Digest) -> trio.Lock:
        return self._locks[int(_checked(digest)[:2], 16)]

    def _adopt(self, path: Path, name: str) -> BlobRef:
        try:
            size = path.stat().st_size
            blob = BlobRef(_hash_file(path), size, name)
            if self._stored(blob.digest).is_file():
                path.unlink()
            elif path.stat().st_dev == self._partial.stat().st_dev:
                self._publish(path, blob.digest)
            else:
                self._copy_in(path, blob)
        except OSError as error:
            _refuse(path, error)
        return blob

    def _copy_in(self, path: Path, blob: BlobRef) -> None:
        """Adopt from another file system, where a rename does not reach."""
        new = self._new_file()
        try:
            shutil.copyfile(path, new)
            if _hash_file(new) != blob.digest:
                raise StorageError(f"{path} changed while it was copied: write it anew")
            self._publish(new, blob.digest)
        finally:
            new.unlink(missing_ok=True)
        path.unlink()

    def _put(self, data: bytes, name: str) -> BlobRef:
        blob = BlobRef(digest_of(data), len(data), name)
        if self._stored(blob.digest).is_file():
            return blob
        new = self._new_file()
        try:
            new.write_bytes(data)
            self._publish(new, blob.digest)
        except OSError as error:
            _refuse(new, error)
        finally:
            new.unlink(missing_ok=True)
        return blob

    def _open_partial(self, blob: BlobRef) -> int:
        where = self._unfinished(blob.digest)
        try:
            if self._stored(blob.digest).is_file():
                return blob.size
            with where.open("ab") as file:
                held = file.tell()
                if held > blob.size:
                    file.truncate(held := 0)
            free = shutil.disk_usage(self._partial).free - self._reserve
        except OSError as error:
            _refuse(where, error)
        if held < blob.size and blob.size - held > free:
            if not held:
                where.unlink(missing_ok=True)
            raise StorageError(
                f"blob {blob.name or blob.digest} needs {blob.size - held} more bytes "
                f"in {self._folder}, where {max(0, free)} are free: make room there"
            )
        return held

    def _append(self, blob: BlobRef, offset: int, data: bytes) -> None:
        if self._stored(blob.digest).is_file():
            return
        where = self._unfinished(blob.digest)
        try:
            with where.open("r+b", buffering=0) as file:
                held = file.seek(0, os.SEEK_END)
                if held < offset or offset + len(data) > blob.size:
                    raise StorageError(
                        f"{where} holds {held} of {blob.size} bytes, {len(data)} more "
                        f"at {offset} do not belong there: fetch it again"
                    )
                _write_all(file.fileno(), data[held - offset :], held)
        except OSError as error:
            _refuse(where, error)

    def _seal(self, blob: BlobRef) -> Path:
        stored = self._stored(blob.digest)
        if stored.is_file():
            self._unfinished(blob.digest).unlink(missing_ok=True)
            return stored
        where = self._unfinished(blob.digest)
        try:
            held = where.stat().st_size
            if held != blob.size:
                raise StorageError(f"{where} holds {held} of {blob.size} bytes only")
            found = _hash_file(where)
            if found != blob.digest:
                where.unlink()
                raise PeerError(f"blob {blob.digest} came as {found}")
            return self._publish(where, blob.digest)
        except OSError as error:
            _refuse(where, error)

    def _read(self, digest: Digest, offset: int, length: int) -> bytes:
        where = self._stored(digest)
        try:
            with where.open("rb", buffering=0) as file:
                return os.pread(file.fileno(), length, offset)
        except FileNotFoundError:
            raise NotFoundError(f"blob {digest} is not held here") from None
        except OSError as error:
            _refuse(where, error)

    def _new_file(self) -> Path:
        return self._partial / f"new-{secrets.token_hex(8)}"

    def _publish(self, path: Path, digest: Digest) -> Path:
        """Make a complete file durable, then visible under its digest."""
        stored = self._stored(digest)
        with path.open("rb") as file:
            os.fchmod(file.fileno(), 0o400)
            os.fsync(file.fileno())
        if not stored.parent.is_dir():
            stored.parent.mkdir(mode=0o700, exist_ok=True)
            _sync_folder(self._blobs)
        path.rename(stored)
        _sync_folder(stored.parent)
        return stored


async def _in_thread(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    return await trio.to_thread.run_sync(lambda: work(*args, **kwargs))


def _checked(digest: Digest) -> Digest:
    """Return a digest; anything else must not become a path.

    Raises:
        PeerError: it is none.
    """
    if not is_digest(digest):
        raise PeerError(f"{digest!r:.80} is no digest")
    return digest


def _hash_file(path: Path) -> Digest:
    hasher = blake3()
    hasher.update_mmap(path)
    return Digest(hasher.hexdigest())


def _write_all(file: int, data: bytes, offset: int) -> None:
    """Write all of data or nothing of it."""
    view, done = memoryview(data), 0
    try:
        while done < len(view):
            done += os.pwrite(file, view[done:], offset + done)
    except OSError:
        os.ftruncate(file, offset)
        raise


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _refuse(where: Path, error: OSError) -> NoReturn:
    """Turn what the system said into a sentence for a person."""
    reason = error.strerror or str(error)
    help_ = (
        "make room on this disk"
        if error.errno in FULL
        else "check the disk and the folder's permissions"
    )
    raise StorageError(f"{where}: {reason}: {help_}") from error
