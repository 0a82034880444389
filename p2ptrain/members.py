"""What is known of a member of the cluster; plain data shared by membership, placement,
net and the command line.
"""

from dataclasses import dataclass
from enum import StrEnum

from p2ptrain.ids import NodeId


class MemberStatus(StrEnum):
    """A member as this node sees it."""

    ALIVE = "alive"
    SUSPECT = "suspect"
    DEAD = "dead"
    LEFT = "left"


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a node can do; ``trains`` is false for a witness and where torch is not
    installed.
    """

    version: str
    cores: int
    memory_bytes: int
    trains: bool
    witness: bool = False


@dataclass(frozen=True, slots=True)
class Member:
    """One node: identity, incarnation (rises with every start), status, and its
    ``host:port`` addresses.

    ``control`` takes control messages, ``bulk`` serves blobs.
    """

    node: NodeId
    name: str
    incarnation: int
    status: MemberStatus
    control: str
    bulk: str
    capabilities: Capabilities
