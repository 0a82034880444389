"""Membership as a pure core: SWIM with Lifeguard; see ``machine``."""

from p2ptrain.core.membership.machine import Membership
from p2ptrain.core.membership.types import (
    Changed,
    Effect,
    Event,
    Failed,
    Forget,
    Found,
    LeaveNow,
    Load,
    MembershipConfig,
    Received,
    SendTo,
    Tick,
)

__all__ = [
    "Changed",
    "Effect",
    "Event",
    "Failed",
    "Forget",
    "Found",
    "LeaveNow",
    "Load",
    "Membership",
    "MembershipConfig",
    "Received",
    "SendTo",
    "Tick",
]
