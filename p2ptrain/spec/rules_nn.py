"""Rules for normalisation, softmax and embeddings.

Kernels trust some shapes, so statistics and gradients are checked here.
"""

import math
from collections.abc import Mapping
from typing import Final

from p2ptrain.spec.call import Call, axis, refuse, want
from p2ptrain.spec.graph import Meta, Shape
from p2ptrain.spec.results import Bounded, Expected, Floating, Results, Rule, floating
from p2ptrain.spec.rules_conv import masked
from p2ptrain.spec.rules_index import choice, numbers


def _channels(x: Meta) -> Shape:
    refuse("'input' has fewer than 2 dimensions", unless=len(x.shape) >= 2)
    return (x.shape[1],)


def _want_all(call: Call, names: tuple[str, ...], shape: Shape) -> None:
    for name in names:
        meta = call.maybe(name) if name in call.values else None
        if meta is not None:
            want(name, meta.shape, shape)
            floating(meta, f"{name!r}")


def batch_norm(call: Call) -> Results:
    """The result, statistics of the batch (none in evaluation), and the new running
    statistics where the operator hands them back.
    """
    x = floating(call.tensor("input"), "'input'")
    channels = _channels(x)
    _want_all(call, ("weight", "bias", "running_mean", "running_var"), channels)
    saved = Floating(channels if call.values.get("training") is True else (0,))
    results: tuple[Expected, ...] = (x, saved, saved)
    if call.op.results == 5:
        results += (call.tensor("running_mean"), call.tensor("running_var"))
    return results


def batch_norm_backward(call: Call) -> Results:
    """As input, weight and bias, where asked for."""
    x, grad = call.tensor("input"), call.tensor("grad_out")
    channels = _channels(x)
    want("grad_out", grad.shape, x.shape)
    _want_all(call, ("weight", "running_mean", "running_var"), channels)
    names = ("save_mean", "save_invstd")
    if not call.flag("train"):
        names = ("running_mean", "running_var")
    for name in names:
        refuse(f"{name!r} is missing", unless=call.maybe(name) is not None)
        want(name, call.tensor(name).shape, channels)
    one = Floating(channels)
    return masked([x, one, one], call.mask(3))


def _normalized(call: Call) -> tuple[Shape, Shape]:
    """Return the normalized shape and that of the statistics."""
    x, shape = call.tensor("input"), tuple(call.ints("normalized_shape"))
    refuse("normalized_shape is empty", unless=shape != ())
    want("normalized_shape", shape, x.shape[-len(shape) :])
    _want_all(call, ("weight", "bias"), shape)
    return shape, (*x.shape[: -len(shape)], *(1 for _ in shape))


def layer_norm(call: Call) -> Results:
    """The result, means and reciprocal deviations."""
    x = floating(call.tensor("input"), "'input'")
    _, statistics = _normalized(call)
    return (x, Floating(statistics), Floating(statistics))


def layer_norm_backward(call: Call) -> Results:
    """As input, weight and bias, where asked for."""
    x = call.tensor("input")
    shape, statistics = _normalized(call)
    want("grad_out", call.tensor("grad_out").shape, x.shape)
    _want_all(call, ("mean", "rstd"), statistics)
    mask = call.mask(3)
    for asked, name in zip(mask[1:], ("weight", "bias"), strict=True):
        refuse(f"there is no {name}", unless=not asked or call.maybe(name) is not None)
    return masked([x, Floating(shape), Floating(shape)], mask)


def _grouped(call: Call) -> Shape:
    """Return the shape of the statistics."""
    x = call.tensor("input")
    n, c, rest, groups = (call.whole(name) for name in ("N", "C", "HxW", "group"))
    refuse(
        f"N {n}, C {c} and HxW {rest} are not those of 'input'",
        unless=x.shape[:2] == (n, c) and math.prod(x.shape[2:]) == rest,
    )
    refuse(f"{c} channels in {groups} groups", unless=groups > 0 and c % groups == 0)
    _want_all(call, ("weight", "bias"), (c,))
    return (n, groups)


def group_norm(call: Call) -> Results:
    """The result, means and reciprocal deviations."""
    x = floating(call.tensor("input"), "'input'")
    statistics = Floating(_grouped(call))
    return (x, statistics, statistics)


