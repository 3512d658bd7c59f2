"""The blocking sockets: the socket module's API on the C core.

    import pyfastnet.socket as socket

gives every name of the socket module, with `socket`, `create_connection`,
`create_server`, `socketpair` and `fromfd` of pyfastnet's own.  A call tries
first and gives up the GIL only to wait; `close()` by any thread ends every
blocked call; `set_deadline()` moves under a blocked call; and there are
`recv_exactly()`, `recv_until()` and `sendall()` of several buffers.

What runs per message is C (`_core.Socket`); here is what runs per connection.
"""

import errno
import io
import os
import socket as _socket
from asyncio import IncompleteReadError
from collections.abc import Iterable
from socket import *  # noqa: F403
from socket import (
    AF_INET,
    AF_INET6,
    EAI_NONAME,
    IPPROTO_IPV6,
    IPV6_V6ONLY,
    MSG_DONTWAIT,
    SO_ERROR,
    SO_REUSEADDR,
    SO_REUSEPORT,
    SOCK_STREAM,
    SOL_SOCKET,
    AddressFamily,
    SocketKind,
    gaierror,
    getaddrinfo,
    getdefaulttimeout,
    has_dualstack_ipv6,
    has_ipv6,
    inet_pton,
)
from typing import IO, TYPE_CHECKING, Any

from . import _core
from .socketfile import SocketIO, make_file

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer, WriteableBuffer

    _Address = Any
    _Raw = _socket.socket

__all__ = [
    "IncompleteReadError",
    "Socket",
    "SocketIO",
    "SocketType",
    "create_connection",
    "create_server",
    "from_socket",
    "fromfd",
    "getdefaulttimeout",
    "socket",
    "socketpair",
]
__all__ += [name for name in _socket.__all__ if name not in __all__]

_GLOBAL_DEFAULT: Any = object()
# One read() of a file that cannot be sent by the kernel.
_COPY_BLOCK = 1 << 16


def __getattr__(name: str) -> Any:
    """What the socket module has beyond its __all__."""
    return getattr(_socket, name)


