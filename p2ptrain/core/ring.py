"""Ring all-reduce as a pure machine: which piece comes next, what to do with it.

The algorithm of Patarasuk and Yuan ("Bandwidth optimal all-reduce algorithms for
clusters of workstations", 2009): a vector is cut into as many chunks as there are
ranks; each chunk travels once around the ring being summed (reduce-scatter) and once
more being copied (all-gather). Chunk ``c`` is summed as ``((x_c + x_c+1) + x_c+2) ...``
from rank ``c`` on, whoever runs late, so every rank ends with the same bits.

In operation ``j`` of ``2 (n - 1)`` a rank receives chunk ``(rank - j - 1) mod n``, adds
it to its own (``j < n - 1``) or replaces its own, and passes the outcome on unless it
is the last. Chunks are cut into pieces, and a piece is passed on as soon as it is done.
With the operations of the first half travel the ranks' metas, one each.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from p2ptrain.errors import PeerError

WORLD_MAX = 1024


@dataclass(frozen=True, slots=True)
class Piece:
    """Elements ``[start, stop)`` of the vector, on their way in operation ``op``."""

    op: int
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class MetaPiece:
    """The meta of rank ``origin``, on its way in operation ``op``."""

    op: int
    origin: int


Item = Piece | MetaPiece


@dataclass(frozen=True, slots=True)
class Shape:
    """One all-reduce as a rank sees it.

    Args:
        rank: this rank.
        world: number of ranks, at least 2.
        elements: length of the vector; 0 exchanges metas only.
        piece: most elements in a piece, at least 1.
    """

    rank: int
    world: int
    elements: int
    piece: int

    @property
    def ops(self) -> int:
        """Number of operations."""
        return 2 * (self.world - 1)

    def adds(self, op: int) -> bool:
        """Tell whether what comes in op is added (else it replaces)."""
        return op < self.world - 1

    def chunk(self, index: int) -> range:
        """Return the elements of a chunk; the first chunks are the longer ones."""
        size, extra = divmod(self.elements, self.world)
        start = index * size + min(index, extra)
        return range(start, start + size + (index < extra))

    def outgoing(self) -> Iterator[Item]:
        """Yield what a rank sends before it has received anything."""
        return self._items(0, self.rank)

    def incoming(self) -> Iterator[Item]:
        """Yield what a rank receives, in order."""
        for op in range(self.ops):
            yield from self._items(op, (self.rank - op - 1) % self.world)

    def passed_on(self, item: Item) -> Item | None:
        """Return what to send once an incoming item is done, or None."""
        op = item.op + 1
        match item:
            case MetaPiece(_, origin):
                return MetaPiece(op, origin) if self.adds(op) else None
            case Piece(_, start, stop):
                return Piece(op, start, stop) if op < self.ops else None

    def _items(self, op: int, chunk: int) -> Iterator[Item]:
        if self.adds(op):
            yield MetaPiece(op, chunk)
        span = self.chunk(chunk)
        for start in range(span.start, span.stop, self.piece):
            yield Piece(op, start, min(start + self.piece, span.stop))


class Reduction:
    """One all-reduce of one rank: checks the order of what comes in.

    ``received`` is called with each item as its header arrives; the caller then adds or
    copies its payload and sends what ``passed_on`` says. Anything but the expected item
    is refused: then the view is over, and no part of the sum may be used.
    """

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        self._expected = shape.incoming()
        self._next = next(self._expected, None)

    @property
    def done(self) -> bool:
        """Whether everything has been received."""
        return self._next is None

    def received(self, item: Item) -> None:
        """Take the header of the next item.

        Raises:
            PeerError: it is not the one that must come now.
        """
        if item != self._next:
            raise PeerError(f"ring: {item} came where {self._next} was due")
        self._next = next(self._expected, None)
