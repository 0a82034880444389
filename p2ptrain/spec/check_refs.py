"""The check of what a graph's inputs and outputs mean: weights, buffers, gradients."""

from collections.abc import Iterator, Mapping, Sequence

from p2ptrain.errors import SpecError
from p2ptrain.spec.checks import (
    check_count,
    check_name,
    check_same,
    check_tensor,
    check_unique,
    check_uri,
    require,
)
from p2ptrain.spec.dtypes import DTYPES
from p2ptrain.spec.graph import Graph, Meta
from p2ptrain.spec.limits import Limits
from p2ptrain.spec.text import show, spell
from p2ptrain.spec.train import BufferRef, TrainSpec, WeightRef
from p2ptrain.spec.uri import CONSTANT_RULES, FAN_RULES, BlobUri, InitUri, Scheme, Uri


def check_weights(spec: TrainSpec, limits: Limits) -> None:
    """Check weights and buffers against the graph's inputs.

    Raises:
        SpecError: a reference does not fit its input, or is not allowed there.
    """
    require("params", "is empty: there is nothing to train", unless=spec.params != ())
    for field in ("params", "frozen", "buffers"):
        check_count(field, getattr(spec, field), limits.inputs)
    inputs = {given.name: Meta(given.dtype, given.shape) for given in spec.graph.inputs}
    total = 0
    for field, ref in _weights(spec):
        check_name(f"{field}.name", ref.name, limits)
        total += check_tensor(field, ref.dtype, ref.shape, limits)
        given = inputs.get(ref.name)
        if given is None:
            raise SpecError(f"{field}.name", f"no graph input {show(ref.name)}")
        check_same(field, Meta(ref.dtype, ref.shape), given, "the graph input")
        _check_uri(field, ref, check_uri(f"{field}.uri", ref.uri, limits))
    if total > limits.weight_bytes:
        raise SpecError(
            "params", f"all weights have {total} bytes, at most {limits.weight_bytes}"
        )


def _weights(spec: TrainSpec) -> Iterator[tuple[str, WeightRef | BufferRef]]:
    groups: dict[str, Sequence[WeightRef | BufferRef]] = {
        "params": spec.params,
        "frozen": spec.frozen,
        "buffers": spec.buffers,
    }
    for name, refs in groups.items():
        for index, ref in enumerate(refs):
            yield f"{name}[{index}]", ref


def _check_uri(field: str, ref: WeightRef | BufferRef, uri: Uri) -> None:
    if isinstance(ref, WeightRef) and ref.packed:
        _check_packed(field, ref, uri)
    if not isinstance(uri, InitUri) or uri.rule in CONSTANT_RULES:
        return
    where = f"{field}.uri"
    if not DTYPES[ref.dtype].floating:
        raise SpecError(where, f"init:{uri.rule} makes no {ref.dtype}")
    if uri.rule in FAN_RULES and len(ref.shape) < 2:
        raise SpecError(
            where, f"init:{uri.rule} needs 2 dimensions, the shape is {show(ref.shape)}"
        )


def _check_packed(field: str, ref: WeightRef, uri: Uri) -> None:
    frozen = field.startswith("frozen")
    require(f"{field}.packed", "only a frozen weight may be packed", unless=frozen)
    gguf = isinstance(uri, BlobUri) or getattr(uri, "scheme", None) is Scheme.GGUF
    require(f"{field}.packed", "only a tensor of gguf: may be packed", unless=gguf)
    if ref.dtype != "uint8":
        raise SpecError(f"{field}.dtype", f"is {ref.dtype}, a packed weight is uint8")


def check_inputs(spec: TrainSpec) -> None:
    """Check that every graph input is one thing, and everything is an input.

    Raises:
        SpecError: an input is nothing, or two things.
    """
    names = [ref.name for _, ref in _weights(spec)]
    names += sorted({ref.input for ref in spec.data})
    if spec.seed_input is not None:
        names.append(spec.seed_input)
        _check_seed(spec.seed_input, spec.graph)
    check_unique("graph.inputs", names)
    known = set(names)
    for index, given in enumerate(spec.graph.inputs):
        require(
            f"graph.inputs[{index}]",
            f"{show(given.name)} is no weight, buffer, data input or seed_input",
            unless=given.name in known,
        )


