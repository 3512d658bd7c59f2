"""What the tests share: recording protocols, plain-socket peers, waiting.

The peers are plain sockets or other processes, so that no test depends on
the loop under test at both ends of a connection.
"""

import array
import asyncio
import contextlib
import functools
import importlib
import os
import socket
import struct
import subprocess
import sys
import sysconfig
import tempfile
import textwrap
import time

import pytest

TIMEOUT = 10.0
FREE_THREADED = bool(sysconfig.get_config_var("Py_GIL_DISABLED"))


def need(name):
    """A package for the tests; some cannot be had for Python without a GIL."""
    if FREE_THREADED:
        return pytest.importorskip(
            name, reason=f"{name} cannot be installed on this free-threaded Python"
        )
    return importlib.import_module(name)


class LoopFactory:
    """Makes loops of one kind; remembers them, so that all get closed."""

    def __init__(self, kind, debug):
        self.kind = kind
        self.debug = debug
        self.loops = []

    def __call__(self):
        loop = importlib.import_module(self.kind).new_event_loop()
        loop.set_debug(self.debug)
        self.loops.append(loop)
        return loop


def shut(loop):
    """Ends what runs on the loop and closes it."""
    if loop.is_closed():
        return
    try:
        tasks = asyncio.all_tasks(loop)
        for task in tasks:
            task.cancel()
        if tasks:
            loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.run_until_complete(loop.shutdown_default_executor())
    finally:
        loop.close()


# -- waiting ----------------------------------------------------------------
async def within(awaitable, limit=TIMEOUT):
    return await asyncio.wait_for(awaitable, limit)


# Workers do the I/O that the loop's thread would do in its turns.
WORKERS = "PYFASTNET_HOME" in os.environ or os.environ.get(
    "PYFASTNET_SHARDS", "1"
) not in ("", "1")


not_with_home_away = pytest.mark.skipif(
    "PYFASTNET_HOME" in os.environ,
    reason="tells which descriptors one and the same poll finds ready",
)
not_with_workers = pytest.mark.skipif(
    WORKERS, reason="tells the order in which one thread does the I/O"
)


async def turns(count=1):
    """Lets the loop make some turns, and poll in each of them.

    A loop may do without a poll in a turn that follows at once on another
    one, so each is given a moment; a longer one where a worker polls."""
    for _ in range(count):
        time.sleep(0.002 if WORKERS else 0.0001)
        await asyncio.sleep(0)


async def until(condition, limit=TIMEOUT):
    """For what announces itself by no event: looks every few ms."""
    end = time.monotonic() + limit
    while not condition():
        assert time.monotonic() < end, "the condition never came true"
        await asyncio.sleep(0.002)


async def in_thread(function, *args):
    """The result of a blocking call, made beside the loop."""
    loop = asyncio.get_running_loop()
    return await within(loop.run_in_executor(None, function, *args))


# -- protocols --------------------------------------------------------------
class Notes:
    """What the recording protocols have in common: calls in their order,
    and waiting for one of them."""

    def __init__(self):
        self.calls = []
        self.data = bytearray()
        self.transport = None
        self.reason = "not lost"
        self.keep_open = None
        self._waiters = []

    def note(self, name):
        self.calls.append(name)
        self._wake()

    def _wake(self):
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def until(self, condition):
        while not condition():
            waiter = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            try:
                await within(waiter)
            except TimeoutError:
                raise AssertionError(
                    f"never happened; calls: {self.calls[-20:]}, {len(self.data)} bytes"
                ) from None

    async def called(self, name, count=1):
        await self.until(lambda: self.calls.count(name) >= count)

    async def received(self, count):
        await self.until(lambda: len(self.data) >= count)

    async def lost(self):
        await self.called("lost")

    def connection_made(self, transport):
        self.transport = transport
        self.note("made")

    def eof_received(self):
        self.note("eof")
        return self.keep_open

    def connection_lost(self, exc):
        self.reason = exc
        self.note("lost")

    def pause_writing(self):
        self.note("pause")

    def resume_writing(self):
        self.note("resume")


class Recorder(Notes, asyncio.Protocol):
    def data_received(self, data):
        self.data += data
        self.note("data")


class Echo(Recorder):
    def data_received(self, data):
        super().data_received(data)
        self.transport.write(data)


class BufferedRecorder(Notes, asyncio.BufferedProtocol):
    def __init__(self, size=4096):
        super().__init__()
        self.buffer = bytearray(size)
        self.hints = []

    def get_buffer(self, sizehint):
        self.hints.append(sizehint)
        return self.buffer

    def buffer_updated(self, nbytes):
        self.data += self.buffer[:nbytes]
        self.note("data")


