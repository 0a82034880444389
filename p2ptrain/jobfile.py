"""Job files: TOML that says where a model comes from, its data, and how to train it.

::

    name = "digits"

    [model]
    file = "digits.py"       # run on the submitting machine only
    function = "job"         # returns engine.package.Job
    args = { width = 16 }

    [data]                   # optional: input = path or URI, in place of the function's
    [eval]
    [weights]                # optional: weight = URI, in place of the captured values

    [train]
    epochs = 3
    lr = 0.1                 # or lr_per_epoch = [0.1, 0.1, 0.01]
"""

import importlib.util
import traceback
from collections.abc import Mapping
from dataclasses import dataclass, fields
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from p2ptrain.config import read_toml, unknown_key
from p2ptrain.engine.settings import Settings
from p2ptrain.errors import ConfigError, UserError
from p2ptrain.spec.train import Optimizer, OptimizerKind, Precision, Reduce

if TYPE_CHECKING:
    from p2ptrain.engine.package import Job, Package

ChoiceT = TypeVar("ChoiceT", bound=StrEnum)
# what a person's own Python may raise
MISTAKES = (
    *(SyntaxError, ImportError, NameError, AttributeError, TypeError, ValueError),
    *(LookupError, ArithmeticError, OSError, RuntimeError, AssertionError),
)
TABLES = ("name", "model", "data", "eval", "weights", "train")
MODEL_KEYS = ("file", "function", "args")
OPTIMIZER_KEYS = ("nesterov", "weight_decay", "beta1", "beta2", "eps")
RATE_KEYS = ("epochs", "lr", "lr_per_epoch")
SETTING_KEYS = tuple(
    item.name
    for item in fields(Settings)
    if item.name not in {"lr_per_epoch", "optimizer", "weights", "name"}
)
TRAIN_KEYS = (*RATE_KEYS, "optimizer", *OPTIMIZER_KEYS, "precision", *SETTING_KEYS)


@dataclass(frozen=True, slots=True)
class JobFile:
    """A checked job file.

    Args:
        path: of the file.
        source: the Python file of the model.
        function: in it.
        args: for the function.
        data: URIs that take the place of the function's training data.
        eval_data: the same for validation.
        settings: for the job.
        precision: to capture with.
    """

    path: Path
    source: Path
    function: str
    args: Mapping[str, Any]
    data: Mapping[str, str]
    eval_data: Mapping[str, str]
    settings: Settings
    precision: Precision


def load_jobfile(path: Path) -> JobFile:
    """Read and check a job file; nothing of it is run.

    Raises:
        ConfigError: names the file, the key, and what is allowed.
    """
    values = read_toml(path)
    _known(values, TABLES, f"{path}")
    model = _table(values, "model", path)
    _known(model, MODEL_KEYS, f"{path}: [model]")
    if "file" not in model:
        raise ConfigError(f"{path}: [model] needs file, the Python file of the model")
    train = _table(values, "train", path)
    _known(train, TRAIN_KEYS, f"{path}: [train]")
    return JobFile(
        path=path,
        source=path.parent / str(model["file"]),
        function=str(model.get("function", "job")),
        args=model.get("args", {}),
        data=_texts(values, "data", path),
        eval_data=_texts(values, "eval", path),
        settings=_settings(values, train, path),
        precision=_choice(Precision, train.get("precision", "fp32"), path, "precision"),
    )


def build(file: JobFile, folder: Path) -> "Package":
    """Run the model's function here, capture it, and package the job in a folder.

    Raises:
        UserError: the Python file or function does not do what a job needs.
    """
    from p2ptrain.engine.package import captured, package  # noqa: PLC0415  # torch

    job = run_function(file)
    data = {**job.data, **file.data}
    given = {**(job.eval_data or {}), **file.eval_data}
    return package(
        captured(job, file.precision),
        data=data,
        eval_data=given or None,
        folder=folder,
        settings=file.settings,
    )


def run_function(file: JobFile) -> "Job":
    """Import the model's file on this machine and call its function.

    Raises:
        UserError: there is no such file or function, or it returns no Job.
    """
    from p2ptrain.engine.package import Job  # noqa: PLC0415  # torch

    name = f"p2ptrain_job_{file.source.stem}"
    found = importlib.util.spec_from_file_location(name, file.source)
    if found is None or found.loader is None or not file.source.is_file():
        raise UserError(f"{file.path}: model.file {file.source} is no Python file")
    module = importlib.util.module_from_spec(found)
    try:
        found.loader.exec_module(module)
    except MISTAKES as error:
        raise UserError(f"{file.source}: {_mistake(error, file.source)}") from error
    function = getattr(module, file.function, None)
    if not callable(function):
        raise UserError(f"{file.source} has no function {file.function!r}")
    try:
        job = function(**file.args)
    except MISTAKES as error:
        where = f"{file.source}: {file.function}"
        raise UserError(f"{where}: {_mistake(error, file.source)}") from error
    if not isinstance(job, Job):
        kind = type(job).__name__
        raise UserError(f"{file.source}: {file.function} must return a Job, not {kind}")
    return job


