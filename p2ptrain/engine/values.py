"""The values of a graph: where each node's begin, which ones a node refers to."""

from collections.abc import Callable
from dataclasses import replace

from p2ptrain.spec.graph import Arg, Graph, Node, Ref


def starts(graph: Graph) -> list[int]:
    """Return the number of each node's first result."""
    found: list[int] = []
    count = len(graph.inputs)
    for node in graph.nodes:
        found.append(count)
        count += len(node.results)
    return found


def refs(node: Node) -> set[int]:
    """Return the values that a node refers to."""
    found: set[int] = set()
    for arg in (*node.args, *node.kwargs.values()):
        for item in arg if isinstance(arg, tuple) else (arg,):
            if isinstance(item, Ref):
                found.add(item.r)
    return found


def renumbered(node: Node, new: Callable[[int], int]) -> Node:
    """Return a node with other value numbers in its arguments."""

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


def deaths(graph: Graph) -> list[set[int]]:
    """Return for each node the results that nothing needs after it."""
    alive = set(graph.outputs) | set(range(len(graph.inputs)))
    found: list[set[int]] = []
    for start, node in zip(reversed(starts(graph)), reversed(graph.nodes), strict=True):
        touched = refs(node) | set(range(start, start + len(node.results)))
        found.append(touched - alive)
        alive |= touched
    found.reverse()
    return found


def constants(graph: Graph, is_random: Callable[[str], bool]) -> list[int]:
    """Return the indices of the nodes whose results are the same in every run."""
    fixed: set[int] = set()
    found: list[int] = []
    for index, (start, node) in enumerate(zip(starts(graph), graph.nodes, strict=True)):
        if not is_random(node.op) and refs(node) <= fixed:
            found.append(index)
            fixed.update(range(start, start + len(node.results)))
    return found
