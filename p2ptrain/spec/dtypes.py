"""Every dtype that torch has, by name, and sizes that cannot overflow.

No torch here: the table is checked against torch in the tests.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from p2ptrain.spec.text import show, spell

SIZE_MAX: Final = 2**63 - 1  # of torch's sizes, strides and offsets


class Kind(StrEnum):
    """What the elements of a dtype are."""

    BOOL = "bool"
    INT = "int"
    UINT = "uint"
    FLOAT = "float"
    COMPLEX = "complex"
    BITS = "bits"  # bytes without arithmetic
    QUANT = "quant"  # with scales of their own that no file format here carries


@dataclass(frozen=True, slots=True)
class DType:
    """A dtype: torch's name of it, bytes an element, and what the elements are."""

    name: str
    itemsize: int
    kind: Kind

    @property
    def floating(self) -> bool:
        """Whether it is a real floating-point dtype."""
        return self.kind is Kind.FLOAT


_NAMES: Final[Mapping[Kind, Mapping[int, str]]] = {
    Kind.BOOL: {1: "bool"},
    Kind.INT: {
        1: "int8 int1 int2 int3 int4 int5 int6 int7",
        2: "int16",
        4: "int32",
        8: "int64",
    },
    Kind.UINT: {
        1: "uint8 uint1 uint2 uint3 uint4 uint5 uint6 uint7",
        2: "uint16",
        4: "uint32",
        8: "uint64",
    },
    Kind.FLOAT: {
        1: "float8_e4m3fn float8_e4m3fnuz float8_e5m2 float8_e5m2fnuz float8_e8m0fnu "
        "float4_e2m1fn_x2",
        2: "float16 bfloat16",
        4: "float32",
        8: "float64",
    },
    Kind.COMPLEX: {4: "complex32", 8: "complex64", 16: "complex128"},
    Kind.BITS: {1: "bits8 bits1x8 bits2x4 bits4x2", 2: "bits16"},
    Kind.QUANT: {1: "qint8 quint8 quint4x2 quint2x4", 4: "qint32"},
}

DTYPES: Final[Mapping[str, DType]] = MappingProxyType(
    {
        name: DType(name, itemsize, kind)
        for kind, sizes in _NAMES.items()
        for itemsize, names in sizes.items()
        for name in names.split()
    }
)

# What operators compute with and graphs may hold.
NARROW_INTS: Final = frozenset(
    name for name in DTYPES if name[-1] in "1234567" and name[:-1] in {"int", "uint"}
)
USABLE: Final = frozenset(
    name
    for name, dtype in DTYPES.items()
    if dtype.kind not in {Kind.BITS, Kind.QUANT} and name not in NARROW_INTS
)


class SizeError(ValueError):
    """A dtype or a shape that no tensor can have; one clause for a sentence."""


def dtype_of(name: str) -> DType:
    """Return a dtype that tensors may have here.

    Raises:
        SizeError: there is none of that name, or it is quantised or sub-byte.
    """
    dtype = DTYPES.get(name)
    if dtype is None:
        raise SizeError(f"unknown dtype {show(name)}")
    if name not in USABLE:
        raise SizeError(f"dtype {name!r} is not for tensors here")
    return dtype


def numel(shape: Sequence[int]) -> int:
    """Return the number of elements of a shape.

    Raises:
        SizeError: a negative dimension, or a product above ``SIZE_MAX``.
    """
    count = 1
    for index, size in enumerate(shape):
        if not 0 <= size <= SIZE_MAX:
            raise SizeError(f"dimension {index} is {show(size)}")
        # as if no dimension were 0, for torch multiplies the others too
        count *= max(size, 1)
        if count > SIZE_MAX:
            raise SizeError(f"the product of shape {show(tuple(shape))} overflows")
    return 0 if 0 in shape else count


def nbytes(dtype: str, shape: Sequence[int]) -> int:
    """Return the bytes of a tensor.

    Raises:
        SizeError: no such dtype, or no such shape.
    """
    size = dtype_of(dtype).itemsize * numel(shape)
    if size > SIZE_MAX:
        raise SizeError(f"the bytes of {spell(dtype, shape)} overflow")
    return size
