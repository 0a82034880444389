"""The authority's side of enrolment; the conversation is described in ``handshake``.

``AT_ONCE`` conversations run at a time; a source that failed ``FAILURES_MAX`` times is
turned away until time forgives it. Files and signatures are handled in threads.
"""

import secrets
import ssl
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import structlog
import trio
from cryptography.hazmat.primitives.serialization import Encoding

from p2ptrain.errors import AuthError, ConfigError, PeerError, StorageError
from p2ptrain.ids import NodeId
from p2ptrain.security.authority import (
    key_node,
    load_authority,
    load_cert,
    read_request,
)
from p2ptrain.security.handshake import (
    DEADLINE_S,
    NONCE_BYTES,
    WIRE_VERSION,
    Challenge,
    Grant,
    Open,
    Refusal,
    Request,
    TlsStream,
    Transcript,
    open_server_context,
    receive_frame,
    send_frame,
)
from p2ptrain.security.identity import material
from p2ptrain.security.tokens import spend_token, token_key

AT_ONCE = 8
WAITING_MAX = 64
FAILURES_MAX = 10
FORGIVE_S = 6.0  # a failure is forgiven after this long
SOURCES_MAX = 1024

FrameT = TypeVar("FrameT")
_log = structlog.get_logger()


class Failures:
    """Counts each source's failures; old ones are forgiven one by one."""

    def __init__(self) -> None:
        self._until: OrderedDict[str, float] = OrderedDict()

    def blocked(self, source: str, now: float) -> bool:
        """Tell whether a source must wait."""
        return self._until.get(source, now) - now > FAILURES_MAX * FORGIVE_S

    def add(self, source: str, now: float) -> None:
        """Count a failure."""
        self._until[source] = max(self._until.get(source, now), now) + FORGIVE_S
        self._until.move_to_end(source)
        if len(self._until) > SOURCES_MAX:
            self._until.popitem(last=False)


class EnrolServer:
    """Lets joiners with a token in; runs on nodes that hold the authority.

    Args:
        folder: the node's security folder.
        seeds: returns control addresses that a joiner can use.
    """

    def __init__(self, folder: Path, seeds: Callable[[], tuple[str, ...]]) -> None:
        self._folder = folder
        self._seeds = seeds
        self._limit = trio.CapacityLimiter(AT_ONCE)
        self._failures = Failures()

    async def serve(
        self,
        host: str,
        port: int,
        *,
        task_status: trio.TaskStatus[int] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Serve until cancelled; reports the port that was bound.

        Raises:
            AuthError: this node does not hold the authority, or has no certificate.
            ConfigError: the address is taken.
        """
        await trio.to_thread.run_sync(load_authority, self._folder)
        context = open_server_context(material(self._folder))
        try:
            listeners = await trio.open_tcp_listeners(port, host=host)
        except OSError as error:
            raise ConfigError(
                f"cannot listen for joiners on {host}:{port}: {error.strerror}"
            ) from error
        task_status.started(listeners[0].socket.getsockname()[1])
        over_tls = [trio.SSLListener(one, context) for one in listeners]
        await trio.serve_listeners(self._accept, over_tls)

    async def _accept(self, stream: TlsStream) -> None:
        try:
            source = str(stream.transport_stream.socket.getpeername()[0])
            if self._turned_away(source):
                return
            with trio.move_on_after(DEADLINE_S):
                async with self._limit:
                    await self._answer(stream, source)
        except OSError as error:
            _log.debug("enrolment_broken", reason=str(error))
        finally:
            await trio.aclose_forcefully(stream)

    def _turned_away(self, source: str) -> bool:
        waiting = self._limit.statistics().tasks_waiting
        return waiting >= WAITING_MAX or self._failures.blocked(
            source, trio.current_time()
        )

    async def _answer(self, stream: TlsStream, source: str) -> None:
        try:
            node, name = await self._enrol(stream)
            _log.info("node_enrolled", node=node, name=name, source=source)
        except (PeerError, AuthError, trio.BrokenResourceError, ssl.SSLError) as error:
            self._failures.add(source, trio.current_time())
            _log.warning("enrolment_refused", source=source, reason=str(error))
            await self._refuse(stream, str(error))
        except StorageError as error:
            _log.error("enrolment_failed", source=source, reason=str(error))
            await self._refuse(stream, "this node's disk refused; see its log")

    async def _refuse(self, stream: TlsStream, sentence: str) -> None:
        try:
            await send_frame(stream, Refusal(sentence))
            await stream.aclose()
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            _log.debug("refusal_not_sent")

    async def _enrol(self, stream: TlsStream) -> tuple[NodeId, str]:
        opening = _expected(await receive_frame(stream, Open))
        if opening.version != WIRE_VERSION:
            raise PeerError(
                f"this node enrols with version {WIRE_VERSION}, the joiner with "
                f"{opening.version}: run the same p2ptrain release on both"
            )
        transcript = await self._challenge(stream, opening)
        request = _expected(await receive_frame(stream, Request))
        proof = transcript.joiner_proof(request.request)
        if not secrets.compare_digest(request.proof, proof):
            raise AuthError("the token is wrong")
        node, cert = await trio.to_thread.run_sync(
            self._issue, opening.token, request.request
        )
        await send_frame(stream, Grant(cert, self._seeds()))
        return node, request.name[:64]

    async def _challenge(self, stream: TlsStream, opening: Open) -> Transcript:
        key = await trio.to_thread.run_sync(token_key, self._folder, opening.token)
        authority = await trio.to_thread.run_sync(load_authority, self._folder)
        shown = await trio.to_thread.run_sync(_own_cert, self._folder)
        nonce = secrets.token_bytes(NONCE_BYTES)
        transcript = Transcript(key, opening.nonce, nonce, shown)
        data = authority.cert.public_bytes(Encoding.DER)
        await send_frame(stream, Challenge(data, nonce, transcript.server_proof()))
        return transcript

    def _issue(self, token: str, request: bytes) -> tuple[NodeId, bytes]:
        """Spend the token and sign; the use is on disk before the certificate is."""
        public = read_request(request)
        node = key_node(public)
        spend_token(self._folder, token, node)
        cert = load_authority(self._folder).sign(public, ())
        return node, cert.public_bytes(Encoding.DER)


def _own_cert(folder: Path) -> bytes:
    return load_cert(material(folder).cert).public_bytes(Encoding.DER)


def _expected(frame: FrameT | Refusal) -> FrameT:
    if isinstance(frame, Refusal):
        raise PeerError("a joiner does not refuse")
    return frame
