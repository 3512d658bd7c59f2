"""The C extension under pyfastnet: private; what is public is in pyfastnet."""

import asyncio
import contextvars
from collections.abc import Callable, Coroutine, Iterable
from socket import socket
from typing import Any, Self, TypeVar

from _typeshed import ReadableBuffer, WriteableBuffer

def usable_cpus() -> int:
    """CPUs that this process may use: its affinity and its control group's
    quota, rounded up."""
_L = TypeVar("_L", bound=type[Loop])

def bind_methods(cls: _L) -> _L:
    """Gives a subclass of Loop copies of the C methods that it inherits: a
    call of one on exactly that class is cheaper.  The class; TypeError for
    any other."""

class Handle:
    """asyncio.Handle in C (`isinstance(h, asyncio.Handle)` holds)."""

    _callback: Any
    _args: tuple[Any, ...] | None
    _cancelled: bool
    _loop: Any
    _context: contextvars.Context
    _source_traceback: Any
    _repr: str | None
    def cancel(self) -> None: ...
    def cancelled(self) -> bool: ...
    def get_context(self) -> contextvars.Context: ...
    def _run(self) -> None: ...

class TimerHandle(Handle):
    """asyncio.TimerHandle in C."""

    _when: float
    _scheduled: bool
    def when(self) -> float: ...

class ConnectionSet:
    """The live transports of one server, weakly held; iterable, sized."""

    def add(self, transport: Any) -> None: ...
    def discard(self, transport: Any) -> None: ...
    def copy(self) -> list[Any]: ...
    def __len__(self) -> int: ...

class Transport(asyncio.Transport):
    """A TCP or Unix stream transport; made by Loop._make_socket_transport()
    and by listeners, never directly."""

    # What asyncio's own code, its tests and uvloop's look at.
    _closing: bool
    _conn_lost: int
    _loop: Any
    _paused: bool
    _protocol: Any
    _sendfile_compatible: Any
    _server: Any
    _sock: socket | None
    _sock_fd: int
    _start_tls_compatible: bool
    def _start(self, waiter: Any) -> None: ...
    def _deliver_held(self) -> None: ...
    def _call_connection_lost(self, exc: BaseException | None) -> None: ...
    def _make_empty_waiter(self) -> asyncio.Future[None]: ...
    def _reset_empty_waiter(self) -> None: ...
    def _force_close(self, exc: BaseException | None) -> None: ...

class DatagramTransport(asyncio.DatagramTransport, asyncio.Transport):
    """A UDP, Unix, netlink or raw transport; made by
    Loop._make_datagram_endpoint(), never directly."""

    # What asyncio's own code, its tests and uvloop's look at.
    _address: Any
    _closing: bool
    _conn_lost: int
    _loop: Any
    _paused: bool
    _protocol: Any
    _sock: socket | None
    _sock_fd: int
    def _start(self, waiter: Any) -> None: ...
    def _retry(self) -> None:
        """Tries again to send to a queue that was full."""
    def _deliver_held(self) -> None: ...
    def _call_connection_lost(self, exc: BaseException | None) -> None: ...
    def _force_close(self, exc: BaseException | None) -> None: ...
class ReadPipeTransport(asyncio.ReadTransport):
    """The reading end of a pipe, terminal, device or socket; made by
    Loop._make_read_pipe_transport()."""

    _closing: bool
    _fileno: int
    _loop: Any
    _paused: bool
    _pipe: Any
    _protocol: Any
    def _start(self, waiter: Any) -> None: ...
    def _deliver_held(self) -> None: ...
    def _call_connection_lost(self, exc: BaseException | None) -> None: ...

class WritePipeTransport(asyncio.Transport):
    """The writing end; made by Loop._make_write_pipe_transport()."""

    _closing: bool
    _conn_lost: int
    _fileno: int
    _loop: Any
    _pipe: Any
    _protocol: Any
    def _start(self, waiter: Any) -> None: ...
    def _call_connection_lost(self, exc: BaseException | None) -> None: ...

