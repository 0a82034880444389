"""Configuration, events and effects of a transfer."""

from dataclasses import dataclass

from p2ptrain.ids import NodeId


@dataclass(frozen=True, slots=True)
class TransferConfig:
    """Bounds and times, in bytes and seconds.

    Args:
        piece_bytes: size of a request's answer.
        window: pieces from the first missing one on that may be asked for.
        per_source: requests under way at one source that has answered; one otherwise.
        timeout_s: of a request, at least; more for a source that takes long or failed.
        timeout_max_s: of a request, at most.
        patience_s: after which a piece that is due is asked for elsewhere too.
        pause_min_s: after a source's first failure; doubles with each one.
        pause_max_s: longest pause.
        strikes: failures in a row that end a source.
    """

    piece_bytes: int = 1 << 20
    window: int = 8
    per_source: int = 4
    timeout_s: float = 5.0
    timeout_max_s: float = 60.0
    patience_s: float = 1.5
    pause_min_s: float = 0.2
    pause_max_s: float = 5.0
    strikes: int = 3


@dataclass(frozen=True, slots=True)
class Tick:
    """The deadline has passed."""


@dataclass(frozen=True, slots=True)
class Offered:
    """These nodes may hold the blob; the first such event starts the transfer."""

    sources: tuple[NodeId, ...]


@dataclass(frozen=True, slots=True)
class Opened:
    """The partial file is there and holds this many bytes."""

    held: int


@dataclass(frozen=True, slots=True)
class Arrived:
    """A source answered a Fetch."""

    source: NodeId
    offset: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Failed:
    """A Fetch got no answer; the source may answer the next one."""

    source: NodeId
    offset: int
    reason: str


@dataclass(frozen=True, slots=True)
class Refused:
    """A source does not hold the blob, or answers nonsense."""

    source: NodeId
    offset: int
    reason: str


@dataclass(frozen=True, slots=True)
class Sealed:
    """``good``: the bytes match the digest, the blob is stored; else the partial file
    is gone.
    """

    good: bool


@dataclass(frozen=True, slots=True)
class Open:
    """Make or find the partial file; answered by Opened."""


@dataclass(frozen=True, slots=True)
class Fetch:
    """Ask a source for a piece; answered by Arrived, Failed or Refused."""

    source: NodeId
    offset: int
    length: int
    timeout_s: float


@dataclass(frozen=True, slots=True)
class Write:
    """Append the next bytes to the partial file."""

    offset: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Seal:
    """Verify and store the complete blob; answered by Sealed."""


@dataclass(frozen=True, slots=True)
class Done:
    """The blob is stored."""


@dataclass(frozen=True, slots=True)
class GiveUp:
    """No source has it; the reason names each and what was wrong."""

    reason: str


Event = Tick | Offered | Opened | Arrived | Failed | Refused | Sealed
Effect = Open | Fetch | Write | Seal | Done | GiveUp
