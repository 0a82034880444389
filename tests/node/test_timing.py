"""One setting, and what follows from it."""

import pytest

from p2ptrain.core.consensus import ConsensusConfig
from p2ptrain.core.membership import MembershipConfig
from p2ptrain.core.session import SessionConfig
from p2ptrain.node.timing import USUAL_S, derive


def test_the_usual_setting_gives_the_cores_own_times() -> None:
    timing = derive(USUAL_S)
    assert timing.membership == MembershipConfig()
    assert timing.consensus == ConsensusConfig()
    assert timing.session == SessionConfig()


@pytest.mark.parametrize("stall_s", [0.5, 1.0, 10.0, 3600.0])
def test_deadlines_keep_their_order_whatever_is_set(stall_s: float) -> None:
    timing = derive(stall_s)
    c, s = timing.consensus, timing.session
    assert c.heartbeat_s * 3 < c.election_min_s < c.election_max_s
    assert s.gone_s < s.settle_s < s.gather_s
    assert s.silent_s >= 2.5
    figures = timing.figures()
    assert figures["ring_s"] == stall_s
    assert figures["suspect_s"] < figures["dead_s"]


def test_a_longer_patience_makes_every_deadline_longer() -> None:
    short, long = derive(3.0).figures(), derive(9.0).figures()
    assert all(long[name] > short[name] for name in short)
