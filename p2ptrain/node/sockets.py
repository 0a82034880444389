"""The local command socket, and folders that are this user's only."""

import os
import socket
import stat
from pathlib import Path

import trio

from p2ptrain.errors import ConfigError, ConflictError

SOCKET_PATH_MAX = 100


async def open_gate(path: Path) -> trio.SocketListener:
    """Return a listener on the local command socket, only for this user.

    Raises:
        ConfigError: the path is too long for a socket.
        ConflictError: another daemon answers there.
    """
    if len(os.fsencode(path)) > SOCKET_PATH_MAX:
        raise ConfigError(
            f"runtime_dir: the socket path {path} is longer than {SOCKET_PATH_MAX} "
            "bytes; choose a shorter runtime_dir"
        )
    if await trio.to_thread.run_sync(_is_socket, path):
        with trio.socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            try:
                await probe.connect(str(path))
            except OSError:
                await trio.Path(path).unlink()  # of a daemon that is gone
            else:
                raise ConflictError(f"a daemon already listens at {path}")
    gate = trio.socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    before = os.umask(0o177)
    try:
        await gate.bind(str(path))
    finally:
        os.umask(before)
    gate.listen(64)
    return trio.SocketListener(gate)


def make_private(folder: Path) -> None:
    """Make a folder that only this user may enter.

    Raises:
        ConfigError: it cannot be made.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise ConfigError(f"cannot make {folder}: {error.strerror}") from error


def _is_socket(path: Path) -> bool:
    return path.exists() and stat.S_ISSOCK(path.stat().st_mode)
