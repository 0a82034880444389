"""Probes under way, whose turn it is, and the node's own health."""

import random
from collections import Counter
from collections.abc import Callable

from p2ptrain.core.membership.probes import (
    PROBES_MAX,
    RELAYS_MAX,
    Health,
    Probes,
    RoundTrip,
)
from p2ptrain.core.membership.types import MembershipConfig
from p2ptrain.members import Member

Make = Callable[..., Member]
CONFIG = MembershipConfig()


def fresh() -> Probes:
    return Probes(CONFIG, random.Random(1))


def test_everybody_has_a_turn_in_each_round(make_record: Make) -> None:
    probes = fresh()
    present = [make_record(index) for index in range(2, 9)]
    for _ in range(5):
        turns = [probes.next_target(present) for _ in present]
        assert Counter(one.node for one in turns if one) == Counter(
            one.node for one in present
        )


def test_who_is_being_probed_is_not_probed_twice(make_record: Make) -> None:
    probes = fresh()
    probes.start(0.0, make_record(2))
    assert probes.next_target([make_record(2)]) is None
    assert probes.next_target([make_record(2), make_record(3)]) == make_record(3)
    assert probes.next_target([]) is None


def test_probes_and_relays_are_bounded(make_record: Make) -> None:
    probes = fresh()
    present = [make_record(index) for index in range(100)]
    for _ in range(100):
        target = probes.next_target(present)
        if target is not None:
            probes.start(0.0, target)
    assert len(probes.due(1e9)) == PROBES_MAX
    taken = [
        probes.relay(0.0, "x:1", index, make_record(2).node) for index in range(100)
    ]
    assert len([one for one in taken if one is not None]) == RELAYS_MAX
    assert len(probes.relays_due(1e9)) == RELAYS_MAX
    assert probes.relays_due(1e9) == []


def test_an_answer_must_fit(make_record: Make) -> None:
    probes = fresh()
    probe = probes.start(0.0, make_record(2))
    assert not probes.answered(0.1, probe.seq + 1, make_record(2).node)
    assert not probes.answered(0.1, probe.seq, make_record(3).node)
    assert probes.answered(0.1, probe.seq, make_record(2).node)
    assert not probes.answered(0.1, probe.seq, make_record(2).node)


def test_silent_helpers_speak_against_ourselves(make_record: Make) -> None:
    probes = fresh()
    probe = probes.start(0.0, make_record(2))
    probes.refused(probe.seq)  # too early: nobody was asked
    probes.go_indirect(0.3, probe, 3)
    probes.refused(probe.seq)
    probes.failed(probe)
    assert probes.health.score == 2
    probe = probes.start(1.0, make_record(2))
    probes.go_indirect(1.3, probe, 3)
    for _ in range(9):
        probes.refused(probe.seq)
    probes.failed(probe)
    assert probes.health.score == 2  # all three have answered


def test_bad_health_gives_others_more_time(make_record: Make) -> None:
    probes = fresh()
    well = probes.start(0.0, make_record(2)).deadline
    probes.health.note(3)
    assert probes.start(0.0, make_record(3)).deadline == 4 * well


def test_health_stays_within_its_bounds() -> None:
    health = Health(8)
    health.note(100)
    assert health.score == 8
    health.note(-100)
    assert health.score == 0
    assert health.factor == 1


def test_the_time_out_follows_the_round_trip() -> None:
    trip = RoundTrip(CONFIG)
    assert trip.timeout_s == CONFIG.probe_timeout_min_s
    for _ in range(50):
        trip.note(0.3)
    assert 0.3 < trip.timeout_s <= CONFIG.probe_timeout_max_s
    for _ in range(50):
        trip.note(5.0)
    assert trip.timeout_s == CONFIG.probe_timeout_max_s
    for _ in range(200):
        trip.note(0.001)
    assert trip.timeout_s == CONFIG.probe_timeout_min_s


def test_a_relayed_answer_goes_to_who_asked(make_record: Make) -> None:
    probes = fresh()
    seq = probes.relay(0.0, "x:1", 40, make_record(2).node)
    assert seq is not None
    assert probes.relayed(seq, make_record(3).node) is None
    relay = probes.relayed(seq, make_record(2).node)
    assert relay is not None
    assert (relay.asker, relay.asked) == ("x:1", 40)
    assert probes.relayed(seq, make_record(2).node) is None


def test_a_pause_of_this_node_is_given_to_the_probed(make_record: Make) -> None:
    probes = fresh()
    probe = probes.start(0.0, make_record(2))
    before = probe.deadline
    probes.shift(3.0)
    assert probes.deadline == before + 3.0
    assert probes.due(before + 2.9) == []
