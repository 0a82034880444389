"""What a daemon runs beside its actors: enrolment, the beacon, the watchdog."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import structlog
import trio

from p2ptrain.config import Config
from p2ptrain.errors import ConfigError, LocalError, StorageError
from p2ptrain.notify import Notifier
from p2ptrain.ports import Log
from p2ptrain.runtime.inbox import Inbox
from p2ptrain.runtime.supervise import EDGE, supervise
from p2ptrain.security.identity import Identity
from p2ptrain.store.blobs import BlobStore
from p2ptrain.tls import is_loopback

TIDY_S = 20.0
STUCK_S = 15.0  # an actor whose oldest message waits so long does not work any more
_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Beside:
    """Starts what this node's settings ask for.

    Args:
        config: the settings.
        identity: who this node is.
        address: of its control port, as others reach it.
    """

    config: Config
    identity: Identity
    address: str

    def start_enrolment(self, nursery: trio.Nursery) -> None:
        """Let new nodes in, if this node holds the cluster's authority."""
        folder = self.config.state_dir
        if self.identity.tls is None or not (folder / "ca" / "ca.key").exists():
            return
        from p2ptrain.security.enrol_server import EnrolServer  # noqa: PLC0415

        server = EnrolServer(folder, lambda: (self.address,))
        port = self.config.port + 2 if self.config.port else 0
        run = partial(server.serve, self.config.host, port)
        nursery.start_soon(supervise, "enrolment", run, EDGE)

    def start_beacon(self, nursery: trio.Nursery, found: Callable[[str], None]) -> None:
        """Find and be found on the local network, unless all is on this machine."""
        host, _, port = self.address.rpartition(":")
        if not self.config.mdns or self.identity.tls is None or is_loopback(host):
            return
        from p2ptrain.net.mdns import Announcement, MdnsBeacon  # noqa: PLC0415

        node, fingerprint = self.identity.node, self.identity.fingerprint
        try:
            beacon = MdnsBeacon(Announcement(node, fingerprint, (host,), int(port)))
        except ConfigError as error:
            _log.warning("no mDNS", reason=str(error))
            return
        nursery.start_soon(supervise, "mdns", partial(beacon.run, found), EDGE)


async def tidy(log: Log, blobs: BlobStore) -> None:
    """Remove blobs that the record does not name any more, while there is a record to
    go by.
    """
    while True:
        await trio.sleep(TIDY_S)
        if log.master is None:
            continue
        try:
            removed = await blobs.sweep(log.registry.blobs())
        except StorageError as error:
            _log.warning("cannot tidy up", reason=str(error))
            continue
        if removed:
            _log.info("removed blobs that nothing names", count=len(removed))


async def watchdog(notifier: Notifier, inboxes: Sequence[Inbox[Any]]) -> None:
    """Feed systemd's watchdog as long as every actor works.

    Raises:
        LocalError: an actor's messages wait for too long.
    """
    pause = min(notifier.watchdog_s / 3, 5.0) if notifier.watchdog_s else 5.0
    while True:
        now = trio.current_time()
        for inbox in inboxes:
            if inbox.oldest_s(now) > STUCK_S:
                raise LocalError(f"actor {inbox.name} is stuck: ending the daemon")
        notifier.alive()
        await trio.sleep(pause)
