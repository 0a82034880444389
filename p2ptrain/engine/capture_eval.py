"""The evaluation half of a capture: metrics, one value per sample."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor, nn

from p2ptrain.engine.capture_model import Batch, Run, Weights
from p2ptrain.engine.capture_simplify import pruned, simplified, used_inputs
from p2ptrain.engine.capture_trace import Mode, trace
from p2ptrain.engine.convert import convert
from p2ptrain.errors import CaptureError
from p2ptrain.spec.graph import Graph
from p2ptrain.spec.train import Precision

Metric = Callable[[Any, dict[str, Tensor]], Tensor]


@dataclass(frozen=True, slots=True)
class Measured:
    """The evaluation graph, the constants that it needs, and names of its outputs."""

    graph: Graph | None
    constants: dict[str, Tensor]
    metrics: tuple[str, ...]


def measured(
    twin: nn.Module,
    metrics: Mapping[str, Metric],
    weights: Weights,
    example: Batch,
    precision: Precision,
) -> Measured:
    """Capture metrics in evaluation mode; the graph has the inputs that it uses.

    Args:
        twin: a copy of the model whose structure may be written to.
        metrics: by name.
        weights: of the model.
        example: a batch.
        precision: of the arithmetic.

    Raises:
        CaptureError: they cannot be captured.
    """
    twin.eval()
    mode = Mode(precision, with_gradients=False)
    traced = trace(twin, _metrics_run(metrics), weights, example, mode)
    names = [*weights.all, *example]
    converted = convert(traced.module, names, "eval.constant.")
    whole = simplified(converted.graph)
    for name, value in zip(weights.buffers, whole.outputs[len(metrics) :], strict=True):
        if value >= len(names) or names[value] != name:
            raise CaptureError(f"the metrics change the buffer {name!r}")
    graph = replace(whole, outputs=whole.outputs[: len(metrics)])
    graph = pruned(graph, range(len(graph.inputs)))
    graph = pruned(graph, sorted(used_inputs(graph)))
    used = {given.name for given in graph.inputs}
    constants = {n: t for n, t in converted.constants.items() if n in used}
    return Measured(graph, constants, tuple(metrics))


def _metrics_run(metrics: Mapping[str, Metric]) -> Run:
    def run(model: nn.Module, batch: Batch) -> list[Tensor]:
        size = len(next(iter(batch.values())))
        values: list[Tensor] = []
        for name, metric in metrics.items():
            value = metric(model, dict(batch))
            if value.shape != (size,):
                raise CaptureError(
                    f"metric {name!r} has shape {list(value.shape)}, not one value per "
                    f"sample, [{size}]"
                )
            values.append(value if value.is_floating_point() else value.float())
        return values

    return run
