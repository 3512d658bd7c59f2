"""getaddrinfo() and getnameinfo().

Numbers are answered at once; names by the core's pool of threads, which do
without the GIL and without the default executor.  What the core is not asked
goes asyncio's way, which is the socket module in the executor: malformed
arguments, whose errors are the socket module's own, and everything once
somebody has replaced the socket module's functions, as tests and libraries
that redirect look-ups do.
"""

import _socket
import socket
import sys
from asyncio import base_events
from asyncio.log import logger
from types import BuiltinFunctionType, FunctionType
from typing import Any

from .base import BaseLoop

_MAX_PORT = 65535
# The length from which on a part of a host name may be too long.
_LABEL = 64


class _Malformed(Exception):
    """For the socket module to complain of."""


class Names(BaseLoop):
    async def getaddrinfo(
        self,
        host: Any,
        port: Any,
        *,
        family: int = 0,
        type: int = 0,
        proto: int = 0,
        flags: int = 0,
    ) -> list[tuple[Any, ...]]:
        """As socket.getaddrinfo(), without blocking the loop.

        Returns (family, type, proto, canonical name, address) for each
        address; raises socket.gaierror, and what else the socket module
        raises for these arguments.  A cancelled look-up is taken back, or
        ends unheard if a thread is in the middle of it.
        """
        query = (host, port, family, type, proto, flags)
        try:
            if not _is_genuine_getaddrinfo():
                raise _Malformed
            name, service = _host_text(host), _service_text(port)
        except _Malformed:
            return await super().getaddrinfo(
                host, port, family=family, type=type, proto=proto, flags=flags
            )
        sys.audit("socket.getaddrinfo", host, port, family, type, proto)
        if self._debug:
            return await self._look_up_and_tell(name, service, query)
        return await self._found(name, service, query)

    async def getnameinfo(self, sockaddr: Any, flags: int = 0) -> tuple[str, str]:
        """As socket.getnameinfo(), without blocking the loop: (host, service)
        of an address; raises socket.gaierror."""
        if not _is_builtin(base_events.socket, "getnameinfo"):  # type: ignore[attr-defined]
            return await super().getnameinfo(sockaddr, flags)
        pending = self._look_up_name(sockaddr, flags)
        if pending is None:  # malformed
            return await super().getnameinfo(sockaddr, flags)
        sys.audit("socket.getnameinfo", sockaddr)
        if isinstance(pending, tuple):
            return pending
        try:
            names: tuple[str, str] = await pending
            return names
        finally:
            self._forget_look_up(pending)

    async def _found(
        self, name: bytes | None, service: bytes | None, query: tuple[Any, ...]
    ) -> list[tuple[Any, ...]]:
        found = self._look_up(name, service, *query[2:])
        if not isinstance(found, list):
            pending = found
            try:
                found = await pending
            finally:
                self._forget_look_up(pending)
        return [
            (
                _member(socket.AddressFamily, family),
                _member(socket.SocketKind, kind),
                *rest,
            )
            for family, kind, *rest in found
        ]

    async def _look_up_and_tell(
        self, name: bytes | None, service: bytes | None, query: tuple[Any, ...]
    ) -> list[tuple[Any, ...]]:
        """In debug mode asyncio logs look-ups, in these words."""
        host, port, *options = query
        what = f"{host}:{port!r}"
        for key, value in zip(
            ("family", "type", "proto", "flags"), options, strict=True
        ):
            if value:
                what += f", {key}={value!r}"
        logger.debug("Get address info %s", what)
        begin = self.time()
        found = await self._found(name, service, query)
        took = self.time() - begin
        log = logger.info if took >= self.slow_callback_duration else logger.debug
        log(f"Getting address info {what} took {took * 1e3:.3f}ms: {found!r}")
        return found


def _is_genuine_getaddrinfo() -> bool:
    """Whether socket.getaddrinfo() is what Python came with, whoever was
    imported first.  asyncio's own reference to the module may have been
    replaced as well."""
    module = base_events.socket  # type: ignore[attr-defined]
    function = getattr(module, "getaddrinfo", None)
    return (
        isinstance(function, FunctionType)
        and function.__globals__ is vars(socket)
        and _is_builtin(_socket, "getaddrinfo")
    )


def _is_builtin(module: Any, name: str) -> bool:
    function = getattr(module, name, None)
    return isinstance(function, BuiltinFunctionType) and function.__self__ is _socket


def _host_text(host: Any) -> bytes | None:
    if host is None:
        return None
    if isinstance(host, str):
        try:
            text = _encoded(host)
        except UnicodeError:
            raise _Malformed from None
    elif type(host) is bytes:
        text = host
    else:
        raise _Malformed
    if b"\0" in text:
        raise _Malformed
    return text


def _encoded(host: str) -> bytes:
    if host.isascii() and len(host) < _LABEL and ".." not in host and host[:1] != ".":
        return host.encode()  # what the codec would say, and slowly
    return host.encode("idna")


def _service_text(port: Any) -> bytes | None:
    if port is None:
        return None
    if type(port) is int and 0 <= port <= _MAX_PORT:
        return b"%d" % port
    if isinstance(port, str):
        try:
            text = port.encode()
        except UnicodeError:
            raise _Malformed from None
    elif type(port) is bytes:
        text = port
    else:
        raise _Malformed
    if b"\0" in text:
        raise _Malformed
    return text


def _member(enum: Any, value: int) -> Any:
    """As the socket module shows it: a number that has no name stays one."""
    try:
        return enum(value)
    except ValueError:
        return value
