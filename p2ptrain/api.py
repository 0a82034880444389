"""The Python interface: submit a job, follow it, take its result.

``submit`` and ``Session`` are for plain programs; ``submit_async`` and ``AsyncSession``
for trio ones. Both talk to the local daemon. A session outlives the program: take it up
again with its id.
"""

import os
import secrets
import tempfile
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import trio

from p2ptrain.client import GateClient, connect
from p2ptrain.config import Config, load_config
from p2ptrain.errors import ConflictError, NotFoundError, PeerError, StorageError
from p2ptrain.ids import Digest, SessionId, digest_of
from p2ptrain.jobfile import build, load_jobfile
from p2ptrain.messages.asks import LiveAnswer
from p2ptrain.messages.gate import (
    Done,
    GetRequest,
    LiveRequest,
    SessionLine,
    Sessions,
    SessionsRequest,
    StopRequest,
    SubmitRequest,
    Submitted,
)
from p2ptrain.messages.record import BlobRef, SessionStatus
from p2ptrain.spec.train import TrainSpec, spec_bytes

if TYPE_CHECKING:
    from p2ptrain.engine.package import Package

FINAL = frozenset({SessionStatus.DONE, SessionStatus.FAILED, SessionStatus.STOPPED})
POLL_S = 0.5
SETTLE_S = 10.0
SETTLE_PAUSE_S = 0.05
Progress = Callable[[int, int], None]  # bytes done, bytes in all


@dataclass(frozen=True, slots=True)
class AsyncSession:
    """A session as a trio program sees it.

    Args:
        id: the session's id.
        socket: the local daemon's.
    """

    id: SessionId
    socket: Path

    async def status(self) -> SessionLine:
        """Return what the record says.

        Raises:
            NotFoundError: there is no such session.
        """
        async with connect(self.socket) as gate:
            return await status_of(gate, self.id)

    async def live(self) -> LiveAnswer:
        """Return the master's figures of this moment."""
        async with connect(self.socket) as gate:
            return await gate.ask(LiveRequest(self.id), LiveAnswer)

    async def watch(self) -> AsyncIterator[LiveAnswer]:
        """Yield figures twice a second, until the session has ended."""
        async with connect(self.socket) as gate:
            while True:
                live = await gate.ask(LiveRequest(self.id), LiveAnswer)
                yield live
                if live.status in FINAL:
                    return
                await trio.sleep(POLL_S)

    async def wait(self) -> SessionLine:
        """Wait until the session has ended, and return what the record says."""
        async for _ in self.watch():
            pass
        return await self.settled()

    async def settled(self) -> SessionLine:
        """Return what the local record says once it knows of the end; it may follow
        the master's word by a moment.
        """
        with trio.move_on_after(SETTLE_S):
            while True:
                line = await self.status()
                if line.status in FINAL:
                    return line
                await trio.sleep(SETTLE_PAUSE_S)
        return await self.status()

    async def stop(self) -> None:
        """Stop the session at a step boundary."""
        async with connect(self.socket) as gate:
            await gate.ask(StopRequest(self.id), Done)

    async def fetch(self, folder: Path, *, force: bool = False) -> tuple[Path, Path]:
        """Write ``model.safetensors`` and ``manifest.json`` into a folder.

        Args:
            folder: made if it does not exist.
            force: replace files that differ.

        Raises:
            NotFoundError: the session has no result.
            ConflictError: a file of that name is there and differs.
        """
        async with connect(self.socket) as gate:
            line = await status_of(gate, self.id)
            if line.result is None:
                raise NotFoundError(
                    f"session {self.id} has no result: it is {line.status}"
                )
            await trio.to_thread.run_sync(partial(_make, folder))
            paths = (folder / "model.safetensors", folder / "manifest.json")
            blobs = (line.result.weights, line.result.manifest)
            for blob, path in zip(blobs, paths, strict=True):
                request = GetRequest(blob, line.result.holders)
                await _download(gate, request, path, force=force)
        return paths


class Session:
    """A session as a plain program sees it; every call blocks.

    Args:
        id: the session's id.
        socket: the local daemon's.
    """

    def __init__(self, id: SessionId, socket: Path) -> None:  # noqa: A002
        self.id = id
        self._session = AsyncSession(id, socket)

    def status(self) -> SessionLine:
        """Return what the record says."""
        return trio.run(self._session.status)

    def live(self) -> LiveAnswer:
        """Return the master's figures of this moment."""
        return trio.run(self._session.live)

    def wait(self) -> SessionLine:
        """Wait until the session has ended, and return what the record says."""
        return trio.run(self._session.wait)

    def stop(self) -> None:
        """Stop the session at a step boundary."""
        trio.run(self._session.stop)

    def fetch(self, folder: Path, *, force: bool = False) -> tuple[Path, Path]:
        """Write ``model.safetensors`` and ``manifest.json`` into a folder."""
        return trio.run(partial(self._session.fetch, folder, force=force))


