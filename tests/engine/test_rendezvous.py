"""Ranks that meet, and strangers who come by."""

import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from p2ptrain import codec
from p2ptrain.engine import rendezvous
from p2ptrain.engine.links import Ends
from p2ptrain.engine.rendezvous import Greeting, Place, RingListener, meet
from p2ptrain.errors import ConfigError, LinkLostError
from p2ptrain.ids import NodeId
from p2ptrain.messages.session import RingSeat
from p2ptrain.security.authority import Authority, create_authority, new_key
from p2ptrain.security.identity import Identity, save_identity

pytestmark = pytest.mark.net

NODES = tuple(NodeId(f"{rank:032x}") for rank in range(5))
Listen = Callable[..., RingListener]


@pytest.fixture
def listen() -> Iterator[Listen]:
    made: list[RingListener] = []

    def one(identity: Identity | None = None) -> RingListener:
        tls = identity.tls if identity else None
        made.append(RingListener("127.0.0.1", (0, 0), tls))
        return made[-1]

    yield one
    for listener in made:
        listener.close()


@pytest.fixture
def enlist(tmp_path: Path) -> Callable[..., Identity]:
    ours = create_authority("lab")

    def make(name: str, authority: Authority = ours) -> Identity:
        key = new_key()
        cert = authority.sign(key.public_key(), ())
        return save_identity(tmp_path / name, key, cert, authority.cert)

    return make


def seats(
    listeners: list[RingListener], nodes: tuple[NodeId, ...] = NODES
) -> tuple[RingSeat, ...]:
    return tuple(
        RingSeat(node, 1, f"127.0.0.1:{listener.port}")
        for node, listener in zip(nodes, listeners, strict=False)
    )


class Meeting(threading.Thread):
    """One rank's way to its links."""

    def __init__(self, listener: RingListener, place: Place, timeout_s: float) -> None:
        super().__init__(daemon=True)
        self.stop = threading.Event()
        self.outcome: Ends | Exception | None = None
        self._args = (listener, place, timeout_s, self.stop)
        self.start()

    def run(self) -> None:
        try:
            self.outcome = meet(*self._args)
        except Exception as error:  # noqa: BLE001  # the test looks at it
            self.outcome = error

    def ends(self) -> Ends:
        self.join(15)
        assert isinstance(self.outcome, Ends), self.outcome
        return self.outcome

    def error(self) -> Exception:
        self.join(15)
        assert isinstance(self.outcome, Exception), self.outcome
        return self.outcome


def all_meet(
    listeners: list[RingListener], view: int = 1, timeout_s: float = 10.0
) -> list[Meeting]:
    table = seats(listeners)
    return [
        Meeting(listener, Place("s-1", view, rank, table), timeout_s)
        for rank, listener in enumerate(listeners)
    ]


def check_ring(meetings: list[Meeting]) -> None:
    """Each rank's bytes must arrive at the next one, then close."""
    ends = [meeting.ends() for meeting in meetings]
    for rank, mine in enumerate(ends):
        mine.outgoing.settimeout(5)
        mine.outgoing.sendall(bytes([rank]))
    for rank, mine in enumerate(ends):
        mine.incoming.settimeout(5)
        assert mine.previous == (rank - 1) % len(ends)
        assert mine.incoming.recv(1) == bytes([mine.previous])
    for mine in ends:
        mine.incoming.close()
        mine.outgoing.close()


@pytest.mark.parametrize("world", [2, 3, 5])
def test_ranks_meet_again_and_again(listen: Listen, world: int) -> None:
    listeners = [listen() for _ in range(world)]
    for view in range(1, 4):
        check_ring(all_meet(listeners, view))


def test_ranks_meet_over_tls(listen: Listen, enlist: Callable[..., Identity]) -> None:
    people = [enlist(name) for name in "abc"]
    listeners = [listen(person) for person in people]
    table = seats(listeners, tuple(person.node for person in people))
    check_ring(
        [
            Meeting(listener, Place("s-1", 1, rank, table), 10)
            for rank, listener in enumerate(listeners)
        ]
    )


@pytest.mark.parametrize("fraud", ["another member", "another authority", "plain"])
def test_tls_admits_the_owner_of_the_seat_only(
    listen: Listen, enlist: Callable[..., Identity], fraud: str
) -> None:
    first, second, mallory = (enlist(name) for name in "abm")
    if fraud == "another authority":
        mallory = enlist("m2", create_authority("theirs"))
    listeners = [
        listen(first),
        listen(None if fraud == "plain" else mallory),
    ]
    table = seats(listeners, (first.node, second.node))
    meetings = [
        Meeting(listener, Place("s-1", 1, rank, table), 1.0)
        for rank, listener in enumerate(listeners)
    ]
    for meeting in meetings:
        assert isinstance(meeting.error(), LinkLostError)


def test_a_member_cannot_greet_in_the_name_of_another(
    listen: Listen, enlist: Callable[..., Identity]
) -> None:
    first, second, mallory = (enlist(name) for name in "abm")
    listener = listen(first)
    table = seats([listener, listener], (first.node, second.node))
    place = Place("s-1", 1, 0, table)
    for person, admitted in ((mallory, False), (second, True)):
        assert person.tls is not None
        greeting = Greeting("s-1", 1, 1, second.node)
        connection = rendezvous._dial(person.tls, table[0], greeting)
        until = time.monotonic() + 1.0
        if admitted:
            listener.take(place, until, threading.Event()).close()
        else:
            with pytest.raises(LinkLostError):
                listener.take(place, until, threading.Event())
        connection.close()


