"""Membership as a whole: clusters of cores that live, die, stall and are cut off."""

import math
import random
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from p2ptrain.core.membership import (
    Changed,
    Failed,
    Forget,
    Found,
    LeaveNow,
    Load,
    Membership,
    MembershipConfig,
    Received,
    SendTo,
    Tick,
)
from p2ptrain.errors import PeerError
from p2ptrain.members import Capabilities, MemberStatus
from p2ptrain.messages.membership import (
    Gossip,
    Hello,
    MemberSync,
    Probe,
    ProbeAck,
    ProbeFor,
    ProbeNack,
    Rumor,
)

ALIVE, SUSPECT, DEAD, LEFT = MemberStatus


def born(record: Any, **times: float) -> Membership:
    config = MembershipConfig(**times)  # type: ignore[arg-type]
    return Membership(record(1, 5), config, random.Random(1), 0.0)


def introduce(core: Membership, record: Any, *indexes: int) -> None:
    for index in indexes:
        core.step(
            0.0,
            Received(
                record(index).node, "", MemberSync(record(index), "", (), ask=False)
            ),
        )


@pytest.mark.parametrize("size", [2, 3, 8])
def test_seeds_make_a_cluster_within_a_second(cluster: Any, size: int) -> None:
    world = cluster(size)
    assert world.until(world.agree, 1.0) <= 1.0


@pytest.mark.parametrize("size", [3, 5, 8])
@pytest.mark.parametrize("seed", range(5))
def test_a_killed_node_is_suspected_everywhere_within_two_seconds(
    cluster: Any, size: int, seed: int
) -> None:
    world = cluster(size, seed)
    world.run(3.0 + seed / 10)
    world.kill(size)
    assert world.until(lambda: world.all_see(size, SUSPECT, DEAD), 2.0) <= 2.0
    world.until(lambda: world.all_see(size, DEAD), 3.0)
    assert not [one for one in world.verdicts(SUSPECT, DEAD) if one[2] != f"0{size}"]


def test_of_two_nodes_the_survivor_sees_the_death(cluster: Any) -> None:
    world = cluster(2)
    world.run(3.0)
    world.kill(2)
    world.until(lambda: world.all_see(2, DEAD), 3.0)


@pytest.mark.parametrize("seed", range(3))
def test_stalls_of_200_ms_make_no_suspect(cluster: Any, seed: int) -> None:
    world = cluster(5, seed)
    world.run(2.0)
    for _ in range(60):
        world.freeze(world.rng.randint(1, 5), 0.2)
        world.run(0.25)
    assert world.verdicts(SUSPECT, DEAD) == []


def test_five_percent_loss_kills_nobody(cluster: Any) -> None:
    world = cluster(8)
    world.run(2.0)
    world.loss = 0.05
    world.run(120.0)
    assert world.verdicts(DEAD) == []


def test_a_node_frozen_for_ten_seconds_refutes(cluster: Any) -> None:
    world = cluster(4)
    world.run(3.0)
    world.freeze(2, 10.0)
    world.until(lambda: all(world.status(one, 2) is DEAD for one in (1, 3, 4)), 4.0)
    world.run(10.0 - 3.0)
    assert world.until(world.agree, 4.0) <= 4.0
    # It blamed nobody for its own pause.
    assert [one for one in world.verdicts(SUSPECT, DEAD) if one[1] == 2] == []


def test_a_restarted_node_is_back_at_once(cluster: Any) -> None:
    world = cluster(3)
    world.run(3.0)
    world.kill(3)
    world.run(0.3)
    world.start(3, incarnation=2)
    assert world.until(world.agree, 1.0) <= 1.0
    world.run(2.0)
    world.kill(3)
    world.until(lambda: world.all_see(3, DEAD), 4.0)
    world.start(3, incarnation=9)
    assert world.until(world.agree, 1.0) <= 1.0


def test_a_restart_with_an_older_clock_is_corrected(cluster: Any) -> None:
    world = cluster(3)
    world.run(3.0)
    world.kill(3)
    world.start(3, incarnation=0)
    world.run(3.0)
    assert world.agree()
    assert world.cores[3].me.incarnation > 1


