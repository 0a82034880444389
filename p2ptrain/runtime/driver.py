"""The driver: runs a pure core with events, a clock and a performer of effects."""

from collections.abc import Awaitable, Callable
from typing import TypeVar

import trio

from p2ptrain.errors import PeerError
from p2ptrain.ports import Core

EventT = TypeVar("EventT")
EffectT = TypeVar("EffectT")


async def drive(
    core: Core[EventT, EffectT],
    receive: Callable[[], Awaitable[EventT]],
    perform: Callable[[EffectT], Awaitable[None]],
    tick: EventT,
    refused: Callable[[PeerError], None],
) -> None:
    """Feed the core until cancelled; each event's effects are done before the next one.

    Args:
        core: the machine.
        receive: waits for the next event; must lose none when cancelled.
        perform: does one effect; effects are done in order.
        tick: the event that the core gets when its deadline passes.
        refused: told of each event that the core refused with a PeerError.
    """
    while True:
        now = trio.current_time()
        event: EventT | None = None
        if core.deadline > now:
            with trio.move_on_at(core.deadline):
                event = await receive()
        else:
            await trio.lowlevel.checkpoint()
        if event is None:
            event = tick
        try:
            effects = core.step(trio.current_time(), event)
        except PeerError as error:
            refused(error)
            continue
        for effect in effects:
            await perform(effect)
