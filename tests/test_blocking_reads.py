"""recv_exactly() and recv_until(), and the files of makefile(), these on the
socket module too."""

import contextlib
import io
import os
import socket as stdlib
import sys
import threading
import time

import pytest

import pyfastnet
import pyfastnet.socket
from pyfastnet.socketfile import SocketReader

MODULES = {"socket": stdlib, "pyfastnet": pyfastnet.socket}
TIMEOUT = 10


@pytest.fixture
def stack():
    with contextlib.ExitStack() as stack:
        yield stack


@pytest.fixture
def pair(stack):
    one, other = map(stack.enter_context, pyfastnet.socketpair())
    one.settimeout(TIMEOUT)
    other.settimeout(TIMEOUT)
    return one, other


@pytest.fixture(params=sorted(MODULES))
def either(request, stack):
    one, other = map(stack.enter_context, MODULES[request.param].socketpair())
    one.settimeout(TIMEOUT)
    other.settimeout(TIMEOUT)
    return one, other


def start(function, *args):
    thread = threading.Thread(target=function, args=args, daemon=True)
    thread.start()
    return thread


def feed(sock, data, size):
    for i in range(0, len(data), size):
        sock.sendall(data[i : i + size])


# -- recv_exactly() -----------------------------------------------------------


@pytest.mark.parametrize("size", [0, 1, 100, 16384, 16385, 1_000_000])
@pytest.mark.parametrize("piece", [7_001, 1 << 20])
def test_exactly(pair, size, piece):
    one, other = pair
    data = os.urandom(size)
    feeder = start(feed, other, data + b"next", piece)
    assert one.recv_exactly(size) == data
    assert one.recv_exactly(4) == b"next"
    assert one.pending() == 0
    feeder.join()


def test_exactly_takes_nothing_beyond(pair):
    one, other = pair
    other.sendall(b"headbody")
    assert one.recv_exactly(4) == b"head"
    assert one.pending() == 0
    with stdlib.socket(fileno=os.dup(one.fileno())) as raw:
        assert raw.recv(10) == b"body"


@pytest.mark.parametrize("got", [0, 3, 20_000])
def test_the_end_comes_first(pair, got):
    one, other = pair
    data = os.urandom(got)
    other.sendall(data)
    other.shutdown(stdlib.SHUT_WR)
    with pytest.raises(EOFError) as info:
        one.recv_exactly(got + 10)
    assert info.value.partial == data
    assert info.value.expected == got + 10
    assert one.recv(1) == b""
    assert one.recv_exactly(0) == b""


@pytest.mark.parametrize(
    ("bad", "error"),
    [
        (-1, ValueError),
        (sys.maxsize, OverflowError),
        (1 << 62, MemoryError),
        (1 << 100, OverflowError),
        ("x", TypeError),
        (1.5, TypeError),
        (None, TypeError),
    ],
)
def test_bad_sizes(pair, bad, error):
    one, other = pair
    other.sendall(b"x")
    with pytest.raises(error):
        one.recv_exactly(bad)
    assert one.recv_exactly(1) == b"x"


def test_a_size_that_memory_has_not_takes_nothing(pair):
    one, other = pair
    start(other.sendall, b"x" * 20_000)
    one.settimeout(0.2)
    with pytest.raises((MemoryError, TimeoutError)):
        one.recv_exactly(1 << 46)
    one.settimeout(TIMEOUT)
    assert one.recv_exactly(20_000) == b"x" * 20_000


def test_without_blocking(pair):
    one, other = pair
    one.setblocking(False)
    for call in (lambda: one.recv_exactly(4), lambda: one.recv_until(b"\n")):
        with pytest.raises(BlockingIOError):
            call()
    other.sendall(b"ab")
    with pytest.raises(BlockingIOError) as info:
        one.recv_exactly(4)
    assert info.value.bytes_received == 2
    other.sendall(b"cd\n")
    assert one.recv_exactly(4) == b"abcd"
    assert one.recv_until(b"\n") == b"\n"


# -- recv_until() -------------------------------------------------------------


