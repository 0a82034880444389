"""Trainer processes as the daemon sees them: started, spoken to, and reaped.

Satisfies ``ports.Trainer``; imports no torch. The child talks in
frames on its standard input and output; what it and its libraries print goes to
``trainer.log`` in its workdir. It ends when its standard input does, so no trainer
outlives the daemon, however that died. (A parent-death signal would be wrong here: it
fires when the starting *thread* ends, and trio starts processes from short-lived ones.)
"""

import os
import signal
import subprocess
import sys
from collections import deque
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import BinaryIO, Final, Self

import trio

import p2ptrain
from p2ptrain import codec
from p2ptrain.engine.frames import Splitter, frame_of
from p2ptrain.errors import PeerError, StorageError
from p2ptrain.messages.trainer import Fault, FromTrainer, Quit, ToTrainer

LOG_NAME: Final = "trainer.log"
GRACE_S: Final = 5.0
SEND_S: Final = 10.0  # the trainer's reader thread always reads
PIECE_BYTES: Final = 64 * 1024
TAIL_BYTES: Final = 4096
TABLE: Final[dict[str, type[FromTrainer]]] = codec.kinds(FromTrainer)

# -P: the working directory must not shadow a library
COMMAND: Final = (sys.executable, "-P", "-m", "p2ptrain.engine")


def environment() -> dict[str, str]:
    """Return this process's environment, in which the child finds this very package,
    installed or not.
    """
    home = str(Path(p2ptrain.__file__).parent.parent)
    paths = [home, *filter(None, [os.environ.get("PYTHONPATH")])]
    return os.environ | {"PYTHONPATH": os.pathsep.join(paths)}


def last_line(log: Path) -> str:
    """Return the last line of a log that says anything, or nothing."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - TAIL_BYTES))
            lines = file.read().decode(errors="replace").split("\n")
    except OSError:
        return ""
    said = [line.strip() for line in lines if line.strip()]
    return said[-1][:400] if said else ""


def cause_of(code: int) -> str:
    """Say how a process ended, from its return code."""
    if code >= 0:
        return f"exited with code {code}"
    name = signal.Signals(-code).name
    hint = " (often: out of memory)" if name == "SIGKILL" else ""
    return f"was killed by {name}{hint}"


class ProcessTrainer:
    """One trainer process; see ``ports.Trainer``.

    Args:
        process: the process, with pipes for standard input and output.
        log: where its standard error goes.
    """

    def __init__(self, process: trio.Process, log: Path) -> None:
        self._process = process
        self.log = log
        self._sending = trio.Lock()
        self._told_to_quit = False

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        """Whether the process runs."""
        return self._process.poll() is None

    async def send(self, frame: ToTrainer) -> None:
        """Send a frame; a dead process makes this a no-op (``frames`` tells)."""
        assert self._process.stdin is not None
        self._told_to_quit |= isinstance(frame, Quit)
        async with self._sending:
            # Half a frame would garble all later ones: it is whole or the last.
            with trio.move_on_after(SEND_S, shield=True) as scope:
                try:
                    await self._process.stdin.send_all(frame_of(frame))
                except (trio.BrokenResourceError, trio.ClosedResourceError):
                    return
        if scope.cancelled_caught:
            self._process.kill()

    def frames(self) -> AsyncIterator[FromTrainer]:
        """Yield its frames; ends with a ``Fault`` that says how it died unless it quit
        when told.
        """
        return _Frames(self)

    async def read(self) -> bytes:
        """Return the next piece of its output, nothing at the end."""
        assert self._process.stdout is not None
        try:
            return bytes(await self._process.stdout.receive_some(PIECE_BYTES))
        except trio.ClosedResourceError:
            return b""

    def kill(self) -> None:
        """End it now; ``aclose`` reaps it."""
        self._process.kill()

    async def end(self) -> Fault | None:
        """Wait for its end; return how it died unless it was told to quit."""
        code = await self._process.wait()
        if self._told_to_quit:
            return None
        said = await trio.to_thread.run_sync(last_line, self.log)
        cause = f"the trainer process {self.pid} {cause_of(code)}"
        sentence = f"{cause}; it last said: {said}" if said else cause
        return Fault(sentence, of_node=True)

    async def aclose(self) -> None:
        """Ask it to quit, kill it after a grace period, reap it."""
        with trio.CancelScope(shield=True):
            with trio.move_on_after(GRACE_S):
                await self.send(Quit())
                assert self._process.stdin is not None
                await self._process.stdin.aclose()
                await self._process.wait()
            self._process.kill()
            await self._process.wait()
            assert self._process.stdout is not None
            await self._process.stdout.aclose()
        await trio.lowlevel.checkpoint()


class _Frames:
    """The frames of one trainer; an object, not a generator, so that leaving it in the
    middle leaves nothing to clean up.
    """

    def __init__(self, trainer: ProcessTrainer) -> None:
        self._trainer = trainer
        self._splitter = Splitter(TABLE)
        self._ready: deque[FromTrainer] = deque()
        self._ended = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> FromTrainer:
        while not self._ready:
            if self._ended:
                raise StopAsyncIteration
            await self._fill()
        frame = self._ready.popleft()
        self._ended |= isinstance(frame, Fault)
        return frame

    async def _fill(self) -> None:
        piece = await self._trainer.read()
        if piece:
            try:
                self._ready.extend(self._splitter.feed(piece))
            except PeerError as error:
                self._trainer.kill()
                sentence = f"the trainer process sent garbage: {error}"
                self._ready.append(Fault(sentence, of_node=True))
            return
        self._ended = True
        obituary = await self._trainer.end()
        if obituary is not None:
            self._ready.append(obituary)


class ProcessEngine:
    """Starts trainer processes; see ``ports.Engine`` and ``engine.warm``.

    Args:
        command: what to run; the default is this package's own trainer.
    """

    def __init__(self, command: Sequence[str] = COMMAND) -> None:
        self._command = tuple(command)

    async def launch(self, workdir: Path) -> ProcessTrainer:
        """Start a trainer whose log and files are in workdir.

        Raises:
            StorageError: the log cannot be opened.
        """
        path = workdir / LOG_NAME
        log = await trio.to_thread.run_sync(_open_log, path)
        try:
            process = await trio.lowlevel.open_process(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                cwd=workdir,
                env=environment(),
                start_new_session=True,  # Ctrl-C is for the daemon, which quits it
            )
        finally:
            log.close()
        return ProcessTrainer(process, path)


def _open_log(path: Path) -> BinaryIO:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return path.open("ab")
    except OSError as error:
        raise StorageError(
            f"cannot open the trainer's log {path}: {error.strerror}"
        ) from error
