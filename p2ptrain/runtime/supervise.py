"""The supervisor: the only place that catches every exception.

An edge actor is restarted with growing pauses; one that keeps failing, and any actor
that owns durable state, ends the process, so that it starts again from what was saved.
"""

from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import structlog
import trio

from p2ptrain.errors import LocalError, StorageError, sole

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Policy:
    """How often an actor may fail within ``window_s`` seconds before we give up."""

    restarts: int
    window_s: float = 60.0
    pause_s: float = 0.2


ONCE = Policy(restarts=0)
EDGE = Policy(restarts=5)


async def supervise(
    name: str, run: Callable[[], Awaitable[None]], policy: Policy
) -> None:
    """Run an actor until it returns or is cancelled, starting it again as policy says.

    Args:
        name: for the log.
        run: one life of the actor; must be callable again.
        policy: how many failures are forgiven.

    Raises:
        LocalError: the actor failed more often than the policy allows.
    """
    failures: deque[float] = deque(maxlen=policy.restarts + 1)
    while True:
        try:
            await run()
        except Exception as error:
            now = trio.current_time()
            failures.append(now)
            recent = [at for at in failures if now - at < policy.window_s]
            cause = sole(error)
            if isinstance(cause, StorageError):  # the disk's fault needs no trace
                _log.error("actor failed", actor=name, reason=str(cause))
            else:
                _log.error("actor failed", actor=name, exc_info=error)
            if len(recent) > policy.restarts:
                sentence = f"{name} failed {len(recent)} times: {cause}"
                raise LocalError(sentence) from error
            await trio.sleep(policy.pause_s * 2 ** (len(recent) - 1))
        else:
            return
