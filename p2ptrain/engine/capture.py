"""Captures a model and its loss as a graph: the submitter's side of a job.

``capture`` traces, converts, simplifies and sorts out which tensors are trained, which
change with every step (buffers) and which stay (frozen: parameters without gradients,
buffers that training does not change, constants of the trace). It never computes, and
never changes the caller's model.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor, nn

from p2ptrain.engine.capture_eval import Measured, Metric, measured
from p2ptrain.engine.capture_model import Batch, copy_of, weights_of
from p2ptrain.engine.capture_trace import Mode, trace
from p2ptrain.engine.capture_train import Loss, TrainPart, loss_run
from p2ptrain.engine.convert import convert, meta_of
from p2ptrain.errors import CaptureError
from p2ptrain.spec.graph import Graph
from p2ptrain.spec.train import BufferRef, Precision, WeightRef


@dataclass(frozen=True, slots=True)
class Capture:
    """A captured model.

    Graph inputs are params, frozen, buffers, then the data inputs; outputs the loss,
    further results of the loss function, buffers, then gradients.

    Args:
        graph: the backward graph.
        params: trained weights, in the order of their gradients.
        buffers: what the graph replaces.
        frozen: weights that stay.
        tensors: initial values of all of them, by name. They share memory with the
            model: package them before it is trained further.
        exports: ``state_dict`` keys with names of ``tensors``.
        grad_start: index of the first gradient among the outputs.
        data_inputs: inputs that are fed samples.
        batch: samples in a micro-batch.
        precision: of the arithmetic.
        eval_graph: the metrics, or None.
        eval_inputs: its inputs that are fed samples.
        metrics: names of its outputs.

    In references, ``uri`` is empty until the job is packaged.
    """

    graph: Graph
    params: tuple[WeightRef, ...]
    buffers: tuple[BufferRef, ...]
    frozen: tuple[WeightRef, ...]
    tensors: dict[str, Tensor]
    exports: tuple[tuple[str, str], ...]
    grad_start: int
    data_inputs: tuple[str, ...]
    batch: int
    precision: Precision
    eval_graph: Graph | None
    eval_inputs: tuple[str, ...]
    metrics: tuple[str, ...]
    loss_index: int = 0
    seed_input: str | None = None


def capture(  # noqa: PLR0913  # the public call: three that matter, three options
    model: nn.Module,
    loss: Loss,
    example_batch: Batch,
    *,
    metrics: Mapping[str, Metric] | None = None,
    frozen: Sequence[str] = (),
    precision: str = Precision.FP32,
) -> Capture:
    """Capture a model and its loss.

    A model in training mode keeps the mode of each of its modules; one in evaluation
    mode is put into training mode. Metrics are captured in evaluation mode.

    Args:
        model: the model, on the CPU; it is not changed.
        loss: gives the scalar loss (a mean over the batch), or a tuple that begins
            with it, from the model and a batch.
        example_batch: tensors by input name, whose first axis is the samples; their
            number is the graph's batch.
        metrics: each gives one value per sample, shape ``[batch]``.
        frozen: parameters, or whole modules, that are not trained.
        precision: ``fp32``, or ``bf16`` for arithmetic under bfloat16 autocast.

    Raises:
        CaptureError: the model cannot be captured; names the operator or the line.
    """
    batch = _batch_of(example_batch)
    kind = Precision(precision)
    weights = weights_of(model, frozen)
    _check_names([*weights.all, *example_batch])
    shown = Measured(None, {}, ())
    if metrics:
        shown = measured(copy_of(model), metrics, weights, example_batch, kind)
    twin = copy_of(model)
    if not model.training:
        twin.train()
    mode = Mode(kind, with_gradients=True)
    traced = trace(twin, loss_run(loss), weights, example_batch, mode)
    names = [*traced.weights.all, *example_batch]
    converted = convert(traced.module, names, "constant.")
    train = TrainPart(converted, traced.weights, traced.results, shown.constants)
    return _assembled(train, shown, tuple(example_batch), (batch, kind))


def _batch_of(example: Batch) -> int:
    sizes = {name: tuple(value.shape[:1]) for name, value in example.items()}
    if not sizes or len(set(sizes.values())) > 1 or () in sizes.values():
        raise CaptureError(
            "example_batch: every tensor needs the samples as its first axis, equally "
            f"many; got { ({name: list(v.shape) for name, v in example.items()}) }"
        )
    (batch,) = set(sizes.values())
    return batch[0]


def _check_names(names: Sequence[str]) -> None:
    for name in {name for name in names if names.count(name) > 1}:
        raise CaptureError(
            f"{name!r} names a weight and a data input: rename the input"
        )


def _assembled(
    train: TrainPart,
    shown: Measured,
    fed: Sequence[str],
    kind: tuple[int, Precision],
) -> Capture:
    graph = train.graph()
    tensors = {n: t.detach() for n, t in train.weights.all.items()} | train.constants
    frozen = [*train.frozen, *train.constants]
    used = {given.name for given in graph.inputs}
    eval_used = {given.name for given in shown.graph.inputs} if shown.graph else set()
    return Capture(
        graph=graph,
        params=tuple(_weight(name, tensors) for name in train.trained),
        buffers=tuple(
            BufferRef(*_weight_args(name, tensors), output=train.results + index)
            for index, name in enumerate(train.buffers)
        ),
        frozen=tuple(_weight(name, tensors) for name in frozen),
        tensors=tensors,
        exports=tuple(train.weights.exports.items()),
        grad_start=train.grad_start,
        data_inputs=tuple(name for name in fed if name in used),
        batch=kind[0],
        precision=kind[1],
        eval_graph=shown.graph,
        eval_inputs=tuple(name for name in fed if name in eval_used),
        metrics=shown.metrics,
    )


def _weight(name: str, tensors: Mapping[str, Tensor]) -> WeightRef:
    return WeightRef(*_weight_args(name, tensors))


def _weight_args(
    name: str, tensors: Mapping[str, Tensor]
) -> tuple[str, str, str, tuple[int, ...]]:
    meta = meta_of(tensors[name])
    return name, "", meta.dtype, meta.shape
