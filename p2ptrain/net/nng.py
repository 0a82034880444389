"""The control and bulk planes over NNG's request and reply sockets.

Owns one listening Rep socket, and through ``peers`` one Req socket for each address it
talks to. It knows nothing of what it carries.

What NNG and pynng 0.9 do by themselves, and what is done about it here:

- A cancelled or timed-out send leaks its message, and a cancelled operation may never
  call back. So nothing is ever cancelled: each request has a context of its own with
  NNG's own time-outs, a cancelled task closes the context, which ends its operation at
  once, and a message that was not taken is freed (``operations.send``).
- A request is sent again when its connection is lost. With no resend time it is not:
  it fails at once with a reset, so delivery is at most once.
- A partition shows no event and redialling is slow. After a failure, the next request
  gets a new socket and dials afresh; the old socket is closed when nobody uses it.
- ``recv_max_size`` is unlimited by default and its setter swallows errors: it is read
  back on every socket before anything is dialled or bound.
- Objects destroyed after the library abort the process: ``aclose`` closes them all.
"""

import socket as sockets
from collections.abc import Callable
from typing import Any, Self

import pynng
import trio
from pynng.options import _getopt_string

from p2ptrain.errors import (
    ConfigError,
    LocalError,
    PeerError,
    UnreachableError,
)
from p2ptrain.ids import NodeId, is_node
from p2ptrain.net.operations import (
    BACKEND,
    close_context,
    open_context,
    receive,
    send,
    tls_config,
)
from p2ptrain.net.peers import Peers, bound
from p2ptrain.ports import Handler
from p2ptrain.tls import TlsMaterial, check_exposure

SERVE_LOOPS = 64
REPLY_TIMEOUT_S = 5.0  # a client that does not take its reply holds a loop this long
PIPES_MAX = 1024  # accepted connections
THREADS_MAX = 4  # of each kind that NNG starts, in the whole process


