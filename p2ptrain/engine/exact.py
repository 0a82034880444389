"""Reducers: how the parts of a step become one sum, on all ranks the same bits.

Both work the same way: ``begin``, ``add`` once for each part that this rank computed
(a part is a micro-batch; it gives one tensor for each parameter and averaged buffer),
``finish`` with the ring. ``finish`` returns None when the parts must be computed and
added once more from ``begin`` on; all ranks then get None together.

``FastReducer`` sums floats in a fixed order for a given view. ``ExactReducer`` sums
64-bit integers: each value is rounded once to a multiple of ``2**e``, with one ``e``
for each tensor that all ranks agree on. Integer sums do not depend on grouping or
order, so neither does the result: the same bits for every world size and history.
(The idea of reproducible summation by pre-rounding: Demmel and Nguyen, 2013.)
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from p2ptrain import codec
from p2ptrain.engine.collective import Group
from p2ptrain.errors import LinkLostError, PeerError

# A tensor's largest value of the step before is given this many bits; the rest of the
# 62 is room for growth from one step to the next and for the sum over parts.
MAGNITUDE_BITS = 40
SUM_BITS = 62
EXPONENT_MIN, EXPONENT_MAX = -400, 1000  # 2**-e must be a normal double
META_BYTES_MAX = 1024 * 1024
BLOCK = 32 * 1024  # elements


@dataclass(frozen=True, slots=True)
class Reduced:
    """The sums over all parts (views of one buffer, valid until the next ``begin``),
    and the metas of all ranks.
    """

    sums: list[Tensor]
    metas: tuple[bytes, ...]


class Reducer(Protocol):
    """What a step needs of a reducer."""

    def begin(self, parts: int) -> None:
        """Start a step of so many parts in all."""
        ...

    def add(self, values: Sequence[Tensor]) -> None:
        """Add one part's tensors, in the order of the shapes."""
        ...

    def finish(self, group: Group, meta: bytes) -> Reduced | None:
        """Reduce over the ring; None: compute and add the same parts once more.

        Raises:
            LinkLostError: the view is over; nothing of the sums may be used.
        """
        ...

    def state(self) -> list[int]:
        """Return what the next steps' sums depend on; goes into checkpoints."""
        ...

    def load(self, state: Sequence[int]) -> None:
        """Go on from a state."""
        ...


class _Flat:
    """One flat buffer with a view for each tensor."""

    def __init__(self, likes: Sequence[Tensor], dtype: torch.dtype) -> None:
        device = likes[0].device if likes else torch.device("cpu")
        total = sum(like.numel() for like in likes)
        self.flat = torch.zeros(total, dtype=dtype, device=device)
        sizes = [like.numel() for like in likes]
        parts = torch.split(self.flat, sizes)
        self.views = [
            part.view(like.shape) for part, like in zip(parts, likes, strict=True)
        ]


def sum_dtype(likes: Sequence[Tensor]) -> torch.dtype:
    """Return the dtype that sums are held in: fp32, or fp64 if any tensor is."""
    wide = any(like.dtype == torch.float64 for like in likes)
    return torch.float64 if wide else torch.float32


class FastReducer:
    """Sums in floating point.

    Args:
        likes: tensors of the shapes that ``add`` will get, on the CPU.
    """

    def __init__(self, likes: Sequence[Tensor]) -> None:
        self._sums = _Flat(likes, sum_dtype(likes))
        self._empty = True

    def begin(self, parts: int) -> None:
        """Start a step of so many parts in all."""
        del parts
        self._empty = True

    def add(self, values: Sequence[Tensor]) -> None:
        """Add one part's tensors; the first is copied, so one part keeps its bits."""
        for held, value in zip(self._sums.views, values, strict=True):
            if self._empty:
                held.copy_(value)
            else:
                held.add_(value)
        self._empty = False

    def finish(self, group: Group, meta: bytes) -> Reduced:
        """Reduce over the ring."""
        if self._empty:
            self._sums.flat.zero_()
        metas = group.reduce(self._sums.flat, meta)
        return Reduced(self._sums.views, metas)

    def state(self) -> list[int]:
        """Return nothing: a step depends on its parts only."""
        return []

    def load(self, state: Sequence[int]) -> None:
        """Nothing to load."""


