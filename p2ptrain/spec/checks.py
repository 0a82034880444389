"""Small checks that all parts of validation share; each failure is one sentence."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from p2ptrain.errors import SpecError
from p2ptrain.spec.dtypes import SizeError, nbytes
from p2ptrain.spec.graph import Meta, Shape
from p2ptrain.spec.limits import Limits
from p2ptrain.spec.text import show, spell
from p2ptrain.spec.uri import Uri, UriError, parse_uri


@dataclass(frozen=True, slots=True)
class Range:
    """A range of numbers; ``above`` leaves its lower end out, ``below`` its upper."""

    low: float
    high: float = math.inf
    above: bool = False
    below: bool = False

    def holds(self, value: float) -> bool:
        """Tell whether a finite value is in the range."""
        low = value > self.low if self.above else value >= self.low
        high = value < self.high if self.below else value <= self.high
        return math.isfinite(value) and low and high

    def __str__(self) -> str:
        """Return the range for a sentence."""
        left = f"above {self.low}" if self.above else f"at least {self.low}"
        if self.high == math.inf:
            return left
        return f"{left} and {'below' if self.below else 'at most'} {self.high}"


def require(field: str, problem: str, *, unless: bool) -> None:
    """Check a condition.

    Raises:
        SpecError: it does not hold.
    """
    if not unless:
        raise SpecError(field, problem)


def check_number(field: str, value: float, wanted: Range) -> None:
    """Check a number.

    Raises:
        SpecError: it is not finite or out of range.
    """
    if isinstance(value, int) and value.bit_length() > 64:
        raise SpecError(field, f"is {show(value)}, must be {wanted}")
    if not wanted.holds(value):
        raise SpecError(field, f"is {value}, must be finite and {wanted}")


def check_count(field: str, items: Sequence[object], most: int) -> None:
    """Check the length of a list.

    Raises:
        SpecError: it is longer than allowed.
    """
    if len(items) > most:
        raise SpecError(field, f"has {len(items)} entries, at most {most} are allowed")


def check_name(field: str, name: str, limits: Limits) -> None:
    """Check a name: not empty, not too long, printable.

    Raises:
        SpecError: it is none of that.
    """
    require(field, "is empty", unless=name != "")
    if len(name) > limits.name_chars:
        raise SpecError(
            field, f"has {len(name)} characters, at most {limits.name_chars}"
        )
    require(field, f"{show(name)} is not printable", unless=name.isprintable())


def check_unique(field: str, names: Iterable[str]) -> None:
    """Check that no name stands twice.

    Raises:
        SpecError: one does.
    """
    seen: set[str] = set()
    for name in names:
        require(field, f"{show(name)} stands twice", unless=name not in seen)
        seen.add(name)


def check_tensor(field: str, dtype: str, shape: Shape, limits: Limits) -> int:
    """Check a tensor's dtype and shape; return its bytes.

    Raises:
        SpecError: no such dtype, too many dimensions, a negative one, or more bytes
            than allowed.
    """
    check_count(f"{field}.shape", shape, limits.dims)
    try:
        size = nbytes(dtype, shape)
    except SizeError as error:
        raise SpecError(field, str(error)) from error
    if size > limits.value_bytes:
        raise SpecError(
            field,
            f"{spell(dtype, shape)} has {size} bytes, at most {limits.value_bytes} "
            "are allowed",
        )
    return size


def check_uri(field: str, text: str, limits: Limits) -> Uri:
    """Return what a URI means.

    Raises:
        SpecError: it is too long or malformed.
    """
    if len(text) > limits.uri_chars:
        raise SpecError(
            field, f"has {len(text)} characters, at most {limits.uri_chars}"
        )
    try:
        return parse_uri(text)
    except UriError as error:
        raise SpecError(field, f"{show(text)}: {error}") from error


def check_same(field: str, got: Meta, wanted: Meta, whose: str) -> None:
    """Check dtype and shape against those of something else.

    Raises:
        SpecError: they differ.
    """
    if got != wanted:
        raise SpecError(
            field,
            f"is {spell(got.dtype, got.shape)}, but {whose} is "
            f"{spell(wanted.dtype, wanted.shape)}",
        )
