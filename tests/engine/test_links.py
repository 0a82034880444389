"""Links over socket pairs: two or three ranks, and what goes wrong between them."""

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from p2ptrain.engine.header import BEAT, BLAME, HEADER, META, PIECE, Header
from p2ptrain.engine.links import Ends, Links
from p2ptrain.errors import LinkLostError

pytestmark = pytest.mark.net


@contextmanager
def ring(world: int, stall_s: float = 5.0) -> Iterator[list[Links]]:
    """Ranks of view 7."""
    pairs = [socket.socketpair() for _ in range(world)]  # (out of rank, into next)
    made = [
        Links(
            Ends(
                incoming=pairs[(rank - 1) % world][1],
                outgoing=pairs[rank][0],
                previous=(rank - 1) % world,
                next=(rank + 1) % world,
            ),
            view=7,
            stall_s=stall_s,
        )
        for rank in range(world)
    ]
    try:
        yield made
    finally:
        for links in made:
            links.abort(-1, "over")
            links.close()


def receive(links: Links) -> tuple[Header, bytes]:
    header = links.receive_header()
    body = bytearray(header.length)
    links.receive_into(memoryview(body))
    return header, bytes(body)


@contextmanager
def raw(stall_s: float = 5.0) -> Iterator[tuple[Links, socket.socket, socket.socket]]:
    """Links of rank 0 of two, and the bare sockets of rank 1: (into 0, out of 0)."""
    into, incoming = socket.socketpair()
    outgoing, out = socket.socketpair()
    links = Links(Ends(incoming, outgoing, previous=1, next=1), 7, stall_s)
    try:
        yield links, into, out
    finally:
        links.abort(-1, "over")
        links.close()
        into.close()
        out.close()


def test_frames_arrive_as_they_were_sent() -> None:
    body = bytes(range(256)) * 4096  # does not fit a socket's buffers
    frames = [
        (Header(PIECE, 7, turn=1, start=5, length=len(body)), body),
        (Header(META, 7, turn=1, origin=3, length=2), b"ab"),
        (Header(META, 7, turn=2, length=0), b""),
    ]
    with ring(2) as (first, second):
        for header, data in frames:
            first.send(header, memoryview(data))
        assert [receive(second) for _ in frames] == frames


def test_both_directions_at_once_never_block_each_other() -> None:
    body = bytes(8 << 20)
    header = Header(PIECE, 7, length=len(body))
    with ring(2) as both:
        for links in both:
            links.send(header, memoryview(body))
        for links in both:
            assert receive(links)[0] == header


def test_idle_links_show_signs_of_life() -> None:
    with ring(2, stall_s=0.6) as (first, second):
        threading.Timer(1.5, first.send, (Header(META, 7), memoryview(b""))).start()
        assert second.receive_header().kind == META


def test_a_silent_previous_rank_is_lost_in_time() -> None:
    with raw(stall_s=0.3) as (links, _, _):
        began = time.monotonic()
        with pytest.raises(LinkLostError) as lost:
            links.receive_header()
        assert 0.25 < time.monotonic() - began < 2.0
        assert lost.value.rank == 1


def test_a_next_rank_that_computes_is_given_time() -> None:
    """It does not read, so the sender blocks; longer than ``stall_s``."""
    body = bytes(8 << 20)
    header = Header(PIECE, 7, length=len(body))
    with ring(2, stall_s=0.4) as (first, second):
        first.send(header, memoryview(body))
        time.sleep(1.2)  # what the next rank computes
        assert receive(second)[0] == header


def test_flush_returns_when_all_has_left() -> None:
    body = bytearray(8 << 20)
    with ring(2) as (first, second):
        first.send(Header(PIECE, 7, length=len(body)), memoryview(body))
        threading.Timer(0.3, lambda: got.append(receive(second)[1])).start()
        got: list[bytes] = []
        first.flush()
        body[:] = b"x" * len(body)
        while not got:
            threading.Event().wait(0.01)
        assert not any(got[0])


