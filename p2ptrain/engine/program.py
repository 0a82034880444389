"""Executes a graph: a flat list of operator calls, resolved once.

Nothing of a graph is evaluated or imported: an operator's name is looked up in the
operator table first, in torch's ATen operators second. Constants stand in the registers
beside the values, so that one C call collects an operator's arguments. A value is let
go after its last use. The first run compares every result with what the graph declares
of it, and finds out which outputs share memory with one another or with inputs: these
are copied, then and later, so that callers may change outputs in place.

Operators run below autograd: no gradient is ever recorded.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, Final

import torch
from torch import Tensor

from p2ptrain.engine.convert import FORMATS, dtype_name
from p2ptrain.engine.randomness import Stream, is_random, overload
from p2ptrain.errors import SpecError
from p2ptrain.spec.graph import Arg, Graph, Meta, Node, Ref
from p2ptrain.spec.ops import OPS, Op, Param

WORDS: Final = {word: value for value, word in FORMATS.items()}

Registers = list[Any]
Gather = Callable[[Registers], Sequence[Any]]
# what to call, what collects its arguments, where its results go (one value where the
# end is 0), and which registers are of no use afterwards
Instruction = tuple[Callable[..., Any], Gather, int, int, tuple[int, ...]]


class Program:
    """A graph on a device.

    One run at a time; programs may run in threads beside each other.

    Args:
        graph: a validated graph.
        device: where its operators run.

    Raises:
        SpecError: an operator that is not in the table, or that this torch lacks.
    """

    def __init__(self, graph: Graph, device: torch.device) -> None:
        self._graph = graph
        self._device = device
        self._is_random = any(is_random(node.op) for node in graph.nodes)
        self._builder = _Builder(graph, device)
        self._code = list(self._builder.instructions())
        self._blank = self._builder.blank
        self._outputs = _gather(graph.outputs)
        self._copied: tuple[int, ...] | None = None

    def run(self, values: Sequence[Tensor], seed: int) -> list[Tensor]:
        """Run the graph.

        Args:
            values: the inputs, in order, on the device; they are not changed.
            seed: of the random operators; they draw what torch's default generator
                draws after ``manual_seed(seed)``.

        Returns:
            The outputs; none shares memory with another or with an input.

        Raises:
            SpecError: in the first run, an input or a result differs from what the
                graph declares.
        """
        registers = [*values, *self._blank]
        if self._is_random:
            self._builder.stream.begin(seed)
        with torch.no_grad(), torch._C._AutoDispatchBelowAutograd():  # noqa: SLF001  # no public name; inference_mode would forbid callers to change outputs
            if self._copied is None:
                return self._first(values, registers)
            _run(self._code, registers)
            outputs = list(self._outputs(registers))
            for index in self._copied:
                outputs[index] = own(outputs[index])
        return outputs

    def _first(self, values: Sequence[Tensor], registers: Registers) -> list[Tensor]:
        graph = self._graph
        if len(values) != len(graph.inputs):
            raise SpecError("graph.inputs", f"{len(values)} values were given")
        for index, (value, given) in enumerate(zip(values, graph.inputs, strict=True)):
            _check(f"graph.inputs[{index}]", value, Meta(given.dtype, given.shape))
        for index, (code, node) in enumerate(zip(self._code, graph.nodes, strict=True)):
            fn, gather, start, end, dead = code
            result = fn(*gather(registers))
            results = result if end else (result,)
            path = f"graph.nodes[{index}] ({node.op})"
            if len(results) != len(node.results):
                raise SpecError(path, f"has {len(results)} results")
            for value, meta in zip(results, node.results, strict=True):
                _check(path, value, meta)
            registers[start : start + len(results)] = results
            for register in dead:
                registers[register] = None
        outputs = list(self._outputs(registers))
        copied = tuple(_shared(values, outputs))
        for index in copied:
            outputs[index] = own(outputs[index])
        self._copied = copied
        return outputs


def _run(code: Sequence[Instruction], registers: Registers) -> None:
    for fn, gather, start, end, dead in code:
        if end:
            registers[start:end] = fn(*gather(registers))
        else:
            registers[start] = fn(*gather(registers))
        for register in dead:
            registers[register] = None


def own(tensor: Tensor) -> Tensor:
    """Return a copy in memory of its own, in row-major order."""
    return tensor.clone(memory_format=torch.contiguous_format)


def _check(path: str, value: object, meta: Meta | None) -> None:
    if meta is None:
        return
    if not isinstance(value, Tensor):
        raise SpecError(path, f"gives no tensor, and {meta} is declared")
    if dtype_name(value.dtype) != meta.dtype or tuple(value.shape) != meta.shape:
        raise SpecError(
            path,
            f"gives {dtype_name(value.dtype)}{list(value.shape)}, and "
            f"{meta.dtype}{list(meta.shape)} is declared",
        )


def _shared(inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> Iterator[int]:
    """Yield which outputs need memory of their own."""
    seen = {value.untyped_storage().data_ptr() for value in inputs}
    for index, value in enumerate(outputs):
        memory = value.untyped_storage().data_ptr()
        if memory in seen or not value.is_contiguous():
            yield index
        seen.add(memory)


@dataclass
class _Lent:
    """The stream of the run that is under way."""

    device: torch.device
    current: Stream | None = None

    def begin(self, seed: int) -> None:
        self.current = Stream(self.device, seed)

    def bound(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            assert self.current is not None
            return self.current.call(fn, args)

        return call


class _Builder:
    """Turns nodes into instructions."""

    def __init__(self, graph: Graph, device: torch.device) -> None:
        self._graph = graph
        self._device = device
        count = len(graph.inputs) + sum(len(node.results) for node in graph.nodes)
        self._values = count
        self.blank: list[Any] = [None] * (count - len(graph.inputs))
        self.stream = _Lent(device)

    def instructions(self) -> Iterator[Instruction]:
        """Yield an instruction for each node."""
        dead = _deaths(self._graph)
        start = len(self._graph.inputs)
        for index, node in enumerate(self._graph.nodes):
            op = OPS.get(node.op)
            path = f"graph.nodes[{index}].op"
            if op is None:
                raise SpecError(path, f"{node.op!r} is not in the operator table")
            count = len(node.results)
            # an operator with one result gives it bare, but for lists
            end = 0 if op.results == 1 else start + count
            try:
                fn, gather = self._call(op, node)
            except KeyError as error:
                raise SpecError(path, f"this torch lacks {node.op!r}") from error
            yield fn, gather, start, end, tuple(sorted(dead[index]))
            start += count

    def _call(self, op: Op, node: Node) -> tuple[Callable[..., Any], Gather]:
        target = overload(op.name)
        names = [param.name for param in op.positional]
        given = dict(zip(names, node.args, strict=False)) | node.kwargs
        by_name = {param.name: param for param in op.params}
        fixed = {
            name: self._constant(by_name[name], given.pop(name))
            for name in list(given)
            if name not in names[: len(node.args)] and not _has_ref(given[name])
        }
        schema = {argument.name for argument in target._schema.arguments}  # noqa: SLF001
        if "device" in schema and not any(p.kind == "T" for p in op.params):
            fixed["device"] = self._device
        fn = _bound(
            target, fixed, [n for n in given if n not in names[: len(node.args)]]
        )
        if is_random(op.name):
            fn = self.stream.bound(fn)
        slots = [self._slot(by_name[name], arg) for name, arg in given.items()]
        return fn, _gather(slots)

    def _slot(self, param: Param, arg: Arg) -> "int | list[int]":
        """Return the register of an argument, or those of its elements."""
        if isinstance(arg, Ref):
            return arg.r
        if isinstance(arg, tuple) and any(isinstance(item, Ref) for item in arg):
            return [i.r if isinstance(i, Ref) else self._register(i) for i in arg]
        return self._register(self._constant(param, arg))

    def _register(self, constant: object) -> int:
        self.blank.append(constant)
        return len(self._graph.inputs) + len(self.blank) - 1

    def _constant(self, param: Param, arg: Arg) -> object:
        if isinstance(arg, str) and param.kind == "D":
            return getattr(torch, arg)
        if isinstance(arg, str) and param.kind == "M":
            return WORDS[arg]
        return list(arg) if isinstance(arg, tuple) else arg


def _has_ref(arg: Arg) -> bool:
    items = arg if isinstance(arg, tuple) else (arg,)
    return any(isinstance(item, Ref) for item in items)


def _bound(
    target: "torch._ops.OpOverload", fixed: dict[str, Any], named: Sequence[str]
) -> Callable[..., Any]:
    """Return the operator with keyword arguments filled in.

    Args:
        target: the operator.
        fixed: constants by keyword.
        named: keywords of the last positional arguments of the result.
    """
    fn: Callable[..., Any] = target._op  # noqa: SLF001  # the call itself, without a Python frame
    if not fixed and not named:
        return fn
    count = len(named)

    def call(*args: Any) -> Any:
        if not count:
            return fn(*args, **fixed)
        return fn(
            *args[:-count], **fixed, **dict(zip(named, args[-count:], strict=True))
        )

    return call


def _gather(slots: Sequence["int | list[int]"]) -> Gather:
    """Return what collects registers: integers give a value, lists a list of them."""
    flat = [slot for slot in slots if isinstance(slot, int)]
    if len(flat) == len(slots) > 1:
        return itemgetter(*flat)
    if len(flat) == len(slots) == 1:
        return itemgetter(slice(flat[0], flat[0] + 1))
    parts = tuple(slots)

    def gather(registers: Registers) -> list[Any]:
        return [
            registers[part]
            if isinstance(part, int)
            else [registers[index] for index in part]
            for part in parts
        ]

    return gather


def _deaths(graph: Graph) -> list[set[int]]:
    """Return for each node the values that nothing needs after it."""
    alive = set(graph.outputs) | set(range(len(graph.inputs)))
    deaths: list[set[int]] = []
    starts: list[int] = []
    count = len(graph.inputs)
    for node in graph.nodes:
        starts.append(count)
        count += len(node.results)
    for start, node in zip(reversed(starts), reversed(graph.nodes), strict=True):
        items = [i for a in (*node.args, *node.kwargs.values())
                 for i in (a if isinstance(a, tuple) else (a,))]  # fmt: skip
        touched = {item.r for item in items if isinstance(item, Ref)}
        touched |= set(range(start, start + len(node.results)))
        deaths.append(touched - alive)
        alive |= touched
    deaths.reverse()
    return deaths
