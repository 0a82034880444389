"""Where a weight or samples are, as text: parsing is total and touches no file.

- ``file:///data/x.npy``: a ``.npy`` file, or raw little-endian elements;
- ``npz:///data/x.npz#images``: a member of an ``.npz`` archive;
- ``safetensors:///models/m.safetensors#encoder.weight``: a tensor by name;
- ``gguf:///models/m.gguf#blk.0.attn_q.weight``: a tensor by name;
- ``blob:<blake3>`` or ``blob:<blake3>#name``: a content-addressed file, whatever of the
  above it is;
- ``init:kaiming?seed=7``: numbers made by a rule (weights and buffers only).

Paths are absolute and taken literally: there is no escaping. The name is what follows
the first ``#`` (a path with ``#`` in it can therefore only be a ``file:`` path, which
has no name).

Rules after ``init:`` and their parameters, all optional: ``zeros``; ``ones``;
``uniform`` (low 0, high 1); ``normal`` (mean 0, std 1); ``kaiming`` (dist uniform,
mode fan_in, nonlinearity leaky_relu, a 0); ``xavier`` (dist uniform, gain 1); each with
a ``seed`` (0). Their meanings are those of ``torch.nn.init``; ``dist=normal`` stands
for the ``_normal_`` variants.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from p2ptrain.ids import Digest, is_digest

SEED_MAX: Final = 2**63 - 1


class UriError(ValueError):
    """A URI is malformed; one clause for a sentence."""


class Scheme(StrEnum):
    """URI schemes that name a path."""

    FILE = "file"
    NPZ = "npz"
    SAFETENSORS = "safetensors"
    GGUF = "gguf"


@dataclass(frozen=True, slots=True)
class PathUri:
    """A file of the node, and the name of a tensor in it (empty for ``file:``)."""

    scheme: Scheme
    path: str
    name: str


@dataclass(frozen=True, slots=True)
class BlobUri:
    """A content-addressed file, and the name of a tensor in it or nothing."""

    digest: Digest
    name: str


@dataclass(frozen=True, slots=True)
class InitUri:
    """A rule that makes initial values.

    ``options`` has every parameter of the rule, numbers as numbers.
    """

    rule: str
    seed: int
    options: Mapping[str, float | str]


Uri = PathUri | BlobUri | InitUri

_DISTS: Final = ("uniform", "normal")
_MODES: Final = ("fan_in", "fan_out")
NONLINEARITIES: Final = ("leaky_relu", "relu", "linear", "sigmoid", "tanh", "selu")

# rule -> option -> default; a tuple lists words, the first is the default
_RULES: Final[Mapping[str, Mapping[str, float | tuple[str, ...]]]] = {
    "zeros": {},
    "ones": {},
    "uniform": {"low": 0.0, "high": 1.0},
    "normal": {"mean": 0.0, "std": 1.0},
    "kaiming": {
        "dist": _DISTS,
        "mode": _MODES,
        "nonlinearity": NONLINEARITIES,
        "a": 0.0,
    },
    "xavier": {"dist": _DISTS, "gain": 1.0},
}
FAN_RULES: Final = frozenset({"kaiming", "xavier"})
CONSTANT_RULES: Final = frozenset({"zeros", "ones"})

_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_SEED = re.compile(r"[0-9]{1,19}")
_NUMBER = re.compile(
    r"[+-]?([0-9]{1,40}(\.[0-9]{0,40})?|\.[0-9]{1,40})(e[+-]?[0-9]{1,3})?"
)


def parse_uri(text: str) -> Uri:
    """Return what a URI means.

    Raises:
        UriError: it is none of the forms above.
    """
    if _CONTROL.search(text):
        raise UriError("a control character is not allowed in a URI")
    scheme, colon, rest = text.partition(":")
    if not colon:
        raise UriError("a URI begins with a scheme such as file: or init:")
    if scheme == "blob":
        return _blob(rest)
    if scheme == "init":
        return _init(rest)
    if scheme not in Scheme.__members__.values():
        known = ", ".join(f"{s}:" for s in (*Scheme, "blob", "init"))
        raise UriError(f"scheme {scheme[:20]!r} is none of {known}")
    return _path(Scheme(scheme), rest)


def _path(scheme: Scheme, rest: str) -> PathUri:
    if not rest.startswith("//"):
        raise UriError(f"write {scheme}:// and an absolute path")
    path, name = rest[2:], ""
    if scheme is not Scheme.FILE:
        path, _, name = path.partition("#")
        if not name:
            raise UriError(f"{scheme}: needs the tensor's name after #")
    if not path.startswith("/"):
        raise UriError(f"path {path[:80]!r} is not absolute")
    return PathUri(scheme, path, name)


def _blob(rest: str) -> BlobUri:
    digest, mark, name = rest.partition("#")
    if not is_digest(digest):
        raise UriError("blob: is followed by 64 lower-case hex digits")
    if mark and not name:
        raise UriError("# is followed by a tensor's name")
    return BlobUri(Digest(digest), name)


def _init(rest: str) -> InitUri:
    rule, _, query = rest.partition("?")
    known = _RULES.get(rule)
    if known is None:
        raise UriError(f"init rule {rule[:20]!r} is none of {', '.join(_RULES)}")
    given = _query(query)
    seed = _seed(given.pop("seed", "0"))
    options: dict[str, float | str] = {}
    for name, default in known.items():
        options[name] = _option(name, default, given.pop(name, None))
    if given:
        raise UriError(
            f"init rule {rule!r} has no parameter {next(iter(given))[:20]!r}"
        )
    _check_options(options)
    return InitUri(rule, seed, MappingProxyType(options))


def _query(text: str) -> dict[str, str]:
    given: dict[str, str] = {}
    for item in text.split("&") if text else ():
        name, _, value = item.partition("=")
        if name in given:
            raise UriError(f"parameter {name[:20]!r} stands twice")
        given[name] = value
    return given


def _seed(text: str) -> int:
    if not _SEED.fullmatch(text) or int(text) > SEED_MAX:
        raise UriError(f"seed {text[:24]!r} is no integer from 0 to 2**63 - 1")
    return int(text)


def _option(
    name: str, default: float | tuple[str, ...], text: str | None
) -> float | str:
    if isinstance(default, tuple):
        if text is not None and text not in default:
            raise UriError(f"{name} {text[:20]!r} is none of {', '.join(default)}")
        return text or default[0]
    if text is None:
        return default
    if not _NUMBER.fullmatch(text) or not math.isfinite(float(text)):
        raise UriError(f"{name} {text[:24]!r} is no finite number")
    return float(text)


def _check_options(options: Mapping[str, float | str]) -> None:
    low, high, std = (options.get(name, 0.0) for name in ("low", "high", "std"))
    assert isinstance(low, float)
    assert isinstance(high, float)
    assert isinstance(std, float)
    if low > high:
        raise UriError(f"low {low} is above high {high}")
    if std < 0:
        raise UriError(f"std {std} is negative")
