"""What trainers were at, and when: their traces put together."""

import json
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path


@dataclass
class Timeline:
    """Steps of one session over all nodes; times are wall-clock seconds.

    ``committed`` has the first time at which any rank had applied a step, ``applied``
    each node's steps in the order of time, ``aborted`` the attempts at a step that were
    begun but not applied.
    """

    committed: dict[int, float] = field(default_factory=dict)
    applied: dict[str, list[tuple[float, int]]] = field(default_factory=dict)
    aborted: int = 0

    def stall(self, at: float) -> float:
        """Return the seconds from a moment to the next step that was new then."""
        done = max((s for s, t in self.committed.items() if t <= at), default=-1)
        later = [t for s, t in self.committed.items() if s > done and t > at]
        return min(later, default=float("inf")) - at

    def first_of(self, node: str, after: float) -> float:
        """Return when a node first applied a step after a moment."""
        times = [t for t, _ in self.applied.get(node, ()) if t > after]
        return min(times, default=float("inf"))

    def gap_before(self, moment: float) -> float:
        """Return the longest pause between two commits in the second before a moment,
        the one that ends there included.
        """
        times = sorted(t for t in self.committed.values() if t <= moment)
        near = [t for t in times if t >= moment - 1.0]
        pairs = pairwise(times)
        return max((b - a for a, b in pairs if b in set(near)), default=0.0)


def read(folders: Iterable[Path], session: str) -> Timeline:
    """Read the traces of nodes by their folders, whose names are the nodes'."""
    line = Timeline()
    attempts: dict[int, set[tuple[str, int]]] = defaultdict(set)
    for folder in folders:
        applied: list[tuple[float, int]] = []
        for file in sorted((folder / "traces").glob(f"{session}-*.json")):
            applied += _read_one(file, attempts)
        line.applied[folder.name] = sorted(applied)
        for moment, step in applied:
            line.committed[step] = min(line.committed.get(step, moment), moment)
    tries = [max((n for _, n in of_step), default=0) for of_step in attempts.values()]
    line.aborted = sum(tries)
    return line


def _read_one(
    file: Path, attempts: dict[int, set[tuple[str, int]]]
) -> list[tuple[float, int]]:
    applied: list[tuple[float, int]] = []
    open_step, failed = -1, defaultdict[int, int](int)  # open: begun, not yet reduced
    for text in file.read_text().splitlines():
        if '"X"' not in text or not text.endswith(","):
            continue  # the head, or cut off by a kill
        event = json.loads(text[:-1])
        step, name = event["args"]["step"], event["name"]
        if name == "compute":
            if open_step >= 0:
                failed[open_step] += 1
            open_step = step
            continue
        open_step = -1
        if name == "apply":
            applied.append(((event["ts"] + event["dur"]) / 1e6, step))
    for step, count in failed.items():
        attempts[step].add((file.name, count))
    return applied
