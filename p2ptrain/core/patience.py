"""How long to wait for what usually takes some time: from what was observed."""

import statistics
from collections import deque

KEPT = 64
SPREADS = 8.0


class Patience:
    """A deadline that follows observations.

    Args:
        floor_s: it is never less.
        cap_s: nor more.
        times: of the usual time, before its spread is added.
    """

    def __init__(self, floor_s: float, cap_s: float, times: float) -> None:
        self._floor_s, self._cap_s, self._times = floor_s, cap_s, times
        self._seen: deque[float] = deque(maxlen=KEPT)

    def observe(self, seconds: float) -> None:
        """Learn how long it took."""
        self._seen.append(seconds)

    def forget(self) -> None:
        """Begin anew."""
        self._seen.clear()

    @property
    def limit_s(self) -> float:
        """Seconds after which it is late: the median times ``times``, and ``SPREADS``
        median deviations.
        """
        if not self._seen:
            return self._floor_s
        middle = statistics.median(self._seen)
        spread = statistics.median(abs(seen - middle) for seen in self._seen)
        wanted = self._times * middle + SPREADS * spread
        return min(self._cap_s, max(self._floor_s, wanted))
