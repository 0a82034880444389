"""The table of Req sockets: when one is kept, replaced, closed."""

from typing import Any

import pytest
import trio

from p2ptrain.errors import UnreachableError
from p2ptrain.net import peers as peers_module
from p2ptrain.net.peers import IN_FLIGHT_MAX, Peers

pytestmark = pytest.mark.net


@pytest.fixture
def peers() -> Any:
    made = Peers("tcp", 1024, None)
    yield made
    made.close()


async def test_an_address_keeps_its_socket(peers: Peers) -> None:
    with peers.use("127.0.0.1:1") as first:
        pass
    with peers.use("127.0.0.1:1") as again:
        assert again is first
    assert len(peers) == 1


async def test_a_retired_socket_lives_until_its_last_user_is_gone(peers: Peers) -> None:
    with peers.use("127.0.0.1:1") as first:
        with peers.use("127.0.0.1:1") as same:
            peers.retire("127.0.0.1:1", same)
            peers.retire("127.0.0.1:1", same)
        with peers.use("127.0.0.1:1") as second:
            assert second is not first
        assert len(peers) == 2
    assert len(peers) == 1
    peers.retire("127.0.0.1:1", first)  # late: the new one is not meant
    with peers.use("127.0.0.1:1") as third:
        assert third is second


async def test_sockets_are_bounded(
    peers: Peers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peers_module, "PEERS_MAX", 3)
    seen = []
    for port in (1, 2, 3, 1, 4):
        with peers.use(f"127.0.0.1:{port}") as peer:
            seen.append(peer)
    assert len(peers) == 3
    with peers.use("127.0.0.1:1") as kept:
        assert kept is seen[0]
    assert seen[1].retired  # port 2 was used least recently


async def test_requests_to_one_address_are_bounded(peers: Peers) -> None:
    with peers.use("127.0.0.1:1") as peer:
        peer.users = IN_FLIGHT_MAX
        with (
            pytest.raises(UnreachableError, match="under way"),
            peers.use("127.0.0.1:1"),
        ):
            pass
        peer.users = 1


async def test_after_closing_nothing_is_dialled(peers: Peers) -> None:
    peers.close()
    with pytest.raises(UnreachableError, match="closing"), peers.use("127.0.0.1:1"):
        await trio.lowlevel.checkpoint()
    assert len(peers) == 0
