import os
import socket
from pathlib import Path

import pytest

from p2ptrain.notify import Notifier


@pytest.fixture
def systemd(tmp_path: Path) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    sock.bind(str(tmp_path / "notify"))
    sock.settimeout(2)
    yield sock
    sock.close()


def test_it_tells_systemd(
    systemd: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", systemd.getsockname())
    monkeypatch.setenv("WATCHDOG_USEC", "30000000")
    monkeypatch.setenv("WATCHDOG_PID", str(os.getpid()))
    notifier = Notifier.from_environment()
    assert notifier.watchdog_s == 30
    notifier.ready("serving")
    notifier.alive()
    notifier.stopping()
    got = [systemd.recv(100) for _ in range(3)]
    assert got == [b"READY=1\nSTATUS=serving", b"WATCHDOG=1", b"STOPPING=1"]


def test_another_process_watchdog_is_not_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WATCHDOG_USEC", "30000000")
    monkeypatch.setenv("WATCHDOG_PID", "1")
    assert Notifier.from_environment().watchdog_s == 0


def test_without_systemd_it_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    Notifier.from_environment().ready("serving")
    Notifier(address="/nonexistent/notify").ready("serving")
