"""Optimizers in place on plain tensors, bit for bit those of ``torch.optim``.

The formulas and the order of their operations are those of PyTorch's single-tensor
``SGD`` and ``AdamW``, and of ``torch.nn.utils.clip_grad_norm_``. They are written with
``torch._foreach_*``, which on the CPU calls the same kernels tensor by tensor, without
a trip through Python for each. State lives in slots, tensors that are only ever changed
in place: whoever holds ``slots()`` may overwrite them to restore a state.
"""

# pyright: reportPrivateImportUsage=false
# torch.optim itself is written with these functions, which have no public names.

from collections.abc import Mapping, Sequence
from typing import Final, Protocol

import torch
from torch import Tensor

from p2ptrain.errors import LocalError
from p2ptrain.spec import train
from p2ptrain.spec.train import OptimizerKind

STEP: Final = "optimizer/step"
WIDE: Final = frozenset({torch.float32, torch.float64})
CHUNK_BYTES: Final = 4 * 1024 * 1024  # temporaries and cache misses stay small


class Optimizer(Protocol):
    """What turns gradients into new parameters."""

    def step(self, grads: Sequence[Tensor], lr: float) -> None:
        """Update the parameters in place; the gradients are in their order."""
        ...

    def slots(self) -> dict[str, Tensor]:
        """Return the live state by name."""
        ...

    def load(self, slots: Mapping[str, Tensor]) -> None:
        """Take over a state.

        Raises:
            LocalError: a slot is missing, too many, or of another shape.
        """
        ...


class Slots:
    """Parameters in chunks, and what an optimizer keeps for each of them.

    Args:
        params: the live parameters by name; changed in place.
        kinds: what is kept, each ``KIND/NAME``, zeros at first.
    """

    def __init__(self, params: Mapping[str, Tensor], kinds: Sequence[str]) -> None:
        self._named: dict[str, Tensor] = {}
        self.params = [param.detach() for param in params.values()]
        self.kept: list[list[Tensor]] = []
        for kind in kinds:
            kept = [torch.zeros_like(param) for param in self.params]
            self.kept.append(kept)
            self._named |= {
                f"{kind}/{name}": slot for name, slot in zip(params, kept, strict=True)
            }
        self._step = torch.zeros((), dtype=torch.int64)
        if kinds:
            self._named[STEP] = self._step
        self.chunks = chunks(self.params)

    @property
    def steps(self) -> int:
        """Steps done."""
        return int(self._step.item())

    def count(self) -> int:
        """Count one more step and return how many there are."""
        self._step += 1
        return self.steps

    def named(self) -> dict[str, Tensor]:
        """Return the live slots by name."""
        return dict(self._named)

    def load(self, slots: Mapping[str, Tensor]) -> None:
        """Overwrite the slots.

        Raises:
            LocalError: a slot is missing, too many, or of another shape; nothing is
                changed.
        """
        for name in self._named.keys() ^ slots.keys():
            raise LocalError(f"optimizer slot {name!r} is missing or too many")
        for name, slot in self._named.items():
            if slot.shape != slots[name].shape:
                raise LocalError(f"optimizer slot {name!r} has another shape")
        for name, slot in self._named.items():
            slot.copy_(slots[name])


class Sgd:
    """Stochastic gradient descent with momentum: ``v = m v + g``, ``p = p - lr v``.

    Weight decay is added to the gradient, Nesterov's look-ahead after momentum, as in
    ``torch.optim.SGD`` without dampening.

    Args:
        settings: weight decay and ``nesterov``.
        momentum: ``m``; 0 keeps no state.
        params: the live parameters by name.
    """

    def __init__(
        self, settings: train.Optimizer, momentum: float, params: Mapping[str, Tensor]
    ) -> None:
        self._decay = settings.weight_decay
        self._nesterov = settings.nesterov
        self._momentum = momentum
        self._slots = Slots(params, ["momentum"] if momentum else [])

    def step(self, grads: Sequence[Tensor], lr: float) -> None:
        """Update the parameters in place."""
        slots = self._slots
        is_first = bool(self._momentum) and slots.count() == 1
        for part in slots.chunks:
            params, mine = slots.params[part], list(grads[part])
            if self._decay:
                mine = list(torch._foreach_add(mine, params, alpha=self._decay))  # noqa: SLF001
            if self._momentum:
                mine = self._moved(mine, slots.kept[0][part], is_first=is_first)
            torch._foreach_add_(params, mine, alpha=-lr)

    def slots(self) -> dict[str, Tensor]:
        """Return the live state by name."""
        return self._slots.named()

    def load(self, slots: Mapping[str, Tensor]) -> None:
        """Take over a state.

        Raises:
            LocalError: a slot is missing, too many, or of another shape.
        """
        self._slots.load(slots)

    def _moved(
        self, grads: list[Tensor], speeds: list[Tensor], *, is_first: bool
    ) -> list[Tensor]:
        if is_first:  # zeros times m plus g would lose the sign of a negative zero
            torch._foreach_copy_(speeds, grads)
        else:
            scale(speeds, self._momentum)
            torch._foreach_add_(speeds, grads)
        if self._nesterov:
            return list(torch._foreach_add(grads, speeds, alpha=self._momentum))  # noqa: SLF001
        return speeds


