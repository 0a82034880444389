"""NNG's transport: identity, hostile peers, dead peers, and what it leaves behind."""

import gc
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import trio
from cryptography import x509
from cryptography.hazmat.primitives import hashes

from p2ptrain.errors import AuthError, ConfigError, UnreachableError
from p2ptrain.ids import NodeId
from p2ptrain.net.nng import NngTransport
from p2ptrain.security.authority import (
    Authority,
    cert_pem,
    create_authority,
    key_pem,
    new_key,
)
from p2ptrain.security.identity import Identity
from p2ptrain.tls import SERVER_NAME, TlsMaterial

pytestmark = pytest.mark.net
BYTES_MAX = 1 << 20
HOST = "127.0.0.1"
Enlist = Callable[[str], Identity]


async def echo(body: bytes, _: NodeId | None) -> bytes:
    return body


def plain(bytes_max: int = BYTES_MAX) -> NngTransport:
    return NngTransport(HOST, 0, bytes_max, None)


def secure(tls: TlsMaterial | None) -> NngTransport:
    return NngTransport(HOST, 0, BYTES_MAX, tls)


async def test_the_handler_sees_who_asks(enlist: Enlist) -> None:
    seen: list[NodeId | None] = []

    async def note(body: bytes, peer: NodeId | None) -> bytes:
        seen.append(peer)
        return body

    one, two, three = (enlist(name) for name in ("one", "two", "three"))
    async with (
        secure(one.tls) as server,
        secure(two.tls) as second,
        secure(three.tls) as third,
        trio.open_nursery() as nursery,
    ):
        await nursery.start(server.serve, note)
        for asker in (second, third, second):
            await asker.request(server.address, b"x", 5.0)
        nursery.cancel_scope.cancel()
    assert seen == [two.node, three.node, two.node]


async def test_a_plain_handler_sees_nobody() -> None:
    async def tell(_: bytes, peer: NodeId | None) -> bytes:
        return repr(peer).encode()

    async with plain() as server, plain() as asker, trio.open_nursery() as nursery:
        await nursery.start(server.serve, tell)
        assert await asker.request(server.address, b"x", 5.0) == b"None"
        nursery.cancel_scope.cancel()


def forge(folder: Path, authority: Authority, **change: Any) -> TlsMaterial:
    """Make a certificate that differs from a good one in one way."""
    key = new_key()
    good = authority.sign(key.public_key(), ())
    name = change.get("name")
    subject = (
        x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
        if name
        else good.subject
    )
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(authority.cert.subject)
        .public_key(key.public_key())
        .serial_number(7)
        .not_valid_before(datetime.now(UTC) - timedelta(days=9))
        .not_valid_after(change.get("until", good.not_valid_after_utc))
        .add_extension(
            x509.SubjectAlternativeName([x509.DNSName(change.get("dns", SERVER_NAME))]),
            critical=False,
        )
    )
    folder.mkdir()
    files = TlsMaterial(folder / "ca.pem", folder / "node.pem", folder / "node.key")
    files.ca.write_bytes(cert_pem(change.get("trust", authority.cert)))
    files.cert.write_bytes(cert_pem(builder.sign(authority.key, hashes.SHA256())))
    files.key.write_bytes(key_pem(key))
    return files


async def served(server_tls: TlsMaterial | None, client: NngTransport) -> list[bytes]:
    """Ask once; return what the handler got before the asker was refused."""
    seen: list[bytes] = []

    async def note(body: bytes, _: NodeId | None) -> bytes:
        seen.append(body)
        return body

    async with secure(server_tls) as server, trio.open_nursery() as nursery:
        await nursery.start(server.serve, note)
        with pytest.raises(UnreachableError):
            await client.request(server.address, b"x", 0.5)
        nursery.cancel_scope.cancel()
    return seen


async def test_a_client_of_another_cluster_is_refused(
    enlist: Enlist, tmp_path: Path, authority: Authority
) -> None:
    # It trusts our authority; we do not trust its own.
    stranger = forge(tmp_path / "x", create_authority("lab"), trust=authority.cert)
    async with secure(stranger) as client:
        assert await served(enlist("one").tls, client) == []


async def test_a_server_of_another_cluster_is_refused(
    enlist: Enlist, tmp_path: Path, authority: Authority
) -> None:
    stranger = forge(tmp_path / "x", create_authority("lab"), trust=authority.cert)
    async with secure(enlist("one").tls) as client:
        assert await served(stranger, client) == []


