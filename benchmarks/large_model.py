"""A step of models from 10 to 50 million parameters: ours, whole (graph, reducer,
optimizer), against plain eager PyTorch, interleaved in the same run.
"""

import resource
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from p2ptrain.engine.capture import Capture, capture
from p2ptrain.engine.collective import solo
from p2ptrain.engine.exact import make_reducer
from p2ptrain.engine.optim import make_optimizer
from p2ptrain.engine.program import Program
from p2ptrain.spec.train import Optimizer

CPU = torch.device("cpu")
LR, MOMENTUM, BATCH = 0.01, 0.9, 4
SIZES = {
    "ten": (1, 4),
    "66 thousand": (64, 512),
    "4 million": (512, 4096),
    "50 million": (2048, 11264),
}
Step = Callable[[], None]


def model(width: int, hidden: int) -> nn.Module:
    torch.manual_seed(0)
    if width == 1:
        return nn.Linear(9, 1)
    layers = [nn.Linear(width, hidden), nn.ReLU(), nn.Linear(hidden, width)]
    wide = [nn.Linear(width, width), nn.ReLU()] if hidden > 4096 else []
    return nn.Sequential(*layers, *wide, nn.Linear(width, 1))


def loss(net: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    return functional.mse_loss(net(batch["x"]), batch["y"])


def ours(
    found: Capture, batch: dict[str, Tensor], *, exact: bool
) -> Callable[[], None]:
    program = Program(found.graph, CPU)
    held = {ref.name: found.tensors[ref.name].clone() for ref in found.params}
    optimizer = make_optimizer(Optimizer(), MOMENTUM, held)
    reducer = make_reducer(list(held.values()), exact=exact)
    names = [given.name for given in found.graph.inputs]
    group = solo()

    def step() -> None:
        values = held | batch
        while True:
            reducer.begin(1)
            outputs = program.run([values[name] for name in names], 0)
            reducer.add(outputs[found.grad_start :])
            reduced = reducer.finish(group, b"")
            if reduced is not None:
                break
        optimizer.step(reduced.sums, LR)

    return step


def eager(net: nn.Module, batch: dict[str, Tensor]) -> Step:
    optimizer = torch.optim.SGD(net.parameters(), lr=LR, momentum=MOMENTUM)

    def step() -> None:
        optimizer.zero_grad()
        loss(net, batch).backward()
        optimizer.step()

    return step


def timed(step: Step) -> float:
    began = time.perf_counter()
    step()
    return time.perf_counter() - began


def main() -> None:
    torch.set_num_threads(1)
    for name, (width, hidden) in SIZES.items():
        net = model(width, hidden)
        count = sum(p.numel() for p in net.parameters())
        inputs = 9 if width == 1 else width
        batch = {"x": torch.randn(BATCH, inputs), "y": torch.randn(BATCH, 1)}
        found = capture(net, loss, batch)
        steps = {
            "eager": eager(net, batch),
            "fast": ours(found, batch, exact=False),
            "exact": ours(found, batch, exact=True),
        }
        rounds = 200 if count < 10**6 else 12
        times: dict[str, list[float]] = {key: [] for key in steps}
        for _ in range(rounds):
            for key, step in steps.items():
                times[key].append(timed(step))
        middle = {key: statistics.median(found) for key, found in times.items()}
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
        print(
            f"{name:>12} ({count:>9} parameters): eager {middle['eager'] * 1e3:8.3f} ms"
            f"   fast {middle['fast'] / middle['eager']:5.2f} x"
            f"   exact {middle['exact'] / middle['eager']:5.2f} x"
            f"   peak of the whole process {peak:.2f} GB"
        )


if __name__ == "__main__":
    main()