class Loop:
    """The hot half of EventLoop; the cold half is pyfastnet.loop."""

    _closed: bool
    _forked: bool
    _stopping: bool
    _debug: bool
    _thread_id: int | None
    slow_callback_duration: float
    _current_handle: Any

    def __init__(self, *, shards: int = 1, adaptive: bool = False) -> None: ...
    # -- scheduling -------------------------------------------------------
    def call_soon(
        self,
        callback: Callable[..., object],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> Handle: ...
    def call_soon_threadsafe(
        self,
        callback: Callable[..., object],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> Handle: ...
    def call_later(
        self,
        delay: float,
        callback: Callable[..., object],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> TimerHandle: ...
    def call_at(
        self,
        when: float,
        callback: Callable[..., object],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> TimerHandle: ...
    def time(self) -> float: ...
    def create_future(self) -> asyncio.Future[Any]: ...
    def get_debug(self) -> bool: ...
    def set_debug(self, enabled: bool) -> None: ...
    def is_running(self) -> bool: ...
    def is_closed(self) -> bool: ...
    def stop(self) -> None: ...
    def _add_callback(self, handle: Any) -> None: ...
    def _add_callback_signalsafe(self, handle: Any) -> None: ...
    # -- running ----------------------------------------------------------
    def _run(self) -> None:
        """Turns of the loop until `_stopping`; then resets nothing."""
    def _run_once(self) -> None: ...
    def _close(self) -> None:
        """Lets go of every descriptor, callback and transport of the core."""
    def _before_fork(self) -> None:
        """Sends what was written and stops the core's thread."""
    def _after_fork_in_parent(self) -> None:
        """After os.fork(): the workers go on."""
    def _after_fork(self) -> None:
        """In a child: closes the child's copies; the loop is unusable."""
    def _write_to_self(self) -> None:
        """Wakes the loop if it sleeps.  Any thread."""
    def _signal_fd(self) -> int:
        """The descriptor for signal.set_wakeup_fd(); what is written there
        comes back as a call of self._process_self_data(data)."""
    # -- descriptors ------------------------------------------------------
    def add_reader(
        self, fd: Any, callback: Callable[..., object], *args: Any
    ) -> None: ...
    def add_writer(
        self, fd: Any, callback: Callable[..., object], *args: Any
    ) -> None: ...
    def remove_reader(self, fd: Any) -> bool: ...
    def remove_writer(self, fd: Any) -> bool: ...
    def _add_reader(
        self, fd: int, callback: Callable[..., object], *args: Any
    ) -> Handle: ...
    def _add_writer(
        self, fd: int, callback: Callable[..., object], *args: Any
    ) -> Handle: ...
    def _remove_reader(self, fd: int) -> bool: ...
    def _remove_writer(self, fd: int) -> bool: ...
    def _ensure_fd_no_transport(self, fd: Any) -> None: ...
    def _set_transport_guard(self, fd: int, enabled: bool) -> None:
        """With False sock_* calls may use a transport's descriptor."""
    # -- sock_*: try first, then wait on a registration that is kept --------
    def sock_recv(self, sock: socket, n: int) -> Coroutine[Any, Any, bytes]: ...
    def sock_recv_into(
        self, sock: socket, buf: WriteableBuffer
    ) -> Coroutine[Any, Any, int]: ...
    def sock_sendall(
        self, sock: socket, data: ReadableBuffer
    ) -> Coroutine[Any, Any, None]: ...
    def _wait_readable(self, sock: socket) -> Coroutine[Any, Any, None]:
        """Completes when the socket may be readable (retry, and wait again
        on BlockingIOError).  Raises RuntimeError for a transport's socket."""
    def _wait_writable(self, sock: socket) -> Coroutine[Any, Any, None]: ...
    # -- names ------------------------------------------------------------
    def _look_up(
        self,
        host: bytes | None,
        service: bytes | None,
        family: int,
        type: int,
        proto: int,
        flags: int,
        /,
    ) -> Any:
        """The list of socket.getaddrinfo() with plain numbers, or where the
        answer takes a look-up a future of it."""
    def _look_up_name(self, sockaddr: Any, flags: int, /) -> Any:
        """(host, service), or a future of it; None if the address is
        malformed."""
    def _forget_look_up(self, future: asyncio.Future[Any], /) -> None:
        """Nobody waits for this future any more; does nothing if it is
        done."""
    # -- transports and servers ---------------------------------------------
    def _make_socket_transport(
        self,
        sock: socket,
        protocol: Any,
        waiter: Any = None,
        *,
        extra: dict[str, Any] | None = None,
        server: Any = None,
    ) -> Transport: ...
    def _make_datagram_endpoint(
        self,
        sock: socket,
        protocol: Any,
        address: Any,
        waiter: Any,
        extra: dict[str, Any],
        kind: tuple[int, int, int],
    ) -> DatagramTransport:
        """`address`: the only one that sendto() takes, or None; `extra`: what
        get_extra_info() answers; `kind`: the socket's family, type, proto."""
    def _make_read_pipe_transport(
        self,
        pipe: Any,
        protocol: Any,
        waiter: Any = None,
        extra: dict[str, Any] | None = None,
        *,
        own: bool = False,
    ) -> ReadPipeTransport:
        """Works on a duplicate of the descriptor, unless `own` says that
        nobody else uses it."""
    def _make_write_pipe_transport(
        self,
        pipe: Any,
        protocol: Any,
        waiter: Any = None,
        extra: dict[str, Any] | None = None,
        *,
        own: bool = False,
    ) -> WritePipeTransport: ...
    def _listen(
        self,
        sock: socket,
        protocol_factory: Callable[[], Any],
        server: Any,
        on_accept: Callable[[int, Any], object] | None,
        backlog: int,
    ) -> None:
        """Accepts connections on the listening socket.  With `on_accept`
        None a Transport is made in C for each; else on_accept(fd, peername)
        is called and owns the descriptor.  An accept() that fails for want
        of descriptors or memory pauses the listener and calls
        self._accept_error(sock, exc, protocol_factory, server, on_accept,
        backlog); _listen() again goes on."""
    def _unlisten(self, fd: int) -> bool:
        """Stops accepting; does not close the socket."""
    def stats(self) -> dict[str, Any]:
        """Counters of the loop's I/O and its caches, as a new dict; any
        thread.  RuntimeError once it is closed."""
    def _set_cache_limit(self, limit: int, /) -> None:
        """The bound of the bytes that the caches keep; OSError EINVAL below
        one block, EBUSY if they keep more than that already."""

def _stack_stats() -> dict[str, int]:
    """The stacks of the core's threads, over the process: see
    pyfastnet.stats().  Any thread."""

# -- the blocking sockets -----------------------------------------------------

class Socket:
    """The C half of pyfastnet.Socket; the cold half is pyfastnet.socket."""

    _family: int
    _type: int
    _ours: bool
    _closed: bool
    proto: int
    timeout: float | None
    def __init__(
        self,
        family: int = -1,
        type: int = -1,
        proto: int = -1,
        fileno: int | None = None,
    ) -> None: ...
    # -- life ---------------------------------------------------------------
    def close(self) -> None: ...
    def detach(self) -> int: ...
    def fileno(self) -> int: ...
    def _add_file(self) -> None: ...
    def _drop_file(self) -> None: ...
    # -- connections ----------------------------------------------------------
    def connect(self, address: Any, /) -> None: ...
    def connect_ex(self, address: Any, /) -> int: ...
    def accept(self) -> tuple[Any, Any]: ...
    def listen(self, backlog: int = ..., /) -> None: ...
    def shutdown(self, how: int, /) -> None: ...
    def getsockname(self) -> Any: ...
    def getpeername(self) -> Any: ...
    # -- receiving --------------------------------------------------------------
    def recv(self, bufsize: int, flags: int = ..., /) -> bytes: ...
    def recv_into(
        self, buffer: WriteableBuffer, nbytes: int = ..., flags: int = ...
    ) -> int: ...
    def recvfrom(self, bufsize: int, flags: int = ..., /) -> tuple[bytes, Any]: ...
    def recvfrom_into(
        self, buffer: WriteableBuffer, nbytes: int = ..., flags: int = ...
    ) -> tuple[int, Any]: ...
    def recv_exactly(self, n: int, /) -> bytes: ...
    def recv_until(self, separator: ReadableBuffer, limit: int = 65536) -> bytes: ...
    def pending(self) -> int: ...
    # -- sending ----------------------------------------------------------------
    def send(self, data: ReadableBuffer, flags: int = ..., /) -> int: ...
    def sendall(
        self,
        data: ReadableBuffer | list[Any] | tuple[Any, ...],
        flags: int = ...,
        /,
    ) -> None: ...
    def sendto(self, data: ReadableBuffer, *flags_and_address: Any) -> int: ...
    def sendmsg(self, buffers: Iterable[ReadableBuffer], *args: Any) -> int: ...
    def _sendfile(self, fileno: int, offset: int, count: int, /) -> int: ...
    # -- time and options ---------------------------------------------------
    def settimeout(self, timeout: float | None, /) -> None: ...
    def gettimeout(self) -> float | None: ...
    def setblocking(self, flag: bool, /) -> None: ...
    def getblocking(self) -> bool: ...
    def set_deadline(
        self, when: float | None = None, *, after: float | None = None
    ) -> None: ...
    def set_read_deadline(
        self, when: float | None = None, *, after: float | None = None
    ) -> None: ...
    def set_write_deadline(
        self, when: float | None = None, *, after: float | None = None
    ) -> None: ...
    def setsockopt(self, level: int, option: int, *value: Any) -> None: ...
    # -- through the socket module --------------------------------------------
    def _raw(self, name: str, args: tuple[Any, ...], address: Any = ..., /) -> Any:
        """A method of socket.socket, on the same descriptor, that does not
        wait."""
    def _retry(
        self,
        name: str,
        writes: bool,
        function: Callable[[socket], Any],
        address: Any = ...,
        /,
    ) -> Any:
        """function(socket.socket) until it raises no BlockingIOError; waits
        in between."""

class SocketReader:
    """The C half of what makefile('rb') gives."""

    closed: bool
    def __new__(cls, sock: Socket, size: int = ...) -> Self: ...
    def read(self, n: int | None = -1, /) -> bytes: ...
    def read1(self, n: int | None = -1, /) -> bytes: ...
    def peek(self, n: int | None = 0, /) -> bytes: ...
    def readline(self, limit: int | None = -1, /) -> bytes: ...
    def readinto(self, buffer: WriteableBuffer, /) -> int: ...
    def readinto1(self, buffer: WriteableBuffer, /) -> int: ...
    def close(self) -> None: ...
    def fileno(self) -> int: ...
    def __iter__(self) -> Self: ...
    def __next__(self) -> bytes: ...
