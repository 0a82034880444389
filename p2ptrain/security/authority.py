"""The cluster's certificate authority: makes it, and signs nodes' certificates.

EC P-256 throughout (NNG's TLS refuses Ed25519). Certificates begin a day early, for
edge devices without a good clock, and last long: 10 years for the authority, 5 for a
node. Only nodes that hold ``ca/ca.key`` can let others in.
"""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from p2ptrain.errors import AuthError, ConfigError, PeerError
from p2ptrain.ids import NodeId, node_of
from p2ptrain.security.files import private_folder, write_private
from p2ptrain.tls import SERVER_NAME

BACKDATE = timedelta(days=1)
AUTHORITY_LIFE = timedelta(days=3652)
NODE_LIFE = timedelta(days=1826)
NAME_CHARS_MAX = 48


@dataclass(frozen=True, slots=True)
class Authority:
    """The authority of one cluster, with its key."""

    cert: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    def sign(
        self, public: ec.EllipticCurvePublicKey, hosts: tuple[str, ...]
    ) -> x509.Certificate:
        """Return a node's certificate: its common name is the node id.

        Args:
            public: the node's public key.
            hosts: further DNS names and IP addresses of the node.

        Raises:
            ConfigError: a host is neither.
        """
        node = key_node(public)
        now = datetime.now(UTC)
        names = [x509.DNSName(SERVER_NAME), x509.DNSName(node), *map(_host, hosts)]
        usages = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        authority_key = self.key.public_key()
        return (
            x509.CertificateBuilder()
            .subject_name(_name(node))
            .issuer_name(self.cert.subject)
            .public_key(public)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - BACKDATE)
            .not_valid_after(min(now + NODE_LIFE, self.cert.not_valid_after_utc))
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), True)
            .add_extension(_usage(signs_certificates=False), True)
            .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key),
                critical=False,
            )
            .sign(self.key, hashes.SHA256())
        )


def create_authority(name: str) -> Authority:
    """Make the authority of a new cluster.

    Raises:
        ConfigError: the name is empty, too long or not printable.
    """
    if not 0 < len(name) <= NAME_CHARS_MAX or not name.isprintable():
        raise ConfigError(
            f"cluster name {name!r:.60}: 1 to {NAME_CHARS_MAX} printable characters "
            "are allowed"
        )
    key = new_key()
    now = datetime.now(UTC)
    subject = _name(name)
    public = key.public_key()
    cert = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - BACKDATE)
        .not_valid_after(now + AUTHORITY_LIFE)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), True)
        .add_extension(_usage(signs_certificates=True), True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), False)
        .sign(key, hashes.SHA256())
    )
    return Authority(cert, key)


def save_authority(folder: Path, authority: Authority) -> None:
    """Write the authority's key and certificate into ``folder/ca``."""
    target = private_folder(folder / "ca")
    write_private(target / "ca.key", key_pem(authority.key))
    write_private(target / "ca.pem", cert_pem(authority.cert))


def load_authority(folder: Path) -> Authority:
    """Read the authority from ``folder/ca``.

    Raises:
        AuthError: this node does not hold it.
    """
    target = folder / "ca"
    try:
        key = load_key(target / "ca.key")
        cert = load_cert(target / "ca.pem")
    except FileNotFoundError as error:
        raise AuthError(
            f"this node does not hold the cluster's authority ({error.filename} is "
            "missing): do this on the node where 'p2ptrain init' was run"
        ) from error
    return Authority(cert, key)


def fingerprint_of(cert: x509.Certificate) -> str:
    """Return what names a cluster: the SHA-256 of its authority, in hex."""
    return sha256(cert.public_bytes(serialization.Encoding.DER)).hexdigest()


def common_name(cert: x509.Certificate) -> str:
    """Return a certificate's common name: a node id or a cluster's name."""
    return str(cert.subject.get_attributes_for_oid(NameOID.COMMON_NAME)[0].value)


def key_node(public: ec.EllipticCurvePublicKey) -> NodeId:
    """Return the node id that follows from a public key."""
    return node_of(
        public.public_bytes(
            serialization.Encoding.DER,
            serialization.PublicFormat.SubjectPublicKeyInfo,
        )
    )


def check_issued(
    leaf: x509.Certificate, authority: x509.Certificate, now: datetime
) -> None:
    """Check that a certificate is a valid one of a node of this cluster.

    Raises:
        AuthError: says what is wrong.
    """
    try:
        leaf.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature) as error:
        raise AuthError("the certificate is not signed by this cluster") from error
    for cert, whose in ((leaf, "certificate"), (authority, "cluster's authority")):
        if not cert.not_valid_before_utc <= now <= cert.not_valid_after_utc:
            raise AuthError(
                f"the {whose} is valid from {cert.not_valid_before_utc:%Y-%m-%d} to "
                f"{cert.not_valid_after_utc:%Y-%m-%d}, and this clock says "
                f"{now:%Y-%m-%d}: set the clock or renew it"
            )
    key = leaf.public_key()
    if not isinstance(key, ec.EllipticCurvePublicKey):
        raise AuthError("the certificate's key is not an elliptic curve key")
    if common_name(leaf) != key_node(key):
        raise AuthError("the certificate's name is not that of its key")


def new_key() -> ec.EllipticCurvePrivateKey:
    """Return a fresh P-256 key."""
    return ec.generate_private_key(ec.SECP256R1())


def new_request(key: ec.EllipticCurvePrivateKey) -> bytes:
    """Return a certificate request (DER) for a node's key."""
    subject = _name(key_node(key.public_key()))
    request = x509.CertificateSigningRequestBuilder().subject_name(subject)
    signed = request.sign(key, hashes.SHA256())
    return signed.public_bytes(serialization.Encoding.DER)


def read_request(data: bytes) -> ec.EllipticCurvePublicKey:
    """Return the key of a certificate request, after checking that its sender owns it.

    Raises:
        PeerError: malformed, another kind of key, or a wrong signature.
    """
    try:
        request = x509.load_der_x509_csr(data)
        valid = request.is_signature_valid
        public = request.public_key()
    except (ValueError, TypeError, InvalidSignature) as error:
        raise PeerError("malformed certificate request") from error
    p256 = isinstance(public, ec.EllipticCurvePublicKey) and isinstance(
        public.curve, ec.SECP256R1
    )
    if not valid or not p256:
        raise PeerError("a certificate request needs a P-256 key and its signature")
    assert isinstance(public, ec.EllipticCurvePublicKey)
    return public


def load_key(path: Path) -> ec.EllipticCurvePrivateKey:
    """Read a private key.

    Raises:
        FileNotFoundError: it is not there.
        AuthError: it is not a key; names the file.
    """
    try:
        key = serialization.load_pem_private_key(path.read_bytes(), None)
    except ValueError as error:
        raise AuthError(f"{path} holds no private key") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise AuthError(f"{path} holds no elliptic curve key")
    return key


def load_cert(path: Path) -> x509.Certificate:
    """Read a certificate.

    Raises:
        FileNotFoundError: it is not there.
        AuthError: it is not a certificate; names the file.
    """
    try:
        return x509.load_pem_x509_certificate(path.read_bytes())
    except ValueError as error:
        raise AuthError(f"{path} holds no certificate") from error


def key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    """Return a private key's text form."""
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


def cert_pem(cert: x509.Certificate) -> bytes:
    """Return a certificate's text form."""
    return cert.public_bytes(serialization.Encoding.PEM)


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(host))
    except ValueError:
        pass
    try:
        return x509.DNSName(host)
    except ValueError as error:
        raise ConfigError(f"{host!r:.80} is no host name: {error}") from error


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )
