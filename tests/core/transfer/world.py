"""A disk and holders for one transfer, in virtual time."""

import heapq
import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import assert_never

from p2ptrain.core.transfer import (
    Arrived,
    Done,
    Effect,
    Event,
    Failed,
    Fetch,
    GiveUp,
    Offered,
    Open,
    Opened,
    Refused,
    Seal,
    Sealed,
    Tick,
    Transfer,
    TransferConfig,
    Write,
)
from p2ptrain.ids import NodeId

# (what is asked, the right bytes, rng) -> the answer, and after how many seconds
Holder = Callable[[Fetch, bytes, random.Random], tuple[float, Event]]


def node(name: str) -> NodeId:
    return NodeId(name.encode().hex().ljust(32, "0"))


def honest(seconds: float = 0.01) -> Holder:
    def answer(ask: Fetch, right: bytes, rng: random.Random) -> tuple[float, Event]:
        return rng.uniform(0, seconds), Arrived(ask.source, ask.offset, right)

    return answer


def dead(ask: Fetch, right: bytes, rng: random.Random) -> tuple[float, Event]:
    return ask.timeout_s, Failed(ask.source, ask.offset, "no answer")


def empty(ask: Fetch, right: bytes, rng: random.Random) -> tuple[float, Event]:
    return 0.01, Refused(ask.source, ask.offset, "is not held here")


def short(ask: Fetch, right: bytes, rng: random.Random) -> tuple[float, Event]:
    return 0.01, Arrived(ask.source, ask.offset, right[:-1])


def corrupt(ask: Fetch, right: bytes, rng: random.Random) -> tuple[float, Event]:
    return 0.01, Arrived(ask.source, ask.offset, bytes(len(right)))


def flaky(loss: float) -> Holder:
    def answer(ask: Fetch, right: bytes, rng: random.Random) -> tuple[float, Event]:
        some = dead if rng.random() < loss else honest()
        return some(ask, right, rng)

    return answer


def dies_at(offset: int) -> Holder:
    def answer(ask: Fetch, right: bytes, rng: random.Random) -> tuple[float, Event]:
        some = dead if ask.offset >= offset else honest()
        return some(ask, right, rng)

    return answer


@dataclass
class World:
    """Runs a transfer to its end; ``disk`` outlives it, as a file does."""

    data: bytes
    holders: dict[str, Holder]
    config: TransferConfig
    disk: bytearray = field(default_factory=bytearray)
    seed: int = 0
    now: float = 0.0
    asks: list[Fetch] = field(default_factory=list)
    seals: int = 0
    most_in_flight: int = 0

    def run(
        self, limit: int = 10_000, halt_at: int | None = None
    ) -> Done | GiveUp | None:
        """Return how it ended; None when it was halted with so many bytes on disk."""
        self._rng = random.Random(self.seed)
        self._queue: list[tuple[float, int, Event]] = []
        self._order = itertools.count()
        self._holder_of = {node(name): holder for name, holder in self.holders.items()}
        self._flying: dict[tuple[NodeId, int], int] = {}
        core = Transfer(len(self.data), self.config, random.Random(self.seed))
        self._after(0, Offered(tuple(self._holder_of)))
        for _ in range(limit):
            event = self._next(core.deadline)
            for effect in core.step(self.now, event):
                if isinstance(effect, Done | GiveUp):
                    return effect
                self._perform(effect)
            if halt_at is not None and len(self.disk) >= halt_at:
                return None
        raise AssertionError("the transfer does not end")

    def _after(self, seconds: float, event: Event) -> None:
        at = self.now + seconds
        heapq.heappush(self._queue, (at, next(self._order), event))

    def _next(self, deadline: float) -> Event:
        assert self._queue or deadline < float("inf"), "it waits for nothing"
        if self._queue and self._queue[0][0] <= deadline:
            self.now, _, event = heapq.heappop(self._queue)
            if isinstance(event, Arrived | Failed | Refused):
                self._flying[event.source, event.offset] -= 1
            return event
        self.now = deadline
        return Tick()

    def _perform(self, effect: Effect) -> None:
        match effect:
            case Open():
                self._after(0, Opened(len(self.disk)))
            case Fetch():
                self._fetch(effect)
            case Write(offset, data):
                assert offset == len(self.disk), "written out of order"
                self.disk += data
            case Seal():
                self._seal()
            case Done() | GiveUp():
                raise AssertionError
            case _:
                assert_never(effect)

    def _fetch(self, ask: Fetch) -> None:
        self.asks.append(ask)
        key = (ask.source, ask.offset)
        self._flying[key] = self._flying.get(key, 0) + 1
        flying = [of for of, count in self._flying.items() if count]
        assert max(self._flying.values()) <= 1, "asked twice for one thing"
        for each in self._holder_of:
            mine = [of for of in flying if of[0] == each]
            assert len(mine) <= self.config.per_source
        assert ask.offset < len(self.disk) + self._window()
        self.most_in_flight = max(self.most_in_flight, len(flying))
        right = self.data[ask.offset : ask.offset + ask.length]
        assert len(right) == ask.length
        self._after(*self._holder_of[ask.source](ask, right, self._rng))

    def _window(self) -> int:
        return (self.config.window + 1) * self.config.piece_bytes

    def _seal(self) -> None:
        self.seals += 1
        assert len(self.disk) == len(self.data)
        good = bytes(self.disk) == self.data
        if not good:
            self.disk.clear()
        self._after(0.01, Sealed(good))
