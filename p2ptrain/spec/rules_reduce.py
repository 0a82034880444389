"""Rules for reductions, running sums and orderings."""

from collections.abc import Mapping
from typing import Final

from p2ptrain.spec.call import Call, CallError, axis, refuse
from p2ptrain.spec.graph import Meta, Shape
from p2ptrain.spec.promote import floated, summed
from p2ptrain.spec.results import Results, Rule, like


def reduced(shape: Shape, dims: list[int], *, keepdim: bool) -> Shape:
    """Return a shape less some dimensions; less all where none is named."""
    rank = len(shape)
    gone = {axis(dim, rank) for dim in dims} if dims else set(range(rank))
    if len(gone) < len(dims):
        raise CallError("a dimension is named twice")
    if keepdim:
        return tuple(1 if at in gone else size for at, size in enumerate(shape))
    return tuple(size for at, size in enumerate(shape) if at not in gone)


def _reduced(call: Call, dtype: str) -> Meta:
    dim = call.values.get("dim")
    dims = [dim] if isinstance(dim, int) else call.ints("dim") if dim else []
    keepdim = call.values.get("keepdim") is True
    return Meta(dtype, reduced(call.first().shape, dims, keepdim=keepdim))


def reduce_sum(call: Call) -> Results:
    """Reduced; integers add up as int64."""
    return (_reduced(call, call.dtype(summed(call.first().dtype))),)


def reduce_float(call: Call) -> Results:
    """Reduced, floating."""
    return (_reduced(call, call.dtype(floated(call.first().dtype))),)


def reduce_same(call: Call) -> Results:
    """Reduced, in the tensor's dtype."""
    return (_reduced(call, call.first().dtype),)


def reduce_two(call: Call) -> Results:
    """Two figures of each slice."""
    return (*reduce_float(call), *reduce_float(call))


def reduce_bool(call: Call) -> Results:
    """Reduced to bools (uint8 stays)."""
    dtype = "uint8" if call.first().dtype == "uint8" else "bool"
    return (_reduced(call, dtype),)


def reduce_int(call: Call) -> Results:
    """Reduced to positions or counts."""
    return (_reduced(call, "int64"),)


def reduce_pair(call: Call) -> Results:
    """Reduced, and where the value stood."""
    return (*reduce_same(call), *reduce_int(call))


def cumulative(call: Call) -> Results:
    """As the tensor; integers add up as int64."""
    x = call.first()
    axis(call.whole("dim"), len(x.shape))
    return (like(x, call.dtype(summed(x.dtype))),)


def with_indices(call: Call) -> Results:
    """As the tensor, and where each value stood."""
    x = call.first()
    axis(call.whole("dim"), len(x.shape))
    return (x, like(x, "int64"))


def topk(call: Call) -> Results:
    """``k`` values along a dimension, and where they stood."""
    x, k = call.first(), call.whole("k")
    dim = axis(call.whole("dim"), len(x.shape))
    if not x.shape:
        return (x, like(x, "int64"))
    refuse(f"k {k} is beyond dimension {dim}", unless=0 <= k <= x.shape[dim])
    shape = (*x.shape[:dim], k, *x.shape[dim + 1 :])
    return (Meta(x.dtype, shape), Meta("int64", shape))


RULES: Final[Mapping[str, Rule]] = {
    "reduce_sum": reduce_sum,
    "reduce_float": reduce_float,
    "reduce_same": reduce_same,
    "reduce_all": reduce_same,
    "reduce_two": reduce_two,
    "reduce_bool": reduce_bool,
    "reduce_int": reduce_int,
    "reduce_pair": reduce_pair,
    "cumulative": cumulative,
    "with_indices": with_indices,
    "topk": topk,
}
