"""A file may come from anybody: whatever its bytes, a tensor or one refusal."""

from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from p2ptrain.engine.resolve import Site, resolve_weight
from p2ptrain.errors import RefError
from p2ptrain.spec.train import WeightRef

VALUE = torch.arange(12, dtype=torch.float32).reshape(3, 4)


def npy(path: Path) -> str:
    with path.open("wb") as file:
        np.save(file, VALUE.numpy())
    return f"file://{path}"


def npz(path: Path) -> str:
    with path.open("wb") as file:
        np.savez(file, v=np.zeros(2), w=VALUE.numpy())
    return f"npz://{path}#w"


def safetensors(path: Path) -> str:
    save_file({"v": torch.zeros(2), "w": VALUE}, path)
    return f"safetensors://{path}#w"


def gguf_file(path: Path) -> str:
    writer = gguf.GGUFWriter(path, "test")
    writer.add_array("names", ["a", "b"])
    writer.add_tensor("w", VALUE.numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return f"gguf://{path}#w"


FORMATS: list[Callable[[Path], str]] = [npy, npz, safetensors, gguf_file]

# where (a part of the file), how many bytes go, and what comes in their place
EDIT = st.tuples(
    st.floats(0, 1, exclude_max=True),
    st.integers(0, 9),
    st.one_of(
        st.binary(max_size=9),
        st.sampled_from(
            [b"\xff" * 8, b"\0" * 8, (2**40).to_bytes(8, "little"), b"1e999", b"[" * 99]
        ),
    ),
)


@pytest.mark.parametrize("write", FORMATS)
@given(edits=st.lists(EDIT, min_size=1, max_size=4))
@settings(
    max_examples=150,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
def test_any_bytes_are_a_tensor_or_one_refusal(
    tmp_path: Path, write: Callable[[Path], str], edits: list[tuple[float, int, bytes]]
) -> None:
    path = tmp_path / "file"
    path.unlink(missing_ok=True)
    uri = write(path)
    data = path.read_bytes()
    for where, gone, new in edits:
        at = int(where * len(data))
        data = data[:at] + new + data[at + gone :]
    path.write_bytes(data)
    ref = WeightRef("w", uri, "float32", (3, 4))
    sentence = ""
    try:
        assert resolve_weight(ref, Site("ada", {}, (tmp_path,))).shape == (3, 4)
    except RefError as error:
        sentence = str(error)
    assert len(sentence) < 500
