"""Servers: what create_server() and create_unix_server() return, and accept().

The core accepts the connections and makes their transports; here are the
listening sockets, what a failing accept() leads to, and the server object.
"""

import asyncio
import contextlib
import contextvars
import math
import os
import socket
import ssl
import sys
from asyncio import base_events, constants, trsock, unix_events
from asyncio.log import logger
from collections.abc import Callable
from typing import Any

from . import _core
from .tls import Tls

_INET = (socket.AF_INET, socket.AF_INET6)
# Not by way of the module: tools that look for blocking calls in coroutines
# replace these there, and know asyncio's places only.
_stat, _unlink = os.stat, os.unlink


class Server(base_events.Server):
    """asyncio's Server of this Python version, and close_clients() and
    abort_clients() on every version.

    Like all of a loop's objects it belongs to the loop's thread.
    """

    # The core adds and removes its transports itself when it finds exactly
    # this type, and calls _wakeup() when the last one of a closed server
    # goes.
    _clients: _core.ConnectionSet
    _sockets: list[socket.socket] | None
    _waiters: list[Any] | None
    # Before 3.13 asyncio's own transports do not say who they are.
    _unnamed = 0

    @classmethod
    def _from(cls, server: base_events.Server) -> "Server":
        """Turns a server of asyncio's, which has no connections yet, into
        one of ours."""
        server.__class__ = cls
        assert isinstance(server, cls)
        server._clients = _core.ConnectionSet()
        return server

    @property
    def _active_count(self) -> int:
        return len(self._clients) + self._unnamed

    @_active_count.setter
    def _active_count(self, value: int) -> None:
        """The base class before 3.13 starts with 0."""

    def _attach(self, transport: Any = None) -> None:
        assert self._sockets is not None
        if transport is None:
            self._unnamed += 1
        else:
            self._clients.add(transport)

    def _detach(self, transport: Any = None) -> None:
        if transport is None:
            self._unnamed -= 1
        else:
            self._clients.discard(transport)
        if self._active_count == 0 and self._sockets is None:
            self._wakeup()

    def _wakeup(self) -> None:
        # A connection that was accepted before close() may be attached
        # after it: then the last one goes a second time.  The core, which
        # calls this too, does not know of unnamed ones.
        if self._waiters is not None and self._active_count == 0:
            super()._wakeup()  # type: ignore[misc]

    def close_clients(self) -> None:
        """Calls close() on the transport of each open connection."""
        for transport in self._clients.copy():
            transport.close()

    def abort_clients(self) -> None:
        """Calls abort() on the transport of each open connection."""
        for transport in self._clients.copy():
            transport.abort()