def group_norm_backward(call: Call) -> Results:
    """As input, weight and bias, where asked for."""
    x, mask = call.tensor("input"), call.mask(3)
    statistics = _grouped(call)
    want("grad_out", call.tensor("grad_out").shape, x.shape)
    _want_all(call, ("mean", "rstd"), statistics)
    refuse(
        "there is no weight",
        unless=not (mask[1] or mask[2]) or call.maybe("weight") is not None,
    )
    one = Floating((call.whole("C"),))
    return masked([x, one, one], mask)


def _norms(call: Call, v: Meta, g: Meta) -> None:
    dim, last = call.whole("dim"), len(v.shape) - 1
    refuse(f"dim {dim} is neither the first nor the last", unless=dim in {0, last})
    kept = (size if at == dim else 1 for at, size in enumerate(v.shape))
    want("g", g.shape, tuple(kept))


def weight_norm(call: Call) -> Results:
    """The weight, and the norms of its slices."""
    v, g = call.tensor("v"), call.tensor("g")
    _norms(call, v, g)
    return (v, Floating(g.shape))


def weight_norm_backward(call: Call) -> Results:
    """As direction and length."""
    v, g = call.tensor("saved_v"), call.tensor("saved_g")
    _norms(call, v, g)
    want("grad_w", call.tensor("grad_w").shape, v.shape)
    want("saved_norms", call.tensor("saved_norms").shape, g.shape)
    return (v, g)


def softmax(call: Call) -> Results:
    """As the tensor."""
    x = floating(call.tensor("self"), "'self'")
    axis(call.whole("dim"), len(x.shape))
    dtype = "float32" if call.values.get("half_to_float") is True else x.dtype
    return (Meta(call.dtype(dtype), x.shape),)


def softmax_backward(call: Call) -> Results:
    """As the input."""
    output, dtype = call.tensor("output"), call.values["input_dtype"]
    want("grad_output", call.tensor("grad_output").shape, output.shape)
    axis(call.whole("dim"), len(output.shape))
    return (Meta(str(dtype), output.shape),)


def embedding(call: Call) -> Results:
    """A row for each index."""
    weight = call.tensor("weight")
    where = numbers("indices", call.tensor("indices"))
    refuse("'weight' has not 2 dimensions", unless=len(weight.shape) == 2)
    return (Meta(weight.dtype, (*where.shape, weight.shape[1])),)


def embedding_backward(call: Call) -> Results:
    """As the weight."""
    grad, where = call.tensor("grad_output"), numbers("indices", call.tensor("indices"))
    refuse("'grad_output' has no dimension", unless=grad.shape != ())
    want("grad_output", grad.shape, (*where.shape, grad.shape[-1]))
    return (Meta(grad.dtype, (call.whole("num_weights"), grad.shape[-1])),)


def _bags(call: Call) -> tuple[int, int]:
    """Return the numbers of bags and of indices."""
    choice(call, "mode")
    where = numbers("indices", call.tensor("indices"))
    offsets = numbers("offsets", call.tensor("offsets"))
    refuse("'indices' has not 1 dimension", unless=len(where.shape) == 1)
    refuse("'offsets' has not 1 dimension", unless=len(offsets.shape) == 1)
    last = call.values.get("include_last_offset") is True
    return max(offsets.shape[0] - last, 0), where.shape[0]


def embedding_bag(call: Call) -> Results:
    """A row for each bag, and three lists that its gradient needs."""
    weight = call.tensor("weight")
    refuse("'weight' has not 2 dimensions", unless=len(weight.shape) == 2)
    bags, count = _bags(call)
    whole = Bounded("int", count + 2 * bags + bags * weight.shape[1] + 1)
    return (Meta(weight.dtype, (bags, weight.shape[1])), whole, whole, whole)


def embedding_bag_backward(call: Call) -> Results:
    """As the weight."""
    grad = call.tensor("grad")
    refuse("'grad' has not 2 dimensions", unless=len(grad.shape) == 2)
    want("grad", grad.shape[:1], _bags(call)[:1])
    return (Meta(grad.dtype, (call.whole("num_weights"), grad.shape[1])),)


RULES: Final[Mapping[str, Rule]] = {
    "batch_norm": batch_norm,
    "batch_norm_backward": batch_norm_backward,
    "layer_norm": layer_norm,
    "layer_norm_backward": layer_norm_backward,
    "group_norm": group_norm,
    "group_norm_backward": group_norm_backward,
    "weight_norm": weight_norm,
    "weight_norm_backward": weight_norm_backward,
    "softmax": softmax,
    "softmax_backward": softmax_backward,
    "embedding": embedding,
    "embedding_backward": embedding_backward,
    "embedding_bag": embedding_bag,
    "embedding_bag_backward": embedding_bag_backward,
}