def _mistake(error: Exception, source: Path) -> str:
    """Return what went wrong in a person's own Python, with its line there."""
    lines = [
        frame.lineno
        for frame in traceback.extract_tb(error.__traceback__)
        if Path(frame.filename) == source
    ]
    line = error.lineno if isinstance(error, SyntaxError) else (lines or [None])[-1]
    at = f"line {line}: " if line else ""
    return f"{at}{type(error).__name__}: {error}"


def _settings(
    values: Mapping[str, Any], train: Mapping[str, Any], path: Path
) -> Settings:
    kept = {key: train[key] for key in SETTING_KEYS if key in train}
    if "reduce" in kept:
        kept["reduce"] = _choice(Reduce, kept["reduce"], path, "reduce")
    if "packed" in kept:
        kept["packed"] = frozenset(kept["packed"])
    kind = _choice(OptimizerKind, train.get("optimizer", "sgd"), path, "optimizer")
    extras = {key: train[key] for key in OPTIMIZER_KEYS if key in train}
    _check_types(kept | extras, path)
    return Settings(
        name=str(values.get("name", path.stem)),
        lr_per_epoch=_rates(train, path),
        optimizer=Optimizer(kind=kind, **extras),
        weights=_texts(values, "weights", path),
        **kept,
    )


def _rates(train: Mapping[str, Any], path: Path) -> tuple[float, ...]:
    if "lr_per_epoch" in train:
        if "lr" in train or "epochs" in train:
            raise ConfigError(f"{path}: give lr_per_epoch, or lr and epochs, not both")
        rates = train["lr_per_epoch"]
        if not isinstance(rates, list) or not all(_is_number(r) for r in rates):
            raise ConfigError(f"{path}: lr_per_epoch must be a list of numbers")
        return tuple(float(rate) for rate in rates)
    epochs, rate = train.get("epochs"), train.get("lr")
    if not isinstance(epochs, int) or isinstance(epochs, bool) or epochs < 1:
        raise ConfigError(f"{path}: [train] epochs must be a positive whole number")
    if not _is_number(rate):
        raise ConfigError(f"{path}: [train] lr must be a number")
    return (float(rate),) * epochs  # type: ignore[arg-type]  # a number


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


WORDS = {bool: "true or false", int: "a whole number", float: "a number", str: "a text"}
KINDS: dict[str, type] = {
    **dict.fromkeys(("momentum", "clip_norm", "weight_decay"), float),
    **dict.fromkeys(("beta1", "beta2", "eps"), float),
    **dict.fromkeys(("seed", "global_batch", "checkpoint_every", "digest_every"), int),
    "skip_max": int,
    **dict.fromkeys(("nesterov", "push_data"), bool),
    **dict.fromkeys(("device", "grad_group"), str),
}


def _check_types(values: Mapping[str, Any], path: Path) -> None:
    for key, value in values.items():
        kind = KINDS.get(key)
        if kind is None:
            continue
        right = _is_number(value) if kind is float else type(value) is kind
        if not right:
            raise ConfigError(
                f"{path}: [train] {key} must be {WORDS[kind]}, not {value!r}"
            )


def _choice(kind: type[ChoiceT], value: object, path: Path, key: str) -> ChoiceT:
    allowed = [item.value for item in kind]
    if value not in allowed:
        raise ConfigError(
            f"{path}: [train] {key} must be one of {', '.join(allowed)}, not {value!r}"
        )
    return kind(value)


def _table(values: Mapping[str, Any], key: str, path: Path) -> Mapping[str, Any]:
    table = values.get(key)
    if not isinstance(table, dict):
        raise ConfigError(f"{path}: a table [{key}] is needed")
    return table


def _texts(values: Mapping[str, Any], key: str, path: Path) -> dict[str, str]:
    table = values.get(key, {})
    if not isinstance(table, dict):
        raise ConfigError(f"{path}: [{key}] must be a table")
    for name, text in table.items():
        if not isinstance(text, str):
            raise ConfigError(f"{path}: [{key}] {name} must be a path or a URI")
    return {name: _absolute(text, path.parent) for name, text in table.items()}


def _absolute(text: str, base: Path) -> str:
    """Return a plain path as an absolute one; URIs stay."""
    is_uri = "://" in text or text.startswith(("blob:", "init:"))
    return text if is_uri else str((base / text).resolve())


def _known(values: Mapping[str, Any], known: tuple[str, ...], where: str) -> None:
    for key in values:
        if key not in known:
            raise unknown_key(key, known, where)
