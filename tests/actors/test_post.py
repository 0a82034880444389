"""The post over a transport that hands bytes straight to the other side's handler."""

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
import trio

from p2ptrain import codec
from p2ptrain.actors.post import PostOffice, Routes, Surroundings
from p2ptrain.errors import NoMasterError, PeerError, UnreachableError
from p2ptrain.ids import ClusterId, NodeId
from p2ptrain.messages.asks import StopAnswer, StopAsk, SubmitAnswer
from p2ptrain.messages.session import Release
from p2ptrain.ports import Handler
from p2ptrain.runtime.inbox import Inbox, Mail

A, B = NodeId("a" * 32), NodeId("b" * 32)
SESSION = "s-0123456789ab"


class Wire:
    """An address book of handlers; counts what is carried."""

    def __init__(self) -> None:
        self.handlers: dict[str, Handler] = {}
        self.carried = 0


@dataclass
class End:
    wire: Wire
    address: str
    claims: NodeId | None = None

    async def request(self, address: str, body: bytes, timeout_s: float) -> bytes:
        self.wire.carried += 1
        await trio.lowlevel.checkpoint()
        if address not in self.wire.handlers:
            raise UnreachableError(f"nobody at {address}")
        with trio.move_on_after(timeout_s):
            return await self.wire.handlers[address](body, self.claims)
        raise UnreachableError(f"{address} is slow")

    async def serve(
        self,
        handler: Handler,
        *,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        self.wire.handlers[self.address] = handler
        task_status.started()
        await trio.sleep_forever()

    async def aclose(self) -> None:
        del self.wire.handlers[self.address]


@dataclass
class Side:
    wire: Wire
    me: NodeId
    address: str
    cluster: str | None = "c1"
    claims: NodeId | None = None
    refusals: list[tuple[str, str]] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    inbox: Inbox[Mail] = field(default_factory=lambda: Inbox("taker", bound=4))

    def post(self, resolve: Callable[[NodeId], str | None]) -> PostOffice:
        around = Surroundings(
            cluster=lambda: ClusterId(self.cluster) if self.cluster else None,
            resolve=resolve,
            refused=lambda *what: self.refusals.append(what),
            failed=self.failures.append,
        )
        routes = Routes(notes={Release: self.inbox.ref}, asks={StopAsk: self.inbox.ref})
        return PostOffice(
            self.me, End(self.wire, self.address, self.claims), around, routes
        )


@pytest.fixture
def sides() -> tuple[Side, Side]:
    wire = Wire()
    return Side(wire, A, "host-a"), Side(wire, B, "host-b")


def resolve(node: NodeId) -> str | None:
    return {A: "host-a", B: "host-b"}.get(node)


def note(step: int = 0) -> Release:
    return Release(term=step, session=SESSION, reason="over")


async def test_a_note_reaches_the_inbox_of_its_class(
    sides: tuple[Side, Side], nursery: trio.Nursery
) -> None:
    left, right = sides
    a, b = left.post(resolve), right.post(resolve)
    await nursery.start(a.run)
    await nursery.start(b.run)
    for term in range(3):
        a.send(B, note(term))
    got = [await right.inbox.receive() for _ in range(3)]
    assert got == [Mail(A, note(term)) for term in range(3)]


async def test_a_note_to_myself_takes_no_wire(sides: tuple[Side, Side]) -> None:
    left, _ = sides
    left.post(resolve).send(A, note())
    assert left.inbox.receive_nowait() == Mail(A, note())
    assert left.wire.carried == 0


@pytest.mark.parametrize("to", [A, B])
async def test_an_ask_brings_the_answer(
    sides: tuple[Side, Side], nursery: trio.Nursery, to: NodeId
) -> None:
    left, right = sides
    a, b = left.post(resolve), right.post(resolve)
    await nursery.start(a.run)
    await nursery.start(b.run)

    async def answer(side: Side) -> None:
        mail = await side.inbox.receive()
        assert mail.reply is not None
        mail.reply.send(StopAnswer(refusal=f"to {mail.sender}"))

    nursery.start_soon(answer, left if to == A else right)
    got = await a.ask(to, StopAsk(session=SESSION), StopAnswer, timeout_s=5)
    assert got == StopAnswer(refusal=f"to {A}")


async def test_an_ask_that_fails_there_is_a_sentence_here(
    sides: tuple[Side, Side], nursery: trio.Nursery
) -> None:
    left, right = sides
    a, b = left.post(resolve), right.post(resolve)
    await nursery.start(b.run)

    async def refuse() -> None:
        mail = await right.inbox.receive()
        assert mail.reply is not None
        mail.reply.fail(NoMasterError("this node is not the master"))

    nursery.start_soon(refuse)
    with pytest.raises(UnreachableError, match="this node is not the master"):
        await a.ask(B, StopAsk(session=SESSION), StopAnswer, timeout_s=5)


async def test_an_answer_of_another_kind_is_refused(
    sides: tuple[Side, Side], nursery: trio.Nursery
) -> None:
    left, right = sides
    a, b = left.post(resolve), right.post(resolve)
    await nursery.start(b.run)

    async def lie() -> None:
        mail = await right.inbox.receive()
        assert mail.reply is not None
        mail.reply.send(SubmitAnswer(session="", refusal=""))

    nursery.start_soon(lie)
    with pytest.raises(UnreachableError, match="no StopAnswer"):
        await a.ask(B, StopAsk(session=SESSION), StopAnswer, timeout_s=5)


async def test_another_cluster_is_refused_with_a_sentence(
    sides: tuple[Side, Side], nursery: trio.Nursery
) -> None:
    left, right = sides
    right.cluster = "c2"
    a, b = left.post(resolve), right.post(resolve)
    await nursery.start(a.run)
    await nursery.start(b.run)
    a.send(B, note())
    await trio.testing.wait_all_tasks_blocked()
    assert right.inbox.receive_nowait() is None
    [(address, sentence)] = left.refusals
    assert address == "host-b"
    assert "two clusters cannot merge" in sentence


async def test_a_node_without_a_cluster_may_talk(
    sides: tuple[Side, Side], nursery: trio.Nursery
) -> None:
    left, right = sides
    left.cluster = None
    a, b = left.post(resolve), right.post(resolve)
    await nursery.start(a.run)
    await nursery.start(b.run)
    a.send(B, note())
    assert (await right.inbox.receive()).sender == A


async def test_a_certificate_of_another_node_is_refused(
    sides: tuple[Side, Side], nursery: trio.Nursery
) -> None:
    left, right = sides
    left.claims = NodeId("e" * 32)
    a, b = left.post(resolve), right.post(resolve)
    await nursery.start(a.run)
    await nursery.start(b.run)
    a.send(B, note())
    await trio.testing.wait_all_tasks_blocked()
    assert right.inbox.receive_nowait() is None
    assert "the certificate is of node eeee" in left.refusals[0][1]


def envelope(**changes: object) -> bytes:
    plain = {"v": 1, "c": "c1", "f": A, "k": "Release", "b": codec.to_plain(note())}
    return codec.encode(plain | changes)


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        (envelope(v=2), "wire version 1, the sender 2"),
        (envelope(f="me"), "node id is malformed"),
        (envelope(k="Unheard"), "unknown message kind 'Unheard'"),
        (envelope(k=None), "unknown message kind"),
    ],
)
async def test_what_is_not_for_us_gets_a_sentence(
    sides: tuple[Side, Side], body: bytes, sentence: str
) -> None:
    _, right = sides
    reply = codec.decode(await right.post(resolve).handle(body, None))
    assert sentence in reply["e"]
    assert right.inbox.receive_nowait() is None


@pytest.mark.parametrize("body", [b"", b"\xff", codec.encode([1]), envelope(b={})])
async def test_what_is_no_envelope_gets_no_reply(
    sides: tuple[Side, Side], body: bytes
) -> None:
    _, right = sides
    with pytest.raises(PeerError):
        await right.post(resolve).handle(body, None)


async def test_a_full_inbox_drops_and_counts(sides: tuple[Side, Side]) -> None:
    left, _ = sides
    post = left.post(resolve)
    for term in range(7):
        post.send(A, note(term))
    assert post.dropped == 3


async def test_an_unreachable_peer_costs_its_queue_only(
    sides: tuple[Side, Side], nursery: trio.Nursery
) -> None:
    left, right = sides
    a, b = left.post(resolve), right.post(resolve)
    await nursery.start(a.run)
    for _ in range(200):
        a.send(B, note())
    await trio.testing.wait_all_tasks_blocked()
    assert a.dropped == 200 - 64
    assert left.wire.carried == 1  # the rest was stale
    assert left.failures == ["host-b"]
    await nursery.start(b.run)
    a.send(B, note(9))
    assert await right.inbox.receive() == Mail(A, note(9))
