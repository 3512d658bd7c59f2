"""sock_accept() and its kin, and sending files.

Every operation tries first and waits only when it has to.  What takes data
from the kernel happens in the awaiting coroutine, after its wake-up: one that
is cancelled while it waits has taken nothing.  sock_recv(), sock_recv_into()
and sock_sendall() are the core's.
"""

import asyncio
import errno
import functools
import io
import os
import socket
from asyncio import base_events, exceptions, selector_events
from collections.abc import Awaitable, Callable
from typing import IO, TYPE_CHECKING, Any

from . import _core
from .base import BaseLoop

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer, WriteableBuffer

_INET = (socket.AF_INET, socket.AF_INET6)
_NOT_NOW = (BlockingIOError, InterruptedError)
_IN_PROGRESS = {errno.EINPROGRESS, errno.EALREADY, errno.EINTR}
# At most this much, ~2 ms with a peer that keeps up, before the others have
# their turns.
_SENDFILE_MAX = 8 << 20
# Not above the default high-water mark: the protocol is not made to pause.
_COPY_BLOCK = 1 << 16
# Between two attempts to connect to a Unix socket with a full backlog.
_BACKLOG_DELAY = 0.001
_BACKLOG_DELAY_MAX = 0.05


class _ForOurSocket:
    """A protocol factory for a socket that nobody else knows: if it raises
    the socket is closed."""

    def __init__(self, factory: Callable[[], Any]) -> None:
        self._factory = factory

    def with_socket(self, sock: socket.socket) -> Any:
        try:
            return self._factory()
        except BaseException:
            sock.close()
            raise


