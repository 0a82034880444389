"""The error tree and the exit codes; every error a person can meet starts here.

A fault of our own is a ``LocalError`` (the process ends and its supervisor restarts
it), a fault of a peer is a ``PeerError`` (dropped and counted), a mistake of the person
at the keyboard is a ``UserError`` (one sentence that says what, where and what to do).
Nothing below ``cli/`` decides how an error is printed.
"""

from enum import IntEnum


class ExitCode(IntEnum):
    """Process exit codes, documented in the README and in ``--help``."""

    OK = 0
    FAILED = 1
    USAGE = 2
    NO_DAEMON = 3
    NO_MASTER = 4
    AUTH = 5
    TIMEOUT = 6
    NOT_FOUND = 7
    CONFLICT = 8
    CONFIG = 78
    INTERRUPTED = 130


class P2PTrainError(Exception):
    """Root of the tree.

    ``str(error)`` is one sentence for a person.
    """

    exit_code: ExitCode = ExitCode.FAILED


class LocalError(P2PTrainError):
    """An invariant of ours is broken: the process must end."""


class PeerError(P2PTrainError):
    """A peer sent what it must not send: drop it and count it."""


class UserError(P2PTrainError):
    """A person's input is wrong."""

    exit_code = ExitCode.USAGE


class ConfigError(UserError):
    """A configuration file, variable or flag is wrong."""

    exit_code = ExitCode.CONFIG


class SpecError(UserError):
    """A TrainSpec is not acceptable; names the field and the value.

    Args:
        field: dotted path of the field, for example ``graph.nodes[3].op``.
        problem: what is wrong with it, with the value.
    """

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field}: {problem}")
        self.field = field
        self.problem = problem


class CaptureError(UserError):
    """A model cannot be captured as a graph; names the operator or the line."""


class RefError(P2PTrainError):
    """A URI of a weight or of data cannot be resolved on this node."""

    def __init__(self, node: str, uri: str, problem: str) -> None:
        super().__init__(f"node {node!r} cannot resolve {uri}: {problem}")
        self.node = node
        self.uri = uri


class StorageError(P2PTrainError):
    """The disk failed us (full, read-only, corrupt); names the file and the reason."""


class NoDaemonError(P2PTrainError):
    """No daemon answers on the local command socket."""

    exit_code = ExitCode.NO_DAEMON


class NoMasterError(P2PTrainError):
    """The cluster has no master now, or it cannot be reached."""

    exit_code = ExitCode.NO_MASTER


class AuthError(P2PTrainError):
    """A certificate, token or key was refused."""

    exit_code = ExitCode.AUTH


class DeadlineError(P2PTrainError):
    """Something did not answer in time."""

    exit_code = ExitCode.TIMEOUT


class NotFoundError(P2PTrainError):
    """The named session, node or file does not exist."""

    exit_code = ExitCode.NOT_FOUND


class ConflictError(P2PTrainError):
    """The request contradicts what is already recorded."""

    exit_code = ExitCode.CONFLICT


class ActorGoneError(P2PTrainError):
    """The actor that was asked has ended without an answer."""


class UnreachableError(P2PTrainError):
    """A peer did not answer a request in time, or its address is dead."""


class LinkLostError(P2PTrainError):
    """A ring link broke, timed out or was aborted: the view is over.

    Args:
        rank: the neighbour's rank, or -1 when this side aborted.
        problem: what happened.
    """

    def __init__(self, rank: int, problem: str) -> None:
        super().__init__(f"ring link to rank {rank}: {problem}")
        self.rank = rank
        self.problem = problem


def sole(error: BaseException) -> BaseException:
    """Return what a group of errors is about: the first of ours, else the first."""
    if not isinstance(error, BaseExceptionGroup):
        return error
    leaves = [sole(each) for each in error.exceptions]
    ours = [leaf for leaf in leaves if isinstance(leaf, P2PTrainError)]
    return (ours or leaves)[0]
