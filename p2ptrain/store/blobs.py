"""Blobs in a folder: bytes under the name of their BLAKE3.

``blobs/ab/abcd...`` holds what is complete: verified, fsynced, then renamed into place
and never written again. ``partial/abcd...`` holds the first bytes of what is on its
way: its size says how far it has come, and a crash costs at most what the file system
had not written, which ``seal`` finds out. A name is always a digest, never text that a
peer sent.

Files are touched in threads, those of one digest by one writer at a time: two fetchers
cannot harm a blob, nor can one who finds it damaged remove what another has mended.
"""

import os
import secrets
import shutil
import time
from collections.abc import Callable, Collection
from pathlib import Path

import trio

from p2ptrain.errors import NotFoundError, PeerError, StorageError
from p2ptrain.ids import Digest, digest_of, is_digest
from p2ptrain.messages.record import BlobRef
from p2ptrain.store.files import hash_file, in_thread, publish, refuse, write_all
from p2ptrain.store.uses import Uses, sweep

RESERVE_BYTES = 64 << 20  # kept free for the record and the logs


class BlobStore:
    """Implements ``ports.Blobs``.

    Args:
        folder: where ``blobs/`` and ``partial/`` are; made when it does not exist.
        reserve_bytes: space that no incoming blob may take.
        clock: in seconds.

    Raises:
        StorageError: the folders cannot be made.
    """

    def __init__(
        self,
        folder: Path,
        reserve_bytes: int = RESERVE_BYTES,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._folder = folder
        self._reserve = reserve_bytes
        self._blobs = folder / "blobs"
        self._partial = folder / "partial"
        self._uses = Uses(clock)
        self._locks = [trio.Lock() for _ in range(256)]  # one for each first byte
        try:
            for each in (self._blobs, self._partial):
                each.mkdir(parents=True, exist_ok=True, mode=0o700)
            for leftover in self._partial.glob("new-*"):
                leftover.unlink()  # of a ``put`` that a crash cut off
        except OSError as error:
            refuse(folder, error)

    async def path(self, digest: Digest) -> Path | None:
        """Return the file of a stored blob, or None."""
        where = self._stored(digest)
        return where if await in_thread(where.is_file) else None

    async def check(self, blob: BlobRef) -> bool:
        """Tell whether a blob is stored, and its bytes are those of its name; what is
        damaged is removed. Read once in a process's life.

        Raises:
            StorageError: the disk refused.
        """
        async with self._lock(blob.digest):
            return await in_thread(self._check, blob)

    async def sweep(self, referenced: Collection[Digest]) -> list[Digest]:
        """Remove what nothing on record names and nobody has used for long.

        Args:
            referenced: what the record names.

        Returns:
            What was removed.

        Raises:
            StorageError: the disk refused.
        """
        folders = self._blobs, self._partial
        return await in_thread(sweep, *folders, self._uses, frozenset(referenced))

    async def adopt(self, path: Path, name: str) -> BlobRef:
        """Move a finished local file in under its digest.

        Raises:
            StorageError: it cannot be read or moved; it stays where it was.
        """
        blob = await in_thread(_ref_of, path, name)
        async with self._lock(blob.digest):
            await in_thread(self._adopt, path, blob)
        return blob

    async def put(self, data: bytes, name: str) -> BlobRef:
        """Store bytes.

        Raises:
            StorageError: the disk refused; nothing is left behind.
        """
        blob = BlobRef(await in_thread(digest_of, data), len(data), name)
        async with self._lock(blob.digest):
            await in_thread(self._put, data, blob)
        return blob

    async def partial(self, blob: BlobRef) -> int:
        """Return how many bytes of an unfinished blob are held (all, when it is stored
        already); creates the partial file.

        Raises:
            StorageError: what is missing does not fit on the disk; says how much room
                there is.
        """
        async with self._lock(blob.digest):
            return await in_thread(self._open_partial, blob)

    async def append(self, blob: BlobRef, offset: int, data: bytes) -> None:
        """Write the next piece of a partial blob; what another writer of the same blob
        has put there already is skipped.

        Raises:
            StorageError: full disk (what was held stays), a gap, too many bytes.
        """
        async with self._lock(blob.digest):
            await in_thread(self._append, blob, offset, data)

    async def seal(self, blob: BlobRef) -> Path:
        """Verify a complete partial blob, make it durable and visible.

        Raises:
            PeerError: the bytes do not hash to the digest; the partial file is deleted.
            StorageError: the disk refused, or bytes are missing.
        """
        async with self._lock(blob.digest):
            return await in_thread(self._seal, blob)

    async def read(self, digest: Digest, offset: int, length: int) -> bytes:
        """Return a piece of a stored blob, shorter at its end.

        Raises:
            NotFoundError: not held here.
            StorageError: the disk refused.
        """
        return await in_thread(self._read, digest, offset, length)

    def _stored(self, digest: Digest) -> Path:
        return self._blobs / _checked(digest)[:2] / digest

    def _unfinished(self, digest: Digest) -> Path:
        return self._partial / _checked(digest)

    def _lock(self, digest: Digest) -> trio.Lock:
        return self._locks[int(_checked(digest)[:2], 16)]

    def _check(self, blob: BlobRef) -> bool:
        where = self._stored(blob.digest)
        try:
            if not where.is_file():
                return False
            if blob.digest not in self._uses and hash_file(where) != blob.digest:
                where.unlink()
                return False
        except OSError as error:
            refuse(where, error)
        self._uses.note(blob.digest, blob.name)
        return True

    def _adopt(self, path: Path, blob: BlobRef) -> None:
        try:
            if self._check(blob):
                path.unlink()
            elif path.stat().st_dev == self._partial.stat().st_dev:
                publish(path, self._stored(blob.digest))
            else:
                self._copy_in(path, blob)
        except OSError as error:
            refuse(path, error)
        self._uses.note(blob.digest, blob.name)

    def _copy_in(self, path: Path, blob: BlobRef) -> None:
        """Adopt from another file system, where a rename does not reach."""
        new = self._new_file()
        try:
            shutil.copyfile(path, new)
            if hash_file(new) != blob.digest:
                raise StorageError(f"{path} changed while it was copied: write it anew")
            publish(new, self._stored(blob.digest))
        finally:
            new.unlink(missing_ok=True)
        path.unlink()

    def _put(self, data: bytes, blob: BlobRef) -> None:
        if self._check(blob):
            return
        new = self._new_file()
        try:
            new.write_bytes(data)
            publish(new, self._stored(blob.digest))
        except OSError as error:
            refuse(new, error)
        finally:
            new.unlink(missing_ok=True)
        self._uses.note(blob.digest, blob.name)

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
            refuse(where, error)
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
                write_all(file.fileno(), data[held - offset :], held)
        except OSError as error:
            refuse(where, error)

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
            found = hash_file(where)
            if found != blob.digest:
                where.unlink()
                raise PeerError(f"blob {blob.digest} came as {found}")
            publish(where, stored)
        except OSError as error:
            refuse(where, error)
        self._uses.note(blob.digest, blob.name)
        return stored

    def _read(self, digest: Digest, offset: int, length: int) -> bytes:
        where = self._stored(digest)
        try:
            with where.open("rb", buffering=0) as file:
                data = os.pread(file.fileno(), length, offset)
        except FileNotFoundError:
            raise NotFoundError(f"blob {digest} is not held here") from None
        except OSError as error:
            refuse(where, error)
        self._uses.touch(digest)
        return data

    def _new_file(self) -> Path:
        return self._partial / f"new-{secrets.token_hex(8)}"


def _ref_of(path: Path, name: str) -> BlobRef:
    try:
        return BlobRef(hash_file(path), path.stat().st_size, name)
    except OSError as error:
        refuse(path, error)


def _checked(digest: Digest) -> Digest:
    """Refuse with PeerError what is no digest: it must not become a path."""
    if not is_digest(digest):
        raise PeerError(f"{digest!r:.80} is no digest")
    return digest
