"""The check of references to samples."""

from collections.abc import Mapping
from math import prod

from p2ptrain.errors import SpecError
from p2ptrain.ids import is_digest
from p2ptrain.spec.checks import (
    Range,
    check_count,
    check_number,
    check_same,
    check_uri,
    require,
)
from p2ptrain.spec.dtypes import DTYPES, SIZE_MAX
from p2ptrain.spec.graph import Graph, Meta
from p2ptrain.spec.limits import Limits
from p2ptrain.spec.text import show
from p2ptrain.spec.train import DataRef
from p2ptrain.spec.uri import InitUri


def check_data(
    field: str, data: tuple[DataRef, ...], graph: Graph, batch: int, limits: Limits
) -> int:
    """Check a group's references against a graph's inputs; return its samples.

    Args:
        field: path of the references in the spec.
        data: the references.
        graph: the graph that they feed.
        batch: samples that the graph takes at a time.
        limits: the bounds.

    Raises:
        SpecError: a reference does not fit its input, or inputs differ in samples.
    """
    require(field, "is empty: at least one data input is needed", unless=data != ())
    check_count(field, data, limits.refs)
    inputs = {given.name: Meta(given.dtype, given.shape) for given in graph.inputs}
    totals: dict[str, int] = {}
    for index, ref in enumerate(data):
        where = f"{field}[{index}]"
        known = ref.input in inputs
        require(f"{where}.input", f"no graph input {show(ref.input)}", unless=known)
        _check_ref(where, ref, inputs[ref.input], batch, limits)
        totals[ref.input] = totals.get(ref.input, 0) + ref.shard_len
    return _samples(field, totals, limits)


def _check_ref(
    field: str, ref: DataRef, given: Meta, batch: int, limits: Limits
) -> None:
    check_count(f"{field}.shape", ref.shape, limits.dims)
    leads = given.shape[:1] == (batch,)
    require(
        "batch" if field.startswith("data") else "eval.batch",
        f"is {show(batch)}, but graph input {show(ref.input)} has shape "
        f"{show(given.shape)}, whose first dimension must be the batch",
        unless=leads,
    )
    sample = Meta(given.dtype, given.shape[1:])
    check_same(
        field, Meta(ref.dtype, ref.shape), sample, f"a sample of {show(ref.input)}"
    )
    if ref.elem != prod(ref.shape):
        raise SpecError(
            f"{field}.elem",
            f"is {show(ref.elem)}, but shape {show(ref.shape)} has {prod(ref.shape)} "
            "elements",
        )
    uri = check_uri(f"{field}.uri", ref.uri, limits)
    require(
        f"{field}.uri",
        "init: makes weights and buffers, not data",
        unless=not isinstance(uri, InitUri),
    )
    _check_shard(field, ref)


def _check_shard(field: str, ref: DataRef) -> None:
    check_number(f"{field}.shard_start", ref.shard_start, Range(0, SIZE_MAX))
    check_number(f"{field}.shard_len", ref.shard_len, Range(1, SIZE_MAX))
    end = (ref.shard_start + ref.shard_len) * ref.elem * DTYPES[ref.dtype].itemsize
    require(
        f"{field}.shard_len", "the end of the shard overflows", unless=end <= SIZE_MAX
    )
    require(
        f"{field}.digest",
        f"{show(ref.digest)} is no BLAKE3 digest",
        unless=ref.digest == "" or is_digest(ref.digest),
    )


def _samples(field: str, totals: Mapping[str, int], limits: Limits) -> int:
    (first, count), *others = totals.items()
    for name, other in others:
        if other != count:
            raise SpecError(
                field,
                f"input {show(first)} has {count} samples, "
                f"but {show(name)} has {other}",
            )
    if count > limits.samples:
        raise SpecError(
            field, f"has {count} samples, at most {limits.samples} are allowed"
        )
    return count
