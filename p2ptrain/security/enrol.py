"""The joiner's side of enrolment; the conversation is described in ``handshake``."""

import secrets
import ssl
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TypeVar

import trio
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec

from p2ptrain.errors import AuthError, DeadlineError, PeerError, UnreachableError
from p2ptrain.security.authority import (
    check_issued,
    fingerprint_of,
    key_pem,
    load_key,
    new_key,
    new_request,
)
from p2ptrain.security.files import private_folder, write_private
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
    open_client_context,
    receive_frame,
    send_frame,
)
from p2ptrain.security.identity import Identity, material, refuse_second, save_identity
from p2ptrain.security.tokens import Token, parse_token

AnswerT = TypeVar("AnswerT")


@dataclass(frozen=True, slots=True)
class Enrolled:
    """What a joiner gets: who it is now, and control addresses of its cluster."""

    identity: Identity
    seeds: tuple[str, ...]


async def enrol(token: str, host: str, port: int, folder: Path, name: str) -> Enrolled:
    """Join a cluster: get a certificate for this node's own new key.

    The key is kept when the answer is lost, so that trying again costs no further use
    of the token.

    Args:
        token: as ``issue_token`` gave it out.
        host: where a node with the cluster's authority listens for joiners.
        port: its port.
        folder: this node's security folder.
        name: this node's name, for the other side's log.

    Raises:
        AuthError: the token or the server was refused; says why.
        ConflictError: this node is in a cluster already.
        UnreachableError: nobody listens there, or the connection broke.
        DeadlineError: no answer in time.
    """
    parsed = parse_token(token)
    refuse_second(folder)
    key = await trio.to_thread.run_sync(_own_key, folder)
    where = f"{host}:{port}"
    try:
        with trio.fail_after(DEADLINE_S):
            grant, authority = await _talk(host, port, _Joiner(parsed, key, name))
    except trio.TooSlowError as error:
        raise DeadlineError(f"{where} did not answer in {DEADLINE_S:g} s") from error
    except (OSError, trio.BrokenResourceError) as error:
        raise UnreachableError(f"cannot join at {where}: {error}") from error
    except PeerError as error:
        raise AuthError(f"{where} does not enrol nodes: {error}") from error
    save = partial(save_identity, folder, key, _issued(grant, authority), authority)
    return Enrolled(await trio.to_thread.run_sync(save), grant.seeds)


@dataclass(frozen=True, slots=True)
class _Joiner:
    token: Token
    key: ec.EllipticCurvePrivateKey
    name: str


async def _talk(
    host: str, port: int, joiner: _Joiner
) -> tuple[Grant, x509.Certificate]:
    context = open_client_context()
    stream = await trio.open_ssl_over_tcp_stream(host, port, ssl_context=context)
    try:
        return await _join(stream, joiner)
    finally:
        await trio.aclose_forcefully(stream)


async def _join(stream: TlsStream, joiner: _Joiner) -> tuple[Grant, x509.Certificate]:
    await stream.do_handshake()
    shown: bytes = stream.getpeercert(binary_form=True)
    token, nonce = joiner.token, secrets.token_bytes(NONCE_BYTES)
    await send_frame(stream, Open(WIRE_VERSION, token.name, nonce))
    challenge = _accepted(await receive_frame(stream, Challenge))
    authority = _read_cert(challenge.authority)
    if not fingerprint_of(authority).startswith(token.authority):
        raise AuthError(
            "the token is of another cluster than the one that answers: check the "
            "address, or somebody is in between"
        )
    check_issued(_read_cert(shown), authority, datetime.now(UTC))
    transcript = Transcript(token.key, nonce, challenge.nonce, shown)
    if not secrets.compare_digest(challenge.proof, transcript.server_proof()):
        raise AuthError("the node that answers does not know this token")
    request = new_request(joiner.key)
    proof = transcript.joiner_proof(request)
    await send_frame(stream, Request(joiner.name, request, proof))
    return _accepted(await receive_frame(stream, Grant)), authority


def _accepted(frame: AnswerT | Refusal) -> AnswerT:
    if isinstance(frame, Refusal):
        raise AuthError(f"refused: {frame.sentence:.300}")
    return frame


def _issued(grant: Grant, authority: x509.Certificate) -> x509.Certificate:
    cert = _read_cert(grant.cert)
    check_issued(cert, authority, datetime.now(UTC))
    return cert


def _read_cert(data: bytes) -> x509.Certificate:
    try:
        return x509.load_der_x509_certificate(data)
    except (ValueError, ssl.SSLError) as error:
        raise PeerError("malformed certificate") from error


def _own_key(folder: Path) -> ec.EllipticCurvePrivateKey:
    """Return the key of an earlier try, or a new one, kept."""
    path = material(folder).key
    if path.exists():
        return load_key(path)
    private_folder(private_folder(folder) / path.parent.name)
    key = new_key()
    write_private(path, key_pem(key))
    return key
