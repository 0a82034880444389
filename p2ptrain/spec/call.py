"""One operator call: arguments bound to parameters and checked against the schema.

References become the dtype and shape of what they refer to, so that rules work on
plain data. Binding costs time linear in the arguments.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from p2ptrain.spec.dtypes import USABLE
from p2ptrain.spec.graph import Arg, Meta, Node, Ref, Shape
from p2ptrain.spec.ops import MEMORY_FORMATS, Op, Param
from p2ptrain.spec.text import show

INT_MAX = 2**63 - 1

Item = None | bool | int | float | str | Meta
Value = Item | tuple[Item, ...]


class CallError(ValueError):
    """A call that the operator does not admit; one clause for a sentence."""


@dataclass(frozen=True, slots=True)
class Call:
    """An operator call.

    Args:
        op: the operator.
        values: every parameter's value, defaults filled in.
        declared: the results that the node declares.
    """

    op: Op
    values: Mapping[str, Value]
    declared: tuple[Meta | None, ...]

    def tensor(self, name: str) -> Meta:
        """Return a tensor argument."""
        value = self.values[name]
        if not isinstance(value, Meta):
            raise CallError(f"argument {name!r} is not a tensor")
        return value

    def maybe(self, name: str) -> Meta | None:
        """Return an optional tensor argument."""
        return self.tensor(name) if self.values[name] is not None else None

    def items(self, name: str) -> tuple[Item, ...]:
        """Return a tuple argument; empty where it is None."""
        value = self.values[name]
        return value if isinstance(value, tuple) else ()

    def tensors(self, name: str) -> list[Meta]:
        """Return a tuple of tensors."""
        return [item for item in self.items(name) if isinstance(item, Meta)]

    def given(self) -> list[Meta]:
        """Return all tensor arguments that do not stand in tuples."""
        return [value for value in self.values.values() if isinstance(value, Meta)]

    def first(self) -> Meta:
        """Return the first tensor argument."""
        return self.given()[0]

    def whole(self, name: str) -> int:
        """Return an integer argument."""
        value = self.values[name]
        if not isinstance(value, int):
            raise CallError(f"argument {name!r} is not an integer")
        return value

    def ints(self, name: str) -> list[int]:
        """Return a tuple of integers; empty where it is None."""
        return [item for item in self.items(name) if isinstance(item, int)]

    def flag(self, name: str) -> bool:
        """Return a truth argument."""
        return self.values[name] is True

    def mask(self, count: int) -> list[bool]:
        """Return ``output_mask``: which results there are.

        Raises:
            CallError: it has not ``count`` entries.
        """
        mask = [item is True for item in self.items("output_mask")]
        if len(mask) != count:
            raise CallError(f"output_mask has {len(mask)} entries, not {count}")
        return mask

    def dtype(self, default: str) -> str:
        """Return the dtype that the call asks for, or a default."""
        value = self.values.get("dtype")
        return value if isinstance(value, str) else default


def named(op: Op, node: Node) -> dict[str, Arg]:
    """Return a node's arguments by the names of their parameters.

    Raises:
        CallError: too many arguments, one given twice, or one that is unknown.
    """
    positional = op.positional
    if len(node.args) > len(positional):
        raise CallError(
            f"{op.name} takes at most {len(positional)} positional arguments, "
            f"not {len(node.args)}"
        )
    given = {p.name: arg for p, arg in zip(positional, node.args, strict=False)}
    known = {param.name for param in op.params}
    for name, arg in node.kwargs.items():
        if name in given:
            raise CallError(f"argument {show(name)} is given twice")
        if name not in known:
            raise CallError(f"{op.name} has no parameter {show(name)}")
        given[name] = arg
    return given


def bind(op: Op, node: Node, metas: Sequence[Meta | None]) -> Call:
    """Return a node's call.

    Args:
        op: the node's operator.
        node: the node.
        metas: all values before the node, by number; None for what is no tensor.

    Raises:
        CallError: a wrong number of arguments, an unknown or doubled one, or one of
            another type than the schema's.
    """
    given = named(op, node)
    values = {param.name: _value(param, given, metas) for param in op.params}
    return Call(op, values, node.results)


def _value(
    param: Param, given: Mapping[str, Arg], metas: Sequence[Meta | None]
) -> Value:
    if param.name not in given:
        if param.required:
            raise CallError(f"argument {param.name!r} is missing")
        return param.default
    arg = given[param.name]
    if arg is None and param.optional:
        return None
    if not param.many:
        return _item(param, arg, metas)
    if not isinstance(arg, tuple):
        raise CallError(f"argument {param.name!r} is {show(arg)}, not a list")
    return tuple(
        None if item is None and param.holes else _item(param, item, metas)
        for item in arg
    )


def _item(param: Param, arg: Arg, metas: Sequence[Meta | None]) -> Item:
    if isinstance(arg, Ref):
        if param.kind == "T":
            return _referred(param, arg.r, metas)
    elif not isinstance(arg, tuple) and _fits(param, arg):
        return arg
    raise CallError(f"argument {param.name!r} is {show(arg)}, not {_wanted(param)}")


def _referred(param: Param, number: int, metas: Sequence[Meta | None]) -> Meta:
    if not 0 <= number < len(metas):
        raise CallError(
            f"argument {param.name!r} refers to value {show(number)}, "
            f"but only 0 to {len(metas) - 1} stand before it"
        )
    meta = metas[number]
    if meta is None:
        raise CallError(
            f"argument {param.name!r} refers to value {number}, which is no tensor"
        )
    return meta


def _fits(param: Param, arg: Item) -> bool:
    if isinstance(arg, bool):
        return param.kind in "BS" or (param.kind == "X" and not arg)
    if isinstance(arg, int):
        return param.kind in "IFS" and -INT_MAX <= arg <= INT_MAX
    if isinstance(arg, float):
        return param.kind in "FS"
    return isinstance(arg, str) and arg in _words(param)


def _words(param: Param) -> Sequence[str] | frozenset[str]:
    if param.kind == "D":
        return USABLE
    return MEMORY_FORMATS if param.kind == "M" else param.words


_WANTED = {
    "T": "a tensor",
    "I": "an integer",
    "F": "a number",
    "S": "a number",
    "B": "true or false",
    "X": "false",
    "D": "a dtype",
    "M": f"one of {', '.join(MEMORY_FORMATS)}",
}


def _wanted(param: Param) -> str:
    return _WANTED.get(param.kind) or f"one of {', '.join(param.words)}"


def axis(dim: int, rank: int) -> int:
    """Return a dimension counted from the front.

    A tensor without dimensions admits 0 and -1, as in PyTorch.

    Raises:
        CallError: out of range.
    """
    span = max(rank, 1)
    if not -span <= dim < span:
        raise CallError(f"dimension {dim} is out of range for {rank} dimensions")
    return dim % span


def broadcast(*shapes: Shape) -> Shape:
    """Return the shape that shapes broadcast to.

    Raises:
        CallError: they do not.
    """
    rank = max(map(len, shapes), default=0)
    sizes = [1] * rank
    for shape in shapes:
        for at, size in enumerate(shape, rank - len(shape)):
            if size != 1 and sizes[at] not in {1, size}:
                raise CallError(f"shapes {_list(shapes)} do not broadcast")
            sizes[at] = sizes[at] if size == 1 else size
    return tuple(sizes)


def _list(shapes: Sequence[Shape]) -> str:
    return " and ".join(map(show, shapes))


def want(name: str, got: Shape, wanted: Shape) -> None:
    """Check an argument's shape.

    Raises:
        CallError: it is another one.
    """
    if got != wanted:
        raise CallError(f"{name!r} has shape {show(got)}, not {show(wanted)}")


def refuse(problem: str, *, unless: bool) -> None:
    """Check a condition.

    Raises:
        CallError: it does not hold.
    """
    if not unless:
        raise CallError(problem)
