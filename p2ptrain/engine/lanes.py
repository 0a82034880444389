"""Lanes: devices that run parts of a step side by side.

Results come back in the order of the parts, whichever lane computed them and however
fast, so that sums of them do not depend on timing. Each lane has at most ``AHEAD``
parts that are computed or being computed but not yet taken: that bounds the memory.
"""

from collections import deque
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Final, Generic, TypeVar

from p2ptrain.engine.devices import spread

ResultT = TypeVar("ResultT")

AHEAD: Final = 2


class Lanes(Generic[ResultT]):
    """The lanes of one trainer.

    Args:
        runs: for each lane, what runs a (step, part) on it.
        weights: how fast each lane is.
    """

    def __init__(
        self,
        runs: Sequence[Callable[[int, int], ResultT]],
        weights: Sequence[float],
    ) -> None:
        self._runs = tuple(runs)
        self._weights = tuple(weights)
        self._pools = [
            ThreadPoolExecutor(1, thread_name_prefix=f"lane-{lane}")
            for lane in range(len(runs))
        ]

    def results(
        self, step: int, parts: Sequence[int]
    ) -> Generator[ResultT, None, None]:
        """Yield the result of each part, in order.

        One lane works in the calling thread, several in their own; when the iterator
        is closed early, they finish the parts that they are at.
        """
        if len(self._runs) == 1:
            for part in parts:
                yield self._runs[0](step, part)
            return
        lanes = spread(len(parts), self._weights)
        todo = [
            deque(p for p, at in zip(parts, lanes, strict=True) if at == lane)
            for lane in range(len(self._runs))
        ]
        futures: dict[int, Future[ResultT]] = {}
        ahead = [0] * len(self._runs)
        try:
            for part, lane in zip(parts, lanes, strict=True):
                self._fill(step, todo, ahead, futures)
                result = futures.pop(part).result()
                ahead[lane] -= 1
                yield result
        finally:
            for future in futures.values():
                future.cancel()
            wait(futures.values())

    def close(self) -> None:
        """End the threads when they have done what they are at."""
        for pool in self._pools:
            pool.shutdown()

    def _fill(
        self,
        step: int,
        todo: list[deque[int]],
        ahead: list[int],
        futures: dict[int, Future[ResultT]],
    ) -> None:
        for lane, run in enumerate(self._runs):
            while todo[lane] and ahead[lane] < AHEAD:
                part = todo[lane].popleft()
                futures[part] = self._pools[lane].submit(run, step, part)
                ahead[lane] += 1
