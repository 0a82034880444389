"""The post: control messages in and out, in one envelope, by node id or by address.

An envelope is a map: ``v`` wire version, ``c`` cluster id ("" before one is known),
``f`` sender, ``k`` kind, ``b`` body. A reply holds ``k`` and ``b``, or ``e`` with a
sentence, or nothing (taken). Messages to one address leave in order, one at a time;
what does not fit its queue is dropped, for every sender repeats itself.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import structlog
import trio

from p2ptrain import codec
from p2ptrain.errors import P2PTrainError, PeerError, UnreachableError
from p2ptrain.ids import ClusterId, NodeId, is_node
from p2ptrain.ports import Transport
from p2ptrain.runtime.inbox import Mail, Ref, Reply

WIRE_VERSION = 1
QUEUE_BOUND = 64
PEERS_MAX = 512
SEND_TIMEOUT_S = 1.0
IDLE_S = 30.0
ANSWER_TIMEOUT_S = 60.0

AnswerT = TypeVar("AnswerT")
_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What the post looks up (our cluster id, a node's control address) and tells."""

    cluster: Callable[[], ClusterId | None]
    resolve: Callable[[NodeId], str | None]
    refused: Callable[[str, str], None]  # address, sentence
    failed: Callable[[str], None]  # address


@dataclass(frozen=True, slots=True)
class Routes:
    """Which inbox takes which message class: ``notes`` need no answer, ``asks`` do."""

    notes: Mapping[type[Any], Ref[Mail]]
    asks: Mapping[type[Any], Ref[Mail]]


