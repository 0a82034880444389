"""The gate: what the local command line and local programs ask of this daemon.

Each connection is served by its own task; whatever comes in, it costs that connection
only. Requests that concern the cluster go to the master, over elections.
"""

import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar, assert_never

import structlog
import trio

from p2ptrain import codec
from p2ptrain.actors.gate.lines import ledger_of, line_of, why_paused
from p2ptrain.actors.gate.masters import ask_master
from p2ptrain.core.registry import SessionRow
from p2ptrain.errors import (
    NotFoundError,
    P2PTrainError,
    PeerError,
    UnreachableError,
)
from p2ptrain.frames import FrameStream
from p2ptrain.ids import NodeId, SessionId, is_digest, is_session
from p2ptrain.members import MemberStatus
from p2ptrain.messages.asks import (
    LiveAnswer,
    LiveAsk,
    ParityAnswer,
    ParityAsk,
    StopAnswer,
    StopAsk,
    SubmitAnswer,
    SubmitAsk,
)
from p2ptrain.messages.gate import (
    FRAME_BYTES_MAX,
    PIECE_BYTES,
    Done,
    GateAnswer,
    GateRequest,
    GetRequest,
    Held,
    Info,
    InfoRequest,
    LeaveRequest,
    LedgerRequest,
    LiveRequest,
    NodeParity,
    Nodes,
    NodesRequest,
    Parities,
    ParityRequest,
    Piece,
    PutRequest,
    Refusal,
    Sessions,
    SessionsRequest,
    StopRequest,
    SubmitRequest,
    Submitted,
)
from p2ptrain.messages.record import BlobRef
from p2ptrain.ports import Blobs, Courier, Log, Post, Roster

CLIENTS_MAX = 64
IDLE_S = 600.0
PARITY_S = 300.0
SEE_S = 5.0
LAST_WORD_S = 2.0
SESSIONS_SHOWN = 500
Work = SubmitRequest | LiveRequest | StopRequest | ParityRequest
REQUESTS = codec.kinds(GateRequest)
AnswerT = TypeVar("AnswerT")
_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class GatePorts:
    """What the gate uses; ``leave`` takes this node out of the cluster."""

    log: Log
    roster: Roster
    post: Post
    blobs: Blobs
    courier: Courier
    voters: Callable[[], tuple[NodeId, ...]]
    cluster: Callable[[], str]
    leave: Callable[[], Awaitable[None]]


