"""Ranks as threads of one process, over real loopback connections."""

import threading
from collections.abc import Callable
from typing import TypeVar

from p2ptrain.engine.collective import Group
from p2ptrain.engine.rendezvous import Place, RingListener
from p2ptrain.ids import NodeId
from p2ptrain.messages.session import RingSeat
from p2ptrain.tls import TlsMaterial

T = TypeVar("T")
Work = Callable[[Group], T]


def node(rank: int) -> NodeId:
    return NodeId(f"{rank:032x}")


def run_ranks(
    works: list[Work[T]],
    stall_s: float = 5.0,
    tls: list[TlsMaterial] | None = None,
    nodes: list[NodeId] | None = None,
) -> list[T | Exception]:
    """Run one function a rank; return what each gave or raised."""
    world = len(works)
    listeners = [
        RingListener("127.0.0.1", (0, 0), tls[rank] if tls else None)
        for rank in range(world)
    ]
    ids = nodes or [node(rank) for rank in range(world)]
    seats = tuple(
        RingSeat(ids[rank], 1, f"127.0.0.1:{listeners[rank].port}")
        for rank in range(world)
    )
    results: list[T | Exception | None] = [None] * world

    def run(rank: int) -> None:
        group = Group(rank, world, view=1, stall_s=stall_s)
        try:
            group.open(listeners[rank], Place("s-1", 1, rank, seats), timeout_s=10)
            results[rank] = works[rank](group)
        except Exception as error:  # noqa: BLE001  # the test looks at it
            group.abort(str(error))
            results[rank] = error
        finally:
            group.close()

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(world)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
        assert not thread.is_alive()
    for listener in listeners:
        listener.close()
    assert None not in results
    return results  # type: ignore[return-value]
