"""NNG operations that trio can wait for, and that lose nothing when cancelled.

pynng has no types; its values are ``Any`` here and in ``nng``, and go nowhere else.
"""

from collections.abc import Callable, Generator
from contextlib import suppress
from typing import Any, NoReturn

import pynng
import trio
from pynng import _aio

from p2ptrain.errors import AuthError
from p2ptrain.tls import SERVER_NAME, TlsMaterial

BACKEND = "p2ptrain"


class _Completion:
    """Waits for one NNG operation in trio; pynng's own helper cancels, this never does.

    A cancelled task closes the operation's context: NNG then ends the operation with
    ``Closed``, and the cancellation goes on from there. An operation that was done
    before that is done: its caller checks for cancellation afterwards.
    """

    def __init__(self, aio: Any) -> None:
        self._aio = aio
        self._token = trio.lowlevel.current_trio_token()
        self._task = trio.lowlevel.current_task()
        self._raise_cancel: Callable[[], NoReturn] | None = None

    def complete(self) -> None:
        """Called by NNG on a thread of its own."""
        # If the loop has ended, nobody waits any more.
        with suppress(trio.RunFinishedError):
            self._token.run_sync_soon(trio.lowlevel.reschedule, self._task)

    def __await__(self) -> Generator[Any, None, None]:
        return self._wait().__await__()

    async def _wait(self) -> None:
        await trio.lowlevel.wait_task_rescheduled(self._abort)
        error = pynng.lib.nng_aio_result(self._aio.aio)
        if error and self._raise_cancel is not None:
            self._raise_cancel()
        pynng.check_err(error)

    def _abort(self, raise_cancel: Callable[[], NoReturn]) -> trio.lowlevel.Abort:
        self._raise_cancel = raise_cancel
        close_context(self._aio.obj)
        return trio.lowlevel.Abort.FAILED


def _completion(aio: Any) -> Any:
    done = _Completion(aio)
    return done, done.complete


_aio.AIOHelper._aio_helper_map[BACKEND] = _completion  # noqa: SLF001  # pynng's hook


async def send(context: Any, body: bytes, timeout_s: float) -> None:
    """Send, and free the message if NNG did not take it."""
    message = pynng.Message(body)
    set_ms(context, "send-timeout", timeout_s)
    sent = False
    try:
        await context.asend_msg(message)
        sent = True
    finally:
        if not sent:
            message._mem_freed = False  # noqa: SLF001  # pynng says freed; it is not
    # It may have gone out although we were cancelled; the context is closed then.
    await trio.lowlevel.checkpoint_if_cancelled()


async def receive(context: Any) -> Any:
    """Receive a message."""
    message = await context.arecv_msg()
    await trio.lowlevel.checkpoint_if_cancelled()
    return message


def open_context(socket: Any) -> Any:
    """Return a new context: one conversation on a socket."""
    return pynng.Context(socket)


def close_context(context: Any) -> None:
    """Close; a context whose socket is closed is closed already."""
    try:
        context.close()
    except pynng.Closed:
        context._context = None  # noqa: SLF001  # else its destructor tries again


def set_ms(context: Any, option: str, seconds: float) -> None:
    """Set a time-out of a context."""
    milliseconds = max(1, int(seconds * 1000))
    pynng.check_err(
        pynng.lib.nng_ctx_set_ms(context.context, option.encode(), milliseconds)
    )


def tls_config(tls: TlsMaterial | None, mode: int) -> Any:
    """Return NNG's mutual TLS for one side, or None without TLS.

    Raises:
        AuthError: a file is missing or broken; names the folder.
    """
    if tls is None:
        return None
    client = mode == pynng.TLSConfig.MODE_CLIENT
    try:
        return pynng.TLSConfig(
            mode,
            server_name=SERVER_NAME if client else None,
            ca_string=tls.ca.read_text(),
            own_key_string=tls.key.read_text(),
            own_cert_string=tls.cert.read_text(),
            auth_mode=pynng.TLSConfig.AUTH_MODE_REQUIRED,
        )
    except (OSError, UnicodeError, pynng.NNGException) as error:
        raise AuthError(
            f"cannot load the certificates in {tls.cert.parent}: {error}"
        ) from error
