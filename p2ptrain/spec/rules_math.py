"""Rules for elementwise operators."""

from collections.abc import Mapping
from typing import Final

from p2ptrain.spec.call import Call, Item, axis, broadcast, refuse, want
from p2ptrain.spec.graph import Meta, Shape
from p2ptrain.spec.promote import floated, promote
from p2ptrain.spec.results import Results, Rule, like

# Arguments that scale or choose and have no part in type promotion.
_BESIDE: Final = frozenset({"alpha", "value", "condition", "rounding_mode"})


def same(call: Call) -> Results:
    """As the first tensor."""
    return (call.first(),)


def as_float(call: Call) -> Results:
    """As the tensor; integers become the default floating dtype."""
    x = call.first()
    return (like(x, floated(x.dtype)),)


def test(call: Call) -> Results:
    """Bools in the tensor's shape."""
    return (like(call.first(), "bool"),)


def shape_of(call: Call) -> Shape:
    """Return the shape that all tensors broadcast to."""
    return broadcast(*(meta.shape for meta in call.given()))


def _operands(call: Call) -> list[Item]:
    beside = _BESIDE | ({"weight"} if call.op.name == "lerp.Scalar" else set())
    return [
        value
        for name, value in call.values.items()
        if name not in beside and not isinstance(value, tuple)
    ]


def binary(call: Call) -> Results:
    """Broadcast and promoted."""
    return (Meta(promote(_operands(call)), shape_of(call)),)


def binary_float(call: Call) -> Results:
    """Broadcast and promoted; integers become the default floating dtype."""
    return (Meta(floated(promote(_operands(call))), shape_of(call)),)


def compared(call: Call) -> Results:
    """Broadcast bools."""
    return (Meta("bool", shape_of(call)),)


def gradient(call: Call) -> Results:
    """Broadcast and promoted over the tensors alone."""
    metas = call.given()
    return (Meta(promote(list(metas)), shape_of(call)),)


def log_sigmoid(call: Call) -> Results:
    """The result, and a buffer of its shape."""
    return (call.first(), call.first())


def prelu(call: Call) -> Results:
    """As the tensor; the weight must broadcast to it."""
    x = call.tensor("self")
    want("self", broadcast(x.shape, call.tensor("weight").shape), x.shape)
    return (x,)


def prelu_backward(call: Call) -> Results:
    """Gradients of the tensor and, not yet summed, of the weight."""
    return (*prelu(call), *prelu(call))


def _halved(call: Call) -> tuple[int, Shape]:
    x = call.tensor("self")
    dim = axis(call.whole("dim"), len(x.shape))
    refuse(
        "glu needs an even dimension", unless=x.shape != () and x.shape[dim] % 2 == 0
    )
    return dim, (*x.shape[:dim], x.shape[dim] // 2, *x.shape[dim + 1 :])


def glu(call: Call) -> Results:
    """Half as long in ``dim``."""
    return (Meta(call.tensor("self").dtype, _halved(call)[1]),)


def glu_backward(call: Call) -> Results:
    """As the input of ``glu``."""
    want("grad_output", call.tensor("grad_output").shape, _halved(call)[1])
    return (call.tensor("self"),)


def masked_fill(call: Call) -> Results:
    """The tensor broadcast with the mask."""
    x, mask = call.tensor("self"), call.tensor("mask")
    return (Meta(x.dtype, broadcast(x.shape, mask.shape)),)


def dropout(call: Call) -> Results:
    """The result, and which elements were kept."""
    return (call.first(), like(call.first(), "bool"))


def rrelu(call: Call) -> Results:
    """The result, and the noise that was drawn."""
    return (call.tensor("self"), call.tensor("noise"))


RULES: Final[Mapping[str, Rule]] = {
    "same": same,
    "float": as_float,
    "test": test,
    "binary": binary,
    "binary_float": binary_float,
    "compare": compared,
    "like_first": gradient,
    "log_sigmoid": log_sigmoid,
    "prelu": prelu,
    "prelu_backward": prelu_backward,
    "glu": glu,
    "glu_backward": glu_backward,
    "masked_fill": masked_fill,
    "masked_scatter": masked_fill,
    "dropout": dropout,
    "dropout_backward": gradient,
    "rrelu": rrelu,
}
