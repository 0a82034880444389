"""The authority: what it signs, what it refuses, and how long things last."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519

from p2ptrain.errors import AuthError, ConfigError, PeerError
from p2ptrain.ids import is_node
from p2ptrain.security.authority import (
    check_issued,
    common_name,
    create_authority,
    fingerprint_of,
    key_node,
    load_authority,
    load_cert,
    load_key,
    new_key,
    new_request,
    read_request,
    save_authority,
)
from p2ptrain.tls import SERVER_NAME


def test_a_node_certificate_names_the_node() -> None:
    authority = create_authority("lab")
    key = new_key()
    cert = authority.sign(key.public_key(), ("10.0.0.7", "box.lan", "::1"))
    node = key_node(key.public_key())
    assert is_node(node)
    assert common_name(cert) == node
    names = cert.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    dns = names.get_values_for_type(x509.DNSName)
    assert dns == [SERVER_NAME, node, "box.lan"]
    addresses = [str(one) for one in names.get_values_for_type(x509.IPAddress)]
    assert addresses == ["10.0.0.7", "::1"]
    constraints = cert.extensions.get_extension_for_class(x509.BasicConstraints)
    assert constraints.critical
    assert not constraints.value.ca


def test_certificates_last_and_begin_early() -> None:
    authority = create_authority("lab")
    now = datetime.now(UTC)
    node = authority.sign(new_key().public_key(), ())
    for cert, years in ((authority.cert, 10), (node, 5)):
        assert cert.not_valid_before_utc <= now - timedelta(hours=23)
        assert cert.not_valid_after_utc >= now + timedelta(days=365 * years)


def test_what_another_authority_signed_is_refused() -> None:
    ours, theirs = create_authority("lab"), create_authority("lab")
    cert = theirs.sign(new_key().public_key(), ())
    check_issued(cert, theirs.cert, datetime.now(UTC))
    with pytest.raises(AuthError, match="not signed by this cluster"):
        check_issued(cert, ours.cert, datetime.now(UTC))


@pytest.mark.parametrize("days", [-3, 365 * 6])
def test_an_expired_or_future_certificate_is_refused(days: int) -> None:
    authority = create_authority("lab")
    cert = authority.sign(new_key().public_key(), ())
    with pytest.raises(AuthError, match="set the clock or renew"):
        check_issued(cert, authority.cert, datetime.now(UTC) + timedelta(days=days))


def test_a_name_that_is_not_the_keys_is_refused() -> None:
    authority = create_authority("lab")
    good = authority.sign(new_key().public_key(), ())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "0" * 32)])
    forged = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(authority.cert.subject)
        .public_key(new_key().public_key())
        .serial_number(1)
        .not_valid_before(good.not_valid_before_utc)
        .not_valid_after(good.not_valid_after_utc)
        .sign(authority.key, hashes.SHA256())
    )
    with pytest.raises(AuthError, match="not that of its key"):
        check_issued(forged, authority.cert, datetime.now(UTC))


def test_the_authority_is_kept(tmp_path: Path) -> None:
    authority = create_authority("lab")
    save_authority(tmp_path, authority)
    again = load_authority(tmp_path)
    assert fingerprint_of(again.cert) == fingerprint_of(authority.cert)
    cert = again.sign(new_key().public_key(), ())
    check_issued(cert, authority.cert, datetime.now(UTC))
    assert (tmp_path / "ca").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "ca" / "ca.key").stat().st_mode & 0o777 == 0o600


def test_a_node_without_the_authority_says_where_to_go(tmp_path: Path) -> None:
    with pytest.raises(AuthError, match="p2ptrain init"):
        load_authority(tmp_path)


@pytest.mark.parametrize("name", ["", "x" * 49, "a\nb"])
def test_a_bad_cluster_name_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="cluster name"):
        create_authority(name)


def test_a_bad_host_is_refused() -> None:
    authority = create_authority("lab")
    with pytest.raises(ConfigError, match="no host name"):
        authority.sign(new_key().public_key(), ("bücher.lan",))


def test_a_request_proves_its_key() -> None:
    key = new_key()
    public = read_request(new_request(key))
    assert key_node(public) == key_node(key.public_key())


def tampered() -> bytes:
    data = bytearray(new_request(new_key()))
    data[-1] ^= 1
    return bytes(data)


def of_another_curve() -> bytes:
    return der(ec.generate_private_key(ec.SECP384R1()), hashes.SHA256())


def of_another_kind() -> bytes:
    return der(ed25519.Ed25519PrivateKey.generate(), None)


def der(
    key: ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey,
    algorithm: hashes.SHA256 | None,
) -> bytes:
    builder = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([]))
    request = builder.sign(key, algorithm)
    return request.public_bytes(serialization.Encoding.DER)


@pytest.mark.parametrize(
    "make",
    [tampered, of_another_curve, of_another_kind, lambda: b"", lambda: b"x" * 99],
)
def test_a_bad_request_is_refused(make: object) -> None:
    assert callable(make)
    with pytest.raises(PeerError, match="certificate request"):
        read_request(make())


def test_broken_files_are_named(tmp_path: Path) -> None:
    path = tmp_path / "broken.pem"
    path.write_text("no")
    with pytest.raises(AuthError, match=r"broken\.pem"):
        load_key(path)
    with pytest.raises(AuthError, match=r"broken\.pem"):
        load_cert(path)
