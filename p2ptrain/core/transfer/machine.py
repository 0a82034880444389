"""How one blob comes here from its holders: a pure machine.

The blob is asked for in pieces, from several sources at once, within a window; what
comes early waits for what is due, so the partial file grows from its beginning and its
size alone says where to go on. A source that fails is left alone for a while and given
up when it keeps failing; a piece that is due and late is asked for elsewhere too.

Only the whole blob can be checked. When its hash is wrong, and all of it came from one
source, that source is not asked again. When it came from several, or partly from before
a restart, nobody can be blamed: it is fetched again, from one source at a time.
"""

import heapq
import math
import random
from enum import Enum, auto
from typing import assert_never

from p2ptrain.core.transfer.sources import Source, Sources
from p2ptrain.core.transfer.types import (
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
    TransferConfig,
    Write,
)
from p2ptrain.ids import NodeId

CORRUPT_MAX = 8  # wrong hashes before the transfer is given up


class Phase(Enum):
    """Where a transfer is."""

    NEW = auto()
    OPENING = auto()
    FETCHING = auto()
    SEALING = auto()
    OVER = auto()


class Transfer:
    """The machine; see the module's docstring.

    Args:
        size: of the blob, in bytes.
        config: bounds and times.
        rng: spreads the receivers of one blob over its holders.
    """

    def __init__(self, size: int, config: TransferConfig, rng: random.Random) -> None:
        self._size = size
        self._config = config
        self._sources = Sources(config, rng)
        self._phase = Phase.NEW
        self._resumed = False
        self._corrupt = 0
        self._base = 0  # where the pieces begin
        self._head = 0  # bytes written
        self._asked = 0  # bytes asked for at least once
        self._again: list[int] = []  # heap of offsets to ask for once more
        self._early: dict[int, bytes] = {}  # at most a window of pieces
        self._effects: list[Effect] = []
        self._deadline = math.inf

    @property
    def held(self) -> int:
        """Bytes that are in the partial file."""
        return self._head

    @property
    def deadline(self) -> float:
        """When the next Tick is due."""
        return self._deadline

    def step(self, now: float, event: Event) -> list[Effect]:
        """Take one event; an answer to nothing that is under way changes nothing."""
        self._effects.clear()
        match event:
            case Tick():
                pass
            case Offered(sources):
                self._offered(sources)
            case Opened(held):
                self._opened(held)
            case Arrived(source, offset, data):
                self._arrived(now, source, offset, data)
            case Failed() | Refused():
                self._lost(now, event)
            case Sealed(good):
                self._sealed(good=good)
            case _:
                assert_never(event)
        self._deadline = math.inf
        if self._phase is Phase.FETCHING:
            self._go_on(now)
        return self._effects.copy()

    def _offered(self, nodes: tuple[NodeId, ...]) -> None:
        self._sources.add(nodes)
        if self._phase is Phase.NEW:
            self._open()

    def _open(self) -> None:
        self._phase = Phase.OPENING
        self._effects.append(Open())

    def _opened(self, held: int) -> None:
        if self._phase is Phase.OPENING:
            self._phase = Phase.FETCHING
            self._base = self._head = self._asked = held
            self._resumed = held > 0

    def _arrived(self, now: float, node: NodeId, offset: int, data: bytes) -> None:
        landed = self._sources.landed(node, offset)
        if landed is None:
            return
        source, asked_at = landed
        if len(data) != self._length(offset):
            source.drop(f"sent {len(data)} bytes of {self._length(offset)}")
            self._missing(offset)
            return
        source.answered(now - asked_at)
        if not self._sources.may_send(source):
            self._missing(offset)
        elif self._lacks(offset):
            source.supplied = True
            self._early[offset] = data
        while (due := self._early.pop(self._head, None)) is not None:
            self._effects.append(Write(self._head, due))
            self._head += len(due)

    def _lost(self, now: float, event: Failed | Refused) -> None:
        landed = self._sources.landed(event.source, event.offset)
        if landed is None:
            return
        source, asked_at = landed
        if isinstance(event, Refused):
            source.drop(event.reason)
        else:
            self._sources.strike(source, asked_at, now, event.reason)
        self._missing(event.offset)

    def _missing(self, offset: int) -> None:
        """Ask once more, unless it is here or under way elsewhere."""
        if self._lacks(offset) and not self._sources.asked_for(offset):
            heapq.heappush(self._again, offset)

    def _lacks(self, offset: int) -> bool:
        """Whether this piece was asked for, since the last Open, and is not here."""
        asked = self._head <= offset < self._asked
        whole = (offset - self._base) % self._config.piece_bytes == 0
        return asked and whole and offset not in self._early

    def _sealed(self, *, good: bool) -> None:
        if self._phase is not Phase.SEALING:
            return
        if good:
            self._end(Done())
            return
        self._corrupt += 1
        left = self._sources.blame(resumed=self._resumed)
        if left and self._corrupt < CORRUPT_MAX:
            self._open()
        else:
            self._end(GiveUp(self._sources.problems()))

    def _go_on(self, now: float) -> None:
        """Ask for what may be asked for, or end."""
        if self._head >= self._size:
            self._phase = Phase.SEALING
            self._effects.append(Seal())
            return
        while (offset := self._next()) is not None:
            source = self._sources.pick(now)
            if source is None:
                break
            self._take(offset)
            self._ask(now, source, offset)
        if self._sources.exhausted:
            self._end(GiveUp(self._sources.problems()))
            return
        self._ask_elsewhere(now)
        self._deadline = min(self._deadline, self._sources.next_again(now))

    def _next(self) -> int | None:
        """Return the first offset that may be asked for."""
        if self._again:
            return self._again[0]
        reach = self._head + self._config.window * self._config.piece_bytes
        return self._asked if self._asked < min(self._size, reach) else None

    def _take(self, offset: int) -> None:
        if self._again:
            heapq.heappop(self._again)
        else:
            self._asked += self._length(offset)

    def _ask(self, now: float, source: Source, offset: int) -> None:
        if offset in source.flying:
            return  # from before the last Open
        timeout = self._sources.timeout_s(source)
        source.flying[offset] = now
        self._effects.append(Fetch(source.node, offset, self._length(offset), timeout))

    def _ask_elsewhere(self, now: float) -> None:
        """Ask an idle source too for a piece that is due and late."""
        asked = self._sources.asked_for(self._head)
        if len(asked) != 1 or self._sources.alone:
            return
        late_at = asked[0].flying[self._head] + self._config.patience_s
        other = self._sources.pick(now)
        if other is None or other.flying:
            return
        if now >= late_at:
            self._ask(now, other, self._head)
        else:
            self._deadline = late_at

    def _length(self, offset: int) -> int:
        return min(self._config.piece_bytes, self._size - offset)

    def _end(self, effect: Done | GiveUp) -> None:
        self._phase = Phase.OVER
        self._effects.append(effect)