class GateActor:
    """Serves clients on a listener.

    Args:
        ports: the rest of the daemon.
        version: of this release.
    """

    def __init__(self, ports: GatePorts, version: str) -> None:
        self._ports = ports
        self._version = version

    async def run(self, listener: trio.SocketListener) -> None:
        """Serve until cancelled."""
        limit = trio.CapacityLimiter(CLIENTS_MAX)

        async def serve(stream: trio.SocketStream) -> None:
            async with limit:
                await self._serve(FrameStream(stream, FRAME_BYTES_MAX))

        await trio.serve_listeners(serve, [listener])

    async def _serve(self, frames: FrameStream) -> None:
        try:
            while True:
                with trio.move_on_after(IDLE_S):
                    body = await frames.receive()
                    if body is not None:
                        request = codec.unpack(REQUESTS, body, FRAME_BYTES_MAX)
                        await self._answer(frames, request)
                        continue
                return
        except (PeerError, trio.BrokenResourceError, trio.ClosedResourceError) as error:
            _log.debug("client dropped", reason=str(error))

    async def _answer(self, frames: FrameStream, request: GateRequest) -> None:
        try:
            if isinstance(request, PutRequest):
                await self._take_blob(frames, request.blob)
            elif isinstance(request, GetRequest):
                await self._give_blob(frames, request)
            elif isinstance(request, LeaveRequest):
                await self._leave(frames)
            else:
                await self._say(frames, await self._reply(request))
        except P2PTrainError as error:
            await self._say(frames, Refusal(str(error), error.exit_code))
            if isinstance(error, PeerError):
                raise

    async def _reply(self, request: GateRequest) -> GateAnswer:
        match request:
            case InfoRequest():
                return self._info()
            case NodesRequest():
                return self._nodes()
            case SessionsRequest(session):
                ports = self._ports
                pause = why_paused(ports.log, ports.roster, ports.voters())
                return Sessions(tuple(line_of(r, pause) for r in self._rows(session)))
            case LedgerRequest(session):
                return ledger_of(self._rows(session)[0], request)
            case Piece() | PutRequest() | GetRequest() | LeaveRequest():
                raise PeerError(f"{type(request).__name__} is not expected here")
            case _:
                return await self._carry_out(request)

    async def _carry_out(self, request: Work) -> GateAnswer:
        match request:
            case SubmitRequest():
                return await self._submit(request)
            case LiveRequest(session):
                return await self._ask_master(LiveAsk(session), LiveAnswer)
            case StopRequest(session):
                return await self._stop(session)
            case ParityRequest():
                return await self._parity(request)
            case _:
                assert_never(request)

    async def _say(self, frames: FrameStream, answer: GateAnswer) -> None:
        await frames.send(codec.pack(answer))

    def _info(self) -> Info:
        ports = self._ports
        me = next(m for m in ports.roster.members() if m.node == ports.post.me)
        return Info(
            node=me.node,
            name=me.name,
            version=self._version,
            pid=os.getpid(),
            cluster=ports.cluster(),
            master=ports.log.master or "",
            term=ports.log.term,
        )

    def _nodes(self) -> Nodes:
        ports = self._ports
        return Nodes(
            me=ports.post.me,
            master=ports.log.master or "",
            voters=ports.voters(),
            members=ports.roster.members(),
        )

    def _rows(self, session: str) -> list[SessionRow]:
        """Return the row of one session, or those of all if empty, newest first."""
        rows = list(self._ports.log.registry.sessions.values())
        if session:
            rows = [row for row in rows if row.submission.session == session]
            if not rows:
                raise NotFoundError(f"no session {session!r:.40} is on record here")
        rows.sort(key=lambda row: row.submission.submitted_s, reverse=True)
        return rows[:SESSIONS_SHOWN]

    async def _submit(self, request: SubmitRequest) -> Submitted:
        me = self._ports.post.me
        ask = SubmitAsk(request.key, request.name, request.spec, request.blobs, me)
        answer = await self._ask_master(ask, SubmitAnswer)
        if not is_session(answer.session):
            raise P2PTrainError(f"the master refuses the job: {answer.refusal}")
        await self._see(SessionId(answer.session))
        return Submitted(SessionId(answer.session))

    async def _see(self, session: SessionId) -> None:
        """Wait a moment until this node's own record knows a session too."""
        seen, log = -1, self._ports.log
        with trio.move_on_after(SEE_S):
            while session not in log.registry.sessions:
                seen = await log.changed(seen)

    async def _stop(self, session: SessionId) -> Done:
        answer = await self._ask_master(StopAsk(session), StopAnswer)
        if answer.refusal:
            raise NotFoundError(answer.refusal)
        return Done()

    async def _ask_master(self, ask: object, kind: type[AnswerT]) -> AnswerT:
        return await ask_master(self._ports.log, self._ports.post, ask, kind)

    async def _leave(self, frames: FrameStream) -> None:
        """Leave; the answer must go out although the daemon ends."""
        await self._ports.leave()
        with trio.CancelScope(shield=True, deadline=trio.current_time() + LAST_WORD_S):
            await self._say(frames, Done())

    async def _parity(self, request: ParityRequest) -> Parities:
        ports, found = self._ports, dict[str, NodeParity]()
        ask = ParityAsk(request.spec, request.blobs, (ports.post.me,))

        async def one(node: NodeId, name: str) -> None:
            try:
                answer = await ports.post.ask(node, ask, ParityAnswer, PARITY_S)
                found[name] = NodeParity(name, answer.problem, answer.lines)
            except UnreachableError as error:
                found[name] = NodeParity(name, str(error), ())

        async with trio.open_nursery() as nursery:
            for member in ports.roster.members():
                if member.status is MemberStatus.ALIVE and member.capabilities.trains:
                    nursery.start_soon(one, member.node, member.name)
        return Parities(tuple(found[name] for name in sorted(found)))

    async def _take_blob(self, frames: FrameStream, blob: BlobRef) -> None:
        """Receive a blob; what was received before a break is kept."""
        blobs = self._ports.blobs
        _check_blob(blob)
        if await blobs.check(blob):
            await self._say(frames, Held(blob.size))
            return
        at = min(await blobs.partial(blob), max(blob.size - 1, 0))
        await self._say(frames, Held(at))
        while at < blob.size:
            body = await frames.receive()
            if body is None:
                raise PeerError("the client left in the middle of a blob")
            piece = codec.unpack({"Piece": Piece}, body, FRAME_BYTES_MAX)
            await blobs.append(blob, at, piece.data)
            at += len(piece.data)
        await blobs.seal(blob)
        await self._say(frames, Held(blob.size))

    async def _give_blob(self, frames: FrameStream, request: GetRequest) -> None:
        blob, ports = request.blob, self._ports
        _check_blob(blob)
        if not await ports.blobs.check(blob):
            await ports.courier.fetch((blob,), request.holders, lambda *_: None)
        for at in range(0, blob.size, PIECE_BYTES):
            length = min(PIECE_BYTES, blob.size - at)
            data = await ports.blobs.read(blob.digest, at, length)
            await self._say(frames, Piece(data))


def _check_blob(blob: BlobRef) -> None:
    if not is_digest(blob.digest) or blob.size < 0:
        raise P2PTrainError(f"{blob.digest!r:.80} is not the name of a blob")