@pytest.mark.parametrize("separator", [b"\n", b"\r\n\r\n", b"--boundary--"])
@pytest.mark.parametrize("piece", [1, 2, 3, 5, 1000])
@pytest.mark.parametrize("length", [0, 1, 500, 9000])
def test_until(pair, separator, piece, length):
    one, other = pair
    if piece * 1000 < length:
        piece *= 100
    message = (b"-\r\n-" * length)[:length].replace(separator, b"?" * len(separator))
    message = message.rstrip(separator[:1])
    data = message + separator + b"rest"
    feeder = start(feed, other, data, piece)
    assert one.recv_until(separator) == message + separator
    assert one.pending() == 0, "nothing is read ahead"
    assert one.recv_exactly(4) == b"rest"
    feeder.join()


def test_until_the_end(pair):
    one, other = pair
    other.sendall(b"no newline")
    other.shutdown(stdlib.SHUT_WR)
    with pytest.raises(EOFError) as info:
        one.recv_until(b"\n")
    assert info.value.partial == b"no newline"
    assert info.value.expected is None


def test_until_has_a_limit(pair):
    one, other = pair
    other.sendall(b"x" * 50 + b"\n")
    with pytest.raises(ValueError, match="50 bytes"):
        one.recv_until(b"\n", limit=50)
    assert one.recv_until(b"\n", 51) == b"x" * 50 + b"\n"
    other.sendall(b"abc\nabcdef\n")
    assert one.recv_until(b"\n", limit=4) == b"abc\n"
    for separator, limit in ((b"", 10), (b"\n", 0), (b"\n", -1)):
        with pytest.raises(ValueError):
            one.recv_until(separator, limit)
    with pytest.raises(TypeError):
        one.recv_until("\n")
    assert one.recv_until(memoryview(b"\n")) == b"abcdef\n"


# -- files for reading --------------------------------------------------------


def test_lines(either):
    one, other = either
    file = one.makefile("rb")
    long = b"x" * 100_000 + b"\n"
    feeder = start(other.sendall, b"first\n\nthird\n" + long + b"last\nend")
    assert file.readline() == b"first\n"
    assert file.readline(10) == b"\n"
    assert file.readline(3) == b"thi"
    assert file.readline(0) == b""
    assert file.readline(None) == b"rd\n"
    assert file.readline() == long
    feeder.join()
    other.shutdown(stdlib.SHUT_WR)
    assert list(file) == [b"last\n", b"end"]
    assert file.readline() == b""
    assert file.readlines() == []
    file.close()


@pytest.mark.parametrize("buffering", [None, -1, 1, 7, 100_000])
@pytest.mark.parametrize("size", [1, 100, 16_384, 200_000])
def test_reads(either, buffering, size):
    one, other = either
    data = os.urandom(size + 1000)
    file = one.makefile("rb", buffering)
    feeder = start(feed, other, data, 9_000)
    assert file.read(0) == b""
    assert file.read(size) == data[:size]
    buffer = bytearray(500)
    assert file.readinto(buffer) == 500
    assert buffer == data[size : size + 500]
    feeder.join()
    other.shutdown(stdlib.SHUT_WR)
    rest = file.read(200)
    piece = file.read1(100)
    assert 0 < len(piece) <= 100
    rest += piece
    got = file.readinto1(bytearray(10))
    assert 0 < got <= 10
    rest += data[size + 500 + len(rest) :][:got]
    rest += file.read()
    assert rest == data[size + 500 :]
    assert file.read() == b"" == file.read(10) == file.read1(10)
    assert file.readinto(bytearray(1)) == 0 == file.readinto1(bytearray(1))
    file.close()


def test_reads_that_meet_the_end(either):
    one, other = either
    file = one.makefile("rb")
    other.sendall(b"x" * 50_000)
    other.shutdown(stdlib.SHUT_WR)
    buffer = bytearray(60_000)
    assert file.readinto(buffer) == 50_000
    file = one.makefile("rb")
    assert file.read(1 << 20) == b""


def test_peek(either):
    one, other = either
    file = one.makefile("rb")
    other.sendall(b"abc")
    assert file.peek(1) == b"abc" == file.peek()
    assert file.read(3) == b"abc"
    other.shutdown(stdlib.SHUT_WR)
    assert file.peek() == b""


