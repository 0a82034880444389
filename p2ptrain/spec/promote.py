"""PyTorch's type promotion: the dtype in which operands of several dtypes meet.

Tensors with dimensions decide; tensors without decide only where their kind of number
is a higher one (bool < integer < float < complex), and plain numbers only where theirs
is higher still. Checked against ``torch.result_type`` in the tests.
"""

from collections.abc import Sequence
from functools import reduce

from p2ptrain.spec.call import CallError, Item
from p2ptrain.spec.dtypes import DTYPES, Kind
from p2ptrain.spec.graph import Meta

DEFAULT = "float32"

_INTS = ("uint8", "int8", "int16", "int32", "int64")
_FLOATS = ("float16", "bfloat16", "float32", "float64")
_COMPLEX = {
    "float16": "complex32",
    "bfloat16": "complex64",
    "float32": "complex64",
    "float64": "complex128",
}
_LEVEL = {Kind.BOOL: 0, Kind.INT: 1, Kind.UINT: 1, Kind.FLOAT: 2, Kind.COMPLEX: 3}


def level(dtype: str) -> int:
    """Return 0 for bool, 1 for integers, 2 for floats, 3 for complex numbers."""
    return _LEVEL[DTYPES[dtype].kind]


def floated(dtype: str) -> str:
    """Return the dtype in which a function such as ``exp`` answers."""
    return dtype if level(dtype) > 1 else DEFAULT


def summed(dtype: str) -> str:
    """Return the dtype in which integers add up."""
    return dtype if level(dtype) > 1 else "int64"


def pair(a: str, b: str) -> str:
    """Return the dtype that two dtypes meet in.

    Raises:
        CallError: they do not (dtypes for storage only, such as float8).
    """
    if a == b:
        return a
    low, high = sorted((a, b), key=level)
    if level(low) < level(high):
        return _across(low, high)
    for family in (_INTS, _FLOATS):
        if a in family and b in family:
            return _within(low, high, family)
    if level(a) == 3:
        return max(a, b, key=lambda name: DTYPES[name].itemsize)
    raise CallError(f"dtypes {a} and {b} do not go together")


def _across(low: str, high: str) -> str:
    if level(low) == 2 and level(high) == 3:
        if low not in _COMPLEX:
            raise CallError(f"dtypes {low} and {high} do not go together")
        return pair(_COMPLEX[low], high)
    return high


def _within(a: str, b: str, family: Sequence[str]) -> str:
    if {a, b} == {"uint8", "int8"}:
        return "int16"
    if {a, b} == {"float16", "bfloat16"}:
        return "float32"
    return max(a, b, key=family.index)


def _number(value: Item) -> str:
    if isinstance(value, bool):
        return "bool"
    return "int64" if isinstance(value, int) else DEFAULT


def _combine(higher: str | None, lower: str | None) -> str | None:
    if higher is None or lower is None:
        return higher or lower
    if level(lower) <= level(higher):
        return higher
    if level(higher) == 2:  # a float meets a complex number of a lower rank
        return _COMPLEX.get(higher, lower)
    return lower


def promote(operands: Sequence[Item]) -> str:
    """Return the dtype that tensors and numbers meet in.

    Raises:
        CallError: they do not.
    """
    dims = [x.dtype for x in operands if isinstance(x, Meta) and x.shape]
    zeros = [x.dtype for x in operands if isinstance(x, Meta) and not x.shape]
    numbers = [_number(x) for x in operands if isinstance(x, bool | int | float)]
    ranks = [reduce(pair, rank) if rank else None for rank in (dims, zeros, numbers)]
    found = _combine(_combine(ranks[0], ranks[1]), ranks[2])
    if found is None:
        raise CallError("there is no operand")
    return found
