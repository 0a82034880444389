"""What a job refers to is found, or refused with node and URI."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from blake3 import blake3

from p2ptrain.engine.inputs import read_spec, resolve_inputs
from p2ptrain.errors import P2PTrainError, RefError, SpecError, StorageError
from p2ptrain.messages.trainer import CheckParity
from p2ptrain.spec.train import spec_bytes
from tests.engine import trainjobs as jobs


def where(folder, **changes):
    return replace(CheckParity("ant", "", {}, (str(folder),)), **changes)


def test_everything_is_found_by_name(tmp_path):
    task = jobs.cnn_task(samples=10, held_out=4)
    spec = jobs.spec_of(task, tmp_path)
    inputs = resolve_inputs(spec, where(tmp_path))
    state = task.model.state_dict()
    assert set(inputs.held) == set(state)
    assert all(torch.equal(inputs.held[name], state[name]) for name in state)
    assert (inputs.samples, inputs.eval_samples) == (10, 4)
    taken = inputs.sources["x"].take(torch.tensor([9, 0, 4]))
    assert torch.equal(taken, task.data["x"][[9, 0, 4]])
    held = inputs.eval_sources["y"].take(torch.tensor([3]))
    assert torch.equal(held, task.held_out["y"][[3]])


def test_digests_are_of_each_shard_in_order(tmp_path):
    task = jobs.cnn_task(samples=10)
    spec = jobs.spec_of(task, tmp_path)
    inputs = resolve_inputs(spec, where(tmp_path))
    refs = (*spec.data, *spec.eval.data)
    groups = [task.data] * len(spec.data) + [task.held_out] * len(spec.eval.data)
    for digest, ref, group in zip(inputs.digests, refs, groups, strict=True):
        rows = group[ref.input][ref.shard_start :][: ref.shard_len].numpy()
        assert digest == blake3(np.ascontiguousarray(rows).tobytes()).hexdigest()


def test_samples_that_are_not_the_submitted_ones_are_refused(tmp_path):
    spec = jobs.spec_of(jobs.cnn_task(), tmp_path)
    data = (replace(spec.data[0], digest="0" * 64), *spec.data[1:])
    with pytest.raises(RefError, match=r"node 'ant' cannot resolve file://.*x\.npy"):
        resolve_inputs(replace(spec, data=data), where(tmp_path))


def test_a_weight_outside_the_roots_is_refused(tmp_path):
    spec = jobs.spec_of(jobs.cnn_task(), tmp_path)
    with pytest.raises(RefError, match="node 'bee' cannot resolve safetensors://"):
        resolve_inputs(spec, where(tmp_path / "other", name="bee"))


def test_a_backward_seed_is_one(tmp_path):
    spec = jobs.spec_of(jobs.cnn_task(), tmp_path)
    given = spec.graph.inputs[0]
    seeded = replace(spec, seed_input=given.name)
    held = resolve_inputs(seeded, where(tmp_path)).held[given.name]
    assert torch.equal(held, torch.ones(given.shape))


def test_a_spec_is_read_and_checked(tmp_path):
    spec = jobs.spec_of(jobs.gpt_task(), tmp_path)
    path = tmp_path / "spec"
    path.write_bytes(spec_bytes(spec))
    assert read_spec(path) == spec
    path.write_bytes(spec_bytes(replace(spec, lr_per_epoch=())))
    with pytest.raises(SpecError, match="lr_per_epoch"):
        read_spec(path)
    path.write_bytes(b"\xff")
    with pytest.raises(P2PTrainError, match="is no spec: malformed"):
        read_spec(path)
    with pytest.raises(StorageError, match=r"cannot read .*gone"):
        read_spec(tmp_path / "gone")
