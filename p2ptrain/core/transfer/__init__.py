"""A blob's way here from several holders; see ``machine``."""

from p2ptrain.core.transfer.machine import Transfer
from p2ptrain.core.transfer.types import (
    Arrived,
    Done,
    Effect,
    Event,
    Failed,
    Fetch,
    GiveUp,
    Offered,
    Open,
    Opened,
    Refused,
    Seal,
    Sealed,
    Tick,
    TransferConfig,
    Write,
)

__all__ = [
    "Arrived",
    "Done",
    "Effect",
    "Event",
    "Failed",
    "Fetch",
    "GiveUp",
    "Offered",
    "Open",
    "Opened",
    "Refused",
    "Seal",
    "Sealed",
    "Tick",
    "Transfer",
    "TransferConfig",
    "Write",
]
