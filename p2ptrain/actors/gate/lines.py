"""Sessions as clients see them."""

from p2ptrain.core.registry import SessionRow
from p2ptrain.ids import NodeId
from p2ptrain.members import MemberStatus
from p2ptrain.messages.gate import (
    EpochLine,
    Ledger,
    LedgerRequest,
    ResultLine,
    SessionLine,
)
from p2ptrain.messages.record import CommitView, SessionStatus
from p2ptrain.ports import Log, Roster

EPOCHS_SHOWN = 200
PAGE_SEATS = 5000
PAGE_EPOCHS = 500


LEADERLESS_S = 3.0  # an election takes less
FINAL = frozenset({SessionStatus.DONE, SessionStatus.FAILED, SessionStatus.STOPPED})


def line_of(row: SessionRow, pause: str = "") -> SessionLine:
    """Return a session's row as clients see it.

    Args:
        row: as recorded here.
        pause: why nothing goes on, as seen from here; what the record says of a
            session that has not ended may be old then.
    """
    stands = bool(pause) and row.status not in FINAL
    last = row.views[-1] if row.views else None
    epochs = row.epochs[-EPOCHS_SHOWN:]
    result = row.result
    return SessionLine(
        session=row.submission.session,
        name=row.submission.name,
        status=SessionStatus.PAUSED if stands else row.status,
        reason=pause if stands else row.reason,
        step=row.step,
        submitted_s=row.submission.submitted_s,
        view=last.view if last else 0,
        members=tuple(seat.node for seat in last.seats) if last else (),
        epochs=tuple(EpochLine(e.epoch, e.step, e.loss, e.metrics) for e in epochs),
        checkpoint_step=row.checkpoints[-1].step if row.checkpoints else -1,
        result=ResultLine(
            result.step,
            result.weights,
            result.manifest,
            result.state_digest,
            result.holders,
            result.reports,
        )
        if result
        else None,
    )


def ledger_of(row: SessionRow, request: LedgerRequest) -> Ledger:
    """Return a page of what a session's row says of its steps."""
    views: list[CommitView] = []
    seats = 0
    for view in row.views:
        if view.view >= request.view:
            seats += len(view.seats) + len(view.agreed)
            if views and seats > PAGE_SEATS:
                break
            views.append(view)
    epochs = [e for e in row.epochs if e.epoch >= request.epoch]
    return Ledger(
        spec=row.submission.spec,
        holders=(row.submission.submitter,),
        step=row.step,
        views=tuple(views),
        epochs=tuple(epochs[:PAGE_EPOCHS]),
        checkpoints=row.checkpoints,
    )


def why_paused(log: Log, roster: Roster, voters: tuple[NodeId, ...]) -> str:
    """Return why no session goes on, as seen from here, or nothing."""
    if log.leaderless_s < LEADERLESS_S:
        return ""
    alive = {m.node for m in roster.members() if m.status is MemberStatus.ALIVE}
    here = len(alive & set(voters))
    return (
        f"no master in reach: {here} of {len(voters)} voters are on this side; "
        "training stands still here until a majority is in reach again"
    )