class Socket(_core.Socket):
    """A blocking socket: socket.socket's methods, arguments and errors.

    Any number of threads may use one at any time: reads are one after the
    other, and so are writes.  close() from any thread makes blocked calls
    raise OSError (EBADF), and the number of the descriptor is not free before
    the last of them has left.  Beyond socket.socket there are deadlines
    (set_deadline() and its kin), recv_exactly(), recv_until(), pending(), and
    lists of buffers for sendall().  Files made by makefile() read under the
    socket's own times, and one that times out has lost nothing.

    O_NONBLOCK of a socket that was passed in (`fileno=`, from_socket()) is
    left alone.  After a fork the child's copy is a socket of its own.
    """

    __slots__ = ()

    @property
    def family(self) -> AddressFamily | int:
        """The address family."""
        try:
            return AddressFamily(self._family)
        except ValueError:
            return self._family

    @property
    def type(self) -> SocketKind | int:
        """The kind of socket."""
        try:
            return SocketKind(self._type)
        except ValueError:
            return self._type

    def __enter__(self) -> "Socket":
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def __repr__(self) -> str:
        fd = self.fileno()
        parts = [
            f"<{type(self).__module__}.{type(self).__qualname__}",
            "[closed]" if fd < 0 else "",
            f"fd={fd}, family={self.family}, type={self.type}, proto={self.proto}",
        ]
        text = " ".join(part for part in parts if part)
        for label, method in (
            ("laddr", self.getsockname),
            ("raddr", self.getpeername),
        ):
            if fd >= 0:
                try:
                    text += f", {label}={method()!r}"
                except OSError:
                    pass
        return text + ">"

    def __getstate__(self) -> None:
        raise TypeError(f"cannot pickle {type(self).__name__!r} object")

    def bind(self, address: "_Address", /) -> None:
        """bind(address)."""
        self._raw("bind", (address,), address)

    def getsockopt(self, *args: int) -> Any:
        """getsockopt(level, option[, buflen]) -> int or bytes."""
        return self._raw("getsockopt", args)

    def recvmsg(
        self, bufsize: int, ancbufsize: int = 0, flags: int = 0, /
    ) -> tuple[bytes, list[tuple[int, int, bytes]], int, Any]:
        """recvmsg(bufsize[, ancbufsize[, flags]]) -> (data, ancdata,
        msg_flags, address)."""
        if self.pending():
            return self.recv(bufsize, flags), [], 0, None
        return self._retry(  # type: ignore[no-any-return]
            "recvmsg",
            False,
            lambda raw: raw.recvmsg(bufsize, ancbufsize, flags | MSG_DONTWAIT),
        )

    def recvmsg_into(
        self,
        buffers: "Iterable[WriteableBuffer]",
        ancbufsize: int = 0,
        flags: int = 0,
        /,
    ) -> tuple[int, list[tuple[int, int, bytes]], int, Any]:
        """recvmsg_into(buffers[, ancbufsize[, flags]]) -> (nbytes, ancdata,
        msg_flags, address)."""
        buffers = list(buffers)
        if self.pending() and buffers:
            return self.recv_into(buffers[0], 0, flags), [], 0, None
        return self._retry(  # type: ignore[no-any-return]
            "recvmsg_into",
            False,
            lambda raw: raw.recvmsg_into(buffers, ancbufsize, flags | MSG_DONTWAIT),
        )

    def sendmsg_afalg(self, *args: Any, **kwargs: Any) -> int:
        """sendmsg_afalg([msg], *, op[, iv[, assoclen[, flags]]])."""
        return self._retry(  # type: ignore[no-any-return]
            "sendmsg_afalg", True, lambda raw: raw.sendmsg_afalg(*args, **kwargs)
        )

    def sendfile(
        self, file: IO[bytes], offset: int = 0, count: int | None = None
    ) -> int:
        """Sends a file from `offset` on to its end, or `count` bytes of it;
        returns how many were sent.

        By sendfile(2) for a regular file and a socket made here, else with
        read() and sendall().  The file's position is behind what was sent,
        also when it raises; the exception then has `bytes_sent`.
        """
        _check_sendfile(self, file, offset, count)
        try:
            fileno = file.fileno()
            regular = os.fstat(fileno).st_size > 0
        except (AttributeError, io.UnsupportedOperation, OSError):
            regular = False
        sent = 0
        try:
            if regular and self._ours:
                sent = self._sendfile(fileno, offset, -1 if count is None else count)
            else:
                for so_far in _copy_file(self, file, offset, count):
                    sent = so_far
            return sent
        except BaseException as exc:
            sent += getattr(exc, "bytes_sent", 0)
            exc.bytes_sent = sent  # type: ignore[attr-defined]
            raise
        finally:
            if hasattr(file, "seek"):
                file.seek(offset + sent)

    def makefile(
        self,
        mode: str = "r",
        buffering: int | None = None,
        *,
        encoding: str | None = None,
        errors: str | None = None,
        newline: str | None = None,
    ) -> Any:
        """A file over the socket, as open() but with the modes 'r', 'w',
        'rw' and 'b' only.

        The socket stays open until the files are closed too.  The time of
        settimeout() and the deadlines are for each call of the file as a
        whole; a call that ends early has taken nothing, and what a writer
        could not send stays in it.
        """
        return make_file(self, mode, buffering, encoding, errors, newline)

    def dup(self) -> "Socket":
        """A socket of its own on a duplicate of the descriptor."""
        fd = _socket.dup(self.fileno())
        try:
            sock = type(self)(self._family, self._type, self.proto, fileno=fd)
        except BaseException:
            os.close(fd)
            raise
        sock.settimeout(self.gettimeout())
        return sock

    def get_inheritable(self) -> bool:
        """Whether children of exec() get the descriptor."""
        return os.get_inheritable(self.fileno())

    def set_inheritable(self, inheritable: bool) -> None:
        """Whether children of exec() get the descriptor."""
        os.set_inheritable(self.fileno(), inheritable)


