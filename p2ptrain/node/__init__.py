"""The composition root: the only place that knows both actors and adapters."""

from p2ptrain.node.run import run_node

__all__ = ["run_node"]
