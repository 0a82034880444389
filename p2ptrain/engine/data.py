"""Feeds: the samples of a group as tensors on a device, and the order they come in."""

import threading
from array import array
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Protocol

import numpy as np
import torch
from torch import Tensor

from p2ptrain.core import stream

KEPT: Final = 2  # a step reaches into two epochs, or runs through very short ones


class Source(Protocol):
    """Where the samples of one input come from."""

    def take(self, indices: Tensor) -> Tensor:
        """Return samples (int64 ``[n]``), shape ``[n, *sample]``, on the host."""
        ...


class SampleOrder:
    """The permutations of a session, equal to ``stream.permutation`` and made faster;
    the two last used are kept.

    Args:
        seed: of the session.
        samples: in the group.
    """

    def __init__(self, seed: int, samples: int) -> None:
        self._seed = seed
        self._samples = samples
        self._kept: dict[int, Sequence[int]] = {}  # the last used stands last
        self._lock = threading.Lock()  # lanes ask from threads of their own

    def __call__(self, epoch: int) -> Sequence[int]:
        """Return an epoch's permutation."""
        with self._lock:
            kept = self._kept.pop(epoch, None)
            if kept is None:
                kept = self._sorted(epoch)
            self._kept[epoch] = kept
            if len(self._kept) > KEPT:
                del self._kept[next(iter(self._kept))]
            return kept

    def _sorted(self, epoch: int) -> Sequence[int]:
        keys = np.frombuffer(
            stream.epoch_keys(self._seed, epoch, self._samples), dtype="<u8"
        )
        return array("q", keys.argsort(kind="stable").astype(np.int64).tobytes())


def same(tensor: Tensor) -> Tensor:
    """Return the tensor as it is."""
    return tensor


class Feed:
    """The data inputs of a graph on one device.

    Args:
        sources: by input.
        device: where the tensors are wanted.
        cast: applied to each of them first.
    """

    def __init__(
        self,
        sources: Mapping[str, Source],
        device: torch.device,
        cast: Callable[[Tensor], Tensor] = same,
    ) -> None:
        self._sources = sources
        self._device = device
        self._cast = cast

    def take(self, samples: Sequence[int]) -> dict[str, Tensor]:
        """Return the inputs for some samples."""
        indices = torch.tensor(samples, dtype=torch.int64)
        return {
            name: self._cast(source.take(indices)).to(self._device)
            for name, source in self._sources.items()
        }