class Sockets(BaseLoop):
    async def create_connection(
        self,
        protocol_factory: Callable[[], Any],
        host: Any = None,
        port: Any = None,
        *,
        sock: socket.socket | None = None,
        **kwargs: Any,
    ) -> Any:
        """Connects to a TCP server: (transport, protocol); see asyncio.

        Takes the keywords of this Python version's asyncio.  When the
        protocol factory raises, the connection is closed at once, unless it
        was given as `sock`.
        """
        if sock is None:
            protocol_factory = _ForOurSocket(protocol_factory)  # type: ignore[assignment]
        return await super().create_connection(
            protocol_factory, host, port, sock=sock, **kwargs
        )

    async def _create_connection_transport(
        self, sock: socket.socket, protocol_factory: Any, *args: Any, **kwargs: Any
    ) -> Any:
        if isinstance(protocol_factory, _ForOurSocket):
            protocol_factory = functools.partial(
                protocol_factory.with_socket, sock
            )
        return await super()._create_connection_transport(  # type: ignore[misc]
            sock, protocol_factory, *args, **kwargs
        )

    def _check_sock(self, sock: socket.socket) -> None:
        base_events._check_ssl_socket(sock)  # type: ignore[attr-defined]
        if self._debug and sock.gettimeout() != 0:
            raise ValueError("the socket must be non-blocking")

    async def sock_accept(self, sock: socket.socket) -> tuple[socket.socket, Any]:
        """Accepts a connection: (non-blocking socket, address)."""
        self._check_sock(sock)
        while True:
            try:
                conn, address = sock.accept()
            except _NOT_NOW:
                await self._wait_readable(sock)
            else:
                conn.setblocking(False)
                return conn, address

    async def sock_connect(self, sock: socket.socket, address: Any) -> None:
        """Connects the socket; a host name is looked up first.

        Raises OSError.  A Unix socket whose server has a full backlog is
        tried again until there is room, as a blocking connect() waits.
        """
        self._check_sock(sock)
        if sock.family in _INET:
            resolved = await self._ensure_resolved(
                address,
                family=sock.family,
                type=sock.type,
                proto=sock.proto,
                loop=self,
            )
            address = resolved[0][4]
        delay = _BACKLOG_DELAY
        while True:
            try:
                sock.connect(address)
            except _NOT_NOW as exc:
                if exc.errno != errno.EAGAIN or sock.family != socket.AF_UNIX:
                    break
            else:
                return
            # Here EAGAIN means that nothing was begun, and there is no event
            # to wait for.
            await asyncio.sleep(delay)
            delay = min(delay * 2, _BACKLOG_DELAY_MAX)
        await self._connected(sock, address)

    async def _connected(self, sock: socket.socket, address: Any) -> None:
        # A close() meanwhile is put off, as while any sock_* call waits.
        held = isinstance(sock, socket.socket)
        if held:
            sock._io_refs += 1  # type: ignore[attr-defined]
        try:
            await self._finish_connecting(sock, address)
        finally:
            if held:
                sock._decref_socketios()  # type: ignore[attr-defined]

    async def _finish_connecting(
        self, sock: socket.socket, address: Any
    ) -> None:
        while True:
            await self._wait_writable(sock)
            if sock.family in _INET:
                # SO_ERROR would take a wake-up that comes too early for
                # success, and leave a socket that failed unable to try again.
                code = sock.connect_ex(address)
            else:
                code = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if code in (0, errno.EISCONN):
                return
            if code not in _IN_PROGRESS:
                raise OSError(code, f"Connect call failed {address}")

    async def sock_recvfrom(
        self, sock: socket.socket, bufsize: int
    ) -> tuple[bytes, Any]:
        """Receives a datagram: (data, address)."""
        self._check_sock(sock)
        while True:
            try:
                return sock.recvfrom(bufsize)
            except _NOT_NOW:
                await self._wait_readable(sock)

    async def sock_recvfrom_into(
        self, sock: socket.socket, buf: "WriteableBuffer", nbytes: int = 0
    ) -> tuple[int, Any]:
        """Receives a datagram into `buf`: (number of bytes, address).

        At most `nbytes`; 0 means the size of the buffer.
        """
        self._check_sock(sock)
        while True:
            try:
                return sock.recvfrom_into(buf, nbytes)
            except _NOT_NOW:
                await self._wait_readable(sock)

    async def sock_sendto(
        self, sock: socket.socket, data: "ReadableBuffer", address: Any
    ) -> int:
        """Sends a datagram; returns the number of bytes."""
        self._check_sock(sock)
        while True:
            try:
                return sock.sendto(data, address)
            except _NOT_NOW:
                await self._wait_writable(sock)

    # -- sockets of a class with recv() or send() of its own, by these --------

    async def _recv_by_own_calls(self, sock: socket.socket, n: int) -> bytes:
        self._check_sock(sock)
        while True:
            try:
                return sock.recv(n)
            except _NOT_NOW:
                await self._wait_readable(sock)

    async def _recv_into_by_own_calls(
        self, sock: socket.socket, buf: "WriteableBuffer"
    ) -> int:
        self._check_sock(sock)
        while True:
            try:
                return sock.recv_into(buf)
            except _NOT_NOW:
                await self._wait_readable(sock)

    async def _sendall_by_own_calls(
        self, sock: socket.socket, data: "ReadableBuffer"
    ) -> None:
        self._check_sock(sock)
        left = memoryview(data).cast("B")
        while left:
            try:
                left = left[sock.send(left) :]
            except _NOT_NOW:
                await self._wait_writable(sock)

    def _make_own_calls_transport(
        self,
        sock: socket.socket,
        protocol: Any,
        waiter: Any,
        extra: Any,
        server: Any,
    ) -> Any:
        """asyncio's transport: for proxies' and test suites' sockets, which
        want to see what goes over them."""
        return selector_events._SelectorSocketTransport(  # type: ignore[attr-defined]
            self, sock, protocol, waiter, extra, server
        )

    # -- files: sock_sendfile(), sendfile() and their checks are asyncio's --

    async def _sock_sendfile_native(
        self,
        sock: socket.socket,
        file: IO[bytes],
        offset: int,
        count: int | None,
    ) -> int:
        return await _sendfile(
            sock.fileno,
            lambda: self._wait_writable(sock),
            file,
            offset,
            count,
        )

    async def _sendfile_native(
        self, transp: Any, file: IO[bytes], offset: int, count: int | None
    ) -> int:
        if not isinstance(transp, _core.Transport):
            raise exceptions.SendfileNotAvailableError(
                f"sendfile() is not available for transport {transp!r}"
            )
        sock = transp.get_extra_info("socket")
        self._check_sendfile_params(sock, file, offset, count)
        fd: int = sock.fileno()

        def check() -> int:
            if transp.is_closing():
                raise ConnectionError("Connection closed by peer")
            return fd

        # Refuses writes from here on, and a second sendfile().
        drained = transp._make_empty_waiter()
        resume_reading = transp.is_reading()
        try:
            transp.pause_reading()
            await drained
            check()
            self._set_transport_guard(fd, False)
            try:
                return await _sendfile(
                    check,
                    lambda: self._wait_writable(sock),
                    file,
                    offset,
                    count,
                )
            finally:
                if sock.fileno() == fd:  # else another one's number by now
                    self._set_transport_guard(fd, True)
        finally:
            transp._reset_empty_waiter()
            if resume_reading:
                transp.resume_reading()

    async def _sock_sendfile_fallback(
        self,
        sock: socket.socket,
        file: IO[bytes],
        offset: int,
        count: int | None,
    ) -> int:
        _seek(file, offset)
        fallback = super()._sock_sendfile_fallback  # type: ignore[misc]
        total: int = await fallback(sock, file, offset, count)
        return total

    async def _sendfile_fallback(
        self, transp: Any, file: IO[bytes], offset: int, count: int | None
    ) -> int:
        _seek(file, offset)
        if not isinstance(transp, _core.Transport):
            fallback = super()._sendfile_fallback  # type: ignore[misc]
            total: int = await fallback(transp, file, offset, count)
            return total
        resume_reading = transp.is_reading()
        transp.pause_reading()
        try:
            return await self._copy_file(transp, file, offset, count)
        finally:
            if resume_reading:
                transp.resume_reading()

    async def _copy_file(
        self,
        transp: _core.Transport,
        file: IO[bytes],
        offset: int,
        count: int | None,
    ) -> int:
        size = min(count, _COPY_BLOCK) if count else _COPY_BLOCK
        buf = memoryview(bytearray(size))
        total = 0
        try:
            while not count or total < count:
                size = min(count - total, len(buf)) if count else len(buf)
                readinto: Callable[[memoryview], int]
                readinto = file.readinto  # type: ignore[attr-defined]
                got = await self.run_in_executor(None, readinto, buf[:size])
                if not got:
                    break
                # The queue is bounded by one block, whatever the protocol
                # does in pause_writing().
                drained = transp._make_empty_waiter()
                try:
                    await drained
                finally:
                    transp._reset_empty_waiter()
                if transp.is_closing():
                    raise ConnectionError("Connection closed by peer")
                transp.write(buf[:got])
                total += got
        finally:
            if total > 0 and hasattr(file, "seek"):
                file.seek(offset + total)
        return total


