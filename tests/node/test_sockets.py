import stat
from pathlib import Path

import pytest
import trio

from p2ptrain.errors import ConfigError, ConflictError
from p2ptrain.node.sockets import make_private, open_gate

pytestmark = pytest.mark.net


async def test_only_this_user_may_connect(tmp_path: Path) -> None:
    path = tmp_path / "gate.sock"
    listener = await open_gate(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    await listener.aclose()


async def test_a_dead_daemons_socket_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "gate.sock"
    await (await open_gate(path)).aclose()
    assert path.exists()
    listener = await open_gate(path)
    async with await trio.open_unix_socket(str(path)):
        pass
    await listener.aclose()


async def test_a_living_daemons_socket_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "gate.sock"
    listener = await open_gate(path)
    with pytest.raises(ConflictError, match="already listens"):
        await open_gate(path)
    async with await trio.open_unix_socket(str(path)):
        pass
    await listener.aclose()


async def test_a_long_path_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="choose a shorter runtime_dir"):
        await open_gate(tmp_path / ("x" * 100) / "gate.sock")


def test_folders_are_private_or_refused(tmp_path: Path) -> None:
    make_private(tmp_path / "a" / "b")
    assert stat.S_IMODE((tmp_path / "a" / "b").stat().st_mode) == 0o700
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot make"):
        make_private(tmp_path / "file" / "b")