class PostOffice:
    """Implements ``ports.Post``; ``run`` is its task.

    Args:
        me: this node.
        transport: the control plane.
        around: lookups.
        routes: which inbox takes which message class.
    """

    def __init__(
        self,
        me: NodeId,
        transport: Transport,
        around: Surroundings,
        routes: Routes,
    ) -> None:
        self._me = me
        self._transport = transport
        self._around = around
        self.route(routes)
        self._out: dict[str, trio.MemorySendChannel[object]] = {}
        self._nursery: trio.Nursery | None = None
        self.dropped = 0

    @property
    def me(self) -> NodeId:
        """This node."""
        return self._me

    def route(self, routes: Routes) -> None:
        """Deliver by these routes from now on; actors that need a post come first."""
        self._routes = routes
        self._kinds = {kind.__name__: kind for kind in (*routes.notes, *routes.asks)}

    async def run(
        self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Serve the control plane and carry what is sent, until cancelled."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            try:
                await nursery.start(self._serve)
                task_status.started()
                await trio.sleep_forever()
            finally:
                self._nursery = None
                self._out.clear()

    def send(self, to: NodeId, message: object) -> None:
        """Send without an answer, best effort."""
        if to == self._me:
            self._deliver(Mail(to, message))
            return
        address = self._around.resolve(to)
        if address is not None:
            self.send_to(address, message)

    def send_to(self, address: str, message: object) -> None:
        """Send to an address without an answer, best effort."""
        channel = self._out.get(address) or self._open(address)
        if channel is None:
            self.dropped += 1
            return
        try:
            channel.send_nowait(message)
        except trio.WouldBlock:
            self.dropped += 1

    async def ask(
        self, to: NodeId, message: object, answer: type[AnswerT], timeout_s: float
    ) -> AnswerT:
        """Send and wait for the answer.

        Raises:
            UnreachableError: no answer in time, or a refusal; names node and reason.
        """
        if to == self._me:
            return await self._ask_here(message, answer, timeout_s)
        address = self._around.resolve(to)
        if address is None:
            raise UnreachableError(f"node {to} has no known address")
        body = self._envelope(message)
        raw = await self._transport.request(address, body, timeout_s)
        try:
            reply = _open_reply(raw)
            if reply.get("k") == answer.__name__:
                return codec.from_plain(answer, reply.get("b"))
        except PeerError as error:
            raise UnreachableError(f"node {to} answered nonsense: {error}") from error
        problem = reply.get("e", f"it gave no {answer.__name__}")
        raise UnreachableError(f"node {to} refused: {problem}")

    async def _ask_here(
        self, message: object, answer: type[AnswerT], timeout_s: float
    ) -> AnswerT:
        try:
            value = await self._ask_actor(self._me, message, timeout_s)
        except P2PTrainError as error:
            raise UnreachableError(str(error)) from error
        if not isinstance(value, answer):
            raise UnreachableError(f"no {answer.__name__} for {type(message).__name__}")
        return value

    async def _ask_actor(
        self, sender: NodeId, message: object, timeout_s: float
    ) -> object:
        def mail(reply: Reply[object]) -> Mail:
            return Mail(sender, message, reply)

        return await self._routes.asks[type(message)].ask(mail, timeout_s)

    def _envelope(self, message: object) -> bytes:
        return codec.encode(
            {
                "v": WIRE_VERSION,
                "c": self._around.cluster() or "",
                "f": self._me,
                "k": type(message).__name__,
                "b": codec.to_plain(message),
            }
        )

    def _open(self, address: str) -> trio.MemorySendChannel[object] | None:
        if self._nursery is None or len(self._out) >= PEERS_MAX:
            return None
        sender, receiver = trio.open_memory_channel[object](QUEUE_BOUND)
        self._out[address] = sender
        self._nursery.start_soon(self._carry, address, receiver)
        return sender

    async def _carry(
        self, address: str, queue: trio.MemoryReceiveChannel[object]
    ) -> None:
        """Carry one address's messages; ends when it is unreachable or idle."""
        try:
            while True:
                message: object = None
                with trio.move_on_after(IDLE_S):
                    message = await queue.receive()
                if message is None:
                    return
                await self._carry_one(address, message)
        except UnreachableError:
            # what waits is stale by now: every sender repeats itself
            self._around.failed(address)
        finally:
            self._out.pop(address, None)

    async def _carry_one(self, address: str, message: object) -> None:
        body = self._envelope(message)
        raw = await self._transport.request(address, body, SEND_TIMEOUT_S)
        try:
            reply = _open_reply(raw)
        except PeerError as error:
            reply = {"e": str(error)}
        if "e" in reply:
            self._around.refused(address, str(reply["e"])[:300])

    async def _serve(
        self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        await self._transport.serve(self.handle, task_status=task_status)

    async def handle(self, body: bytes, peer: NodeId | None) -> bytes:
        """Take one request's bytes and return the reply's; the transport's handler.

        Raises:
            PeerError: not an envelope at all: it gets no reply.
        """
        plain = codec.decode(body)
        if not isinstance(plain, dict):
            raise PeerError("an envelope is a map")
        problem = self._objection(plain, peer)
        if problem:
            return codec.encode({"v": WIRE_VERSION, "e": problem})
        kind = self._kinds.get(str(plain.get("k")))
        if kind is None:
            problem = f"unknown message kind {str(plain.get('k'))[:40]!r}"
            return codec.encode({"v": WIRE_VERSION, "e": problem})
        message = codec.from_plain(kind, plain.get("b"))
        sender = NodeId(plain["f"])
        if kind in self._routes.notes:
            self._deliver(Mail(sender, message))
            return codec.encode({"v": WIRE_VERSION})
        return await self._answer(sender, message)

    def _objection(self, plain: dict[Any, Any], peer: NodeId | None) -> str:
        version, cluster = plain.get("v"), plain.get("c")
        sender, mine = plain.get("f"), self._around.cluster()
        if version != WIRE_VERSION:
            return (
                f"this node speaks wire version {WIRE_VERSION}, the sender "
                f"{version!r:.20}: run the same p2ptrain release on both"
            )
        if not isinstance(sender, str) or not is_node(sender):
            return "the sender's node id is malformed"
        if peer is not None and peer != sender:
            return f"the certificate is of node {peer}, the message claims {sender}"
        if cluster and mine and cluster != mine:
            return (
                f"this node belongs to cluster {mine}, the sender to "
                f"{cluster!r:.40}: two clusters cannot merge; on the node that is to "
                "move over, run 'p2ptrain cluster recover --follow'"
            )
        return ""

    async def _answer(self, sender: NodeId, message: object) -> bytes:
        try:
            value = await self._ask_actor(sender, message, ANSWER_TIMEOUT_S)
        except P2PTrainError as error:
            return codec.encode({"v": WIRE_VERSION, "e": str(error)[:300]})
        return codec.encode(
            {
                "v": WIRE_VERSION,
                "k": type(value).__name__,
                "b": codec.to_plain(value),
            }
        )

    def _deliver(self, mail: Mail) -> None:
        ref = self._routes.notes.get(type(mail.message))
        if ref is None or not ref.offer(mail):
            self.dropped += 1


def _open_reply(raw: bytes) -> dict[str, Any]:
    plain = codec.decode(raw)
    if not isinstance(plain, dict):
        raise PeerError("a reply is a map")
    return plain
