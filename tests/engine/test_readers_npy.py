"""``.npy`` and ``.npz`` headers: numpy's own, and those that it would not write."""

import struct
import zipfile
from pathlib import Path

import numpy as np
import pytest

from p2ptrain.engine.readers import HEADER_BYTES_MAX, Slab, SlabError
from p2ptrain.engine.readers_npy import npy_slab, npz_slab


def npy(path: Path) -> Slab:
    with path.open("rb") as file:
        return npy_slab(path, file, 0)


def npz(path: Path, name: str) -> Slab:
    with path.open("rb") as file:
        return npz_slab(path, file, name)


NAMES = [
    "bool",
    "int8",
    "int16",
    "int32",
    "int64",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
]
NAMES += ["float16", "float32", "float64", "complex64", "complex128"]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)])
def test_headers_are_numpys(
    tmp_path: Path, name: str, version: tuple[int, int]
) -> None:
    value = np.arange(6).reshape(2, 3).astype(name)
    path = tmp_path / "x.npy"
    with path.open("wb") as file:
        np.lib.format.write_array(file, value, version)
    slab = npy(path)
    assert (slab.dtype, slab.shape) == (name, (2, 3))
    assert path.read_bytes()[slab.offset :] == value.tobytes()


def test_a_scalar_has_no_dimensions(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.float32(3))
    assert npy(tmp_path / "x.npy").shape == ()


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (np.zeros((2, 3), order="F"), "column order"),
        (np.zeros(2, ">f4"), "elements of '>f4'"),
        (np.array(["a"]), "elements of '<U1'"),
        (np.zeros(2, [("a", "f4")]), "elements of"),
        (np.zeros(2, "M8[s]"), "elements of"),
    ],
)
def test_what_cannot_be_mapped_is_refused(
    tmp_path: Path, value: np.ndarray, reason: str
) -> None:
    np.save(tmp_path / "x.npy", value)
    with pytest.raises(SlabError, match=reason):
        npy(tmp_path / "x.npy")


def test_pickled_objects_are_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.array([{}], dtype=object), allow_pickle=True)
    with pytest.raises(SlabError, match=r"elements of '\|O'"):
        npy(tmp_path / "x.npy")


def headed(text: bytes, length: int | None = None) -> bytes:
    size = struct.pack("<I", len(text) if length is None else length)
    return b"\x93NUMPY\x02\x00" + size + text


FIELDS = b"'descr': '<f4', 'fortran_order': False"


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (headed(b"{}"), "not readable"),
        (headed(b"__import__('os').abort()"), "not readable"),
        (headed(b"[" * 5000), "not readable"),
        (headed(b"{'a' : " * 3000), "not readable"),
        (headed(b"\xff\xfe"), "not readable"),
        (headed(b"{" + FIELDS + b", 'shape': (-1,)}"), "no shape"),
        (headed(b"{" + FIELDS + b", 'shape': ('a',)}"), "no shape"),
        (headed(b"{" + FIELDS + b", 'shape': (1e3,)}"), "no shape"),
        (headed(b"{" + FIELDS + b", 'shape': 3}"), "no shape"),
        (headed(b"{}", length=2**31), "header has 2147483648 bytes"),
        (headed(b"{}", length=50), "ends within its header"),
        (b"\x93NUMPY\x09\x00" + b" " * 80, "version 1 to 3"),
    ],
)
def test_a_strange_header_is_refused(tmp_path: Path, data: bytes, reason: str) -> None:
    path = tmp_path / "x.npy"
    path.write_bytes(data)
    with pytest.raises(SlabError, match=reason):
        npy(path)


def test_members_are_found_by_name(tmp_path: Path) -> None:
    path = tmp_path / "x.npz"
    np.savez(path, a=np.zeros(3), b=np.arange(4, dtype=np.int32))
    slab = npz(path, "b")
    assert (slab.dtype, slab.shape) == ("int32", (4,))
    found = np.frombuffer(path.read_bytes(), np.int32, 4, slab.offset)
    assert found.tolist() == [0, 1, 2, 3]
    with pytest.raises(SlabError, match="no member 'c'"):
        npz(path, "c")


def test_compressed_members_are_refused(tmp_path: Path) -> None:
    np.savez_compressed(tmp_path / "x.npz", a=np.zeros(3))
    with pytest.raises(SlabError, match=r"compressed .* use numpy\.savez"):
        npz(tmp_path / "x.npz", "a")


def test_a_directory_beyond_the_bound_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "x.npz"
    np.savez(path, a=np.zeros(3))
    data = path.read_bytes()
    at = data.rfind(b"PK\5\6")
    small = data[: at + 12] + struct.pack("<I", HEADER_BYTES_MAX + 1) + data[at + 16 :]
    path.write_bytes(small)
    with pytest.raises(SlabError, match="directory has more than"):
        npz(path, "a")
    wide = struct.pack("<4s36xQ8x", b"PK\6\6", 2**40)
    locator = struct.pack("<4sIQI", b"PK\6\7", 0, at, 1)
    path.write_bytes(data[:at] + wide + locator + data[at:])
    with pytest.raises(SlabError, match="directory has more than"):
        npz(path, "a")


def test_an_archive_of_other_files_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.npz"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a.npy", "not an array, but long enough to be one")
    with pytest.raises(SlabError, match=r"no \.npy file"):
        npz(path, "a")
