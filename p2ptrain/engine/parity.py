"""One step's graph on every device, against the same graph in float64: is a difference
round-off, or a fault?

The error of an output is its largest difference over its largest value; an output that
is nearly zero beside its fellows (the gradient of a bias before a batch norm) is
measured against a thousandth of theirs. The CPU's own error in the graph's dtype says
how much round-off this graph has; another device may have a hundred times that (other
algorithms, other orders of summation), and never a quarter of all digits wrong.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import torch
from torch import Tensor

from p2ptrain.core import stream
from p2ptrain.engine import devices, torchset
from p2ptrain.engine.data import Feed, same
from p2ptrain.engine.inputs import Inputs, read_spec, resolve_inputs
from p2ptrain.engine.parts import GraphRunner
from p2ptrain.engine.rewrite import drawn, widened
from p2ptrain.messages.asks import ParityLine
from p2ptrain.messages.trainer import CheckParity, ParityDone
from p2ptrain.spec.graph import Graph
from p2ptrain.spec.train import Precision, TrainSpec

RATIO_MAX: Final = 100.0
SMALL: Final = 1e-3  # of the largest fellow
EPS: Final = {Precision.FP32: 2.0**-23, Precision.BF16: 2.0**-8}


@dataclass(frozen=True, slots=True)
class Error:
    """The worst output of a graph on a device."""

    output: str
    max_abs: float
    max_rel: float


def wide_tensor(tensor: Tensor) -> Tensor:
    """Return a tensor in float64 if it is a floating-point one."""
    return tensor.double() if tensor.is_floating_point() else tensor


def worst(names: Sequence[str], got: Sequence[Tensor], want: Sequence[Tensor]) -> Error:
    """Return the largest error of a graph's outputs.

    Args:
        names: of the outputs.
        got: the outputs, on the host.
        want: the reference.
    """
    largest = [float(w.double().abs().max()) if w.numel() else 0.0 for w in want]
    fellow = max(largest, default=0.0) * SMALL
    errors = []
    for name, a, b, scale in zip(names, got, want, largest, strict=True):
        off = float((a.double() - b.double()).abs().max()) if a.numel() else 0.0
        rel = off / max(scale, fellow) if off else 0.0
        errors.append(Error(name, off, math.inf if math.isnan(rel) else rel))
    return max(errors, key=lambda error: error.max_rel)


@dataclass(frozen=True, slots=True)
class Case:
    """What was compared.

    Args:
        device: its name.
        reference: ``float64`` or ``cpu``.
        eps: round-off of one operation in the graph's dtype.
    """

    device: str
    reference: str
    eps: float


def judged(case: Case, error: Error, cpu: Error) -> ParityLine:
    """Return the line of a device.

    Args:
        case: what was compared.
        error: of the device.
        cpu: of the CPU in the same dtype.
    """
    ratio = error.max_rel / max(cpu.max_rel, 4 * case.eps)
    fault = not error.max_rel < case.eps**0.25 or (
        ratio > RATIO_MAX and error.max_rel > 1000 * case.eps
    )
    return ParityLine(
        device=case.device,
        reference=case.reference,
        output=error.output,
        max_abs=error.max_abs,
        max_rel=error.max_rel,
        ratio=ratio,
        fault=fault,
    )


class Bench:
    """Runs a spec's graph on the first part's samples, anywhere and in any dtype.

    Random numbers are drawn once, on the CPU, and given to every run.

    Args:
        spec: the job.
        inputs: what its references resolved to.
    """

    def __init__(self, spec: TrainSpec, inputs: Inputs) -> None:
        self._spec = spec
        self._held = dict(inputs.held)
        order = stream.permutation(spec.seed, 0, inputs.samples)
        self._samples = stream.take(lambda _: order, inputs.samples, 0, spec.batch)
        self._sources = inputs.sources
        split = drawn(spec.graph)
        if split.values:
            draw = replace(spec.graph, outputs=split.values)
            self._held |= zip(
                split.names, self._outputs(draw, "cpu", same), strict=True
            )
        self._graph = split.graph

    @property
    def names(self) -> list[str]:
        """What the graph's outputs are, for people."""
        spec = self._spec
        names = [f"output {i}" for i in range(len(spec.graph.outputs))]
        names[spec.loss_index] = "the loss"
        for i, ref in enumerate(spec.params):
            names[spec.grad_start + i] = f"the gradient of {ref.name!r}"
        for buffer in spec.buffers:
            names[buffer.output] = f"the buffer {buffer.name!r}"
        return names

    def run(self, device: str) -> list[Tensor]:
        """Return the outputs of the graph as it is."""
        return self._outputs(self._graph, device, same)

    def run_wide(self) -> list[Tensor]:
        """Return the outputs in float64, on the CPU.

        Raises:
            RuntimeError: an operator has no float64 kernel.
        """
        return self._outputs(widened(self._graph), "cpu", wide_tensor)

    def _outputs(
        self, graph: Graph, name: str, cast: Callable[[Tensor], Tensor]
    ) -> list[Tensor]:
        device = torch.device(name)
        held = {n: cast(tensor).to(device) for n, tensor in self._held.items()}
        runner = GraphRunner(graph, device, held, Feed(self._sources, device, cast))
        seed = stream.part_seed(self._spec.seed, 0, 0)
        return [out.cpu() for out in runner.run(self._samples, seed)]


def check(command: CheckParity) -> ParityDone:
    """Run the graph of a spec on every device of this node; one line a device.

    Raises:
        SpecError: the spec may not run.
        RefError: a reference cannot be resolved here.
    """
    spec = read_spec(Path(command.spec_path))
    torchset.prepare(devices.cores())
    bench = Bench(spec, resolve_inputs(spec, command))
    eps = EPS[spec.precision]
    return ParityDone(tuple(compared(bench, eps, devices.inventory())))


def compared(bench: Bench, eps: float, names: Sequence[str]) -> Iterator[ParityLine]:
    """Yield the line of each device.

    Args:
        bench: what to run.
        eps: round-off of one operation.
        names: the devices.
    """
    reference, want = "cpu", bench.run("cpu")
    cpu = Error("", 0.0, 0.0)
    try:
        narrow, want = want, bench.run_wide()
    except RuntimeError:
        pass  # an operator has no float64 kernel: the CPU's own outputs must do
    else:
        reference, cpu = "float64", worst(bench.names, narrow, want)
    for name in names:
        error = worst(bench.names, bench.run(name), want)
        yield judged(Case(name, reference, eps), error, cpu)
