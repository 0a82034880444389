"""The client of the local daemon's gate, for the command line and for programs."""

import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeVar

import trio

from p2ptrain import codec
from p2ptrain.errors import ExitCode, NoDaemonError, P2PTrainError, PeerError
from p2ptrain.frames import FrameStream
from p2ptrain.messages.gate import (
    FRAME_BYTES_MAX,
    PIECE_BYTES,
    GateAnswer,
    GateRequest,
    GetRequest,
    Held,
    Piece,
    PutRequest,
    Refusal,
)
from p2ptrain.messages.record import BlobRef

AnswerT = TypeVar("AnswerT")
Progress = Callable[[int], None]
ANSWERS = codec.kinds(GateAnswer)


class RefusedError(P2PTrainError):
    """The daemon said no; ``exit_code`` is the one that it named."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.sentence)
        known = refusal.code in set(ExitCode)
        self.exit_code = ExitCode(refusal.code) if known else ExitCode.FAILED


class GateClient:
    """One connection to a daemon; one request at a time."""

    def __init__(self, frames: FrameStream, path: Path) -> None:
        self._frames = frames
        self._path = path

    async def ask(self, request: GateRequest, answer: type[AnswerT]) -> AnswerT:
        """Send a request and return its answer.

        Raises:
            RefusedError: the daemon refuses.
            NoDaemonError: the daemon went away.
        """
        await self._send(request)
        return await self._receive(answer)

    async def put(self, blob: BlobRef, file: Path, progress: Progress) -> None:
        """Hand a file to the daemon; what it already holds is not sent again.

        Raises:
            RefusedError: the daemon refuses, or the bytes are not the blob's.
        """
        held = await self.ask(PutRequest(blob), Held)
        if held.size >= blob.size:
            progress(blob.size)
            return
        async with await trio.open_file(file, "rb") as source:
            await source.seek(held.size)
            while data := await source.read(PIECE_BYTES):
                await self._send(Piece(data))
                progress(len(data))
        await self._receive(Held)

    async def get(self, request: GetRequest) -> AsyncIterator[bytes]:
        """Yield a blob's bytes.

        Raises:
            RefusedError: no holder gives it.
        """
        await self._send(request)
        left = request.blob.size
        while left > 0:
            piece = await self._receive(Piece)
            left -= len(piece.data)
            yield piece.data

    async def _send(self, request: GateRequest) -> None:
        try:
            await self._frames.send(codec.pack(request))
        except trio.BrokenResourceError:
            return  # what it said before it closed is more telling: read on

    async def _receive(self, answer: type[AnswerT]) -> AnswerT:
        try:
            body = await self._frames.receive()
        except (trio.BrokenResourceError, PeerError) as error:
            raise NoDaemonError(f"the daemon broke off: {error}") from error
        if body is None:
            raise NoDaemonError(f"the daemon at {self._path} ended")
        message = codec.unpack(ANSWERS, body, FRAME_BYTES_MAX)
        if isinstance(message, Refusal):
            raise RefusedError(message)
        if not isinstance(message, answer):
            raise NoDaemonError(f"the daemon answered {type(message).__name__}")
        return message


@asynccontextmanager
async def connect(path: Path) -> AsyncIterator[GateClient]:
    """Connect to the daemon that listens at path.

    Raises:
        NoDaemonError: none does; says what to do.
    """
    sock = trio.socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        await sock.connect(str(path))
    except OSError as error:
        sock.close()
        raise NoDaemonError(
            f"no daemon answers at {path} ({error.strerror or error}): start one with "
            "'p2ptrain join', or name its settings with --config"
        ) from None
    async with trio.SocketStream(sock) as stream:
        yield GateClient(FrameStream(stream, FRAME_BYTES_MAX), path)
