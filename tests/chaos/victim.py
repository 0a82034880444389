"""A node on which a fault strikes at a chosen point of the protocol.

Runs the real command line, or the real trainer, after wrapping one function. The fault
is described by the environment variable ``CHAOS``: a JSON object with ``point``,
``when`` (before or after the function's body), ``nth`` (of its calls), ``act``, and a
``folder``: calls count from the moment when it holds ``armed``; whoever strikes makes
``struck`` there, so that of several victims one strikes.
"""

import functools
import importlib
import inspect
import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

TRAINER = "tests.chaos.victim"
ROLE = "CHAOS_ROLE"


def is_view(call: dict[str, Any]) -> bool:
    return type(call["command"]).__name__ == "CommitView"


def is_vote(call: dict[str, Any]) -> bool:
    return type(call["message"]).__name__ == "Vote"


def adds(call: dict[str, Any]) -> bool:
    return bool(call["self"]._reduction.shape.adds(call["item"].op))


def passes_on(call: dict[str, Any]) -> bool:
    return not adds(call)


# name: process, module, function, and which of its calls count
POINTS: dict[str, tuple[str, str, str, Callable[[dict[str, Any]], bool] | None]] = {
    "ship": ("daemon", "p2ptrain.store.blobs", "BlobStore.append", None),
    "seal": ("daemon", "p2ptrain.store.blobs", "BlobStore.seal", None),
    "adopt": ("daemon", "p2ptrain.store.blobs", "BlobStore.adopt", None),
    "save": ("daemon", "p2ptrain.store.record", "SqliteRecord.save", None),
    "view": ("daemon", "p2ptrain.actors.master.tasks", "Tasks.propose", is_view),
    "vote": ("daemon", "p2ptrain.actors.post", "PostOffice.send", is_vote),
    "greet": ("trainer", "p2ptrain.engine.trainloop", "ViewRun._greet", None),
    "scatter": ("trainer", "p2ptrain.engine.collective", "_Turn._take_piece", adds),
    "gather": ("trainer", "p2ptrain.engine.collective", "_Turn._take_piece", passes_on),
    "apply": ("trainer", "p2ptrain.engine.step", "Stepper._apply", None),
    "checkpoint": ("trainer", "p2ptrain.engine.safefile", "write_tensors", None),
    "restore": ("trainer", "p2ptrain.engine.state", "TrainState.restore", None),
}


def strike(act: str, process: str) -> None:
    """Do what the fault is, to this process and to the other one of the node."""
    daemon = os.getpid() if process == "daemon" else os.getppid()
    number = signal.SIGSTOP if act == "freeze node" else signal.SIGKILL
    if act == "raise":
        raise RuntimeError("a fault was planted here")
    if act in {"kill node", "freeze node"}:
        os.kill(daemon, number)
        for child in children(daemon):
            if child != os.getpid():
                os.kill(child, number)
    os.kill(os.getpid(), number)


def is_first(folder: Path) -> bool:
    try:
        (folder / "struck").mkdir()
    except FileExistsError:
        return False
    return True


def children(pid: int) -> list[int]:
    tasks = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(word) for file in tasks for word in file.read_text().split()]


def arm(fault: dict[str, Any], process: str) -> None:
    """Wrap the function of the fault's point, if it is one of this process."""
    of, module, name, counts = POINTS[fault["point"]]
    if of != process:
        return
    owner: Any = importlib.import_module(module)
    *path, function = name.split(".")
    for part in path:
        owner = getattr(owner, part)
    real = getattr(owner, function)
    signature = inspect.signature(real)
    left = fault["nth"]
    folder = Path(fault["folder"])

    def due(when: str, arguments: tuple[Any, ...], named: dict[str, Any]) -> bool:
        nonlocal left
        if when != fault["when"] or not (folder / "armed").exists():
            return False
        call = signature.bind(*arguments, **named).arguments
        if counts is not None and not counts(call):
            return False
        left -= 1
        return left == 0 and is_first(folder)

    @functools.wraps(real)
    def wrapped(*arguments: Any, **named: Any) -> Any:
        if due("before", arguments, named):
            strike(fault["act"], process)
        result = real(*arguments, **named)
        if due("after", arguments, named):
            strike(fault["act"], process)
        return result

    @functools.wraps(real)
    async def awaited(*arguments: Any, **named: Any) -> Any:
        if due("before", arguments, named):
            strike(fault["act"], process)
        result = await real(*arguments, **named)
        if due("after", arguments, named):
            strike(fault["act"], process)
        return result

    setattr(owner, function, awaited if inspect.iscoroutinefunction(real) else wrapped)


def main() -> int:
    fault = json.loads(os.environ["CHAOS"])
    process = os.environ.get(ROLE, "daemon")
    arm(fault, process)
    if process == "trainer":
        return int(importlib.import_module("p2ptrain.engine.__main__").main())
    os.environ[ROLE] = "trainer"  # of the processes that this one starts
    engine = importlib.import_module("p2ptrain.engine.process").ProcessEngine
    engine.__init__.__defaults__ = ((sys.executable, "-P", "-m", TRAINER),)
    return int(importlib.import_module("p2ptrain.cli.app").main())


if __name__ == "__main__":
    sys.exit(main())
