"""Tokens: their text, their life, and what the cluster keeps of them."""

import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2ptrain.errors import AuthError, ConfigError, StorageError
from p2ptrain.ids import NodeId
from p2ptrain.security import tokens
from p2ptrain.security.identity import create_cluster
from p2ptrain.security.tokens import (
    TOKENS_MAX,
    Token,
    issue_token,
    parse_token,
    spend_token,
    token_key,
)

NODE, OTHER = NodeId("a" * 32), NodeId("b" * 32)


@pytest.fixture
def founder(tmp_path: Path) -> Path:
    create_cluster(tmp_path, "lab", ())
    return tmp_path


@given(st.binary(min_size=4, max_size=4), st.binary(min_size=18, max_size=18))
def test_a_token_survives_its_text(name: bytes, secret: bytes) -> None:
    token = Token(name.hex(), secret, "ab" * 16)
    assert parse_token(token.text) == token
    assert len(token.text) == len("p2p1-") + 64


@given(st.integers(5, 68), st.sampled_from("abcdefghijklmnopqrstuvwxyz234567"))
def test_one_wrong_letter_is_noticed(index: int, letter: str) -> None:
    text = Token("00" * 4, b"s" * 18, "ab" * 16).text
    wrong = text[:index] + letter + text[index + 1 :]
    if wrong != text:
        with pytest.raises(AuthError, match="mistyped"):
            parse_token(wrong)


@given(st.text())
def test_any_text_is_a_token_or_an_error(text: str) -> None:
    with pytest.raises(AuthError):
        parse_token(text)
    with pytest.raises(AuthError):
        parse_token("p2p1-" + text)


def test_the_cluster_keeps_neither_token_nor_secret(founder: Path) -> None:
    text = issue_token(founder, 60.0, 1)
    token = parse_token(text)
    kept = (founder / "ca" / "tokens.json").read_text()
    assert text not in kept
    assert token.secret.hex() not in kept
    assert token_key(founder, token.name) == token.key
    assert (founder / "ca" / "tokens.json").stat().st_mode & 0o777 == 0o600


def test_uses_are_counted_by_node(founder: Path) -> None:
    name = parse_token(issue_token(founder, 60.0, 1)).name
    spend_token(founder, name, NODE)
    spend_token(founder, name, NODE)  # the same node asks again
    with pytest.raises(AuthError, match="used up"):
        spend_token(founder, name, OTHER)


def test_an_expired_token_is_gone(
    founder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = parse_token(issue_token(founder, 60.0, 5)).name
    real = tokens.time.time()
    monkeypatch.setattr(tokens.time, "time", lambda: real + 61.0)
    for attempt in (
        lambda: token_key(founder, name),
        lambda: spend_token(founder, name, NODE),
    ):
        with pytest.raises(AuthError, match="expired"):
            attempt()


@pytest.mark.parametrize(("ttl_s", "uses"), [(0.0, 1), (-1.0, 1), (1e9, 1), (60.0, 0)])
def test_a_senseless_token_is_refused(founder: Path, ttl_s: float, uses: int) -> None:
    with pytest.raises(ConfigError):
        issue_token(founder, ttl_s, uses)


def test_open_tokens_are_bounded(
    founder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokens, "TOKENS_MAX", 3)
    assert TOKENS_MAX > 3
    for _ in range(3):
        issue_token(founder, 60.0, 1)
    with pytest.raises(ConfigError, match="tokens are open"):
        issue_token(founder, 60.0, 1)


def test_a_node_without_the_authority_issues_none(tmp_path: Path) -> None:
    with pytest.raises(AuthError, match="does not hold"):
        issue_token(tmp_path, 60.0, 1)


def test_a_broken_file_is_named(founder: Path) -> None:
    (founder / "ca" / "tokens.json").write_text("{")
    with pytest.raises(StorageError, match=r"tokens\.json"):
        issue_token(founder, 60.0, 1)


def test_threads_do_not_lose_each_others_tokens(founder: Path) -> None:
    texts: list[str] = []

    def issue() -> None:
        texts.extend(issue_token(founder, 60.0, 1) for _ in range(5))

    threads = [threading.Thread(target=issue) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    names = {parse_token(text).name for text in texts}
    assert len(names) == 20
    for name in names:
        assert token_key(founder, name)
