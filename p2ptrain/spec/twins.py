"""Gradient operators that trust what their forward operator computed.

Some kernels write wherever an index tensor says (found by trying: the gradients of max
pooling, of embeddings and of embedding bags end the process, or worse, when given other
numbers). They are admitted only together with the forward call whose results they take,
and with that call's arguments, so that the forward kernel has checked the numbers.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from p2ptrain.spec.call import CallError, named
from p2ptrain.spec.graph import Arg, Node, Ref
from p2ptrain.spec.ops import OPS

SAME: Final = frozenset({"detach", "alias"})  # give back what they take


@dataclass(frozen=True, slots=True)
class Twin:
    """A gradient operator's forward operator.

    Args:
        forward: its name.
        links: arguments of the gradient that are results of the forward call.
    """

    forward: str
    links: Mapping[str, int]


_POOL: Final = {"indices": 1}
_NLL: Final = {"total_weight": 1}
_BAG: Final = {"offset2bag": 1, "bag_size": 2, "maximum_indices": 3}

TWINS: Final[Mapping[str, Twin]] = MappingProxyType(
    {
        f"{name}_backward": Twin(name, _POOL)
        for name in (
            "max_pool2d_with_indices",
            "max_pool3d_with_indices",
            "adaptive_max_pool2d",
            "adaptive_max_pool3d",
        )
    }
    | {
        "nll_loss_backward": Twin("nll_loss_forward", _NLL),
        "nll_loss2d_backward": Twin("nll_loss2d_forward", _NLL),
        "_embedding_bag_backward": Twin("_embedding_bag", _BAG),
    }
)
ROWS: Final = {"embedding_dense_backward": "embedding"}  # tied by their indices


@dataclass(frozen=True, slots=True)
class Maker:
    """Who computed a value: the node, which of its results it is, and how many rows the
    node's first tensor argument has.
    """

    node: Node
    index: int
    rows: int


class Twins:
    """What the nodes so far computed; nodes are noted in order.

    Args:
        inputs: how many inputs the graph has.
    """

    def __init__(self, inputs: int) -> None:
        # by value number: the value that it equals, and who computed it
        self._equal = list(range(inputs))
        self._makers: list[Maker | None] = [None] * inputs
        self._looked_up: set[tuple[int, Arg]] = set()  # (indices, rows of the weight)

    def note(self, node: Node, rows: int) -> None:
        """Add a node that has been checked.

        Args:
            node: the node.
            rows: the first size of its first tensor argument, or -1.
        """
        source = node.args[0] if node.op in SAME and node.args else None
        for index in range(len(node.results)):
            number = len(self._equal)
            same = self._equal[source.r] if isinstance(source, Ref) else number
            self._equal.append(same)
            self._makers.append(Maker(node, index, rows))
        if node.op in ROWS.values():
            indices = self._plain(named(OPS[node.op], node).get("indices"))
            if isinstance(indices, Ref):
                self._looked_up.add((indices.r, rows))

    def check(self, node: Node) -> None:
        """Check a node, whose own arguments have been checked, before it is noted.

        Raises:
            CallError: it trusts numbers that no forward call has checked.
        """
        if node.op in ROWS:
            self._check_rows(node)
        elif node.op in TWINS:
            self._check_twin(node, TWINS[node.op])

    def _check_rows(self, node: Node) -> None:
        args = named(OPS[node.op], node)
        indices = self._plain(args["indices"])
        known = isinstance(indices, Ref) and (
            (indices.r, args["num_weights"]) in self._looked_up
        )
        if not known:
            raise CallError(
                f"{node.op} has no {ROWS[node.op]} call before it with its indices "
                "and as many rows"
            )

    def _check_twin(self, node: Node, twin: Twin) -> None:
        args = named(OPS[node.op], node)
        makers = [self._maker(args.get(name), at) for name, at in twin.links.items()]
        forward = makers[0]
        if forward is None or forward.node.op != twin.forward:
            raise CallError(f"{node.op} has no {twin.forward} call before it")
        if any(m is None or m.node is not forward.node for m in makers):
            raise CallError(f"{node.op} takes results of several {twin.forward} calls")
        given = named(OPS[twin.forward], forward.node)
        for name in args.keys() & given.keys():
            if self._plain(args[name]) != self._plain(given[name]):
                raise CallError(f"{name!r} is not what the {twin.forward} call took")
        if args.get("num_weights", forward.rows) != forward.rows:
            raise CallError(f"'num_weights' is not {forward.rows}, the weight's rows")

    def _maker(self, arg: Arg, index: int) -> Maker | None:
        plain = self._plain(arg)
        maker = self._makers[plain.r] if isinstance(plain, Ref) else None
        return maker if maker is not None and maker.index == index else None

    def _plain(self, arg: Arg) -> Arg:
        return Ref(self._equal[arg.r]) if isinstance(arg, Ref) else arg
