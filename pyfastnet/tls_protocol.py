"""TlsProtocol: asyncio's SSLProtocol, without the faults that its users met."""

import asyncio
import contextvars
import ssl
import traceback
from asyncio import sslproto
from typing import TYPE_CHECKING, Any

_State = sslproto.SSLProtocolState
# No input, or the peer's close_notify after our own.
_END = (ssl.SSLWantReadError, ssl.SSLSyscallError, ssl.SSLZeroReturnError)

if TYPE_CHECKING:

    class _Base(sslproto.SSLProtocol):
        # What typeshed does not show of it.
        _app_protocol_get_buffer: Any
        _app_protocol_buffer_updated: Any
        _app_reading_paused: bool
        _eof_received: bool
        _incoming: ssl.MemoryBIO
        _outgoing: ssl.MemoryBIO
        _sslobj: ssl.SSLObject
        _ssl_writing_paused: bool
        _state: sslproto.SSLProtocolState
        _transport: Any

        def _control_ssl_reading(self) -> None: ...
        def _do_flush(self) -> None: ...
        def _do_read(self) -> None: ...
        def _do_shutdown(self) -> None: ...
        def _do_write(self) -> None: ...
        def _on_shutdown_complete(self, shutdown_exc: Exception | None) -> None: ...
        def _set_state(self, new_state: sslproto.SSLProtocolState) -> None: ...
else:
    _Base = sslproto.SSLProtocol


class TlsProtocol(_Base):
    """What stands between a transport of the core's and a program's protocol.

    In contrast to asyncio's:

    - the alert that says why a connection fails is sent before it is closed
      (RFC 8446, 6.2);
    - what the peer sends after the program's close() is dropped: asyncio calls
      data_received() from within close(), or takes it for an error;
    - what comes with the end of the handshake of a start_tls() is delivered
      after that has returned, as the protocol would answer it in the clear;
    - what is held back while reading is paused is delivered in the context of
      the connection, not in that of who resumes reading;
    - a protocol with get_buffer() is a buffered one unless it is an
      asyncio.Protocol, as for the transports.

    As all of a loop's it belongs to the thread that runs the loop.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._upgrade = not options.get("call_connection_made", True)
        self._delivery_waits = False
        self._context: contextvars.Context | None = None

    def connection_made(self, transport: Any) -> None:
        self._context = contextvars.copy_context()
        super().connection_made(transport)

    def _set_app_protocol(self, app_protocol: Any) -> None:
        super()._set_app_protocol(app_protocol)
        if hasattr(app_protocol, "get_buffer") and not isinstance(
            app_protocol, asyncio.Protocol
        ):
            self._app_protocol_get_buffer = app_protocol.get_buffer
            self._app_protocol_buffer_updated = app_protocol.buffer_updated
            self._app_protocol_is_buffer = True

    # -- the handshake ---------------------------------------------------

    def take_buffered(self, data: bytearray) -> None:
        """Moves into TLS what had been read before this protocol was there."""
        self._incoming.write(data)
        data.clear()

    def _on_handshake_complete(self, handshake_exc: Any) -> None:
        self._delivery_waits = self._upgrade
        try:
            super()._on_handshake_complete(handshake_exc)
        finally:
            # The traceback leads to frames that hold the exception: to this
            # one, and before Python 3.13 to asyncio's.
            if isinstance(handshake_exc, BaseException):  # or a class, or None
                traceback.clear_frames(handshake_exc.__traceback__)
            del handshake_exc
        if self._delivery_waits:
            self._loop.call_soon(self._deliver)  # behind the waiter's callbacks

    def _deliver(self) -> None:
        self._delivery_waits = False
        self._go_on()

    def _do_read(self) -> None:
        if not self._delivery_waits:
            super()._do_read()

    # -- the end ---------------------------------------------------------

    def _start_shutdown(self) -> None:
        if self._state is _State.FLUSHING:
            # The peer's end was held back with its last data while reading
            # was paused; nobody would resume it.
            self._resume_reading()
        super()._start_shutdown()

    def _do_flush(self) -> None:
        app_transport = self._app_transport
        if app_transport is None or not app_transport.is_closing():
            if not self._delivery_waits:
                super()._do_flush()
            return
        try:
            self._do_write()
        except Exception as exc:
            self._fatal_error(exc, "Fatal error on SSL protocol")
            return
        self._set_state(_State.SHUTDOWN)
        self._do_shutdown()

    def _do_shutdown(self) -> None:
        try:
            if not self._eof_received:
                self._drop_input()
        except ssl.SSLError as exc:
            self._on_shutdown_complete(exc)
        else:
            super()._do_shutdown()

    def _drop_input(self) -> None:
        try:
            while self._sslobj.read(self.max_size):
                pass
        except _END:
            pass
        self._control_ssl_reading()

    def _fatal_error(
        self, exc: BaseException, message: str = "Fatal error on transport"
    ) -> None:
        transport = self._transport
        if transport is not None and not self._ssl_writing_paused:
            alert = self._outgoing.read()
            if alert:
                transport.write(alert)
        super()._fatal_error(exc, message)

    # -- reading ---------------------------------------------------------

    def _resume_reading(self) -> None:
        if self._app_reading_paused:
            self._app_reading_paused = False
            self._loop.call_soon(self._go_on, context=self._context)

    def _go_on(self) -> None:
        if self._state is _State.WRAPPED:
            self._do_read()
        elif self._state is _State.FLUSHING:
            self._do_flush()
        elif self._state is _State.SHUTDOWN:
            self._do_shutdown()
