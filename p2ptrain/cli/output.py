"""What commands print: sentences to stderr, tables and JSON to stdout."""

import json
import sys
from collections.abc import Iterable, Sequence

from p2ptrain import codec


def say(sentence: str) -> None:
    """Print a sentence for the person, not for a pipe."""
    print(sentence, file=sys.stderr, flush=True)  # noqa: T201


def show_json(value: object) -> None:
    """Print a message or plain value as one line of JSON."""
    print(json.dumps(codec.to_plain(value), default=repr), flush=True)  # noqa: T201


def table(heads: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print a table."""
    from rich.console import Console  # noqa: PLC0415  # slow to import
    from rich.table import Table  # noqa: PLC0415

    made = Table(box=None, pad_edge=False, header_style="bold")
    for head in heads:
        made.add_column(head, no_wrap=True)
    for row in rows:
        made.add_row(*(str(cell) for cell in row))
    Console(soft_wrap=not sys.stdout.isatty()).print(made)


def size(count: float) -> str:
    """Return bytes for people."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"
