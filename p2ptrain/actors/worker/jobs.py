"""What a trainer process is given: folders, files, and its first frame."""

import shutil
from dataclasses import dataclass
from pathlib import Path

import trio

from p2ptrain.errors import StorageError
from p2ptrain.ids import SessionId
from p2ptrain.messages.asks import ParityAnswer, ParityAsk
from p2ptrain.messages.record import BlobRef
from p2ptrain.messages.trainer import CheckParity, Fault, Load, ParityDone, TlsFiles
from p2ptrain.ports import Blobs, Courier, Engine, Log, Post

CLOSE_S = 15.0


@dataclass(frozen=True, slots=True)
class TrainerSettings:
    """What each trainer of this node is told; fields as in ``messages.trainer.Load``.

    ``advertise`` is this node's address as others reach it.
    """

    name: str
    workdir: Path
    roots: tuple[str, ...]
    threads: int
    host: str
    advertise: str
    ports: tuple[int, int]
    tls: TlsFiles | None
    stall_s: float
    trace_dir: str = ""


@dataclass(frozen=True, slots=True)
class WorkerPorts:
    """What the worker uses."""

    post: Post
    log: Log
    blobs: Blobs
    courier: Courier
    engine: Engine


async def files_of(blobs: Blobs, wanted: tuple[BlobRef, ...]) -> dict[str, str]:
    """Return the files of blobs that are stored here, by digest."""
    files: dict[str, str] = {}
    for blob in wanted:
        path = await blobs.path(blob.digest)
        if path is not None:
            files[blob.digest] = str(path)
    return files


async def load_frame(
    ports: WorkerPorts,
    settings: TrainerSettings,
    session: SessionId,
    blobs: tuple[BlobRef, ...],
    folder: Path,
) -> Load:
    """Return the frame that makes a trainer load a session.

    Args:
        ports: where blobs are.
        settings: for trainers.
        session: the session.
        blobs: the spec, then what it refers to.
        folder: the trainer's own.

    Raises:
        StorageError: the spec is not stored here.
    """
    files = await files_of(ports.blobs, blobs)
    spec = files.get(blobs[0].digest)
    if spec is None:
        raise StorageError(f"blob {blobs[0].digest} of the spec is not here")
    return Load(
        session=session,
        node=ports.post.me,
        name=settings.name,
        spec_path=spec,
        files=files,
        roots=settings.roots,
        workdir=str(folder),
        threads=settings.threads,
        host=settings.host,
        ports=settings.ports,
        tls=settings.tls,
        stall_s=settings.stall_s,
        trace_dir=settings.trace_dir,
    )


async def check_parity(
    ports: WorkerPorts, settings: TrainerSettings, ask: ParityAsk, folder: Path
) -> ParityAnswer:
    """Run a graph on all devices of this node, in a trainer process of its own.

    Raises:
        P2PTrainError: a blob cannot be had, or no process can be started.
    """
    blobs = (ask.spec, *ask.blobs)
    await ports.courier.fetch(blobs, ask.sources, lambda *_: None)
    await trio.to_thread.run_sync(make_empty, folder)
    files = await files_of(ports.blobs, blobs)
    trainer = await ports.engine.launch(folder)
    try:
        spec = files[ask.spec.digest]
        await trainer.send(CheckParity(settings.name, spec, files, settings.roots))
        async for frame in trainer.frames():
            if isinstance(frame, ParityDone):
                return ParityAnswer("", frame.lines)
            if isinstance(frame, Fault):
                return ParityAnswer(frame.sentence, ())
        return ParityAnswer("the trainer ended without an answer", ())
    finally:
        with trio.CancelScope(shield=True, deadline=trio.current_time() + CLOSE_S):
            await trainer.aclose()
            await trio.to_thread.run_sync(remove, folder)


def make_empty(folder: Path) -> None:
    """Make a folder that holds nothing.

    Raises:
        StorageError: the disk refuses.
    """
    try:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
    except OSError as error:
        raise StorageError(f"cannot make {folder}: {error.strerror}") from error


def remove(folder: Path) -> None:
    """Remove a folder and all in it, as far as possible."""
    shutil.rmtree(folder, ignore_errors=True)
