"""The trainer process: ``python -m p2ptrain.engine``, started by ``engine.process``."""

import faulthandler
import os
import sys
from typing import NoReturn

from p2ptrain.engine.commands import Commands
from p2ptrain.engine.outbox import Outbox
from p2ptrain.engine.session import Session


def main() -> int:
    """Speak frames over standard input and output until told to quit."""
    faulthandler.enable()
    # Only frames may reach the daemon's pipe: what libraries print goes to the log.
    frames = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    outbox = Outbox(frames)
    # A thread that reads sys.stdin itself at exit makes the interpreter abort.
    commands = Commands(os.fdopen(os.dup(sys.stdin.fileno()), "rb"), leave)
    commands.start()
    code = Session(commands, outbox).serve()
    outbox.close()
    return code


def leave(reason: str) -> NoReturn:
    """End the process at once: the daemon is gone, nobody waits for anything."""
    sys.stderr.write(f"the daemon's pipe: {reason}\n")
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main())
