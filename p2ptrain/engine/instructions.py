"""Turns the nodes of a graph into instructions of a program.

An operator's name is looked up in the operator table first, in torch's ATen operators
second. Constants stand in registers behind the values, so that one C call collects an
operator's arguments.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Any, Final

import torch

from p2ptrain.engine.convert import FORMATS
from p2ptrain.engine.kernels import FASTER
from p2ptrain.engine.randomness import Lent, is_random, overload
from p2ptrain.engine.values import deaths, starts
from p2ptrain.errors import SpecError
from p2ptrain.spec.graph import Arg, Graph, Node, Ref
from p2ptrain.spec.ops import OPS, Op, Param

WORDS: Final = {word: value for value, word in FORMATS.items()}

Call = Callable[..., Any]
Registers = list[Any]
Gather = Callable[[Registers], Sequence[Any]]
# what to call, what collects its arguments, where its results go (one value where the
# end is 0), and which registers are of no use afterwards
Instruction = tuple[Call, Gather, int, int, tuple[int, ...]]
Slot = int | list[int]  # the register of an argument, or those of its elements


class Builder:
    """Makes the instructions of one graph on one device.

    Args:
        graph: the graph.
        device: where new tensors are made.
        lent: gives random operators their numbers.

    Attributes:
        constants: what the registers behind those of the values hold.

    Raises:
        SpecError: an operator that is not in the table, or that this torch lacks.
    """

    def __init__(self, graph: Graph, device: torch.device, lent: Lent) -> None:
        self._device = device
        self._lent = lent
        self._values = len(graph.inputs) + sum(len(n.results) for n in graph.nodes)
        self.constants: list[Any] = []
        self.code = list(self._instructions(graph))

    def _instructions(self, graph: Graph) -> Iterator[Instruction]:
        dead = deaths(graph)
        for index, (start, node) in enumerate(
            zip(starts(graph), graph.nodes, strict=True)
        ):
            path = f"graph.nodes[{index}].op"
            op = OPS.get(node.op)
            if op is None:
                raise SpecError(path, f"{node.op!r} is not in the operator table")
            try:
                fn, gather = self._call(op, node)
            except KeyError as error:
                raise SpecError(path, f"this torch lacks {node.op!r}") from error
            # an operator with one result gives it bare, but one that gives a list
            end = 0 if op.results == 1 else start + len(node.results)
            yield fn, gather, start, end, tuple(sorted(dead[index]))

    def _call(self, op: Op, node: Node) -> tuple[Call, Gather]:
        """Return what runs a node, and what collects its positional arguments."""
        kinds = {param.name: param for param in op.params}
        by_place = dict(zip(kinds, node.args, strict=False))
        moving = {name: arg for name, arg in node.kwargs.items() if _has_ref(arg)}
        fixed = {
            name: _constant(kinds[name], arg)
            for name, arg in node.kwargs.items()
            if name not in moving
        }
        target = overload(op.name)
        takes = {argument.name for argument in target._schema.arguments}  # noqa: SLF001
        if "device" in takes and not any(p.kind == "T" for p in op.params):
            fixed["device"] = self._device
        call = self._lent.bound(op.name) if is_random(op.name) else direct(target)
        if self._device.type == "cpu":
            call = FASTER.get(op.name, call)
        slots = [self._slot(kinds[n], arg) for n, arg in (by_place | moving).items()]
        return _with_keywords(call, fixed, tuple(moving)), gather_of(slots)

    def _slot(self, param: Param, arg: Arg) -> Slot:
        if isinstance(arg, Ref):
            return arg.r
        if isinstance(arg, tuple) and _has_ref(arg):
            return [i.r if isinstance(i, Ref) else self._register(i) for i in arg]
        return self._register(_constant(param, arg))

    def _register(self, constant: object) -> int:
        self.constants.append(constant)
        return self._values + len(self.constants) - 1


def direct(target: torch._ops.OpOverload) -> Call:
    """Return an operator's call without the Python frame around it."""
    call: Call = target._op  # noqa: SLF001  # a tenth of the time of a small operator
    return call


def _has_ref(arg: Arg) -> bool:
    items = arg if isinstance(arg, tuple) else (arg,)
    return any(isinstance(item, Ref) for item in items)


def _constant(param: Param, arg: Arg) -> object:
    if isinstance(arg, str) and param.kind == "D":
        return getattr(torch, arg)
    if isinstance(arg, str) and param.kind == "M":
        return WORDS[arg]
    return list(arg) if isinstance(arg, tuple) else arg


def _with_keywords(
    call: Call, fixed: Mapping[str, Any], moving: tuple[str, ...]
) -> Call:
    """Return a call that takes positional arguments only.

    Args:
        call: the operator.
        fixed: keyword arguments that do not change.
        moving: keywords of the last positional arguments of the result.
    """
    if not moving:
        if not fixed:
            return call
        return lambda *args: call(*args, **fixed)
    count = len(moving)

    def called(*args: Any) -> Any:
        named = dict(zip(moving, args[-count:], strict=True))
        return call(*args[:-count], **fixed, **named)

    return called


def gather_of(slots: Sequence[Slot]) -> Gather:
    """Return what collects the values of slots from the registers."""
    flat = [slot for slot in slots if isinstance(slot, int)]
    if len(flat) < len(slots) or not flat:
        return lambda registers: [_value(registers, slot) for slot in slots]
    if len(flat) == 1:  # itemgetter gives one value bare, but a slice in a list
        return itemgetter(slice(flat[0], flat[0] + 1))
    return itemgetter(*flat)


def _value(registers: Registers, slot: Slot) -> Any:
    if isinstance(slot, int):
        return registers[slot]
    return [registers[index] for index in slot]