def _check_seed(name: str, graph: Graph) -> None:
    for given in graph.inputs:
        if given.name == name:
            if given.shape != () or not DTYPES[given.dtype].floating:
                raise SpecError(
                    "seed_input",
                    f"{show(name)} is {spell(given.dtype, given.shape)}, "
                    "not a floating-point scalar",
                )
            return
    raise SpecError("seed_input", f"no graph input {show(name)}")


def check_outputs(spec: TrainSpec, outputs: Sequence[Meta]) -> None:
    """Check what the graph's outputs mean: loss, gradients, new buffers.

    Args:
        spec: the spec.
        outputs: dtypes and shapes of the graph's outputs.

    Raises:
        SpecError: an index is out of range, an output has two meanings, or does not
            match its parameter or buffer.
    """
    taken = {_check_loss(spec, outputs): "the loss"}
    end = spec.grad_start + len(spec.params)
    if not 0 <= spec.grad_start <= len(outputs):
        raise SpecError(
            "grad_start",
            f"is {show(spec.grad_start)}, but the graph has {len(outputs)} outputs",
        )
    if end > len(outputs):
        raise SpecError(
            "params",
            f"has {len(spec.params)} entries, but from grad_start {spec.grad_start} on "
            f"the graph has {len(outputs) - spec.grad_start} outputs",
        )
    for index, ref in enumerate(spec.params):
        at = spec.grad_start + index
        _take(taken, at, f"the gradient of {show(ref.name)}", "grad_start")
        _check_gradient(f"params[{index}]", ref, outputs[at], at)
    for index, buffer in enumerate(spec.buffers):
        _check_buffer(f"buffers[{index}]", buffer, outputs, taken)
    for at in range(end, len(outputs)):
        if at not in taken:
            raise SpecError(
                "params",
                f"has {len(spec.params)} entries, "
                f"but outputs[{at}] is one gradient more",
            )


def _take(taken: dict[int, str], at: int, what: str, field: str) -> None:
    if at in taken:
        raise SpecError(field, f"outputs[{at}] is both {taken[at]} and {what}")
    taken[at] = what


def _check_loss(spec: TrainSpec, outputs: Sequence[Meta]) -> int:
    at = spec.loss_index
    if not 0 <= at < len(outputs):
        raise SpecError(
            "loss_index", f"is {show(at)}, but the graph has {len(outputs)} outputs"
        )
    loss = outputs[at]
    if loss.shape != () or not DTYPES[loss.dtype].floating:
        raise SpecError(
            "loss_index",
            f"outputs[{at}] is {spell(loss.dtype, loss.shape)}, "
            "not a floating-point scalar",
        )
    return at


def _check_gradient(field: str, ref: WeightRef, gradient: Meta, at: int) -> None:
    if not DTYPES[ref.dtype].floating:
        raise SpecError(f"{field}.dtype", f"is {ref.dtype}, which cannot be trained")
    check_same(
        field, Meta(ref.dtype, ref.shape), gradient, f"its gradient outputs[{at}]"
    )


def _check_buffer(
    field: str, buffer: BufferRef, outputs: Sequence[Meta], taken: dict[int, str]
) -> None:
    at = buffer.output
    if not 0 <= at < len(outputs):
        raise SpecError(
            f"{field}.output",
            f"is {show(at)}, but the graph has {len(outputs)} outputs",
        )
    _take(taken, at, f"the new {show(buffer.name)}", f"{field}.output")
    check_same(
        field, Meta(buffer.dtype, buffer.shape), outputs[at], f"its outputs[{at}]"
    )


def check_exports(spec: TrainSpec, limits: Limits) -> None:
    """Check the names under which results are written.

    Raises:
        SpecError: a name stands twice, or stands for no weight.
    """
    check_count("exports", spec.exports, 2 * limits.inputs)
    known: Mapping[str, object] = {ref.name: ref for _, ref in _weights(spec)}
    for index, (key, name) in enumerate(spec.exports):
        check_name(f"exports[{index}]", key, limits)
        require(
            f"exports[{index}]",
            f"{show(name)} is no parameter, buffer or frozen weight",
            unless=name in known,
        )
    check_unique("exports", (key for key, _ in spec.exports))
