"""The files that Socket.makefile() gives.

Reading is the C core's (`_core.SocketReader`); writing gathers in a bytearray
and sends it with one sendall().  Neither loses anything when a call ends
early.
"""

import io
import threading
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from . import _core

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer, WriteableBuffer


def _unsupported(name: str) -> Any:
    def method(self: Any, *args: Any) -> Any:
        raise io.UnsupportedOperation(name)

    method.__name__ = name
    method.__doc__ = "io.UnsupportedOperation: a socket cannot do it."
    return method


class SocketReader(_core.SocketReader):
    """A buffered binary reader over a socket: io.BufferedReader's methods."""

    __slots__ = ("name", "mode")

    name: int
    mode: str

    def __init__(self, sock: Any, size: int = io.DEFAULT_BUFFER_SIZE) -> None:
        self.name = sock.fileno()
        self.mode = "rb"

    def __enter__(self) -> "SocketReader":
        if self.closed:
            raise ValueError("I/O operation on closed file.")
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<{type(self).__module__}.{type(self).__qualname__} name={self.name}>"

    def readlines(self, hint: int | None = None) -> list[bytes]:
        """The lines up to the end; no more once `hint` bytes are read."""
        lines = []
        total = 0
        for line in self:
            lines.append(line)
            total += len(line)
            if hint is not None and 0 < hint <= total:
                break
        return lines

    def readable(self) -> bool:
        """True, while open."""
        if self.closed:
            raise ValueError("I/O operation on closed file.")
        return True

    def writable(self) -> bool:
        """False, while open."""
        return not self.readable()

    def seekable(self) -> bool:
        """False, while open."""
        return not self.readable()

    def isatty(self) -> bool:
        """False, while open."""
        return not self.readable()

    def flush(self) -> None:
        """Nothing to do."""
        self.readable()

    seek = _unsupported("seek")
    tell = _unsupported("tell")
    truncate = _unsupported("truncate")
    write = _unsupported("write")
    writelines = _unsupported("writelines")
    detach = _unsupported("detach")


io.BufferedIOBase.register(SocketReader)


class SocketIO(io.RawIOBase):
    """A file without a buffer over a socket."""

    def __init__(self, sock: Any, mode: str) -> None:
        if mode not in ("r", "w", "rw", "rb", "wb", "rwb"):
            raise ValueError(f"invalid mode: {mode!r}")
        super().__init__()
        self._sock = sock
        self._reading = "r" in mode
        self._writing = "w" in mode
        self._mode = mode if "b" in mode else mode + "b"
        sock._add_file()

    def _check(self, does: bool, name: str) -> None:
        if self.closed:
            raise ValueError("I/O operation on closed file.")
        if not does:
            raise io.UnsupportedOperation(name)

    def readinto(self, buffer: "WriteableBuffer", /) -> int | None:
        """One receive into the buffer; None where it would have to wait."""
        self._check(self._reading, "readinto")
        try:
            return self._sock.recv_into(buffer)  # type: ignore[no-any-return]
        except BlockingIOError:
            return None

    def write(self, data: "ReadableBuffer", /) -> int | None:
        """One send(); None where it would have to wait."""
        self._check(self._writing, "write")
        try:
            return self._sock.send(data)  # type: ignore[no-any-return]
        except BlockingIOError:
            return None

    def readable(self) -> bool:
        """Whether it is for reading."""
        self._check(True, "")
        return self._reading

    def writable(self) -> bool:
        """Whether it is for writing."""
        self._check(True, "")
        return self._writing

    def seekable(self) -> bool:
        """False."""
        self._check(True, "")
        return False

    def fileno(self) -> int:
        """The socket's descriptor."""
        self._check(True, "")
        return self._sock.fileno()  # type: ignore[no-any-return]

    @property
    def name(self) -> int:
        """The descriptor, -1 once closed."""
        return -1 if self.closed else self.fileno()

    @property
    def mode(self) -> str:
        """As open()'s."""
        return self._mode

    def close(self) -> None:
        """Lets the socket go."""
        if not self.closed:
            super().close()
            self._sock._drop_file()


