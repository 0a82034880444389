"""How a new node gets its certificate: a conversation of four frames over TLS 1.3.

::

    joiner                                             a node with the authority
      Open(token's name, nonce)               ->
                                              <-  Challenge(authority, nonce, proof)
      Request(certificate request, proof)     ->
                                              <-  Grant(certificate) or Refusal

The joiner has no certificate yet and cannot check the server's in the TLS handshake, so
it does so after the first answer: the authority must hash to what the token says, and
the server's certificate must be issued by it. A proof is an HMAC, with a key derived
from the token's secret, over both nonces, the server's certificate and (the joiner's)
the request: a listener in the middle learns nothing, and cannot put its own key in.
Then the token is spent, durably, before the certificate leaves.

Frames are CBOR behind a length of four bytes, little-endian, at most ``FRAME_MAX``. The
whole conversation has ``DEADLINE_S``.
"""

import hmac
import ssl
from dataclasses import dataclass
from hashlib import sha256
from typing import TypeVar

import trio

from p2ptrain import codec
from p2ptrain.errors import PeerError
from p2ptrain.tls import TlsMaterial, server_context

WIRE_VERSION = 1
FRAME_MAX = 16 * 1024
NONCE_BYTES = 16
DEADLINE_S = 10.0

FrameT = TypeVar("FrameT")
TlsStream = trio.SSLStream[trio.SocketStream]


@dataclass(frozen=True, slots=True)
class Open:
    """The joiner names its token."""

    version: int
    token: str
    nonce: bytes


@dataclass(frozen=True, slots=True)
class Challenge:
    """The server shows the authority (DER) and that it knows the token too."""

    authority: bytes
    nonce: bytes
    proof: bytes


@dataclass(frozen=True, slots=True)
class Request:
    """The joiner's certificate request (DER), and its name, for the log only."""

    name: str
    request: bytes
    proof: bytes


@dataclass(frozen=True, slots=True)
class Grant:
    """The joiner's certificate (DER), and where the cluster listens."""

    cert: bytes
    seeds: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why not, in a sentence."""

    sentence: str


KINDS = codec.kinds(Open | Challenge | Request | Grant | Refusal)


@dataclass(frozen=True, slots=True)
class Transcript:
    """What both sides prove to have seen."""

    key: bytes
    joiner_nonce: bytes
    server_nonce: bytes
    server_cert: bytes

    def server_proof(self) -> bytes:
        """Return what only a server that knows the token can say."""
        return self._proof(b"server", b"")

    def joiner_proof(self, request: bytes) -> bytes:
        """Return what only a joiner that knows the token can say of its request."""
        return self._proof(b"joiner", request)

    def _proof(self, who: bytes, request: bytes) -> bytes:
        parts = (who, self.joiner_nonce, self.server_nonce, self.server_cert, request)
        # Each part is hashed to a fixed length: no two splits give the same bytes.
        message = b"".join(sha256(part).digest() for part in parts)
        return hmac.digest(self.key, message, "sha256")


async def send_frame(stream: trio.abc.SendStream, frame: object) -> None:
    """Send one frame."""
    data = codec.pack(frame)
    await stream.send_all(len(data).to_bytes(4, "little") + data)


async def receive_frame(
    stream: trio.abc.ReceiveStream, kind: type[FrameT]
) -> FrameT | Refusal:
    """Receive a frame of a kind, or a refusal.

    Raises:
        PeerError: another kind, malformed, too long, or the end of the stream.
    """
    size = int.from_bytes(await _exactly(stream, 4), "little")
    if size > FRAME_MAX:
        raise PeerError(f"frame of {size} bytes, at most {FRAME_MAX} are allowed")
    frame = codec.unpack(KINDS, await _exactly(stream, size), FRAME_MAX)
    if not isinstance(frame, kind | Refusal):
        raise PeerError(f"{type(frame).__name__} where {kind.__name__} belongs")
    return frame


def open_server_context(tls: TlsMaterial) -> ssl.SSLContext:
    """Return a context for enrolment's listener: the joiner shows no certificate."""
    context = server_context(tls)
    context.verify_mode = ssl.CERT_NONE
    return context


def open_client_context() -> ssl.SSLContext:
    """Return a context for a joiner, who checks the server's certificate later."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


async def _exactly(stream: trio.abc.ReceiveStream, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        piece = await stream.receive_some(size - len(data))
        if not piece:
            raise PeerError("the connection ended within a frame")
        data += piece
    return bytes(data)
