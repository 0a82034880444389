"""Commands on nodes and clusters: init, join, token, leave, nodes."""

import argparse
import json
import sys
from functools import partial
from pathlib import Path

import trio

from p2ptrain import codec
from p2ptrain.cli.output import say, table
from p2ptrain.client import connect
from p2ptrain.config import Config, load_config
from p2ptrain.errors import ConfigError, ConflictError, UserError
from p2ptrain.messages.gate import Done, LeaveRequest, Nodes, NodesRequest

NODE_FILE = "node.toml"
FLAGS = (
    *("name", "state_dir", "runtime_dir", "host", "advertise", "port"),
    *("log_level", "log_json", "witness", "trace"),
)


def settings(arguments: argparse.Namespace) -> Config:
    """Return the configuration: of the named file, or as ``init`` or ``join`` kept."""
    flags = {name: getattr(arguments, name, None) for name in FLAGS}
    file = arguments.config
    if file is None:
        written = load_config(None, flags).state_dir / NODE_FILE
        file = written if written.exists() else None
    return load_config(file, flags)


def init(arguments: argparse.Namespace) -> int:
    """Found a cluster: its authority, this node's key, a first token."""
    from p2ptrain.security.identity import create_cluster  # noqa: PLC0415
    from p2ptrain.security.tokens import issue_token  # noqa: PLC0415

    config = settings(arguments)
    host = config.advertise or config.host
    hosts = () if host == "0.0.0.0" else (host,)  # noqa: S104  # compared, not bound
    create_cluster(config.state_dir, arguments.cluster, hosts)
    _write_settings(config, {"bootstrap": True})
    token = issue_token(config.state_dir, ttl_s=86400, uses=1)
    shown = config.advertise or "THIS-HOST"
    say(f"cluster {arguments.cluster!r} is founded; keys are in {config.state_dir}")
    say("start this node:    p2ptrain join")
    say(f"on another machine: p2ptrain join {token}@{shown}:{config.port + 2}")
    say("the token is good for one node and one day; 'p2ptrain token' issues more")
    return 0


def token(arguments: argparse.Namespace) -> int:
    """Issue a token; only a node that holds the authority can."""
    from p2ptrain.security.tokens import issue_token  # noqa: PLC0415

    config = settings(arguments)
    text = issue_token(config.state_dir, arguments.hours * 3600, arguments.uses)
    shown = config.advertise or "THIS-HOST"
    print(f"{text}@{shown}:{config.port + 2}")  # noqa: T201
    return 0


def join(arguments: argparse.Namespace) -> int:
    """Enter the cluster if invited, then run the daemon."""
    from p2ptrain import log  # noqa: PLC0415
    from p2ptrain.node import run_node  # noqa: PLC0415
    from p2ptrain.security.identity import (  # noqa: PLC0415
        load_identity,
        plain_identity,
    )

    config = settings(arguments)
    if arguments.invitation is not None:
        config = _enter(config, arguments)
    log.configure(config.log_level, as_json=config.log_json, node=config.name)
    if config.plain:
        identity = plain_identity(config.state_dir)
    else:
        identity = load_identity(config.state_dir)
    trio.run(run_node, config, identity)
    return 0


def _enter(config: Config, arguments: argparse.Namespace) -> Config:
    from p2ptrain.security.enrol import enrol  # noqa: PLC0415

    text, _, address = arguments.invitation.rpartition("@")
    host, _, port = address.rpartition(":")
    if not text or not host or not port.isdecimal():
        raise UserError(f"{arguments.invitation!r} is not TOKEN@HOST:PORT")
    if (config.state_dir / NODE_FILE).exists():
        raise ConflictError(
            f"{config.state_dir / NODE_FILE} exists: this node is in a cluster; run "
            "'p2ptrain join' without a token, or name another --state-dir"
        )
    enrolled = trio.run(
        partial(enrol, text, host.strip("[]"), int(port), config.state_dir, config.name)
    )
    _write_settings(config, {"seeds": list(enrolled.seeds)})
    say(f"node {enrolled.identity.node} is in cluster {enrolled.identity.cluster!r}")
    return settings(arguments)


def _write_settings(config: Config, more: dict[str, object]) -> None:
    """Keep what was chosen, so that a plain ``join`` starts this node again."""
    chosen: dict[str, object] = {
        "name": config.name,
        "host": config.host,
        "advertise": config.advertise,
        "port": config.port,
        "witness": config.witness,
        **more,
    }
    lines = [f"{key} = {json.dumps(value)}\n" for key, value in chosen.items()]
    path = config.state_dir / NODE_FILE
    try:
        path.write_text("".join(lines))
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror}") from error


def leave(arguments: argparse.Namespace) -> int:
    """Take the local node out of the cluster."""

    async def run() -> None:
        async with connect(settings(arguments).socket) as gate:
            await gate.ask(LeaveRequest(), Done)

    trio.run(run)
    say("this node has left the cluster and its daemon ends")
    return 0


def nodes(arguments: argparse.Namespace) -> int:
    """Show the cluster as the local node sees it."""
    answer = trio.run(_nodes, settings(arguments).socket)
    if arguments.json:
        json.dump(codec.to_plain(answer), sys.stdout)
        print()  # noqa: T201
        return 0
    rows = [
        (
            member.name,
            member.node[:12],
            member.status,
            _roles(answer, member.node),
            member.control,
            f"{member.capabilities.cores} cores"
            if member.capabilities.trains
            else "does not train",
        )
        for member in sorted(answer.members, key=lambda member: member.name)
    ]
    table(("name", "id", "status", "role", "address", "can"), rows)
    return 0


def _roles(answer: Nodes, node: str) -> str:
    roles = ["master"] if node == answer.master else []
    roles += ["voter"] if node in answer.voters else ["learner"]
    roles += ["(here)"] if node == answer.me else []
    return " ".join(roles)


async def _nodes(path: Path) -> Nodes:
    async with connect(path) as gate:
        return await gate.ask(NodesRequest(), Nodes)
