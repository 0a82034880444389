"""Every core together: jobs are trained to the right bits, whatever happens."""

import os

import pytest

from tests.sim.storm import play

SEEDS = range(int(os.environ.get("P2PTRAIN_SIM_SEEDS", "500")))


@pytest.mark.parametrize("seed", SEEDS)
def test_chaos_changes_no_bit(seed: int) -> None:
    broken = play(seed)
    if broken:
        pytest.fail(broken, pytrace=False)
