"""Which operators draw random numbers, and the stream that they draw from.

A run draws from one stream, equal to that of torch's default generator seeded once,
although the default generator belongs to the whole process. Operators that take a
generator get one of the run's own; for the others the default one is lent under a lock.
"""

import functools
import threading
from collections.abc import Callable
from typing import Any

import torch

_lock = threading.Lock()


@functools.cache
def overload(name: str) -> torch._ops.OpOverload:
    """Return the ATen operator of a name in the operator table.

    Raises:
        KeyError: this torch has none of that name.
    """
    base, _, variant = name.partition(".")
    packet = getattr(torch.ops.aten, base, None)
    found = getattr(packet, variant or "default", None)
    if not isinstance(found, torch._ops.OpOverload):  # noqa: SLF001  # no public name
        raise KeyError(name)
    return found


def is_random(name: str) -> bool:
    """Tell whether an operator draws random numbers."""
    return torch.Tag.nondeterministic_seeded in overload(name).tags


class Stream:
    """The random numbers of one run.

    Args:
        device: where they are drawn.
        seed: what the default generator would be seeded with.
    """

    def __init__(self, device: torch.device, seed: int) -> None:
        self._own = torch.Generator(device)
        self._own.manual_seed(seed)
        self._default = default_generator(device)

    def call(self, fn: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        """Call an operator that takes no generator, on the run's own stream."""
        with _lock:
            kept = self._default.get_state()
            self._default.set_state(self._own.get_state())
            try:
                return fn(*args)
            finally:
                self._own.set_state(self._default.get_state())
                self._default.set_state(kept)


def default_generator(device: torch.device) -> torch.Generator:
    """Return the generator that a device's operators draw from unless told."""
    if device.type == "cpu":
        return torch.default_generator
    if device.type == "mps":
        return torch.mps._get_default_mps_generator()  # noqa: SLF001  # no public name
    module = torch.get_device_module(device)
    index = torch.empty(0, device=device).get_device()
    generator: torch.Generator = module.default_generators[index]
    return generator
