"""A daemon from start to end: adapters are opened, actors run, a signal ends it all.

Starting goes upwards: what is saved, the planes, the actors, the gate; readiness is
told when the gate is open. What must be said at the end is said first.
"""

import signal

import structlog
import trio

from p2ptrain.config import Config
from p2ptrain.messages.bulk import BULK_BYTES_MAX
from p2ptrain.net.nng import NngTransport
from p2ptrain.node.sockets import make_private, open_gate
from p2ptrain.node.wiring import CONTROL_BYTES_MAX, Adapters, Node
from p2ptrain.notify import Notifier
from p2ptrain.security.identity import Identity
from p2ptrain.store.blobs import BlobStore
from p2ptrain.store.record import SqliteRecord
from p2ptrain.tls import check_exposure

_log = structlog.get_logger()


async def run_node(config: Config, identity: Identity) -> None:
    """Run a daemon until a signal, ``leave``, or a fault of its own ends it.

    Raises:
        ConfigError: the configuration does not allow a start.
        StorageError: what was saved cannot be read.
    """
    check_exposure(config.host, identity.tls)
    make_private(config.state_dir)
    make_private(config.runtime_dir)
    listener = await open_gate(config.socket)
    notifier = Notifier.from_environment()
    record = SqliteRecord(config.state_dir / "record.db")
    saved = await record.load()
    blobs = await trio.to_thread.run_sync(BlobStore, config.state_dir)
    port, tls = config.port, identity.tls
    bulk_port = port + 1 if port else 0
    try:
        async with (
            NngTransport(config.host, port, CONTROL_BYTES_MAX, tls) as control,
            NngTransport(config.host, bulk_port, BULK_BYTES_MAX, tls) as bulk,
            trio.open_nursery() as nursery,
        ):
            adapters = Adapters(identity, control, bulk, blobs, record, saved)
            node = Node(config, adapters, nursery.cancel_scope.cancel)
            nursery.start_soon(_await_signal, node, nursery.cancel_scope, notifier)
            await node.run(listener, notifier)
    finally:
        config.socket.unlink(missing_ok=True)
        with trio.CancelScope(shield=True, deadline=trio.current_time() + 5):
            await record.aclose()


async def _await_signal(
    node: Node, scope: trio.CancelScope, notifier: Notifier
) -> None:
    """End in good order at the first signal, at once at the second."""
    with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        number = await anext(signals)
        _log.info("stopping", signal=signal.Signals(number).name)
        notifier.stopping()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_until_drained, node, nursery.cancel_scope)
            await anext(signals)
            nursery.cancel_scope.cancel()
        scope.cancel()


async def _until_drained(node: Node, scope: trio.CancelScope) -> None:
    await node.drain()
    scope.cancel()
