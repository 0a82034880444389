"""Placement: who takes part in a view, in which ring order, with how many parts each.

A pure function of the job, the nodes that are ready and the view before. Everyone who
is ready takes part, as long as there is a part for each; shares follow the speeds that
were measured, and ring order stays as it was so that links and ranks are stable.
"""

from collections.abc import Mapping, Sequence

from p2ptrain.ids import NodeId
from p2ptrain.messages.record import Seat


def place(
    parts: int,
    ready: Sequence[NodeId],
    before: Sequence[Seat],
    speeds: Mapping[NodeId, float],
) -> tuple[Seat, ...]:
    """Return the seats of the next view.

    Args:
        parts: micro-batches in a step.
        ready: nodes that can take part, at least one.
        before: the seats of the last view.
        speeds: samples a second, where measured.
    """
    known = [seat.node for seat in before if seat.node in ready]
    order = known + sorted(node for node in ready if node not in known)
    order = order[:parts]
    measured = [speeds[node] for node in order if speeds.get(node, 0) > 0]
    usual = sum(measured) / len(measured) if measured else 1.0
    weights = [speeds.get(node, 0) or usual for node in order]
    shares = share_out(parts, weights)
    return tuple(Seat(node, n) for node, n in zip(order, shares, strict=True))


def share_out(parts: int, weights: Sequence[float]) -> list[int]:
    """Divide parts by weight, at least one each, by the largest remainders.

    Args:
        parts: at least one for each weight.
        weights: positive.
    """
    spare = parts - len(weights)
    total = sum(weights)
    exact = [spare * weight / total for weight in weights]
    shares = [int(share) for share in exact]
    by_rest = sorted(range(len(weights)), key=lambda i: (shares[i] - exact[i], i))
    for i in by_rest[: spare - sum(shares)]:
        shares[i] += 1
    return [share + 1 for share in shares]
