"""What asyncio's own loop for Unix does and any loop with its hooks can."""

import socket
from asyncio import selector_events, unix_events
from typing import Any

from .base import BaseLoop

_UnixLoop: Any = unix_events._UnixSelectorEventLoop
_DatagramTransport: Any
_DatagramTransport = selector_events._SelectorDatagramTransport  # type: ignore[attr-defined]


class Unix(BaseLoop):
    # Functions of a class that this one does not derive from: they use
    # nothing but methods of the loop.
    create_unix_connection = _UnixLoop.create_unix_connection
    _make_read_pipe_transport = _UnixLoop._make_read_pipe_transport
    _make_write_pipe_transport = _UnixLoop._make_write_pipe_transport

    def _make_datagram_transport(
        self,
        sock: socket.socket,
        protocol: Any,
        address: Any = None,
        waiter: Any = None,
        extra: Any = None,
    ) -> Any:
        self._ensure_fd_no_transport(sock)
        return _DatagramTransport(self, sock, protocol, address, waiter, extra)
