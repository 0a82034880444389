"""A node's configuration: flag > ``P2PTRAIN_*`` variable > file > default.

Every key is a field of ``Config``; a file may hold nothing else. Whatever is wrong is
one sentence that names where the value came from, the key, and what is allowed.
"""

import difflib
import os
import socket
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from types import NoneType
from typing import Any, get_args, get_origin, get_type_hints

from p2ptrain.errors import ConfigError

PREFIX = "P2PTRAIN_"
LOG_LEVELS = ("debug", "info", "warning", "error")
PORT_MAX = 65535


def _state_home() -> Path:
    base = os.environ.get("XDG_STATE_HOME", "")
    return Path(base or Path.home() / ".local" / "state") / "p2ptrain"


def _runtime_home() -> Path:
    base = os.environ.get("XDG_RUNTIME_DIR", "")
    return Path(base) / "p2ptrain" if base else _state_home() / "run"


@dataclass(frozen=True, slots=True)
class Config:
    """Settings of one node.

    Args:
        name: this node's name for people.
        state_dir: keys, record, blobs and logs.
        runtime_dir: the local command socket.
        host: address to listen on.
        advertise: address that others reach this node by; default: ``host``.
        port: control port; bulk is the next one, enrolment the one after; 0: any free.
        ring_ports: inclusive range for ring links; (0, 0): any free.
        seeds: ``host:port`` of other nodes' control ports.
        mdns: find and announce on the local network (never on loopback).
        plain: run without TLS; loopback only.
        bootstrap: found the cluster if this node has none; on exactly one node.
        witness: vote, but never train and keep no data.
        data_roots: folders that ``file:`` references of jobs may point into.
        warm: keep a trainer started ahead while this node is idle; a session then
            begins seconds earlier, for the memory of an idle trainer.
        threads: of each trainer; 0 leaves it to the trainer.
        stall_s: what is silent for so many seconds is given up; all other deadlines
            are derived from it, and logged when the daemon starts. More for slow
            networks.
        log_level: debug, info, warning or error.
        log_json: JSON lines instead of text.
        trace: trainers write Chrome traces of their steps to ``state_dir``/traces.
    """

    name: str = field(default_factory=socket.gethostname)
    state_dir: Path = field(default_factory=_state_home)
    runtime_dir: Path = field(default_factory=_runtime_home)
    host: str = "0.0.0.0"  # noqa: S104  # refused without TLS
    advertise: str = ""
    port: int = 7700
    ring_ports: tuple[int, int] = (7710, 7799)
    seeds: tuple[str, ...] = ()
    mdns: bool = True
    plain: bool = False
    bootstrap: bool = False
    witness: bool = False
    data_roots: tuple[Path, ...] = ()
    warm: bool = True
    threads: int = 0
    stall_s: float = 3.0
    log_level: str = "info"
    log_json: bool = False
    trace: bool = False

    @property
    def socket(self) -> Path:
        """The local command socket."""
        return self.runtime_dir / "gate.sock"


def load_config(
    file: Path | None,
    flags: Mapping[str, object],
    environment: Mapping[str, str] = os.environ,
) -> Config:
    """Return the configuration.

    Args:
        file: a TOML file, or None.
        flags: values given on the command line; None values are left out.
        environment: where ``P2PTRAIN_*`` variables are read.

    Raises:
        ConfigError: names file, variable or flag, the key, and what is allowed.
    """
    values: dict[str, object] = {}
    if file is not None:
        for key, value in read_toml(file).items():
            _known(key, str(file))
            values[key] = _convert(key, value, f"{file}: {key}", file.parent)
    for key in NAMES:
        text = environment.get(PREFIX + key.upper())
        if text is not None:
            where = PREFIX + key.upper()
            values[key] = _convert(key, _from_text(key, text, where), where, Path())
    for key, value in flags.items():
        if value is not None:
            where = "--" + key.replace("_", "-")
            values[key] = _convert(key, value, where, Path())
    config = Config(**values)  # type: ignore[arg-type]  # converted above
    _check(config)
    return config


