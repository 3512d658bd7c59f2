"""Bytes leave within 2 ms of write(), whatever the handler does next.

Programs written for asyncio rely on it: a handler writes, and then computes,
or blocks until its peer has reacted.  The peer is a process of its own, as a
thread of this one would wait for the GIL.  As the machine may be busy, the
best of several tries counts for the time; a handler that blocks must be
released in every one of them.
"""

import asyncio
import functools
import json
import socket
import struct
import subprocess
import sys
import time

import pytest
from support import TIMEOUT, Recorder, in_thread, listener, read_exactly

BOUND = 0.002
COMPUTING = 0.04
TRIES = 8  # of blocking
MOST_TRIES = 25  # of computing, which end with the first that is prompt

PEER = """
import json, socket, struct, sys, time

mode, address, control, history, fans, size, tries, bound = sys.argv[1:]
mode, history, fans, size = mode.encode(), int(history), int(fans), int(size)

def dial(address):
    if address.isdigit():
        return socket.create_connection(('127.0.0.1', int(address)), 10)
    sock = socket.socket(socket.AF_UNIX)
    sock.settimeout(10)
    sock.connect(address)
    return sock

def exactly(sock, count):
    data = b''
    while len(data) < count:
        piece = sock.recv(count - len(data))
        assert piece, 'the connection has ended'
        data += piece
    return data

control = dial(control)
exactly(control, 1)
worst = []
socks = None
for _ in range(int(tries)):
    if socks is None or not history:
        socks = [dial(address) for _ in range(fans)]
        for sock in socks if fans > 1 else ():
            sock.sendall(b'e')
            exactly(sock, 1)
    for _ in range(history):
        socks[0].sendall(b'e')
        exactly(socks[0], 1)
    socks[0].sendall(mode)
    late = []
    for sock in socks:
        sent, = struct.unpack('d', exactly(sock, size)[-8:])
        late.append(time.monotonic() - sent)
    control.sendall(b'.')
    assert exactly(socks[0], 1) == b'.'
    worst.append(max(late))
    if mode == b'C' and worst[-1] < float(bound):
        break
print(json.dumps(worst))
"""


def compute_in_python():
    end = time.monotonic() + COMPUTING
    while time.monotonic() < end:
        pass


def compute_in_c():
    """One call that takes as long and keeps the GIL all the time."""
    sum(range(long_enough()))


@functools.cache
def long_enough():
    count = 200_000
    while True:
        begin = time.perf_counter()
        sum(range(count))
        if time.perf_counter() - begin > COMPUTING:
            return count
        count *= 2


class Bench:
    """The server under test, and what its handlers do on demand."""

    def __init__(self, loop, *, where="data_received", prefix=0, before=0.0):
        self.loop = loop
        self.where = where
        self.prefix = prefix  # small writes before the one that is timed
        self.before = before  # seconds of computing before the writes
        self.compute = compute_in_python
        self.transports = []
        self.fans = 1
        self.timeouts = 0
        self.control = None

    def handler(self):
        bench = self

        class Handler(Recorder):
            def connection_made(self, transport):
                super().connection_made(transport)
                bench.transports.append(transport)

            def data_received(self, data):
                if data == b"e":
                    self.transport.write(b"e")
                else:
                    bench.start(self.transport, data)

        return Handler()

    def start(self, transport, mode):
        if self.where == "data_received":
            self.act(transport, mode)
        elif self.where == "callback":
            self.loop.call_soon(self.act, transport, mode)
        elif self.where == "timer":
            self.loop.call_later(0.001, self.act, transport, mode)
        else:
            self.loop.create_task(self.task(transport, mode))

    async def task(self, transport, mode):
        await asyncio.sleep(0)
        self.act(transport, mode)

    def act(self, transport, mode):
        time.sleep(self.before)
        for target in self.transports[-self.fans :]:
            for _ in range(self.prefix):
                target.write(b"p")
            target.write(struct.pack("d", time.monotonic()))
        if mode == b"C":
            self.compute()
        else:
            self.control.settimeout(TIMEOUT / 2)
            try:
                self.control.recv(1)
            except TimeoutError:
                self.timeouts += 1
        transport.write(b".")

    async def run(self, mode, address, *, history=0):
        """How late the peer got it, in each try."""
        with listener() as lsock:
            arguments = (
                mode,
                address,
                lsock.getsockname()[1],
                history,
                self.fans,
                self.prefix + 8,
                TRIES if mode == "B" else MOST_TRIES,
                BOUND,
            )
            peer = subprocess.Popen(
                [sys.executable, "-S", "-c", PEER, *map(str, arguments)],
                stdout=subprocess.PIPE,
            )
            self.control, _ = await in_thread(lsock.accept)
            self.control.sendall(b"!")
        with self.control, peer:
            out = await asyncio.to_thread(peer.stdout.read)
        for transport in self.transports:
            transport.abort()
        assert peer.returncode == 0
        return json.loads(out)


