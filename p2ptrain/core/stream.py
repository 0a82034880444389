"""Which samples a step takes, in which order, at which rate and with which seeds.

Pure arithmetic; no torch, no numpy. The samples of a session are one infinite stream:
a permutation of all samples for epoch 0, another one for epoch 1, and so on, end to
end. Step ``s`` takes positions ``[s G, (s + 1) G)`` of that stream, so that no sample
is dropped at an epoch's end and none is seen twice in an epoch. Part ``m`` of a step
(a micro-batch) takes the positions ``[s G + m B, s G + (m + 1) B)``. Nothing here
depends on who computes what.

A permutation is defined by sort keys, the BLAKE3 of (seed, epoch) drawn out to eight
bytes a sample and read as little-endian integers: the sample with the smallest key
comes first, and equal keys keep the samples' order. So any stable sort, vectorised or
not, on any machine, gives the same order.
"""

import sys
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from blake3 import blake3

KEY_BYTES = 8

Order = Callable[[int], Sequence[int]]  # the permutation of an epoch


@dataclass(frozen=True, slots=True)
class Schedule:
    """How a session's samples are cut into steps.

    Args:
        samples: samples in the training group, at least 1.
        epochs: how often each is seen, at least 1.
        step_samples: samples in a step, a multiple of ``batch``.
        batch: samples in a part.
    """

    samples: int
    epochs: int
    step_samples: int
    batch: int

    @property
    def steps(self) -> int:
        """Steps of the whole session; the last one may reach into the permutation
        after the last epoch.
        """
        return -(-self.samples * self.epochs // self.step_samples)

    @property
    def parts(self) -> int:
        """Parts in a step."""
        return self.step_samples // self.batch

    def epoch_of(self, step: int) -> int:
        """Return the epoch of a step's first sample."""
        return step * self.step_samples // self.samples

    def epoch_end(self, epoch: int) -> int:
        """Return how many steps are applied when the epoch is complete."""
        return -(-self.samples * (epoch + 1) // self.step_samples)

    def complete(self, applied: int) -> int:
        """Return how many epochs are complete after so many applied steps."""
        return min(self.epochs, applied * self.step_samples // self.samples)

    def steps_of(self, epoch: int) -> range:
        """Return the steps that count for an epoch's loss.

        They are those that begin in the epoch; where none does (fewer samples than a
        step takes), the one that completes it.
        """
        end = self.epoch_end(epoch)
        begin = -(-self.samples * epoch // self.step_samples)
        return range(min(begin, end - 1), end)

    def start_of(self, step: int, part: int) -> int:
        """Return the stream position of a part's first sample."""
        return step * self.step_samples + part * self.batch


def parts_of(shares: Sequence[int], rank: int) -> range:
    """Return the parts of each step that a rank computes: contiguous, in ring order."""
    first = sum(shares[:rank])
    return range(first, first + shares[rank])


def part_seed(seed: int, step: int, part: int) -> int:
    """Return the 63-bit seed for the random operators of one part of a step."""
    text = f"part:{seed}:{step}:{part}".encode()
    return int.from_bytes(blake3(text).digest(KEY_BYTES), "little") >> 1


def epoch_keys(seed: int, epoch: int, samples: int) -> bytes:
    """Return the sort keys of an epoch's permutation, eight bytes a sample."""
    text = f"order:{seed}:{epoch}".encode()
    return blake3(text).digest(KEY_BYTES * samples)


def permutation(seed: int, epoch: int, samples: int) -> list[int]:
    """Return the samples in an epoch's order."""
    keys = array("Q", epoch_keys(seed, epoch, samples))
    if sys.byteorder == "big":
        keys.byteswap()
    return sorted(range(samples), key=keys.__getitem__)


def take(order: Order, samples: int, start: int, count: int) -> list[int]:
    """Return the samples at ``count`` stream positions from ``start`` on."""
    taken: list[int] = []
    while len(taken) < count:
        epoch, offset = divmod(start + len(taken), samples)
        taken.extend(order(epoch)[offset : offset + count - len(taken)])
    return taken
