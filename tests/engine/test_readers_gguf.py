"""GGUF: the headers that the package writes, and those that only an enemy writes."""

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch

from p2ptrain.engine.readers import SlabError
from p2ptrain.engine.readers_gguf import find_gguf

Kind = gguf.GGMLQuantizationType
NUMBERS = np.linspace(-1, 1, 2 * 256, dtype=np.float32).reshape(2, 256)


def write(path: Path, fill: Callable[[Any], None]) -> Path:
    writer = gguf.GGUFWriter(path, "test")
    fill(writer)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.mark.parametrize("name", ["F16", "BF16", "Q8_0", "Q4_0", "Q5_1", "Q4_1"])
def test_every_kind_is_dequantised_as_the_package_does(
    tmp_path: Path, name: str
) -> None:
    kind = Kind[name]
    data = gguf.quants.quantize(NUMBERS, kind)

    def fill(writer: Any) -> None:
        writer.add_array("tokens", ["a", "bcd"])
        writer.add_array("scores", [1.0, 2.0])
        writer.add_uint32("count", 3)
        writer.add_tensor("other", np.zeros(5, np.float32))
        writer.add_tensor("w", data, raw_dtype=kind)

    found = find_gguf(write(tmp_path / "m.gguf", fill), "w")
    wanted = torch.from_numpy(np.array(gguf.quants.dequantize(data, kind), np.float32))
    assert (found.dtype, found.shape) == ("float32", (2, 256))
    assert torch.equal(found.numbers(), wanted)
    raw = torch.from_numpy(data.view(np.uint8))
    assert found.packed_shape == tuple(raw.shape)
    assert torch.equal(found.packed(), raw)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int8, np.int64])
def test_plain_numbers_keep_their_dtype(tmp_path: Path, dtype: type) -> None:
    value = np.arange(6, dtype=dtype).reshape(2, 3)
    path = write(tmp_path / "m.gguf", lambda writer: writer.add_tensor("w", value))
    found = find_gguf(path, "w")
    assert found.dtype == np.dtype(dtype).name
    assert torch.equal(found.numbers(), torch.from_numpy(value))


def test_an_alignment_is_followed(tmp_path: Path) -> None:
    def fill(writer: Any) -> None:
        writer.add_custom_alignment(256)
        writer.add_tensor("v", np.ones(3, np.float32))
        writer.add_tensor("w", NUMBERS)

    found = find_gguf(write(tmp_path / "m.gguf", fill), "w")
    assert found.offset % 256 == 0
    assert torch.equal(found.numbers(), torch.from_numpy(NUMBERS))


def text(value: bytes) -> bytes:
    return struct.pack("<Q", len(value)) + value


def head(tensors: int, pairs: int, version: int = 3) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, tensors, pairs)


def entry(dims: tuple[int, ...], code: int = 0, offset: int = 0) -> bytes:
    sizes = struct.pack(f"<I{len(dims)}Q", len(dims), *dims)
    return text(b"w") + sizes + struct.pack("<IQ", code, offset)


HOSTILE = {
    "a version of the future": (head(0, 0, version=9), "version 9"),
    "no end of tensors": (head(2**60, 0), "ends within its header"),
    "no end of pairs": (head(0, 2**60), "ends within its header"),
    "an endless array": (
        head(0, 1) + text(b"k") + struct.pack("<IIQ", 9, 8, 2**60),
        "ends within its header",
    ),
    "an endless array of bytes": (
        head(0, 1) + text(b"k") + struct.pack("<IIQ", 9, 0, 2**60),
        "header has more than",
    ),
    "an endless name": (head(1, 0) + struct.pack("<Q", 2**62), "header has more than"),
    "arrays in arrays": (
        head(0, 1) + text(b"k") + struct.pack("<I", 9) + struct.pack("<IQ", 9, 1) * 9,
        "value of kind 9",
    ),
    "a value of no kind": (
        head(0, 1) + text(b"k") + struct.pack("<I", 77),
        "value of kind 77",
    ),
    "an alignment of three": (
        head(0, 1) + text(b"general.alignment") + struct.pack("<II", 4, 3),
        "alignment 3",
    ),
    "a million dimensions": (
        head(1, 0) + text(b"w") + struct.pack("<I", 10**6),
        "1000000 dimensions",
    ),
    "no such quantisation": (head(1, 0) + entry((4,), code=999), "quantisation 999"),
    "a broken block": (head(1, 0) + entry((31,), code=8), "does not fit Q8_0"),
    "no dimension": (head(1, 0) + entry(()), "does not fit F32"),
    "no element": (head(1, 0) + entry((0, 4)), "does not fit F32"),
    "more than there is": (head(1, 0) + entry((2**40,)), "ends before"),
    "beyond the end": (head(1, 0) + entry((1,), offset=2**60), "ends before"),
    "the name twice": (head(2, 0) + entry((1,)) * 2, "it has 2 tensor 'w'"),
}


@pytest.mark.timeout(5)
@pytest.mark.parametrize("what", HOSTILE)
def test_what_an_enemy_writes_is_refused_at_once(tmp_path: Path, what: str) -> None:
    data, reason = HOSTILE[what]
    path = tmp_path / "m.gguf"
    path.write_bytes(data)
    with pytest.raises(SlabError, match=reason):
        find_gguf(path, "w")