async def timed(bench, **options):
    """Computing handlers: the best try is prompt."""
    server = await bench.loop.create_server(bench.handler, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    late = await bench.run("C", port, **options)
    server.close()
    assert min(late) < BOUND, f"late by {late} s"


async def blocking(bench, **options):
    """Handlers that wait for the peer: each try is released."""
    server = await bench.loop.create_server(bench.handler, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    late = await bench.run("B", port, **options)
    server.close()
    assert bench.timeouts == 0
    assert len(late) == TRIES
    assert min(late) < BOUND, f"late by {late} s"


WHERE = pytest.mark.parametrize("where", ["data_received", "callback", "timer", "task"])
HISTORY = pytest.mark.parametrize(
    "history", [0, 1000], ids=["fresh", "after-1000-turns"]
)


@HISTORY
@pytest.mark.parametrize("compute", ["python", "c"])
async def test_before_a_computation(loop, history, compute):
    bench = Bench(loop)
    if compute == "c":
        long_enough()
        bench.compute = compute_in_c
    await timed(bench, history=history)


@WHERE
async def test_from_wherever_it_is_written(loop, where):
    await timed(Bench(loop, where=where), history=100)


@pytest.mark.parametrize("prefix", [1, 15, 200])
async def test_the_last_of_several_writes(loop, prefix):
    await timed(Bench(loop, prefix=prefix), history=100)


async def test_a_write_late_in_the_turn(loop):
    await timed(Bench(loop, before=0.02, prefix=1), history=100)


@HISTORY
async def test_before_blocking(loop, history):
    await blocking(Bench(loop), history=history)


@WHERE
async def test_before_blocking_wherever_it_is_written(loop, where):
    await blocking(Bench(loop, where=where, prefix=3), history=50)


@pytest.mark.parametrize("mode", [timed, blocking])
async def test_several_connections_written_in_one_turn(loop, mode):
    bench = Bench(loop, prefix=1)
    bench.fans = 8
    await mode(bench, history=20)


async def test_unix_sockets(loop, tmp_path):
    bench = Bench(loop, prefix=2)
    path = str(tmp_path / "s")
    server = await loop.create_unix_server(bench.handler, path)
    late = await bench.run("C", path, history=200)
    server.close()
    assert min(late) < BOUND, f"late by {late} s"


async def test_before_the_loop_stops(loop):
    """What was written is sent although the loop makes no further turn."""
    one, other = socket.socketpair()
    other.settimeout(TIMEOUT)
    transport, _ = await loop.create_unix_connection(Recorder, sock=one)
    transport.write(b"1")
    transport.write(b"2")
    # the call blocks the loop's thread until both have left
    assert read_exactly(other, 2) == b"12"
    transport.abort()
    other.close()


def test_after_run_until_complete(loop):
    """The last turn's output leaves before the call returns."""

    async def work():
        transport, _ = await loop.create_unix_connection(Recorder, sock=one)
        transport.write(b"last ")
        transport.write(b"words")
        return transport

    one, other = socket.socketpair()
    transport = loop.run_until_complete(work())
    other.setblocking(False)
    assert other.recv(100) == b"last words"
    transport.write(b", really")
    deadline = time.monotonic() + TIMEOUT
    data = b""
    while not data and time.monotonic() < deadline:
        try:
            data = other.recv(100)
        except BlockingIOError:
            time.sleep(0.0005)
    # also what is written while the loop does not run
    assert data == b", really"
    transport.abort()
    loop.run_until_complete(asyncio.sleep(0))
    other.close()
