"""Written files are read by the safetensors library; broken writes leave nothing."""

import json
import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from p2ptrain.engine import safefile
from p2ptrain.errors import LocalError, StorageError

TENSORS = {
    "a": torch.arange(6, dtype=torch.uint8).reshape(2, 3),
    "b": torch.randn(3, 4).t(),  # not contiguous
    "c": torch.randn(5, dtype=torch.float64),
    "d": torch.tensor(3),
    "e": torch.zeros(0, 4),
    "f": torch.randn(2, 2).bfloat16(),
    "g": torch.tensor([True, False]),
    "h": torch.randn(2, requires_grad=True),
}


def test_the_library_reads_what_is_written(tmp_path):
    path = tmp_path / "x.safetensors"
    safefile.write_tensors(path, TENSORS, {"step": "7", "wort": "größe"})
    read = load_file(path)
    assert set(read) == set(TENSORS)
    for name, tensor in TENSORS.items():
        assert read[name].dtype == tensor.dtype
        assert torch.equal(read[name], tensor)
    ours, metadata = safefile.read_tensors(path)
    assert all(torch.equal(ours[name], TENSORS[name]) for name in TENSORS)
    assert metadata == {"step": "7", "wort": "größe"}


def test_every_tensor_is_aligned(tmp_path):
    path = tmp_path / "x.safetensors"
    safefile.write_tensors(path, TENSORS, {})
    raw = path.read_bytes()
    size = int.from_bytes(raw[:8], "little")
    assert size % 8 == 0
    for name, entry in json.loads(raw[8 : 8 + size]).items():
        if name != "__metadata__":
            assert entry["data_offsets"][0] % TENSORS[name].itemsize == 0


def test_bytes_are_a_view_of_host_memory():
    tensor = torch.zeros(3)
    view = safefile.bytes_of(tensor)
    tensor[1] = 1.0
    assert view[4:8].tobytes() == b"\x00\x00\x80\x3f"


def test_tensors_are_filled_from_bytes():
    old = [torch.tensor(3), torch.zeros(2, 2, dtype=torch.bool), torch.zeros(0)]
    new = [torch.tensor(-9), torch.tensor([[True, False], [False, True]])]
    data = b"".join(map(safefile.bytes_of, new))
    safefile.fill(old, data)
    assert all(torch.equal(a, b) for a, b in zip(old, new, strict=False))
    with pytest.raises(LocalError, match="11 bytes for tensors of 12"):
        safefile.fill(old, data[1:])


def test_a_dtype_without_a_name_is_refused(tmp_path):
    with pytest.raises(LocalError, match=r"'z'.*complex128"):
        safefile.write_tensors(
            tmp_path / "x", {"z": torch.zeros(1, dtype=torch.complex128)}, {}
        )
    assert list(tmp_path.iterdir()) == []


def test_a_failed_write_leaves_the_old_file_and_no_half_one(tmp_path):
    path = tmp_path / "x"
    safefile.write_json(path, {"old": 1})

    def write(file):
        file.write(b"half")
        raise OSError(28, os.strerror(28))

    with pytest.raises(StorageError, match=r"cannot write .*x: No space left"):
        safefile.replace_file(path, write)
    assert [p.name for p in tmp_path.iterdir()] == ["x"]
    assert json.loads(path.read_text()) == {"old": 1}


def test_an_error_of_ours_leaves_no_half_file_either(tmp_path):
    def write(file):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        safefile.replace_file(tmp_path / "x", write)
    assert list(tmp_path.iterdir()) == []


def test_the_bytes_are_synced_before_they_have_the_name(tmp_path, monkeypatch):
    path = tmp_path / "x"
    seen = []
    real = os.fsync

    def fsync(handle):
        seen.append((Path(f"/proc/self/fd/{handle}").is_dir(), path.exists()))
        real(handle)

    monkeypatch.setattr(os, "fsync", fsync)
    safefile.write_json(path, 1)
    assert seen == [(False, False), (True, True)]


@pytest.mark.parametrize("keep", [0, 5, 60, -1])
def test_a_damaged_file_is_refused_by_name(tmp_path, keep):
    path = tmp_path / "x.safetensors"
    safefile.write_tensors(path, TENSORS, {})
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(StorageError, match=r"cannot read .*x\.safetensors"):
        safefile.read_tensors(path)


def test_a_missing_file_is_refused_by_name(tmp_path):
    with pytest.raises(StorageError, match=r"cannot read .*nothing"):
        safefile.read_tensors(tmp_path / "nothing")
