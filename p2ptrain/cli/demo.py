"""The demo: three daemons on this machine train a model on real data."""

import argparse
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import trio

import p2ptrain
from p2ptrain.api import AsyncSession, submit_async
from p2ptrain.cli.output import say, show_json
from p2ptrain.cli.sessions import follow_to_end
from p2ptrain.client import connect
from p2ptrain.errors import DeadlineError, ExitCode, NoDaemonError, P2PTrainError
from p2ptrain.jobfile import build, load_jobfile
from p2ptrain.members import MemberStatus
from p2ptrain.messages.gate import Nodes, NodesRequest, SessionLine
from p2ptrain.messages.record import SessionStatus

NAMES = ("ada", "emmy", "sofya")
MEET_S = 60.0
END_S = 15.0


@dataclass(frozen=True, slots=True)
class Daemon:
    """One daemon of the demo."""

    name: str
    process: subprocess.Popen[bytes]
    socket: Path
    log: Path


def demo(arguments: argparse.Namespace) -> int:
    """Run three daemons, one job on them, and measure what came out."""
    began = time.monotonic()
    signal.signal(signal.SIGTERM, _end)  # so that the daemons are ended too
    with _folder(arguments.keep) as folder, _daemons(folder) as daemons:
        trio.run(_meet, daemons)
        line, session = _train(daemons, folder)
        if line.status is not SessionStatus.DONE or line.result is None:
            raise P2PTrainError(f"the demo's job {line.status}: {line.reason}")
        result = Path(arguments.keep or Path.cwd()) / "demo-result"
        weights, manifest = trio.run(_fetch, session, result)
        figures = json.loads(manifest.read_text())
    accuracy = line.epochs[-1].metrics["accuracy"]
    digests = {report.node: report.digest for report in line.result.reports}
    seconds = time.monotonic() - began
    say(f"accuracy on the held-out group: {accuracy:.2%}")
    say(f"all {len(digests)} nodes hold state {line.result.state_digest[:16]}")
    say(f"weights: {weights}")
    if arguments.json:
        show_json(
            {
                "nodes": len(daemons),
                "world_size": len(line.members),
                "accuracy": accuracy,
                "digests": [digests[node] for node in line.members],
                "steps": figures.get("steps", line.step),
                "seconds": round(seconds, 2),
                "result": str(weights),
            }
        )
    return ExitCode.OK


def _end(number: int, _frame: object) -> None:
    raise SystemExit(128 + number)


def configs() -> Path:
    """Return the folder of the example files: in a wheel, or beside the package."""
    package = Path(p2ptrain.__file__).parent
    inside = package / "configs"
    return inside if inside.is_dir() else package.parent / "configs"


@contextmanager
def _folder(keep: Path | None) -> Iterator[Path]:
    if keep is not None:
        keep.mkdir(parents=True, exist_ok=True)
        yield keep.resolve()
        return
    with tempfile.TemporaryDirectory(prefix="p2ptrain-demo-") as name:
        yield Path(name)


@contextmanager
def _daemons(folder: Path) -> Iterator[list[Daemon]]:
    """Start the daemons, and end them whatever happens."""
    ports = free_ports(2 * len(NAMES))
    started: list[Daemon] = []
    try:
        for index, name in enumerate(NAMES):
            started.append(_start(folder / name, name, index, ports))
        yield started
    finally:
        for daemon in started:
            daemon.process.terminate()
        for daemon in started:
            _reap(daemon.process)


def _start(home: Path, name: str, index: int, ports: list[int]) -> Daemon:
    home.mkdir(parents=True, exist_ok=True)
    settings = {
        "name": name,
        "state_dir": str(home),
        "runtime_dir": str(home),
        "host": "127.0.0.1",
        "port": ports[2 * index],
        "ring_ports": [0, 0],
        "plain": True,
        "mdns": False,
        "threads": 1,  # three trainers share this machine
        "bootstrap": index == 0,
        "seeds": [f"127.0.0.1:{ports[0]}"] if index else [],
    }
    file = home / "node.toml"
    file.write_text("".join(f"{k} = {json.dumps(v)}\n" for k, v in settings.items()))
    log = home / "daemon.log"
    with log.open("wb") as output:
        process = subprocess.Popen(  # noqa: S603  # our own daemon
            [sys.executable, "-m", "p2ptrain", "join", "--config", str(file)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,  # Ctrl-C is for us to pass on
            env=_environment(),
        )
    say(f"started daemon {name}, pid {process.pid}")
    return Daemon(name, process, home / "gate.sock", log)


def _environment() -> dict[str, str]:
    """Return an environment in which no setting of the person's own node counts."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith("P2PTRAIN_")}
    home = str(Path(p2ptrain.__file__).parent.parent)
    paths = [home, *filter(None, [kept.get("PYTHONPATH")])]
    return kept | {"PYTHONPATH": os.pathsep.join(paths)}


def _reap(process: subprocess.Popen[bytes]) -> None:
    try:
        process.wait(END_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def free_ports(count: int) -> list[int]:
    """Return ports of the loopback that are free in pairs (each and the next one)."""
    found: list[int] = []
    while len(found) < count:
        with socket.socket() as probe, socket.socket() as following:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
            try:
                following.bind(("127.0.0.1", port + 1))
            except OSError:
                continue
            if not {port, port + 1} & set(found):
                found += [port, port + 1]
    return found


async def _meet(daemons: list[Daemon]) -> None:
    """Wait until all daemons see one another and one master."""
    with trio.move_on_after(MEET_S):
        while True:
            views = [await _view(daemon) for daemon in daemons]
            if all(view is not None and _is_whole(view) for view in views):
                break
            await trio.sleep(0.1)
        first = views[0]
        assert first is not None
        name = next(m.name for m in first.members if m.node == first.master)
        say(f"the daemons found each other and elected {name} as master")
        return
    logs = "\n".join(daemon.log.read_text()[-2000:] for daemon in daemons)
    raise DeadlineError(f"the daemons did not find each other:\n{logs}")


def _is_whole(view: Nodes) -> bool:
    alive = [m for m in view.members if m.status is MemberStatus.ALIVE]
    return len(alive) == len(NAMES) and bool(view.master)


async def _view(daemon: Daemon) -> Nodes | None:
    if daemon.process.poll() is not None:
        raise P2PTrainError(
            f"daemon {daemon.name} ended:\n{daemon.log.read_text()[-2000:]}"
        )
    try:
        async with connect(daemon.socket) as gate:
            return await gate.ask(NodesRequest(), Nodes)
    except NoDaemonError:
        return None


def _train(daemons: list[Daemon], folder: Path) -> tuple[SessionLine, AsyncSession]:
    """Submit the digits job to a node that is not the master, and follow it."""
    file = load_jobfile(configs() / "digits.toml")
    say(f"capturing {file.source.name}:{file.function}, whose code no daemon has")
    work = folder / "job"
    work.mkdir(exist_ok=True)
    package = build(file, work)
    chosen = daemons[-1]

    async def submit() -> AsyncSession:
        key = secrets.token_hex(16)
        return await submit_async(package, socket=chosen.socket, key=key)

    session = trio.run(submit)
    say(f"daemon {chosen.name} took the job: session {session.id}")
    return trio.run(follow_to_end, session), session


async def _fetch(session: AsyncSession, folder: Path) -> tuple[Path, Path]:
    return await session.fetch(folder, force=True)