# Names that programs look for.
socket = Socket  # type: ignore[assignment,misc]
SocketType = Socket  # type: ignore[assignment,misc]


# -- what the C half leaves to Python -----------------------------------------


def _resolve(sock: Socket, name: str, address: Any) -> Any:
    """For connect(): a numeric address for one with a name; or, for families
    that the core does not know, the connection itself: 0 or an errno."""
    if sock._family in (AF_INET, AF_INET6):
        return _numeric(sock._family, name, address)
    try:
        _connect_raw(sock, name, address)
    except OSError as exc:
        if name != "connect_ex" or exc.errno is None:
            raise
        return exc.errno
    return 0


def _numeric(family: int, name: str, address: Any) -> tuple[Any, ...]:
    label = "AF_INET" if family == AF_INET else "AF_INET6"
    if not isinstance(address, tuple):
        raise TypeError(
            f"{name}(): {label} address must be tuple, not {type(address).__name__}"
        )
    most = 2 if family == AF_INET else 4
    if not 2 <= len(address) <= most:
        shape = "a pair (host, port)" if most == 2 else "a tuple of 2 to 4"
        raise TypeError(
            f"{name}(): {label} address must be {shape}, not of length {len(address)}"
        )
    host, port, *rest = address
    if not isinstance(port, int):
        raise TypeError(
            f"{name}(): {label} port must be an int, not {type(port).__name__}"
        )
    if not 0 <= port <= 65535:
        raise OverflowError(f"{name}(): port must be 0-65535.")
    if rest and not 0 <= rest[0] <= 0xFFFFF:
        raise OverflowError(f"{name}(): flowinfo must be 0-1048575.")
    found = _look_up(family, name, host)
    more = tuple(rest) if rest else found[2:]
    return (found[0], int(port), *(int(item) for item in more))


def _look_up(family: int, name: str, host: Any) -> tuple[Any, ...]:
    if isinstance(host, bytearray):
        host = bytes(host)
    if not isinstance(host, str | bytes):
        raise TypeError(
            f"{name}(): host must be str, bytes or bytearray, "
            f"not {type(host).__name__}"
        )
    if "\0" in host if isinstance(host, str) else b"\0" in host:
        raise TypeError(f"{name}(): host must not contain a null character")
    if not host:
        return ("0.0.0.0", 0) if family == AF_INET else ("::", 0, 0, 0)
    if host in ("<broadcast>", b"<broadcast>"):
        if family != AF_INET:
            raise OSError(f"{name}(): address family mismatched")
        return ("255.255.255.255", 0)
    found = getaddrinfo(host, None, family, SOCK_STREAM)
    if not found:
        raise gaierror(EAI_NONAME, f"{name}(): no address for {host!r}")
    address: tuple[Any, ...] = found[0][4]
    text = address[0].partition("%")[0]
    return (text, *address[1:])


def _connect_raw(sock: Socket, name: str, address: Any) -> None:
    """connect() of a family that only the socket module knows."""
    begun = False

    def attempt(raw: "_Raw") -> None:
        nonlocal begun
        if begun:
            error = raw.getsockopt(SOL_SOCKET, SO_ERROR)
            if error:
                raise OSError(error, os.strerror(error))
            return
        fd = raw.fileno()
        blocking = os.get_blocking(fd)
        os.set_blocking(fd, False)
        try:
            raw.connect(address)
        except BlockingIOError as exc:
            begun = exc.errno == errno.EINPROGRESS
            raise
        finally:
            os.set_blocking(fd, blocking)

    sock._retry(name, True, attempt, address)


def _recvfrom(sock: Socket, bufsize: int, flags: int = 0) -> Any:
    return sock._retry(
        "recvfrom", False, lambda raw: raw.recvfrom(bufsize, flags | MSG_DONTWAIT)
    )


