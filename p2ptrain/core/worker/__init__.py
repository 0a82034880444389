"""A worker's part in a session, as a pure core; see ``machine``."""

from p2ptrain.core.worker.machine import SessionWorker
from p2ptrain.core.worker.types import (
    Adopt,
    Adopted,
    Effect,
    EndTrainer,
    Event,
    Fetch,
    Fetched,
    Fetching,
    Forget,
    FromProcess,
    Launch,
    MasterChanged,
    Ordered,
    Report,
    Tell,
    Tick,
)

__all__ = [
    "Adopt",
    "Adopted",
    "Effect",
    "EndTrainer",
    "Event",
    "Fetch",
    "Fetched",
    "Fetching",
    "Forget",
    "FromProcess",
    "Launch",
    "MasterChanged",
    "Ordered",
    "Report",
    "SessionWorker",
    "Tell",
    "Tick",
]
