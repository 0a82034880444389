"""Configuration, events, effects and bounds of membership."""

from dataclasses import dataclass

from p2ptrain.errors import PeerError
from p2ptrain.ids import NodeId, is_node
from p2ptrain.members import Capabilities, Member
from p2ptrain.messages.membership import (
    Gossip,
    Hello,
    MembershipMessage,
    MemberSync,
    Probe,
    ProbeAck,
    ProbeFor,
    ProbeNack,
    Rumor,
)

RUMORS_MAX = 12  # a message; with the bounds below it then stays under 8 KiB
PAGE_MAX = 12  # members in a MemberSync
NAME_BYTES_MAX = 64
ADDRESS_BYTES_MAX = 128
VERSION_BYTES_MAX = 32
INCARNATION_MAX = 2**53


@dataclass(frozen=True, slots=True)
class MembershipConfig:
    """Times in seconds; the defaults are for a LAN.

    A killed node is suspected within ``probe_interval_s`` (some member probes it)
    plus ``probe_timeout_max_s`` plus ``indirect_timeout_s``, and dead
    ``suspicion_min_s`` after that when others confirm.
    """

    probe_interval_s: float = 0.2
    probe_timeout_min_s: float = 0.2
    probe_timeout_max_s: float = 0.5
    indirect_timeout_s: float = 0.35
    helpers: int = 3
    health_max: int = 8
    suspicion_min_s: float = 0.8
    suspicion_max_factor: float = 3.0
    confirmations: int = 2
    gossip_interval_s: float = 0.1
    fanout: int = 3
    transmit_factor: int = 4
    sync_interval_s: float = 10.0
    seed_retry_min_s: float = 0.5
    seed_retry_max_s: float = 5.0
    seed_keep_s: float = 86400.0  # how long a dead member's address is retried
    dead_keep_s: float = 600.0
    forget_s: float = 30.0
    stall_s: float = 0.1  # a step that comes later than this was not the peers' fault
    members_max: int = 256
    seeds_max: int = 256


@dataclass(frozen=True, slots=True)
class Tick:
    """The deadline has passed."""


@dataclass(frozen=True, slots=True)
class Received:
    """A message, from the authenticated ``sender``; ``address`` is informative."""

    sender: NodeId
    address: str
    message: MembershipMessage


@dataclass(frozen=True, slots=True)
class Found:
    """A node may listen at ``address``: from the configuration or from mDNS."""

    address: str


@dataclass(frozen=True, slots=True)
class Failed:
    """A message to ``address`` could not be delivered: a hint, never a proof.

    ``closed``: the node there closed its connection; most likely its process ended.
    """

    address: str
    closed: bool = False


@dataclass(frozen=True, slots=True)
class Forget:
    """The node at ``address`` is not of this cluster: leave it alone for a while."""

    address: str
    reason: str


@dataclass(frozen=True, slots=True)
class Load:
    """This node's capabilities have changed."""

    capabilities: Capabilities


@dataclass(frozen=True, slots=True)
class LeaveNow:
    """This node leaves for good; the others are told."""


@dataclass(frozen=True, slots=True)
class SendTo:
    """Send a message to an address, best effort."""

    address: str
    message: MembershipMessage


@dataclass(frozen=True, slots=True)
class Changed:
    """``member`` is known from now on as shown, or was dropped from the table (then
    it is DEAD or LEFT).
    """

    member: Member


Event = Tick | Received | Found | Failed | Forget | Load | LeaveNow
Effect = SendTo | Changed


def check_message(sender: NodeId, message: MembershipMessage) -> None:
    """Refuse what no honest node sends; total over every message that decodes.

    Raises:
        PeerError: names the field.
    """
    match message:
        case Hello() | Probe() | ProbeFor() | MemberSync():
            check_member(message.me)
            if message.me.node != sender:
                raise PeerError(f"{sender} sent the record of {message.me.node!r:.40}")
        case ProbeAck() | ProbeNack() | Gossip():
            pass
    if isinstance(message, Hello | MemberSync):
        check_text("at", message.at, ADDRESS_BYTES_MAX)
    if isinstance(message, MemberSync):
        check_count(len(message.members), PAGE_MAX)
        for member in message.members:
            check_member(member)
    if isinstance(message, Probe | ProbeFor | ProbeAck | Gossip):
        check_rumors(message.rumors)


def check_rumors(rumors: tuple[Rumor, ...]) -> None:
    """Refuse too many rumors or a malformed one."""
    check_count(len(rumors), RUMORS_MAX)
    for rumor in rumors:
        check_member(rumor.member)
        if not is_node(rumor.by):
            raise PeerError(f"rumor by {rumor.by!r:.40}, which is no node id")


def check_member(member: Member) -> None:
    """Refuse a record with a malformed id or a field over its bound."""
    if not is_node(member.node):
        raise PeerError(f"member.node {member.node!r:.40} is no node id")
    if not 0 <= member.incarnation <= INCARNATION_MAX:
        raise PeerError(f"member.incarnation {member.incarnation!r:.40} out of range")
    check_text("member.name", member.name, NAME_BYTES_MAX)
    check_text("member.control", member.control, ADDRESS_BYTES_MAX)
    check_text("member.bulk", member.bulk, ADDRESS_BYTES_MAX)
    check_text("capabilities.version", member.capabilities.version, VERSION_BYTES_MAX)


def check_text(field: str, text: str, bytes_max: int) -> None:
    """Refuse text over its bound or with characters that no address or name has."""
    if len(text.encode(errors="replace")) > bytes_max or not text.isprintable():
        raise PeerError(f"{field} {text!r:.40} is too long or not printable")


def check_count(count: int, most: int) -> None:
    """Refuse too many items."""
    if count > most:
        raise PeerError(f"{count} records in one message, at most {most} are allowed")
