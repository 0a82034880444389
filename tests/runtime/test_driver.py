import math

import trio

from p2ptrain.errors import PeerError
from p2ptrain.runtime.driver import drive
from p2ptrain.runtime.inbox import Inbox


class Metronome:
    """Ticks every second; echoes every event twice; refuses "bad"."""

    def __init__(self) -> None:
        self.deadline = 1.0

    def step(self, now: float, event: str) -> list[tuple[float, str]]:
        if event == "bad":
            raise PeerError("bad")
        if event == "tick":
            self.deadline = now + 1.0 if now < 3 else math.inf
        return [(now, event), (now, event + "'")]


async def test_the_core_ticks_by_its_deadline_and_takes_events_in_order(
    mock_clock: trio.testing.MockClock,
) -> None:
    mock_clock.autojump_threshold = 0
    start = trio.current_time()
    core = Metronome()
    core.deadline += start
    inbox: Inbox[str] = Inbox("metronome", bound=8)
    done: list[tuple[float, str]] = []
    refused: list[PeerError] = []

    async def perform(effect: tuple[float, str]) -> None:
        await trio.lowlevel.checkpoint()
        done.append((effect[0] - start, effect[1]))

    with trio.move_on_after(10):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(
                drive, core, inbox.receive, perform, "tick", refused.append
            )
            await trio.sleep(1.5)
            for item in ("a", "bad", "b"):
                await inbox.ref.tell(item)
    events = [(round(at, 3), event) for at, event in done]
    assert events == [
        *((1.0, "tick"), (1.0, "tick'")),
        *((1.5, "a"), (1.5, "a'"), (1.5, "b"), (1.5, "b'")),
        *((2.0, "tick"), (2.0, "tick'")),
        *((3.0, "tick"), (3.0, "tick'")),
    ]
    assert [str(error) for error in refused] == ["bad"]