def test_a_graceful_leave_is_seen_within_a_second(cluster: Any) -> None:
    world = cluster(5)
    world.run(2.0)
    world.leave(5)
    assert world.until(lambda: world.all_see(5, LEFT), 0.5) < 0.5
    world.run(2.0)
    world.kill(5)
    world.run(5.0)
    assert world.all_see(5, LEFT)
    assert world.verdicts(SUSPECT, DEAD) == []


def test_a_leaver_keeps_still_in_the_end(cluster: Any) -> None:
    world = cluster(3)
    world.run(2.0)
    world.leave(3)
    world.run(20.0)
    assert world.cores[3].deadline >= world.now + 100


def test_a_cut_cluster_grows_together_again(cluster: Any) -> None:
    world = cluster(6)
    world.run(2.0)
    world.cut = lambda a, b: (a <= 3) != (b <= 3)
    world.run(20.0)
    assert all(world.status(1, one) is DEAD for one in (4, 5, 6))
    assert all(world.status(6, one) is DEAD for one in (1, 2, 3))
    assert all(world.status(4, one) is ALIVE for one in (5, 6))
    world.cut = lambda a, b: False
    assert world.until(world.agree, 10.0) <= 10.0


def test_a_one_way_cut_between_two_nodes_kills_nobody(cluster: Any) -> None:
    world = cluster(5)
    world.run(2.0)
    world.cut = lambda a, b: (a, b) == (1, 2)
    world.run(30.0)
    assert world.verdicts(DEAD) == []


def test_islands_with_one_seed_merge(cluster: Any) -> None:
    world = cluster(4)
    world.cut = lambda a, b: 1 in (a, b)
    world.run(10.0)  # node 1 is down while the others start: nobody knows anybody
    assert not world.agree()
    world.cut = lambda a, b: False
    assert world.until(world.agree, 8.0) <= 8.0


@pytest.mark.slow
def test_a_hundred_members_stay_within_bounds(cluster: Any) -> None:
    world = cluster(100)
    world.until(world.agree, 10.0)
    start, before = world.now, world.sent
    world.run(5.0)
    rate = (world.sent - before) / (world.now - start) / 100
    assert rate < 40  # messages a second and node
    assert world.largest < 8192
    world.kill(100)
    world.until(lambda: world.all_see(100, DEAD), 12.0)
    assert not [one for one in world.verdicts(DEAD) if one[2] != "64"]


def test_the_same_seed_gives_the_same_history(cluster: Any) -> None:
    def history() -> list[Any]:
        world = cluster(5, 7)
        world.loss = 0.2
        world.run(20.0)
        return list(world.changes)

    assert history() == history()


def test_hello_is_answered_by_the_whole_table(make_record: Any) -> None:
    core = born(make_record)
    introduce(core, make_record, 3)
    effects = core.step(
        0.0, Received(make_record(2).node, "", Hello(make_record(2), "x:1"))
    )
    assert Changed(make_record(2)) in effects
    (answer,) = [
        one.message
        for one in effects
        if isinstance(one, SendTo) and isinstance(one.message, MemberSync)
    ]
    assert answer.at == "x:1"
    assert answer.ask
    assert {member.node for member in answer.members} == {
        make_record(2).node,
        make_record(3).node,
    }


def test_a_probe_for_the_former_owner_of_the_address_gets_no_ack(
    make_record: Any,
) -> None:
    core = born(make_record)
    probe = Probe(make_record(2), 7, make_record(9).node, ())
    effects = core.step(0.0, Received(make_record(2).node, "", probe))
    sent = [one.message for one in effects if isinstance(one, SendTo)]
    assert not any(isinstance(one, ProbeAck) for one in sent)
    assert any(isinstance(one, Hello) for one in sent)


