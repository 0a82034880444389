"""Rules for operators that view tensors, and for their gradients."""

import math
from collections.abc import Mapping
from typing import Final

from p2ptrain.spec.call import Call, axis, broadcast, refuse, want
from p2ptrain.spec.graph import Meta, Shape
from p2ptrain.spec.results import Results, Rule


def replaced(shape: Shape, at: int, *sizes: int) -> Shape:
    """Return a shape with other sizes, or none, in place of one."""
    return (*shape[:at], *sizes, *shape[at + 1 :])


def view(call: Call) -> Results:
    """The same elements in another shape; one size may be -1."""
    x, size = call.first(), call.ints("size")
    count = math.prod(x.shape)
    if size.count(-1) == 1:
        rest = -math.prod(size)
        refuse("a size of -1 needs elements", unless=rest > 0)
        size[size.index(-1)] = count // rest
    refuse(
        f"{count} elements do not have the shape asked for",
        unless=min(size, default=0) >= 0 and math.prod(size) == count,
    )
    return (Meta(x.dtype, tuple(size)),)


def expand(call: Call) -> Results:
    """Sizes of 1 repeated; -1 keeps a size."""
    x, size = call.first(), call.ints("size")
    new = len(size) - len(x.shape)
    refuse("fewer sizes than dimensions", unless=new >= 0)
    kept = tuple(
        x.shape[at - new] if wanted == -1 and at >= new else wanted
        for at, wanted in enumerate(size)
    )
    want("self", broadcast(x.shape, kept), kept)
    return (Meta(x.dtype, kept),)


def permute(call: Call) -> Results:
    """The dimensions in another order."""
    x = call.first()
    dims = [axis(dim, len(x.shape)) for dim in call.ints("dims")]
    refuse("dims is no permutation", unless=sorted(dims) == list(range(len(x.shape))))
    return (Meta(x.dtype, tuple(x.shape[dim] for dim in dims)),)


def transpose(call: Call) -> Results:
    """Two dimensions exchanged."""
    x = call.first()
    a, b = (axis(call.whole(name), len(x.shape)) for name in ("dim0", "dim1"))
    shape = list(x.shape)
    if shape:
        shape[a], shape[b] = shape[b], shape[a]
    return (Meta(x.dtype, tuple(shape)),)


def transpose_2d(call: Call) -> Results:
    """A matrix transposed."""
    x = call.first()
    refuse("t takes at most 2 dimensions", unless=len(x.shape) <= 2)
    return (Meta(x.dtype, x.shape[::-1]),)


def _selected(call: Call, shape: Shape) -> Shape:
    dim = axis(call.whole("dim"), len(shape))
    refuse("select needs a dimension", unless=shape != ())
    index, size = call.whole("index"), shape[dim]
    refuse(f"index {index} is beyond {size}", unless=-size <= index < size)
    return replaced(shape, dim)


def select(call: Call) -> Results:
    """One index of a dimension."""
    return (Meta(call.first().dtype, _selected(call, call.first().shape)),)


def _clamped(value: object, size: int, default: int) -> int:
    if not isinstance(value, int):
        return default
    return min(max(value + size if value < 0 else value, 0), size)


