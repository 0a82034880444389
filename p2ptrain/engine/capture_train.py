"""The training half of a capture: the loss, its gradients and the changed buffers."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from torch import Tensor, nn

from p2ptrain.engine.capture_model import Batch, Run, Weights
from p2ptrain.engine.capture_simplify import (
    pruned,
    simplified,
    used_inputs,
    with_inputs,
)
from p2ptrain.engine.convert import Converted, meta_of
from p2ptrain.errors import CaptureError
from p2ptrain.spec.graph import Graph

# a loss may name its own class of model
Loss = Callable[[Any, dict[str, Tensor]], Tensor | tuple[Tensor, ...]]


def loss_run(loss: Loss) -> Run:
    """Return what computes a loss function's results, the scalar loss first."""

    def run(model: nn.Module, batch: Batch) -> list[Tensor]:
        results = loss(model, dict(batch))
        first, *others = results if isinstance(results, tuple) else (results,)
        if first.dim() or not first.is_floating_point():
            raise CaptureError(
                f"the loss is {first.dtype} of shape {list(first.shape)}, not a "
                "floating-point scalar: end it with .mean()"
            )
        if not first.requires_grad:
            raise CaptureError("the loss depends on no trained parameter")
        return [first, *(other.detach() for other in others)]

    return run


class TrainPart:
    """The converted training graph, and what its inputs and outputs are.

    Args:
        converted: the trace; outputs are those of the loss function, all buffers, and
            the gradients of the trained weights.
        weights: of the model.
        results: how many outputs the loss function has.
        others: tensors that only the metrics use; they become inputs too, for the
            inputs of this graph are all that a job holds.
    """

    def __init__(
        self,
        converted: Converted,
        weights: Weights,
        results: int,
        others: Mapping[str, Tensor],
    ) -> None:
        self.weights = weights
        self.results = results
        self.constants = {**converted.constants, **others}
        self.trained = list(weights.trained)
        extra = {name: meta_of(tensor) for name, tensor in others.items()}
        self._whole = simplified(with_inputs(converted.graph, extra))
        after = self._whole.outputs[results : results + len(weights.buffers)]
        names = [given.name for given in self._whole.inputs]
        self._buffers = {
            name: value
            for name, value in zip(weights.buffers, after, strict=True)
            if value >= len(names) or names[value] != name
        }

    @property
    def buffers(self) -> list[str]:
        """Buffers that training changes."""
        return list(self._buffers)

    @property
    def frozen(self) -> list[str]:
        """Weights that stay, without constants."""
        busy = {*self.trained, *self._buffers}
        return [name for name in self.weights.all if name not in busy]

    @property
    def grad_start(self) -> int:
        """Index of the first gradient among the outputs."""
        return self.results + len(self._buffers)

    def graph(self) -> Graph:
        """Return the graph with its inputs in order."""
        whole = self._whole
        outputs = (
            *whole.outputs[: self.results],
            *self._buffers.values(),
            *whole.outputs[len(whole.outputs) - len(self.trained) :],
        )
        numbers = {given.name: index for index, given in enumerate(whole.inputs)}
        held = [*self.trained, *self.frozen, *self.constants, *self._buffers]
        graph = replace(whole, outputs=outputs)
        used = used_inputs(pruned(graph, range(len(whole.inputs))))
        fed = [i for n, i in numbers.items() if n not in held and i in used]
        return pruned(graph, [*(numbers[name] for name in held), *fed])