# -- plain sockets ----------------------------------------------------------
def listener(backlog=100, family=socket.AF_INET, blocking=True):
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.bind(("127.0.0.1", 0))
        sock.listen(backlog)
        if blocking:
            sock.settimeout(TIMEOUT)
        else:
            sock.setblocking(False)
    except BaseException:
        sock.close()
        raise
    return sock


def dial(address):
    """A plain TCP or Unix connection to the address."""
    family = socket.AF_UNIX if isinstance(address, str) else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.settimeout(TIMEOUT)
        sock.connect(address)
    except BaseException:
        sock.close()
        raise
    return sock


def tcp_pair():
    with listener() as lsock:
        one = dial(lsock.getsockname())
        other, _ = lsock.accept()
    other.settimeout(TIMEOUT)
    return one, other


def unix_pair():
    one, other = socket.socketpair()
    one.settimeout(TIMEOUT)
    other.settimeout(TIMEOUT)
    return one, other


def stream_pair(family):
    return tcp_pair() if family == "tcp" else unix_pair()


def read_exactly(sock, count):
    data = bytearray()
    while len(data) < count:
        piece = sock.recv(min(count - len(data), 1 << 18))
        if not piece:
            raise EOFError(f"end after {len(data)} of {count} bytes")
        data += piece
    return bytes(data)


def read_all(sock):
    data = bytearray()
    while piece := sock.recv(1 << 18):
        data += piece
    return bytes(data)


def read_or_reset(sock):
    """What comes before the end, be it a reset."""
    data = bytearray()
    with contextlib.suppress(ConnectionResetError):
        while piece := sock.recv(1 << 18):
            data += piece
    return bytes(data)


def reset(sock):
    """Closes the socket so that a TCP peer gets a reset."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()


def fill(sock):
    """Sends until the kernel takes no more; how much it took."""
    sock.setblocking(False)
    sent = 0
    with contextlib.suppress(BlockingIOError):
        while True:
            sent += sock.send(b"f" * 65536)
    return sent


def fill_transport(transport):
    """The same for a transport, past it; how much the kernel took."""
    with transport.get_extra_info("socket").dup() as twin:
        taken = fill(twin)
        # The kernel goes on moving bytes to the peer for a moment.
        time.sleep(0.005)
        while more := fill(twin):
            taken += more
            time.sleep(0.005)
        return taken


def drain(sock):
    """Reads what is there of a non-blocking socket."""
    data = bytearray()
    with contextlib.suppress(BlockingIOError):
        while piece := sock.recv(1 << 18):
            data += piece
    return bytes(data)


@contextlib.contextmanager
def black_hole():
    """The address of a port where connect() stays in progress: the queue
    of the listener is full and nobody accepts."""
    with contextlib.ExitStack() as stack:
        lsock = stack.enter_context(listener(backlog=0))
        for _ in range(4):
            sock = stack.enter_context(socket.socket())
            sock.setblocking(False)
            sock.connect_ex(lsock.getsockname())
        probe = stack.enter_context(socket.socket())
        probe.settimeout(0.05)
        assert probe.connect_ex(lsock.getsockname()) != 0
        yield lsock.getsockname()


@functools.cache
def pattern(size):
    """Bytes in which a piece that is lost, doubled or moved shows."""
    return array.array("I", range((size + 3) // 4)).tobytes()[:size]


def _more_than_fits():
    """More than the kernel takes of one connection while nobody reads."""
    try:
        with open("/proc/sys/net/ipv4/tcp_wmem") as file:
            most = int(file.read().split()[2])
    except OSError:
        most = 4 << 20
    return pattern(most + (2 << 20))


BACKLOG = _more_than_fits()


def fd_count():
    """Descriptors that are open, without those that a loop makes for its
    shards when it needs them."""
    count = 0
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):
            target = os.readlink(f"/proc/self/fd/{name}")
            count += not (WORKERS and target.startswith("anon_inode:"))
    return count


@contextlib.contextmanager
def socket_path():
    """A path short enough for a Unix socket."""
    with tempfile.TemporaryDirectory(prefix="fnet") as folder:
        yield os.path.join(folder, "s")


# -- other processes --------------------------------------------------------
def script_for(kind, debug, body):
    """A program with `new_loop` defined as in the tests."""
    head = f"""
        import asyncio, os, signal, socket, sys, threading, time
        import {kind} as under_test

        def new_loop():
            loop = under_test.new_event_loop()
            loop.set_debug({debug})
            return loop
    """
    return textwrap.dedent(head) + textwrap.dedent(body)


def run_script(new_loop, body, *args, timeout=30, options=("-W", "error")):
    """Runs the program, with arguments; its output, after exit status 0."""
    done = subprocess.run(
        [
            sys.executable,
            *options,
            "-c",
            script_for(new_loop.kind, new_loop.debug, body),
            *map(str, args),
        ],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    assert done.returncode == 0, (
        f"exit status {done.returncode}\n{done.stdout}\n{done.stderr}"
    )
    return done.stdout + done.stderr
