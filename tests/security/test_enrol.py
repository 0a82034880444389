"""Enrolment over real TLS on loopback: who is let in, and who is refused how."""

import secrets
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing
from cryptography.hazmat.primitives.serialization import Encoding

from p2ptrain.errors import AuthError, ConflictError, DeadlineError, UnreachableError
from p2ptrain.security import enrol as enrol_module
from p2ptrain.security.authority import load_authority
from p2ptrain.security.enrol import enrol
from p2ptrain.security.enrol_server import EnrolServer
from p2ptrain.security.handshake import (
    Challenge,
    Open,
    Transcript,
    open_server_context,
    receive_frame,
    send_frame,
)
from p2ptrain.security.identity import create_cluster, load_identity, material
from p2ptrain.security.tokens import Token, issue_token, parse_token

pytestmark = pytest.mark.net
HOST = "127.0.0.1"


@pytest.fixture
def founder(tmp_path: Path) -> Path:
    folder = tmp_path / "founder"
    create_cluster(folder, "lab", ("127.0.0.1",))
    return folder


async def listening(nursery: trio.Nursery, folder: Path) -> int:
    server = EnrolServer(folder, lambda: ("127.0.0.1:7000",))
    port = await nursery.start(server.serve, HOST, 0)
    assert isinstance(port, int)
    return port


async def test_a_token_lets_a_node_in(founder: Path, tmp_path: Path) -> None:
    async with trio.open_nursery() as nursery:
        port = await listening(nursery, founder)
        token = issue_token(founder, 60.0, 1)
        new = tmp_path / "new"
        enrolled = await enrol(token, HOST, port, new, "box")
        nursery.cancel_scope.cancel()
    first, second = load_identity(founder), load_identity(new)
    assert enrolled.identity == second
    assert enrolled.seeds == ("127.0.0.1:7000",)
    assert second.fingerprint == first.fingerprint
    assert second.cluster == "lab"
    assert second.node != first.node
    files = [path for path in new.rglob("*") if path.is_file()]
    assert {path.stat().st_mode & 0o777 for path in files} == {0o600}
    assert not (new / "ca").exists()


async def test_a_spent_token_is_refused(founder: Path, tmp_path: Path) -> None:
    async with trio.open_nursery() as nursery:
        port = await listening(nursery, founder)
        token = issue_token(founder, 60.0, 1)
        await enrol(token, HOST, port, tmp_path / "one", "one")
        with pytest.raises(AuthError, match="used up"):
            await enrol(token, HOST, port, tmp_path / "two", "two")
        nursery.cancel_scope.cancel()


async def test_two_at_once_cannot_share_one_use(founder: Path, tmp_path: Path) -> None:
    results: list[bool] = []

    async def attempt(index: int, token: str, port: int) -> None:
        try:
            await enrol(token, HOST, port, tmp_path / str(index), "x")
            results.append(True)
        except AuthError:
            results.append(False)

    async with trio.open_nursery() as nursery:
        port = await listening(nursery, founder)
        token = issue_token(founder, 60.0, 2)
        async with trio.open_nursery() as joiners:
            for index in range(5):
                joiners.start_soon(attempt, index, token, port)
        nursery.cancel_scope.cancel()
    assert sorted(results) == [False, False, False, True, True]


