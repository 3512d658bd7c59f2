"""Datagram endpoints: UDP, Unix, netlink and raw sockets.

The look-ups, the sockets and the errors are asyncio's, and so follow the
Python version; the transport is the core's (_core.DatagramTransport) for the
families whose addresses it knows, and asyncio's for the others.
"""

import socket
from asyncio import constants, selector_events, transports, trsock
from asyncio.log import logger
from collections.abc import Callable
from typing import Any

from .base import BaseLoop

_Selector: Any
_Selector = selector_events._SelectorDatagramTransport  # type: ignore[attr-defined]

_NATIVE_FAMILIES = (
    socket.AF_INET,
    socket.AF_INET6,
    socket.AF_UNIX,
    socket.AF_NETLINK,
)
_NATIVE_TYPES = (socket.SOCK_DGRAM, socket.SOCK_RAW)


class ForeignDatagramTransport(
    _Selector,  # type: ignore[misc]
    transports.DatagramTransport,
):
    """For families that the core does not know (packet, CAN, Bluetooth, ...):
    the socket module sends and receives."""

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


class _Factory:
    """Puts off the call of the protocol factory until the socket that would
    be lost with it is in sight."""

    def __init__(self, factory: Callable[[], Any], owns_socket: bool) -> None:
        self._factory = factory
        self._owns_socket = owns_socket
        self.protocol: Any = None

    def __repr__(self) -> str:
        return repr(self.protocol)

    def call(self, sock: socket.socket) -> Any:
        try:
            self.protocol = self._factory()
        except BaseException:
            if self._owns_socket:
                sock.close()
            raise
        return self.protocol


class Datagrams(BaseLoop):
    async def create_datagram_endpoint(
        self,
        protocol_factory: Callable[[], Any],
        local_addr: Any = None,
        remote_addr: Any = None,
        *,
        sock: socket.socket | None = None,
        **kwargs: Any,
    ) -> Any:
        """Makes an endpoint for datagrams: (transport, protocol); see asyncio.

        `local_addr` and `remote_addr` are (host, port), or with
        `family=socket.AF_UNIX` paths (a name in the abstract namespace begins
        with a NUL).  Takes the keywords of this Python version's asyncio:
        family, proto, flags, reuse_port, allow_broadcast.  `sock` is a
        datagram or raw socket of any family in place of all of these; it is
        closed with the transport.

        Raises OSError if no address can be resolved, bound or connected, and
        ValueError or TypeError for arguments that make no sense.  When the
        protocol factory raises, the socket is closed at once, unless it was
        given as `sock`.

        The loop's own thread only, as everything of the transport.  Before
        Python 3.13 asyncio takes no raw sockets, and its sendto() sends no
        empty datagrams; here it is as from 3.13 on.
        """
        factory = _Factory(protocol_factory, sock is None)
        if sock is not None and sock.type == socket.SOCK_RAW:
            transport = await self._raw_endpoint(
                factory, sock, [local_addr, remote_addr, *kwargs.values()]
            )
            return transport, factory.protocol
        transport, _ = await super().create_datagram_endpoint(
            lambda: factory,  # type: ignore[type-var]
            local_addr,
            remote_addr,
            sock=sock,
            **kwargs,
        )
        return transport, factory.protocol

    async def _raw_endpoint(
        self, factory: _Factory, sock: socket.socket, others: list[Any]
    ) -> Any:
        # asyncio takes raw sockets from 3.13 on.
        if any(others):
            raise ValueError(
                "socket modifier keyword arguments can not be used when sock "
                "is specified."
            )
        sock.setblocking(False)
        waiter = self.create_future()
        transport = self._make_datagram_transport(sock, factory, None, waiter)
        try:
            await waiter
        except BaseException:
            transport.close()
            raise
        return transport

    def _make_datagram_transport(
        self,
        sock: socket.socket,
        protocol: Any,
        address: Any = None,
        waiter: Any = None,
        extra: dict[str, Any] | None = None,
    ) -> Any:
        self._ensure_fd_no_transport(sock)
        if isinstance(protocol, _Factory):
            protocol = protocol.call(sock)
        if (
            not isinstance(sock, socket.socket)
            or sock.family not in _NATIVE_FAMILIES
            or sock.type not in _NATIVE_TYPES
        ):
            foreign: Any = ForeignDatagramTransport
            return foreign(self, sock, protocol, address, waiter, extra)
        known = dict(extra or {})
        known["socket"] = trsock.TransportSocket(sock)
        known["sockname"] = _name(sock.getsockname)
        if "peername" not in known:
            known["peername"] = _name(sock.getpeername)
        kind = (sock.family, sock.type, sock.proto)
        return self._make_datagram_endpoint(
            sock, protocol, address, waiter, known, kind
        )


def _name(ask: Callable[[], Any]) -> Any:
    try:
        return ask()
    except OSError:
        return None