def test_attributes_of_a_reader(either):
    one, other = either
    file = one.makefile("rb")
    assert isinstance(file, io.BufferedIOBase)
    assert file.readable() and not file.writable()
    assert not file.seekable() and not file.isatty()
    assert file.fileno() == one.fileno()
    assert file.mode == "rb"
    file.flush()
    for name, args in {
        "write": [b"x"],
        "seek": [0],
        "tell": [],
        "truncate": [0],
        "writelines": [[b"x"]],
    }.items():
        with pytest.raises((io.UnsupportedOperation, OSError)):
            getattr(file, name)(*args)
    other.sendall(b"a\nb\nc\n")
    assert file.readlines(3) == [b"a\n", b"b\n"]
    with file:
        assert next(file) == b"c\n"
    assert file.closed
    file.close()
    for name, args in {
        "read": [],
        "read1": [1],
        "readline": [],
        "peek": [],
        "readinto": [bytearray(1)],
        "readable": [],
        "fileno": [],
        "flush": [],
    }.items():
        with pytest.raises(ValueError):
            getattr(file, name)(*args)
    with pytest.raises(ValueError):
        with file:
            pass


def test_bad_arguments_of_files(either):
    one, _ = either
    file = one.makefile("rb")
    for call in (
        lambda: file.read("x"),
        lambda: file.read(1.5),
        lambda: file.readline("x"),
        lambda: file.readinto(b"x"),
        lambda: file.readinto(None),
        lambda: file.read(1, 2),
    ):
        with pytest.raises(TypeError):
            call()
    with pytest.raises(ValueError):
        one.makefile("r+")
    with pytest.raises(ValueError):
        one.makefile("r", buffering=0)


def test_files_keep_the_socket_open(either):
    one, other = either
    file = one.makefile("rb")
    writer = one.makefile("wb")
    one.close()
    other.sendall(b"still")
    assert file.read(5) == b"still"
    writer.write(b"and written")
    file.close()
    writer.close()
    assert other.recv(100) == b"and written"
    assert other.recv(1) == b""
    assert one.fileno() == -1


def test_a_dropped_file_lets_the_socket_go():
    import gc

    one, other = pyfastnet.socketpair()
    file = one.makefile("rb")
    one.close()
    assert one.fileno() >= 0
    del file
    gc.collect()
    assert one.fileno() == -1
    other.close()


@pytest.mark.parametrize("mode", ["r", "w", "rw", "rb", "wb", "rwb"])
def test_modes(either, mode):
    one, other = either
    file = one.makefile(mode, encoding=None if "b" in mode else "utf-8")
    text = "b" not in mode
    if "r" in mode:
        other.sendall("zwölf\n".encode())
        line = file.readline()
        assert line == ("zwölf\n" if text else "zwölf\n".encode())
    if "w" in mode:
        file.write("boxkämpfer\n" if text else "boxkämpfer\n".encode())
        file.flush()
        assert other.recv(100) == "boxkämpfer\n".encode()
        file.writelines(["a", "b"] if text else [b"a", b"b"])
        file.flush()
        assert other.recv(100) == b"ab"
    assert file.readable() == ("r" in mode)
    assert file.writable() == ("w" in mode)
    file.close()
    assert file.closed


@pytest.mark.parametrize("mode", ["rb", "wb", "rwb"])
def test_unbuffered(either, mode):
    one, other = either
    with one.makefile(mode, 0) as file:
        assert isinstance(file, io.RawIOBase)
        assert file.mode == mode
        if "r" in mode:
            other.sendall(b"abc")
            assert file.read(2) == b"ab"
            assert file.read(10) == b"c"
        if "w" in mode:
            assert file.write(b"xyz") == 3
            assert other.recv(10) == b"xyz"
        assert file.fileno() == one.fileno() == file.name
    assert file.name == -1


