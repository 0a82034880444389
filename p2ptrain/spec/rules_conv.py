"""Rules for convolutions and pooling.

Kernels trust some shapes, so gradients are checked against the forward shape here.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from p2ptrain.spec.call import Call, CallError, refuse, want
from p2ptrain.spec.graph import Meta, Shape
from p2ptrain.spec.results import Expected, Floating, Results, Rule


def spread(call: Call, name: str, count: int) -> list[int]:
    """Return a list of ``count`` integers; a single one stands for all.

    Raises:
        CallError: another number of them.
    """
    values = call.ints(name)
    if len(values) not in {1, count}:
        raise CallError(f"{name!r} has {len(values)} entries, not {count}")
    return values * count if len(values) == 1 else values


def spatial_of(call: Call) -> int:
    """Dimensions that a pooling or resampling operator works on, by its name."""
    for count in (1, 2, 3):
        if f"{count}d" in call.op.name:
            return count
    raise CallError(f"{call.op.name} works on an unknown number of dimensions")


def split_at(meta: Meta, name: str, spatial: int) -> tuple[Shape, Shape]:
    """Return leading (batch and channel) and spatial sizes."""
    rank = len(meta.shape)
    if rank not in {spatial + 1, spatial + 2}:
        raise CallError(f"{name!r} has {rank} dimensions, not {spatial + 2}")
    return meta.shape[:-spatial], meta.shape[-spatial:]


def _steps(call: Call, spatial: int) -> dict[str, list[int]]:
    names = ("stride", "padding", "dilation", "output_padding")
    values = {name: spread(call, name, spatial) for name in names}
    refuse("stride or dilation is below 1", unless=min(values["stride"]) > 0)
    refuse("stride or dilation is below 1", unless=min(values["dilation"]) > 0)
    refuse("padding is negative", unless=min(values["padding"]) >= 0)
    refuse("output_padding is negative", unless=min(values["output_padding"]) >= 0)
    return values


def _convolved(call: Call) -> Shape:
    x, w = call.tensor("input").shape, call.tensor("weight").shape
    spatial = len(w) - 2
    if len(x) != len(w) or not 1 <= spatial <= 3:
        raise CallError(f"input has {len(x)} dimensions and weight {len(w)}")
    groups, transposed = call.whole("groups"), call.flag("transposed")
    refuse(f"groups {groups} is below 1", unless=groups > 0)
    wanted = x[1] == w[0] if transposed else x[1] == w[1] * groups
    refuse("the channels of input and weight differ", unless=wanted)
    refuse(f"channels are no multiple of {groups}", unless=w[0] % groups == 0)
    values = _steps(call, spatial)
    sizes = []
    for at in range(spatial):
        stride, pad, dilation, extra = (value[at] for value in values.values())
        reach = dilation * (w[at + 2] - 1)
        if transposed:
            sizes.append((x[at + 2] - 1) * stride - 2 * pad + reach + extra + 1)
        else:
            sizes.append((x[at + 2] + 2 * pad - reach - 1) // stride + 1)
    refuse("the kernel is larger than the input", unless=min(sizes) > 0)
    channels = w[1] * groups if transposed else w[0]
    return (x[0], channels, *sizes)


def convolution(call: Call) -> Results:
    """Convolved, or transposed."""
    shape = _convolved(call)
    bias = call.maybe("bias")
    if bias is not None:
        want("bias", bias.shape, (shape[1],))
    return (Meta(call.tensor("input").dtype, shape),)


def convolution_backward(call: Call) -> Results:
    """As input, weight and bias, where asked for."""
    x, w = call.tensor("input"), call.tensor("weight")
    shape = _convolved(call)
    want("grad_output", call.tensor("grad_output").shape, shape)
    full: list[Expected] = [x, w, Floating((shape[1],))]
    return masked(full, call.mask(3))


def masked(full: Sequence[Expected], mask: Sequence[bool]) -> Results:
    """Return the results that are asked for, None for the others."""
    return tuple(r if asked else None for r, asked in zip(full, mask, strict=True))


def _pooled(call: Call, x: Meta) -> Shape:
    spatial = spatial_of(call)
    lead, sizes = split_at(x, "self", spatial)
    kernel = spread(call, "kernel_size", spatial)
    stride = spread(call, "stride", spatial) if call.ints("stride") else kernel
    padding = spread(call, "padding", spatial)
    ones = [1] * spatial
    dilation = spread(call, "dilation", spatial) if "dilation" in call.values else ones
    refuse("kernel, stride or dilation is below 1", unless=min(*kernel, *stride) > 0)
    refuse("kernel, stride or dilation is below 1", unless=min(dilation) > 0)
    out = []
    for at in range(spatial):
        pad, step = padding[at], stride[at]
        refuse("padding is beyond half the kernel", unless=0 <= 2 * pad <= kernel[at])
        room = sizes[at] + 2 * pad - dilation[at] * (kernel[at] - 1) - 1
        size = room // step + 1
        if call.flag("ceil_mode"):
            size = -(-room // step) + 1
            # the last window must begin inside
            size -= (size - 1) * step >= sizes[at] + pad
        out.append(size)
    refuse("the window is larger than the input", unless=min(out) > 0)
    return (*lead, *out)


def max_pool(call: Call) -> Results:
    """The largest of each window, and where it stood."""
    x = call.tensor("self")
    shape = _pooled(call, x)
    return (Meta(x.dtype, shape), Meta("int64", shape))


def avg_pool(call: Call) -> Results:
    """The mean of each window."""
    x = call.tensor("self")
    return (Meta(x.dtype, _pooled(call, x)),)


def avg_pool_backward(call: Call) -> Results:
    """As the input."""
    x = call.tensor("self")
    want("grad_output", call.tensor("grad_output").shape, _pooled(call, x))
    return (x,)


def max_pool_backward(call: Call) -> Results:
    """As the input."""
    x = call.tensor("self")
    _want_indices(call, _pooled(call, x))
    return avg_pool_backward(call)


def _want_indices(call: Call, shape: Shape) -> None:
    indices = call.tensor("indices")
    want("indices", indices.shape, shape)
    refuse("'indices' is not int64", unless=indices.dtype == "int64")


def _adapted(call: Call) -> Shape:
    spatial = spatial_of(call)
    lead, _ = split_at(call.tensor("self"), "self", spatial)
    sizes = spread(call, "output_size", spatial)
    refuse("output_size is negative", unless=min(sizes) >= 0)
    return (*lead, *sizes)


def adaptive_pool(call: Call) -> Results:
    """Pooled to a size."""
    return (Meta(call.tensor("self").dtype, _adapted(call)),)


def adaptive_max_pool(call: Call) -> Results:
    """Pooled to a size, and where the largest stood."""
    shape = _adapted(call)
    return (Meta(call.tensor("self").dtype, shape), Meta("int64", shape))


def adaptive_pool_backward(call: Call) -> Results:
    """As the input."""
    x, grad, spatial = call.tensor("self"), call.tensor("grad_output"), spatial_of(call)
    lead, _ = split_at(x, "self", spatial)
    want("grad_output", grad.shape, (*lead, *grad.shape[-spatial:]))
    if "indices" in call.values:
        _want_indices(call, grad.shape)
    return (x,)


def unpool(call: Call) -> Results:
    """Values put back where they stood, in a size that is asked for."""
    x = call.tensor("self")
    _want_indices(call, x.shape)
    return (Meta(x.dtype, _adapted(call)),)


RULES: Final[Mapping[str, Rule]] = {
    "convolution": convolution,
    "convolution_backward": convolution_backward,
    "max_pool": max_pool,
    "max_pool_backward": max_pool_backward,
    "avg_pool": avg_pool,
    "avg_pool_backward": avg_pool_backward,
    "adaptive_pool": adaptive_pool,
    "adaptive_max_pool": adaptive_max_pool,
    "adaptive_pool_backward": adaptive_pool_backward,
    "unpool": unpool,
}
