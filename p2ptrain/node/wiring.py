"""All actors of one daemon, wired to each other and to their adapters."""

import os
import random
import secrets
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from typing import Any, get_args

import structlog
import trio

from p2ptrain import __version__
from p2ptrain.actors.courier import CourierActor, Depot
from p2ptrain.actors.gate import GateActor, GatePorts
from p2ptrain.actors.ledger import LedgerActor, LedgerPorts
from p2ptrain.actors.master import MasterActor, MasterPorts
from p2ptrain.actors.post import PostOffice, Routes, Surroundings
from p2ptrain.actors.roster import Neighbourhood, RosterActor
from p2ptrain.actors.worker import TrainerSettings, WorkerActor, WorkerPorts
from p2ptrain.config import Config
from p2ptrain.core.transfer import TransferConfig
from p2ptrain.engine.process import ProcessEngine
from p2ptrain.engine.warm import WarmEngine
from p2ptrain.ids import ClusterId, NodeId
from p2ptrain.members import Capabilities, Member, MemberStatus
from p2ptrain.messages.asks import HoldAsk, MasterAsk, ParityAsk
from p2ptrain.messages.consensus import RaftMessage, RecordState
from p2ptrain.messages.membership import MembershipMessage
from p2ptrain.messages.session import Order, WorkerState
from p2ptrain.messages.trainer import TlsFiles
from p2ptrain.net.nng import NngTransport
from p2ptrain.node.beside import Beside, tidy, watchdog
from p2ptrain.node.timing import derive
from p2ptrain.notify import Notifier
from p2ptrain.runtime.inbox import Inbox, Mail, Ref
from p2ptrain.runtime.supervise import EDGE, ONCE, supervise
from p2ptrain.security.identity import Identity
from p2ptrain.store.blobs import BlobStore
from p2ptrain.store.record import SqliteRecord

CONTROL_BYTES_MAX = 512 * 1024
DRAIN_S = 8.0
SOCKET_PATH_MAX = 100
_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Adapters:
    """The outside world of one node."""

    identity: Identity
    control: NngTransport
    bulk: NngTransport
    blobs: BlobStore
    record: SqliteRecord
    saved: RecordState


