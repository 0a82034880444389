"""P2ptrain: machines that people already own train one model together.

``capture`` turns a model into a job's graph; it is imported on first use, for it needs
torch, and most of this package does not.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from p2ptrain.engine.capture import capture

__all__ = ["capture"]
__version__ = "0.1.0"


def __getattr__(name: str) -> object:
    if name == "capture":
        from p2ptrain.engine.capture import capture  # noqa: PLC0415  # costs a second

        return capture
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
