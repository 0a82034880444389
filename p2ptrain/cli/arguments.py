"""All commands and their arguments; argparse, for it answers ``--help`` at once."""

import argparse
from pathlib import Path
from typing import TypeAlias

from p2ptrain import __version__

EPILOG = """\
exit codes: 0 ok (or the job is done), 1 failed, 2 wrong usage, 3 no daemon answers,
4 the cluster has no master, 5 refused (certificate or token), 6 timed out, 7 not found,
8 conflict, 78 wrong configuration, 130 interrupted (a submitted job goes on)

configuration: flag > P2PTRAIN_* variable > file > default; see configs/node.toml
"""


def make_parser() -> argparse.ArgumentParser:
    """Return the parser; ``command`` of its result names module and function."""
    parser = argparse.ArgumentParser(
        prog="p2ptrain",
        description="Machines that people already own train one model together.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    _add_cluster(commands)
    _add_sessions(commands)
    _add_results(commands)
    return parser


Parser: TypeAlias = argparse.ArgumentParser
Commands: TypeAlias = "argparse._SubParsersAction[Parser]"  # noqa: SLF001


def _command(
    commands: Commands, name: str, run: str, text: str
) -> argparse.ArgumentParser:
    made = commands.add_parser(
        name,
        help=text,
        description=text,
        epilog=EPILOG,
        allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.set_defaults(command=run)
    made.add_argument("--config", type=Path, metavar="FILE", help="the node's settings")
    return made


def _json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON")


def _node_flags(parser: argparse.ArgumentParser) -> None:
    for flag, kind, text in (
        ("name", str, "this node's name"),
        ("state-dir", Path, "keys, record, blobs"),
        ("runtime-dir", Path, "the local command socket"),
        ("host", str, "address to listen on"),
        ("advertise", str, "address that others reach this node by"),
        ("port", int, "control port; bulk is the next, enrolment the one after"),
        ("log-level", str, "debug, info, warning or error"),
    ):
        parser.add_argument(f"--{flag}", type=kind, help=text)
    parser.add_argument("--log-json", action="store_true", default=None)
    parser.add_argument(
        "--trace",
        action="store_true",
        default=None,
        help="trainers write Chrome traces of their steps to STATE_DIR/traces",
    )


def _add_cluster(commands: Commands) -> None:
    init = _command(commands, "init", "cluster:init", "found a cluster on this node")
    _node_flags(init)
    init.add_argument("--cluster", default="p2ptrain", help="the cluster's name")
    join = _command(
        commands, "join", "cluster:join", "enter a cluster, and run this node's daemon"
    )
    join.add_argument(
        "invitation", nargs="?", metavar="TOKEN@HOST:PORT", help="only the first time"
    )
    _node_flags(join)
    join.add_argument(
        "--witness", action="store_true", default=None, help="vote, but never train"
    )
    token = _command(commands, "token", "cluster:token", "issue a token for new nodes")
    token.add_argument("--state-dir", type=Path)
    token.add_argument("--hours", type=float, default=24.0, help="valid for so long")
    token.add_argument("--uses", type=int, default=1, help="for so many nodes")
    _command(commands, "leave", "cluster:leave", "leave the cluster for good")
    nodes = _command(commands, "nodes", "cluster:nodes", "show the cluster's nodes")
    _json(nodes)
    whole = commands.add_parser("cluster", help="recover a cluster")
    parts = whole.add_subparsers(metavar="COMMAND", required=True)
    recover = _command(
        parts,
        "recover",
        "recover:recover",
        "go on with this node's record alone, when most voters are lost for good",
    )
    recover.add_argument("--state-dir", type=Path, help="keys, record, blobs")
    recover.add_argument("--yes", action="store_true", help="do it, not only explain")
    recover.add_argument(
        "--follow",
        action="store_true",
        help="put this node's record aside, to follow a cluster that was recovered",
    )


def _add_sessions(commands: Commands) -> None:
    submit = _command(
        commands, "submit", "sessions:submit", "hand in a job and follow it"
    )
    submit.add_argument("job", type=Path, metavar="JOB.toml")
    submit.add_argument("--key", default="", help="the same key, the same session")
    submit.add_argument("--detach", action="store_true", help="do not follow it")
    _json(submit)
    status = _command(
        commands, "status", "sessions:status", "show all sessions, or one in detail"
    )
    status.add_argument("session", nargs="?", default="")
    _json(status)
    watch = _command(commands, "watch", "sessions:watch", "follow a session")
    watch.add_argument("session")
    _json(watch)
    stop = _command(commands, "stop", "sessions:stop", "stop a session")
    stop.add_argument("session")


def _add_results(commands: Commands) -> None:
    fetch = _command(commands, "fetch", "results:fetch", "bring a session's result")
    fetch.add_argument("session")
    fetch.add_argument("-o", "--output", type=Path, required=True, metavar="DIR")
    fetch.add_argument("--force", action="store_true", help="replace other files")
    _json(fetch)
    audit = _command(
        commands, "audit", "audit:audit", "prove that each sample counted once"
    )
    audit.add_argument("session")
    audit.add_argument("--step", type=int, help="who counted which samples in a step")
    _json(audit)
    parity = _command(
        commands,
        "parity",
        "results:parity",
        "run a job's graph on every device of every node and compare",
    )
    parity.add_argument("job", type=Path, metavar="SPEC|JOB.toml")
    _json(parity)
    demo = _command(
        commands, "demo", "demo:demo", "three daemons on this machine train a model"
    )
    demo.add_argument("--keep", type=Path, metavar="DIR", help="keep all files there")
    _json(demo)
