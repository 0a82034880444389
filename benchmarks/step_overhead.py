"""A training step of a captured model against the same step in plain eager PyTorch.

Both apply the same optimizer to the same samples, in turn and in the same process, so
that whatever else the machine does falls on both. The ratio is taken pair by pair.
The C library keeps freed memory, as in the trainer; that helps both (plain PyTorch does
without it otherwise, and is slower then).
Plain PyTorch is its fastest common form: ``foreach`` optimizers as they are by default,
``zero_grad(set_to_none=True)``, attention on the backend that it picks itself.

    python benchmarks/step_overhead.py [--threads 1 2] [--pairs 300]
"""

import argparse
import resource
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from p2ptrain.engine import memory
from p2ptrain.engine.optim import make_optimizer
from p2ptrain.engine.package import Job, captured
from p2ptrain.engine.program import Program
from p2ptrain.spec.train import Optimizer, OptimizerKind

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from configs import charlm, digits

TARGET = 1.05
WARM_UP = 20
Step = Callable[[], None]


def eager(job: Job, *, is_adam: bool) -> Step:
    params = list(job.model.parameters())
    if is_adam:
        optimizer = torch.optim.AdamW(params, lr=1e-4, weight_decay=0.1)
    else:
        optimizer = torch.optim.SGD(params, lr=1e-3, momentum=0.9, weight_decay=5e-4)
    job.model.train()
    example = dict(job.example_batch)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        loss = job.loss(job.model, example)
        assert isinstance(loss, Tensor)
        loss.backward()
        optimizer.step()
        loss.item()

    return step


def graph(job: Job, *, is_adam: bool) -> Step:
    capture = captured(job)
    program = Program(capture.graph, torch.device("cpu"))
    held = {name: tensor.clone() for name, tensor in capture.tensors.items()}
    values = [
        held[given.name] if given.name in held else job.example_batch[given.name]
        for given in capture.graph.inputs
    ]
    settings = (
        Optimizer(OptimizerKind.ADAMW, weight_decay=0.1)
        if is_adam
        else Optimizer(weight_decay=5e-4)
    )
    params = {ref.name: held[ref.name] for ref in capture.params}
    optimizer = make_optimizer(settings, 0.0 if is_adam else 0.9, params)
    rate = 1e-4 if is_adam else 1e-3
    buffers = [(held[ref.name], ref.output) for ref in capture.buffers]

    def step() -> None:
        outputs = program.run(values, 0)
        optimizer.step(outputs[capture.grad_start :], rate)
        for buffer, output in buffers:
            buffer.copy_(outputs[output])
        outputs[0].item()

    return step


def seconds(step: Step) -> float:
    begin = time.perf_counter()
    step()
    return time.perf_counter() - begin


def compare(ours: Step, theirs: Step, pairs: int) -> tuple[list[float], float]:
    """Return the ratios of the pairs, and the median milliseconds of eager steps."""
    for _ in range(WARM_UP):
        ours()
        theirs()
    ratios: list[float] = []
    plain: list[float] = []
    for pair in range(pairs):
        if pair % 2:
            mine, other = seconds(ours), seconds(theirs)
        else:
            other, mine = seconds(theirs), seconds(ours)
        ratios.append(mine / other)
        plain.append(other)
    return ratios, statistics.median(plain) * 1e3


def rss_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--pairs", type=int, default=300)
    wanted = parser.parse_args()
    jobs = {
        "small CNN (digits)": (digits.job, False),
        "small GPT (charlm)": (charlm.job, True),
    }
    worst = 0.0
    memory.keep_freed_memory()
    print(f"torch {torch.__version__}, {wanted.pairs} pairs each; target {TARGET}")
    for threads in wanted.threads:
        torch.set_num_threads(threads)
        for name, (make, is_adam) in jobs.items():
            steps = graph(make(), is_adam=is_adam), eager(make(), is_adam=is_adam)
            ratios, plain_ms = compare(*steps, wanted.pairs)
            low, middle, high = statistics.quantiles(ratios, n=4)
            worst = max(worst, middle)
            print(
                f"{name}, {threads} thread(s): eager {plain_ms:.2f} ms; "
                f"ratio median {middle:.3f}, quartiles {low:.3f} to {high:.3f}"
            )
    print(f"peak resident memory of this process: {rss_mib():.0f} MiB")
    return 0 if worst <= TARGET else 1


if __name__ == "__main__":
    sys.exit(main())
