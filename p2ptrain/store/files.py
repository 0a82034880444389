"""What the stores do with files: hash, write whole, make durable, say why not."""

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn, ParamSpec, TypeVar

import trio
from blake3 import blake3

from p2ptrain.errors import StorageError
from p2ptrain.ids import Digest

FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}

P = ParamSpec("P")
T = TypeVar("T")


async def in_thread(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Return what a call gives that touches files."""
    return await trio.to_thread.run_sync(lambda: work(*args, **kwargs))


def hash_file(path: Path) -> Digest:
    """Return the BLAKE3 of a file."""
    hasher = blake3()
    hasher.update_mmap(path)
    return Digest(hasher.hexdigest())


def write_all(file: int, data: bytes, offset: int) -> None:
    """Write all of data or nothing of it."""
    view, done = memoryview(data), 0
    try:
        while done < len(view):
            done += os.pwrite(file, view[done:], offset + done)
    except OSError:
        os.ftruncate(file, offset)
        raise


def publish(path: Path, name: Path) -> None:
    """Make a complete file durable, then visible under its name; nobody writes to it
    any more.
    """
    with path.open("rb") as file:
        os.fchmod(file.fileno(), 0o400)
        os.fsync(file.fileno())
    if not name.parent.is_dir():
        name.parent.mkdir(mode=0o700, exist_ok=True)
        sync_folder(name.parent.parent)
    path.rename(name)
    sync_folder(name.parent)


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def refuse(where: Path, error: OSError) -> NoReturn:
    """Turn what the system said into a sentence for a person."""
    reason = error.strerror or str(error)
    help_ = (
        "make room on this disk"
        if error.errno in FULL
        else "check the disk and the folder's permissions"
    )
    raise StorageError(f"{where}: {reason}: {help_}") from error
