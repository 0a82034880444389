"""A small GPT that learns to write Python, character by character.

The text is that of the standard library that runs this file: nothing is downloaded.
Every tenth file is held out. ``job`` is the function that a job file names; settings
that learn well: 64 samples a step, AdamW with weight decay 0.1, clipping at 1.0, and
``RATES`` as ``lr_per_epoch``.
"""

import sysconfig
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from p2ptrain.engine.capture_model import Batch
from p2ptrain.engine.package import Job

# printable ASCII, the newline, and one character for all others
ALPHABET = "\n" + "".join(map(chr, range(32, 127))) + "\ufffd"
HELD_OUT_EVERY = 10
RATES = (1e-3, 3e-3, 1e-3)

Group = dict[str, NDArray[np.generic]]


def job(
    *,
    width: int = 64,
    layers: int = 2,
    context: int = 64,
    batch: int = 16,
    characters: int = 1_000_000,
) -> Job:
    """Return the job.

    Args:
        width: of the embeddings; a multiple of 16, the width of a head.
        layers: transformer blocks.
        context: characters that the model sees.
        batch: samples in a micro-batch.
        characters: of the training group, at most; the held-out one has a tenth.
    """
    train, held_out = data(context=context, characters=characters)
    example = {"text": torch.from_numpy(train["text"][:batch])}
    return Job(
        model=model(width=width, layers=layers, context=context),
        loss=loss,
        example_batch=example,
        data=train,
        eval_data=held_out,
        metrics={"loss": sample_loss, "accuracy": accuracy},
    )


class Block(nn.Module):
    """Causal self-attention and a feed-forward layer, each with a residual path."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.heads = width // 16
        self.before_mix, self.before_map = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.wide, self.narrow = (
            nn.Linear(width, 4 * width),
            nn.Linear(4 * width, width),
        )

    def forward(self, x: Tensor) -> Tensor:
        """Return features ``[batch, length, width]``."""
        size = x.shape
        heads = (*size[:2], self.heads, size[2] // self.heads)
        query, key, value = (
            part.view(heads).transpose(1, 2)
            for part in self.qkv(self.before_mix(x)).chunk(3, dim=-1)
        )
        mixed = functional.scaled_dot_product_attention(
            query, key, value, is_causal=True
        )
        x = x + self.out(mixed.transpose(1, 2).reshape(size))
        return x + self.narrow(functional.gelu(self.wide(self.before_map(x))))


class Gpt(nn.Module):
    """A decoder whose head shares the embedding's weights."""

    def __init__(self, width: int, layers: int, context: int) -> None:
        super().__init__()
        self.character = nn.Embedding(len(ALPHABET), width)
        self.place = nn.Embedding(context, width)
        self.blocks = nn.Sequential(*(Block(width) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, len(ALPHABET), bias=False)
        nn.init.normal_(self.character.weight, std=0.02)
        nn.init.normal_(self.place.weight, std=0.02)
        self.head.weight = self.character.weight

    def forward(self, text: Tensor) -> Tensor:
        """Return logits ``[batch, length, alphabet]`` for texts ``[batch, length]``."""
        places = torch.arange(text.shape[1], device=text.device)
        x = self.character(text) + self.place(places)
        logits: Tensor = self.head(self.norm(self.blocks(x)))
        return logits


def model(
    *, width: int = 64, layers: int = 2, context: int = 64, seed: int = 0
) -> nn.Module:
    """Return the network."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Gpt(width, layers, context)


def loss(model: nn.Module, batch: Batch) -> Tensor:
    """Return the mean cross entropy of the next character, in nats."""
    logits, target = _predicted(model, batch)
    return functional.cross_entropy(logits.flatten(0, 1), target.flatten())


def sample_loss(model: nn.Module, batch: Batch) -> Tensor:
    """Return each sample's mean cross entropy."""
    logits, target = _predicted(model, batch)
    return functional.cross_entropy(
        logits.transpose(1, 2), target, reduction="none"
    ).mean(1)


def accuracy(model: nn.Module, batch: Batch) -> Tensor:
    """Return the share of each sample's characters that are foretold."""
    logits, target = _predicted(model, batch)
    return (logits.argmax(dim=-1) == target).float().mean(dim=1)


def _predicted(model: nn.Module, batch: Batch) -> tuple[Tensor, Tensor]:
    text = batch["text"].long()
    return model(text[:, :-1]), text[:, 1:]


def data(*, context: int = 64, characters: int = 1_000_000) -> tuple[Group, Group]:
    """Return the training and the held-out group.

    ``text`` is uint8 ``[N, context + 1]``: characters as places in ``ALPHABET``.
    """
    files = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    held_out = files[::HELD_OUT_EVERY]
    train = [file for file in files if file not in held_out]
    return (
        _group(train, context + 1, characters),
        _group(held_out, context + 1, characters // HELD_OUT_EVERY),
    )


def _group(files: list[Path], length: int, characters: int) -> Group:
    codes = np.full(256, len(ALPHABET) - 1, dtype=np.uint8)
    for place, character in enumerate(ALPHABET[:-1]):
        codes[ord(character)] = place
    pieces: list[NDArray[np.uint8]] = []
    count = 0
    for file in files:
        if count >= characters:
            break
        pieces.append(codes[np.frombuffer(file.read_bytes(), dtype=np.uint8)])
        count += len(pieces[-1])
    text = np.concatenate(pieces)[:characters]
    samples = len(text) // length
    return {"text": text[: samples * length].reshape(samples, length)}
