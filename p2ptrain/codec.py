"""Canonical CBOR for everything that is hashed, stored or sent, and the one strict
decoder.

The only module that imports ``cbor2``. Any bytes give a value or a ``PeerError``: the
length is checked before decoding, depth, tags, duplicate keys, indefinite lengths and
unhashable keys are refused, and so are trailing bytes. Dataclasses become maps through
``msgspec``; unknown keys are ignored when a map becomes a dataclass again.
"""

from collections.abc import Iterable
from io import BytesIO
from typing import Any, NoReturn, TypeVar, get_args

import cbor2
import msgspec

from p2ptrain.errors import PeerError

CONTROL_BYTES_MAX = 256 * 1024
DEPTH_MAX = 24

_BUILTIN_TAGS = (
    *(0, 1, 2, 3, 4, 5, 25, 28, 29, 30, 35, 36, 37, 52, 54, 100),
    *(256, 258, 260, 261, 1004, 43000, 55799),
)

T = TypeVar("T")


def _refuse_tag(*_: object) -> NoReturn:
    msg = "a CBOR tag is not allowed"
    raise cbor2.CBORDecodeError(msg)


_TAGS: dict[int, Any] = dict.fromkeys(_BUILTIN_TAGS, _refuse_tag)


def encode(value: object) -> bytes:
    """Return the canonical CBOR of plain values (None, bool, int, float, str, bytes,
    list, tuple, str-keyed dict).
    """
    return cbor2.dumps(value, canonical=True)


def decode(
    data: bytes | bytearray | memoryview, bytes_max: int = CONTROL_BYTES_MAX
) -> Any:
    """Return the plain value that data holds.

    Raises:
        PeerError: too long, malformed, too deep, a tag, a duplicate key, or trailing
            bytes.
    """
    if len(data) > bytes_max:
        msg = f"message of {len(data)} bytes exceeds the bound of {bytes_max}"
        raise PeerError(msg)
    stream = BytesIO(data)
    try:
        value = cbor2.CBORDecoder(
            stream,
            max_depth=DEPTH_MAX,
            allow_duplicate_keys=False,
            allow_indefinite=False,
            strict_hashable_types=True,
            semantic_decoders=_TAGS,
            tag_hook=_refuse_tag,
        ).decode()
    except (
        cbor2.CBORDecodeError,
        ValueError,
        OverflowError,
        MemoryError,
        RecursionError,
    ) as error:
        msg = f"malformed CBOR: {error}"
        raise PeerError(msg) from error
    if stream.tell() != len(data):
        msg = f"{len(data) - stream.tell()} bytes trail the message"
        raise PeerError(msg)
    return value


def to_plain(value: object) -> Any:
    """Return the plain form of a dataclass (or of any plain value)."""
    return msgspec.to_builtins(value, builtin_types=(bytes,))


def from_plain(kind: type[T], plain: object) -> T:
    """Return the dataclass that a plain map describes.

    Raises:
        PeerError: a field is missing or of the wrong type; names its path.
    """
    try:
        return msgspec.convert(plain, kind, strict=True)
    except (msgspec.ValidationError, ValueError) as error:
        msg = f"not a {kind.__name__}: {error}"
        raise PeerError(msg) from error


def kinds(union: object) -> dict[str, type[Any]]:
    """Return the name-to-class table of a closed union of message classes."""
    members: Iterable[type[Any]] = get_args(union)
    return {member.__name__: member for member in members}


def pack(message: object) -> bytes:
    """Return the bytes of a message: a map with its kind ``k`` and its body ``b``."""
    return encode({"k": type(message).__name__, "b": to_plain(message)})


def unpack(
    table: dict[str, type[T]], data: bytes, bytes_max: int = CONTROL_BYTES_MAX
) -> T:
    """Return the message that data holds, one of the classes in table (see ``kinds``).

    Raises:
        PeerError: not a message, or of a kind that the table lacks.
    """
    plain = decode(data, bytes_max)
    if not isinstance(plain, dict) or "k" not in plain or "b" not in plain:
        msg = "not a message: a map with 'k' and 'b' is expected"
        raise PeerError(msg)
    kind = table.get(plain["k"]) if isinstance(plain["k"], str) else None
    if kind is None:
        msg = f"unknown message kind {plain['k']!r}"
        raise PeerError(msg)
    return from_plain(kind, plain["b"])
