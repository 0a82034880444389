"""Rules for padding with edges, resampling, and windows as columns."""

import math
from collections.abc import Mapping, Sequence
from typing import Final

from p2ptrain.spec.call import Call, CallError, refuse, want
from p2ptrain.spec.graph import Meta, Shape
from p2ptrain.spec.results import Results, Rule
from p2ptrain.spec.rules_conv import spatial_of, split_at, spread
from p2ptrain.spec.rules_index import choice


def _padded(call: Call, name: str) -> Shape:
    spatial, pads = spatial_of(call), call.ints("padding")
    lead, sizes = split_at(call.tensor(name), name, spatial)
    if len(pads) != 2 * spatial:
        raise CallError(f"'padding' has {len(pads)} entries, not {2 * spatial}")
    out = []
    for at, size in enumerate(sizes):
        before, after = pads[2 * (spatial - 1 - at) :][:2]
        if "reflection" in call.op.name:
            refuse("padding reaches beyond the input", unless=max(before, after) < size)
        refuse("padding takes all away", unless=size + before + after > 0 < size)
        out.append(size + before + after)
    return (*lead, *out)


def edge_pad(call: Call) -> Results:
    """With its edge mirrored or repeated."""
    return (Meta(call.tensor("self").dtype, _padded(call, "self")),)


def edge_pad_backward(call: Call) -> Results:
    """As the input."""
    grad = call.tensor("grad_output")
    want("grad_output", grad.shape, _padded(call, "self"))
    return (call.tensor("self"),)


def _resampled(call: Call, sizes: Shape) -> Shape:
    """Return the resampled shape of an input's sizes.

    A scale that does not belong to the two sizes would make kernels read elsewhere.
    """
    out, spatial = call.ints("output_size"), spatial_of(call)
    refuse("the input has the wrong rank", unless=len(sizes) == spatial + 2)
    refuse("output_size has the wrong length", unless=len(out) == spatial)
    refuse("a size is below 1", unless=min(*out, *sizes[1:]) > 0)
    scales = [value for name, value in call.values.items() if "scales" in name]
    for size, result, scale in zip(sizes[2:], out, scales, strict=True):
        if isinstance(scale, int | float):
            fits = -0.01 <= size * scale - result <= 1.01
            refuse(f"scale {scale} does not make {result} of {size}", unless=fits)
    return (*sizes[:2], *out)


def upsample(call: Call) -> Results:
    """Resampled to a size."""
    x = call.tensor("self")
    return (Meta(x.dtype, _resampled(call, x.shape)),)


def upsample_backward(call: Call) -> Results:
    """As the input."""
    grad, sizes = call.tensor("grad_output"), tuple(call.ints("input_size"))
    want("grad_output", grad.shape, _resampled(call, sizes))
    return (Meta(grad.dtype, sizes),)


def _windows(call: Call, sizes: Sequence[int]) -> tuple[int, int]:
    """Return elements in a window, and the number of windows."""
    names = ("kernel_size", "dilation", "padding", "stride")
    kernel, dilation, padding, stride = (spread(call, name, 2) for name in names)
    refuse("a window is below 1", unless=min(*kernel, *dilation, *stride) > 0)
    refuse("padding is negative", unless=min(padding) >= 0)
    counts = [
        (sizes[at] + 2 * padding[at] - dilation[at] * (kernel[at] - 1) - 1)
        // stride[at]
        + 1
        for at in range(2)
    ]
    refuse("the window is larger than the input", unless=min(counts) > 0)
    return math.prod(kernel), math.prod(counts)


def im2col(call: Call) -> Results:
    """Each window as a column."""
    x = call.tensor("self")
    lead, sizes = split_at(x, "self", 2)
    window, count = _windows(call, sizes)
    return (Meta(x.dtype, (*lead[:-1], lead[-1] * window, count)),)


def col2im(call: Call) -> Results:
    """Columns added up where their windows are."""
    x, sizes = call.tensor("self"), spread(call, "output_size", 2)
    window, count = _windows(call, sizes)
    refuse("'self' has the wrong rank", unless=len(x.shape) in {2, 3})
    rows, columns = x.shape[-2:]
    refuse("columns do not fit", unless=columns == count and rows % window == 0)
    return (Meta(x.dtype, (*x.shape[:-2], rows // window, *sizes)),)


def _sampled(call: Call) -> Shape:
    choice(call, "interpolation_mode", "padding_mode")
    x, grid = call.tensor("input").shape, call.tensor("grid").shape
    rank = 5 if "3d" in call.op.name else 4
    refuse(f"'input' has not {rank} dimensions", unless=len(x) == rank)
    refuse(f"'grid' has not {rank} dimensions", unless=len(grid) == rank)
    want("grid", grid, (x[0], *grid[1:-1], rank - 2))
    return (*x[:2], *grid[1:-1])


def grid_sampler(call: Call) -> Results:
    """Values at the places of a grid."""
    return (Meta(call.tensor("input").dtype, _sampled(call)),)


def grid_sampler_backward(call: Call) -> Results:
    """As input, where asked for, and grid."""
    want("grad_output", call.tensor("grad_output").shape, _sampled(call))
    mask = call.mask(2)
    return (call.tensor("input") if mask[0] else None, call.tensor("grid"))


def affine_grid(call: Call) -> Results:
    """The places of a grid."""
    size, theta = call.ints("size"), call.tensor("theta")
    refuse("size has not 4 or 5 entries", unless=len(size) in {4, 5})
    spatial = len(size) - 2
    want("theta", theta.shape, (size[0], spatial, spatial + 1))
    return (Meta(theta.dtype, (size[0], *size[2:], spatial)),)


RULES: Final[Mapping[str, Rule]] = {
    "edge_pad": edge_pad,
    "edge_pad_backward": edge_pad_backward,
    "upsample": upsample,
    "upsample_backward": upsample_backward,
    "im2col": im2col,
    "col2im": col2im,
    "grid_sampler": grid_sampler,
    "grid_sampler_backward": grid_sampler_backward,
    "affine_grid": affine_grid,
}
