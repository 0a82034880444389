"""News waiting to be passed on: each is sent a bounded number of times, the least
often sent first.
"""

import math
from dataclasses import dataclass

from p2ptrain.ids import NodeId
from p2ptrain.messages.membership import Rumor


@dataclass(slots=True)
class _Waiting:
    rumor: Rumor
    sent: int = 0


class Rumors:
    """At most one rumor a member: the newest replaces the older one.

    Args:
        factor: a rumor is sent ``factor * ceil(log2(members + 1))`` times, which
            reaches everybody with high probability (SWIM, section 4.1).
    """

    def __init__(self, factor: int) -> None:
        self._factor = factor
        self._waiting: dict[NodeId, _Waiting] = {}

    def __len__(self) -> int:
        """Return how many members there is news about."""
        return len(self._waiting)

    def add(self, rumor: Rumor) -> None:
        """Pass this on, instead of what waited about the same member."""
        self._waiting[rumor.member.node] = _Waiting(rumor)

    def drop(self, node: NodeId) -> None:
        """Pass nothing on about this member."""
        self._waiting.pop(node, None)

    def take(self, most: int, members: int) -> tuple[Rumor, ...]:
        """Return up to ``most`` rumors for one message and count them as sent."""
        limit = self._factor * math.ceil(math.log2(members + 1))
        chosen = sorted(self._waiting.values(), key=lambda item: item.sent)[:most]
        for item in chosen:
            item.sent += 1
            if item.sent >= limit:
                del self._waiting[item.rumor.member.node]
        return tuple(item.rumor for item in chosen)
