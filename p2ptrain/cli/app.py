"""Entry point: parses arguments, runs one command, turns errors into one sentence."""

import sys
import traceback
from importlib import import_module
from pathlib import Path

from p2ptrain.cli.arguments import make_parser
from p2ptrain.errors import ExitCode, P2PTrainError, sole


def main(argv: list[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    arguments = make_parser().parse_args(argv)
    module, function = arguments.command.split(":")
    try:
        run = getattr(import_module(f"p2ptrain.cli.{module}"), function)
        return int(run(arguments))
    except KeyboardInterrupt:
        return ExitCode.INTERRUPTED
    except BrokenPipeError:
        return ExitCode.FAILED
    except Exception as error:  # noqa: BLE001  # the last line before the user
        return _explain(error)


def _explain(error: BaseException) -> int:
    """Print one sentence; a fault of ours also leaves a trace to report."""
    cause = sole(error)
    if isinstance(cause, P2PTrainError):
        print(f"p2ptrain: {cause}", file=sys.stderr)  # noqa: T201
        return cause.exit_code
    if isinstance(cause, KeyboardInterrupt):
        return ExitCode.INTERRUPTED
    path = Path.home() / ".p2ptrain-crash.txt"
    text = "".join(traceback.format_exception(error))
    try:
        path.write_text(text)
        where = f"the trace is in {path}"
    except OSError:
        where = text
    print(f"p2ptrain: unexpected {cause!r}; please report it: {where}", file=sys.stderr)  # noqa: T201
    return ExitCode.FAILED
