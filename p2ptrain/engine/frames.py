"""Frames on the pipes between a daemon and its trainer: a little-endian u32 length and
the ``codec.pack`` of one message.

Knows no torch and no trio: both ends use it.
"""

import struct
from typing import BinaryIO, Generic, TypeVar

from p2ptrain import codec
from p2ptrain.errors import PeerError
from p2ptrain.messages.trainer import FRAME_BYTES_MAX

T = TypeVar("T")

HEADER = struct.Struct("<I")


def frame_of(message: object) -> bytes:
    """Return the frame of a message.

    Raises:
        PeerError: the message is larger than a frame may be.
    """
    body = codec.pack(message)
    if len(body) > FRAME_BYTES_MAX:
        raise PeerError(
            f"a {type(message).__name__} of {len(body)} bytes exceeds the frame "
            f"bound of {FRAME_BYTES_MAX}"
        )
    return HEADER.pack(len(body)) + body


def length_of(header: bytes | bytearray) -> int:
    """Return the length that a frame's header announces.

    Raises:
        PeerError: more than a frame may have.
    """
    length: int = HEADER.unpack(header)[0]
    if length > FRAME_BYTES_MAX:
        raise PeerError(
            f"a frame of {length} bytes exceeds the bound of {FRAME_BYTES_MAX}"
        )
    return length


class Splitter(Generic[T]):
    """Turns pieces of a byte stream into messages.

    Args:
        table: the message classes by name (``codec.kinds``).
    """

    def __init__(self, table: dict[str, type[T]]) -> None:
        self._table = table
        self._held = bytearray()

    def feed(self, piece: bytes | bytearray) -> list[T]:
        """Return the messages that a piece completes.

        Raises:
            PeerError: a frame is too long or holds no message.
        """
        self._held += piece
        messages: list[T] = []
        while (message := self._next()) is not None:
            messages.append(message)
        return messages

    def _next(self) -> T | None:
        if len(self._held) < HEADER.size:
            return None
        end = HEADER.size + length_of(self._held[: HEADER.size])
        if len(self._held) < end:
            return None
        body = bytes(self._held[HEADER.size : end])
        del self._held[:end]
        return codec.unpack(self._table, body, FRAME_BYTES_MAX)


def read_frame(stream: BinaryIO, table: dict[str, type[T]]) -> T | None:
    """Return the next message of a blocking stream, None at its end.

    Raises:
        PeerError: a frame is too long or holds no message.
    """
    header = stream.read(HEADER.size)
    if len(header) < HEADER.size:
        return None
    length = length_of(header)
    body = stream.read(length)
    if len(body) < length:
        return None
    return codec.unpack(table, body, FRAME_BYTES_MAX)
