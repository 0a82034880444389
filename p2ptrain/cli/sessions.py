"""Commands on sessions: submit, status, watch, stop."""

import argparse
import secrets
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import trio

from p2ptrain.api import FINAL, AsyncSession, status_of, submit_async
from p2ptrain.cli.cluster import settings
from p2ptrain.cli.output import say, show_json, size, table
from p2ptrain.cli.progress import follow
from p2ptrain.client import connect
from p2ptrain.errors import ExitCode, NotFoundError
from p2ptrain.ids import SessionId, is_session
from p2ptrain.jobfile import build, load_jobfile
from p2ptrain.messages.gate import (
    Info,
    InfoRequest,
    SessionLine,
    Sessions,
    SessionsRequest,
)
from p2ptrain.messages.record import SessionStatus, WorkerReport


def submit(arguments: argparse.Namespace) -> int:
    """Capture a job here, hand it in, and follow it; the exit code is its result."""
    socket = settings(arguments).socket
    file = load_jobfile(arguments.job)
    trio.run(_check_daemon, socket)
    say(f"capturing {file.source.name}:{file.function}")
    with tempfile.TemporaryDirectory(prefix="p2ptrain-") as folder:
        package = build(file, Path(folder))
        total = sum(path.stat().st_size for path in package.files.values())
        nodes = len(package.spec.graph.nodes)
        say(f"captured: {nodes} operators, {size(total)} of weights and data")
        key = arguments.key or secrets.token_hex(16)
        session = trio.run(_submit, package, socket, key)
    say(f"session {session.id} is accepted")
    if arguments.detach:
        if arguments.json:
            show_json({"session": session.id})
        else:
            print(session.id)  # noqa: T201
        return ExitCode.OK
    return _follow(session, as_json=arguments.json)


async def _check_daemon(socket: Path) -> None:
    """Fail before a long capture, not after it, when no daemon answers."""
    async with connect(socket) as gate:
        await gate.ask(InfoRequest(), Info)


async def _submit(package: object, socket: Path, key: str) -> AsyncSession:
    return await submit_async(package, socket=socket, key=key)  # type: ignore[arg-type]  # a Package


@contextmanager
def detaching(session: SessionId) -> Iterator[None]:
    """Say how to come back, when the person only stops looking."""
    try:
        yield
    except KeyboardInterrupt:
        say(f"\ndetached; the job goes on. Come back: p2ptrain watch {session}")
        raise


def _follow(session: AsyncSession, *, as_json: bool) -> int:
    with detaching(session.id):
        line = trio.run(follow_to_end, session)
    if as_json:
        show_json(line)
    else:
        _show(line)
    return ExitCode.OK if line.status is SessionStatus.DONE else ExitCode.FAILED


async def follow_to_end(session: AsyncSession) -> SessionLine:
    """Show progress until a session has ended; return what the record says."""
    line = await session.status()
    if line.status not in FINAL:
        await follow(session.watch())
        line = await session.settled()
    return line


def watch(arguments: argparse.Namespace) -> int:
    """Follow a session to its end."""
    session = AsyncSession(session_id(arguments.session), settings(arguments).socket)
    return _follow(session, as_json=arguments.json)


def stop(arguments: argparse.Namespace) -> int:
    """Stop a session at a step boundary."""
    session = AsyncSession(session_id(arguments.session), settings(arguments).socket)
    trio.run(session.stop)
    say(f"session {session.id} stops at its next step")
    return ExitCode.OK


def status(arguments: argparse.Namespace) -> int:
    """Show all sessions, or one in detail."""
    socket = settings(arguments).socket
    if arguments.session:
        line = trio.run(_status, socket, session_id(arguments.session))
        if arguments.json:
            show_json(line)
        else:
            _show(line)
        return ExitCode.OK
    answer = trio.run(_sessions, socket)
    if arguments.json:
        show_json(answer)
        return ExitCode.OK
    rows = [
        (line.session, line.name, line.status, line.step, _age(line), line.reason)
        for line in answer.lines
    ]
    table(("session", "name", "status", "step", "age", "reason"), rows)
    return ExitCode.OK


async def _status(socket: Path, session: SessionId) -> SessionLine:
    async with connect(socket) as gate:
        return await status_of(gate, session)


async def _sessions(socket: Path) -> Sessions:
    async with connect(socket) as gate:
        return await gate.ask(SessionsRequest(""), Sessions)


def _show(line: SessionLine) -> None:
    rows: list[tuple[str, object]] = [
        ("session", line.session),
        ("name", line.name),
        ("status", f"{line.status}: {line.reason}" if line.reason else line.status),
        ("step", line.step),
        ("view", f"{line.view} of {len(line.members)} nodes"),
    ]
    for epoch in line.epochs[-5:]:
        figures = " ".join(f"{k} {v:.4f}" for k, v in epoch.metrics.items())
        rows.append((f"epoch {epoch.epoch + 1}", f"loss {epoch.loss:.4f} {figures}"))
    if line.checkpoint_step >= 0:
        rows.append(("checkpoint", f"after step {line.checkpoint_step}"))
    if line.result is not None:
        rows.append(("digest", line.result.state_digest[:16]))
        rows += [
            (f"node {report.node[:8]}", _effort(report))
            for report in line.result.reports
        ]
        rows.append(("fetch", f"p2ptrain fetch {line.session} -o DIR"))
    table(("", ""), rows)


def _effort(report: WorkerReport) -> str:
    return (
        f"{report.samples} samples on {report.device}, compute "
        f"{report.compute_s:.1f} s, ring {report.comm_s:.1f} s"
    )


def _age(line: SessionLine) -> str:
    minutes = (time.time() - line.submitted_s) / 60
    return f"{minutes:.0f} min" if minutes < 120 else f"{minutes / 60:.0f} h"


def session_id(text: str) -> SessionId:
    """Return a session id that was typed.

    Raises:
        NotFoundError: it has not the form of one.
    """
    if not is_session(text):
        raise NotFoundError(
            f"{text!r} is not a session id, such as s-0123456789ab; "
            "'p2ptrain status' lists them"
        )
    return SessionId(text)
