"""Rules for operators that take tensors apart and put them together."""

from collections.abc import Mapping, Sequence
from typing import Final

from p2ptrain.spec.call import Call, axis, refuse, want
from p2ptrain.spec.graph import Meta
from p2ptrain.spec.promote import promote
from p2ptrain.spec.results import Results, Rule
from p2ptrain.spec.rules_view import replaced


def _parts(call: Call, sizes: Sequence[int]) -> Results:
    x = call.first()
    dim = axis(call.whole("dim"), len(x.shape))
    return tuple(Meta(x.dtype, replaced(x.shape, dim, size)) for size in sizes)


def _dimension(call: Call) -> int:
    x = call.first()
    refuse("a split needs a dimension", unless=x.shape != ())
    return x.shape[axis(call.whole("dim"), len(x.shape))]


def _count(call: Call, count: int) -> int:
    # before anything as long as that is made
    refuse(
        f"{call.op.name} has {count} results, not {len(call.declared)}",
        unless=count == len(call.declared),
    )
    return count


def split(call: Call) -> Results:
    """Parts of one size, the last one of the rest."""
    total, size = _dimension(call), call.whole("split_size")
    refuse(f"split_size {size} is not positive", unless=size > 0)
    count = _count(call, max(-(-total // size), 1))
    return _parts(call, [min(size, total - at * size) for at in range(count)])


def split_sizes(call: Call) -> Results:
    """Parts of given sizes."""
    sizes = call.ints("split_sizes")
    refuse(
        "split_sizes do not add up",
        unless=min(sizes, default=0) >= 0 and sum(sizes) == _dimension(call),
    )
    return _parts(call, sizes)


def unbind(call: Call) -> Results:
    """Each index of a dimension."""
    x, count = call.first(), _count(call, _dimension(call))
    shape = replaced(x.shape, axis(call.whole("dim"), len(x.shape)))
    return (Meta(x.dtype, shape),) * count


def repeat(call: Call) -> Results:
    """Tiled."""
    x, repeats = call.first(), call.ints("repeats")
    new = len(repeats) - len(x.shape)
    refuse("fewer repeats than dimensions", unless=new >= 0)
    sizes = (1,) * new + x.shape
    return (Meta(x.dtype, tuple(a * b for a, b in zip(sizes, repeats, strict=True))),)


def cat(call: Call) -> Results:
    """Joined along a dimension; empty vectors count for nothing."""
    metas = call.tensors("tensors")
    refuse("there is nothing to join", unless=metas != [])
    shapes = [meta.shape for meta in metas if meta.shape != (0,)] or [(0,)]
    dim = axis(call.whole("dim"), len(shapes[0]))
    refuse("cat needs a dimension", unless=shapes[0] != ())
    for shape in shapes:
        want("tensors", replaced(shape, dim), replaced(shapes[0], dim))
    length = sum(shape[dim] for shape in shapes)
    return (Meta(promote(list(metas)), replaced(shapes[0], dim, length)),)


def stack(call: Call) -> Results:
    """Joined along a new dimension."""
    metas = call.tensors("tensors")
    refuse("there is nothing to join", unless=metas != [])
    first = metas[0].shape
    for meta in metas:
        want("tensors", meta.shape, first)
    dim = axis(call.whole("dim"), len(first) + 1)
    shape = (*first[:dim], len(metas), *first[dim:])
    return (Meta(promote(list(metas)), shape),)


def pad(call: Call) -> Results:
    """With elements added (or taken away) around the last dimensions."""
    x, pads = call.first(), call.ints("pad")
    refuse("pad has no pairs", unless=len(pads) % 2 == 0)
    refuse("pad has too many pairs", unless=len(pads) <= 2 * len(x.shape))
    sizes = list(x.shape)
    for at in range(len(pads) // 2):
        sizes[-1 - at] += pads[2 * at] + pads[2 * at + 1]
    return (Meta(x.dtype, tuple(sizes)),)


RULES: Final[Mapping[str, Rule]] = {
    "split": split,
    "split_sizes": split_sizes,
    "unbind": unbind,
    "repeat": repeat,
    "cat": cat,
    "stack": stack,
    "pad": pad,
}