def _sliced(call: Call, shape: Shape) -> Shape:
    dim = axis(call.whole("dim"), len(shape))
    refuse("slice needs a dimension", unless=shape != ())
    size, step = shape[dim], call.whole("step")
    refuse(f"step {step} is not positive", unless=step > 0)
    start = _clamped(call.values["start"], size, 0)
    end = max(_clamped(call.values["end"], size, size), start)
    return replaced(shape, dim, -(-(end - start) // step))


def slices(call: Call) -> Results:
    """A range of a dimension."""
    return (Meta(call.first().dtype, _sliced(call, call.first().shape)),)


def _diagonal(call: Call, shape: Shape) -> Shape:
    rank = len(shape)
    refuse("a diagonal needs 2 dimensions", unless=rank >= 2)
    a, b = axis(call.whole("dim1"), rank), axis(call.whole("dim2"), rank)
    refuse("dim1 and dim2 are the same", unless=a != b)
    offset = call.whole("offset")
    length = min(shape[a] + min(offset, 0), shape[b] - max(offset, 0))
    rest = tuple(size for at, size in enumerate(shape) if at not in {a, b})
    return (*rest, max(length, 0))


def diagonal(call: Call) -> Results:
    """The diagonal of two dimensions, as the last one."""
    return (Meta(call.first().dtype, _diagonal(call, call.first().shape)),)


def diag_embed(call: Call) -> Results:
    """The last dimension as the diagonal of two new ones."""
    x = call.first()
    refuse("diag_embed needs a dimension", unless=x.shape != ())
    rank, size = len(x.shape) + 1, x.shape[-1] + abs(call.whole("offset"))
    places = {axis(call.whole(name), rank) for name in ("dim1", "dim2")}
    refuse("dim1 and dim2 are the same", unless=len(places) == 2)
    rest = iter(x.shape[:-1])
    shape = tuple(size if at in places else next(rest) for at in range(rank))
    return (Meta(x.dtype, shape),)


def _unfolded(call: Call, shape: Shape, name: str) -> Shape:
    dim, size, step = (call.whole(n) for n in (name, "size", "step"))
    dim = axis(dim, len(shape))
    refuse("unfold needs a dimension", unless=shape != ())
    refuse(
        f"windows of {size} in steps of {step} do not fit {shape[dim]}",
        unless=0 <= size <= shape[dim] and step > 0,
    )
    return (*replaced(shape, dim, (shape[dim] - size) // step + 1), size)


def unfold(call: Call) -> Results:
    """Windows along a dimension, as the last one."""
    shape = _unfolded(call, call.first().shape, "dimension")
    return (Meta(call.first().dtype, shape),)


def _backward(call: Call, name: str, shape: Shape) -> Results:
    grad = call.tensor(name)
    want(name, grad.shape, shape)
    return (Meta(grad.dtype, tuple(call.ints("input_sizes"))),)


def _sizes(call: Call) -> Shape:
    sizes = tuple(call.ints("input_sizes"))
    refuse("a size is negative", unless=min(sizes, default=0) >= 0)
    return sizes


def select_backward(call: Call) -> Results:
    """As the input of ``select``."""
    return _backward(call, "grad_output", _selected(call, _sizes(call)))


def slice_backward(call: Call) -> Results:
    """As the input of ``slice``."""
    return _backward(call, "grad_output", _sliced(call, _sizes(call)))


def diagonal_backward(call: Call) -> Results:
    """As the input of ``diagonal``."""
    return _backward(call, "grad_output", _diagonal(call, _sizes(call)))


def unfold_backward(call: Call) -> Results:
    """As the input of ``unfold``."""
    return _backward(call, "grad_in", _unfolded(call, _sizes(call), "dim"))


def squeeze(call: Call) -> Results:
    """Without the (named) dimensions of size 1."""
    x = call.first()
    rank = len(x.shape)
    dim = call.values.get("dim", tuple(range(rank)))
    many = dim if isinstance(dim, tuple) else (dim,)
    dims = [at for at in many if isinstance(at, int)]
    gone = {axis(at, rank) for at in dims}
    kept = (size for at, size in enumerate(x.shape) if size != 1 or at not in gone)
    return (Meta(x.dtype, tuple(kept)),)


def unsqueeze(call: Call) -> Results:
    """With a new dimension of size 1."""
    x = call.first()
    dim = axis(call.whole("dim"), len(x.shape) + 1)
    return (Meta(x.dtype, (*x.shape[:dim], 1, *x.shape[dim:])),)


def _factor(call: Call, name: str) -> int:
    factor = call.whole(name)
    refuse(f"{name} {factor} is below 1", unless=factor > 0)
    refuse("a picture needs 3 dimensions", unless=len(call.first().shape) >= 3)
    return factor


def pixel_shuffle(call: Call) -> Results:
    """Channels spread out over blocks of pixels."""
    x, r = call.first(), _factor(call, "upscale_factor")
    *lead, c, h, w = x.shape
    refuse("the channels do not divide", unless=c % r**2 == 0)
    return (Meta(x.dtype, (*lead, c // r**2, h * r, w * r)),)


def pixel_unshuffle(call: Call) -> Results:
    """Blocks of pixels gathered in channels."""
    x, r = call.first(), _factor(call, "downscale_factor")
    *lead, c, h, w = x.shape
    refuse("the pixels do not divide", unless=h % r == 0 and w % r == 0)
    return (Meta(x.dtype, (*lead, c * r**2, h // r, w // r)),)


RULES: Final[Mapping[str, Rule]] = {
    "view": view,
    "expand": expand,
    "permute": permute,
    "transpose": transpose,
    "t": transpose_2d,
    "select": select,
    "slice": slices,
    "diagonal": diagonal,
    "diag_embed": diag_embed,
    "unfold": unfold,
    "select_backward": select_backward,
    "slice_backward": slice_backward,
    "diagonal_backward": diagonal_backward,
    "unfold_backward": unfold_backward,
    "squeeze": squeeze,
    "unsqueeze": unsqueeze,
    "pixel_shuffle": pixel_shuffle,
    "pixel_unshuffle": pixel_unshuffle,
}
