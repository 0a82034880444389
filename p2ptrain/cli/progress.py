"""Live progress of a session: a display on a terminal, lines elsewhere."""

import sys
from collections.abc import AsyncIterator

import trio

from p2ptrain.cli.output import say, size
from p2ptrain.messages.asks import LiveAnswer, WorkerLine
from p2ptrain.messages.session import WorkerPhase

LINE_EVERY_S = 2.0


async def follow(updates: AsyncIterator[LiveAnswer]) -> LiveAnswer | None:
    """Show every update until there are no more; return the last one."""
    if sys.stderr.isatty():
        return await _on_terminal(updates)
    return await _in_lines(updates)


async def _in_lines(updates: AsyncIterator[LiveAnswer]) -> LiveAnswer | None:
    last: LiveAnswer | None = None
    said_at, said = float("-inf"), ""
    async for live in updates:
        changed = last is None or (live.status, live.view) != (last.status, last.view)
        now, line = trio.current_time(), summary(live)
        if line != said and (changed or now - said_at >= LINE_EVERY_S):
            say(line)
            said_at, said = now, line
        last = live
    if last is not None and summary(last) != said:
        say(summary(last))
    return last


async def _on_terminal(updates: AsyncIterator[LiveAnswer]) -> LiveAnswer | None:
    from rich.console import Console  # noqa: PLC0415  # slow to import
    from rich.live import Live  # noqa: PLC0415

    last: LiveAnswer | None = None
    with Live(console=Console(stderr=True), refresh_per_second=4) as display:
        async for live in updates:
            display.update("\n".join([summary(live), *map(worker, live.workers)]))
            last = live
    return last


def summary(live: LiveAnswer) -> str:
    """Return one line on a session."""
    parts = [str(live.status)]
    if live.view:
        parts.append(f"view {live.view}")
    if live.steps:
        parts.append(f"step {max(live.step, 0)}/{live.steps}")
        parts.append(f"epoch {live.epoch + 1}/{live.epochs}")
    if live.losses:
        parts.append(f"loss {live.losses[-1]:.4f}")
    if live.samples_per_s:
        parts.append(f"{live.samples_per_s:.0f} samples/s")
    if live.reason:
        parts.append(live.reason)
    return " · ".join(parts)


def worker(line: WorkerLine) -> str:
    """Return one line on a worker."""
    parts = [f"  {line.name:<16} {line.phase}"]
    if line.phase is WorkerPhase.FETCHING and line.total_bytes:
        parts.append(f"{size(line.fetched_bytes)} of {size(line.total_bytes)}")
    elif line.phase is WorkerPhase.DECLINED:
        parts.append(line.reason)
    elif line.step >= 0:
        parts.append(f"step {line.step}, {line.share} parts on {line.device}")
    return "  ".join(parts)
