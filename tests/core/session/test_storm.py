"""Sessions under loss, duplication, reordering, kills, restarts and lost masters.

Whatever happens, when it is over the session ends with the digest of an undisturbed
run: the ring asserts that each view begins with one state at all ranks, and a state's
digest says how often each step was applied.
"""

import os

import pytest

from p2ptrain.messages.record import CommitView, SessionStatus
from tests.core.session.world import Lab, Plan, digest_at
from tests.sim.world import CALM, STORM

SEEDS = int(os.environ.get("P2PTRAIN_SESSION_SEEDS", "12"))


def storm(lab: Lab) -> None:
    """Do something bad."""
    rng = lab.world.rng
    up = [node.index for node in lab.nodes if node.up]
    down = [node.index for node in lab.nodes if not node.up]
    match rng.randrange(6):
        case 0 if len(up) > 2:
            lab.kill(rng.choice(up))
        case 1 if up:
            index = rng.choice(up)
            if lab.nodes[index].trainer is not None:
                lab.kill_trainer(index)
        case 2 if down:
            lab.restart(rng.choice(down))
        case 3:
            lab.ahead = {rank for rank in range(5) if rng.random() < 0.4}
        case 4 if len(up) > 2 and lab.core is not None:
            lab.kill(lab.master)
        case _:
            trainer = lab.nodes[rng.choice(up)].trainer if up else None
            if trainer is not None and rng.random() < 0.3:
                trainer.frozen = True


def check(lab: Lab) -> None:
    """Check what the record must hold at any time."""
    numbers = [view.view for view in lab.views]
    assert numbers == list(range(1, len(numbers) + 1))
    terms = [c.term for _, c in lab.committed if isinstance(c, CommitView)]
    assert terms == sorted(terms)
    for step, views in lab.applied.items():
        assert views == sorted(views), f"step {step} was applied by {views}"


@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_session_outlives_a_storm(seed: int) -> None:
    lab = Lab(Plan(nodes=5, parts=6, steps=400, epochs=8), seed)
    lab.world.weather = STORM
    for _ in range(40):
        lab.run(lab.world.rng.uniform(0.1, 1.0))
        if lab.row.status is SessionStatus.DONE:
            break
        storm(lab)
        check(lab)
    lab.world.weather = CALM
    for node in lab.nodes:
        if not node.up:
            lab.restart(node.index)
    row = lab.finish(300.0)
    check(lab)
    assert row.status is SessionStatus.DONE, row.reason
    assert row.result is not None
    assert row.result.state_digest == digest_at(400)
    assert [e.epoch for e in row.epochs] == list(range(8))
    lab.run(5.0)
    assert not [node.index for node in lab.nodes if node.core is not None]
