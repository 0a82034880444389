"""P2ptrain: machines that people already own train one model together.

``capture`` turns a model into a job's graph, ``submit`` hands a job in and gives its
session. Both are imported on first use: ``capture`` needs torch, and most of this
package does not.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from p2ptrain.api import AsyncSession, Session, submit, submit_async
    from p2ptrain.engine.capture import capture

__all__ = ["AsyncSession", "Session", "capture", "submit", "submit_async"]
__version__ = "0.1.0"


def __getattr__(name: str) -> object:
    if name == "capture":
        from p2ptrain.engine.capture import capture  # noqa: PLC0415  # costs a second

        return capture
    if name in __all__:
        from p2ptrain import api  # noqa: PLC0415  # not needed by a daemon

        return getattr(api, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
