"""Jobs for training tests, and the same training written down in plain PyTorch."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional as fn
from torch.nn.attention import SDPBackend, sdpa_kernel

from p2ptrain.core import stream
from p2ptrain.engine.capture import capture
from p2ptrain.spec.train import DataRef, Eval, TrainSpec

Batch = dict[str, Tensor]


class Cnn(nn.Module):
    """Batch norm and dropout: buffers of both kinds, and random numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)
        self.drop = nn.Dropout(0.25)
        self.head = nn.Linear(64, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = fn.max_pool2d(fn.relu(self.norm(self.conv(x))), 2)
        return self.head(self.drop(h.flatten(1)))


class Gpt(nn.Module):
    """A small decoder with its head tied to the embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(13, 16)
        self.place = nn.Embedding(8, 16)
        self.norm = nn.LayerNorm(16)
        # The bias of a key has no gradient but round-off, which Adam would blow up.
        self.qkv = nn.Linear(16, 48, bias=False)
        self.out = nn.Linear(16, 16)
        self.up = nn.Linear(16, 32)
        self.down = nn.Linear(32, 16)
        self.drop = nn.Dropout(0.1)
        self.head = nn.Linear(16, 13, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, x: Tensor) -> Tensor:
        h = self.embed(x) + self.place(torch.arange(x.shape[1]))
        q, k, v = (
            t.view(*x.shape, 2, 8).transpose(1, 2)
            for t in self.qkv(self.norm(h)).chunk(3, -1)
        )
        mixed = fn.scaled_dot_product_attention(q, k, v, is_causal=True)
        h = h + self.drop(self.out(mixed.transpose(1, 2).flatten(2)))
        return self.head(h + self.down(fn.gelu(self.up(h))))


def classify(model: nn.Module, batch: Batch) -> Tensor:
    return fn.cross_entropy(model(batch["x"]), batch["y"])


def next_token(model: nn.Module, batch: Batch) -> Tensor:
    return fn.cross_entropy(model(batch["x"]).flatten(0, 1), batch["y"].flatten())


def hits(model: nn.Module, batch: Batch) -> Tensor:
    return (model(batch["x"]).argmax(-1) == batch["y"]).float()


def surprise(model: nn.Module, batch: Batch) -> Tensor:
    return fn.cross_entropy(model(batch["x"]), batch["y"], reduction="none")


@dataclass
class Task:
    """A model, its loss and its samples."""

    model: nn.Module
    loss: Callable[[nn.Module, Batch], Tensor]
    data: Batch
    metrics: dict | None = None
    held_out: Batch | None = None

    @property
    def samples(self) -> int:
        return len(next(iter(self.data.values())))


def images(samples: int, seed: int) -> Batch:
    gen = torch.Generator().manual_seed(seed)
    y = torch.randint(0, 3, (samples,), generator=gen)
    x = torch.randn(samples, 1, 8, 8, generator=gen) + y.view(-1, 1, 1, 1)
    return {"x": x, "y": y}


def cnn_task(samples: int = 22, held_out: int = 5) -> Task:
    torch.manual_seed(11)
    metrics = {"accuracy": hits, "surprise": surprise}
    return Task(Cnn(), classify, images(samples, 1), metrics, images(held_out, 2))


def gpt_task(samples: int = 22) -> Task:
    torch.manual_seed(12)
    x = torch.randint(0, 13, (samples, 9))
    return Task(Gpt(), next_token, {"x": x[:, :-1], "y": x[:, 1:].contiguous()})


def spec_of(
    task: Task, folder: Path, batch: int = 2, frozen=(), **settings
) -> TrainSpec:
    """Capture a task and write its weights and samples into a folder."""
    example = {
        name: value[:1].repeat_interleave(batch, 0) for name, value in task.data.items()
    }
    got = capture(task.model, task.loss, example, metrics=task.metrics, frozen=frozen)
    weights = folder / "weights.safetensors"
    save_file(
        {n: t.detach().clone().contiguous() for n, t in got.tensors.items()}, weights
    )

    def at(ref):
        return replace(ref, uri=f"safetensors://{weights}#{ref.name}")

    ev = None
    if got.eval_graph is not None:
        ev = Eval(
            graph=got.eval_graph,
            data=refs(task.held_out, got.eval_inputs, folder, "held"),
            metrics=got.metrics,
            batch=batch,
        )
    base = TrainSpec(
        graph=got.graph,
        params=tuple(map(at, got.params)),
        grad_start=got.grad_start,
        loss_index=got.loss_index,
        data=refs(task.data, got.data_inputs, folder, "train"),
        seed_input=got.seed_input,
        momentum=0.9,
        lr_per_epoch=(0.1, 0.05),
        batch=batch,
        device="cpu",
        buffers=tuple(map(at, got.buffers)),
        frozen=tuple(map(at, got.frozen)),
        exports=got.exports,
        eval=ev,
        seed=5,
        global_batch=batch,
    )
    return replace(base, **settings)


def refs(data: Batch, inputs, folder: Path, group: str) -> tuple[DataRef, ...]:
    """Write samples as .npy files, in two shards of unequal size, and name them."""
    made = []
    for name in inputs:
        path = folder / f"{group}-{name}.npy"
        np.save(path, data[name].numpy())
        total = len(data[name])
        cut = total // 3
        for start, count in ((0, cut), (cut, total - cut)):
            if count:
                made.append(
                    DataRef(
                        input=name,
                        uri=f"file://{path}",
                        elem=data[name][0].numel(),
                        shard_start=start,
                        shard_len=count,
                        dtype=str(data[name].dtype).removeprefix("torch."),
                        shape=tuple(data[name].shape[1:]),
                    )
                )
    return tuple(made)


@dataclass
class Plain:
    """What plain PyTorch gives."""

    losses: list[float]
    state: dict[str, Tensor]


def plain(task: Task, spec: TrainSpec, optimizer: torch.optim.Optimizer) -> Plain:
    """Train a task with eager PyTorch: backward, ``torch.optim``, one process.

    Written against the job's meaning, not against its code: the order of the samples
    is drawn here step by step from the permutations of ``core.stream``.
    """
    model, samples = task.model, task.samples
    model.train()
    queue: list[int] = []
    epoch = 0
    steps = -(-samples * len(spec.lr_per_epoch) // spec.step_samples)
    losses = []
    for step in range(steps):
        rate = spec.lr_per_epoch[step * spec.step_samples // samples]
        for group in optimizer.param_groups:
            group["lr"] = rate
        while len(queue) < spec.step_samples:
            queue += stream.permutation(spec.seed, epoch, samples)
            epoch += 1
        taken, queue = queue[: spec.step_samples], queue[spec.step_samples :]
        losses.append(_plain_step(task, spec, optimizer, (step, taken)))
    return Plain(losses, {n: t.clone() for n, t in model.state_dict().items()})


def _plain_step(task, spec, optimizer, turn) -> float:
    step, taken = turn
    model, parts = task.model, spec.step_parts
    before = {n: b.clone() for n, b in model.named_buffers()}
    after = {n: torch.zeros_like(b) for n, b in model.named_buffers()}
    optimizer.zero_grad()
    losses = []
    for part in range(parts):
        with torch.no_grad():
            for name, buffer in model.named_buffers():
                buffer.copy_(before[name])
        chosen = taken[part * spec.batch : (part + 1) * spec.batch]
        torch.manual_seed(stream.part_seed(spec.seed, step, part))
        with sdpa_kernel(SDPBackend.MATH):  # as captured
            loss = task.loss(model, {n: v[chosen] for n, v in task.data.items()})
        loss.backward()
        losses.append(loss.item())
        for name, buffer in model.named_buffers():
            after[name] += buffer
    for name, buffer in model.named_buffers():
        if buffer.is_floating_point():
            buffer.copy_(after[name] / parts)
    for param in model.parameters():
        if parts > 1 and param.requires_grad:
            param.grad /= parts
    if spec.clip_norm is not None:
        torch.nn.utils.clip_grad_norm_(model.parameters(), spec.clip_norm)
    optimizer.step()
    return sum(losses) / parts
