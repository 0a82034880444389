"""``p2ptrain audit``: replays a session's record and says what it proves."""

import argparse
import json
from pathlib import Path

import trio

from p2ptrain.api import status_of
from p2ptrain.cli.cluster import settings
from p2ptrain.cli.output import say, show_json, table
from p2ptrain.cli.sessions import session_id
from p2ptrain.client import GateClient, connect
from p2ptrain.core.audit import (
    Account,
    Said,
    Stretch,
    Verdict,
    contributions,
    replay,
    stretches,
    words_of,
)
from p2ptrain.core.stream import Schedule
from p2ptrain.errors import ExitCode, NotFoundError, PeerError
from p2ptrain.ids import NodeId, SessionId
from p2ptrain.messages.gate import (
    GetRequest,
    Ledger,
    LedgerRequest,
    Nodes,
    NodesRequest,
    SessionLine,
)
from p2ptrain.messages.record import AddCheckpoint, AddEpoch, BlobRef, CommitView, Seat
from p2ptrain.spec.train import TrainSpec, load_spec

Names = dict[NodeId, str]


def audit(arguments: argparse.Namespace) -> int:
    """Replay a session; fails when a step says otherwise."""
    session = session_id(arguments.session)
    account, names = trio.run(gather, settings(arguments).socket, session)
    if arguments.step is not None:
        return _show_step(account, names, arguments.step, as_json=arguments.json)
    verdict = replay(account)
    if arguments.json:
        show_json(summary(account, verdict))
    else:
        _show(account, verdict, names)
    return ExitCode.OK if verdict.clean else ExitCode.FAILED


def summary(account: Account, verdict: Verdict) -> dict[str, object]:
    """Return a verdict for machines."""
    return {
        "steps": account.applied,
        "epochs_complete": account.schedule.complete(account.applied),
        "epochs_exact": verdict.epochs,
        "samples_lost": verdict.lost,
        "samples_doubled": verdict.doubled,
        "digests_compared": verdict.compared,
        "digest_mismatches": verdict.mismatches,
        "skipped_steps": list(account.skipped),
        "ranks_own_account": account.ranks is not None,
        "views": verdict.stretches,
        "findings": verdict.findings,
        "clean": verdict.clean,
    }


async def gather(socket: Path, session: SessionId) -> tuple[Account, Names]:
    """Ask a daemon for all that is known of a session.

    Raises:
        NotFoundError: there is no such session.
        RefusedError: its spec or manifest cannot be had.
    """
    async with connect(socket) as gate:
        line = await status_of(gate, session)
        pages = await _pages(gate, session)
        nodes = await gate.ask(NodesRequest(), Nodes)
        others = tuple(member.node for member in nodes.members)
        last = pages[-1]
        spec = load_spec(await _blob(gate, last.spec, (*last.holders, *others)))
        about: dict[str, object] = {}
        if line.result is not None:
            holders = (*line.result.holders, *others)
            about = json.loads(await _blob(gate, line.result.manifest, holders))
    names = {member.node: member.name for member in nodes.members}
    return _account(spec, line, pages, about), names


async def _pages(gate: GateClient, session: SessionId) -> list[Ledger]:
    pages: list[Ledger] = []
    view = epoch = 0
    while True:
        page = await gate.ask(LedgerRequest(session, view, epoch), Ledger)
        pages.append(page)
        if not page.views and not page.epochs:
            return pages
        view = page.views[-1].view + 1 if page.views else view
        epoch = page.epochs[-1].epoch + 1 if page.epochs else epoch


async def _blob(gate: GateClient, blob: BlobRef, holders: tuple[NodeId, ...]) -> bytes:
    data = bytearray()
    async for piece in gate.get(GetRequest(blob, holders)):
        data += piece
    return bytes(data)