def test_a_helper_passes_the_answer_on(make_record: Any) -> None:
    core = born(make_record)
    introduce(core, make_record, 2, 3)
    ask = ProbeFor(make_record(2), 40, make_record(3).node, ())
    effects = core.step(0.0, Received(make_record(2).node, "", ask))
    (probe,) = [
        one.message
        for one in effects
        if isinstance(one, SendTo) and isinstance(one.message, Probe)
    ]
    assert probe.target == make_record(3).node
    ack = ProbeAck(probe.seq, probe.target, ())
    effects = core.step(0.01, Received(make_record(3).node, "", ack))
    assert SendTo(make_record(2).control, ProbeAck(40, probe.target, ())) in effects


def test_a_helper_says_so_when_it_hears_nothing(make_record: Any) -> None:
    core = born(make_record, probe_interval_s=100.0)
    introduce(core, make_record, 2, 3)
    ask = ProbeFor(make_record(2), 40, make_record(3).node, ())
    core.step(0.0, Received(make_record(2).node, "", ask))
    nack = SendTo(make_record(2).control, ProbeNack(40))
    now, effects = 0.0, []
    while nack not in effects:
        now = core.deadline
        assert now < 0.4
        effects = core.step(now, Tick())


def test_a_helper_refuses_for_an_unknown_target_at_once(make_record: Any) -> None:
    core = born(make_record)
    ask = ProbeFor(make_record(2), 40, make_record(3).node, ())
    effects = core.step(0.0, Received(make_record(2).node, "", ask))
    assert SendTo(make_record(2).control, ProbeNack(40)) in effects


def test_an_undeliverable_probe_goes_indirect_at_once(make_record: Any) -> None:
    core = born(make_record)
    introduce(core, make_record, 2, 3)
    effects: list[Any] = []
    while not (sent := _sent(effects, Probe)):
        effects = core.step(core.deadline, Tick())
        now = core.deadline
    target = sent[0].target
    address = make_record(int(target, 16)).control
    effects = core.step(min(now, 0.3), Failed(address))
    assert [one.target for one in _sent(effects, ProbeFor)] == [target]


def _sent(effects: list[Any], kind: type[Any]) -> list[Any]:
    return [
        one.message
        for one in effects
        if isinstance(one, SendTo) and isinstance(one.message, kind)
    ]


@pytest.mark.parametrize("status", [SUSPECT, DEAD, LEFT])
def test_a_rumor_of_its_own_end_is_refuted(make_record: Any, status: Any) -> None:
    core = born(make_record)
    introduce(core, make_record, 2)
    rumor = Rumor(_with(make_record(1, 8), status), make_record(3).node)
    core.step(0.0, Received(make_record(2).node, "", Gossip((rumor,))))
    assert core.me.incarnation == 9
    assert core.me.status is ALIVE
    assert core.health == 1
    gossip = _sent(core.step(0.2, Tick()), Gossip)
    assert any(core.me in [r.member for r in one.rumors] for one in gossip)


def test_an_older_rumor_of_its_own_end_changes_nothing(make_record: Any) -> None:
    core = born(make_record)
    rumor = Rumor(_with(make_record(1, 4), DEAD), make_record(3).node)
    core.step(0.0, Received(make_record(2).node, "", Gossip((rumor,))))
    assert core.me.incarnation == 5


def _with(member: Any, status: MemberStatus) -> Any:
    return replace(member, status=status)


def test_who_is_believed_dead_hears_it_in_the_answer(make_record: Any) -> None:
    core = born(make_record)
    introduce(core, make_record, 2)
    dead = Rumor(_with(make_record(2), DEAD), make_record(3).node)
    core.step(0.0, Received(make_record(3).node, "", Gossip((dead,))))
    probe = Probe(make_record(2), 7, make_record(1).node, ())
    (ack,) = _sent(core.step(0.0, Received(make_record(2).node, "", probe)), ProbeAck)
    assert ack.rumors[0].member == dead.member


def test_new_capabilities_are_told(make_record: Any) -> None:
    core = born(make_record)
    new = Capabilities("0.1.0", 4, 1, trains=False)
    effects = core.step(0.0, Load(new))
    assert core.me.capabilities == new
    assert core.me.incarnation == 6
    assert Changed(core.me) in effects
    assert core.step(0.0, Load(new)) == []