class SocketWriter(io.BufferedIOBase):
    """A buffered binary writer over a socket.

    flush() that ends early keeps what was not sent; the next one goes on.
    """

    def __init__(self, sock: Any, size: int = io.DEFAULT_BUFFER_SIZE) -> None:
        if size <= 0:
            raise ValueError("buffer size must be strictly positive")
        super().__init__()
        self._lock = threading.RLock()
        self._pending = bytearray()
        self._size = size
        self._sock = sock
        self.name = sock.fileno()
        self.mode = "wb"
        sock._add_file()

    def _check(self) -> None:
        if self.closed:
            raise ValueError("I/O operation on closed file.")

    def write(self, data: "ReadableBuffer", /) -> int:
        """Takes all of it; sends once more than the buffer's size is there."""
        self._check()
        with memoryview(data) as view, view.cast("B") as piece, self._lock:
            if len(self._pending) + len(piece) < self._size:
                self._pending += piece
            else:
                self._send([self._pending, piece])
            return len(piece)

    def _send(self, pieces: "list[Any]") -> None:
        total = 0
        pending = self._pending
        try:
            if sum(map(len, pieces)):
                # bytes: a bytearray that is being sent could not be resized
                # by whom a signal handler calls.
                self._sock.sendall([bytes(piece) for piece in pieces])
        except BaseException as exc:
            total = getattr(exc, "bytes_sent", 0)
            self._pending = bytearray(b"".join(pieces)[total:])
            raise
        if self._pending is pending:
            pending.clear()

    def flush(self) -> None:
        """Sends what is in the buffer."""
        self._check()
        with self._lock:
            if self._pending:
                self._send([self._pending])

    def writable(self) -> bool:
        """True, while open."""
        self._check()
        return True

    def seekable(self) -> bool:
        """False, while open."""
        self._check()
        return False

    def fileno(self) -> int:
        """The socket's descriptor."""
        self._check()
        return self._sock.fileno()  # type: ignore[no-any-return]

    def close(self) -> None:
        """Sends what is in the buffer and lets the socket go."""
        if not self.closed:
            try:
                super().close()  # flushes
            finally:
                self._sock._drop_file()


class SocketReadWrite(io.BufferedIOBase):
    """A reader and a writer in one."""

    def __init__(self, reader: SocketReader, writer: SocketWriter) -> None:
        super().__init__()
        self._reader = reader
        self._writer = writer
        self.name = reader.name
        self.mode = "rwb"

    def read(self, size: int | None = -1, /) -> bytes:
        """As the reader's."""
        return self._reader.read(size)

    def read1(self, size: int = -1, /) -> bytes:
        """As the reader's."""
        return self._reader.read1(size)

    def peek(self, size: int = 0, /) -> bytes:
        """As the reader's."""
        return self._reader.peek(size)

    def readline(self, limit: int | None = -1, /) -> bytes:
        """As the reader's."""
        return self._reader.readline(limit)

    def readinto(self, buffer: "WriteableBuffer", /) -> int:
        """As the reader's."""
        return self._reader.readinto(buffer)

    def readinto1(self, buffer: "WriteableBuffer", /) -> int:
        """As the reader's."""
        return self._reader.readinto1(buffer)

    def write(self, data: "ReadableBuffer", /) -> int:
        """As the writer's."""
        return self._writer.write(data)

    def writelines(self, lines: "Iterable[ReadableBuffer]", /) -> None:
        """As the writer's."""
        self._writer.writelines(lines)

    def flush(self) -> None:
        """As the writer's."""
        self._writer.flush()

    def readable(self) -> bool:
        """True, while open."""
        return self._reader.readable()

    def writable(self) -> bool:
        """True, while open."""
        return self._writer.writable()

    def seekable(self) -> bool:
        """False, while open."""
        return self._reader.seekable()

    def fileno(self) -> int:
        """The socket's descriptor."""
        return self._reader.fileno()

    def close(self) -> None:
        """Closes both."""
        if not self.closed:
            try:
                super().close()  # flushes
            finally:
                try:
                    self._writer.close()
                finally:
                    self._reader.close()


def make_file(
    sock: Any,
    mode: str,
    buffering: int | None,
    encoding: str | None,
    errors: str | None,
    newline: str | None,
) -> Any:
    """What Socket.makefile() gives."""
    if not set(mode) <= {"r", "w", "b"}:
        raise ValueError(f"invalid mode {mode!r} (only r, w, b allowed)")
    writing = "w" in mode
    reading = "r" in mode or not writing
    binary = "b" in mode
    size = -1 if buffering is None else buffering
    if size < 0:
        size = io.DEFAULT_BUFFER_SIZE
    if size == 0:
        if not binary:
            raise ValueError("unbuffered streams must be binary")
        return SocketIO(sock, "r" * reading + "w" * writing)
    file: Any
    if not writing:
        file = SocketReader(sock, size)
    elif not reading:
        file = SocketWriter(sock, size)
    else:
        file = SocketReadWrite(SocketReader(sock, size), SocketWriter(sock, size))
    if binary:
        return file
    text = io.TextIOWrapper(file, encoding, errors, newline)
    text.mode = mode  # type: ignore[misc]
    return text
