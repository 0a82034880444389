"""One part of a step (a micro-batch) on one device.

A part starts from the step's parameters and buffers and changes neither: what it gives
back is its loss, its gradients and the new values of the buffers.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from p2ptrain.core import stream
from p2ptrain.core.stream import Schedule
from p2ptrain.engine import safefile
from p2ptrain.engine.data import Feed, SampleOrder
from p2ptrain.engine.program import Program
from p2ptrain.spec.graph import Graph
from p2ptrain.spec.train import BufferRef, TrainSpec


@dataclass(frozen=True, slots=True)
class PartResult:
    """What one part gives to its step.

    Args:
        loss: its scalar loss.
        sums: the gradients in the order of ``params``, then the new values of the
            floating-point buffers in theirs; they are averaged over parts.
        ints: the bytes of the new integer buffers; equal for all parts.
    """

    loss: float
    sums: list[Tensor]
    ints: bytes


class GraphRunner:
    """Runs a graph on a device, its inputs taken by name.

    Args:
        graph: the graph.
        device: where.
        held: the inputs that stay: parameters, buffers, frozen weights, seed.
        feed: the inputs that change with the samples.
    """

    def __init__(
        self, graph: Graph, device: torch.device, held: Mapping[str, Tensor], feed: Feed
    ) -> None:
        self._program = Program(graph, device)
        self._names = [given.name for given in graph.inputs]
        self._held = held
        self._feed = feed

    def run(self, samples: Sequence[int], seed: int) -> list[Tensor]:
        """Return the graph's outputs for some samples."""
        values = {**self._held, **self._feed.take(samples)}
        return self._program.run([values[name] for name in self._names], seed)


class PartRunner:
    """Runs parts of a spec's steps on one lane.

    Args:
        spec: the job.
        schedule: which samples a part takes.
        order: the permutations.
        runner: the lane's graph.
    """

    def __init__(
        self,
        spec: TrainSpec,
        schedule: Schedule,
        order: SampleOrder,
        runner: GraphRunner,
    ) -> None:
        self._spec = spec
        self._schedule = schedule
        self._order = order
        self._runner = runner
        floats, ints = split_buffers(spec)
        grads = range(spec.grad_start, spec.grad_start + len(spec.params))
        self._sums = [*grads, *(buffer.output for buffer in floats)]
        self._ints = [buffer.output for buffer in ints]

    def run(self, step: int, part: int) -> PartResult:
        """Run one part."""
        plan = self._schedule
        start = plan.start_of(step, part)
        samples = stream.take(self._order, plan.samples, start, plan.batch)
        seed = stream.part_seed(self._spec.seed, step, part)
        outputs = self._runner.run(samples, seed)
        return PartResult(
            loss=outputs[self._spec.loss_index].item(),
            sums=[outputs[i].cpu() for i in self._sums],  # where the ring is
            ints=b"".join(safefile.bytes_of(outputs[i]) for i in self._ints),
        )


def split_buffers(spec: TrainSpec) -> tuple[list[BufferRef], list[BufferRef]]:
    """Return the floating-point buffers, and the others."""
    floats = [b for b in spec.buffers if is_float(b.dtype)]
    return floats, [b for b in spec.buffers if not is_float(b.dtype)]


def is_float(dtype: str) -> bool:
    """Tell whether a dtype (by its name) is a floating-point one."""
    return "float" in dtype
