"""Makes one node's record the whole cluster's, when most voters are lost for good.

Consensus cannot do this by itself: the lost voters might have agreed on more. So a
person decides. What this node's record holds is kept, committed or not; a new entry
makes this node its only voter, in a new term and under a new cluster id. Old nodes that
come back are of another cluster and are refused, whatever they think that they are.
"""

import secrets
import time
from dataclasses import dataclass
from pathlib import Path

import trio

from p2ptrain import codec
from p2ptrain.core.consensus.log import RaftLog
from p2ptrain.errors import NotFoundError, StorageError
from p2ptrain.ids import ClusterId, NodeId
from p2ptrain.messages.consensus import Config, Entry, EntryKind, RecordChange
from p2ptrain.store.record import SqliteRecord


@dataclass(frozen=True, slots=True)
class Recovery:
    """What a recovery starts from.

    Args:
        voters: as the record knows them.
        entries: of the log, in all.
        change: what makes this node the only voter.
    """

    voters: tuple[NodeId, ...]
    entries: int
    change: RecordChange


async def plan_recovery(path: Path, me: NodeId) -> Recovery:
    """Return what a recovery of this node's record would do; changes nothing.

    Raises:
        NotFoundError: there is no record of a cluster.
        StorageError: it cannot be read.
    """
    if not await trio.Path(path).exists():
        raise NotFoundError(f"there is no record at {path}: nothing to recover from")
    record = SqliteRecord(path)
    saved = await record.load()
    await record.aclose()
    log = RaftLog(saved)
    if saved.cluster is None or not log.last:
        raise NotFoundError(f"the record at {path} is of no cluster")
    _, config = next(iter(log.configs()))
    alone = codec.encode(codec.to_plain(Config(voters=(me,), learners=())))
    term = saved.term + 1
    change = RecordChange(
        cluster=ClusterId(secrets.token_hex(16)),
        term=term,
        entries=(Entry(log.last + 1, term, EntryKind.CONFIG, alone),),
    )
    return Recovery(config.voters, log.last, change)


async def recover(path: Path, recovery: Recovery) -> None:
    """Do what was planned.

    Raises:
        StorageError: the disk refused; nothing has changed.
    """
    record = SqliteRecord(path)
    try:
        await record.save(recovery.change)
    finally:
        await record.aclose()


def set_aside(path: Path) -> Path:
    """Put a record aside, for its node to follow a recovered cluster; nothing is lost.

    Raises:
        NotFoundError: there is none.
        StorageError: the disk refused.
    """
    if not path.exists():
        raise NotFoundError(f"there is no record at {path}: just start the daemon")
    kept = path.with_name(f"{path.name}.before-{int(time.time())}")
    try:
        for suffix in ("-wal", "-shm", ""):
            part = path.with_name(path.name + suffix)
            if part.exists():
                part.rename(kept.with_name(kept.name + suffix))
    except OSError as error:
        raise StorageError(f"cannot rename {path}: {error.strerror}") from error
    return kept
