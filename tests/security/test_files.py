"""Private files: modes, atomicity, and errors that name the file."""

from pathlib import Path

import pytest

from p2ptrain.errors import StorageError
from p2ptrain.security.files import private_folder, write_private


def test_modes(tmp_path: Path) -> None:
    folder = private_folder(tmp_path / "a" / "b")
    write_private(folder / "key", b"secret")
    assert folder.stat().st_mode & 0o777 == 0o700
    assert (folder / "key").stat().st_mode & 0o777 == 0o600
    assert (folder / "key").read_bytes() == b"secret"


def test_a_loose_folder_is_tightened(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    assert private_folder(tmp_path).stat().st_mode & 0o777 == 0o700


def test_writing_replaces_whole(tmp_path: Path) -> None:
    path = tmp_path / "key"
    write_private(path, b"x" * 100)
    write_private(path, b"y")
    assert path.read_bytes() == b"y"
    assert list(tmp_path.iterdir()) == [path]


def test_a_link_is_replaced_not_followed(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_text("mine")
    (tmp_path / "key").symlink_to(elsewhere)
    write_private(tmp_path / "key", b"secret")
    assert elsewhere.read_text() == "mine"
    assert not (tmp_path / "key").is_symlink()


def test_errors_name_the_file(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="missing/key"):
        write_private(tmp_path / "missing" / "key", b"")
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="file/sub"):
        private_folder(tmp_path / "file" / "sub")