def _recvfrom_into(
    sock: Socket, buffer: "WriteableBuffer", nbytes: int = 0, flags: int = 0
) -> Any:
    return sock._retry(
        "recvfrom_into",
        False,
        lambda raw: raw.recvfrom_into(buffer, nbytes, flags | MSG_DONTWAIT),
    )


def _sendto(sock: Socket, data: "ReadableBuffer", *args: Any) -> int:
    *flags, address = args
    if sock._family in (AF_INET, AF_INET6):
        return sock.sendto(data, *flags, _numeric(sock._family, "sendto", address))
    given = (flags[0] if flags else 0) | MSG_DONTWAIT
    return sock._retry(  # type: ignore[no-any-return]
        "sendto", True, lambda raw: raw.sendto(data, given, address), address
    )


def _sendmsg(
    sock: Socket,
    buffers: "Iterable[ReadableBuffer]",
    ancdata: Iterable[Any] = (),
    flags: int = 0,
    address: Any = None,
) -> int:
    buffers, ancdata = list(buffers), list(ancdata)
    if address is not None and sock._family in (AF_INET, AF_INET6):
        address = _numeric(sock._family, "sendmsg", address)
    return sock._retry(  # type: ignore[no-any-return]
        "sendmsg",
        True,
        lambda raw: raw.sendmsg(buffers, ancdata, flags | MSG_DONTWAIT, address),
        address,
    )


def _setsockopt(sock: Socket, *args: Any) -> None:
    sock._raw("setsockopt", args)


def _raw_call(sock: Socket, name: str) -> Any:
    return sock._raw(name, ())


# -- sending files ------------------------------------------------------------


def _check_sendfile(sock: Socket, file: Any, offset: int, count: Any) -> None:
    if sock.fileno() < 0:
        raise OSError(
            errno.EBADF, "Bad file descriptor: the socket is closed: sendfile()"
        )
    if "b" not in getattr(file, "mode", "b"):
        raise ValueError("file should be opened in binary mode")
    if sock._type != SOCK_STREAM:
        raise ValueError("only SOCK_STREAM type sockets are supported")
    if sock.gettimeout() == 0:
        raise ValueError("non-blocking sockets are not supported")
    if count is not None:
        if not isinstance(count, int):
            raise TypeError(f"count must be a positive integer (got {count!r})")
        if count <= 0:
            raise ValueError(f"count must be a positive integer (got {count!r})")
    if offset < 0:
        raise ValueError(f"offset must not be negative (got {offset!r})")


def _copy_file(sock: Socket, file: IO[bytes], offset: int, count: int | None) -> Any:
    """Yields how much was sent, after each piece."""
    if offset:
        file.seek(offset)
    sent = 0
    yield sent
    while count is None or sent < count:
        size = _COPY_BLOCK if count is None else min(_COPY_BLOCK, count - sent)
        piece = file.read(size)
        if not piece:
            break
        sock.sendall(piece)
        sent += len(piece)
        yield sent


# -- making sockets -----------------------------------------------------------


def from_socket(sock: "_socket.socket") -> Socket:
    """Takes over a socket.socket: its descriptor and timeout.  The old object
    is detached, and its O_NONBLOCK flag stays as it is."""
    timeout = sock.gettimeout()
    family, kind, proto = int(sock.family), int(sock.type), sock.proto
    if sock.fileno() < 0:
        raise OSError(errno.EBADF, f"Bad file descriptor: from_socket({sock!r})")
    fd = sock.detach()
    try:
        ours = Socket(family, kind, proto, fileno=fd)
    except BaseException:
        os.close(fd)
        raise
    ours.settimeout(timeout)
    return ours


def fromfd(fd: int, family: int, type: int, proto: int = 0) -> Socket:  # type: ignore[no-redef]
    """A socket on a duplicate of the descriptor."""
    copy = _socket.dup(fd)
    try:
        return Socket(family, type, proto, copy)
    except BaseException:
        os.close(copy)
        raise


