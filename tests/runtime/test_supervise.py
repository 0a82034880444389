import itertools

import pytest
import trio

from p2ptrain.errors import LocalError
from p2ptrain.runtime.supervise import EDGE, ONCE, Policy, supervise


async def test_an_edge_actor_is_started_again(
    autojump_clock: trio.testing.MockClock,
) -> None:
    lives: list[float] = []

    async def run() -> None:
        lives.append(trio.current_time())
        if len(lives) < 4:
            raise ValueError("again")

    await supervise("edge", run, EDGE)
    pauses = [b - a for a, b in itertools.pairwise(lives)]
    assert pauses == pytest.approx([0.2, 0.4, 0.8])


async def test_an_owner_of_durable_state_ends_the_process() -> None:
    async def run() -> None:
        raise OSError("disk")

    with pytest.raises(LocalError, match="record failed 1 times: disk"):
        await supervise("record", run, ONCE)


async def test_old_failures_are_forgotten(
    autojump_clock: trio.testing.MockClock,
) -> None:
    lives = 0

    async def run() -> None:
        nonlocal lives
        lives += 1
        if lives < 10:
            await trio.sleep(70)
            raise ValueError("now and then")

    await supervise("steady", run, Policy(restarts=1, window_s=60))
    assert lives == 10


async def test_cancellation_passes_through() -> None:
    with trio.move_on_after(0) as scope:
        await supervise("cancelled", trio.sleep_forever, EDGE)
    assert scope.cancelled_caught
