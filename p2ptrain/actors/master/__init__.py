"""The lead of all sessions; see ``actor``."""

from p2ptrain.actors.master.actor import MasterActor
from p2ptrain.actors.master.admission import MasterPorts

__all__ = ["MasterActor", "MasterPorts"]
