"""A session at the master, as a pure core; see ``machine``."""

from p2ptrain.core.session.machine import SessionMaster
from p2ptrain.core.session.types import (
    AskHold,
    Effect,
    Event,
    Facts,
    Held,
    Note,
    Present,
    Propose,
    Recorded,
    Reported,
    Send,
    SessionConfig,
    Stage,
    StopWanted,
    Tick,
)

__all__ = [
    "AskHold",
    "Effect",
    "Event",
    "Facts",
    "Held",
    "Note",
    "Present",
    "Propose",
    "Recorded",
    "Reported",
    "Send",
    "SessionConfig",
    "SessionMaster",
    "Stage",
    "StopWanted",
    "Tick",
]
