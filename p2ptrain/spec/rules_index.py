"""Rules for operators that index tensors and multiply matrices."""

import math
from collections.abc import Mapping
from typing import Final

from p2ptrain.spec.call import Call, CallError, axis, broadcast, refuse, want
from p2ptrain.spec.graph import Meta, Shape
from p2ptrain.spec.promote import promote, summed
from p2ptrain.spec.results import Results, Rule


def numbers(name: str, meta: Meta) -> Meta:
    """Return an index tensor.

    Raises:
        CallError: it does not hold int32 or int64 (a mask would make the result's
            shape depend on data).
    """
    if meta.dtype not in {"int32", "int64"}:
        raise CallError(f"{name!r} is {meta.dtype}, not int32 or int64")
    return meta


def choice(call: Call, *names: str) -> None:
    """Check arguments that choose between three ways.

    Raises:
        CallError: one is none of 0, 1, 2 (kernels do not check it).
    """
    for name in names:
        value = call.whole(name)
        refuse(f"{name} {value} is none of 0, 1, 2", unless=value in {0, 1, 2})


def index(call: Call) -> Results:
    """Indexed by tensors along some dimensions.

    The indices' common shape takes the place of the dimensions they stand for where
    these are neighbours, else the first place.
    """
    x = call.first()
    items = call.items("indices")
    refuse("more indices than dimensions", unless=len(items) <= len(x.shape))
    used = [at for at, item in enumerate(items) if item is not None]
    refuse("there is no index", unless=used != [])
    metas = [numbers("indices", meta) for meta in call.tensors("indices")]
    shape = broadcast(*(meta.shape for meta in metas))
    neighbours = used[-1] - used[0] == len(used) - 1
    first = used[0] if neighbours else 0
    rest = [size for at, size in enumerate(x.shape) if at not in used]
    return (Meta(x.dtype, (*rest[:first], *shape, *rest[first:])),)


def into_first(call: Call) -> Results:
    """As the tensor that is written into."""
    return (call.tensor("self"),)


def gather(call: Call) -> Results:
    """In the index's shape."""
    x, where = call.tensor("self"), numbers("index", call.tensor("index"))
    axis(call.whole("dim"), len(x.shape))
    return (Meta(x.dtype, where.shape),)


def index_select(call: Call) -> Results:
    """Some indices of a dimension."""
    x, where = call.tensor("self"), numbers("index", call.tensor("index"))
    refuse("index has more than 1 dimension", unless=len(where.shape) <= 1)
    dim = axis(call.whole("dim"), len(x.shape))
    count = math.prod(where.shape)
    shape = (*x.shape[:dim], count, *x.shape[dim + 1 :]) if x.shape else ()
    return (Meta(x.dtype, shape),)


def take(call: Call) -> Results:
    """In the index's shape."""
    where = numbers("index", call.tensor("index"))
    return (Meta(call.tensor("self").dtype, where.shape),)


def _matrix(name: str, meta: Meta, rank: int = 2) -> Shape:
    refuse(f"{name!r} has not {rank} dimensions", unless=len(meta.shape) == rank)
    return meta.shape


def _product(call: Call, left: str, right: str) -> Shape:
    """Shape of the product of two matrices or of two stacks of matrices."""
    a, b = call.tensor(left), call.tensor(right)
    rank = 3 if "batch" in left or call.op.name == "bmm" else 2
    x, y = _matrix(left, a, rank), _matrix(right, b, rank)
    want(right, y[:-1], (*x[:-2], x[-1]))
    refuse(f"{left!r} and {right!r} differ in dtype", unless=a.dtype == b.dtype)
    return (*x[:-1], y[-1])


def product(call: Call) -> Results:
    """The product of two (stacks of) matrices."""
    return (Meta(call.tensor("self").dtype, _product(call, "self", "mat2")),)


def _added(call: Call, shape: Shape) -> Results:
    x = call.tensor("self")
    want("self", broadcast(x.shape, shape), shape)
    return (Meta(x.dtype, shape),)


def addmm(call: Call) -> Results:
    """A product added to what broadcasts to it."""
    return _added(call, _product(call, "mat1", "mat2"))


def baddbmm(call: Call) -> Results:
    """A stack of products added to what broadcasts to it."""
    return _added(call, _product(call, "batch1", "batch2"))


