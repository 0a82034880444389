"""Who this node is: its id, its certificate files and its cluster's name.

Layout of a node's security folder (0700; files 0600)::

    tls/node.key  tls/node.pem  tls/ca.pem    a node of a TLS cluster
    node.id                                   a node of a loopback cluster
    ca/ca.key  ca/ca.pem  ca/tokens.json      the cluster's authority, on its holders
"""

import secrets
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec

from p2ptrain.errors import AuthError, ConflictError
from p2ptrain.ids import NodeId, is_node
from p2ptrain.security.authority import (
    cert_pem,
    check_issued,
    common_name,
    create_authority,
    fingerprint_of,
    key_node,
    key_pem,
    load_cert,
    load_key,
    new_key,
    save_authority,
)
from p2ptrain.security.files import private_folder, write_private
from p2ptrain.tls import TlsMaterial


@dataclass(frozen=True, slots=True)
class Identity:
    """This node in its cluster.

    ``fingerprint`` names the cluster where a secret would be too much (mDNS); it and
    ``cluster`` are empty, and ``tls`` is None, in a loopback cluster.
    """

    node: NodeId
    cluster: str
    fingerprint: str
    tls: TlsMaterial | None


def material(folder: Path) -> TlsMaterial:
    """Return where a node's TLS files are."""
    target = folder / "tls"
    return TlsMaterial(target / "ca.pem", target / "node.pem", target / "node.key")


def create_cluster(folder: Path, name: str, hosts: tuple[str, ...]) -> Identity:
    """Make a cluster's authority and its first node.

    Args:
        folder: the node's security folder.
        name: the cluster's name, for people.
        hosts: DNS names and IP addresses of this node, for its certificate.

    Raises:
        ConflictError: this node already belongs to a cluster.
        ConfigError: the name will not do.
        StorageError: the disk refused.
    """
    refuse_second(folder)
    authority = create_authority(name)
    key = new_key()
    save_authority(private_folder(folder), authority)
    cert = authority.sign(key.public_key(), hosts)
    return save_identity(folder, key, cert, authority.cert)


def save_identity(
    folder: Path,
    key: ec.EllipticCurvePrivateKey,
    cert: x509.Certificate,
    authority: x509.Certificate,
) -> Identity:
    """Write a node's files; the certificate last, so that it stands for all three."""
    files = material(folder)
    private_folder(files.key.parent)
    write_private(files.key, key_pem(key))
    write_private(files.ca, cert_pem(authority))
    write_private(files.cert, cert_pem(cert))
    return load_identity(folder)


def load_identity(folder: Path) -> Identity:
    """Read this node's identity in a TLS cluster.

    Raises:
        AuthError: there is none, or its files do not fit together or have expired;
            says what to do.
    """
    files = material(folder)
    try:
        cert = load_cert(files.cert)
        authority = load_cert(files.ca)
        key = load_key(files.key)
    except FileNotFoundError as error:
        raise AuthError(
            f"this node has no certificate ({error.filename} is missing): run "
            "'p2ptrain init' to found a cluster, or 'p2ptrain join TOKEN@HOST:PORT'"
        ) from error
    check_issued(cert, authority, datetime.now(UTC))
    if common_name(cert) != key_node(key.public_key()):
        raise AuthError(f"{files.key} is not the key of {files.cert}")
    node = NodeId(common_name(cert))
    return Identity(node, common_name(authority), fingerprint_of(authority), files)


def plain_identity(folder: Path) -> Identity:
    """Return this node's identity in a loopback cluster: drawn once, then kept.

    Raises:
        AuthError: the file does not hold a node id.
    """
    path = private_folder(folder) / "node.id"
    if not path.exists():
        write_private(path, secrets.token_hex(16).encode() + b"\n")
    text = path.read_text().strip()
    if not is_node(text):
        raise AuthError(f"{path} holds no node id: delete it to get a new one")
    return Identity(NodeId(text), "", "", None)


def refuse_second(folder: Path) -> None:
    """Refuse to enter a cluster from a node that is in one.

    Raises:
        ConflictError: names the cluster and what to do.
    """
    if material(folder).cert.exists() or (folder / "ca" / "ca.key").exists():
        raise ConflictError(
            f"this node belongs to a cluster already: move {folder} away to found or "
            "join another one"
        )
