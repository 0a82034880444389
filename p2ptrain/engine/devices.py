"""Which devices are here, and which of them a session runs on.

``auto`` times a few steps of the session's own graph on every device and takes the
fastest; ``all`` takes every device that can run it, as lanes weighted by speed. A name
is obeyed or refused, never replaced. Several names, joined by commas, are lanes of
equal weight (the same one twice is two lanes on it).
"""

import os
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import torch

from p2ptrain.errors import UserError

TIMED_STEPS: Final = 5
TIMED_S: Final = 2.0  # no further step is timed after so many seconds

Timer = Callable[[str], float]  # seconds that one step takes on a device


class DeviceError(UserError):
    """A device is not here, or cannot run the graph."""


@dataclass(frozen=True, slots=True)
class Choice:
    """The devices of a session's lanes.

    Args:
        lanes: device names; the first holds the state.
        weights: how fast each lane is, in any unit.
        why: a sentence for people.
    """

    lanes: tuple[str, ...]
    weights: tuple[float, ...]
    why: str

    @property
    def device(self) -> str:
        """The lanes as one name."""
        return ",".join(self.lanes)


def inventory() -> tuple[str, ...]:
    """Return the names of this machine's devices, accelerators first."""
    found = [f"cuda:{i}" for i in range(torch.cuda.device_count())]
    if torch.backends.mps.is_available():
        found.append("mps")
    if torch.xpu.is_available():
        found += [f"xpu:{i}" for i in range(torch.xpu.device_count())]
    return (*found, "cpu")


def describe(name: str) -> str:
    """Return a device's name with what it is."""
    if name.startswith("cuda"):
        return f"{name} ({torch.cuda.get_device_name(name)})"
    if name.startswith("xpu"):
        return f"{name} ({torch.xpu.get_device_name(name)})"
    if name == "cpu":
        return f"cpu ({cores()} cores)"
    return name


def cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0))


def synchronize(device: torch.device) -> None:
    """Wait until a device has done all that was asked of it."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()
    elif device.type == "xpu":
        torch.xpu.synchronize(device)


def step_seconds(step: Callable[[], object], device: torch.device) -> float:
    """Return the median seconds of a few steps on a device, after one to warm up.

    A step that alone takes longer than all of them may is not repeated.
    """
    times: list[float] = []
    begin = time.perf_counter()
    while len(times) <= TIMED_STEPS and time.perf_counter() - begin < TIMED_S:
        start = time.perf_counter()
        step()
        synchronize(device)
        times.append(time.perf_counter() - start)
    return statistics.median(times[1:] or times)


def choose(wanted: str, here: Sequence[str], timer: Timer) -> Choice:
    """Return the lanes that a spec's ``device`` asks for.

    Args:
        wanted: ``auto``, ``all``, a device name, or several joined by commas.
        here: the inventory.
        timer: times one step of the graph on a device; raises RuntimeError where
            the device cannot run it.

    Raises:
        DeviceError: a name is not in the inventory, or no device can run the graph.
    """
    if wanted == "auto":
        return _fastest(here, timer)
    if wanted == "all":
        return _every(here, timer)
    return _named(wanted, here)


def _named(wanted: str, here: Sequence[str]) -> Choice:
    lanes = tuple(_resolve(name.strip(), here) for name in wanted.split(","))
    return Choice(lanes, (1.0,) * len(lanes), f"the job asks for {wanted}")


def _resolve(name: str, here: Sequence[str]) -> str:
    full = f"{name}:0" if f"{name}:0" in here else name
    if full not in here:
        raise DeviceError(
            f"there is no device {name!r} here but {', '.join(here)}: "
            "ask for one of these, auto or all"
        )
    return full


def _fastest(here: Sequence[str], timer: Timer) -> Choice:
    if len(here) == 1:
        return Choice((here[0],), (1.0,), f"{here[0]} is the only device here")
    times, refusals = _timed(here, timer)
    best = min(times, key=times.__getitem__)
    others = "; ".join([f"{n} takes {s:.4g} s" for n, s in times.items() if n != best])
    why = f"{best} is the fastest: a step takes {times[best]:.4g} s"
    return Choice((best,), (1.0,), "; ".join(filter(None, [why, others, refusals])))


def _every(here: Sequence[str], timer: Timer) -> Choice:
    if len(here) == 1:
        return Choice((here[0],), (1.0,), f"{here[0]} is the only device here")
    times, refusals = _timed(here, timer)
    lanes = tuple(sorted(times, key=times.__getitem__))
    why = "every device, by seconds a step: " + ", ".join(
        f"{name} {times[name]:.4g}" for name in lanes
    )
    weights = tuple(1.0 / max(times[name], 1e-9) for name in lanes)
    return Choice(lanes, weights, "; ".join(filter(None, [why, refusals])))


def _timed(here: Sequence[str], timer: Timer) -> tuple[dict[str, float], str]:
    times: dict[str, float] = {}
    refusals: list[str] = []
    for name in here:
        try:
            times[name] = timer(name)
        except RuntimeError as error:  # torch's way to say "not on this device"
            refusals.append(f"{name} cannot run it ({str(error).splitlines()[0]})")
    if not times:
        raise DeviceError(f"no device here can run the graph: {'; '.join(refusals)}")
    return times, "; ".join(refusals)


def spread(count: int, weights: Sequence[float]) -> list[int]:
    """Return the lane of each of ``count`` parts: in proportion to the weights, and
    interleaved, so that results come in about the order of the parts.
    """
    taken = [0] * len(weights)
    lanes: list[int] = []
    for _ in range(count):
        lane = min(
            range(len(weights)), key=lambda i: (taken[i] + 1) / max(weights[i], 1e-12)
        )
        taken[lane] += 1
        lanes.append(lane)
    return lanes
