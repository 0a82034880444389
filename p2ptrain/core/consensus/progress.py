"""What a leader knows of each other member of the record."""

from dataclasses import dataclass

from p2ptrain.ids import NodeId

WINDOW = 8  # appends under way to one follower


@dataclass(slots=True)
class Progress:
    """One follower or learner.

    Args:
        next: index of the first entry to send.
        match: last index known to agree; ``match < next``.
        heard_at: when it last answered.
        in_flight: appends sent and not answered since the last heartbeat.
        snap_offset: where its snapshot goes on, None when it needs none.
    """

    next: int
    match: int
    heard_at: float
    in_flight: int = 0
    snap_offset: int | None = None


class Followers:
    """Progress by node."""

    def __init__(self) -> None:
        self.by_node: dict[NodeId, Progress] = {}

    def reset(self, nodes: set[NodeId], last: int, now: float) -> None:
        """Know exactly these; new ones start behind the last entry."""
        kept = {node: known for node, known in self.by_node.items() if node in nodes}
        for node in nodes - kept.keys():
            kept[node] = Progress(last + 1, 0, now)
        self.by_node = kept

    def heard(self, nodes: set[NodeId], since: float) -> int:
        """Count those of nodes that answered since then."""
        return sum(
            known.heard_at >= since
            for node, known in self.by_node.items()
            if node in nodes
        )

    def match(self, node: NodeId) -> int:
        """Return the last index known to agree."""
        known = self.by_node.get(node)
        return known.match if known else 0


def majority_match(matches: list[int]) -> int:
    """Return the highest index that a majority of voters has."""
    ordered = sorted(matches, reverse=True)
    return ordered[len(ordered) // 2] if ordered else 0
