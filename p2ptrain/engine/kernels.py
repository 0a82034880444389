"""Operators that have a faster way on the CPU to the same bits."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final

import torch
from torch import Tensor

_softmax: Final = torch.ops.aten._softmax.default._op  # noqa: SLF001
_safe_softmax: Final = torch.ops.aten._safe_softmax.default._op  # noqa: SLF001


def safe_softmax(x: Tensor, dim: int, dtype: torch.dtype | None = None) -> Tensor:
    """Return a softmax that is 0, not NaN, where a whole row is minus infinity.

    ATen computes the softmax, looks for such rows in the input, and writes the zeros.
    A row of that kind makes every element of the softmax NaN, also the first: where no
    first element is NaN, there is nothing to look for.
    """
    if dtype is None and x.numel():
        result: Tensor = _softmax(x, dim, False)
        if not bool(result.select(dim, 0).isnan().any()):
            return result
    safe: Tensor = _safe_softmax(x, dim, dtype)
    return safe


FASTER: Final[Mapping[str, Callable[..., Any]]] = MappingProxyType(
    {"_safe_softmax": safe_softmax}
)