class AdamW:
    """Adam with decoupled weight decay, as in ``torch.optim.AdamW`` without amsgrad.

    Args:
        settings: betas, eps and weight decay.
        params: the live parameters by name.
    """

    def __init__(self, settings: train.Optimizer, params: Mapping[str, Tensor]) -> None:
        self._settings = settings
        self._slots = Slots(params, ["exp_avg", "exp_avg_sq"])

    def step(self, grads: Sequence[Tensor], lr: float) -> None:
        """Update the parameters in place."""
        slots, to = self._slots, self._settings
        count = slots.count()
        size = lr / (1 - to.beta1**count)
        root = (1 - to.beta2**count) ** 0.5
        for part in slots.chunks:
            params, mine = slots.params[part], list(grads[part])
            means, squares = (kept[part] for kept in slots.kept)
            if to.weight_decay:
                scale(params, 1 - lr * to.weight_decay)
            torch._foreach_lerp_(means, mine, 1 - to.beta1)
            scale(squares, to.beta2)
            torch._foreach_addcmul_(squares, mine, mine, 1 - to.beta2)
            spread = torch._foreach_sqrt(squares)  # noqa: SLF001
            torch._foreach_div_(spread, root)
            torch._foreach_add_(spread, to.eps)
            torch._foreach_addcdiv_(params, means, spread, -size)

    def slots(self) -> dict[str, Tensor]:
        """Return the live state by name."""
        return self._slots.named()

    def load(self, slots: Mapping[str, Tensor]) -> None:
        """Take over a state.

        Raises:
            LocalError: a slot is missing, too many, or of another shape.
        """
        self._slots.load(slots)


def make_optimizer(
    optimizer: train.Optimizer, momentum: float, params: Mapping[str, Tensor]
) -> Optimizer:
    """Return the optimizer that a spec asks for.

    Args:
        optimizer: its settings.
        momentum: SGD's momentum; AdamW has none.
        params: the live parameters by name, in the order of the gradients.
    """
    match optimizer.kind:
        case OptimizerKind.SGD:
            return Sgd(optimizer, momentum, params)
        case OptimizerKind.ADAMW:
            return AdamW(optimizer, params)


def clip_by_norm(grads: Sequence[Tensor], max_norm: float) -> float:
    """Scale gradients in place so that their global 2-norm is at most ``max_norm``.

    Bit for bit ``torch.nn.utils.clip_grad_norm_``: the norm of the tensors' norms, and
    a factor that is applied even where it is 1.

    Returns:
        The norm before clipping.
    """
    total = torch.nn.utils.get_total_norm(grads)
    factor = torch.clamp(max_norm / (total + 1e-6), max=1.0)
    torch._foreach_mul_(list(grads), factor)
    return float(total)


def scale(tensors: list[Tensor], factor: float) -> None:
    """Multiply tensors in place by a number, as ``Tensor.mul_`` does.

    For narrow floats ``_foreach_mul_`` rounds the factor to their dtype first, and
    ``mul_`` does not.
    """
    if all(tensor.dtype in WIDE for tensor in tensors):
        torch._foreach_mul_(tensors, factor)
        return
    for tensor in tensors:
        tensor.mul_(factor)


def chunks(params: Sequence[Tensor]) -> list[slice]:
    """Return runs of tensors of about ``CHUNK_BYTES`` each, at least one tensor."""
    runs: list[slice] = []
    start, size = 0, 0
    for index, param in enumerate(params):
        if index > start and size + param.nbytes > CHUNK_BYTES:
            runs.append(slice(start, index))
            start, size = index, 0
        size += param.nbytes
    runs.append(slice(start, len(params)))
    return runs if params else []
