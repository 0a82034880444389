"""References against files of every format, and everything that must be refused."""

import os
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from blake3 import blake3
from safetensors.torch import save_file
from torch import Tensor

from p2ptrain.engine.resolve import SampleSource, Site, resolve_weight
from p2ptrain.errors import RefError
from p2ptrain.ids import Digest
from p2ptrain.spec.dtypes import DTYPES
from p2ptrain.spec.train import DataRef, WeightRef


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site("ada", {}, (tmp_path,))


def weight(uri: str, value: Tensor, *, packed: bool = False) -> WeightRef:
    dtype = str(value.dtype).removeprefix("torch.")
    return WeightRef("w", uri, dtype, tuple(value.shape), packed)


def samples(uri: str, array: np.ndarray, start: int, length: int) -> DataRef:
    shape = array.shape[1:]
    elem = int(np.prod(shape, dtype=int))
    return DataRef("x", uri, elem, start, length, array.dtype.name, shape)


VALUE = torch.arange(12, dtype=torch.float32).reshape(3, 4)


def write(path: Path, kind: str) -> str:
    if kind == "npy":
        np.save(path, VALUE.numpy())
        return f"file://{path}.npy"
    if kind == "raw":
        path.write_bytes(VALUE.numpy().tobytes())
        return f"file://{path}"
    if kind == "npz":
        np.savez(path, other=np.zeros(3, np.int8), w=VALUE.numpy())
        return f"npz://{path}.npz#w"
    save_file({"a": torch.zeros(3, dtype=torch.int8), "w": VALUE}, path)
    return f"safetensors://{path}#w"


@pytest.mark.parametrize("kind", ["npy", "raw", "npz", "safetensors"])
def test_a_weight_is_read_from_every_format(
    site: Site, tmp_path: Path, kind: str
) -> None:
    uri = write(tmp_path / "file", kind)
    assert torch.equal(resolve_weight(weight(uri, VALUE), site), VALUE)


@pytest.mark.parametrize("name", [n for n in DTYPES if n != "float8_e8m0fnu"])
def test_every_dtype_is_read_raw(site: Site, tmp_path: Path, name: str) -> None:
    dtype = getattr(torch, name)
    data = torch.arange(1, 1 + 24 * DTYPES[name].itemsize, dtype=torch.uint8)
    data = data % 2 if name == "bool" else data
    value = data.view(dtype).reshape(4, 6)
    (tmp_path / "raw").write_bytes(data.numpy().tobytes())
    found = resolve_weight(weight(f"file://{tmp_path}/raw", value), site)
    assert found.dtype == dtype
    assert torch.equal(found.view(torch.uint8), value.view(torch.uint8))


def test_a_blob_is_what_the_daemon_says(tmp_path: Path) -> None:
    write(tmp_path / "file", "safetensors")
    digest = Digest(blake3((tmp_path / "file").read_bytes()).hexdigest())
    site = Site("ada", {digest: tmp_path / "file"}, ())
    assert torch.equal(resolve_weight(weight(f"blob:{digest}#w", VALUE), site), VALUE)