def _applied(call: Call, matrix: str) -> Shape:
    rows, columns = _matrix(matrix, call.tensor(matrix))
    want("vec", call.tensor("vec").shape, (columns,))
    return (rows,)


def mv(call: Call) -> Results:
    """A matrix times a vector."""
    return (Meta(call.tensor("self").dtype, _applied(call, "self")),)


def addmv(call: Call) -> Results:
    """A matrix times a vector, added to what broadcasts to it."""
    return _added(call, _applied(call, "mat"))


def addr(call: Call) -> Results:
    """An outer product, added to what broadcasts to it."""
    (n,) = _matrix("vec1", call.tensor("vec1"), 1)
    (m,) = _matrix("vec2", call.tensor("vec2"), 1)
    return _added(call, (n, m))


def dot(call: Call) -> Results:
    """The inner product of two vectors."""
    x, y = call.given()
    want("self", x.shape, _matrix("other", y, 1))
    return (Meta(x.dtype, ()),)


def trace(call: Call) -> Results:
    """The sum of a matrix's diagonal."""
    _matrix("self", call.first())
    return (Meta(summed(call.first().dtype), ()),)


def cross(call: Call) -> Results:
    """The vector product along a dimension of 3."""
    metas = call.given()
    shape = broadcast(*(meta.shape for meta in metas))
    dim = axis(call.whole("dim"), len(shape))
    refuse(f"dimension {dim} is not 3", unless=shape != () and shape[dim] == 3)
    return (Meta(promote(list(metas)), shape),)


def searched(call: Call) -> Results:
    """A position for each value."""
    dtype = "int32" if call.flag("out_int32") else "int64"
    return (Meta(dtype, call.tensor("self").shape),)


def _distances(call: Call) -> Shape:
    a, b = call.tensor("x1").shape, call.tensor("x2").shape
    refuse("cdist needs 2 dimensions", unless=min(len(a), len(b)) >= 2)
    want("x2", b[-1:], a[-1:])
    return (*broadcast(a[:-2], b[:-2]), a[-2], b[-2])


def cdist(call: Call) -> Results:
    """Distances between all rows of one and all rows of the other."""
    return (Meta(call.first().dtype, _distances(call)),)


def cdist_backward(call: Call) -> Results:
    """As the first operand, broadcast."""
    shape = _distances(call)
    for name in ("grad", "cdist"):
        want(name, call.tensor(name).shape, shape)
    x = call.tensor("x1")
    return (Meta(x.dtype, (*shape[:-2], *x.shape[-2:])),)


def _pairs(call: Call) -> Shape:
    n, _ = _matrix("self", call.tensor("self"))
    return (max(n * (n - 1) // 2, 0),)


def pdist(call: Call) -> Results:
    """Distances between all pairs of rows."""
    return (Meta(call.first().dtype, _pairs(call)),)


def pdist_backward(call: Call) -> Results:
    """As the rows."""
    for name in ("grad", "pdist"):
        want(name, call.tensor(name).shape, _pairs(call))
    return (call.tensor("self"),)


def trilinear(call: Call) -> Results:
    """The product of three tensors with dimensions added, summed over some."""
    shapes = []
    for at in "123":
        shape = list(call.tensor(f"i{at}").shape)
        for dim in sorted(call.ints(f"expand{at}")):
            refuse("expand is out of range", unless=0 <= dim <= len(shape))
            shape.insert(dim, 1)
        shapes.append(tuple(shape))
    shape3 = broadcast(*shapes)
    gone = {axis(dim, len(shape3)) for dim in call.ints("sumdim")}
    kept = tuple(size for at, size in enumerate(shape3) if at not in gone)
    return (Meta(call.tensor("i1").dtype, kept),)


RULES: Final[Mapping[str, Rule]] = {
    "index": index,
    "into_first": into_first,
    "gather": gather,
    "index_select": index_select,
    "take": take,
    "mm": product,
    "bmm": product,
    "addmm": addmm,
    "baddbmm": baddbmm,
    "mv": mv,
    "addmv": addmv,
    "addr": addr,
    "dot": dot,
    "trace": trace,
    "cross": cross,
    "bucketize": searched,
    "searchsorted": searched,
    "cdist": cdist,
    "cdist_backward": cdist_backward,
    "pdist": pdist,
    "pdist_backward": pdist_backward,
    "trilinear": trilinear,
}
