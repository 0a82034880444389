"""What the master knows of the nodes of one session."""

from collections.abc import Iterable
from dataclasses import dataclass

from p2ptrain.core.session.types import SessionConfig
from p2ptrain.ids import NodeId
from p2ptrain.members import Member, MemberStatus
from p2ptrain.messages.session import WorkerPhase, WorkerState

LOADED = frozenset({WorkerPhase.READY, WorkerPhase.ENDED, WorkerPhase.FINISHED})
PREPARING = frozenset({WorkerPhase.FETCHING, WorkerPhase.LOADING})
NODES_MAX = 1024


@dataclass(slots=True)
class Known:
    """One node: its last state, when it came, and when it last showed progress."""

    state: WorkerState
    at: float
    moved_at: float


class Workers:
    """Nodes by id: presence, states, and who is barred for a while."""

    def __init__(self, config: SessionConfig) -> None:
        self._config = config
        self.members: dict[NodeId, Member] = {}
        self.known: dict[NodeId, Known] = {}
        self.barred: dict[NodeId, tuple[float, str]] = {}
        self._asked_at: dict[NodeId, float] = {}

    def present(self, members: Iterable[Member]) -> None:
        """Take the members of the cluster."""
        self.members = {member.node: member for member in members}

    def report(self, now: float, state: WorkerState) -> None:
        """Take a worker's state."""
        before = self.known.get(state.node)
        if before is None and len(self.known) >= NODES_MAX:
            return
        moved = before is None or _moved(before.state, state)
        moved_at = now if before is None or moved else before.moved_at
        self.known[state.node] = Known(state, now, moved_at)

    def bar(self, now: float, node: NodeId, reason: str) -> None:
        """Do not count on a node for a while."""
        self.barred[node] = (now + self._config.bar_s, reason)

    def is_barred(self, now: float, node: NodeId) -> bool:
        """Tell whether a node is barred now."""
        return node in self.barred and now < self.barred[node][0]

    def candidates(self, now: float) -> list[NodeId]:
        """Return the nodes that could train: alive, able, not barred."""
        return sorted(
            node
            for node, member in self.members.items()
            if member.status is MemberStatus.ALIVE
            and member.capabilities.trains
            and not self.is_barred(now, node)
        )

    def state(self, now: float, node: NodeId) -> WorkerState | None:
        """Return a worker's state, if it is fresh."""
        known = self.known.get(node)
        if known is None or now - known.at > self._config.silent_s:
            return None
        return known.state

    def is_gone(self, node: NodeId) -> bool:
        """Tell whether membership has given a node up."""
        member = self.members.get(node)
        return member is None or member.status in {MemberStatus.DEAD, MemberStatus.LEFT}

    def is_getting_ready(self, now: float, node: NodeId) -> bool:
        """Tell whether a node prepares and still makes progress (or was just asked)."""
        known = self.known.get(node)
        asked = self._asked_at.setdefault(node, now)
        if known is None or known.state.phase not in PREPARING:
            return now - asked < self._config.silent_s
        return now - known.moved_at < self._config.patience_s

    def forget_asked(self) -> None:
        """Begin to count patience anew."""
        self._asked_at.clear()

    def names(self, nodes: Iterable[NodeId]) -> str:
        """Return nodes' names for a sentence."""
        return ", ".join(repr(self.name(node)) for node in nodes)

    def name(self, node: NodeId) -> str:
        """Return a node's name."""
        member = self.members.get(node)
        return member.name if member else node[:8]


def _moved(before: WorkerState, after: WorkerState) -> bool:
    """Tell whether two states differ in what counts as progress."""
    return (
        before.phase is not after.phase
        or before.step != after.step
        or before.view != after.view
        or before.fetched_bytes != after.fetched_bytes
    )
