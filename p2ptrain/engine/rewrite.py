"""Graphs rewritten for comparison: wider, or with their random numbers given."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from p2ptrain.engine.randomness import is_random
from p2ptrain.spec.graph import Arg, Graph, Input, Node, Ref

NARROW: Final = frozenset({"float32", "float16", "bfloat16"})
WIDE: Final = "float64"


def widened(graph: Graph) -> Graph:
    """Return the graph with float64 in place of every narrower float."""
    return Graph(
        inputs=tuple(replace(i, dtype=_wide(i.dtype)) for i in graph.inputs),
        nodes=tuple(_wide_node(node) for node in graph.nodes),
        outputs=graph.outputs,
    )


def _wide(dtype: str) -> str:
    return WIDE if dtype in NARROW else dtype


def _wide_node(node: Node) -> Node:
    # The only texts that name a dtype are dtypes (see ``spec.ops``).
    return replace(
        node,
        args=tuple(_wide(a) if isinstance(a, str) else a for a in node.args),
        kwargs={k: _wide(a) if isinstance(a, str) else a for k, a in _kwargs(node)},
        results=tuple(
            meta and replace(meta, dtype=_wide(meta.dtype)) for meta in node.results
        ),
    )


def _kwargs(node: Node) -> list[tuple[str, Arg]]:
    return list(node.kwargs.items())


@dataclass(frozen=True, slots=True)
class Drawn:
    """A graph whose random numbers are inputs.

    Args:
        graph: with the inputs ``names`` after its own.
        names: one for each value that was drawn.
        values: the numbers of these values in the graph before.
    """

    graph: Graph
    names: tuple[str, ...]
    values: tuple[int, ...]


def drawn(graph: Graph) -> Drawn:
    """Return a graph with the results of its random operators as inputs."""
    given: list[Input] = []
    values: list[int] = []
    kept: list[tuple[int, Node]] = []  # with the number of the first result
    number = len(graph.inputs)
    for node in graph.nodes:
        if is_random(node.op):
            for offset, meta in enumerate(node.results):
                if meta is not None:
                    given.append(Input(f"drawn {len(given)}", meta.dtype, meta.shape))
                    values.append(number + offset)
        else:
            kept.append((number, node))
        number += len(node.results)
    inputs = (*graph.inputs, *given)
    renamed = dict(enumerate(range(len(graph.inputs))))
    renamed |= {old: len(graph.inputs) + i for i, old in enumerate(values)}
    number = len(inputs)
    for old, node in kept:
        renamed |= {old + i: number + i for i in range(len(node.results))}
        number += len(node.results)
    rewritten = Graph(
        inputs=inputs,
        nodes=tuple(_renumbered(node, renamed.__getitem__) for _, node in kept),
        outputs=tuple(renamed[value] for value in graph.outputs),
    )
    return Drawn(rewritten, tuple(i.name for i in given), tuple(values))


def _renumbered(node: Node, new: Callable[[int], int]) -> Node:
    def change(arg: Arg) -> Arg:
        if isinstance(arg, Ref):
            return Ref(new(arg.r))
        if isinstance(arg, tuple):
            return tuple(Ref(new(a.r)) if isinstance(a, Ref) else a for a in arg)
        return arg

    return replace(
        node,
        args=tuple(map(change, node.args)),
        kwargs={name: change(arg) for name, arg in node.kwargs.items()},
    )
