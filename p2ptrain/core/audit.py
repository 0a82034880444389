"""Replays a session's record: who counted which samples, and whether all agreed.

A step belongs to the last view on record that begins at or before it and was not taken
back by a later one that begins earlier. The ranks of a view split each of its steps in
ring order, part by part (``core.stream``), so views and the schedule say which samples
each node contributed to each step. The ranks keep an account of their own, which they
check at each step before they apply it and which ends up in the result's manifest: both
must say the same.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from p2ptrain.core.stream import Schedule
from p2ptrain.ids import NodeId
from p2ptrain.messages.record import CommitView, Seat

FINDINGS_MAX = 100


@dataclass(frozen=True, slots=True)
class Stretch:
    """Steps ``[first, end)``, which the seats of one view counted."""

    view: int
    first: int
    end: int
    seats: tuple[Seat, ...]


@dataclass(frozen=True, slots=True)
class Said:
    """A digest of the state after ``step`` applied steps, and who says so."""

    step: int
    digest: str
    who: str


@dataclass(frozen=True, slots=True)
class Account:
    """What is known of a session.

    Args:
        schedule: how samples are cut into steps.
        applied: steps that count.
        views: as recorded, oldest first.
        digests: all that the record says, of this life of the session.
        ranks: the stretches of the ranks' own account, or None where there is none.
        skipped: steps that all ranks skipped, as far as known.
    """

    schedule: Schedule
    applied: int
    views: tuple[CommitView, ...]
    digests: tuple[Said, ...] = ()
    ranks: tuple[Stretch, ...] | None = None
    skipped: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Contribution:
    """Stream positions ``[start, stop)`` that a node counted in a step."""

    node: NodeId
    start: int
    stop: int


@dataclass(slots=True)
class Verdict:
    """What the replay found.

    Args:
        stretches: who counted when.
        epochs: complete ones whose samples were each counted exactly once.
        lost: samples that no rank counted.
        doubled: samples counted more than once in a step.
        compared: digests of the same step that were compared.
        mismatches: of those, the ones that differ.
        findings: a sentence each, in the order of the steps.
    """

    stretches: tuple[Stretch, ...]
    epochs: int = 0
    lost: int = 0
    doubled: int = 0
    compared: int = 0
    mismatches: int = 0
    findings: list[str] = field(default_factory=list)

    @property
    def clean(self) -> bool:
        """Whether nothing was found."""
        return not self.findings

    def find(self, sentence: str) -> None:
        """Note a finding."""
        if len(self.findings) < FINDINGS_MAX:
            self.findings.append(sentence)


def stretches(
    views: Iterable[tuple[int, int, tuple[Seat, ...]]], applied: int
) -> tuple[Stretch, ...]:
    """Return the steps that count by the view that counted them.

    Args:
        views: number, first step and seats of each, oldest first.
        applied: steps that count.
    """
    found: list[Stretch] = []
    end = applied
    for view, first, seats in reversed(list(views)):
        if first < end:
            found.append(Stretch(view, first, end, seats))
            end = first
    return tuple(reversed(found))


def contributions(account: Account, step: int) -> tuple[Contribution, ...]:
    """Return who counted which stream positions in a step; empty when unknown."""
    plan = account.schedule
    for stretch in _recorded(account):
        if stretch.first <= step < stretch.end:
            at = plan.start_of(step, 0)
            found: list[Contribution] = []
            for seat in stretch.seats:
                stop = at + seat.share * plan.batch
                found.append(Contribution(seat.node, at, stop))
                at = stop
            return tuple(found)
    return ()


def replay(account: Account) -> Verdict:
    """Replay an account."""
    verdict = Verdict(_recorded(account))
    broken = _count(account, verdict)
    _compare_accounts(account, verdict)
    _compare_digests(account, verdict)
    plan = account.schedule
    complete = plan.complete(account.applied)
    verdict.epochs = sum(
        1
        for epoch in range(complete)
        if not any(
            first * plan.step_samples < (epoch + 1) * plan.samples
            and epoch * plan.samples < end * plan.step_samples
            for first, end in broken
        )
    )
    return verdict


def _recorded(account: Account) -> tuple[Stretch, ...]:
    views = ((v.view, v.first_step, v.seats) for v in account.views)
    return stretches(views, account.applied)


def _count(account: Account, verdict: Verdict) -> list[tuple[int, int]]:
    """Count samples; return the ranges of steps where not each one counts once."""
    plan = account.schedule
    broken: list[tuple[int, int]] = []
    at = 0
    for stretch in verdict.stretches:
        if stretch.first > at:  # the newest views are kept: only the begin can be gone
            broken.append((at, stretch.first))
            verdict.find(f"steps {at} to {stretch.first - 1}: their views are gone")
        at = stretch.end
        parts = sum(seat.share for seat in stretch.seats)
        if parts == plan.parts:
            continue
        broken.append((stretch.first, stretch.end))
        odd = abs(plan.parts - parts) * plan.batch * (stretch.end - stretch.first)
        if parts < plan.parts:
            verdict.lost += odd
        else:
            verdict.doubled += odd
        verdict.find(
            f"steps {stretch.first} to {stretch.end - 1}: view {stretch.view} counts "
            f"{parts} parts of {plan.parts}"
        )
    if at < account.applied:
        broken.append((at, account.applied))
        verdict.find(f"steps {at} to {account.applied - 1}: no view is on record")
    return broken


def _compare_accounts(account: Account, verdict: Verdict) -> None:
    """Compare the record with the ranks' own account."""
    if account.ranks is None:
        return
    ours = verdict.stretches
    known = ours[0].first if ours else account.applied
    theirs = tuple(s for s in account.ranks if s.first >= known)
    if ours != theirs:
        step = min(s.first for s in {*ours} ^ {*theirs})
        verdict.find(
            f"from step {step} on the record and the ranks' own account differ in who "
            "counted what"
        )


def _compare_digests(account: Account, verdict: Verdict) -> None:
    by_step: dict[int, list[Said]] = {}
    for said in account.digests:
        if said.digest:
            by_step.setdefault(said.step, []).append(said)
    for step, words in sorted(by_step.items()):
        first = words[0]
        for word in words[1:]:
            verdict.compared += 1
            if word.digest != first.digest:
                verdict.mismatches += 1
                verdict.find(
                    f"after step {step}: {first.who} says state {first.digest[:16]}, "
                    f"{word.who} says {word.digest[:16]}"
                )


def words_of(views: Sequence[CommitView], applied: int) -> list[Said]:
    """Return what the views that count say of the state that they begin from."""
    facts = ((v.view, v.first_step, v.seats) for v in views)
    living = {stretch.view for stretch in stretches(facts, applied)}
    return [
        Said(view.first_step, view.digest, f"{who} (view {view.view})")
        for view in views
        if view.view in living
        for who in (tuple(f"node {n[:8]}" for n in view.agreed) or ("a checkpoint",))
    ]
