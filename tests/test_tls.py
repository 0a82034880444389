"""TLS contexts for Python's own ssl, and the rule of exposure."""

import ssl
from collections.abc import Callable
from pathlib import Path

import pytest

from p2ptrain.errors import AuthError, ConfigError
from p2ptrain.security.authority import Authority, create_authority, new_key
from p2ptrain.security.identity import Identity, save_identity
from p2ptrain.tls import (
    SERVER_NAME,
    TlsMaterial,
    check_exposure,
    client_context,
    is_loopback,
    peer_node,
    server_context,
)

Enlist = Callable[..., Identity]


@pytest.fixture
def enlist(tmp_path: Path) -> Enlist:
    ours = create_authority("lab")

    def make(name: str, authority: Authority = ours) -> Identity:
        key = new_key()
        cert = authority.sign(key.public_key(), ())
        return save_identity(tmp_path / name, key, cert, authority.cert)

    return make


def files(identity: Identity) -> TlsMaterial:
    assert identity.tls is not None
    return identity.tls


def handshake(
    client: ssl.SSLContext, server: ssl.SSLContext, name: str
) -> tuple[ssl.SSLObject, ssl.SSLObject]:
    """Shake hands in memory, without a socket."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    left = client.wrap_bio(to_client, to_server, server_hostname=name)
    right = server.wrap_bio(to_server, to_client, server_side=True)
    for _ in range(4):
        for side in (left, right):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
    left.write(b"x")
    assert right.read(1) == b"x"
    return left, right


def test_members_know_each_other(enlist: Enlist) -> None:
    one, two = enlist("one"), enlist("two")
    client, server = client_context(files(one)), server_context(files(two))
    for name in (two.node, SERVER_NAME):
        left, right = handshake(client, server, name)
        assert peer_node(left) == two.node
        assert peer_node(right) == one.node
        assert left.version() == "TLSv1.3"


def test_another_node_than_the_one_asked_for_is_refused(enlist: Enlist) -> None:
    one, two, three = enlist("one"), enlist("two"), enlist("three")
    client, server = client_context(files(one)), server_context(files(two))
    with pytest.raises(ssl.SSLCertVerificationError, match="Hostname mismatch"):
        handshake(client, server, three.node)


@pytest.mark.parametrize("stranger_serves", [True, False])
def test_another_cluster_is_refused(enlist: Enlist, stranger_serves: bool) -> None:
    one, stranger = enlist("one"), enlist("stranger", create_authority("lab"))
    asking, serving = (one, stranger) if stranger_serves else (stranger, one)
    with pytest.raises(ssl.SSLError):
        handshake(
            client_context(files(asking)), server_context(files(serving)), SERVER_NAME
        )


def test_a_client_of_another_cluster_that_trusts_us_is_refused(enlist: Enlist) -> None:
    one, stranger = enlist("one"), enlist("stranger", create_authority("lab"))
    mixed = TlsMaterial(files(one).ca, files(stranger).cert, files(stranger).key)
    with pytest.raises(ssl.SSLError):
        handshake(client_context(mixed), server_context(files(one)), SERVER_NAME)


def test_a_client_without_a_certificate_is_refused(enlist: Enlist) -> None:
    one = enlist("one")
    bare = ssl.create_default_context(cafile=str(files(one).ca))
    with pytest.raises(ssl.SSLError):
        handshake(bare, server_context(files(one)), SERVER_NAME)


def test_missing_files_are_named(tmp_path: Path) -> None:
    tls = TlsMaterial(tmp_path / "ca", tmp_path / "cert", tmp_path / "key")
    with pytest.raises(AuthError, match=str(tmp_path)):
        client_context(tls)


class _Shows:
    def __init__(self, *names: str) -> None:
        self.names = names

    def getpeercert(self) -> dict[str, object]:
        return {"subject": tuple((("commonName", name),) for name in self.names)}


@pytest.mark.parametrize("names", [(), ("admin",), ("a" * 32, "b" * 32)])
def test_a_certificate_that_names_no_single_node_is_refused(
    names: tuple[str, ...],
) -> None:
    with pytest.raises(AuthError, match="names no node"):
        peer_node(_Shows(*names))


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "127.9.9.9", "::1", "[::1]", "localhost"]
)
def test_loopback_may_be_plain(host: str) -> None:
    assert is_loopback(host)
    check_exposure(host, None)


@pytest.mark.parametrize(
    "host", ["0.0.0.0", "::", "", "10.0.0.1", "localhost.example", "box", "127.1"]
)
def test_anything_else_needs_tls(host: str, tmp_path: Path) -> None:
    assert not is_loopback(host)
    with pytest.raises(ConfigError, match="without TLS"):
        check_exposure(host, None)
    check_exposure(host, TlsMaterial(tmp_path, tmp_path, tmp_path))
