"""The operators that a graph may use: one table, and nothing that is not in it runs.

``OPS`` maps a name (ATen ``name.overload``, ``.default`` left out) to its ``Op``. The
table's text stands in the ``optable_*`` modules, one entry a line (continued by
indentation; several operators of one schema share an entry)::

    softmax, other_name: self dim:I half_to_float:B=false *dtype:D?=none -> 2 ; rule

A parameter is ``name:type``, a tensor where the type is left out, keyword-only after
``*``, and may be omitted where ``=`` gives a default. Types:

- ``T`` a tensor (a ``Ref``), ``T[]`` a tuple of tensors, ``T?[]`` of tensors or None;
- ``I`` an integer, ``I[]`` a tuple of integers, ``F`` a finite or infinite number,
  ``F[]`` a tuple of them, ``S`` a bool, integer or number, ``B`` a bool, ``B[]`` a
  tuple of bools, ``X`` the bool False and nothing else;
- ``D`` a dtype's name (``spec.dtypes``), ``M`` one of ``MEMORY_FORMATS``, ``E(a|b)``
  one of the listed words; no other text is ever an argument;
- ``?`` after the type admits None.

``->`` gives the number of results (one where left out), or ``list`` where it follows
from the arguments. What stands behind ``;`` names the rule for the results' dtypes and
shapes (``spec.rules``).

ATen's ``device``, ``layout``, ``pin_memory`` and ``generator`` parameters are left
out: where a graph runs is the node's business. Not in the table on purpose: whatever
gives memory that was never written (``empty`` and its kin: capture writes zeros
instead), reads memory by strides (``as_strided``), has a result whose shape depends on
data (``nonzero``), or writes in place.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from p2ptrain.spec import optable_math, optable_nn, optable_tensor

MEMORY_FORMATS: Final = ("contiguous", "preserve", "channels_last", "channels_last_3d")
KINDS: Final = frozenset("TIFSBXDME")

_TYPE = re.compile(r"(?P<kind>[A-Z])(\((?P<words>[a-z|]+)\))?(?P<rest>\??(\[\]\??)?)")

Default = None | bool | int | float | str | tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Param:
    """A parameter of an operator.

    Args:
        name: ATen's name of it.
        kind: the letter of its type, one of ``KINDS``.
        many: a tuple of the kind.
        optional: None is admitted (for the whole, not for an element).
        holes: None is admitted as an element.
        words: what an ``E`` may be.
        required: has no default.
        default: what holds where it is omitted.
        keyword: given by keyword only.
    """

    name: str
    kind: str
    many: bool
    optional: bool
    holes: bool
    words: tuple[str, ...]
    required: bool
    default: Default
    keyword: bool


@dataclass(frozen=True, slots=True)
class Op:
    """An operator.

    Args:
        name: as in ``Node.op``, for example ``add.Tensor``.
        params: in ATen's order, keyword-only ones last.
        results: how many tensors it returns, or None: as many as the arguments say.
        rule: the name of the rule for dtypes and shapes.
    """

    name: str
    params: tuple[Param, ...]
    results: int | None
    rule: str

    @property
    def positional(self) -> tuple[Param, ...]:
        """The parameters that may be given by position."""
        return tuple(param for param in self.params if not param.keyword)

    @property
    def aten(self) -> tuple[str, str]:
        """ATen's name and overload, for example ``("add", "Tensor")``."""
        name, _, overload = self.name.partition(".")
        return name, overload or "default"


def _default(text: str) -> Default:
    words: dict[str, Default] = {"none": None, "true": True, "false": False, "[]": ()}
    if text in words:
        return words[text]
    if text.startswith("["):
        return tuple(int(item) for item in text[1:-1].split(","))
    try:
        return int(text)
    except ValueError:
        pass
    try:
        return float(text)
    except ValueError:
        return text


def _param(text: str) -> Param:
    head, has_default, default = text.partition("=")
    name, _, kind = head.lstrip("*").partition(":")
    found = _TYPE.fullmatch(kind or "T")
    assert found is not None, text
    rest = found["rest"]
    enum = found["kind"] == "E"
    return Param(
        name=name,
        kind=found["kind"],
        many="[]" in rest,
        optional=rest.endswith("?"),
        holes=rest.startswith("?["),
        words=tuple((found["words"] or "").split("|")) if enum else (),
        required=not has_default,
        # "none" is None, but the word where it is one of the words
        default=default if enum and default in found["words"] else _default(default),
        keyword=text.startswith("*"),
    )


def _entry(text: str) -> Iterator[Op]:
    schema, _, rule = text.rpartition(" ; ")
    names, _, tail = schema.partition(":")
    params, _, results = tail.partition("->")
    count = results.strip()
    for name in names.split(","):
        yield Op(
            name=name.strip(),
            params=tuple(_param(word) for word in params.split()),
            results=None if count == "list" else int(count or 1),
            rule=rule.strip(),
        )


def parse(table: str) -> dict[str, Op]:
    """Return the operators that a table's text describes."""
    entries = re.sub(r"\n +", " ", table).splitlines()
    return {op.name: op for entry in entries if entry for op in _entry(entry)}


OPS: Final[Mapping[str, Op]] = MappingProxyType(
    parse(optable_math.TABLE + optable_tensor.TABLE + optable_nn.TABLE)
)
