"""What a node shows to its peers over TLS, and the contexts for Python's own ``ssl``.

Every certificate of a cluster is signed by the cluster's own authority, has the node id
as its common name, and carries two DNS names: ``SERVER_NAME``, the same for all nodes
(enough to know that the peer is a member), and the node id (to insist on one node). No
other authority is trusted. The files are made in ``security/``; nothing is written
here.
"""

import ssl
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Protocol

from p2ptrain.errors import AuthError, ConfigError
from p2ptrain.ids import NodeId, is_node

SERVER_NAME = "p2ptrain"


@dataclass(frozen=True, slots=True)
class TlsMaterial:
    """Files in PEM: the cluster's authority, this node's certificate and its key."""

    ca: Path
    cert: Path
    key: Path


class HasPeerCert(Protocol):
    """An ``ssl.SSLSocket``, ``ssl.SSLObject`` or ``trio.SSLStream``, after its
    handshake.
    """

    def getpeercert(self) -> Any:
        """Return the peer's checked certificate as a dict."""
        ...


def server_context(tls: TlsMaterial) -> ssl.SSLContext:
    """Return a TLS 1.3 context that refuses clients without a certificate of the
    cluster.

    Raises:
        AuthError: a file is missing or broken; names it.
    """
    return _context(ssl.PROTOCOL_TLS_SERVER, tls)


def client_context(tls: TlsMaterial) -> ssl.SSLContext:
    """Return a TLS 1.3 context; connect with ``server_hostname`` = the node id that
    must answer, or ``SERVER_NAME`` for any member.

    Raises:
        AuthError: a file is missing or broken; names it.
    """
    return _context(ssl.PROTOCOL_TLS_CLIENT, tls)


def peer_node(connection: HasPeerCert) -> NodeId:
    """Return the node id in the peer's certificate.

    Raises:
        AuthError: there is none.
    """
    subject = (connection.getpeercert() or {}).get("subject", ())
    names = [value for part in subject for key, value in part if key == "commonName"]
    if len(names) != 1 or not is_node(names[0]):
        raise AuthError(f"the peer's certificate names no node: {names!r:.80}")
    return NodeId(names[0])


def is_loopback(host: str) -> bool:
    """Tell whether only this machine can reach a listener on host."""
    if host == "localhost":
        return True
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def check_exposure(host: str, tls: TlsMaterial | None) -> None:
    """Refuse to listen beyond this machine without TLS.

    Raises:
        ConfigError: says what to do.
    """
    if tls is None and not is_loopback(host):
        raise ConfigError(
            f"refusing to listen on {host} without TLS: run 'p2ptrain init' or "
            "'p2ptrain join' to get certificates, or listen on 127.0.0.1"
        )


def _context(protocol: int, tls: TlsMaterial) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.verify_mode = ssl.CERT_REQUIRED
    try:
        context.load_verify_locations(tls.ca)
        context.load_cert_chain(tls.cert, tls.key)
    except (OSError, ssl.SSLError) as error:
        raise AuthError(
            f"cannot load the certificates in {tls.cert.parent}: {error}"
        ) from error
    return context
