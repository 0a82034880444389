"""This node's part in sessions; see ``actor``."""

from p2ptrain.actors.worker.actor import WorkerActor
from p2ptrain.actors.worker.jobs import TrainerSettings, WorkerPorts

__all__ = ["TrainerSettings", "WorkerActor", "WorkerPorts"]