class Node:
    """All actors of one daemon, wired.

    Args:
        config: the settings.
        adapters: opened.
        stop: called to end the daemon.
    """

    def __init__(
        self, config: Config, adapters: Adapters, stop: Callable[[], None]
    ) -> None:
        self._config = config
        self._adapters = adapters
        self._stop = stop
        rng = random.Random(secrets.randbits(64))  # noqa: S311  # spreads time-outs
        self._timing = derive(config.stall_s)
        membership = self._timing.membership
        start = Neighbourhood(self._member(), config.seeds, membership)
        self.roster = RosterActor(start, self._send_to, rng)
        self.courier = CourierActor(
            Depot(self.me, adapters.blobs, adapters.bulk, self.roster.bulk_of),
            TransferConfig(),
            rng,
        )
        self.post = PostOffice(
            self.me, adapters.control, self._surroundings(), Routes({}, {})
        )
        self.ledger = LedgerActor(
            LedgerPorts(adapters.record, self.post, self.roster),
            adapters.saved,
            self._timing.consensus,
            rng,
        )
        self.worker = WorkerActor(
            WorkerPorts(
                self.post, self.ledger, adapters.blobs, self.courier, self._engine()
            ),
            self._trainers(),
        )
        self.master = MasterActor(
            MasterPorts(
                self.ledger,
                self.roster,
                self.post,
                adapters.blobs,
                self.courier,
                lambda: self.ledger.voters,
                time.time,
            ),
            self._timing.session,
        )
        self.gate = GateActor(self._gate_ports(), __version__)
        self.post.route(self._routes())
        adapters.control.on_lost(self.roster.lost)

    @property
    def me(self) -> NodeId:
        """This node."""
        return self._adapters.identity.node

    @property
    def inboxes(self) -> tuple[Inbox[Any], ...]:
        """What the watchdog looks at."""
        actors = (self.roster, self.ledger, self.courier, self.worker, self.master)
        return tuple(actor.inbox for actor in actors)

    async def run(self, listener: trio.SocketListener, notifier: Notifier) -> None:
        """Run every actor until cancelled."""
        adapters = self._adapters
        async with trio.open_nursery() as nursery:
            nursery.start_soon(supervise, "roster", self.roster.run, ONCE)
            nursery.start_soon(supervise, "ledger", self.ledger.run, ONCE)
            nursery.start_soon(supervise, "courier", self.courier.run, ONCE)
            nursery.start_soon(supervise, "worker", self.worker.run, ONCE)
            nursery.start_soon(supervise, "master", self.master.run, ONCE)
            await nursery.start(self.post.run)
            await nursery.start(adapters.bulk.serve, self.courier.handle)
            gate = partial(self.gate.run, listener)
            nursery.start_soon(supervise, "gate", gate, EDGE)
            self._found()
            beside = Beside(self._config, adapters.identity, self._address)
            beside.start_enrolment(nursery)
            beside.start_beacon(nursery, self.roster.found)
            nursery.start_soon(tidy, self.ledger, adapters.blobs)
            nursery.start_soon(watchdog, notifier, self.inboxes)
            notifier.ready(f"node {self._config.name} listens on {self._address}")
            _log.info("ready", node=self.me, address=self._address)
            _log.info("deadlines", **self._timing.figures())

    async def leave(self) -> None:
        """Leave the cluster for good, then end the daemon."""
        await self.drain()
        await self.roster.leave()
        self._stop()

    async def drain(self) -> None:
        """Step out of the views that this node trains in, at a step boundary, and hand
        the mastership over; but not for longer than ``DRAIN_S``.
        """
        with trio.move_on_after(DRAIN_S):
            self.roster.retire()
            await self.worker.drained()
            await self.ledger.hand_over()

    # --- wiring

    @property
    def _address(self) -> str:
        return self._advertised(self._adapters.control.address)

    def _advertised(self, bound: str) -> str:
        host, _, port = bound.rpartition(":")
        chosen = self._config.advertise or host
        if chosen in {"0.0.0.0", "[::]", "::"}:  # noqa: S104  # compared, not bound
            chosen = socket.gethostbyname(socket.gethostname())
        return f"{chosen}:{port}"

    def _member(self) -> Member:
        config, adapters = self._config, self._adapters
        pages, size = os.sysconf("SC_PHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
        return Member(
            node=adapters.identity.node,
            name=config.name,
            incarnation=int(time.time()),
            status=MemberStatus.ALIVE,
            control=self._address,
            bulk=self._advertised(adapters.bulk.address),
            capabilities=Capabilities(
                version=__version__,
                cores=os.cpu_count() or 1,
                memory_bytes=pages * size,
                trains=not config.witness and find_spec("torch") is not None,
                witness=config.witness,
            ),
        )

    def _engine(self) -> WarmEngine:
        config = self._config
        trains = config.warm and self._member().capabilities.trains
        folder = config.state_dir / "work" / "spare" if trains else None
        return WarmEngine(ProcessEngine(), folder)

    def _trainers(self) -> TrainerSettings:
        config, tls = self._config, self._adapters.identity.tls
        return TrainerSettings(
            name=config.name,
            workdir=config.state_dir / "work",
            roots=tuple(str(root) for root in config.data_roots),
            threads=config.threads,
            host=config.host,
            advertise=self._address.rpartition(":")[0].strip("[]"),
            ports=config.ring_ports,
            tls=TlsFiles(str(tls.ca), str(tls.cert), str(tls.key)) if tls else None,
            stall_s=self._timing.ring_s,
            trace_dir=str(config.state_dir / "traces") if config.trace else "",
        )

    def _surroundings(self) -> Surroundings:
        return Surroundings(
            cluster=lambda: self.ledger.cluster,
            resolve=self.roster.control_of,
            refused=self.roster.refused,
            failed=self.roster.failed,
        )

    def _send_to(self, address: str, message: object) -> None:
        self.post.send_to(address, message)

    def _routes(self) -> Routes:
        notes: dict[type[Any], Ref[Mail]] = {}
        for union, inbox in (
            (MembershipMessage, self.roster.inbox),
            (RaftMessage, self.ledger.inbox),
            (Order, self.worker.inbox),
        ):
            notes |= dict.fromkeys(get_args(union), inbox.ref)
        notes[WorkerState] = self.master.inbox.ref  # type: ignore[assignment]  # Mail
        asks: dict[type[Any], Ref[Any]] = dict.fromkeys(
            get_args(MasterAsk), self.master.inbox.ref
        )
        asks[HoldAsk] = self.courier.inbox.ref
        asks[ParityAsk] = self.worker.inbox.ref
        return Routes(notes, asks)

    def _gate_ports(self) -> GatePorts:
        return GatePorts(
            log=self.ledger,
            roster=self.roster,
            post=self.post,
            blobs=self._adapters.blobs,
            courier=self.courier,
            voters=lambda: self.ledger.voters,
            cluster=lambda: self.ledger.cluster or "",
            leave=self.leave,
        )

    def _found(self) -> None:
        if self._config.bootstrap and self.ledger.cluster is None:
            self.ledger.found(ClusterId(secrets.token_hex(16)))