async def _sendfile(
    fileno: Callable[[], int],
    wait_writable: Callable[[], Awaitable[None]],
    file: IO[bytes],
    offset: int,
    count: int | None,
) -> int:
    """os.sendfile() until `count` bytes or the whole file are sent.

    Raises SendfileNotAvailableError if it cannot be used for this file;
    nothing was sent then.  The position of the file is that after the last
    byte sent, also if an error or a cancel ends it.
    """
    try:
        source = file.fileno()
        size = os.fstat(source).st_size
    except (AttributeError, io.UnsupportedOperation, OSError) as exc:
        raise exceptions.SendfileNotAvailableError("not a regular file") from exc
    left = count or size
    if not left:
        return 0
    total = since = 0
    try:
        while left > 0:
            target = fileno()
            try:
                sent = os.sendfile(
                    target, source, offset + total, min(left, _SENDFILE_MAX)
                )
            except _NOT_NOW:
                await wait_writable()
                since = 0
                continue
            except OSError as exc:
                if total == 0:  # most likely no file for sendfile(2)
                    raise exceptions.SendfileNotAvailableError(
                        "os.sendfile call failed"
                    ) from exc
                if exc.errno == errno.ENOTCONN:
                    raise ConnectionError(
                        errno.ENOTCONN, "socket is not connected"
                    ) from exc
                raise
            if not sent:
                break
            total += sent
            if count:
                left = count - total
            since += sent
            if since >= _SENDFILE_MAX:
                # A fast reader must not keep the others from their turns.
                await asyncio.sleep(0)
                since = 0
        return total
    finally:
        if total:
            os.lseek(source, offset + total, os.SEEK_SET)


def _seek(file: IO[bytes], offset: int) -> None:
    """To the offset, also to 0; a file that has no offset is read on."""
    if offset or (hasattr(file, "seekable") and file.seekable()):
        file.seek(offset)
