"""Length-prefixed frames over a trio stream: u32 little-endian, then the bytes."""

import struct

import trio

from p2ptrain.errors import PeerError

LENGTH = struct.Struct("<I")


class FrameStream:
    """Whole frames over a byte stream.

    Args:
        stream: the stream.
        bytes_max: the largest frame that is accepted.
    """

    def __init__(self, stream: trio.abc.Stream, bytes_max: int) -> None:
        self._stream = stream
        self._bytes_max = bytes_max
        self._buffer = bytearray()

    async def send(self, body: bytes) -> None:
        """Send one frame.

        Raises:
            trio.BrokenResourceError: the other side is gone.
        """
        await self._stream.send_all(LENGTH.pack(len(body)) + body)

    async def receive(self) -> bytes | None:
        """Return the next frame, or None when the other side closed between frames.

        Raises:
            PeerError: a frame over the bound, or an end in the middle of one.
        """
        head = await self._exactly(LENGTH.size)
        if head is None:
            return None
        (length,) = LENGTH.unpack(head)
        if length > self._bytes_max:
            raise PeerError(f"frame of {length} bytes; at most {self._bytes_max}")
        body = await self._exactly(length)
        if body is None and length:
            raise PeerError("the connection ended in a frame")
        return body or b""

    async def _exactly(self, size: int) -> bytes | None:
        """Return so many bytes; None at an end before the first of them."""
        while len(self._buffer) < size:
            data = await self._stream.receive_some(256 * 1024)
            if not data:
                if self._buffer:
                    raise PeerError("the connection ended in a frame")
                return None
            self._buffer += data
        taken = bytes(self._buffer[:size])
        del self._buffer[:size]
        return taken
