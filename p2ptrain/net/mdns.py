"""Finding peers on the local network by multicast DNS.

Announces this node as a service and looks for others with the same cluster in their
text record. What is announced is public: addresses, a node id, and the hash of the
cluster's authority or a loopback cluster's name; no secret, and no trust: who is found
still has to show a certificate. ``zeroconf`` runs in a thread of its own and is an
optional package; where it is missing, ``MdnsBeacon`` raises and the caller goes on with
its seeds.
"""

import socket
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any

import structlog
import trio

from p2ptrain.errors import ConfigError
from p2ptrain.ids import NodeId

if TYPE_CHECKING:
    from zeroconf import ServiceInfo, Zeroconf

SERVICE = "_p2ptrain._tcp.local."
QUEUE_BOUND = 64
RESOLVE_MS = 3000
STOP_S = 5.0

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Announcement:
    """What a node tells its network.

    Args:
        node: this node; its own announcement is ignored by it.
        cluster: what peers must have in common: ``Identity.fingerprint``.
        hosts: the IP addresses at which it listens.
        port: its control port.
    """

    node: NodeId
    cluster: str
    hosts: tuple[str, ...]
    port: int


class MdnsBeacon:
    """Implements ``ports.Beacon``.

    Args:
        mine: what to announce.
        interfaces: IP addresses of the interfaces to use; empty for all.

    Raises:
        ConfigError: the package is missing, or an address is no IP address; a sentence
            for a warning.
    """

    def __init__(self, mine: Announcement, interfaces: tuple[str, ...] = ()) -> None:
        if find_spec("zeroconf") is None:
            raise ConfigError(
                "peers on the local network are not looked for: the package zeroconf "
                "is missing (pip install 'p2ptrain[mdns]'); list seeds instead"
            )
        for host in mine.hosts:
            try:
                ip_address(host)
            except ValueError as error:
                raise ConfigError(f"cannot announce {host!r}: {error}") from error
        self._mine = mine
        self._interfaces = interfaces

    async def run(self, found: Callable[[str], None]) -> None:
        """Announce this node and call ``found(address)`` for each address of each peer
        of the same cluster, until cancelled.

        Raises:
            ConfigError: the network lets nobody multicast; a sentence for a warning.
        """
        send, receive = trio.open_memory_channel[str](QUEUE_BOUND)
        token = trio.lowlevel.current_trio_token()
        heard = partial(_hop, token, send)
        try:
            zeroconf = await trio.to_thread.run_sync(self._start, heard)
        except OSError as error:
            raise ConfigError(
                f"peers on the local network are not looked for: {error}"
            ) from error
        try:
            async for name in receive:
                for address in await self._resolve(zeroconf, name):
                    found(address)
        finally:
            with trio.CancelScope(shield=True), trio.move_on_after(STOP_S):
                await trio.to_thread.run_sync(zeroconf.close, abandon_on_cancel=True)

    def _start(self, heard: Callable[[str], None]) -> "Zeroconf":
        """Announce and browse; runs in a thread."""
        from zeroconf import (  # noqa: PLC0415  # optional, and slow to import
            InterfaceChoice,
            ServiceBrowser,
            Zeroconf,
        )

        def changed(**event: Any) -> None:
            heard(event["name"])

        choice: Any = list(self._interfaces) or InterfaceChoice.All
        zeroconf = Zeroconf(interfaces=choice)
        try:
            zeroconf.register_service(self._service())
            ServiceBrowser(zeroconf, SERVICE, handlers=[changed])
        except OSError:
            zeroconf.close()
            raise
        return zeroconf

    def _service(self) -> "ServiceInfo":
        from zeroconf import ServiceInfo  # noqa: PLC0415

        mine = self._mine
        return ServiceInfo(
            SERVICE,
            f"{mine.node}.{SERVICE}",
            port=mine.port,
            addresses=[
                socket.inet_pton(
                    socket.AF_INET6 if ":" in host else socket.AF_INET, host
                )
                for host in mine.hosts
            ],
            properties={"cluster": mine.cluster, "node": mine.node},
            server=f"{mine.node}.local.",
        )

    async def _resolve(self, zeroconf: "Zeroconf", name: str) -> list[str]:
        """Return the addresses behind a service name, none if it is not a peer."""
        info = await trio.to_thread.run_sync(
            partial(zeroconf.get_service_info, SERVICE, name, RESOLVE_MS),
            abandon_on_cancel=True,
        )
        if info is None or info.port is None:
            return []
        said = info.decoded_properties
        if said.get("node") == self._mine.node:
            return []
        if said.get("cluster") != self._mine.cluster:
            _log.debug("other_cluster_seen", service=name, cluster=said.get("cluster"))
            return []
        return [_address(host, info.port) for host in info.parsed_addresses()]


def _hop(
    token: trio.lowlevel.TrioToken, send: trio.MemorySendChannel[str], name: str
) -> None:
    """Bring a name from zeroconf's thread to trio; what is dropped comes again."""

    def put() -> None:
        try:
            send.send_nowait(name)
        except (trio.WouldBlock, trio.BrokenResourceError):
            _log.debug("service_name_dropped", service=name)

    try:
        token.run_sync_soon(put)
    except trio.RunFinishedError:
        _log.debug("service_name_late", service=name)


def _address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
