"""The gate for local clients; see ``actor``."""

from p2ptrain.actors.gate.actor import GateActor, GatePorts

__all__ = ["GateActor", "GatePorts"]