def _account(
    spec: TrainSpec, line: SessionLine, pages: list[Ledger], about: dict[str, object]
) -> Account:
    samples = sum(r.shard_len for r in spec.data if r.input == spec.data[0].input)
    plan = Schedule(samples, len(spec.lr_per_epoch), spec.step_samples, spec.batch)
    views = tuple(view for page in pages for view in page.views)
    epochs = [epoch for page in pages for epoch in page.epochs]
    kept = pages[-1].checkpoints
    applied = line.result.step if line.result else _reached(views, epochs, kept)
    words = words_of(views, applied)
    words += [Said(e.step, e.digest, f"epoch {e.epoch + 1}") for e in epochs]
    words += [Said(c.step, c.state_digest, "a checkpoint") for c in kept]
    if line.result is not None:
        words.append(Said(applied, line.result.state_digest, "the result"))
        words += [
            Said(applied, report.digest, f"node {report.node[:8]}'s report")
            for report in line.result.reports
        ]
    try:
        ranks, skipped = _own_account(about, applied)
    except (KeyError, TypeError, ValueError) as error:
        raise PeerError(
            f"the manifest of {line.session} is damaged: {error}"
        ) from error
    return Account(plan, applied, views, tuple(words), ranks, skipped)


def _reached(
    views: tuple[CommitView, ...],
    epochs: list[AddEpoch],
    checkpoints: tuple[AddCheckpoint, ...],
) -> int:
    """Return how many applied steps the record of an unfinished session proves."""
    steps = [view.first_step for view in views[-1:]]
    steps += [epoch.step for epoch in epochs] + [kept.step for kept in checkpoints]
    return max(steps, default=0)


def _own_account(
    about: dict[str, object], applied: int
) -> tuple[tuple[Stretch, ...] | None, tuple[int, ...]]:
    """Return the ranks' own account, and the steps that they skipped."""
    notes, losses = about.get("views"), about.get("losses")
    if not isinstance(notes, list) or not isinstance(losses, list):
        return None, ()
    told = [
        (
            int(note["view"]),
            int(note["first_step"]),
            tuple(Seat(NodeId(s["node"]), int(s["share"])) for s in note["seats"]),
        )
        for note in notes
    ]
    skipped = tuple(step for step, loss in enumerate(losses) if loss is None)
    return stretches(told, applied), skipped


def _show(account: Account, verdict: Verdict, names: Names) -> None:
    plan = account.schedule
    rows = [
        (
            stretch.view,
            f"{stretch.first} to {stretch.end - 1}",
            (stretch.end - stretch.first) * plan.step_samples,
            ", ".join(f"{_name(names, s.node)} {s.share}" for s in stretch.seats),
        )
        for stretch in verdict.stretches
    ]
    table(("view", "steps", "samples", "parts of a step by node"), rows)
    complete = plan.complete(account.applied)
    say(
        f"{verdict.epochs} of {complete} complete epochs counted each of "
        f"{plan.samples} samples exactly once; {verdict.lost} lost, "
        f"{verdict.doubled} doubled"
    )
    say(f"{verdict.compared} digests compared, {verdict.mismatches} differ")
    if account.skipped:
        shown = ", ".join(map(str, account.skipped[:10]))
        say(f"{len(account.skipped)} steps were skipped by all ranks: {shown}")
    if account.ranks is None:
        say("without a result there is no account of the ranks' own to compare with")
    for sentence in verdict.findings:
        say(f"NOT CLEAN: {sentence}")


def _show_step(account: Account, names: Names, step: int, *, as_json: bool) -> int:
    found = contributions(account, step)
    if not found:
        raise NotFoundError(
            f"step {step} is not on record; {account.applied} steps are applied"
        )
    if as_json:
        show_json(found)
        return ExitCode.OK
    samples = account.schedule.samples
    rows = [
        (
            _name(names, c.node),
            c.stop - c.start,
            _place(c.start, samples),
            _place(c.stop, samples),
        )
        for c in found
    ]
    table(("node", "samples", "from", "to"), rows)
    return ExitCode.OK


def _place(position: int, samples: int) -> str:
    return f"epoch {position // samples + 1}, place {position % samples}"


def _name(names: Names, node: NodeId) -> str:
    return names.get(node, node[:8])