def test_a_seed_is_tried_for_ever_and_ever_more_slowly(make_record: Any) -> None:
    core = born(make_record)
    core.step(0.0, Found("10.9.9.9:1"))
    times, now = [], 0.0
    while now < 60.0:
        now = core.deadline
        if any(
            one == SendTo("10.9.9.9:1", Hello(core.me, "10.9.9.9:1"))
            for one in core.step(now, Tick())
        ):
            times.append(now)
    gaps = [b - a for a, b in pairwise(times)]
    assert gaps == sorted(gaps)
    assert gaps[-1] == pytest.approx(5.0)


def test_a_forgotten_address_is_left_alone_even_if_found_again(
    make_record: Any,
) -> None:
    core = born(make_record)
    core.step(0.0, Found("10.9.9.9:1"))
    core.step(1.0, Forget("10.9.9.9:1", "another cluster"))
    hellos = [_sent(core.step(1.0, Found("10.9.9.9:1")), Hello)]
    while core.deadline < 31.0:
        hellos.append(_sent(core.step(core.deadline, Tick()), Hello))
    assert [one for one in hellos if one] == []
    while not (effects := _sent(core.step(core.deadline, Tick()), Hello)):
        assert core.deadline < 40.0
    assert effects[0].at == "10.9.9.9:1"


def test_its_own_address_by_another_name_is_dropped(make_record: Any) -> None:
    core = born(make_record)
    core.step(0.0, Found("localhost:7000"))
    core.step(0.0, Received(core.me.node, "", Hello(core.me, "localhost:7000")))
    core.step(0.0, Found("localhost:7000"))
    for _ in range(50):
        assert _sent(core.step(core.deadline, Tick()), Hello) == []


def test_a_copied_identity_is_named(make_record: Any) -> None:
    core = born(make_record)
    twin = _with(make_record(1, 9), ALIVE)
    probe = Probe(twin, 1, make_record(1).node, ())
    with pytest.raises(PeerError, match="state folder"):
        core.step(0.0, Received(core.me.node, "", probe))


def test_a_record_of_somebody_else_is_refused(make_record: Any) -> None:
    core = born(make_record)
    with pytest.raises(PeerError, match="sent the record of"):
        core.step(0.0, Received(make_record(2).node, "", Hello(make_record(3), "")))
    assert core.members() == (core.me,)


def test_after_leaving_it_hears_nothing(make_record: Any) -> None:
    core = born(make_record)
    introduce(core, make_record, 2)
    effects = core.step(0.0, LeaveNow())
    assert core.me.status is LEFT
    assert any(one.rumors[0].member == core.me for one in _sent(effects, Gossip))
    introduce(core, make_record, 3)
    assert len(core.members()) == 2
    while math.isfinite(core.deadline):
        core.step(core.deadline, Tick())
    assert core.me.status is LEFT


def test_after_a_pause_of_its_own_it_blames_nobody(make_record: Any) -> None:
    core = born(make_record)
    introduce(core, make_record, 2, 3, 4)
    suspect = _with(make_record(4), SUSPECT)
    rumor = Gossip((Rumor(suspect, make_record(3).node),))
    core.step(0.0, Received(make_record(3).node, "", rumor))
    while not _sent(core.step(core.deadline, Tick()), Probe):
        pass  # now a probe is under way, and a suspicion
    effects = core.step(60.0, Tick())
    assert _sent(effects, ProbeFor) == []
    assert suspect in core.members()
    assert core.health == 1
    assert 60.0 < core.deadline < 61.0


def test_who_closes_the_connection_is_suspected_at_once(make_record: Any) -> None:
    core = born(make_record)
    introduce(core, make_record, 2, 3)
    gone = make_record(2)
    effects = core.step(0.1, Failed(gone.control, closed=True))
    changed = [one.member for one in effects if isinstance(one, Changed)]
    assert [(m.node, m.status) for m in changed] == [(gone.node, SUSPECT)]
    assert not [
        one
        for one in core.step(0.1, Failed("10.0.0.99:1", closed=True))
        if isinstance(one, Changed)
    ]
