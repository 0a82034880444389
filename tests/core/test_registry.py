"""The record's rules, one by one and against random histories."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from p2ptrain.core import registry as rules
from p2ptrain.core.registry import LEGAL, Registry
from p2ptrain.errors import PeerError
from p2ptrain.ids import Digest, NodeId, session_of
from p2ptrain.messages.record import (
    AddCheckpoint,
    AddEpoch,
    AddResult,
    AddSession,
    BlobRef,
    CommitView,
    Seat,
    SessionStatus,
    SetStatus,
)

A, B = NodeId("a" * 32), NodeId("b" * 32)
BLOB = BlobRef(Digest("d" * 64), 3, "x")
KEY = "key"
SESSION = session_of(KEY)
SEATS = (Seat(A, 2), Seat(B, 1))


def add(key: str = KEY, spec: BlobRef = BLOB) -> AddSession:
    return AddSession(session_of(key), key, "job", spec, (), A, 1.0)


def view(number: int, term: int = 1, first: int = 0) -> CommitView:
    return CommitView(SESSION, term, number, SEATS, first)


def status(to: SessionStatus, term: int = 1) -> SetStatus:
    return SetStatus(SESSION, term, to, f"now {to}", 5)


def result(term: int = 1) -> AddResult:
    return AddResult(SESSION, term, 1, 9, BLOB, BLOB, Digest("e" * 64), (A,), ())


def having(*commands: object) -> Registry:
    registry = Registry()
    for command in commands:
        assert registry.apply(command) == "", command
    return registry


def test_a_key_names_one_session() -> None:
    registry = having(add())
    assert registry.apply(replace(add(), submitted_s=9.0)) == ""
    assert registry.sessions[SESSION].submission.submitted_s == 1.0
    other = BlobRef(Digest("f" * 64), 3, "y")
    assert "named another job" in registry.apply(add(spec=other))
    assert registry.sessions[SESSION].submission.spec == BLOB


def test_views_follow_one_another() -> None:
    registry = having(add(), view(1), view(2, first=7))
    assert registry.sessions[SESSION].status is SessionStatus.RUNNING
    for number in (1, 2, 4):
        assert "does not follow view 2" in registry.apply(view(number))
    bad = replace(view(3), seats=())
    assert "needs seats" in registry.apply(bad)
    assert "different nodes" in registry.apply(replace(bad, seats=(SEATS[0],) * 2))
    assert "negative" in registry.apply(replace(bad, seats=(Seat(A, -1),)))
    assert len(registry.sessions[SESSION].views) == 2


def test_a_stale_term_changes_nothing() -> None:
    registry = having(add(), view(1, term=5))
    before = registry.dump()
    for stale in (
        view(2, term=4),
        status(SessionStatus.FAILED, term=4),
        AddEpoch(SESSION, 4, 1, 0, 3, 0.5, {}),
        AddCheckpoint(SESSION, 4, 1, 3, BLOB, Digest("e" * 64), (A,)),
        result(term=4),
    ):
        assert registry.apply(stale) == "term 4 is over: 5 has begun"
    assert registry.dump() == before


@pytest.mark.parametrize("start", list(SessionStatus))
@pytest.mark.parametrize("to", list(SessionStatus))
def test_the_legal_moves_are_the_only_ones(
    start: SessionStatus, to: SessionStatus
) -> None:
    registry = having(add(), view(1), result())
    row = registry.sessions[SESSION]
    registry.sessions[SESSION] = replace(row, status=start)
    refusal = registry.apply(status(to))
    assert (refusal == "") == (to in LEGAL[start])
    wanted = to if to in LEGAL[start] else start
    assert registry.sessions[SESSION].status is wanted


def test_nothing_is_done_without_a_result() -> None:
    registry = having(add(), view(1))
    assert "without a result" in registry.apply(status(SessionStatus.DONE))
    assert registry.apply(result()) == ""
    assert "has a result" in registry.apply(result())
    assert registry.apply(status(SessionStatus.DONE)) == ""
    assert "is done" in registry.apply(view(2))


def test_the_newest_three_checkpoints_are_kept() -> None:
    registry = having(add(), view(1))
    for step in (10, 30, 20, 50, 40):
        command = AddCheckpoint(SESSION, 1, 1, step, BLOB, Digest("e" * 64), (A,))
        assert registry.apply(command) == ""
    kept = registry.sessions[SESSION].checkpoints
    assert [checkpoint.step for checkpoint in kept] == [30, 40, 50]
    assert registry.sessions[SESSION].step == 50


def test_an_epochs_figures_may_come_again() -> None:
    registry = having(add(), view(1))
    for epoch, loss in ((1, 0.5), (0, 0.9), (1, 0.4)):
        registry.apply(AddEpoch(SESSION, 1, 1, epoch, 3, loss, {"a": 1.0}))
    epochs = registry.sessions[SESSION].epochs
    assert [(e.epoch, e.loss) for e in epochs] == [(0, 0.9), (1, 0.4)]


def test_unknown_sessions_are_refused() -> None:
    assert "is on record" in Registry().apply(view(1))


def test_every_collection_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules, "SESSIONS_MAX", 3)
    monkeypatch.setattr(rules, "VIEWS_MAX", 4)
    monkeypatch.setattr(rules, "EPOCHS_MAX", 2)
    registry = having(*(add(f"{i}") for i in range(3)))
    assert "stop one first" in registry.apply(add("one more"))
    first = session_of("0")
    stop = SetStatus(first, 1, SessionStatus.STOPPED, "", 0)
    assert registry.apply(stop) == ""
    assert registry.apply(add("one more")) == ""
    assert first not in registry.sessions
    registry = having(add(), *(view(number) for number in range(1, 10)))
    assert [v.view for v in registry.sessions[SESSION].views] == [6, 7, 8, 9]
    assert registry.apply(view(10)) == ""
    for epoch in range(5):
        registry.apply(AddEpoch(SESSION, 1, 10, epoch, 3, 0.1, {}))
    assert [e.epoch for e in registry.sessions[SESSION].epochs] == [3, 4]


def test_garbage_is_no_registry() -> None:
    with pytest.raises(PeerError):
        Registry.restore(b"\xff")


NUMBERS = st.integers(-1, 4)
COMMANDS = st.one_of(
    st.builds(add, st.sampled_from(["key", "other"])),
    st.builds(view, NUMBERS, NUMBERS, NUMBERS),
    st.builds(status, st.sampled_from(SessionStatus), NUMBERS),
    st.builds(
        AddCheckpoint,
        *(st.just(SESSION), NUMBERS, NUMBERS, NUMBERS, st.just(BLOB)),
        *(st.just(Digest("e" * 64)), st.just((A,))),
    ),
    st.builds(
        AddEpoch,
        *(st.just(SESSION), NUMBERS, NUMBERS, NUMBERS, NUMBERS),
        *(st.floats(0, 1), st.just({})),
    ),
    st.builds(result, NUMBERS),
)


@given(st.lists(COMMANDS, max_size=30), st.integers(0, 30))
@settings(deadline=None)
def test_every_history_is_total_and_can_be_dumped_anywhere(
    commands: list[object], at: int
) -> None:
    straight, cut = Registry(), Registry()
    for index, command in enumerate(commands):
        if index == at:
            cut = Registry.restore(cut.dump())
        before = straight.dump()
        refusal = straight.apply(command)
        assert cut.apply(command) == refusal
        if refusal:
            assert straight.dump() == before
    assert straight.dump() == cut.dump()
    assert Registry.restore(straight.dump()).sessions == straight.sessions


def test_a_view_that_goes_back_takes_what_lies_beyond_off_the_record() -> None:
    """Nobody leads that life any more; it will be reached again."""

    def epoch(number: int, view: int = 1) -> AddEpoch:
        return AddEpoch(SESSION, 1, view, number, 10 * number, 0.1, {})

    def checkpoint(step: int, view: int = 1) -> AddCheckpoint:
        return AddCheckpoint(SESSION, 1, view, step, BLOB, Digest("e" * 64), (A,))

    registry = having(
        *(add(), view(1), epoch(1), epoch(2)),
        *(checkpoint(15), checkpoint(20), view(2, first=15)),
    )
    row = registry.sessions[SESSION]
    assert row.step == 15
    assert [e.step for e in row.epochs] == [10]
    assert [c.step for c in row.checkpoints] == [15]
    for late in (epoch(2), checkpoint(20)):
        assert "went on before that step" in registry.apply(late)
    assert registry.apply(epoch(1)) == ""  # it came late, but it counts
    assert registry.apply(epoch(2, view=2)) == ""
    assert registry.apply(checkpoint(20, view=2)) == ""
    assert registry.sessions[SESSION].step == 20
