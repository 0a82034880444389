"""The check of a graph: operators, arguments, references, dtypes, shapes, bounds.

One pass, at a cost linear in the graph's own size; nothing is allocated for tensors.
"""

from p2ptrain.errors import SpecError
from p2ptrain.spec.call import Call, CallError
from p2ptrain.spec.checks import (
    check_count,
    check_name,
    check_tensor,
    check_unique,
    require,
)
from p2ptrain.spec.graph import Graph, Meta, Node
from p2ptrain.spec.limits import Limits
from p2ptrain.spec.ops import OPS
from p2ptrain.spec.rules import check_node
from p2ptrain.spec.text import show
from p2ptrain.spec.twins import Twins


def check_graph(field: str, graph: Graph, limits: Limits) -> tuple[Meta, ...]:
    """Check a graph; return its outputs' dtypes and shapes.

    Args:
        field: the graph's path in the spec.
        graph: the graph.
        limits: the bounds.

    Raises:
        SpecError: it may not run; names the node or input.
    """
    check_count(f"{field}.inputs", graph.inputs, limits.inputs)
    check_count(f"{field}.nodes", graph.nodes, limits.nodes)
    check_count(f"{field}.outputs", graph.outputs, limits.outputs)
    values = sum(len(node.results) for node in graph.nodes)
    if values > limits.values:
        raise SpecError(
            f"{field}.nodes", f"have {values} results, at most {limits.values}"
        )
    metas: list[Meta | None] = list(_inputs(field, graph, limits))
    twins = Twins(len(metas))
    for index, node in enumerate(graph.nodes):
        _check_node(f"{field}.nodes[{index}]", node, metas, twins, limits)
        metas.extend(node.results)
    return _outputs(field, graph, metas)


def _inputs(field: str, graph: Graph, limits: Limits) -> list[Meta]:
    metas = []
    for index, given in enumerate(graph.inputs):
        where = f"{field}.inputs[{index}]"
        check_name(f"{where}.name", given.name, limits)
        check_tensor(where, given.dtype, given.shape, limits)
        metas.append(Meta(given.dtype, given.shape))
    check_unique(f"{field}.inputs", (given.name for given in graph.inputs))
    return metas


def _outputs(field: str, graph: Graph, metas: list[Meta | None]) -> tuple[Meta, ...]:
    found = []
    for index, number in enumerate(graph.outputs):
        where = f"{field}.outputs[{index}]"
        known = 0 <= number < len(metas)
        require(where, f"there is no value {show(number)}", unless=known)
        meta = metas[number]
        if meta is None:
            raise SpecError(where, f"value {number} is no tensor")
        found.append(meta)
    return tuple(found)


def _check_node(
    field: str, node: Node, metas: list[Meta | None], twins: Twins, limits: Limits
) -> None:
    require(f"{field}.op", f"unknown operator {show(node.op)}", unless=node.op in OPS)
    check_count(f"{field}.args", node.args, limits.args)
    check_count(f"{field}.results", node.results, limits.args)
    for arg in (*node.args, *node.kwargs.values()):
        if isinstance(arg, tuple):
            check_count(f"{field}.args", arg, limits.args)
    for index, meta in enumerate(node.results):
        if meta is not None:
            where = f"{field}.results[{index}]"
            check_tensor(where, meta.dtype, meta.shape, limits)
    try:
        call = check_node(node, metas)
        twins.check(node)
    except CallError as error:
        raise SpecError(f"{field} ({node.op})", str(error)) from error
    twins.note(node, _rows(call))


def _rows(call: Call) -> int:
    given = call.given()
    return given[0].shape[0] if given and given[0].shape else -1