async def test_a_lost_answer_costs_no_second_use(
    founder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lost(*_: object) -> None:
        raise trio.BrokenResourceError

    new = tmp_path / "new"
    async with trio.open_nursery() as nursery:
        port = await listening(nursery, founder)
        token = issue_token(founder, 60.0, 1)
        with monkeypatch.context() as patch:
            # The connection breaks after the token was spent, before the certificate
            # is stored.
            patch.setattr(enrol_module, "_accepted", _break_on_grant(lost))
            with pytest.raises(UnreachableError):
                await enrol(token, HOST, port, new, "box")
        await enrol(token, HOST, port, new, "box")
        nursery.cancel_scope.cancel()
    assert load_identity(new)


def _break_on_grant(lost: Callable[..., None]) -> Callable[[Any], Any]:
    def accepted(frame: Any) -> Any:
        if type(frame).__name__ == "Grant":
            lost()
        return frame

    return accepted


async def test_an_expired_token_is_refused(founder: Path, tmp_path: Path) -> None:
    async with trio.open_nursery() as nursery:
        port = await listening(nursery, founder)
        token = issue_token(founder, 0.001, 1)
        with pytest.raises(AuthError, match="expired"):
            await enrol(token, HOST, port, tmp_path / "new", "box")
        nursery.cancel_scope.cancel()


async def test_a_wrong_secret_is_refused_by_the_joiner(
    founder: Path, tmp_path: Path
) -> None:
    async with trio.open_nursery() as nursery:
        port = await listening(nursery, founder)
        token = parse_token(issue_token(founder, 60.0, 1))
        wrong = Token(token.name, secrets.token_bytes(18), token.authority)
        with pytest.raises(AuthError, match="does not know this token"):
            await enrol(wrong.text, HOST, port, tmp_path / "new", "box")
        nursery.cancel_scope.cancel()


async def test_a_joiner_that_does_not_know_the_secret_gets_nothing(
    founder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A joiner that does not care whether the server knows the token.
    monkeypatch.setattr(enrol_module, "secrets", _Lenient())
    async with trio.open_nursery() as nursery:
        port = await listening(nursery, founder)
        token = parse_token(issue_token(founder, 60.0, 1))
        wrong = Token(token.name, b"x" * 18, token.authority)
        with pytest.raises(AuthError, match="token is wrong"):
            await enrol(wrong.text, HOST, port, tmp_path / "new", "box")
        nursery.cancel_scope.cancel()


class _Lenient:
    token_bytes = staticmethod(secrets.token_bytes)

    @staticmethod
    def compare_digest(*_: bytes) -> bool:
        return True


async def test_a_token_of_another_cluster_is_refused(
    founder: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    create_cluster(other, "lab", ())  # the same name proves nothing
    async with trio.open_nursery() as nursery:
        port = await listening(nursery, founder)
        theirs = parse_token(issue_token(other, 60.0, 1))
        ours = parse_token(issue_token(founder, 60.0, 1))
        mixed = Token(ours.name, ours.secret, theirs.authority)
        with pytest.raises(AuthError, match="another cluster"):
            await enrol(mixed.text, HOST, port, tmp_path / "new", "box")
        nursery.cancel_scope.cancel()


async def test_an_impostor_with_the_authoritys_certificate_learns_nothing(
    founder: Path, tmp_path: Path
) -> None:
    """It can show the public certificate, but not a certificate issued by it."""
    impostor = tmp_path / "impostor"
    create_cluster(impostor, "evil", ())
    seen: list[object] = []
    real = load_authority(founder).cert

    async def answer(stream: trio.SSLStream[trio.SocketStream]) -> None:
        opening = await receive_frame(stream, Open)
        assert isinstance(opening, Open)
        proof = Transcript(b"?", opening.nonce, b"n", b"").server_proof()
        data = real.public_bytes(Encoding.DER)
        await send_frame(stream, Challenge(data, b"n", proof))
        try:
            seen.append(await stream.receive_some(100))
        except trio.BrokenResourceError:
            seen.append(b"")

    async with trio.open_nursery() as nursery:
        listeners = await nursery.start(
            trio.serve_ssl_over_tcp,
            answer,
            0,
            open_server_context(material(impostor)),
        )
        port = listeners[0].transport_listener.socket.getsockname()[1]
        token = issue_token(founder, 60.0, 1)
        with pytest.raises(AuthError, match="not signed by this cluster"):
            await enrol(token, HOST, port, tmp_path / "new", "box")
        while not seen:
            await trio.testing.wait_all_tasks_blocked(0.01)
        nursery.cancel_scope.cancel()
    assert seen == [b""]  # neither request nor proof left the joiner
    assert not material(tmp_path / "new").cert.exists()


async def test_a_second_cluster_is_refused(founder: Path) -> None:
    token = issue_token(founder, 60.0, 1)
    with pytest.raises(ConflictError, match="already"):
        await enrol(token, HOST, 1, founder, "box")


async def test_nobody_listens(founder: Path, tmp_path: Path) -> None:
    token = issue_token(founder, 60.0, 1)
    with pytest.raises(UnreachableError, match=r"127\.0\.0\.1:1"):
        await enrol(token, HOST, 1, tmp_path / "new", "box")


async def test_a_silent_server_meets_the_deadline(
    founder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(enrol_module, "DEADLINE_S", 0.2)
    token = issue_token(founder, 60.0, 1)
    (listener,) = await trio.open_tcp_listeners(0, host=HOST)
    async with listener:
        port = listener.socket.getsockname()[1]
        with pytest.raises(DeadlineError, match="did not answer"):
            await enrol(token, HOST, port, tmp_path / "new", "box")


async def test_something_else_listens(founder: Path, tmp_path: Path) -> None:
    async def http(stream: trio.SocketStream) -> None:
        await stream.send_all(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    token = issue_token(founder, 60.0, 1)
    async with trio.open_nursery() as nursery:
        listeners = await nursery.start(trio.serve_tcp, http, 0)
        port = listeners[0].socket.getsockname()[1]
        with pytest.raises(UnreachableError):
            await enrol(token, HOST, port, tmp_path / "new", "box")
        nursery.cancel_scope.cancel()


def test_tls_1_3_or_nothing(founder: Path) -> None:
    context = open_server_context(material(founder))
    assert context.minimum_version is ssl.TLSVersion.TLSv1_3
