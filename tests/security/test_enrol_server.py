"""The enrolment server against joiners that do not keep to the protocol."""

import ssl
from contextlib import suppress
from pathlib import Path

import pytest
import trio

from p2ptrain.errors import AuthError, ConfigError, UnreachableError
from p2ptrain.security import enrol_server
from p2ptrain.security.enrol import enrol
from p2ptrain.security.enrol_server import FAILURES_MAX, EnrolServer, Failures
from p2ptrain.security.handshake import (
    WIRE_VERSION,
    Challenge,
    Open,
    Refusal,
    open_client_context,
    receive_frame,
    send_frame,
)
from p2ptrain.security.identity import create_cluster, load_identity
from p2ptrain.security.tokens import issue_token

pytestmark = pytest.mark.net
HOST = "127.0.0.1"


@pytest.fixture
def founder(tmp_path: Path) -> Path:
    folder = tmp_path / "founder"
    create_cluster(folder, "lab", ())
    return folder


async def dial(port: int) -> trio.SSLStream[trio.SocketStream]:
    context: ssl.SSLContext = open_client_context()
    return await trio.open_ssl_over_tcp_stream(HOST, port, ssl_context=context)


async def sentence_for(port: int, data: bytes) -> str:
    async with await dial(port) as stream:
        await stream.send_all(data)
        frame = await receive_frame(stream, Challenge)
        assert isinstance(frame, Refusal)
        return frame.sentence


async def test_nonsense_is_refused_with_a_sentence(founder: Path) -> None:
    async with trio.open_nursery() as nursery:
        server = EnrolServer(founder, lambda: ())
        port = await nursery.start(server.serve, HOST, 0)
        huge = (2**31).to_bytes(4, "little")
        assert "at most 16384" in await sentence_for(port, huge)
        assert "CBOR" in await sentence_for(port, b"\x02\0\0\0\xff\xff")
        nursery.cancel_scope.cancel()


async def test_another_version_is_named(founder: Path) -> None:
    async with trio.open_nursery() as nursery:
        port = await nursery.start(EnrolServer(founder, lambda: ()).serve, HOST, 0)
        async with await dial(port) as stream:
            await send_frame(stream, Open(WIRE_VERSION + 8, "0" * 8, b"n"))
            frame = await receive_frame(stream, Challenge)
        assert isinstance(frame, Refusal)
        assert "version 1" in frame.sentence
        assert "9" in frame.sentence
        nursery.cancel_scope.cancel()


async def test_silent_joiners_do_not_keep_others_out(
    founder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(enrol_server, "DEADLINE_S", 0.3)
    async with trio.open_nursery() as nursery:
        port = await nursery.start(EnrolServer(founder, lambda: ()).serve, HOST, 0)
        silent = [await trio.open_tcp_stream(HOST, port) for _ in range(20)]
        token = issue_token(founder, 60.0, 1)
        while not (tmp_path / "new" / "tls" / "node.pem").exists():
            # The server may drop us together with the others: then we try again.
            with suppress(UnreachableError), trio.fail_after(5):
                await enrol(token, HOST, port, tmp_path / "new", "box")
        assert load_identity(tmp_path / "new")
        for stream in silent:
            with trio.fail_after(5), suppress(trio.BrokenResourceError):
                assert await stream.receive_some(1) == b""
            await stream.aclose()
        nursery.cancel_scope.cancel()


async def test_a_guesser_is_turned_away(founder: Path) -> None:
    async with trio.open_nursery() as nursery:
        port = await nursery.start(EnrolServer(founder, lambda: ()).serve, HOST, 0)
        for _ in range(FAILURES_MAX + 1):
            await sentence_for(port, b"\x01\0\0\0\xff")
        with pytest.raises(trio.BrokenResourceError):
            await sentence_for(port, b"\x01\0\0\0\xff")
        nursery.cancel_scope.cancel()


def test_failures_are_forgiven_and_bounded() -> None:
    failures = Failures()
    for _ in range(FAILURES_MAX + 1):
        failures.add("a", 0.0)
    assert failures.blocked("a", 0.0)
    assert failures.blocked("a", 5.9)
    assert not failures.blocked("a", 6.1)
    assert not failures.blocked("b", 0.0)
    for index in range(5000):
        failures.add(str(index), 0.0)
    assert len(failures._until) == enrol_server.SOURCES_MAX


async def test_without_the_authority_it_does_not_start(tmp_path: Path) -> None:
    with pytest.raises(AuthError, match="does not hold"):
        await EnrolServer(tmp_path, lambda: ()).serve(HOST, 0)


async def test_a_taken_port_is_named(founder: Path) -> None:
    (listener,) = await trio.open_tcp_listeners(0, host=HOST)
    async with listener:
        port = listener.socket.getsockname()[1]
        with pytest.raises(ConfigError, match=f"127.0.0.1:{port}"):
            await EnrolServer(founder, lambda: ()).serve(HOST, port)
