"""TLS: asyncio's protocol for it, mended, over the core's transports."""

import asyncio
import contextvars
import socket
import ssl
from asyncio import constants, streams
from asyncio.log import logger
from collections.abc import Callable
from typing import Any

from .base import BaseLoop
from .tls_protocol import TlsProtocol

_HANDSHAKE = constants.SSL_HANDSHAKE_TIMEOUT
_SHUTDOWN = constants.SSL_SHUTDOWN_TIMEOUT


class Tls(BaseLoop):
    def _make_ssl_transport(
        self,
        rawsock: socket.socket,
        protocol: asyncio.BaseProtocol,
        sslcontext: ssl.SSLContext | None,
        waiter: "asyncio.Future[None] | None" = None,
        *,
        server_side: bool = False,
        server_hostname: str | None = None,
        extra: dict[str, Any] | None = None,
        server: Any = None,
        ssl_handshake_timeout: float | None = _HANDSHAKE,
        ssl_shutdown_timeout: float | None = _SHUTDOWN,
    ) -> asyncio.Transport:
        self._ensure_fd_no_transport(rawsock)
        tls = TlsProtocol(
            self,
            protocol,
            sslcontext,
            waiter,
            server_side,
            server_hostname,
            ssl_handshake_timeout=ssl_handshake_timeout,
            ssl_shutdown_timeout=ssl_shutdown_timeout,
        )
        self._make_socket_transport(rawsock, tls, extra=extra, server=server)
        return tls._app_transport

    async def start_tls(
        self,
        transport: Any,  # with _start_tls_compatible
        protocol: asyncio.BaseProtocol,
        sslcontext: ssl.SSLContext,
        *,
        server_side: bool = False,
        server_hostname: str | None = None,
        ssl_handshake_timeout: float | None = None,
        ssl_shutdown_timeout: float | None = None,
    ) -> asyncio.Transport:
        """Puts TLS between a connection and its protocol; returns the
        transport to use from then on.

        `transport` is one of a TCP or Unix connection, or of TLS; the timeouts
        are in seconds (None: 60 and 30).  What a StreamReader had read already
        belongs to TLS where this is the server's side (as in CPython since
        gh-142352).  Raises TypeError for another transport or context,
        ValueError for a timeout that is not positive, ssl.SSLError and OSError
        if the handshake fails; the connection is closed then, and if the call
        is cancelled.
        """
        if not isinstance(sslcontext, ssl.SSLContext):
            raise TypeError(
                "sslcontext is expected to be an instance of ssl.SSLContext, "
                f"got {sslcontext!r}"
            )
        if not getattr(transport, "_start_tls_compatible", False):
            raise TypeError(f"transport {transport!r} is not supported by start_tls()")
        waiter = self.create_future()
        tls = TlsProtocol(
            self,
            protocol,
            sslcontext,
            waiter,
            server_side,
            server_hostname,
            call_connection_made=False,
            ssl_handshake_timeout=ssl_handshake_timeout,
            ssl_shutdown_timeout=ssl_shutdown_timeout,
        )
        # Nothing may come before connection_made() has begun the handshake.
        transport.pause_reading()
        if server_side and isinstance(protocol, streams.StreamReaderProtocol):
            reader: Any = protocol._stream_reader  # type: ignore[attr-defined]
            if reader is not None and reader._buffer:
                tls.take_buffered(reader._buffer)
        transport.set_protocol(tls)
        begin = self.call_soon(tls.connection_made, transport)
        go_on = self.call_soon(transport.resume_reading)
        try:
            await waiter
        except BaseException:
            transport.close()
            begin.cancel()
            go_on.cancel()
            raise
        return tls._app_transport

    def _tls_acceptor(
        self,
        protocol_factory: Callable[[], asyncio.BaseProtocol],
        listener: socket.socket,
        sslcontext: ssl.SSLContext,
        server: Any,
        ssl_handshake_timeout: float | None,
        ssl_shutdown_timeout: float | None,
    ) -> Callable[[int, Any], object]:
        """What the core calls for each connection of a TLS server."""
        kind = listener.family, listener.type, listener.proto
        context = contextvars.copy_context()

        def accepted(fd: int, peername: Any) -> None:
            conn = socket.socket(*kind, fileno=fd)
            conn.setblocking(False)
            if self._debug:
                logger.debug(
                    "%r got a new connection from %r: %r",
                    server,
                    peername,
                    conn,
                )
            # In a copy of the context in which the server was started.  Not
            # by create_task(context=), which not every task factory takes.
            context.run(
                self.create_task,
                self._accept_tls(
                    protocol_factory,
                    conn,
                    {"peername": peername},
                    sslcontext,
                    server,
                    ssl_handshake_timeout,
                    ssl_shutdown_timeout,
                ),
            )

        return accepted

    async def _accept_tls(
        self,
        protocol_factory: Callable[[], asyncio.BaseProtocol],
        conn: socket.socket,
        extra: dict[str, Any],
        sslcontext: ssl.SSLContext,
        server: Any,
        ssl_handshake_timeout: float | None,
        ssl_shutdown_timeout: float | None,
    ) -> None:
        if server is not None and server._sockets is None:
            conn.close()  # the server has been closed since
            return
        protocol = transport = None
        waiter = self.create_future()
        try:
            protocol = protocol_factory()
            transport = self._make_ssl_transport(
                conn,
                protocol,
                sslcontext,
                waiter,
                server_side=True,
                extra=extra,
                server=server,
                ssl_handshake_timeout=ssl_handshake_timeout,
                ssl_shutdown_timeout=ssl_shutdown_timeout,
            )
            await waiter
        except BaseException as exc:
            if transport is None:
                conn.close()
            else:
                transport.close()
            if isinstance(exc, (KeyboardInterrupt, SystemExit)):
                raise
            # A handshake that fails is the peer's affair, and says so in
            # debug mode only; all else is a fault of the program.
            if transport is None or self._debug:
                context: dict[str, Any] = {
                    "message": "Error on transport creation for incoming connection",
                    "exception": exc,
                }
                if protocol is not None:
                    context["protocol"] = protocol
                if transport is not None:
                    context["transport"] = transport
                self.call_exception_handler(context)
        finally:
            # The exception in it would hold this frame, and that the
            # transport.
            del waiter
