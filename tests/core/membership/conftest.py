"""A whole cluster of membership cores in memory, under a virtual clock."""

import heapq
import random
from collections.abc import Callable
from itertools import count

import pytest

from p2ptrain import codec
from p2ptrain.core.membership import (
    Changed,
    Event,
    Found,
    LeaveNow,
    Membership,
    MembershipConfig,
    Received,
    SendTo,
    Tick,
)
from p2ptrain.ids import NodeId
from p2ptrain.members import Capabilities, Member, MemberStatus
from p2ptrain.messages.membership import MembershipMessage

CAPABILITIES = Capabilities("0.1.0", 2, 8 << 30, trains=True)
KINDS = codec.kinds(MembershipMessage)
BYTES_MAX = 8 * 1024


def node_id(index: int) -> NodeId:
    return NodeId(f"{index:032x}")


def address_of(index: int) -> str:
    return f"10.0.0.{index}:7000"


def record(index: int, incarnation: int = 1) -> Member:
    return Member(
        node_id(index),
        f"node{index}",
        incarnation,
        MemberStatus.ALIVE,
        address_of(index),
        f"10.0.0.{index}:7001",
        CAPABILITIES,
    )


class Cluster:
    """Cores, and the network between them: latency, loss, cuts, pauses, deaths."""

    def __init__(self, size: int, seed: int = 1, **times: float) -> None:
        self.rng = random.Random(seed)
        self.config = MembershipConfig(**times)  # type: ignore[arg-type]
        self.now = 0.0
        self.loss = 0.0
        self.cut: Callable[[int, int], bool] = lambda a, b: False
        self.cores: dict[int, Membership] = {}
        self.changes: list[tuple[float, int, Member]] = []
        self.sent = 0
        self.largest = 0
        self._frozen: dict[int, float] = {}
        self._queue: list[tuple[float, int, int, int, Event]] = []
        self._order = count()
        self._life: dict[int, int] = {}
        for index in range(1, size + 1):
            self.start(index)

    def start(self, index: int, incarnation: int = 1) -> None:
        """Start or restart a node; all but the first know the first's address."""
        rng = random.Random(self.rng.getrandbits(64))
        me = record(index, incarnation)
        self._life[index] = self._life.get(index, 0) + 1
        self.cores[index] = Membership(me, self.config, rng, self.now)
        self._push(self.now, index, Tick())
        if index != 1:
            self._push(self.now, index, Found(address_of(1)))
        else:
            for other in [one for one in self.cores if one != 1]:
                self._push(self.now, index, Found(address_of(other)))

    def kill(self, index: int) -> None:
        del self.cores[index]

    def freeze(self, index: int, seconds: float) -> None:
        self._frozen[index] = self.now + seconds

    def leave(self, index: int) -> None:
        self._push(self.now, index, LeaveNow())

    def tell(self, index: int, event: Event) -> None:
        self._push(self.now, index, event)

    def run(self, seconds: float) -> None:
        end = self.now + seconds
        while self._queue and self._queue[0][0] <= end:
            at, _, index, life, event = heapq.heappop(self._queue)
            self.now = max(self.now, at)
            self._deliver(index, life, event)
        self.now = end

    def until(self, condition: Callable[[], bool], limit_s: float) -> float:
        """Run until the condition holds; return how long that took."""
        start = self.now
        while not condition():
            assert self.now - start < limit_s, f"not within {limit_s} s"
            self.run(0.01)
        return self.now - start

    def status(self, observer: int, of: int) -> MemberStatus | None:
        members = {one.node: one.status for one in self.cores[observer].members()}
        return members.get(node_id(of))

    def all_see(self, of: int, *statuses: MemberStatus) -> bool:
        return all(self.status(one, of) in statuses for one in self.cores if one != of)

    def agree(self) -> bool:
        """Whether everybody who runs sees everybody who runs as alive."""
        return all(self.all_see(index, MemberStatus.ALIVE) for index in self.cores)

    def verdicts(self, *statuses: MemberStatus) -> list[tuple[float, int, str]]:
        return [
            (at, by, member.node[-2:])
            for at, by, member in self.changes
            if member.status in statuses and member.node != node_id(by)
        ]

    def _push(self, at: float, index: int, event: Event) -> None:
        life = self._life[index]
        heapq.heappush(self._queue, (at, next(self._order), index, life, event))

    def _deliver(self, index: int, life: int, event: Event) -> None:
        core = self.cores.get(index)
        if core is None or life != self._life[index]:
            return
        thaw = self._frozen.get(index, 0.0)
        if thaw > self.now:
            self._push(thaw, index, event)
            return
        if isinstance(event, Tick) and core.deadline > self.now:
            return  # an earlier step moved the deadline, and pushed a Tick for it
        for effect in core.step(self.now, event):
            match effect:
                case SendTo(address, message):
                    self._carry(index, address, message)
                case Changed(member):
                    self.changes.append((self.now, index, member))
        assert core.deadline > self.now, "the core would spin"
        self._push(core.deadline, index, Tick())

    def _carry(self, index: int, address: str, message: MembershipMessage) -> None:
        raw = codec.pack(message)
        self.sent += 1
        self.largest = max(self.largest, len(raw))
        assert len(raw) < BYTES_MAX
        target = int(address.removeprefix("10.0.0.").removesuffix(":7000"))
        if target not in self.cores or self.cut(index, target):
            return
        if self.rng.random() < self.loss:
            return
        latency = self.rng.uniform(0.0005, 0.005)
        copy = codec.unpack(KINDS, raw)
        event = Received(node_id(index), address_of(index), copy)
        self._push(self.now + latency, target, event)


@pytest.fixture
def cluster() -> type[Cluster]:
    return Cluster


@pytest.fixture
def make_record() -> Callable[..., Member]:
    return record
