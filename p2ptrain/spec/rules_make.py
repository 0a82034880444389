"""Rules for operators that make tensors: constants, ranges, random numbers."""

import math
from collections.abc import Mapping
from typing import Final

from p2ptrain.spec.call import Call, CallError, broadcast, refuse, want
from p2ptrain.spec.graph import Meta, Shape
from p2ptrain.spec.promote import DEFAULT, promote
from p2ptrain.spec.results import Results, Rule, like


def _size(call: Call) -> Shape:
    return tuple(call.ints("size"))


def like_first(call: Call) -> Results:
    """In the tensor's shape, and in its dtype unless another is asked for."""
    x = call.first()
    return (like(x, call.dtype(x.dtype)),)


def copy(call: Call) -> Results:
    """As the tensor; the source must broadcast to it."""
    x = call.tensor("self")
    want("self", broadcast(x.shape, call.tensor("src").shape), x.shape)
    return (x,)


def made(call: Call) -> Results:
    """Of the size asked for."""
    return (Meta(call.dtype(DEFAULT), _size(call)),)


def filled(call: Call) -> Results:
    """Of the size asked for, in the fill value's dtype by default."""
    value = call.values["fill_value"]
    assert not isinstance(value, tuple)
    return (Meta(call.dtype(promote([value])), _size(call)),)


def made_like(call: Call) -> Results:
    """Of the size asked for, in the tensor's dtype by default."""
    return (Meta(call.dtype(call.first().dtype), _size(call)),)


def scalar(call: Call) -> Results:
    """Without dimensions."""
    return (Meta(call.dtype(DEFAULT), ()),)


def _number(call: Call, name: str) -> float | int:
    value = call.values.get(name, 0)
    if not isinstance(value, int | float) or not math.isfinite(value):
        raise CallError(f"argument {name!r} is not finite")
    return value


def arange(call: Call) -> Results:
    """From ``start`` on, in steps, below ``end``."""
    start, end = _number(call, "start"), _number(call, "end")
    step = _number(call, "step") if "step" in call.values else 1
    refuse("step is 0", unless=step != 0)
    count = (
        math.ceil((end - start) / step) if math.isfinite((end - start) / step) else -1
    )
    refuse("the range is empty or endless", unless=count >= 0)
    whole = all(isinstance(value, int) for value in (start, end, step))
    return (Meta(call.dtype("int64" if whole else DEFAULT), (count,)),)


def linspace(call: Call) -> Results:
    """``steps`` numbers."""
    return (Meta(call.dtype(DEFAULT), (call.whole("steps"),)),)


def eye(call: Call) -> Results:
    """``n`` rows, ``m`` or ``n`` columns."""
    n = call.whole("n")
    m = call.whole("m") if "m" in call.values else n
    return (Meta(call.dtype(DEFAULT), (n, m)),)


def normal_like(call: Call) -> Results:
    """Broadcast of mean and deviation."""
    return (
        Meta(call.first().dtype, broadcast(*(meta.shape for meta in call.given()))),
    )


def randperm(call: Call) -> Results:
    """``n`` numbers."""
    return (Meta(call.dtype("int64"), (call.whole("n"),)),)


def multinomial(call: Call) -> Results:
    """``num_samples`` positions from each row of probabilities."""
    shape = call.first().shape
    refuse("probabilities have 1 or 2 dimensions", unless=len(shape) in {1, 2})
    return (Meta("int64", (*shape[:-1], call.whole("num_samples"))),)


RULES: Final[Mapping[str, Rule]] = {
    "like": like_first,
    "copy": copy,
    "create": made,
    "fill": filled,
    "scalar": scalar,
    "create_new": made_like,
    "arange": arange,
    "linspace": linspace,
    "eye": eye,
    "random_like": like_first,
    "random": made,
    "normal": made,
    "normal_like": normal_like,
    "randint": made,
    "randperm": randperm,
    "multinomial": multinomial,
}
