"""Commands on results: fetch, parity."""

import argparse
import tempfile
from functools import partial
from pathlib import Path

import trio

from p2ptrain.api import AsyncSession, hand_over
from p2ptrain.cli.cluster import settings
from p2ptrain.cli.output import say, show_json, table
from p2ptrain.cli.sessions import session_id
from p2ptrain.client import connect
from p2ptrain.errors import ExitCode, PeerError, UserError
from p2ptrain.ids import Digest
from p2ptrain.jobfile import build, load_jobfile
from p2ptrain.messages.gate import Parities, ParityRequest
from p2ptrain.spec.train import TrainSpec, load_spec


def fetch(arguments: argparse.Namespace) -> int:
    """Bring a session's weights and manifest here."""
    session = AsyncSession(session_id(arguments.session), settings(arguments).socket)
    force, folder = arguments.force, arguments.output
    weights, manifest = trio.run(partial(session.fetch, folder, force=force))
    if arguments.json:
        show_json({"weights": str(weights), "manifest": str(manifest)})
    else:
        say(f"wrote {weights} and {manifest}")
    return ExitCode.OK


def parity(arguments: argparse.Namespace) -> int:
    """Compare every device of every node; fails when one of them computes wrongly."""
    socket = settings(arguments).socket
    with tempfile.TemporaryDirectory(prefix="p2ptrain-") as folder:
        spec, files = _job(arguments.job, Path(folder))
        found = trio.run(_parity, socket, spec, files)
    if arguments.json:
        show_json(found)
    else:
        _show(found)
    broken = any(line.fault for node in found.nodes for line in node.lines)
    return ExitCode.FAILED if broken else ExitCode.OK


def _job(path: Path, folder: Path) -> tuple[TrainSpec, dict[Digest, Path]]:
    if path.suffix == ".toml":
        package = build(load_jobfile(path), folder)
        return package.spec, package.files
    try:
        return load_spec(path.read_bytes()), {}
    except (OSError, PeerError) as error:
        raise UserError(f"{path} is no spec: {error}") from error


async def _parity(socket: Path, spec: TrainSpec, files: dict[Digest, Path]) -> Parities:
    async with connect(socket) as gate:
        ref, blobs = await hand_over(gate, spec, files)
        return await gate.ask(ParityRequest(ref, blobs), Parities)


def _show(found: Parities) -> None:
    rows: list[tuple[object, ...]] = []
    for node in found.nodes:
        if node.problem:
            rows.append((node.node, "-", node.problem, "", "", ""))
        rows += [
            (
                node.node,
                line.device,
                "FAULT" if line.fault else "round-off",
                f"{line.max_rel:.2e}",
                line.output,
                line.reference,
            )
            for line in node.lines
        ]
    table(("node", "device", "verdict", "worst", "of output", "against"), rows)
