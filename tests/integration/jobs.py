"""Small jobs for clusters, and the same training written independently in PyTorch."""

from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from p2ptrain.core import stream
from p2ptrain.engine.package import Job, Package, captured, package
from p2ptrain.engine.settings import Settings
from p2ptrain.spec.train import Reduce

SAMPLES, HELD_OUT, BATCH, PARTS = 500, 7, 8, 5
LR, MOMENTUM = 0.05, 0.9
Arrays = dict[str, np.ndarray]


def model(seed: int = 0) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return nn.Sequential(
            *(nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU()),
            *(nn.MaxPool2d(2), nn.Flatten(), nn.Linear(64, 3)),
        )


def loss(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    return functional.cross_entropy(model(batch["x"]), batch["y"])


def accuracy(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    return (model(batch["x"]).argmax(dim=1) == batch["y"]).float()


def arrays(count: int, seed: int) -> Arrays:
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((count, 1, 8, 8), dtype=np.float32)
    y = (x.mean(axis=(1, 2, 3)) * 20).round().clip(-1, 1).astype(np.int64) + 1
    return {"x": x, "y": y}


def make(
    folder: Path,
    *,
    steps: int = 40,
    parts: int = PARTS,
    reduce: Reduce = Reduce.FAST,
    data: dict[str, object] | None = None,
    **settings: object,
) -> Package:
    """Package a job of so many steps (rounded up to whole epochs)."""
    train = arrays(SAMPLES, seed=1)
    example = {name: torch.from_numpy(a[:BATCH]) for name, a in train.items()}
    job = Job(
        model=model(),
        loss=loss,
        example_batch=example,
        data=data or train,
        eval_data=arrays(HELD_OUT, seed=2),
        metrics={"accuracy": accuracy},
    )
    folder.mkdir(parents=True, exist_ok=True)
    epochs = -(-steps * BATCH * parts // SAMPLES)
    return package(
        captured(job),
        data=job.data,
        eval_data=job.eval_data,
        folder=folder,
        settings=Settings(
            lr_per_epoch=(LR,) * epochs,
            momentum=MOMENTUM,
            global_batch=BATCH * parts,
            reduce=reduce,
            seed=11,
            **settings,
        ),
    )


def train_plainly(steps: int, parts: int) -> tuple[list[float], dict[str, Tensor]]:
    """Train the same model on the same samples with PyTorch alone.

    Batch-norm statistics of a step are the mean of those that each micro-batch makes of
    the step's first ones, as in ``docs/architecture.md``.
    """
    torch.set_num_threads(1)  # as the trainers: kernels differ by thread count
    net, data = model(), arrays(SAMPLES, seed=1)
    net.train()
    optimizer = torch.optim.SGD(net.parameters(), lr=LR, momentum=MOMENTUM)
    order: list[int] = []
    epoch = 0
    losses: list[float] = []
    for _ in range(steps):
        while len(order) < BATCH * parts:
            order += stream.permutation(11, epoch, SAMPLES)
            epoch += 1
        step, order = order[: BATCH * parts], order[BATCH * parts :]
        before = {name: b.clone() for name, b in net.named_buffers()}
        after: dict[str, list[Tensor]] = {name: [] for name in before}
        optimizer.zero_grad()
        total = 0.0
        for part in range(parts):
            net.load_state_dict(before, strict=False)
            picks = step[part * BATCH : (part + 1) * BATCH]
            batch = {name: torch.from_numpy(a[picks]) for name, a in data.items()}
            value = loss(net, batch)
            (value / parts).backward()
            total += value.item()
            for name, buffer in net.named_buffers():
                after[name].append(buffer.clone())
        for name, buffer in net.named_buffers():
            values = torch.stack(after[name])
            buffer.copy_(
                values.mean(dim=0) if values.is_floating_point() else values[0]
            )
        optimizer.step()
        losses.append(total / parts)
    return losses, net.state_dict()