def socketpair(  # type: ignore[no-redef]
    family: int | None = None, type: int = SOCK_STREAM, proto: int = 0
) -> tuple[Socket, Socket]:
    """Two connected sockets: Unix sockets unless told otherwise."""
    if family is None:
        family = _socket.AF_UNIX
    one, other = _socket.socketpair(family, type, proto)
    return from_socket(one), from_socket(other)


def _addresses(
    address: tuple[Any, ...],
) -> list[tuple[int, int, int, tuple[Any, ...]]]:
    """What getaddrinfo() gives, without asking for a numeric address."""
    host, port = address[:2]
    if type(host) is str and type(port) is int:
        for family, mark in ((AF_INET, "."), (AF_INET6, ":")):
            if mark in host:
                try:
                    inet_pton(family, host)
                except OSError:
                    continue
                return [(family, SOCK_STREAM, 0, (host, port))]
    return [
        (family, kind, proto, where)
        for family, kind, proto, _, where in getaddrinfo(host, port, 0, SOCK_STREAM)
    ]


def create_connection(  # type: ignore[no-redef]
    address: tuple[Any, ...],
    timeout: Any = _GLOBAL_DEFAULT,
    source_address: Any = None,
    *,
    all_errors: bool = False,
    deadline: float | None = None,
) -> Socket:
    """Connects to (host, port) and returns the Socket; the addresses of a
    host are tried in turn.

    `timeout` is for each attempt and stays the socket's; `deadline`, a
    time.monotonic(), is for all of them and is not kept.  Raises the last
    attempt's exception, or with `all_errors` an ExceptionGroup of all.
    """
    errors: list[OSError] = []
    for family, kind, proto, where in _addresses(address):
        sock = None
        try:
            sock = Socket(family, kind, proto)
            if timeout is not _GLOBAL_DEFAULT:
                sock.settimeout(timeout)
            if deadline is not None:
                sock.set_write_deadline(deadline)
            if source_address:
                sock.bind(source_address)
            sock.connect(where)
            if deadline is not None:
                sock.set_write_deadline(None)
            return sock
        except OSError as exc:
            if not all_errors:
                errors.clear()
            errors.append(exc)
            if sock is not None:
                sock.close()
        except BaseException:
            if sock is not None:
                sock.close()
            raise
    try:
        if not errors:
            raise OSError("getaddrinfo returns an empty list")
        if all_errors:
            raise ExceptionGroup("create_connection failed", errors)
        raise errors[0]
    finally:
        errors.clear()


def create_server(  # type: ignore[no-redef]
    address: Any,
    *,
    family: int = AF_INET,
    backlog: int | None = None,
    reuse_port: bool = False,
    dualstack_ipv6: bool = False,
) -> Socket:
    """A Socket that listens on the address (TCP).

    SO_REUSEADDR is set.  `reuse_port` sets SO_REUSEPORT; with
    `dualstack_ipv6` and AF_INET6 it takes IPv4 connections too, else IPv6
    alone.  ValueError for what the system cannot do.
    """
    if reuse_port and not hasattr(_socket, "SO_REUSEPORT"):
        raise ValueError("SO_REUSEPORT not supported on this platform")
    if dualstack_ipv6:
        if not has_dualstack_ipv6():
            raise ValueError("dualstack_ipv6 not supported on this platform")
        if family != AF_INET6:
            raise ValueError("dualstack_ipv6 requires AF_INET6 family")
    sock = Socket(family, SOCK_STREAM)
    try:
        sock.setsockopt(SOL_SOCKET, SO_REUSEADDR, 1)
        if reuse_port:
            sock.setsockopt(SOL_SOCKET, SO_REUSEPORT, 1)
        if has_ipv6 and family == AF_INET6:
            sock.setsockopt(IPPROTO_IPV6, IPV6_V6ONLY, 0 if dualstack_ipv6 else 1)
        sock.bind(address)
        if backlog is None:
            sock.listen()
        else:
            sock.listen(backlog)
        return sock
    except BaseException:
        sock.close()
        raise
