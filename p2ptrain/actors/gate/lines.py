"""Sessions as clients see them."""

from p2ptrain.core.registry import SessionRow
from p2ptrain.messages.gate import EpochLine, ResultLine, SessionLine

EPOCHS_SHOWN = 200


def line_of(row: SessionRow) -> SessionLine:
    """Return a session's row as clients see it."""
    last = row.views[-1] if row.views else None
    epochs = row.epochs[-EPOCHS_SHOWN:]
    result = row.result
    return SessionLine(
        session=row.submission.session,
        name=row.submission.name,
        status=row.status,
        reason=row.reason,
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
