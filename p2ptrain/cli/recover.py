"""``p2ptrain cluster recover``: goes on without a lost majority, if a person asks."""

import argparse
from pathlib import Path

import trio

from p2ptrain.cli.cluster import NODE_FILE, settings
from p2ptrain.cli.output import say
from p2ptrain.client import connect
from p2ptrain.config import Config
from p2ptrain.errors import (
    ConfigError,
    ConflictError,
    ExitCode,
    NoDaemonError,
    UserError,
)
from p2ptrain.ids import NodeId
from p2ptrain.security.identity import load_identity, plain_identity
from p2ptrain.store.recover import Recovery, plan_recovery, set_aside
from p2ptrain.store.recover import recover as carry_out

RECORD = "record.db"


def recover(arguments: argparse.Namespace) -> int:
    """Make this node's record the cluster's, or put it aside to follow another."""
    config = settings(arguments)
    trio.run(_check_stopped, config.socket)
    record = config.state_dir / RECORD
    if arguments.follow:
        return _follow(config, record)
    me = _identity(config)
    recovery = trio.run(plan_recovery, record, me)
    _warn(recovery, me)
    if not arguments.yes:
        raise UserError("nothing was changed: to do it, add --yes")
    trio.run(carry_out, record, recovery)
    say("done: this node is the only voter of a new cluster that has its record")
    say("start it:                      p2ptrain join")
    say("on each other node that lives: p2ptrain cluster recover --follow")
    return ExitCode.OK


def _warn(recovery: Recovery, me: NodeId) -> None:
    others = [node[:12] for node in recovery.voters if node != me]
    say(f"this record has {recovery.entries} entries; its voters are this node and")
    say(f"{', '.join(others) or 'no other'}.")
    say("WARNING: whatever only the others knew is lost: sessions that were accepted,")
    say("views and checkpoints that were recorded without this node. Do this only when")
    say("most voters are lost for good; else start them, and the cluster goes on by")
    say("itself. Of several nodes that live, choose the one with the most entries.")


def _follow(config: Config, record: Path) -> int:
    file = config.state_dir / NODE_FILE
    if config.bootstrap and not file.exists():
        raise ConfigError(
            "this node's settings say bootstrap = true: remove that line first, or it "
            "founds a cluster of its own"
        )
    kept = set_aside(record)
    if config.bootstrap:
        lines = file.read_text().splitlines(keepends=True)
        file.write_text("".join(x for x in lines if not x.startswith("bootstrap")))
    say(f"the record is put aside as {kept}; blobs and keys stay")
    say("start this node; it follows the cluster that its seeds are in: p2ptrain join")
    return ExitCode.OK


def _identity(config: Config) -> NodeId:
    if config.plain:
        return plain_identity(config.state_dir).node
    return load_identity(config.state_dir).node


async def _check_stopped(socket: Path) -> None:
    """Refuse while the daemon runs.

    Raises:
        ConflictError: it does.
    """
    try:
        async with connect(socket):
            pass
    except NoDaemonError:
        return
    raise ConflictError(
        f"this node's daemon runs at {socket}: stop it first; while it runs its record "
        "must not be changed"
    )