def test_gguf_is_dequantised_or_kept_packed(site: Site, tmp_path: Path) -> None:
    values = np.linspace(-1, 1, 128, dtype=np.float32).reshape(2, 64)
    packed = gguf.quants.quantize(values, gguf.GGMLQuantizationType.Q8_0)
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "test")
    kind = gguf.GGMLQuantizationType.Q8_0
    writer.add_tensor("w", packed, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    uri = f"gguf://{tmp_path}/m.gguf#w"
    wide = torch.from_numpy(gguf.quants.dequantize(packed, kind))
    assert torch.equal(resolve_weight(weight(uri, wide), site), wide)
    raw = torch.from_numpy(packed.view(np.uint8))
    assert torch.equal(resolve_weight(weight(uri, raw, packed=True), site), raw)


@pytest.mark.parametrize("kind", ["npy", "raw", "npz", "safetensors"])
def test_a_shard_is_read_by_its_offset(site: Site, tmp_path: Path, kind: str) -> None:
    uri = write(tmp_path / "file", kind)
    source = SampleSource([samples(uri, VALUE.numpy(), 1, 2)], site)
    assert source.count == 2
    assert torch.equal(source.take(torch.tensor([1, 0, 1])), VALUE[[2, 1, 2]])
    assert source.digests == (blake3(VALUE[1:].numpy().tobytes()).hexdigest(),)


def test_unequal_shards_are_one_sequence(site: Site, tmp_path: Path) -> None:
    uri = write(tmp_path / "file", "npy")
    array = VALUE.numpy()
    refs = [samples(uri, array, 2, 1), samples(uri, array, 0, 3)]
    source = SampleSource(refs, site)
    assert source.count == 4
    wanted = torch.cat([VALUE[2:], VALUE])
    order = torch.tensor([3, 0, 2, 1, 0])
    assert torch.equal(source.take(order), wanted[order])


def test_a_shard_of_other_bytes_is_refused(site: Site, tmp_path: Path) -> None:
    uri = write(tmp_path / "file", "npy")
    ref = samples(uri, VALUE.numpy(), 0, 3)
    wrong = DataRef(
        **{f: getattr(ref, f) for f in ref.__slots__} | {"digest": "0" * 64}
    )
    with pytest.raises(RefError, match=f"'ada' cannot resolve {uri}: its samples hash"):
        SampleSource([wrong], site)


@pytest.mark.parametrize(
    ("start", "length", "reason"),
    [(0, 4, "it has 3 samples, the shard ends at 4"), (3, 1, "the shard ends at 4")],
)
def test_a_shard_beyond_its_file_is_refused(
    site: Site, tmp_path: Path, start: int, length: int, reason: str
) -> None:
    uri = write(tmp_path / "file", "npy")
    with pytest.raises(RefError, match=reason):
        SampleSource([samples(uri, VALUE.numpy(), start, length)], site)


def refused(uri: str, site: Site, value: Tensor = VALUE) -> str:
    with pytest.raises(RefError) as caught:
        resolve_weight(weight(uri, value), site)
    text = str(caught.value)
    assert text.startswith(f"node 'ada' cannot resolve {uri}: ")
    return text


def test_what_is_not_there_is_refused(site: Site, tmp_path: Path) -> None:
    write(tmp_path / "file", "safetensors")
    write(tmp_path / "file", "npz")
    assert "No such file" in refused(f"file://{tmp_path}/none", site)
    assert "no tensor 'v'" in refused(f"safetensors://{tmp_path}/file#v", site)
    assert "no member 'v'" in refused(f"npz://{tmp_path}/file.npz#v", site)
    assert "does not hold the blob" in refused(f"blob:{'0' * 64}", site)
    assert "scheme" in refused("http://example.org/w", site)


def test_another_dtype_or_shape_is_refused(site: Site, tmp_path: Path) -> None:
    uri = write(tmp_path / "file", "npy")
    assert "it is float32[3, 4], 'w' needs float32[4, 3]" in refused(uri, site, VALUE.T)
    assert "needs int32[3, 4]" in refused(uri, site, VALUE.int())


def test_paths_stay_inside_the_roots(site: Site, tmp_path: Path) -> None:
    inside = tmp_path / "inside"
    inside.mkdir()
    write(tmp_path / "file", "raw")
    (inside / "link").symlink_to(tmp_path / "file")
    narrow = Site("ada", {}, (inside,))
    for path in (tmp_path / "file", inside / "link", inside / ".." / "file"):
        assert "outside the node's data_roots" in refused(f"file://{path}", narrow)
    assert torch.equal(
        resolve_weight(weight(f"file://{inside}/../file", VALUE), site), VALUE
    )


@pytest.mark.parametrize(
    "damage",
    [
        b"",
        b"\x93NUMPY\x01\x00\xff\xff",
        b"\x93NUMPY\x09\x00" + b"x" * 60,
        b"\xff" * 64,
        (2**40).to_bytes(8, "little") + b"{}",
        (9).to_bytes(8, "little") + b'{"w": []}',
    ],
)
@pytest.mark.parametrize("form", ["file://{}", "safetensors://{}#w", "npz://{}#w"])
def test_damaged_files_are_refused(
    site: Site, tmp_path: Path, damage: bytes, form: str
) -> None:
    path = tmp_path / "damaged"
    path.write_bytes(damage)
    refused(form.format(path), site)


def test_a_truncated_file_is_refused(site: Site, tmp_path: Path) -> None:
    for kind in ("npy", "safetensors"):
        uri = write(tmp_path / f"file-{kind}", kind)
        path = Path(uri.partition("://")[2].partition("#")[0])
        path.write_bytes(path.read_bytes()[:-4])
        assert "it ends before" in refused(uri, site)


def test_compressed_members_are_refused(site: Site, tmp_path: Path) -> None:
    np.savez_compressed(tmp_path / "file", w=VALUE.numpy())
    assert "use numpy.savez" in refused(f"npz://{tmp_path}/file.npz#w", site)


def test_only_regular_files_are_opened(site: Site, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert "no regular file" in refused(f"file://{tmp_path}/pipe", site)
    assert "no regular file" in refused(f"file://{tmp_path}", site)


def test_links_in_a_circle_are_refused(site: Site, tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to(tmp_path / "b")
    (tmp_path / "b").symlink_to(tmp_path / "a")
    assert "circle" in refused(f"file://{tmp_path}/a", site)


def test_what_does_not_fit_is_not_read(site: Site, tmp_path: Path) -> None:
    header = b"{'descr': '<f4', 'fortran_order': False, 'shape': (1099511627776,)}"
    path = tmp_path / "huge.npy"
    start = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header
    with path.open("wb") as file:
        file.write(start)
        file.truncate(len(start) + 2**42)  # 4 TiB, none of them on the disk
    assert "it is float32[1099511627776]" in refused(f"file://{path}", site)
