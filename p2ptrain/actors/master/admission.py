"""Admission: what it takes for a job to be accepted."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import trio

from p2ptrain.core.registry import SessionRow
from p2ptrain.core.session import Facts
from p2ptrain.core.stream import Schedule
from p2ptrain.errors import NoMasterError, SpecError, UnreachableError
from p2ptrain.ids import NodeId, session_of
from p2ptrain.messages.asks import (
    HoldAnswer,
    HoldAsk,
    LiveAnswer,
    SubmitAnswer,
    SubmitAsk,
)
from p2ptrain.messages.record import AddSession, BlobRef, SessionStatus
from p2ptrain.ports import Blobs, Courier, Log, Post, Roster
from p2ptrain.spec.train import SPEC_BYTES_MAX, TrainSpec, load_spec
from p2ptrain.spec.validate import validate

HOLD_S = 60.0
SLOWEST = 1_000_000  # bytes a second that a copy makes at least
HOLD_TRIES = 10


@dataclass(frozen=True, slots=True)
class MasterPorts:
    """What the master uses; ``clock`` is wall time in seconds."""

    log: Log
    roster: Roster
    post: Post
    blobs: Blobs
    courier: Courier
    voters: Callable[[], tuple[NodeId, ...]]
    clock: Callable[[], float]


class Admission:
    """Checks jobs, has a majority hold them, and puts them on record.

    Args:
        ports: the rest of the daemon.
    """

    def __init__(self, ports: MasterPorts) -> None:
        self._ports = ports

    def is_master(self) -> bool:
        """Tell whether this node leads the record."""
        return self._ports.log.master == self._ports.post.me

    async def spec(self, blob: BlobRef, holders: tuple[NodeId, ...]) -> TrainSpec:
        """Return a valid spec, fetched if need be.

        Raises:
            P2PTrainError: it cannot be had, or it is not valid.
        """
        if blob.size > SPEC_BYTES_MAX:
            raise SpecError("spec", f"{blob.size} bytes: {SPEC_BYTES_MAX} at most")
        others = tuple(member.node for member in self._ports.roster.members())
        sources = tuple(dict.fromkeys((*holders, *others)))
        await self._ports.courier.fetch((blob,), sources, lambda *_: None)
        data = await self._ports.blobs.read(blob.digest, 0, blob.size)
        return await trio.to_thread.run_sync(partial(_open, data))

    async def accept(self, ask: SubmitAsk) -> SubmitAnswer:
        """Accept a job once a majority of the voters holds it.

        Raises:
            P2PTrainError: why not.
        """
        if not self.is_master():
            raise NoMasterError("this node is not the master")
        session = session_of(ask.key)
        known = self._ports.log.registry.sessions.get(session)
        if known is None:
            await self.spec(ask.spec, (ask.holder,))
            await self._have_held((ask.spec, *ask.blobs), ask.holder)
        command = AddSession(
            session=session,
            key=ask.key,
            name=ask.name,
            spec=ask.spec,
            blobs=ask.blobs,
            submitter=ask.holder,
            submitted_s=known.submission.submitted_s if known else self._ports.clock(),
        )
        refusal = await self._ports.log.propose(command)
        return SubmitAnswer("" if refusal else session, refusal)

    async def _have_held(self, blobs: tuple[BlobRef, ...], holder: NodeId) -> None:
        """Wait until a majority of the voters holds blobs.

        Raises:
            UnreachableError: no majority does; names what they said.
        """
        voters = self._ports.voters()
        held: set[NodeId] = set()
        problems: dict[NodeId, str] = {}
        ask = HoldAsk(blobs, (holder,))

        async def one(node: NodeId, scope: trio.CancelScope) -> None:
            for _ in range(HOLD_TRIES):
                try:
                    answer = await self._ports.post.ask(
                        node, ask, HoldAnswer, hold_s(blobs)
                    )
                    problems[node] = answer.problem
                except UnreachableError as error:
                    problems[node] = str(error)
                if not problems[node]:
                    held.add(node)
                    if 2 * len(held) > len(voters):
                        scope.cancel()
                    return
                await trio.sleep(0.2)

        async with trio.open_nursery() as nursery:
            for node in voters:
                nursery.start_soon(one, node, nursery.cancel_scope)
        if 2 * len(held) <= len(voters):
            said = "; ".join(sorted(set(filter(None, problems.values()))))[:300]
            raise UnreachableError(f"no majority of voters holds the job: {said}")


def hold_s(blobs: tuple[BlobRef, ...]) -> float:
    """Return how many seconds a node may take to copy blobs."""
    return HOLD_S + sum(blob.size for blob in blobs) / SLOWEST


def _open(data: bytes) -> TrainSpec:
    spec = load_spec(data)
    validate(spec)
    return spec


def facts_of(spec: TrainSpec) -> Facts:
    """Return what the master needs to know of a job."""
    first = spec.data[0].input
    samples = sum(ref.shard_len for ref in spec.data if ref.input == first)
    epochs = len(spec.lr_per_epoch)
    plan = Schedule(samples, epochs, spec.step_samples, spec.batch)
    return Facts(plan.parts, plan.steps, epochs, spec.step_samples)


def at_rest(row: SessionRow | None) -> LiveAnswer:
    """Return the figures of a session that nobody leads now."""
    epochs = row.epochs if row else ()
    return LiveAnswer(
        known=row is not None,
        status=row.status if row else SessionStatus.QUEUED,
        reason=row.reason if row else "",
        view=row.views[-1].view if row and row.views else 0,
        step=row.step if row else 0,
        steps=row.step if row else 0,
        epoch=epochs[-1].epoch if epochs else 0,
        epochs=len(epochs),
        losses_from=0,
        losses=(),
        samples_per_s=0.0,
        workers=(),
    )
