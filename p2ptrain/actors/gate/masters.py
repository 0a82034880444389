"""Asking the master, whoever that is, over elections."""

from typing import TypeVar

import trio

from p2ptrain.errors import NoMasterError, UnreachableError
from p2ptrain.ids import NodeId
from p2ptrain.ports import Log, Post

WAIT_S = 30.0
ASK_S = 60.0
PAUSE_S = 0.2
AnswerT = TypeVar("AnswerT")


async def ask_master(log: Log, post: Post, ask: object, kind: type[AnswerT]) -> AnswerT:
    """Ask the master, and the next one if it falls, for a while.

    Raises:
        NoMasterError: none answered; says what was tried last.
    """
    problem = "none is elected"
    until = trio.current_time() + WAIT_S
    while trio.current_time() < until:
        if log.master is not None:
            try:
                return await _ask_while_master(log, post, ask, kind)
            except UnreachableError as error:
                problem = str(error)
        await trio.sleep(PAUSE_S)
    raise NoMasterError(
        f"the cluster has no master that answers ({problem}): a majority of the "
        "voters must be up; see 'p2ptrain nodes'"
    )


async def _ask_while_master(
    log: Log, post: Post, ask: object, kind: type[AnswerT]
) -> AnswerT:
    """Ask the node that is master now; give up when it is not any more.

    Raises:
        UnreachableError: no answer.
    """
    master = log.master
    assert master is not None
    found: list[AnswerT] = []
    problem = "the mastership changed"
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_until_deposed, log, master, nursery.cancel_scope)
        try:
            found.append(await post.ask(master, ask, kind, ASK_S))
        except UnreachableError as error:
            problem = str(error)
        nursery.cancel_scope.cancel()
    if not found:
        raise UnreachableError(problem)
    return found[0]


async def _until_deposed(log: Log, master: NodeId, scope: trio.CancelScope) -> None:
    seen = -1
    while log.master == master:
        seen = await log.changed(seen)
    scope.cancel()