def test_a_rank_that_is_still_at_an_older_view_is_waited_for(listen: Listen) -> None:
    """Rank 1 lets rank 0's connection of view 2 go, for it looks for view 1's."""
    listeners = [listen(), listen()]
    table = seats(listeners)
    old = Meeting(listeners[1], Place("s-1", 1, 1, table), 10)
    new = Meeting(listeners[0], Place("s-1", 2, 0, table), 10)
    time.sleep(0.3)  # both are busy with views that the other is not at
    old.stop.set()
    assert isinstance(old.error(), LinkLostError)
    check_ring([new, Meeting(listeners[1], Place("s-1", 2, 1, table), 10)])


def greet(listener: RingListener, greeting: Greeting) -> socket.socket:
    body = codec.encode(codec.to_plain(greeting))
    stranger = socket.create_connection(("127.0.0.1", listener.port), timeout=5)
    stranger.sendall(struct.pack("<I", len(body)) + body)
    return stranger


def test_garbage_and_stale_greetings_do_not_keep_ranks_apart(listen: Listen) -> None:
    listeners = [listen(), listen()]
    port = listeners[0].port
    strangers = [
        socket.create_connection(("127.0.0.1", port), timeout=5) for _ in range(4)
    ]
    strangers[0].sendall(b"GET / HTTP/1.1\r\n\r\n")
    strangers[1].sendall(b"\xff\xff\xff\x7f")
    strangers[2].sendall(b"\x03\x00\x00\x00abc")
    good = Greeting("s-1", 1, 1, NODES[1])
    wrongs = (
        Greeting("s-2", 1, 1, NODES[1]),
        Greeting("s-1", 2, 1, NODES[1]),
        Greeting("s-1", 1, 0, NODES[1]),
        Greeting("s-1", 1, 1, NODES[2]),
        *(Greeting("s-1", 9, 1, NODES[1]) for _ in range(30)),
    )
    strangers += [greet(listeners[0], wrong) for wrong in wrongs]
    gone = greet(listeners[0], good)
    gone.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    check_ring(all_meet(listeners, view=3))
    gone.close()
    for stranger in strangers:
        stranger.close()


def test_a_flood_of_silent_strangers_is_bounded(
    listen: Listen, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rendezvous, "GREETING_S", 0.5)
    listeners = [listen(), listen()]
    before = threading.active_count()
    strangers = [
        socket.create_connection(("127.0.0.1", listeners[0].port), timeout=5)
        for _ in range(3 * rendezvous.STRANGERS_MAX)
    ]
    assert threading.active_count() - before <= rendezvous.STRANGERS_MAX
    check_ring(all_meet(listeners))
    for stranger in strangers:
        stranger.close()


def drip(stranger: socket.socket) -> None:
    for _ in range(100):
        stranger.sendall(b"x")
        time.sleep(0.05)


def test_bytes_that_drip_are_cut_off(
    listen: Listen, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rendezvous, "GREETING_S", 0.4)
    stranger = socket.create_connection(("127.0.0.1", listen().port), timeout=5)
    stranger.sendall(b"\xff\x00\x00\x00")
    began = time.monotonic()
    with pytest.raises((BrokenPipeError, ConnectionResetError)):
        drip(stranger)
    assert time.monotonic() - began < 2.0
    stranger.close()


def test_who_does_not_come_is_named(listen: Listen) -> None:
    listeners = [listen(), listen(), listen()]
    table = seats(listeners)
    meetings = [
        Meeting(listeners[rank], Place("s-1", 1, rank, table), 0.6) for rank in (0, 2)
    ]
    problems = {error.rank for error in (m.error() for m in meetings)}  # type: ignore[attr-defined]
    assert 1 in problems
    assert "did not" in str(meetings[0].error())


def test_a_seat_without_a_port_is_lost_not_a_crash(listen: Listen) -> None:
    table = (RingSeat(NODES[0], 1, ""), RingSeat(NODES[1], 1, "nowhere"))
    error = Meeting(listen(), Place("s-1", 1, 0, table), 0.3).error()
    assert isinstance(error, LinkLostError)


def test_stop_ends_a_meeting(listen: Listen) -> None:
    listeners = [listen(), listen()]
    meeting = Meeting(listeners[0], Place("s-1", 1, 0, seats(listeners)), 30)
    began = time.monotonic()
    meeting.stop.set()
    assert isinstance(meeting.error(), LinkLostError)
    assert time.monotonic() - began < 2


def test_ports_of_a_range_are_taken_in_turn() -> None:
    first = RingListener("127.0.0.1", (0, 0), None)
    port = first.port
    with pytest.raises(ConfigError, match=f"{port}-{port} on 127.0.0.1"):
        RingListener("127.0.0.1", (port, port), None)
    first.close()
    again = RingListener("127.0.0.1", (port, port), None)
    assert again.port == port
    again.close()


def test_ipv6_is_listened_on(listen: Listen) -> None:
    try:
        listeners = [RingListener("::1", (0, 0), None) for _ in range(2)]
    except ConfigError:
        pytest.skip("this machine has no IPv6")
    table = tuple(
        RingSeat(node, 1, f"[::1]:{listener.port}")
        for node, listener in zip(NODES, listeners, strict=False)
    )
    check_ring(
        [
            Meeting(listener, Place("s-1", 1, rank, table), 10)
            for rank, listener in enumerate(listeners)
        ]
    )
    for listener in listeners:
        listener.close()
