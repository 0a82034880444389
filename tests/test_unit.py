"""The systemd unit, checked without a running systemd."""

import configparser
import re
import shutil
import subprocess
from pathlib import Path

import pytest

UNIT = Path(__file__).parent.parent / "systemd" / "p2ptrain.service"


@pytest.fixture
def service() -> configparser.SectionProxy:
    parser = configparser.RawConfigParser(strict=False, interpolation=None)
    parser.optionxform = str  # type: ignore[assignment, method-assign]  # keep case
    parser.read(UNIT)
    return parser["Service"]


def test_it_waits_for_readiness_and_is_watched(
    service: configparser.SectionProxy,
) -> None:
    assert service["Type"] == "notify"
    assert service["WatchdogSec"] == "30s"
    assert service["Restart"] == "always"
    assert service["RestartPreventExitStatus"] == "78"
    assert " join " in service["ExecStart"]


def test_torch_may_write_and_execute(service: configparser.SectionProxy) -> None:
    assert "MemoryDenyWriteExecute" not in service


@pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="systemd is not installed"
)
def test_it_is_hardened() -> None:
    result = subprocess.run(
        ["systemd-analyze", "security", "--offline=true", str(UNIT)],
        capture_output=True,
        text=True,
        check=False,
    )
    found = re.search(r"Overall exposure level for \S+: ([0-9.]+)", result.stdout)
    assert found is not None, result.stderr
    assert float(found.group(1)) <= 1.5
