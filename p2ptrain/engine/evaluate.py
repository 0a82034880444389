"""Metrics over the validation group, shared among ranks and exact.

Samples are taken in their own order in batches of the evaluation graph; batch ``j`` is
run by rank ``j % world``. The last batch is filled up with its last sample, and only
the real samples' values count. A metric is the sum of its per-sample values over their
number; sums are exact until the last rounding (``meta.exact_parts``), so the figure
does not depend on how many ranks there are.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from torch import Tensor

from p2ptrain.engine import meta
from p2ptrain.engine.meta import EvalMeta

# (samples of one batch, number of the batch) -> one value a sample for each metric
RunBatch = Callable[[Sequence[int], int], Sequence[Tensor]]


@dataclass(frozen=True, slots=True)
class EvalPlan:
    """How the validation group is cut into batches.

    Args:
        metrics: their names.
        samples: in the group, at least 1.
        batch: samples that the graph takes at once.
    """

    metrics: tuple[str, ...]
    samples: int
    batch: int

    def batches(self, rank: int, world: int) -> Iterator[int]:
        """Yield the numbers of a rank's batches."""
        yield from range(rank, -(-self.samples // self.batch), world)

    def samples_of(self, number: int) -> tuple[list[int], int]:
        """Return the samples to run for a batch, and how many of them count."""
        first = number * self.batch
        last = self.samples - 1
        filled = [min(i, last) for i in range(first, first + self.batch)]
        return filled, min(self.batch, self.samples - first)


def rank_sums(
    plan: EvalPlan, run: RunBatch, rank: int, world: int
) -> tuple[tuple[float, ...], ...]:
    """Return a rank's exact sum of each metric, as ``EvalMeta`` carries it.

    Args:
        plan: the batches.
        run: runs one batch; each metric has shape ``[batch]``.
        rank: this rank.
        world: how many ranks there are.
    """
    values: list[list[float]] = [[] for _ in plan.metrics]
    for number in plan.batches(rank, world):
        samples, count = plan.samples_of(number)
        for held, metric in zip(values, run(samples, number), strict=True):
            held.extend(metric.detach()[:count].double().tolist())
    return tuple(meta.exact_parts(held) for held in values)


def figures(plan: EvalPlan, metas: Sequence[EvalMeta]) -> dict[str, float]:
    """Return each metric's mean over all samples, from the sums of all ranks."""
    return {
        name: meta.total(metas, index) / plan.samples
        for index, name in enumerate(plan.metrics)
    }
