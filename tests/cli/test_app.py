"""The command line as a person meets it: help, exit codes, one sentence."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from p2ptrain.cli.app import main
from p2ptrain.errors import ExitCode

ROOT = Path(__file__).parents[2]
COMMANDS = (
    *("init", "join", "token", "leave", "nodes", "submit", "status", "watch", "stop"),
    *("fetch", "parity", "demo"),
)


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "p2ptrain", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        env=os.environ | environment,
        check=False,
    )


def test_help_names_every_command_and_exit_code() -> None:
    result = run("--help")
    assert result.returncode == 0
    for command in COMMANDS:
        assert f"\n    {command} " in result.stdout
    for code in ExitCode:
        assert f"{code.value} " in result.stdout


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself(command: str) -> None:
    result = run(command, "--help")
    assert result.returncode == 0
    assert f"usage: p2ptrain {command}" in result.stdout


def test_help_is_quick_and_imports_nothing_heavy() -> None:
    code = (
        "import sys; from p2ptrain.cli import main\n"
        "try: main(['--help'])\n"
        "except SystemExit: pass\n"
        "heavy = {'torch', 'numpy', 'trio', 'rich', 'pynng'} & sys.modules.keys()\n"
        "assert not heavy, heavy"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
    times = []
    for _ in range(7):
        began = time.perf_counter()
        run("--help")
        times.append(time.perf_counter() - began)
    assert min(times) < 0.15


@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        (["nodes"], ExitCode.NO_DAEMON, "start one with 'p2ptrain join'"),
        (["status"], ExitCode.NO_DAEMON, "no daemon answers at"),
        (["watch", "x"], ExitCode.NOT_FOUND, "'x' is not a session id"),
        (["stop", "s-0123456789ab"], ExitCode.NO_DAEMON, "no daemon answers"),
        (["fetch", "x", "-o", "out"], ExitCode.NOT_FOUND, "is not a session id"),
        (["submit", "none.toml"], ExitCode.CONFIG, "none.toml does not exist"),
        (["nodes", "--config", "none.toml"], ExitCode.CONFIG, "does not exist"),
        (["join", "nonsense"], ExitCode.USAGE, "is not TOKEN@HOST:PORT"),
        (["join"], ExitCode.AUTH, "run 'p2ptrain init' to found a cluster"),
        (["join", "--port", "99999"], ExitCode.CONFIG, "port = 99999 is not allowed"),
        (["token"], ExitCode.AUTH, ""),
    ],
)
def test_mistakes_give_one_sentence_and_a_code(
    arguments: list[str],
    code: ExitCode,
    sentence: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("P2PTRAIN_STATE_DIR", str(tmp_path))
    monkeypatch.setenv("P2PTRAIN_RUNTIME_DIR", str(tmp_path))
    assert main(arguments) == code
    said = capsys.readouterr().err
    assert sentence in said
    assert said.startswith("p2ptrain: ")
    assert "Traceback" not in said
    assert len(said.strip().splitlines()) == 1


def test_plain_off_loopback_refuses_to_start(tmp_path: Path) -> None:
    result = run(
        *("join", "--host", "0.0.0.0"),
        P2PTRAIN_PLAIN="true",
        P2PTRAIN_STATE_DIR=str(tmp_path),
        P2PTRAIN_RUNTIME_DIR=str(tmp_path),
    )
    assert result.returncode == ExitCode.CONFIG
    assert "refusing to listen on 0.0.0.0 without TLS" in result.stderr


def test_wrong_usage_has_its_code() -> None:
    assert run("frobnicate").returncode == ExitCode.USAGE
    assert run("fetch").returncode == ExitCode.USAGE


def test_init_founds_once(tmp_path: Path) -> None:
    here = {
        "P2PTRAIN_STATE_DIR": str(tmp_path),
        "P2PTRAIN_RUNTIME_DIR": str(tmp_path),
    }
    first = run("init", "--advertise", "192.168.7.1", **here)
    assert first.returncode == 0
    assert "@192.168.7.1:7702" in first.stderr
    assert "bootstrap = true" in (tmp_path / "node.toml").read_text()
    again = run("init", **here)
    assert again.returncode == ExitCode.CONFLICT
    more = run("token", "--uses", "2", **here)
    assert more.returncode == 0
    assert more.stdout.strip().endswith("@192.168.7.1:7702")