def test_flush_loses_a_next_rank_that_takes_nothing() -> None:
    body = bytes(8 << 20)
    with raw(stall_s=0.4) as (links, _, _):
        links.send(Header(PIECE, 7, length=len(body)), memoryview(body))
        with pytest.raises(LinkLostError, match="takes nothing") as lost:
            links.flush()
        assert lost.value.rank == 1


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"\x00" * 64, "not a ring frame"),
        (Header(PIECE, 8).pack(), "frame of view 8, this is 7"),
        (b"p2p", "closed"),
        (b"", "closed"),
    ],
)
def test_nonsense_and_endings_lose_the_link(data: bytes, problem: str) -> None:
    with raw() as (links, into, _):
        into.sendall(data)
        into.shutdown(socket.SHUT_WR)
        with pytest.raises(LinkLostError, match=problem) as lost:
            links.receive_header()
        assert lost.value.rank == 1
        with pytest.raises(LinkLostError, match=problem):
            links.receive_header()  # for good


def test_the_next_rank_is_told_whom_to_blame() -> None:
    with raw() as (links, into, out):
        into.close()
        with pytest.raises(LinkLostError):
            links.receive_header()
        data = b""
        while piece := out.recv(4096):
            data += piece
        blames = [
            Header.unpack(data[at : at + HEADER.size])
            for at in range(0, len(data) - HEADER.size + 1, HEADER.size)
        ]
        blame = next(header for header in blames if header.kind == BLAME)
        assert (blame.origin, blame.length) == (1, len("the connection was closed"))
        assert data.endswith(b"the connection was closed")


def test_news_of_a_loss_names_the_same_rank_all_around() -> None:
    """Rank 1 of 4 dies: rank 0 sees first that it cannot send, and must not shut down
    before the news of rank 2 has come around, or rank 3 would blame rank 0.
    """
    frame = (Header(META, 7), memoryview(b""))
    with ring(4) as links:
        found: dict[int, int] = {}

        def wait(rank: int) -> None:
            try:
                links[rank].receive_header()
            except LinkLostError as error:
                found[rank] = error.rank

        threads = {
            rank: threading.Thread(target=wait, args=(rank,)) for rank in (0, 2, 3)
        }
        threads[0].start()
        dead = links[1]._ends
        dead.outgoing.shutdown(socket.SHUT_RDWR)
        dead.incoming.shutdown(socket.SHUT_RDWR)
        links[0].send(*frame)
        time.sleep(0.05)
        assert links[0]._broken is None
        threads[3].start()
        threads[2].start()
        for thread in threads.values():
            thread.join(5)
        assert found == {0: 1, 2: 1, 3: 1}


def test_a_dead_next_rank_is_lost_even_without_news() -> None:
    with raw() as (links, into, out):
        out.close()
        stop = threading.Event()

        def live() -> None:
            while not stop.wait(0.1):
                try:
                    into.sendall(Header(BEAT, 7).pack())
                except OSError:
                    return

        thread = threading.Thread(target=live)
        thread.start()
        began = time.monotonic()
        with pytest.raises(LinkLostError) as lost:
            links.receive_header()
        assert time.monotonic() - began < 1.0
        assert lost.value.rank == 1
        stop.set()
        thread.join()


@pytest.mark.parametrize("act", ["receive", "flush"])
def test_abort_ends_every_wait(act: str) -> None:
    with raw() as (links, _, _):
        body = bytes(8 << 20)
        links.send(Header(PIECE, 7, length=len(body)), memoryview(body))
        threading.Timer(0.2, links.abort, (-1, "told to halt")).start()
        began = time.monotonic()
        with pytest.raises(LinkLostError, match="told to halt"):
            links.flush() if act == "flush" else links.receive_header()
        assert time.monotonic() - began < 1.5


def test_close_sends_what_is_queued() -> None:
    body = bytes(2 << 20)
    with ring(2) as (first, second):
        first.send(Header(PIECE, 7, length=len(body)), memoryview(body))
        threading.Thread(target=first.close).start()
        assert receive(second)[0].length == len(body)


def test_close_does_not_hurt_a_previous_rank_that_still_receives() -> None:
    """Rank 1 of 3 is done first; its unread signs of life must not reset rank 0."""
    with ring(3) as links:
        links[0].send(Header(META, 7), memoryview(b""))
        receive(links[1])
        done = threading.Thread(target=links[1].close)
        done.start()
        time.sleep(0.6)  # rank 0 sends signs of life meanwhile
        links[2].send(Header(META, 7, origin=2), memoryview(b""))
        assert receive(links[0])[0].origin == 2
        done.join()
