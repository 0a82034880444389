"""Makes a captured graph smaller without changing a bit of what it computes.

Left out are nodes that nothing uses, nodes that only name a value again, views of
views, and views computed twice.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from p2ptrain.engine.values import refs, renumbered, starts
from p2ptrain.spec.graph import Graph, Input, Meta, Node, Ref

NAMES: Final = frozenset({"detach", "alias"})
RESHAPES: Final = frozenset({"view", "_unsafe_view"})
# equal calls give equal values and cost no memory of their own
VIEWS: Final = RESHAPES | {
    *("t", "transpose.int", "permute", "expand", "select.int", "slice.Tensor"),
    *("squeeze.dim", "squeeze.dims", "unsqueeze", "diagonal"),
}


def simplified(graph: Graph) -> Graph:
    """Return a smaller graph with the same inputs and outputs."""
    return pruned(_merged(graph), range(len(graph.inputs)))


def pruned(graph: Graph, inputs: Sequence[int]) -> Graph:
    """Return the graph without nodes that nothing needs.

    Args:
        graph: the graph.
        inputs: which of its inputs remain, in their new order; all that are used.
    """
    needed = set(graph.outputs)
    kept: list[tuple[int, Node]] = []
    for start, node in zip(reversed(starts(graph)), reversed(graph.nodes), strict=True):
        results = range(start, start + len(node.results))
        if not needed.isdisjoint(results):
            kept.append((start, node))
            needed.update(refs(node))
    kept.reverse()
    new = {old: index for index, old in enumerate(inputs)}
    nodes: list[Node] = []
    count = len(inputs)
    for start, node in kept:
        nodes.append(renumbered(node, new.__getitem__))
        for index in range(len(node.results)):
            new[start + index] = count
            count += 1
    return Graph(
        inputs=tuple(graph.inputs[index] for index in inputs),
        nodes=tuple(nodes),
        outputs=tuple(new[value] for value in graph.outputs),
    )


def with_inputs(graph: Graph, extra: Mapping[str, Meta]) -> Graph:
    """Return the graph with further inputs, which nothing uses."""
    count = len(graph.inputs)

    def moved(value: int) -> int:
        return value if value < count else value + len(extra)

    more = (Input(name, meta.dtype, meta.shape) for name, meta in extra.items())
    return Graph(
        inputs=(*graph.inputs, *more),
        nodes=tuple(renumbered(node, moved) for node in graph.nodes),
        outputs=tuple(map(moved, graph.outputs)),
    )


def used_inputs(graph: Graph) -> set[int]:
    """Return the numbers of the inputs that a pruned graph uses."""
    used = set(graph.outputs).union(*map(refs, graph.nodes))
    return {value for value in used if value < len(graph.inputs)}


def _merged(graph: Graph) -> Graph:
    """Let every value stand for all that are the same."""
    merge = _Merge(graph)
    nodes = tuple(
        merge.add(start, node)
        for start, node in zip(starts(graph), graph.nodes, strict=True)
    )
    outputs = tuple(merge.find(value) for value in graph.outputs)
    return replace(graph, nodes=nodes, outputs=outputs)


class _Merge:
    def __init__(self, graph: Graph) -> None:
        self._inputs = len(graph.inputs)
        self._metas: dict[int, Meta | None] = {
            index: Meta(given.dtype, given.shape)
            for index, given in enumerate(graph.inputs)
        }
        self._makers: dict[int, Node] = {}
        self._same: dict[int, int] = {}
        self._views: dict[tuple[object, ...], int] = {}

    def find(self, value: int) -> int:
        return self._same.get(value, value)

    def add(self, start: int, node: Node) -> Node:
        node = renumbered(node, self.find)
        source = node.args[0].r if node.args and isinstance(node.args[0], Ref) else -1
        inner = self._makers.get(source)
        if node.op in RESHAPES and inner is not None and inner.op in RESHAPES:
            node = replace(node, args=(inner.args[0], *node.args[1:]))
            source = inner.args[0].r if isinstance(inner.args[0], Ref) else -1
        for index, meta in enumerate(node.results):
            self._metas[start + index] = meta
        same = self._known(node, source)
        if same is not None:
            self._same[start] = same
        elif node.op in VIEWS:
            key = (node.op, *map(_key, node.args), *map(_key, node.kwargs.items()))
            self._same[start] = self._views.setdefault(key, start)
        self._makers[start] = node
        return node

    def _known(self, node: Node, source: int) -> int | None:
        """Return the older value that a node's result equals, if it is a plain one."""
        if node.op in NAMES:
            return source
        if node.op == "clone" and source < self._inputs and not node.kwargs:
            return source
        if node.op in RESHAPES | {"expand"} and self._metas[source] == node.results[0]:
            return source
        inner = self._makers.get(source)
        if inner is None or inner.op != node.op:
            return None
        is_undone = node.op == "t" or (
            node.op == "transpose.int" and node.args[1:] == inner.args[1:]
        )
        first = inner.args[0]
        return first.r if is_undone and isinstance(first, Ref) else None


def _key(item: object) -> object:
    """Make 1, 1.0 and True differ."""
    if isinstance(item, tuple):
        return tuple(map(_key, item))
    return (type(item), item)
