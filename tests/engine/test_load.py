"""How a job is put together: lanes and their copies, threads, timing."""

import pytest
import torch

from p2ptrain.engine import load as module
from p2ptrain.engine.devices import Choice
from p2ptrain.engine.inputs import resolve_inputs
from p2ptrain.engine.load import Builder, Lane, load_job, tls_of
from p2ptrain.messages.trainer import CheckParity, TlsFiles
from p2ptrain.spec.train import Reduce
from tests.engine import trainjobs as jobs
from tests.engine import trainkit as kit

CPU = torch.device("cpu")


@pytest.fixture
def builder(tmp_path):
    spec = jobs.spec_of(jobs.cnn_task(), tmp_path)
    where = CheckParity("ant", "", {}, (str(tmp_path),))
    return Builder(spec, resolve_inputs(spec, where))


def test_lanes_on_one_device_share_what_stays(builder):
    one, two = builder.lanes(Choice(("cpu", "cpu"), (1.0, 1.0), ""))
    assert one.held is two.held
    assert one.runner is not two.runner
    assert one.runner._runner._program is not two.runner._runner._program


def test_a_lane_on_another_device_follows_the_first(builder):
    [first] = builder.lanes(Choice(("cpu",), (1.0,), ""))
    other = Lane(CPU, {n: t.clone() for n, t in first.held.items()}, first.runner)
    for tensor in first.held.values():
        tensor.add_(1)
    frozen = {"conv.bias"}
    names = tuple(first.held.keys() - frozen)
    other.follow(first, names)
    for name in names:
        assert torch.equal(other.held[name], first.held[name])
    assert not torch.equal(other.held["conv.bias"], first.held["conv.bias"])


def test_the_state_is_not_the_resolved_weights_memory(builder):
    """A second lane is made of the initial values, whatever the first has become."""
    [lane] = builder.lanes(Choice(("cpu",), (1.0,), ""))
    lane.held["conv.weight"].zero_()
    [again] = builder.lanes(Choice(("cpu",), (1.0,), ""))
    assert again.held["conv.weight"].abs().sum() > 0


def test_a_device_is_timed_on_this_very_graph(builder):
    assert 0 < builder.seconds("cpu") < 5


@pytest.mark.parametrize(
    ("mode", "asked", "expected"),
    [
        (Reduce.EXACT, 0, 1),
        (Reduce.EXACT, 2, 2),
        (Reduce.FAST, 0, 7),
        (Reduce.FAST, 2, 2),
    ],
)
def test_threads(tmp_path, monkeypatch, mode, asked, expected):
    monkeypatch.setattr("p2ptrain.engine.devices.cores", lambda: 7)
    seen = []
    monkeypatch.setattr(module.torchset, "prepare", seen.append)
    spec = jobs.spec_of(jobs.gpt_task(), tmp_path, reduce=mode)
    cluster = kit.Cluster(tmp_path, spec, [], [], {})
    trainer = type("Named", (), {"name": "ant", "node": "a" * 32})
    job = load_job(kit.load_frame(cluster, trainer, threads=asked), lambda _: None)
    job.close()
    assert seen == [expected]


def test_tls_files_become_material(tmp_path):
    spec = jobs.spec_of(jobs.gpt_task(), tmp_path)
    cluster = kit.Cluster(tmp_path, spec, [], [], {})
    trainer = type("Named", (), {"name": "ant", "node": "a" * 32})
    assert tls_of(kit.load_frame(cluster, trainer)) is None
    files = TlsFiles("/ca.pem", "/cert.pem", "/key.pem")
    material = tls_of(kit.load_frame(cluster, trainer, tls=files))
    assert (str(material.ca), str(material.cert)) == ("/ca.pem", "/cert.pem")
    assert str(material.key) == "/key.pem"
