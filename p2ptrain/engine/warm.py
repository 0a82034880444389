"""A trainer started ahead: most of a session's start is the import of torch.

Satisfies ``ports.Engine``. The spare process waits, having imported everything, for its
first frame. It gets its folder when it is given away: its log and its working directory
move along with the folder that they lie in.
"""

import shutil
from functools import partial
from pathlib import Path

import trio

from p2ptrain.engine.process import LOG_NAME, ProcessEngine, ProcessTrainer
from p2ptrain.ports import Trainer


class WarmEngine:
    """Starts trainers, the next one ahead if it is told to.

    Args:
        engine: starts the processes.
        folder: for the spare's files; None to start none ahead.
    """

    def __init__(self, engine: ProcessEngine, folder: Path | None) -> None:
        self._engine = engine
        self._folder = folder
        self._spare: ProcessTrainer | None = None

    async def launch(self, workdir: Path) -> Trainer:
        """Return the spare, or start a trainer.

        Args:
            workdir: an empty folder.

        Raises:
            StorageError: the log cannot be opened.
        """
        spare, self._spare = self._spare, None
        if spare is not None and self._folder is not None:
            if spare.is_alive and await self._move(workdir):
                spare.log = workdir / LOG_NAME
                return spare
            await spare.aclose()
        return await self._engine.launch(workdir)

    async def warm(self) -> None:
        """Start the spare, unless there is one or none is wanted.

        Raises:
            StorageError: the log cannot be opened.
        """
        if self._folder is not None and self._spare is None:
            self._spare = await self._engine.launch(self._folder)

    async def aclose(self) -> None:
        """End the spare, and remove its files."""
        spare, self._spare = self._spare, None
        if spare is not None and self._folder is not None:
            await spare.aclose()
            remove = partial(shutil.rmtree, self._folder, ignore_errors=True)
            await trio.to_thread.run_sync(remove)

    async def _move(self, workdir: Path) -> bool:
        assert self._folder is not None
        try:
            await trio.to_thread.run_sync(self._folder.replace, workdir)
        except OSError:
            return False
        return True