class NngTransport:
    """Implements ``ports.Transport``; an async context manager.

    Args:
        host: address to listen on.
        port: port to listen on; 0 lets the system choose.
        bytes_max: the largest request and the largest reply.
        tls: with it every connection is mutual TLS, and handlers get the peer's node
            id from its certificate; without it only a loopback ``host`` is allowed.

    Raises:
        ConfigError: plain and not on loopback.
        AuthError: the certificates cannot be loaded.
    """

    def __init__(
        self, host: str, port: int, bytes_max: int, tls: TlsMaterial | None
    ) -> None:
        check_exposure(host, tls)
        for kind in ("TASK", "EXPIRE", "POLLER"):
            option = getattr(pynng.lib, f"NNG_INIT_MAX_{kind}_THREADS")
            pynng.lib.nng_init_set_parameter(option, THREADS_MAX)
        self._host = host
        self._port = port
        self._bytes_max = bytes_max
        self._scheme = "tcp" if tls is None else "tls+tcp"
        self._tls = tls
        self._server_tls = tls_config(tls, pynng.TLSConfig.MODE_SERVER)
        self._peers = Peers(self._scheme, bytes_max, tls)
        self._rep: Any = None
        self._closed = False

    async def __aenter__(self) -> Self:
        """Start."""
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close."""
        await self.aclose()

    @property
    def address(self) -> str:
        """Where this node listens, as bound."""
        return f"{self._host}:{self._port}"

    async def start(self) -> None:
        """Bind the listener.

        Raises:
            ConfigError: the address is taken or not ours; names it.
        """
        self._rep = pynng.Rep0(async_backend=BACKEND)
        self._rep.add_pre_pipe_connect_cb(_refuse_too_many)
        bound(self._rep, self._bytes_max, self._server_tls)
        for _ in range(20):
            # An address may stay taken for a moment after its last owner's end.
            if self._listen():
                return
            await trio.sleep(0.1)
        self._rep.close()
        raise ConfigError(
            f"cannot listen on {self.address}: another program has this port; choose "
            "another one, or end that program"
        )

    async def request(self, address: str, body: bytes, timeout_s: float) -> bytes:
        """Send one request and return the reply; at most once.

        Raises:
            UnreachableError: no reply in time, or no connection; the connection is
                dialled afresh next time.
        """
        if len(body) > self._bytes_max:
            raise LocalError(
                f"request of {len(body)} bytes, at most {self._bytes_max} are allowed"
            )
        # A send in a cancelled scope would still go out.
        await trio.lowlevel.checkpoint_if_cancelled()
        started = trio.current_time()
        with self._peers.use(address) as peer:
            try:
                return await peer.exchange(body, started + timeout_s)
            except pynng.NNGException as error:
                # When other answers came meanwhile, only this request is slow.
                if peer.heard_at <= started or not isinstance(error, pynng.Timeout):
                    self._peers.retire(address, peer)
                raise UnreachableError(
                    f"no answer from {address} within {timeout_s:g} s"
                    if isinstance(error, pynng.Timeout)
                    else f"connection to {address} lost: {error}"
                ) from error

    def on_lost(self, tell: Callable[[str], None]) -> None:
        """Have ``tell`` called with an address that closed its connection to us.

        So does a process that ended, at once. It is a hint, never a proof.
        """
        self._peers.on_lost = tell

    async def serve(
        self,
        handler: Handler,
        *,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Answer requests until cancelled or closed, ``SERVE_LOOPS`` at a time."""
        async with trio.open_nursery() as nursery:
            for _ in range(SERVE_LOOPS):
                nursery.start_soon(self._serve_loop, handler)
            task_status.started()

    async def aclose(self) -> None:
        """Close every socket; what is under way ends with UnreachableError."""
        self._closed = True
        self._peers.close()
        if self._rep is not None:
            self._rep.close()
        await trio.lowlevel.checkpoint()

    def _listen(self) -> bool:
        try:
            listener = self._rep.listen(f"{self._scheme}://{self._host}:{self._port}")
        except pynng.AddressInUse:
            return False
        except pynng.NNGException as error:
            self._rep.close()
            raise ConfigError(
                f"cannot listen on {self._host}:{self._port}: {error}"
            ) from error
        self._port = sockets.ntohs(listener.local_address.port)
        return True

    async def _serve_loop(self, handler: Handler) -> None:
        while not self._closed:
            try:
                await self._serve_some(handler)
            except pynng.Closed:
                continue

    async def _serve_some(self, handler: Handler) -> None:
        """Serve with one context until a reply cannot be sent."""
        context = open_context(self._rep)
        try:
            while True:
                await self._serve_one(context, handler)
        except pynng.Timeout:
            return  # the client does not read: a new context forgets it
        finally:
            close_context(context)

    async def _serve_one(self, context: Any, handler: Handler) -> None:
        """Serve one request; nothing of it is held while the next one is awaited."""
        reply = await self._handle(handler, await receive(context))
        if reply is not None:
            await send(context, reply, REPLY_TIMEOUT_S)

    async def _handle(self, handler: Handler, message: Any) -> bytes | None:
        try:
            peer = self._identity(message)
            reply = await handler(message.bytes, peer)
        except PeerError:
            return None
        if len(reply) > self._bytes_max:
            raise LocalError(
                f"reply of {len(reply)} bytes, at most {self._bytes_max} are allowed"
            )
        return reply

    def _identity(self, message: Any) -> NodeId | None:
        """Return the node in the certificate of the connection that brought this.

        Raises:
            PeerError: the certificate names no node, or the connection is gone.
        """
        if self._tls is None:
            return None
        try:
            name = _getopt_string(message.pipe, "tls-peer-cn")
        except (TypeError, RuntimeError, pynng.NNGException) as error:
            raise PeerError("a request without a peer certificate") from error
        if not is_node(name):
            raise PeerError(f"a certificate names no node: {name!r:.80}")
        return NodeId(name)


def _refuse_too_many(pipe: Any) -> None:
    if len(pipe.socket.pipes) > PIPES_MAX:
        pipe.close()
