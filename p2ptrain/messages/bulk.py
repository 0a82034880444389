"""The bulk plane's one request and its reply.

A request is the canonical CBOR of ``[digest, offset, length]``. A reply is a u32
(little-endian) header length, a CBOR header ``{ok, size, problem}``, and ``size`` raw
bytes: bulk never goes through the codec.
"""

import struct
from dataclasses import dataclass

from p2ptrain import codec
from p2ptrain.errors import PeerError
from p2ptrain.ids import Digest, is_digest

PIECE_BYTES_MAX = 1 << 20
HEADER_BYTES_MAX = 1024
PROBLEM_CHARS_MAX = 200
# What a transport of the bulk plane must carry.
BULK_BYTES_MAX = PIECE_BYTES_MAX + HEADER_BYTES_MAX + 4

_LENGTH = struct.Struct("<I")


@dataclass(frozen=True, slots=True)
class PieceAsk:
    """Ask for bytes ``[offset, offset + length)`` of a blob."""

    digest: Digest
    offset: int
    length: int

    def pack(self) -> bytes:
        """Return the request's bytes."""
        return codec.encode([self.digest, self.offset, self.length])


@dataclass(frozen=True, slots=True)
class PieceHeader:
    """``ok`` with ``size`` bytes behind it, or a problem in a sentence."""

    ok: bool
    size: int
    problem: str


def unpack_ask(body: bytes) -> PieceAsk:
    """Return what a request asks for.

    Raises:
        PeerError: malformed, or more than ``PIECE_BYTES_MAX``.
    """
    ask = PieceAsk(*codec.from_plain(tuple[Digest, int, int], codec.decode(body)))
    if not is_digest(ask.digest):
        raise PeerError(f"{ask.digest!r:.80} is no digest")
    if not 0 <= ask.offset < 1 << 63 or not 0 < ask.length <= PIECE_BYTES_MAX:
        raise PeerError(f"bytes {ask.offset!r:.40} + {ask.length!r:.40} of a blob")
    return ask


def pack_piece(data: bytes) -> bytes:
    """Return the reply that holds data."""
    return _header(PieceHeader(ok=True, size=len(data), problem="")) + data


def pack_problem(problem: str) -> bytes:
    """Return the reply that says why there is no data."""
    return _header(PieceHeader(ok=False, size=0, problem=problem[:PROBLEM_CHARS_MAX]))


def unpack_reply(body: bytes) -> tuple[PieceHeader, bytes]:
    """Return a reply's header and its data.

    Raises:
        PeerError: malformed, or of another size than it says.
    """
    if len(body) < _LENGTH.size:
        raise PeerError("a reply without a header")
    (length,) = _LENGTH.unpack_from(body)
    end = _LENGTH.size + length
    if length > HEADER_BYTES_MAX or end > len(body):
        raise PeerError(f"a reply with a header of {length} bytes")
    plain = codec.decode(body[_LENGTH.size : end])
    header = codec.from_plain(PieceHeader, plain)
    if header.size != len(body) - end:
        raise PeerError(f"a reply of {len(body) - end} bytes says {header.size}")
    return header, body[end:]


def _header(header: PieceHeader) -> bytes:
    encoded = codec.encode(codec.to_plain(header))
    return _LENGTH.pack(len(encoded)) + encoded
