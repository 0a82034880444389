"""A node's identity on disk."""

from pathlib import Path

import pytest

from p2ptrain.errors import AuthError, ConflictError
from p2ptrain.ids import is_node
from p2ptrain.security.authority import cert_pem, create_authority, key_pem, new_key
from p2ptrain.security.identity import (
    create_cluster,
    load_identity,
    material,
    plain_identity,
    save_identity,
)


def test_a_founder_has_all_files_to_itself(tmp_path: Path) -> None:
    folder = tmp_path / "security"
    identity = create_cluster(folder, "lab", ("127.0.0.1",))
    assert load_identity(folder) == identity
    assert identity.cluster == "lab"
    assert is_node(identity.node)
    assert len(identity.fingerprint) == 64
    names = {str(path.relative_to(folder)) for path in folder.rglob("*.*")}
    assert names == {
        "ca/ca.key",
        "ca/ca.pem",
        "tls/node.key",
        "tls/node.pem",
        "tls/ca.pem",
    }
    for path in folder.rglob("*"):
        assert path.stat().st_mode & 0o077 == 0


def test_a_second_cluster_is_refused_and_the_first_stays(tmp_path: Path) -> None:
    identity = create_cluster(tmp_path, "lab", ())
    with pytest.raises(ConflictError, match="already"):
        create_cluster(tmp_path, "other", ())
    assert load_identity(tmp_path) == identity


def test_a_founding_that_was_cut_off_can_not_pass_for_a_cluster(tmp_path: Path) -> None:
    create_cluster(tmp_path, "lab", ())
    material(tmp_path).cert.unlink()
    with pytest.raises(AuthError, match="has no certificate"):
        load_identity(tmp_path)


def test_no_identity_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(AuthError, match="p2ptrain join TOKEN@HOST:PORT"):
        load_identity(tmp_path)


def test_a_key_of_another_node_is_refused(tmp_path: Path) -> None:
    create_cluster(tmp_path, "lab", ())
    material(tmp_path).key.write_bytes(key_pem(new_key()))
    with pytest.raises(AuthError, match="is not the key of"):
        load_identity(tmp_path)


def test_an_authority_of_another_cluster_is_refused(tmp_path: Path) -> None:
    create_cluster(tmp_path, "lab", ())
    material(tmp_path).ca.write_bytes(cert_pem(create_authority("lab").cert))
    with pytest.raises(AuthError, match="not signed by this cluster"):
        load_identity(tmp_path)


def test_a_joined_node_has_its_files(tmp_path: Path) -> None:
    authority, key = create_authority("lab"), new_key()
    cert = authority.sign(key.public_key(), ())
    identity = save_identity(tmp_path, key, cert, authority.cert)
    assert identity == load_identity(tmp_path)
    assert not list(tmp_path.rglob("*.tmp"))


def test_a_plain_identity_is_drawn_once(tmp_path: Path) -> None:
    first = plain_identity(tmp_path / "a")
    assert plain_identity(tmp_path / "a") == first
    assert is_node(first.node)
    assert first.tls is None
    assert plain_identity(tmp_path / "b").node != first.node


def test_a_broken_plain_identity_is_named(tmp_path: Path) -> None:
    (tmp_path / "node.id").write_text("no id")
    with pytest.raises(AuthError, match=r"node\.id"):
        plain_identity(tmp_path)
