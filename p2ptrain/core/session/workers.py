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


@dataclass(frozen=True, slots=True)
class Bar:
    """A node that is not counted on from one time to another, and why."""

    since: float
    until: float
    strikes: int
    reason: str


class Workers:
    """Nodes by id: presence, states, speeds, and who is barred for a while."""

    def __init__(self, config: SessionConfig) -> None:
        self._config = config
        self.members: dict[NodeId, Member] = {}
        self.known: dict[NodeId, Known] = {}
        self.speeds: dict[NodeId, float] = {}  # samples a second, as last measured
        self._bars: dict[NodeId, Bar] = {}
        self._asked_at: dict[NodeId, float] = {}

    def present(self, members: Iterable[Member]) -> None:
        """Take the members of the cluster; one that was started again is forgiven."""
        before = self.members
        self.members = {member.node: member for member in members}
        for node, member in self.members.items():
            if node not in before or member.incarnation <= before[node].incarnation:
                continue
            self._bars.pop(node, None)
            self._asked_at.pop(node, None)
            if before[node].status is not MemberStatus.ALIVE:
                # It is back, perhaps as another process: it will say what it holds.
                self.known.pop(node, None)

    def report(self, now: float, state: WorkerState) -> None:
        """Take a worker's state, unless a newer one came first.

        Serials follow a wall clock: after a long silence one that was set back is
        believed.
        """
        before = self.known.get(state.node)
        if (
            before is not None
            and state.serial <= before.state.serial
            and now - before.at <= self._config.silent_s
        ):
            return
        if before is None and len(self.known) >= NODES_MAX:
            return
        moved = before is None or _moved(before.state, state)
        moved_at = now if before is None or moved else before.moved_at
        self.known[state.node] = Known(state, now, moved_at)
        if state.samples > 0 and state.compute_s > 0:
            self.speeds[state.node] = state.samples / state.compute_s

    def forget(self, node: NodeId) -> None:
        """Forget a worker's state, until it says the next one."""
        self.known.pop(node, None)

    def bar(self, now: float, node: NodeId, reason: str) -> None:
        """Do not count on a node for a while; each time longer, up to a bound."""
        last = self._bars.get(node)
        recent = last is not None and now - last.until < self._config.bar_max_s
        strikes = last.strikes + 1 if recent and last is not None else 0
        pause = min(self._config.bar_s * 2.0**strikes, self._config.bar_max_s)
        self._bars[node] = Bar(now, now + pause, strikes, reason)

    def why_barred(self, now: float, node: NodeId) -> str:
        """Return why a node is barred now, or nothing."""
        bar = self._bars.get(node)
        return bar.reason if bar is not None and now < bar.until else ""

    def has_declined(self, node: NodeId) -> bool:
        """Tell whether a node declined anew: since it was last barred."""
        known, bar = self.known[node], self._bars.get(node)
        declined = known.state.phase is WorkerPhase.DECLINED
        return declined and (bar is None or known.moved_at > bar.since)

    def able(self) -> list[NodeId]:
        """Return the nodes that are alive and can train."""
        return sorted(
            node
            for node, member in self.members.items()
            if member.status is MemberStatus.ALIVE and member.capabilities.trains
        )

    def candidates(self, now: float) -> list[NodeId]:
        """Return the nodes that could train: alive, able, not barred."""
        return [node for node in self.able() if not self.why_barred(now, node)]

    def state(self, now: float, node: NodeId) -> WorkerState | None:
        """Return a worker's state, if it is fresh."""
        known = self.known.get(node)
        if known is None or now - known.at > self._config.silent_s:
            return None
        return known.state

    def is_alive(self, node: NodeId) -> bool:
        """Tell whether a node is in reach, as far as membership knows."""
        member = self.members.get(node)
        return member is not None and member.status is MemberStatus.ALIVE

    def is_leaving(self, node: NodeId) -> bool:
        """Tell whether a node is in reach, but trains no more."""
        member = self.members.get(node)
        return (
            self.is_alive(node)
            and member is not None
            and not (member.capabilities.trains)
        )

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