class Servers(Tls):
    # From 3.13 on: the inode of the path of each socket whose path goes with
    # it.
    _unix_server_sockets: dict[socket.socket, int]
    _accept_reported = -math.inf  # when a failing accept() was last reported

    def __init__(self, *, shards: int | None = None) -> None:
        super().__init__(shards=shards)
        self._unix_server_sockets = {}

    async def create_server(
        self,
        protocol_factory: Callable[[], asyncio.BaseProtocol],
        host: Any = None,
        port: Any = None,
        *,
        keep_alive: bool | None = None,
        start_serving: bool = True,
        **options: Any,
    ) -> Server:
        """As asyncio's, with all keywords of this Python version.

        `keep_alive` (SO_KEEPALIVE on each connection), which is new in 3.13,
        works on every version.
        """
        if sys.version_info >= (3, 13):
            options["keep_alive"] = keep_alive
        server = Server._from(
            await super().create_server(
                protocol_factory, host, port, start_serving=False, **options
            )
        )
        own = options.get("sock") is None
        if sys.version_info < (3, 13) and keep_alive and own:
            for sock in server._sockets or ():
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        if start_serving:
            await self._serve(server, own)
        return server

    _asyncio_unix_server: Any = unix_events._UnixSelectorEventLoop.create_unix_server

    async def create_unix_server(
        self,
        protocol_factory: Callable[[], asyncio.BaseProtocol],
        path: Any = None,
        *,
        start_serving: bool = True,
        **options: Any,
    ) -> Server:
        """As asyncio's, with all keywords of this Python version."""
        server = Server._from(
            await self._asyncio_unix_server(
                protocol_factory, path, start_serving=False, **options
            )
        )
        if start_serving:
            await self._serve(server, path is not None)
        return server

    async def _serve(self, server: Server, own: bool) -> None:
        try:
            server._start_serving()  # type: ignore[attr-defined]
        except BaseException:
            if own:  # the sockets, which nobody else knows
                server.close()
            raise
        try:
            # What waits for the server finds it accepting.
            await asyncio.sleep(0)
        except BaseException:
            # The caller never gets to see the server.
            server.close()
            raise

    # -- hooks that asyncio's Server calls ----------------------------------

    def _start_serving(
        self,
        protocol_factory: Callable[[], asyncio.BaseProtocol],
        sock: socket.socket,
        sslcontext: ssl.SSLContext | None = None,
        server: Any = None,
        backlog: int = 100,
        ssl_handshake_timeout: float | None = constants.SSL_HANDSHAKE_TIMEOUT,
        ssl_shutdown_timeout: float | None = constants.SSL_SHUTDOWN_TIMEOUT,
        context: contextvars.Context | None = None,
    ) -> None:
        """`context`, which Pythons to come may pass: that of the protocols,
        else the present one."""
        if context is not None:
            context = context.copy()  # may be entered by who calls
        if sock.family in _INET:
            # Accepted sockets inherit it, which saves a call for each.  Not
            # every protocol under SOCK_STREAM is TCP.
            with contextlib.suppress(OSError):
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        on_accept = None
        if sslcontext:
            on_accept = self._tls_acceptor(
                protocol_factory,
                sock,
                sslcontext,
                server,
                ssl_handshake_timeout,
                ssl_shutdown_timeout,
            )
        if context is None:
            self._listen(sock, protocol_factory, server, on_accept, backlog)
        else:
            context.run(
                self._listen, sock, protocol_factory, server, on_accept, backlog
            )

    def _stop_serving(self, sock: socket.socket) -> None:
        inode = self._unix_server_sockets.pop(sock, None)
        path = None if inode is None else sock.getsockname()
        self._unlisten(sock.fileno())
        sock.close()
        if path is None:
            return
        try:
            # Another server may have taken the path since.
            if _stat(path).st_ino == inode:
                _unlink(path)
        except FileNotFoundError:
            pass
        except OSError as exc:
            logger.error("Unable to clean up listening UNIX socket %r: %r", path, exc)

    # -- hooks that the core calls ------------------------------------------

    def _accept_error(
        self,
        sock: socket.socket,
        exc: OSError,
        protocol_factory: Callable[[], asyncio.BaseProtocol],
        server: Any,
        on_accept: Callable[[int, Any], object] | None,
        backlog: int,
    ) -> None:
        """accept() failed for want of descriptors or memory, and the core
        has paused the listener: goes on in a second.  All listeners of the
        loop share one report per second, as they share the reason."""
        now = self.time()
        if now - self._accept_reported >= constants.ACCEPT_RETRY_DELAY:
            self._accept_reported = now
            self.call_exception_handler(
                {
                    "message": "socket.accept() out of system resource",
                    "exception": exc,
                    "socket": trsock.TransportSocket(sock),
                }
            )
        self.call_later(
            constants.ACCEPT_RETRY_DELAY,
            self._accept_again,
            sock,
            protocol_factory,
            server,
            on_accept,
            backlog,
        )

    def _accept_again(
        self,
        sock: socket.socket,
        protocol_factory: Callable[[], asyncio.BaseProtocol],
        server: Any,
        on_accept: Callable[[int, Any], object] | None,
        backlog: int,
    ) -> None:
        closed = sock.fileno() < 0
        if server is not None:
            closed = closed or server._sockets is None
        if not closed:
            self._listen(sock, protocol_factory, server, on_accept, backlog)
