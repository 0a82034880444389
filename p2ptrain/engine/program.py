"""Executes a graph: a flat list of operator calls, resolved once.

Nothing of a graph is evaluated or imported. A value is let go after its last use. The
first run compares every result with what the graph declares of it, and finds out which
outputs share memory with one another or with inputs: these are copied, then and later,
so that callers may change outputs in place. It also keeps small results that are the
same in every run (masks, ranges of places), which later runs find ready.

Operators run below autograd: no gradient is ever recorded.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import torch
from torch import Tensor

from p2ptrain.engine.convert import dtype_name
from p2ptrain.engine.instructions import (
    Builder,
    Instruction,
    Registers,
    direct,
    gather_of,
)
from p2ptrain.engine.randomness import Lent, is_random, overload
from p2ptrain.engine.values import constants
from p2ptrain.errors import SpecError
from p2ptrain.spec.graph import Graph, Meta, Node, Shape
from p2ptrain.spec.text import spell

KEPT_BYTES: Final = 16 * 1024 * 1024
RESHAPES: Final = frozenset({"view", "_unsafe_view"})


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
        self._lent = Lent(device)
        built = Builder(graph, device, self._lent)
        self._code = built.code
        self._is_random = any(is_random(node.op) for node in graph.nodes)
        results = sum(len(node.results) for node in graph.nodes)
        self._rest: Registers = [None] * results + built.constants
        self._outputs = gather_of(graph.outputs)
        self._strides = [strides_of(given.shape) for given in graph.inputs]
        self._copied: tuple[int, ...] | None = None

    def run(self, values: Sequence[Tensor], seed: int) -> list[Tensor]:
        """Run the graph.

        Args:
            values: the inputs, in order, on the device; they are not changed. Those
                that are not in row-major order are copied first.
            seed: of the random operators; they draw what torch's default generator
                draws after ``manual_seed(seed)``.

        Returns:
            The outputs; none shares memory with another or with an input.

        Raises:
            SpecError: there are too few or too many values, or, in the first run, one
                of them or a result differs from what the graph declares.
        """
        if len(values) != len(self._strides):
            raise SpecError("graph.inputs", f"{len(values)} values were given")
        # below autograd; inference_mode would forbid callers to change the outputs
        with torch.no_grad(), torch._C._AutoDispatchBelowAutograd():  # noqa: SLF001
            registers: Registers = [
                value if value.stride() == strides else own(value)
                for value, strides in zip(values, self._strides, strict=True)
            ]
            registers += self._rest
            if self._is_random:
                self._lent.begin(seed)
            return self._run(values, registers)

    def _run(self, values: Sequence[Tensor], registers: Registers) -> list[Tensor]:
        if self._copied is None:
            kept = self._run_checked(registers)
            outputs = list(self._outputs(registers))
            self._copied = tuple(_shared([*values, *kept], outputs))
        else:
            _execute(self._code, registers)
            outputs = list(self._outputs(registers))
        for index in self._copied:
            outputs[index] = own(outputs[index])
        return outputs

    def _run_checked(self, registers: Registers) -> list[Tensor]:
        """Run node by node; return the results that later runs find ready."""
        graph = self._graph
        kept: dict[int, Sequence[Tensor | None]] = {}
        size = 0
        fixed = set(constants(graph, is_random))
        for index, given in enumerate(graph.inputs):
            declared = Meta(given.dtype, given.shape)
            _check(f"graph.inputs[{index}]", registers[index], declared)
        for index, node in enumerate(graph.nodes):
            _, _, start, end, dead = self._code[index]
            result = self._tried(index, node, registers)
            results = result if end else (result,)
            path = f"graph.nodes[{index}] ({node.op})"
            if len(results) != len(node.results):
                raise SpecError(path, f"has {len(results)} results")
            for value, meta in zip(results, node.results, strict=True):
                _check(path, value, meta)
            registers[start : start + len(results)] = results
            size += _nbytes(results) if index in fixed else 0
            if index in fixed and size <= KEPT_BYTES:
                kept[index] = results
            for register in dead:
                registers[register] = None
        self._keep(kept)
        return [t for results in kept.values() for t in results if t is not None]

    def _keep(self, kept: Mapping[int, Sequence[Tensor | None]]) -> None:
        """Leave nodes out of later runs, their results in place."""
        ready: set[int] = set()
        for index, results in kept.items():
            start = self._code[index][2]
            at = start - len(self._graph.inputs)
            self._rest[at : at + len(results)] = results
            ready.update(range(start, start + len(results)))
        self._code = [
            (fn, gather, start, end, tuple(i for i in dead if i not in ready))
            for index, (fn, gather, start, end, dead) in enumerate(self._code)
            if index not in kept
        ]

    def _tried(self, index: int, node: Node, registers: Registers) -> Any:
        """Run one operator for the first time.

        A device may lay out a result in another order than the tracer foresaw, one in
        which a view is impossible; there the view becomes a copy, now and later.
        """
        fn, gather, start, end, dead = self._code[index]
        args = gather(registers)
        try:
            return fn(*args)
        except RuntimeError:
            if node.op not in RESHAPES:
                raise
        fn = direct(overload("reshape"))
        self._code[index] = (fn, gather, start, end, dead)
        return fn(*args)


def _execute(code: Sequence[Instruction], registers: Registers) -> None:
    for fn, gather, start, end, dead in code:
        if end:
            registers[start:end] = fn(*gather(registers))
        else:
            registers[start] = fn(*gather(registers))
        for register in dead:
            registers[register] = None


def strides_of(shape: Shape) -> tuple[int, ...]:
    """Return the strides of row-major order."""
    strides: list[int] = []
    step = 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


def own(tensor: Tensor) -> Tensor:
    """Return a copy in memory of its own, in row-major order."""
    return tensor.clone(memory_format=torch.contiguous_format)


def _nbytes(results: Sequence[Tensor | None]) -> int:
    return sum(tensor.nbytes for tensor in results if tensor is not None)


def _check(path: str, value: object, meta: Meta | None) -> None:
    if meta is None:
        return
    declared = spell(meta.dtype, meta.shape)
    if not isinstance(value, Tensor):
        raise SpecError(path, f"gives no tensor, but {declared} is declared")
    if dtype_name(value.dtype) != meta.dtype or tuple(value.shape) != meta.shape:
        found = spell(dtype_name(value.dtype), tuple(value.shape))
        raise SpecError(path, f"gives {found}, but {declared} is declared")


def _shared(inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> Iterator[int]:
    """Yield which outputs need memory of their own."""
    seen = {value.untyped_storage().data_ptr() for value in inputs}
    for index, value in enumerate(outputs):
        memory = value.untyped_storage().data_ptr()
        if memory in seen or not value.is_contiguous():
            yield index
        seen.add(memory)
