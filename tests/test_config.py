from pathlib import Path

import pytest

from p2ptrain.config import NAMES, Config, load_config
from p2ptrain.errors import ConfigError, ExitCode

ROOT = Path(__file__).parent.parent


def write(folder: Path, text: str) -> Path:
    path = folder / "node.toml"
    path.write_text(text)
    return path


def test_flag_beats_variable_beats_file_beats_default(tmp_path: Path) -> None:
    file = write(tmp_path, 'name = "file"\nport = 1000\nthreads = 3\n')
    environment = {"P2PTRAIN_NAME": "variable", "P2PTRAIN_PORT": "2000"}
    config = load_config(file, {"name": "flag", "host": None}, environment)
    assert (config.name, config.port, config.threads) == ("flag", 2000, 3)
    assert config.host == Config().host


def test_every_key_may_be_a_variable() -> None:
    texts = {
        "seeds": "a:1, b:2",
        "ring_ports": "10,20",
        "plain": "true",
        "mdns": "0",
        "stall_s": "2.5",
        "data_roots": "/srv,/data",
    }
    environment = {f"P2PTRAIN_{key.upper()}": text for key, text in texts.items()}
    config = load_config(None, {}, environment)
    assert config.seeds == ("a:1", "b:2")
    assert config.ring_ports == (10, 20)
    assert config.plain
    assert not config.mdns
    assert config.stall_s == 2.5
    assert config.data_roots == (Path("/srv"), Path("/data"))


def test_paths_are_relative_to_the_file(tmp_path: Path) -> None:
    file = write(tmp_path, 'state_dir = "state"\ndata_roots = ["d", "/e"]\n')
    config = load_config(file, {}, {})
    assert config.state_dir == tmp_path / "state"
    assert config.data_roots == (tmp_path / "d", Path("/e"))


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("prot = 1\n", "unknown key 'prot'; did you mean 'port'?"),
        ("zzz = 1\n", "unknown key 'zzz'; known: name, state_dir"),
        ('port = "x"\n', "port must be a whole number, not 'x'"),
        ("port = true\n", "port must be a whole number, not True"),
        ("port = 70000\n", "port = 70000 is not allowed; allowed: 0 to 65533"),
        ("ring_ports = [5]\n", "ring_ports must hold 2 values"),
        ("ring_ports = [9, 5]\n", "the lower one first"),
        ('seeds = ["host"]\n', "seeds: 'host' is not host:port"),
        ('log_level = "loud"\n', "allowed: debug, info, warning, error"),
        ("stall_s = 0.1\n", "allowed: 0.5 to 3600 seconds"),
        ("plain = 1\n", "plain must be true or false, not 1"),
        ("= 3\n", "is not valid TOML"),
    ],
)
def test_what_is_wrong_is_one_sentence(
    tmp_path: Path, text: str, sentence: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(write(tmp_path, text), {}, {})
    assert sentence in str(caught.value)
    assert caught.value.exit_code is ExitCode.CONFIG


def test_a_wrong_variable_is_named() -> None:
    with pytest.raises(ConfigError, match="P2PTRAIN_PORT must be a whole number"):
        load_config(None, {}, {"P2PTRAIN_PORT": "many"})
    with pytest.raises(ConfigError, match="P2PTRAIN_PLAIN must be true or false"):
        load_config(None, {}, {"P2PTRAIN_PLAIN": "maybe"})


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.toml does not exist"):
        load_config(tmp_path / "none.toml", {}, {})


def test_the_commented_example_names_every_key() -> None:
    text = (ROOT / "configs" / "node.toml").read_text()
    shown = {line.split()[1] for line in text.splitlines() if line.startswith("# ")}
    assert set(NAMES) <= shown


@pytest.mark.parametrize("path", sorted((ROOT / "configs").glob("lan-*.toml")))
def test_the_examples_are_valid(path: Path) -> None:
    assert load_config(path, {}, {}).name