def test_text_lines_of_a_reader_in_both_directions(pair):
    one, other = pair
    ours, theirs = one.makefile("rw", newline="\n"), other.makefile("rw", newline="\n")
    for i in range(100):
        print(i, file=ours, flush=True)
        assert theirs.readline() == f"{i}\n"
        print(i * i, file=theirs, flush=True)
        assert int(ours.readline()) == i * i
    ours.close()
    theirs.close()


# -- files whose calls end early (blk_09) -------------------------------------


def readinto(file, size):
    buffer = bytearray(size)
    return bytes(buffer[: file.readinto(buffer)])


@pytest.mark.parametrize(
    "call",
    [
        lambda file: file.readline(),
        lambda file: file.read(24),
        lambda file: readinto(file, 24),
    ],
    ids=["readline", "read", "readinto"],
)
def test_half_a_message_survives_a_timeout(pair, call):
    one, other = pair
    one.settimeout(0.05)
    file = one.makefile("rb")
    other.sendall(b"first half, ")
    for _ in range(2):
        with pytest.raises(TimeoutError) as info:
            call(file)
        assert info.value.bytes_received == 12
    other.sendall(b"second half\nnext")
    assert call(file) == b"first half, second half\n"
    assert file.read1() == b"next"


def test_half_a_large_read_survives_a_timeout(pair):
    one, other = pair
    one.settimeout(0.1)
    data = os.urandom(300_000)
    file = one.makefile("rb")
    start(other.sendall, data[:100_000])
    with pytest.raises(TimeoutError) as info:
        file.read(300_000)
    assert info.value.bytes_received == 100_000
    with pytest.raises(TimeoutError):
        file.read()
    start(other.sendall, data[100_000:])
    one.settimeout(TIMEOUT)
    assert file.read(300_000) == data


def test_what_a_writer_could_not_send_stays_in_it(pair):
    one, other = pair
    one.settimeout(0.1)
    file = one.makefile("wb", 1000)
    data = os.urandom(4 << 20)
    file.write(b"first")
    with pytest.raises(TimeoutError):
        file.write(data)
    with pytest.raises(TimeoutError):
        file.flush()
    got = []
    reader = start(lambda: got.append(other.recv_exactly(5 + len(data))))
    one.settimeout(TIMEOUT)
    file.flush()
    reader.join()
    assert got == [b"first" + data]
    file.close()


def test_files_without_blocking(pair):
    one, other = pair
    file = one.makefile("rb")
    raw = one.makefile("rwb", 0)
    one.setblocking(False)
    assert file.read(5) is None and file.read1(5) is None
    assert file.readinto(bytearray(5)) is None
    assert raw.readinto(bytearray(5)) is None
    assert file.peek() == b""
    other.sendall(b"abc")
    with pytest.raises(BlockingIOError):
        file.readline()
    assert file.read(5) == b"abc"
    with contextlib.suppress(BlockingIOError):
        while one.send(b"x" * 100_000):
            pass
    while raw.write(b"x") is not None:
        pass
    raw.close()


def test_a_file_waits_without_a_buffer(pair):
    """As many readers as there is memory for their buffers twice over."""
    one, other = pair
    one.settimeout(0.001)
    files = [one.makefile("rb", 64 << 20) for _ in range(200)]
    before = resident()
    for file in files:
        with pytest.raises(TimeoutError):
            file.readline()
    assert resident() - before < 32 << 20
    assert isinstance(files[0], SocketReader)


def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_files_of_many_threads(pair):
    one, other = pair
    file = one.makefile("rb")
    count = 2000
    lines = []

    def read():
        for _ in range(count // 4):
            lines.append(file.readline())

    readers = [start(read) for _ in range(4)]
    for i in range(count):
        other.sendall(b"%d\n" % i)
    for reader in readers:
        reader.join(TIMEOUT)
        assert not reader.is_alive()
    assert sorted(map(int, lines)) == list(range(count))


def test_a_deadline_ends_a_blocked_file(pair):
    one, other = pair
    file = one.makefile("rb")
    ended = []

    def read():
        try:
            file.readline()
        except TimeoutError:
            ended.append(time.monotonic())

    reader = start(read)
    time.sleep(0.05)
    one.set_deadline(0)
    reader.join(TIMEOUT)
    assert len(ended) == 1
