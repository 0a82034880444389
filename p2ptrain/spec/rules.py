"""All rules by name, and the check of one node against its operator's.

A rule says which results a call has. It works on dtypes and shapes alone, allocates
nothing, and where a kernel trusts an argument's shape, it does not.
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final

from p2ptrain.spec import (
    rules_conv,
    rules_index,
    rules_join,
    rules_loss,
    rules_make,
    rules_math,
    rules_nn,
    rules_reduce,
    rules_sample,
    rules_view,
)
from p2ptrain.spec.call import Call, CallError, bind
from p2ptrain.spec.graph import Meta, Node
from p2ptrain.spec.ops import OPS, Op
from p2ptrain.spec.results import Rule, compare
from p2ptrain.spec.text import show

RULES: Final[Mapping[str, Rule]] = MappingProxyType(
    dict(rules_conv.RULES)
    | dict(rules_index.RULES)
    | dict(rules_join.RULES)
    | dict(rules_loss.RULES)
    | dict(rules_make.RULES)
    | dict(rules_math.RULES)
    | dict(rules_nn.RULES)
    | dict(rules_reduce.RULES)
    | dict(rules_sample.RULES)
    | dict(rules_view.RULES)
)


def op_of(name: str) -> Op:
    """Return an operator.

    Raises:
        CallError: the table has none of that name.
    """
    op = OPS.get(name)
    if op is None:
        raise CallError(f"unknown operator {show(name)}")
    return op


def check_node(node: Node, metas: Sequence[Meta | None]) -> Call:
    """Check a node's arguments, and its results against the operator's rule; return
    the call.

    Args:
        node: its declared results have been checked by themselves.
        metas: all values before it, by number; None for what is no tensor.

    Raises:
        CallError: the operator does not admit the call, or gives something else.
    """
    op = op_of(node.op)
    call = bind(op, node, metas)
    compare(op.name, RULES[op.rule](call), node.results)
    return call