async def test_an_expired_client_is_refused(
    enlist: Enlist, tmp_path: Path, authority: Authority
) -> None:
    past = datetime.now(UTC) - timedelta(days=2)
    expired = forge(tmp_path / "x", authority, until=past)
    async with secure(expired) as client:
        assert await served(enlist("one").tls, client) == []


async def test_an_expired_server_is_refused(
    enlist: Enlist, tmp_path: Path, authority: Authority
) -> None:
    past = datetime.now(UTC) - timedelta(days=2)
    expired = forge(tmp_path / "x", authority, until=past)
    async with secure(enlist("one").tls) as client:
        assert await served(expired, client) == []


async def test_a_name_that_is_no_node_is_refused(
    enlist: Enlist, tmp_path: Path, authority: Authority
) -> None:
    odd = forge(tmp_path / "x", authority, name="admin")
    async with secure(odd) as client:
        assert await served(enlist("one").tls, client) == []


async def test_a_server_without_the_common_name_is_refused(
    enlist: Enlist, tmp_path: Path, authority: Authority
) -> None:
    odd = forge(tmp_path / "x", authority, dns="elsewhere")
    async with secure(enlist("one").tls) as client:
        assert await served(odd, client) == []


async def test_a_client_without_a_certificate_is_refused(enlist: Enlist) -> None:
    async with plain() as client:
        assert await served(enlist("one").tls, client) == []


async def test_a_tls_client_does_not_talk_to_a_plain_server(enlist: Enlist) -> None:
    async with secure(enlist("one").tls) as client:
        assert await served(None, client) == []


def test_plain_beyond_loopback_does_not_start() -> None:
    with pytest.raises(ConfigError, match="without TLS"):
        NngTransport("0.0.0.0", 0, BYTES_MAX, None)


async def test_a_taken_port_is_named() -> None:
    async with plain() as first:
        port = int(first.address.rsplit(":", 1)[1])
        second = NngTransport(HOST, port, BYTES_MAX, None)
        with pytest.raises(ConfigError, match=str(port)):
            await second.start()


async def test_an_address_that_is_not_ours_is_named(enlist: Enlist) -> None:
    elsewhere = NngTransport("203.0.113.9", 1, BYTES_MAX, enlist("one").tls)
    with pytest.raises(ConfigError, match=r"203\.0\.113\.9"):
        await elsewhere.start()


def test_missing_certificates_are_named(tmp_path: Path) -> None:
    tls = TlsMaterial(tmp_path / "ca", tmp_path / "cert", tmp_path / "key")
    with pytest.raises(AuthError, match=str(tmp_path)):
        secure(tls)


def test_a_broken_certificate_is_named(enlist: Enlist) -> None:
    tls = enlist("one").tls
    assert tls is not None
    tls.cert.write_text("nonsense")
    with pytest.raises(AuthError, match="cannot load"):
        secure(tls)


async def test_the_port_is_free_after_closing() -> None:
    async with plain() as first:
        port = int(first.address.rsplit(":", 1)[1])
    async with NngTransport(HOST, port, BYTES_MAX, None) as second:
        assert second.address == f"{HOST}:{port}"


@pytest.mark.parametrize("address", ["", "nonsense", "a b:1", "host:99999", "x" * 300])
async def test_a_senseless_address_is_unreachable(address: str) -> None:
    async with plain() as asker:
        with pytest.raises(UnreachableError):
            await asker.request(address, b"x", 0.2)


async def test_a_restarted_peer_is_reached_at_once() -> None:
    async with plain() as asker:
        async with plain() as server, trio.open_nursery() as nursery:
            address = server.address
            await nursery.start(server.serve, echo)
            assert await asker.request(address, b"x", 2.0) == b"x"
            nursery.cancel_scope.cancel()
        with pytest.raises(UnreachableError):
            await asker.request(address, b"x", 0.1)
        port = int(address.rsplit(":", 1)[1])
        async with (
            NngTransport(HOST, port, BYTES_MAX, None) as again,
            trio.open_nursery() as nursery,
        ):
            await nursery.start(again.serve, echo)
            with trio.fail_after(1.0):
                assert await asker.request(address, b"y", 1.0) == b"y"
            nursery.cancel_scope.cancel()


