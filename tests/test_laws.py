"""The budgets and laws that no linter knows, read from the source itself."""

import ast
import statistics
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "p2ptrain"
MODULES = sorted(PACKAGE.rglob("*.py"))

Function = ast.FunctionDef | ast.AsyncFunctionDef


def functions(path: Path) -> Iterator[Function]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, Function):
            yield node


def length(node: Function) -> int:
    assert node.end_lineno is not None
    return node.end_lineno - node.lineno + 1


def where(path: Path) -> str:
    return str(path.relative_to(ROOT))


def test_a_module_has_at_most_300_lines() -> None:
    sizes = {where(path): len(path.read_text().splitlines()) for path in MODULES}
    assert {name: size for name, size in sizes.items() if size > 300} == {}


def test_a_function_has_at_most_50_lines() -> None:
    long = {
        f"{where(path)}:{node.name}": length(node)
        for path in MODULES
        for node in functions(path)
        if length(node) > 50
    }
    assert long == {}


def test_the_median_function_has_at_most_8_lines() -> None:
    lengths = [length(node) for path in MODULES for node in functions(path)]
    assert statistics.median(lengths) <= 8


def arguments(node: Function) -> list[ast.arg]:
    positional = [*node.args.posonlyargs, *node.args.args]
    return [arg for arg in positional if arg.arg not in {"self", "cls"}]


def test_no_positional_argument_is_boolean() -> None:
    found = [
        f"{where(path)}:{node.name}({arg.arg})"
        for path in MODULES
        for node in functions(path)
        for arg in arguments(node)
        if isinstance(arg.annotation, ast.Name) and arg.annotation.id == "bool"
    ]
    assert found == []


def handlers(path: Path) -> Iterator[ast.ExceptHandler]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ExceptHandler):
            yield node


def test_only_the_supervisor_catches_every_exception() -> None:
    wide = {"Exception", "BaseException"}
    found = {
        where(path)
        for path in MODULES
        for handler in handlers(path)
        if handler.type is None
        or any(
            isinstance(name, ast.Name) and name.id in wide
            for name in ast.walk(handler.type)
        )
    }
    assert found <= {"p2ptrain/runtime/supervise.py", "p2ptrain/cli/app.py"}


@pytest.mark.parametrize("word", ["pickle", "marshal", "shelve", "importlib.import"])
def test_nothing_unpickles(word: str) -> None:
    found = [
        where(path)
        for path in MODULES
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Import | ast.ImportFrom)
        and word in ast.unparse(node).split()
    ]
    assert found == []


@pytest.mark.parametrize("name", ["eval", "exec", "compile", "__import__"])
def test_nothing_evaluates(name: str) -> None:
    found = [
        where(path)
        for path in MODULES
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == name
    ]
    assert found == []


def test_structlog_is_configured_once() -> None:
    found = [
        where(path) for path in MODULES if "structlog.configure(" in path.read_text()
    ]
    assert found == ["p2ptrain/log.py"]