def submit(
    job: "Path | str | Package",
    *,
    socket: Path | None = None,
    key: str = "",
    progress: Progress | None = None,
) -> Session:
    """Submit a job to the local daemon; returns when a majority has accepted it.

    Args:
        job: a job file, or a package of ``p2ptrain.engine.package``.
        socket: the daemon's command socket; default: as configured.
        key: the same key names the same session, however often it is submitted.
        progress: told of bytes that are handed over.
    """
    if isinstance(job, Path | str):
        with tempfile.TemporaryDirectory(prefix="p2ptrain-") as folder:
            package = build(load_jobfile(Path(job)), Path(folder))
            return submit(package, socket=socket, key=key, progress=progress)
    session = trio.run(
        partial(submit_async, job, socket=socket, key=key, progress=progress)
    )
    return Session(session.id, session.socket)


async def submit_async(
    package: "Package",
    *,
    socket: Path | None = None,
    key: str = "",
    progress: Progress | None = None,
) -> AsyncSession:
    """Submit a package from a trio program; as ``submit``."""
    path = socket or default_socket()
    async with connect(path) as gate:
        spec, blobs = await hand_over(gate, package.spec, package.files, progress)
        request = SubmitRequest(
            key or secrets.token_hex(16), package.spec.name, spec, blobs
        )
        submitted = await gate.ask(request, Submitted)
    return AsyncSession(submitted.session, path)


async def hand_over(
    gate: GateClient,
    spec: TrainSpec,
    files: dict[Digest, Path],
    progress: Progress | None = None,
) -> tuple[BlobRef, tuple[BlobRef, ...]]:
    """Put a job's blobs into the daemon; return the spec's and the others."""
    data = spec_bytes(spec)
    spec_ref = BlobRef(digest_of(data), len(data), "spec")
    blobs = tuple(
        BlobRef(digest, path.stat().st_size, path.name)
        for digest, path in sorted(files.items())
    )
    total = spec_ref.size + sum(blob.size for blob in blobs)
    done = 0

    def count(more: int) -> None:
        nonlocal done
        done += more
        if progress is not None:
            progress(done, total)

    with tempfile.NamedTemporaryFile(prefix="p2ptrain-spec-") as file:
        file.write(data)
        file.flush()
        await gate.put(spec_ref, Path(file.name), count)
    for blob in blobs:
        await gate.put(blob, files[blob.digest], count)
    return spec_ref, blobs


async def status_of(gate: GateClient, session: SessionId) -> SessionLine:
    """Return what the record says of a session.

    Raises:
        NotFoundError: there is no such session.
    """
    answer = await gate.ask(SessionsRequest(session), Sessions)
    return answer.lines[0]


def default_socket() -> Path:
    """Return the local daemon's socket, as configured."""
    return configured().socket


def configured(file: Path | None = None) -> Config:
    """Return the configuration of commands that talk to the local daemon."""
    return load_config(file, {})


async def _download(
    gate: GateClient, request: GetRequest, path: Path, *, force: bool
) -> None:
    """Write a blob under a name, whole or not at all."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        async with await trio.open_file(temporary, "wb") as file:
            async for data in gate.get(request):
                await file.write(data)
        await trio.to_thread.run_sync(
            partial(_install, temporary, path, request.blob.digest, force=force)
        )
    except OSError as error:
        raise StorageError(f"cannot write {path}: {error.strerror}") from error
    finally:
        await trio.Path(temporary).unlink(missing_ok=True)


def _install(temporary: Path, path: Path, digest: Digest, *, force: bool) -> None:
    if digest_of(temporary.read_bytes()) != digest:
        raise PeerError(f"what came for {path.name} is not blob {digest}")
    if path.exists() and not force and digest_of(path.read_bytes()) != digest:
        raise ConflictError(f"{path} holds something else: use --force to replace it")
    with temporary.open("rb") as file:
        os.fsync(file.fileno())
    temporary.replace(path)


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(f"cannot make {folder}: {error.strerror}") from error