async def test_a_lost_connection_fails_at_once_and_is_not_repeated() -> None:
    seen: list[bytes] = []
    arrived = trio.Event()

    async def note(body: bytes, _: NodeId | None) -> bytes:
        seen.append(body)
        if len(seen) == 1:
            arrived.set()
            await trio.sleep_forever()
        return body

    async with plain() as asker:
        async with plain() as server, trio.open_nursery() as nursery:
            port = int(server.address.rsplit(":", 1)[1])
            await nursery.start(server.serve, note)
            started = trio.current_time()

            async def ask() -> None:
                with pytest.raises(UnreachableError, match="lost"):
                    await asker.request(f"{HOST}:{port}", b"once", 30.0)

            async with trio.open_nursery() as asking:
                asking.start_soon(ask)
                await arrived.wait()
                await server.aclose()
            assert trio.current_time() - started < 2.0
            nursery.cancel_scope.cancel()
        async with (
            NngTransport(HOST, port, BYTES_MAX, None) as again,
            trio.open_nursery() as nursery,
        ):
            await nursery.start(again.serve, note)
            assert await asker.request(f"{HOST}:{port}", b"twice", 2.0) == b"twice"
            nursery.cancel_scope.cancel()
    assert seen == [b"once", b"twice"]


async def test_a_message_over_the_bound_takes_no_memory_and_harms_nobody() -> None:
    async with (
        plain(4096) as server,
        plain() as large,
        plain(4096) as small,
        trio.open_nursery() as nursery,
    ):
        await nursery.start(server.serve, echo)
        with pytest.raises(UnreachableError):
            await large.request(server.address, bytes(BYTES_MAX), 1.0)
        assert await small.request(server.address, bytes(4096), 2.0) == bytes(4096)
        nursery.cancel_scope.cancel()


async def test_a_bare_socket_that_claims_gigabytes_is_dropped() -> None:
    async with plain() as server, plain() as asker, trio.open_nursery() as nursery:
        await nursery.start(server.serve, echo)
        host, port = server.address.rsplit(":", 1)
        before = resident_mb()
        async with await trio.open_tcp_stream(host, int(port)) as stream:
            await stream.send_all(b"\0SP\0\0\x30\0\0")  # NNG's greeting of a Req
            assert await stream.receive_some(8) == b"\0SP\0\0\x31\0\0"
            await stream.send_all((4 << 30).to_bytes(8, "big") + b"x")
            with trio.fail_after(2.0), suppress(trio.BrokenResourceError):
                assert await stream.receive_some(1) == b""
        assert resident_mb() - before < 20
        assert await asker.request(server.address, b"x", 2.0) == b"x"
        nursery.cancel_scope.cancel()


async def test_a_client_that_takes_no_replies_does_not_stop_the_server() -> None:
    async with plain() as server, plain() as asker, trio.open_nursery() as nursery:
        await nursery.start(server.serve, lambda _, __: large_reply())
        host, port = server.address.rsplit(":", 1)
        async with await trio.open_tcp_stream(host, int(port)) as stream:
            await stream.send_all(b"\0SP\0\0\x30\0\0")
            for index in range(40):
                body = (0x80000000 + index).to_bytes(4, "big")
                await stream.send_all(len(body).to_bytes(8, "big") + body)
            for _ in range(5):
                assert len(await asker.request(server.address, b"x", 2.0)) == BYTES_MAX
        nursery.cancel_scope.cancel()


async def large_reply() -> bytes:
    return bytes(BYTES_MAX)


async def test_silent_connections_do_not_keep_others_out(enlist: Enlist) -> None:
    one, two = enlist("one"), enlist("two")
    async with (
        secure(one.tls) as server,
        secure(two.tls) as asker,
        trio.open_nursery() as nursery,
    ):
        await nursery.start(server.serve, echo)
        host, port = server.address.rsplit(":", 1)
        silent = [socket.create_connection((host, int(port))) for _ in range(50)]
        assert await asker.request(server.address, b"x", 2.0) == b"x"
        for one_of_them in silent:
            one_of_them.close()
        nursery.cancel_scope.cancel()


def resident_mb() -> float:
    gc.collect()
    with Path("/proc/self/statm").open() as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE") / 1e6


def tasks() -> int:
    return len(list(Path("/proc/self/task").iterdir()))


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.fixture(params=["closed", "silent"])
def dead(request: pytest.FixtureRequest) -> Iterator[str]:
    """An address where nobody listens, or one that is silent and full."""
    if request.param == "closed":
        yield "127.0.0.1:1"
        return
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)  # a backlog that is soon full: SYNs are dropped from then on
        yield f"127.0.0.1:{listener.getsockname()[1]}"


