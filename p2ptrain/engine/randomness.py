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


class Lent:
    """Random numbers for the runs of one program, one run after the other.

    Args:
        device: where they are drawn.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._own: torch.Generator | None = None

    def begin(self, seed: int) -> None:
        """Begin a run whose stream is that of this seed."""
        self._own = torch.Generator(self._device)
        self._own.manual_seed(seed)

    def bound(self, name: str) -> Callable[..., Any]:
        """Return a random operator that draws from the run's stream."""
        target = seedable(name)
        if target is None:
            return functools.partial(self._swapped, overload(name))

        def call(*args: Any, **kwargs: Any) -> Any:
            return target(*args, **kwargs, generator=self._own)

        return call

    def _swapped(self, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        own = self._own
        assert own is not None
        with _lock:
            default = default_generator(self._device)
            kept = default.get_state()
            default.set_state(own.get_state())
            try:
                return fn(*args, **kwargs)
            finally:
                own.set_state(default.get_state())
                default.set_state(kept)


def seedable(name: str) -> torch._ops.OpOverload | None:
    """Return the form of an operator that takes a generator, if there is one."""
    base, _, variant = name.partition(".")
    others = (f"{base}.{variant}_generator" if variant else f"{base}.generator",)
    for candidate in (name, *others):
        try:
            found = overload(candidate)
        except KeyError:
            continue
        if any(a.name == "generator" for a in found._schema.arguments):  # noqa: SLF001
            return found
    return None


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
