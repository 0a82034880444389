"""The backward graph as data: inputs, operator nodes, outputs.

No torch here, and nothing that can run. Values are numbered: the inputs first, in
order, then each node's results, node by node, consecutively. A ``Ref`` names a value by
its number; ``outputs`` are value numbers too. Arguments are constants, Refs, or flat
tuples of them.
"""

from dataclasses import dataclass

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Ref:
    """A reference to the value numbered ``r``."""

    r: int


Scalar = None | bool | int | float | str | Ref
Arg = None | bool | int | float | str | Ref | tuple[Scalar, ...]


@dataclass(frozen=True, slots=True)
class Meta:
    """Dtype name (``spec.dtypes``) and shape of one tensor."""

    dtype: str
    shape: Shape


@dataclass(frozen=True, slots=True)
class Input:
    """A named input of the graph."""

    name: str
    dtype: str
    shape: Shape


@dataclass(frozen=True, slots=True)
class Node:
    """One operator call.

    ``op`` is a key of the operator table, such as ``convolution`` or ``add.Tensor``
    (the ATen name and overload, ``.default`` left out). ``results`` has one entry per
    result, None where the operator returns no tensor there (a masked-out gradient).
    """

    op: str
    args: tuple[Arg, ...]
    kwargs: dict[str, Arg]
    results: tuple[Meta | None, ...]


@dataclass(frozen=True, slots=True)
class Graph:
    """A whole graph; ``spec.validate`` decides whether it may run."""

    inputs: tuple[Input, ...]
    nodes: tuple[Node, ...]
    outputs: tuple[int, ...]
