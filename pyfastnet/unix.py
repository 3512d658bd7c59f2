"""What asyncio's own loop for Unix does and any loop with its hooks can."""

import socket
from asyncio import constants, selector_events, unix_events
from asyncio.log import logger
from typing import Any

from .base import BaseLoop

_UnixLoop: Any = unix_events._UnixSelectorEventLoop
_Datagrams: Any
_Datagrams = selector_events._SelectorDatagramTransport  # type: ignore[attr-defined]


class DatagramTransport(_Datagrams):  # type: ignore[misc]
    _conn_lost: int

    def sendto(self, data: Any, addr: Any = None) -> None:
        # On an endpoint that is gone asyncio's fails with an AttributeError;
        # like write() on a stream it drops the data, and at length warns.
        if not self._conn_lost:
            super().sendto(data, addr)
            return
        if not isinstance(data, (bytes, bytearray, memoryview)):
            raise TypeError(
                f"data argument must be a bytes-like object, "
                f"not {type(data).__name__!r}"
            )
        if self._conn_lost >= constants.LOG_THRESHOLD_FOR_CONNLOST_WRITES:
            logger.warning("socket.send() raised exception.")
        self._conn_lost += 1


class Unix(BaseLoop):
    # A function of a class that this one does not derive from: it uses
    # nothing but methods of the loop.
    create_unix_connection = _UnixLoop.create_unix_connection

    def _make_datagram_transport(
        self,
        sock: socket.socket,
        protocol: Any,
        address: Any = None,
        waiter: Any = None,
        extra: Any = None,
    ) -> DatagramTransport:
        self._ensure_fd_no_transport(sock)
        return DatagramTransport(self, sock, protocol, address, waiter, extra)
