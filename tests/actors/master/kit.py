"""A master actor, and all that surrounds it in memory."""

from typing import Any, TypeVar

import trio

from p2ptrain.actors.master import MasterActor, MasterPorts
from p2ptrain.core.session import SessionConfig
from p2ptrain.ids import NodeId, SessionId, session_of
from p2ptrain.messages.asks import HoldAnswer, SubmitAsk
from p2ptrain.messages.record import AddSession, BlobRef
from p2ptrain.messages.session import WorkerPhase, WorkerState
from p2ptrain.runtime.inbox import Mail, Reply
from p2ptrain.spec.graph import Graph, Input, Meta, Node, Ref
from p2ptrain.spec.train import DataRef, TrainSpec, WeightRef, spec_bytes
from tests.actors.fakes import (
    ME,
    PEER,
    THIRD,
    FakeBlobs,
    FakeCourier,
    FakeLog,
    FakePost,
    FakeRoster,
)

F32 = "float32"
KEY = "key"
SESSION = session_of(KEY)
AnswerT = TypeVar("AnswerT")


def spec(**changes: Any) -> TrainSpec:
    """Return a small valid job: mean(x @ w) and its gradient; 10 samples, 2 epochs."""
    given: dict[str, Any] = {
        "graph": Graph(
            inputs=(Input("x", F32, (4, 3)), Input("w", F32, (3, 2))),
            nodes=(
                Node("mm", (Ref(0), Ref(1)), {}, (Meta(F32, (4, 2)),)),
                Node("mean", (Ref(2),), {}, (Meta(F32, ()),)),
                Node("ones_like", (Ref(2),), {}, (Meta(F32, (4, 2)),)),
                Node("div.Scalar", (Ref(4), 8), {}, (Meta(F32, (4, 2)),)),
                Node("t", (Ref(0),), {}, (Meta(F32, (3, 4)),)),
                Node("mm", (Ref(6), Ref(5)), {}, (Meta(F32, (3, 2)),)),
            ),
            outputs=(3, 7),
        ),
        "params": (WeightRef("w", "init:normal?std=0.1", F32, (3, 2)),),
        "grad_start": 1,
        "loss_index": 0,
        "data": (DataRef("x", "file:///x.npy", 3, 0, 10, F32, (3,)),),
        "seed_input": None,
        "momentum": 0.9,
        "lr_per_epoch": (0.1, 0.01),
        "batch": 4,
        "exports": (("weight", "w"),),
    }
    return TrainSpec(**{**given, **changes})


class Kit:
    """The actor; ``voters`` are three."""

    def __init__(self) -> None:
        self.log, self.roster, self.post = FakeLog(), FakeRoster(), FakePost()
        self.blobs = FakeBlobs()
        self.courier = FakeCourier(self.blobs)
        self.voters: tuple[NodeId, ...] = (ME, PEER, THIRD)
        self.ports = MasterPorts(
            self.log, self.roster, self.post, self.blobs, self.courier,
            lambda: self.voters, lambda: 1000.0,
        )  # fmt: skip
        self.actor = MasterActor(self.ports, SessionConfig(repeat_s=0.05))
        self.spec = self.blobs.add(spec_bytes(spec()), "spec")
        self.data = self.blobs.add(b"data", "data")
        self.post.answers = lambda _to, _message: HoldAnswer("")

    def submit(self, key: str = KEY, blob: BlobRef | None = None) -> SubmitAsk:
        return SubmitAsk(key, "job", blob or self.spec, (self.data,), PEER)

    def record(self, key: str = KEY, blob: BlobRef | None = None) -> SessionId:
        """Put a session on record, as an earlier master did."""
        session = session_of(key)
        command = AddSession(
            session, key, "job", blob or self.spec, (self.data,), PEER, 0.0
        )
        assert self.log.apply(command) == ""
        return session

    def tell(self, message: object, sender: NodeId = PEER) -> None:
        assert self.actor.inbox.ref.offer(Mail(sender, message))

    async def ask(self, message: object, kind: type[AnswerT]) -> AnswerT:
        reply: Reply[object] = Reply()
        assert self.actor.inbox.ref.offer(Mail(PEER, message, reply))
        with trio.fail_after(5):
            answer = await reply.wait()
        assert isinstance(answer, kind)
        return answer


def ready(node: NodeId, serial: int, session: SessionId = SESSION) -> WorkerState:
    return WorkerState(
        node, session, 1, WorkerPhase.READY, step=0, digest="0" * 64,
        ring=f"{node[:1]}:1", data_digests=("d" * 64,), serial=serial,
    )  # fmt: skip
