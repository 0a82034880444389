"""Turns a traced fx graph into a ``Graph``: only operators of the table, only data.

What says where a graph runs (device, layout, pinned memory) is left out. Memory that
the trace leaves unwritten becomes zeros, and a number that stands for a tensor becomes
an argument of the operator's ``Scalar`` form, which computes the same bits.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Final

import torch
from torch import Tensor, fx

from p2ptrain.errors import CaptureError
from p2ptrain.spec.graph import Arg, Graph, Input, Meta, Node, Ref, Scalar
from p2ptrain.spec.ops import OPS, Op

PLACEMENT: Final = frozenset({"device", "layout", "pin_memory", "generator"})
HALF: Final = frozenset({"bfloat16", "float16"})
FORMATS: Final[Mapping[torch.memory_format, str]] = MappingProxyType(
    {
        torch.contiguous_format: "contiguous",
        torch.preserve_format: "preserve",
        torch.channels_last: "channels_last",
        torch.channels_last_3d: "channels_last_3d",
    }
)
# what was checked while tracing holds for every run: dtypes and shapes do not change
CHECKS: Final = frozenset({"aten._assert_tensor_metadata.default"})
# operator -> its stand-in, and how many of its first arguments that one takes
STAND_INS: Final[Mapping[str, tuple[str, int]]] = MappingProxyType(
    {
        "empty.memory_format": ("zeros", 1),
        "empty_permuted": ("zeros", 1),
        "empty_strided": ("zeros", 1),
        "empty_like": ("zeros_like", 1),
        "new_empty": ("new_zeros", 2),
        "new_empty_strided": ("new_zeros", 2),
        "lift_fresh": ("clone", 1),
        "lift_fresh_copy": ("clone", 1),
        "_reshape_alias": ("view", 2),
    }
)


@dataclass(frozen=True, slots=True)
class Converted:
    """A converted graph.

    Args:
        graph: its outputs are those of the fx graph.
        constants: tensors that the trace holds, by the names of their inputs, which
            stand last.
    """

    graph: Graph
    constants: dict[str, Tensor]


@dataclass
class _Values:
    """What the values of an fx graph are called in the other."""

    inputs: list[Input] = field(default_factory=list)
    nodes: list[Node] = field(default_factory=list)
    constants: dict[str, Tensor] = field(default_factory=dict)
    numbers: dict[fx.Node, int] = field(default_factory=dict)
    count: int = 0

    def add(self, node: fx.Node, results: int) -> None:
        self.numbers[node] = self.count
        self.count += results


def convert(module: fx.GraphModule, names: Sequence[str], prefix: str) -> Converted:
    """Convert a traced module.

    Args:
        module: the trace.
        names: of its placeholders.
        prefix: of the names of its constants.

    Raises:
        CaptureError: an operator that no graph may use, or an argument that no graph
            can hold.
    """
    values = _Values()
    nodes = list(module.graph.nodes)
    heads = [node for node in nodes if node.op == "placeholder"]
    for node, name in zip(heads, names, strict=True):
        _add_input(values, node, name, node.meta["val"])
    for node in nodes:
        if node.op == "get_attr":
            _add_constant(values, node, _constant(module, str(node.target)), prefix)
    for node in nodes:
        if node.op == "call_function" and str(node.target) not in CHECKS:
            _add_call(values, node)
    graph = Graph(
        inputs=tuple(values.inputs),
        nodes=tuple(values.nodes),
        outputs=tuple(values.numbers[out] for out in nodes[-1].args[0]),
    )
    return Converted(graph, values.constants)


def _add_input(values: _Values, node: fx.Node, name: str, tensor: Tensor) -> None:
    meta = meta_of(tensor)
    values.inputs.append(Input(name, meta.dtype, meta.shape))
    values.add(node, 1)


def _add_constant(values: _Values, node: fx.Node, tensor: Tensor, prefix: str) -> None:
    for name, known in values.constants.items():
        if tensor.is_set_to(known):  # the trace holds it once for every use
            number = [given.name for given in values.inputs].index(name)
            values.numbers[node] = number
            return
    name = f"{prefix}{len(values.constants)}"
    values.constants[name] = tensor
    _add_input(values, node, name, tensor)


def _constant(module: fx.GraphModule, target: str) -> Tensor:
    tensor = module
    for part in target.split("."):
        tensor = getattr(tensor, part)
    if not isinstance(tensor, Tensor):
        raise CaptureError(f"the trace holds {target}, which is no tensor")
    if tensor.requires_grad:
        raise CaptureError(
            f"the loss or the model uses a tensor of shape {list(tensor.shape)} that "
            "requires gradients but is no parameter of the model: register it there"
        )
    return tensor.detach()


def _add_call(values: _Values, node: fx.Node) -> None:
    target = node.target
    if target is getattr:
        raise CaptureError(f"{node.format_node()} is no operator call")
    if getattr(target, "__name__", "") == "getitem":
        source, index = node.args
        assert isinstance(source, fx.Node)
        assert isinstance(index, int)
        values.numbers[node] = values.numbers[source] + index
        return
    call = _call(node, _arg_maker(values.numbers))
    values.nodes.append(call)
    values.add(node, len(call.results))


def _call(node: fx.Node, make: Callable[[object], Arg]) -> Node:
    target = node.target
    if not isinstance(target, torch._ops.OpOverload) or target.namespace != "aten":  # noqa: SLF001  # the type has no public name
        raise CaptureError(f"{target} is not among the operators a graph may use")
    name = str(target).removeprefix("aten.").removesuffix(".default")
    args: Sequence[object] = node.args
    kwargs: Mapping[str, object] = node.kwargs
    op = OPS.get(name)
    if name in STAND_INS:
        stand_in, taken = STAND_INS[name]
        op, args = OPS[stand_in], args[:taken]
        known = {param.name for param in op.params}
        kwargs = {key: value for key, value in kwargs.items() if key in known}
    if op is None:
        raise CaptureError(f"{target} is not among the operators a graph may use")
    if kwargs.get("layout") not in {None, torch.strided}:
        raise CaptureError(f"{target}: layout {kwargs['layout']} is not for graphs")
    op = _number_form(op, args)
    try:
        return Node(
            op=op.name,
            args=tuple(map(make, args)),
            kwargs={
                key: make(value)
                for key, value in kwargs.items()
                if key not in PLACEMENT
            },
            results=_as_run(op, _results(node.meta["val"])),
        )
    except TypeError as error:
        raise CaptureError(f"{target}: {error}") from error


def _number_form(op: Op, args: Sequence[object]) -> Op:
    """Return the form of an operator that takes a number where it takes a tensor."""
    for param, arg in zip(op.positional, args, strict=False):
        if param.kind == "T" and isinstance(arg, int | float):
            other = OPS.get(op.name.replace("Tensor", "Scalar"))
            if other is None or other is op:
                raise CaptureError(f"aten.{op.name}: {param.name} is the number {arg}")
            return other
    return op


def _as_run(op: Op, results: tuple[Meta | None, ...]) -> tuple[Meta | None, ...]:
    """Correct a trace's word on results to what kernels give: a batch norm of
    half-precision input keeps its statistics in fp32, whatever the trace says.
    """
    first, *rest = results
    if op.rule != "batch_norm" or first is None or first.dtype not in HALF:
        return results
    kept = [meta and replace(meta, dtype="float32") for meta in rest]
    return (first, *kept)


def _results(value: Any) -> tuple[Meta | None, ...]:
    if isinstance(value, Tensor):
        return (meta_of(value),)
    if isinstance(value, tuple | list):
        return tuple(None if item is None else meta_of(item) for item in value)
    raise TypeError(f"a result of type {type(value).__name__}, not a tensor")


def meta_of(tensor: Tensor) -> Meta:
    """Return a tensor's dtype and shape."""
    if not all(type(size) is int for size in tensor.shape):
        raise CaptureError(
            f"a tensor of shape {list(tensor.shape)}, which depends on values: "
            "use operators whose results have fixed shapes"
        )
    return Meta(dtype_name(tensor.dtype), tuple(tensor.shape))


def dtype_name(dtype: torch.dtype) -> str:
    """Return a dtype's name, for example ``float32``."""
    return str(dtype).removeprefix("torch.")


def _arg_maker(numbers: Mapping[fx.Node, int]) -> Callable[[object], Arg]:
    def scalar(value: object) -> Scalar:
        if value is None or type(value) in {bool, int, float, str}:
            return value  # type: ignore[return-value]  # narrowed by its exact type
        if isinstance(value, fx.Node):
            return Ref(numbers[value])
        if isinstance(value, torch.dtype):
            return dtype_name(value)
        if isinstance(value, torch.memory_format):
            return FORMATS[value]
        raise TypeError(f"an argument of type {type(value).__name__}: {value}")

    def make(value: object) -> Arg:
        if isinstance(value, list | tuple):
            return tuple(map(scalar, value))
        return scalar(value)

    return make
