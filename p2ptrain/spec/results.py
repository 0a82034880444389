"""What a rule expects of a node's results, and the comparison with what it declares."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from p2ptrain.spec.call import Call, CallError
from p2ptrain.spec.dtypes import DTYPES, numel
from p2ptrain.spec.graph import Meta, Shape
from p2ptrain.spec.promote import level
from p2ptrain.spec.text import show, spell


@dataclass(frozen=True, slots=True)
class Floating:
    """A tensor of this shape and of some real floating dtype (kernels differ)."""

    shape: Shape


@dataclass(frozen=True, slots=True)
class Bounded:
    """A tensor of this kind of number and of at most ``count`` elements (its shape
    depends on the kernel).
    """

    kind: str
    count: int


Expected = Meta | Floating | Bounded | None
Results = tuple[Expected, ...]
Rule = Callable[[Call], Results]


def compare(op: str, expected: Sequence[Expected], declared: Sequence[object]) -> None:
    """Check declared results.

    Raises:
        CallError: they are not the expected ones.
    """
    if len(expected) != len(declared):
        raise CallError(f"{op} has {len(expected)} results, not {len(declared)}")
    for index, (wanted, got) in enumerate(zip(expected, declared, strict=True)):
        if not _matches(wanted, got):
            raise CallError(
                f"result {index} of {op} is {_spell(wanted)}, not {_spell(got)}"
            )


def _matches(wanted: Expected, got: object) -> bool:
    if isinstance(wanted, Meta) or wanted is None:
        return got == wanted
    if not isinstance(got, Meta):
        return False
    if isinstance(wanted, Floating):
        return got.shape == wanted.shape and DTYPES[got.dtype].floating
    return DTYPES[got.dtype].kind == wanted.kind and numel(got.shape) <= wanted.count


def _spell(value: object) -> str:
    if isinstance(value, Meta):
        return spell(value.dtype, value.shape)
    if isinstance(value, Floating):
        return spell("floating ", value.shape)
    if isinstance(value, Bounded):
        return f"{value.kind} with at most {show(value.count)} elements"
    return "no tensor"


def like(meta: Meta, dtype: str | None = None) -> Meta:
    """Return a meta of the same shape, in another dtype if one is given."""
    return Meta(dtype or meta.dtype, meta.shape)


def floating(meta: Meta, what: str) -> Meta:
    """Return a meta that must be of a real or complex floating dtype.

    Raises:
        CallError: it is not.
    """
    if level(meta.dtype) < 2:
        raise CallError(f"{what} is {meta.dtype}, not floating-point")
    return meta
