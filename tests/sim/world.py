"""A deterministic world: virtual time, a heap of events, and a network that misbehaves.

Everything follows from one seed. Nodes are objects with ``handle(now, event)``,
``wake(now)`` and ``deadline``; what they send goes through ``World.send``.
"""

import heapq
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Weather:
    """How the network is: chances and delays in seconds."""

    loss: float = 0.0
    twice: float = 0.0
    delay: tuple[float, float] = (0.001, 0.01)
    straggle: float = 0.0  # chance of a delay of up to half a second


CALM = Weather()
STORM = Weather(loss=0.1, twice=0.05, delay=(0.001, 0.05), straggle=0.05)


@dataclass(order=True)
class Due:
    at: float
    serial: int
    act: Callable[[], None] = field(compare=False)


class World:
    """Time, the network, and what happened last (for a failing seed's trace)."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.seed = seed
        self.now = 0.0
        self.weather = CALM
        self.cut: set[tuple[int, int]] = set()  # (from, to) pairs that lose all
        self.trace: deque[str] = deque(maxlen=400)
        self._heap: list[Due] = []
        self._serial = 0

    def later(self, delay: float, act: Callable[[], None]) -> None:
        self._serial += 1
        heapq.heappush(self._heap, Due(self.now + delay, self._serial, act))

    def send(self, source: int, target: int, deliver: Callable[[], None]) -> None:
        """Carry something from node to node, as the weather is when it leaves."""
        weather, rng = self.weather, self.rng
        if (source, target) in self.cut or rng.random() < weather.loss:
            return
        copies = 2 if rng.random() < weather.twice else 1
        for _ in range(copies):
            delay = rng.uniform(*weather.delay)
            if rng.random() < weather.straggle:
                delay += rng.uniform(0, 0.5)
            self.later(delay, deliver)

    def note(self, text: str) -> None:
        self.trace.append(f"{self.now:9.4f} {text}")

    def run(self, until: float, check: Callable[[], None]) -> None:
        """Do what is due until a time; check after each event."""
        while self._heap and self._heap[0].at <= until:
            due = heapq.heappop(self._heap)
            self.now = max(self.now, due.at)
            due.act()
            check()
        self.now = max(self.now, until)

    def partition(self, sides: list[list[int]], *, one_way: bool = False) -> None:
        """Cut every link between two sides, or only from the first to the second."""
        self.cut = {
            (a, b)
            for i, left in enumerate(sides)
            for j, right in enumerate(sides)
            if (i < j if one_way else i != j)
            for a in left
            for b in right
        }