class ExactReducer:
    """Sums in 64-bit fixed point; see the module's docstring.

    The exponents of a step follow from the largest values of the steps before it. In
    the first step, and when a value outgrows its room, the ranks agree on this step's
    largest values first and ``finish`` returns None.

    Args:
        likes: tensors of the shapes that ``add`` will get, on the CPU.
    """

    def __init__(self, likes: Sequence[Tensor]) -> None:
        self._ints = _Flat(likes, torch.int64)
        self._sums = _Flat(likes, sum_dtype(likes))
        self._blocks = _Blocks(self._sums.flat.device)
        self._exponents: list[int] = []
        self._largest = [0.0] * len(likes)
        self._parts = 1

    def begin(self, parts: int) -> None:
        """Start a step of so many parts in all."""
        self._parts = parts
        self._largest = [0.0] * len(self._largest)
        self._ints.flat.zero_()

    def add(self, values: Sequence[Tensor]) -> None:
        """Add one part's tensors."""
        for i, value in enumerate(values):
            largest = _largest(value.detach())
            self._largest[i] = _worse(self._largest[i], largest)
            if self._exponents and self._fits(i, largest):
                self._blocks.add(self._ints.views[i], value, -self._exponents[i])

    def finish(self, group: Group, meta: bytes) -> Reduced | None:
        """Reduce over the ring; None: compute and add the same parts once more."""
        told = codec.encode([meta, self._largest])
        vector = self._ints.flat if self._exponents else self._ints.flat[:0]
        metas, agreed = _open(group.reduce(vector, told), len(self._largest))
        if not all(math.isfinite(largest) for largest in agreed):
            return Reduced(self._sums.views, metas)  # the metas tell what is wrong
        fits = [self._fits(i, largest) for i, largest in enumerate(agreed)]
        if not self._exponents or not all(fits):
            self._exponents = self._following(agreed)
            return None
        for i, (held, view) in enumerate(
            zip(self._sums.views, self._ints.views, strict=True)
        ):
            self._blocks.scale(held, view, self._exponents[i])
        self._exponents = self._following(agreed)
        return Reduced(self._sums.views, metas)

    def state(self) -> list[int]:
        """Return the exponents, one for each tensor; none before the first step."""
        return list(self._exponents)

    def load(self, state: Sequence[int]) -> None:
        """Go on from a state."""
        self._exponents = list(state)

    def _fits(self, index: int, largest: float) -> bool:
        """Whether a sum of all parts, none larger than this, stays within 62 bits."""
        if not math.isfinite(largest):
            return False
        bits = _bits(largest) - self._exponents[index] if self._exponents else 0
        return largest == 0.0 or bits + _bits(self._parts) <= SUM_BITS

    def _following(self, agreed: Sequence[float]) -> list[int]:
        """Return the next exponents: up at once, down by one a step, so that a tensor
        that is zero now and then does not outgrow its room each time it is not.
        """
        wanted = [
            max(EXPONENT_MIN, min(EXPONENT_MAX, _bits(largest) - MAGNITUDE_BITS))
            for largest in agreed
        ]
        if not self._exponents:
            return wanted
        pairs = zip(wanted, self._exponents, strict=True)
        return [max(want, had - 1) for want, had in pairs]


class _Blocks:
    """Conversion a block at a time: what lies between fits a processor's cache.

    Args:
        device: where the tensors are.
    """

    def __init__(self, device: torch.device) -> None:
        self._wide = torch.empty(BLOCK, dtype=torch.float64, device=device)
        self._ints = torch.empty(BLOCK, dtype=torch.int64, device=device)

    def add(self, sums: Tensor, values: Tensor, exponent: int) -> None:
        """Add ``round(values * 2**exponent)`` to integers."""
        factor = math.ldexp(1.0, exponent)
        pairs = _cut(sums.view(-1)), _cut(values.reshape(-1))
        for total, block in zip(*pairs, strict=True):
            wide, ints = self._wide[: len(block)], self._ints[: len(block)]
            wide.copy_(block).mul_(factor).round_()
            total.add_(ints.copy_(wide))

    def scale(self, out: Tensor, ints: Tensor, exponent: int) -> None:
        """Set ``out`` to ``ints * 2**exponent``."""
        factor = math.ldexp(1.0, exponent)
        pairs = _cut(out.view(-1)), _cut(ints.view(-1))
        for held, block in zip(*pairs, strict=True):
            held.copy_(self._wide[: len(block)].copy_(block).mul_(factor))


def _cut(flat: Tensor) -> tuple[Tensor, ...]:
    return torch.split(flat, BLOCK)


def make_reducer(likes: Sequence[Tensor], *, exact: bool) -> Reducer:
    """Return the reducer of a session."""
    return ExactReducer(likes) if exact else FastReducer(likes)


def _largest(value: Tensor) -> float:
    """Return the largest magnitude; what is not a number is infinite."""
    if not value.numel():
        return 0.0
    low, high = torch.aminmax(value)
    ends = (abs(low.item()), abs(high.item()))
    return max(ends) if all(map(math.isfinite, ends)) else math.inf


def _bits(value: float) -> int:
    """Return the smallest b with value < 2**b."""
    return math.frexp(value)[1] if value else EXPONENT_MIN


def _worse(left: float, right: float) -> float:
    """Return the larger; what is not finite counts as infinite."""
    return max(left, right) if math.isfinite(right) else math.inf


def _open(told: Sequence[bytes], tensors: int) -> tuple[tuple[bytes, ...], list[float]]:
    """Return the callers' metas and the largest value of each tensor over all ranks."""
    metas: list[bytes] = []
    agreed = [0.0] * tensors
    for rank, data in enumerate(told):
        try:
            meta, largest = codec.from_plain(
                tuple[bytes, list[float]], codec.decode(data, META_BYTES_MAX)
            )
        except PeerError as error:
            raise LinkLostError(rank, f"sent a broken meta: {error}") from error
        if len(largest) != tensors:
            raise LinkLostError(rank, f"sent {len(largest)} of {tensors} magnitudes")
        metas.append(meta)
        agreed = [_worse(*pair) for pair in zip(agreed, largest, strict=True)]
    return tuple(metas), agreed