@pytest.mark.slow
async def test_two_thousand_timeouts_leave_nothing_behind(dead: str) -> None:
    body, address = bytes(BYTES_MAX // 2), dead

    async def ask(asker: NngTransport, count: int) -> None:
        for _ in range(count):
            with pytest.raises(UnreachableError):
                await asker.request(address, body, 0.03)

    async def round_of(asker: NngTransport, count: int) -> None:
        async with trio.open_nursery() as nursery:
            for _ in range(20):
                nursery.start_soon(ask, asker, count // 20)

    async with plain() as asker:
        await round_of(asker, 400)
        memory, files, threads = resident_mb(), descriptors(), tasks()
        await round_of(asker, 2000)
        assert resident_mb() - memory < 20  # 1 GB went through
        assert descriptors() - files <= 3
        assert tasks() <= threads  # other tests' threads may end meanwhile


@pytest.mark.slow
async def test_a_thousand_cancels_leave_nothing_behind() -> None:
    body = bytes(BYTES_MAX // 2)

    async def never(_: bytes, __: NodeId | None) -> bytes:
        await trio.sleep_forever()
        raise AssertionError

    async def ask(asker: NngTransport, address: str, count: int) -> None:
        for index in range(count):
            with trio.move_on_after(0.0005 * (index % 10)):
                await asker.request(address, body, 30.0)

    async with plain() as asker, plain() as server, trio.open_nursery() as nursery:
        await nursery.start(server.serve, never)
        # The server's loops are busy after 64 requests, so later sends wait and are
        # cancelled while they wait.
        for count in (20, 100):
            async with trio.open_nursery() as askers:
                for _ in range(10):
                    askers.start_soon(ask, asker, server.address, count)
            if count == 20:
                memory, files = resident_mb(), descriptors()
        assert resident_mb() - memory < 60
        assert descriptors() - files <= 3
        nursery.cancel_scope.cancel()


CHILD = """
import sys, trio
from p2ptrain.net.nng import NngTransport

async def echo(body, _):
    return body

async def main():
    async with NngTransport("127.0.0.1", 0, 4096, None) as server:
        async with trio.open_nursery() as nursery:
            await nursery.start(server.serve, echo)
            print(server.address, flush=True)
            await trio.to_thread.run_sync(sys.stdin.readline)
            nursery.cancel_scope.cancel()

trio.run(main)
"""


def open_child() -> tuple[subprocess.Popen[str], str]:
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdout is not None
    return child, child.stdout.readline().strip()


@pytest.mark.processes
async def test_a_killed_peer_and_a_frozen_one_are_noticed_in_time() -> None:
    child, address = await trio.to_thread.run_sync(open_child)
    async with plain(4096) as asker:
        assert await asker.request(address, b"x", 5.0) == b"x"
        child.send_signal(signal.SIGSTOP)
        started = trio.current_time()
        with pytest.raises(UnreachableError):
            await asker.request(address, b"x", 0.3)
        assert trio.current_time() - started < 0.6
        child.send_signal(signal.SIGCONT)
        assert await asker.request(address, b"y", 2.0) == b"y"
        child.kill()
        started = trio.current_time()
        with pytest.raises(UnreachableError):
            await asker.request(address, b"x", 1.0)
        assert trio.current_time() - started < 1.5
    child.communicate()


@pytest.mark.processes
async def test_a_process_that_used_nng_ends_cleanly() -> None:
    child, address = await trio.to_thread.run_sync(open_child)
    async with plain(4096) as asker:
        await asker.request(address, b"x", 5.0)
        _, problem = await trio.to_thread.run_sync(child.communicate, "\n")
    assert child.returncode == 0
    assert not problem


@pytest.mark.processes
async def test_who_closes_its_connection_is_told_at_once() -> None:
    child, address = await trio.to_thread.run_sync(open_child)
    lost: list[str] = []
    told = trio.Event()

    def note(gone: str) -> None:
        lost.append(gone)
        told.set()

    async with plain() as asker:
        asker.on_lost(note)
        assert await asker.request(address, b"x", 5.0) == b"x"
        await trio.sleep(0.2)
        assert lost == []
        child.kill()
        with trio.fail_after(0.5):
            await told.wait()
        assert lost == [address]
        with pytest.raises(UnreachableError):
            await asker.request(address, b"x", 0.2)
    await trio.sleep(0.1)
    assert lost == [address]  # closing our own end is no loss
    child.communicate()
