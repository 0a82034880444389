"""Files that nobody else may read: folders 0700, files 0600, written whole or not at
all.
"""

import os
from pathlib import Path

from p2ptrain.errors import StorageError


def private_folder(folder: Path) -> Path:
    """Make a folder that only its owner may enter.

    Raises:
        StorageError: names the folder and the reason.
    """
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.chmod(0o700)
    except OSError as error:
        raise StorageError(f"cannot make {folder}: {error.strerror}") from error
    return folder


def write_private(path: Path, data: bytes) -> None:
    """Write a file atomically and durably, readable by its owner only.

    Raises:
        StorageError: names the file and the reason; the old file is untouched.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.unlink(missing_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
        with os.fdopen(os.open(temporary, flags, 0o600), "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        _sync_folder(path.parent)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise StorageError(f"cannot write {path}: {error.strerror}") from error


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
