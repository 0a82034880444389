"""What must hold after any fault."""

import socket
from pathlib import Path

import trio

from p2ptrain.api import AsyncSession
from p2ptrain.cli.audit import gather
from p2ptrain.core.audit import replay
from p2ptrain.ids import digest_of
from p2ptrain.messages.record import SessionStatus
from tests.integration.daemons import Cluster, Daemon

END_S = 60.0


class Judge:
    """Judges a cluster.

    Args:
        cluster: the daemons.
        truth: the final digest of an undisturbed run.
    """

    def __init__(self, cluster: Cluster, truth: str) -> None:
        self.cluster, self.truth = cluster, truth

    def logs(self) -> str:
        return "\n".join(f"{d.name}\n{d.log[-4000:]}" for d in self.cluster.daemons)

    async def finished(self, session: AsyncSession, at: Daemon) -> None:
        """The session is done, with the right bits, and each sample counted once."""
        with trio.move_on_after(END_S) as scope:
            line = await session.wait()
        if scope.cancelled_caught:
            line = await session.status()
            raise AssertionError(f"not finished: {line}\n{self.logs()}")
        assert line.status is SessionStatus.DONE, f"{line.reason}\n{self.logs()}"
        assert line.result is not None
        digests = {report.digest for report in line.result.reports}
        assert digests == {self.truth}, self.logs()
        assert await self.audited(session, at)

    async def audited(self, session: AsyncSession, at: Daemon) -> bool:
        """The record is clean; tell whether the ranks' own account was compared."""
        account, _ = await gather(at.socket, session.id)
        verdict = replay(account)
        assert verdict.clean, verdict.findings
        return account.ranks is not None

    def stop_and_look(self) -> None:
        """Nothing is left: no process, no port, no half file under a real name."""
        pids = [pid for d in self.cluster.daemons for pid in (d.pid, *d.trainers)]
        self.cluster.stop()
        alive = [pid for pid in pids if is_ours(pid)]
        assert alive == [], self.logs()
        for daemon in self.cluster.daemons:
            with socket.socket() as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(("127.0.0.1", int(str(daemon.settings["port"]))))
            look_at_files(daemon.home)


def look_at_files(home: Path) -> None:
    for blob in (home / "blobs").glob("*/*"):
        assert digest_of(blob.read_bytes()) == blob.name, f"{blob} is damaged"
    left = [p for p in (home / "work").rglob("*") if p.is_file()]
    assert left == [], "trainers left files"
    assert not list((home / "partial").glob("new-*"))
    assert not (home / "gate.sock").exists()


def is_ours(pid: int) -> bool:
    try:
        return b"p2ptrain" in Path(f"/proc/{pid}/cmdline").read_bytes() and (
            Path(f"/proc/{pid}/stat").read_text().split(")")[1].split()[0] != "Z"
        )
    except OSError:
        return False
