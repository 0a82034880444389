"""The fixed header before each frame on a ring link."""

import struct
from dataclasses import dataclass
from typing import Final, Self

from p2ptrain.errors import PeerError

HEADER: Final = struct.Struct("<4sBIQHHQQ")
MAGIC: Final = b"p2pr"
NOBODY: Final = 0xFFFF  # blames no rank: the view was halted on purpose

PIECE, META, BEAT, BLAME = range(4)  # kinds of frames


@dataclass(frozen=True, slots=True)
class Header:
    """What stands before a frame's bytes.

    Args:
        kind: PIECE, META, BEAT (no bytes) or BLAME (a sentence on rank ``origin``).
        view: the view that the link was made for.
        turn: which reduction of the view.
        op: operation of the reduction.
        origin: rank that a meta is of, or that is blamed.
        start: first element of a piece.
        length: bytes that follow.
    """

    kind: int
    view: int
    turn: int = 0
    op: int = 0
    origin: int = 0
    start: int = 0
    length: int = 0

    def pack(self) -> bytes:
        """Return the header's bytes."""
        where = (self.turn, self.op, self.origin, self.start, self.length)
        return HEADER.pack(MAGIC, self.kind, self.view, *where)

    @classmethod
    def unpack(cls, data: bytes) -> Self:
        """Return the header that bytes hold.

        Raises:
            PeerError: they hold none.
        """
        magic, *fields = HEADER.unpack(data)
        if magic != MAGIC or fields[0] > BLAME:
            raise PeerError("not a ring frame")
        return cls(*fields)
