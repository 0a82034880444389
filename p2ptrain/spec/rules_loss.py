"""Rules for losses and their gradients."""

import math
from collections.abc import Mapping
from typing import Final

from p2ptrain.spec.call import Call, refuse, want
from p2ptrain.spec.graph import Meta, Shape
from p2ptrain.spec.promote import promote
from p2ptrain.spec.results import Results, Rule
from p2ptrain.spec.rules_index import choice
from p2ptrain.spec.rules_math import shape_of


def _reduction(call: Call) -> int:
    choice(call, "reduction")
    return call.whole("reduction")


def loss(call: Call) -> Results:
    """One value, or one each."""
    shape = shape_of(call)
    dtype = promote(list(call.given()))
    return (Meta(dtype, () if _reduction(call) else shape),)


def loss_backward(call: Call) -> Results:
    """As the prediction."""
    _reduction(call)
    return (Meta(promote(list(call.given())), shape_of(call)),)


def _targets(call: Call) -> Shape:
    """Return the shape of an unreduced loss, that of the target."""
    x, target = call.tensor("self"), call.tensor("target")
    refuse("'target' is not int64 or uint8", unless=target.dtype in {"int64", "uint8"})
    flat = "2d" not in call.op.name
    ranks = {1, 2} if flat else {4}
    refuse("'self' has the wrong rank", unless=len(x.shape) in ranks)
    classes = x.shape[-1] if flat else x.shape[1]
    lead = x.shape[:-1] if flat else (x.shape[0], *x.shape[2:])
    if not (lead == () and math.prod(target.shape) == 1):
        want("target", target.shape, lead)
    weight = call.maybe("weight")
    if weight is not None:
        want("weight", weight.shape, (classes,))
    return target.shape if lead else ()


def nll(call: Call) -> Results:
    """The loss, and the sum of the weights it is divided by."""
    x, shape = call.tensor("self"), _targets(call)
    shape = () if _reduction(call) else shape
    return (Meta(x.dtype, shape), Meta(x.dtype, ()))


def nll_backward(call: Call) -> Results:
    """As the prediction."""
    shape = _targets(call)
    grad = call.tensor("grad_output").shape
    want("grad_output", grad, () if _reduction(call) else shape)
    want("total_weight", call.tensor("total_weight").shape, ())
    return (call.tensor("self"),)


def multi_margin(call: Call) -> Results:
    """One value, or one each."""
    shape = _targets(call)
    return (Meta(call.tensor("self").dtype, () if _reduction(call) else shape),)


def multi_margin_backward(call: Call) -> Results:
    """As the prediction."""
    shape = _targets(call)
    grad = call.tensor("grad_output").shape
    want("grad_output", grad, () if _reduction(call) else shape)
    return (call.tensor("self"),)


RULES: Final[Mapping[str, Rule]] = {
    "loss": loss,
    "loss_backward": loss_backward,
    "nll": nll,
    "nll_backward": nll_backward,
    "multi_margin": multi_margin,
    "multi_margin_backward": multi_margin_backward,
}