def read_toml(file: Path) -> dict[str, Any]:
    """Return what a TOML file holds.

    Raises:
        ConfigError: it cannot be read or parsed; names file and line.
    """
    try:
        return tomllib.loads(file.read_text())
    except FileNotFoundError:
        raise ConfigError(f"{file} does not exist") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file} cannot be read: {error}") from error
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{file} is not valid TOML: {error}") from error


def unknown_key(key: str, known: tuple[str, ...], where: str) -> ConfigError:
    """Return the error for an unknown key, with the nearest known one."""
    near = difflib.get_close_matches(key, known, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(known)}"
    return ConfigError(f"{where}: unknown key {key!r}; {hint}")


NAMES = tuple(item.name for item in fields(Config))
KINDS = get_type_hints(Config)


def _known(key: str, where: str) -> None:
    if key not in NAMES:
        raise unknown_key(key, NAMES, where)


def _convert(key: str, value: object, where: str, base: Path) -> object:
    """Return a value in its field's type; paths are relative to the file's folder."""
    kind = KINDS[key]
    if kind is Path and isinstance(value, str | Path):
        return base / Path(value).expanduser()
    if get_origin(kind) is tuple and isinstance(value, list | tuple):
        inner = get_args(kind)
        if inner[-1] is not Ellipsis and len(value) != len(inner):
            raise ConfigError(f"{where} must hold {len(inner)} values, not {value!r}")
        return tuple(_item(inner[0], item, where, base) for item in value)
    return _item(kind, value, where, base)


def _item(kind: type, value: object, where: str, base: Path) -> object:
    if kind is Path and isinstance(value, str | Path):
        return base / Path(value).expanduser()
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    right = isinstance(value, kind) and not (kind is int and isinstance(value, bool))
    if not right:
        raise ConfigError(f"{where} must be {_WORDS[kind]}, not {value!r}")
    return value


_WORDS = {
    str: "a text",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    Path: "a path",
    NoneType: "nothing",
}


def _from_text(key: str, text: str, where: str) -> object:
    """Return what a variable's text means for a key; lists are comma-separated."""
    kind = KINDS[key]
    if get_origin(kind) is tuple:
        inner = get_args(kind)[0]
        items = [item.strip() for item in text.split(",") if item.strip()]
        return [_scalar(inner, item, where) for item in items]
    return _scalar(kind, text, where)


def _scalar(kind: type, text: str, where: str) -> object:
    try:
        if kind is bool:
            return {"true": True, "1": True, "false": False, "0": False}[text.lower()]
        return kind(text)
    except (ValueError, KeyError):
        raise ConfigError(f"{where} must be {_WORDS[kind]}, not {text!r}") from None


def _check(config: Config) -> None:
    low, high = config.ring_ports
    tests = (
        ("port", 0 <= config.port <= PORT_MAX - 2, "0 to 65533"),
        ("ring_ports", 0 <= low <= high <= PORT_MAX, "two ports, the lower one first"),
        ("threads", 0 <= config.threads <= 1024, "0 to 1024"),
        ("stall_s", 0.5 <= config.stall_s <= 3600, "0.5 to 3600 seconds"),
        ("log_level", config.log_level in LOG_LEVELS, ", ".join(LOG_LEVELS)),
        ("name", 0 < len(config.name.encode()) <= 64, "1 to 64 bytes"),
    )
    for key, holds, allowed in tests:
        if not holds:
            value = getattr(config, key)
            raise ConfigError(f"{key} = {value!r} is not allowed; allowed: {allowed}")
    for seed in config.seeds:
        _, _, port = seed.rpartition(":")
        if not port.isdecimal() or not 0 < int(port) <= PORT_MAX:
            raise ConfigError(f"seeds: {seed!r} is not host:port")
