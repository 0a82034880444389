"""The collective of one view: all-reduce in place and the exchange of metas.

Runs ``core.ring`` over ``links``. With one rank nothing is sent and nothing is copied.
"""

import threading

import torch
from torch import Tensor

from p2ptrain.core.ring import Item, MetaPiece, Piece, Reduction, Shape
from p2ptrain.engine.header import META, PIECE, Header
from p2ptrain.engine.links import Links
from p2ptrain.engine.rendezvous import Place, RingListener, meet
from p2ptrain.errors import LinkLostError, PeerError

META_BYTES_MAX = 1024 * 1024
PIECE_BYTES = 1024 * 1024


class Group:
    """A rank's place in the ring of one view; used by one thread, aborted by any.

    Args:
        rank: this rank.
        world: number of ranks.
        view: the view's number.
        stall_s: seconds without a byte after which a link is lost.
    """

    def __init__(self, rank: int, world: int, view: int, stall_s: float) -> None:
        self.rank = rank
        self.world = world
        self._view = view
        self._stall_s = stall_s
        self._links: Links | None = None
        self._stop = threading.Event()
        self._reason = "halted"
        self._turn = 0
        self._scratch = torch.empty(0)

    def open(self, listener: RingListener, place: Place, timeout_s: float) -> None:
        """Meet both neighbours; nothing to do for one rank.

        Raises:
            LinkLostError: a neighbour cannot be reached in time, or ``abort``.
        """
        if self.world == 1:
            return
        try:
            ends = meet(listener, place, timeout_s, self._stop)
        except LinkLostError:
            self._check_alive()
            raise
        self._links = Links(ends, self._view, self._stall_s)
        if self._stop.is_set():  # aborted while we met
            self._links.abort(-1, self._reason)

    def reduce(self, flat: Tensor, meta: bytes) -> tuple[bytes, ...]:
        """Sum a vector over all ranks, in place, and share each rank's meta.

        Args:
            flat: contiguous 1-D tensor on the CPU; the same length on all ranks.
            meta: at most 1 MiB.

        Returns:
            The metas of all ranks, by rank.

        Raises:
            LinkLostError: the view is over; flat then holds no sum.
        """
        assert len(meta) <= META_BYTES_MAX
        if self.world == 1:
            self._check_alive()
            return (meta,)
        if self._links is None:
            raise LinkLostError(-1, self._reason)
        self._turn += 1
        piece = max(1, PIECE_BYTES // flat.element_size())
        shape = Shape(self.rank, self.world, flat.numel(), piece)
        return _Turn(self._links, self._header(), shape, flat).run(
            meta, self._room(flat, piece)
        )

    def exchange(self, meta: bytes) -> tuple[bytes, ...]:
        """Share each rank's meta; as ``reduce`` of nothing."""
        return self.reduce(self._scratch[:0], meta)

    def abort(self, reason: str) -> None:
        """End the view now: every call here and at the other ranks raises."""
        self._reason = reason
        self._stop.set()
        if self._links is not None:
            self._links.abort(-1, reason)

    def close(self) -> None:
        """Leave in peace: what is queued is sent first."""
        if self._links is not None:
            self._links.close()

    def _check_alive(self) -> None:
        if self._stop.is_set():
            raise LinkLostError(-1, self._reason)

    def _header(self) -> Header:
        return Header(PIECE, self._view, turn=self._turn)

    def _room(self, flat: Tensor, piece: int) -> Tensor:
        """Return room for one incoming piece, kept between reductions."""
        if self._scratch.dtype != flat.dtype or self._scratch.numel() < piece:
            self._scratch = torch.empty(piece, dtype=flat.dtype)
        return self._scratch


def solo() -> Group:
    """Return the group of a single rank."""
    return Group(0, 1, 0, 1.0)


class _Turn:
    """One reduction under way."""

    def __init__(
        self, links: Links, header: Header, shape: Shape, flat: Tensor
    ) -> None:
        self._links = links
        self._view = header.view
        self._number = header.turn
        self._reduction = Reduction(shape)
        self._flat = flat
        self._metas: dict[int, bytes] = {}

    def run(self, meta: bytes, room: Tensor) -> tuple[bytes, ...]:
        shape = self._reduction.shape
        self._metas[shape.rank] = meta
        for item in shape.outgoing():
            self._send(item)
        while not self._reduction.done:
            header = self._links.receive_header()
            item = self._expected(header)
            if isinstance(item, MetaPiece):
                self._take_meta(item, header.length)
            else:
                self._take_piece(item, room)
            following = shape.passed_on(item)
            if following is not None:
                self._send(following)
        self._links.flush()  # the caller may overwrite the vector now
        return tuple(self._metas[rank] for rank in range(shape.world))

    def _expected(self, header: Header) -> Item:
        """Return what a header announces, if it is what must come now.

        Raises:
            LinkLostError: it is not; the links are shut.
        """
        item: Item
        if header.kind == META:
            item = MetaPiece(header.op, header.origin)
            fits = header.length <= META_BYTES_MAX
        else:
            size = self._flat.element_size()
            item = Piece(header.op, header.start, header.start + header.length // size)
            fits = header.length % size == 0
        problem = ""
        if header.turn != self._number or not fits:
            problem = f"ring: turn {header.turn} came, this is {self._number}"
        else:
            try:
                self._reduction.received(item)
            except PeerError as error:
                problem = str(error)
        if problem:
            self._links.abort(self._previous, problem)
            raise LinkLostError(self._previous, problem)
        return item

    @property
    def _previous(self) -> int:
        shape = self._reduction.shape
        return (shape.rank - 1) % shape.world

    def _take_meta(self, item: MetaPiece, length: int) -> None:
        buffer = bytearray(length)
        self._links.receive_into(memoryview(buffer))
        self._metas[item.origin] = bytes(buffer)

    def _take_piece(self, item: Piece, room: Tensor) -> None:
        mine = self._flat[item.start : item.stop]
        if not self._reduction.shape.adds(item.op):
            self._links.receive_into(_bytes_of(mine))
            return
        theirs = room[: item.stop - item.start]
        self._links.receive_into(_bytes_of(theirs))
        mine.add_(theirs)

    def _send(self, item: Item) -> None:
        if isinstance(item, MetaPiece):
            body = memoryview(self._metas[item.origin])
            header = Header(META, self._view, origin=item.origin, length=len(body))
        else:
            body = _bytes_of(self._flat[item.start : item.stop])
            header = Header(PIECE, self._view, start=item.start, length=len(body))
        self._links.send(self._stamp(header, item.op), body)

    def _stamp(self, header: Header, op: int) -> Header:
        return Header(
            header.kind,
            header.view,
            turn=self._number,
            op=op,
            origin=header.origin,
            start=header.start,
            length=header.length,
        )


def _bytes_of(tensor: Tensor) -> memoryview:
    return memoryview(tensor.numpy().data).cast("B")
