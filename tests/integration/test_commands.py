"""The commands that a person types, against one daemon: results, refusals, codes."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from p2ptrain.errors import ExitCode
from tests.integration.daemons import Cluster

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.timeout(180)]

MODEL = """
import numpy as np
import torch
from torch import nn
from p2ptrain.engine.package import Job

class Branching(nn.Linear):
    def forward(self, x):
        return super().forward(x) if x.sum() > 0 else x[:, :1]

def job(kind="plain", dtype="float32"):
    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    x = rng.standard_normal((60, 3)).astype(dtype)
    y = (x @ np.ones((3, 1))).astype("float32")
    model = Branching(3, 1) if kind == "branching" else nn.Linear(3, 1)
    def loss(model, batch):
        return ((model(batch["x"].float()) - batch["y"]) ** 2).mean()
    def error(model, batch):
        return (model(batch["x"].float()) - batch["y"]).abs().mean(dim=1)
    example = {"x": torch.from_numpy(x[:4]).float(), "y": torch.from_numpy(y[:4])}
    data = {"x": x, "y": y}
    return Job(model, loss, example, data, data, {"error": error})
"""
JOB = """
name = "line"
[model]
file = "model.py"
args = {args}
[train]
{train}
"""
TRAIN = "epochs = 4\nlr = 0.1\nglobal_batch = 8"


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path_factory.mktemp("commands"), 1)
    cluster.start()
    yield cluster
    cluster.stop()


@pytest.fixture
def shell(daemon: Cluster, tmp_path: Path) -> "Shell":
    return Shell(daemon, tmp_path)


class Shell:
    """Runs commands against the daemon, in a folder with a model file."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self.config = cluster.daemons[0].home / "node.toml"
        self.folder = folder
        (folder / "model.py").write_text(MODEL)

    def job(self, train: str = TRAIN, args: str = "{}") -> Path:
        path = self.folder / "job.toml"
        path.write_text(JOB.format(train=train, args=args))
        return path

    def __call__(self, *arguments: object) -> subprocess.CompletedProcess[str]:
        command, *rest = map(str, arguments)
        where = ["--config", str(self.config)]
        return subprocess.run(
            [sys.executable, "-m", "p2ptrain", command, *where, *rest],
            capture_output=True,
            text=True,
            timeout=120,
            cwd=self.folder,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
            check=False,
        )


def test_from_submit_to_load_state_dict(shell: Shell) -> None:
    done = shell("submit", shell.job(), "--json")
    assert done.returncode == ExitCode.OK, done.stderr
    line = json.loads(done.stdout)
    assert line["status"] == "done"
    assert line["epochs"][-1]["metrics"]["error"] < 0.5
    session = line["session"]

    fetched = shell("fetch", session, "-o", "out", "--json")
    assert fetched.returncode == ExitCode.OK, fetched.stderr
    weights = Path(json.loads(fetched.stdout)["weights"])
    model = torch.nn.Linear(3, 1)
    model.load_state_dict(load_file(shell.folder / weights))
    assert torch.allclose(model.weight, torch.ones(1, 3), atol=0.3)
    manifest = json.loads((shell.folder / "out" / "manifest.json").read_text())
    assert len(manifest["losses"]) == line["result"]["step"]

    assert shell("fetch", session, "-o", "out").returncode == ExitCode.OK
    (shell.folder / "out" / "manifest.json").write_text("mine")
    again = shell("fetch", session, "-o", "out")
    assert again.returncode == ExitCode.CONFLICT
    assert "use --force" in again.stderr
    assert (shell.folder / "out" / "manifest.json").read_text() == "mine"
    assert shell("fetch", session, "-o", "out", "--force").returncode == ExitCode.OK

    shown = shell("status", session)
    assert "done" in shown.stdout
    listed = json.loads(shell("status", "--json").stdout)
    assert session in {item["session"] for item in listed["lines"]}
    watched = shell("watch", session, "--json")
    assert watched.returncode == ExitCode.OK
    nodes = json.loads(shell("nodes", "--json").stdout)
    assert [member["name"] for member in nodes["members"]] == ["n0"]


def test_the_same_key_twice_is_one_session(shell: Shell) -> None:
    job = shell.job()
    first = shell("submit", job, "--key", "k", "--detach")
    second = shell("submit", job, "--key", "k", "--detach")
    assert first.stdout == second.stdout != ""
    other = shell("submit", shell.job(TRAIN + "\nseed = 3"), "--key", "k", "--detach")
    assert other.returncode == ExitCode.FAILED
    assert "named another job" in other.stderr


def test_parity_finds_round_off_only(shell: Shell) -> None:
    found = shell("parity", shell.job(), "--json")
    assert found.returncode == ExitCode.OK, found.stderr
    (node,) = json.loads(found.stdout)["nodes"]
    assert node["problem"] == ""
    assert [line["fault"] for line in node["lines"]] == [False]


@pytest.mark.parametrize(
    ("train", "args", "code", "words"),
    [
        ("epochs = 2\nlr = -1.0", "{}", 2, ["lr_per_epoch[0]", "-1.0"]),
        ("lr_per_epoch = []", "{}", 2, ["lr_per_epoch"]),
        (TRAIN + "\nmomentum = -0.5", "{}", 2, ["momentum", "-0.5"]),
        ("epochs = 2\nlr = 0.1\nglobal_batch = 6", "{}", 2, ["global_batch", "6"]),
        (TRAIN + "\nclip_norm = 0.0", "{}", 2, ["clip_norm"]),
        (TRAIN + '\noptimizer = "lion"', "{}", 78, ["sgd, adamw", "'lion'"]),
        (TRAIN + "\nepocs = 3", "{}", 78, ["'epocs'", "'epochs'"]),
        (TRAIN, '{ kind = "branching" }', 2, ["model.py:"]),
        (TRAIN, '{ dtype = "float64" }', 2, ["'x'", "float64"]),
        (TRAIN, "{ colour = 1 }", 2, ["colour"]),
        (TRAIN + '\ndevice = "cuda:7"', "{}", 1, ["n0", "cuda:7"]),
    ],
)
def test_refusals_name_what_is_wrong(
    shell: Shell, train: str, args: str, code: int, words: list[str]
) -> None:
    refused = shell("submit", shell.job(train, args))
    assert refused.returncode == code, refused.stderr
    said = refused.stderr + refused.stdout
    assert "Traceback" not in said
    for word in words:
        assert word in said


def test_unknown_sessions_are_not_found(shell: Shell) -> None:
    for arguments in (
        ("status", "s-000000000000"),
        ("watch", "s-000000000000"),
        ("stop", "s-000000000000"),
        ("fetch", "s-000000000000", "-o", "out"),
    ):
        refused = shell(*arguments)
        assert refused.returncode == ExitCode.NOT_FOUND, refused.stderr
        assert len(refused.stderr.strip().splitlines()) == 1
