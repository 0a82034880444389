"""The handwritten digits that scikit-learn brings: a small convolutional network.

1,797 real images of 8 x 8 pixels, of which every class gives a fifth to the held-out
group. ``job`` is the function that a job file names; settings that reach 99 % on the
held-out group: 96 samples a step, momentum 0.9, weight decay 5e-4, and ``RATES``
as ``lr_per_epoch``.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional

from p2ptrain.engine.capture_model import Batch
from p2ptrain.engine.package import Job

HELD_OUT_EVERY = 5
RATES = (0.02, *(0.1,) * 11, *(0.05,) * 4, *(0.01,) * 4)

Group = dict[str, NDArray[np.generic]]


def job(*, width: int = 16, batch: int = 32, seed: int = 0) -> Job:
    """Return the job.

    Args:
        width: channels of the first convolution.
        batch: images in a micro-batch.
        seed: of the initial weights.
    """
    train, held_out = data()
    example = {name: torch.from_numpy(array[:batch]) for name, array in train.items()}
    return Job(
        model=model(width=width, seed=seed),
        loss=loss,
        example_batch=example,
        data=train,
        eval_data=held_out,
        metrics={"accuracy": accuracy},
    )


def model(*, width: int = 16, seed: int = 0) -> nn.Module:
    """Return the network, for images ``[batch, 1, 8, 8]``."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return nn.Sequential(
            *(nn.Conv2d(1, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU()),
            *(nn.Conv2d(width, 2 * width, 3, padding=1), nn.BatchNorm2d(2 * width)),
            *(nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Conv2d(2 * width, 4 * width, 3, padding=1), nn.BatchNorm2d(4 * width)),
            *(nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Dropout(0.3)),
            nn.Linear(16 * width, 10),
        )


def loss(model: nn.Module, batch: Batch) -> Tensor:
    """Return the mean cross entropy of smoothed labels."""
    return functional.cross_entropy(
        model(batch["image"]), batch["digit"], label_smoothing=0.1
    )


def accuracy(model: nn.Module, batch: Batch) -> Tensor:
    """Return 1 for each digit that is recognised, 0 for each that is not."""
    return (model(batch["image"]).argmax(dim=1) == batch["digit"]).float()


def data() -> tuple[Group, Group]:
    """Return the training and the held-out group.

    ``image`` is float32 ``[N, 1, 8, 8]`` from 0 to 1, ``digit`` int64 ``[N]``.
    """
    pixels, target = load_digits(return_X_y=True)
    images = (pixels / 16.0).astype(np.float32).reshape(-1, 1, 8, 8)
    digits = target.astype(np.int64)
    is_held = np.zeros(len(digits), dtype=bool)
    for digit in range(10):
        is_held[np.flatnonzero(digits == digit)[::HELD_OUT_EVERY]] = True
    return (
        {"image": images[~is_held], "digit": digits[~is_held]},
        {"image": images[is_held], "digit": digits[is_held]},
    )
