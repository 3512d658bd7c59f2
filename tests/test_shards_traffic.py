"""Connections whose I/O other threads do.

Each test runs on asyncio, the oracle, and on pyfastnet with shards that
workers have, with its home shard at a worker, and with one that goes to and
fro all the time.
"""

import asyncio
import contextlib
import os
import random
import socket
import ssl
import threading
import time

import pytest
import support
from shards_support import (
    connect,
    connections,
    in_threads,
    load,
    read_by_shard,
    serving,
)
from support import (
    BACKLOG,
    BufferedRecorder,
    Echo,
    Recorder,
    dial,
    in_thread,
    listener,
    pattern,
    read_all,
    read_exactly,
    read_or_reset,
    reset,
    turns,
    unix_pair,
    until,
    within,
)

import pyfastnet

KINDS = os.environ.get("PYFASTNET_TEST_LOOPS", "asyncio,pyfastnet").split(",")

# shards, PYFASTNET_HOME
MODES = {
    "shards2": (2, None),
    "shards4": (4, None),
    "worker": (1, "worker"),
    "flips": (1, "flips"),
    "flips4": (4, "flips"),
}
LANDING_MAX = 256 * 1024


def loop_of(mode, monkeypatch):
    if mode == "asyncio":
        return asyncio.new_event_loop()
    shards, home = MODES[mode]
    if home is None:
        monkeypatch.delenv("PYFASTNET_HOME", raising=False)
    else:
        monkeypatch.setenv("PYFASTNET_HOME", home)
    return pyfastnet.new_event_loop(shards=shards)


@pytest.fixture(
    params=[
        *(["asyncio"] if "asyncio" in KINDS else []),
        *(MODES if "pyfastnet" in KINDS else []),
    ]
)
def mode(request):
    return request.param


@pytest.fixture
def reports():
    return []


@pytest.fixture
def loop(mode, monkeypatch, reports):
    loop = loop_of(mode, monkeypatch)
    loop.set_exception_handler(lambda _, context: reports.append(context))
    yield loop
    support.shut(loop)
    assert not reports, f"the exception handler was called: {reports}"


# -- every byte ---------------------------------------------------------------
@pytest.mark.parametrize("family", ["tcp", "unix"])
async def test_every_byte_comes_back(loop, family):
    async with serving(loop, Echo, family) as address:
        await load(loop, address, clients=6, rounds=40, size=5000)


@pytest.mark.parametrize("family", ["tcp", "unix"])
async def test_big_messages(loop, family):
    """Larger than any buffer, so that both sides have to wait."""
    async with serving(loop, Echo, family) as address:

        def talk(seed):
            with dial(address) as sock:
                data = BACKLOG[seed * 4 :]
                sender = threading.Thread(target=sock.sendall, args=(data,))
                sender.start()
                same = read_exactly(sock, len(data)) == data
                sender.join()
                return same

        running, results = in_threads(talk, 3)
        while any(thread.is_alive() for thread in running):
            await asyncio.sleep(0.002)
        assert results == [True] * 3


async def test_buffered_protocols(loop):
    data = pattern(1 << 20)
    async with connections(loop, 4, BufferedRecorder) as made:
        running, _ = in_threads(lambda i: made[i][2].sendall(data), 4)
        for _, protocol, _ in made:
            await protocol.received(len(data))
            assert protocol.data == data
            assert protocol.calls.count("data") > 10
        for thread in running:
            thread.join()


async def test_protocols_are_changed_under_data(loop):
    """set_protocol() between the two kinds, while a worker reads."""
    data = pattern(400_000)

    class Changing(Recorder):
        def data_received(self, data):
            super().data_received(data)
            other.data, other.transport = self.data, self.transport
            self.transport.set_protocol(other)

    class Other(BufferedRecorder):
        def buffer_updated(self, nbytes):
            super().buffer_updated(nbytes)
            self.transport.set_protocol(first)

    for _ in range(2):  # on both shards
        other = Other()
        transport, first, peer = await connect(loop, Changing)
        thread = threading.Thread(target=peer.sendall, args=(data,))
        thread.start()
        await until(lambda: len(first.data) == len(data))
        thread.join()
        assert first.data == data
        transport.close()
        await until(lambda: "lost" in first.calls + other.calls)
        peer.close()


# -- order --------------------------------------------------------------------
async def test_data_then_eof_then_lost(loop):
    async with serving(loop, lambda: made.append(Recorder()) or made[-1]) as address:
        made = []
        for size in (1, 5000, 300_000) * 4:
            with dial(address) as sock:
                await in_thread(sock.sendall, pattern(size))
        await until(lambda: len(made) == 12)
        for protocol in made:
            await protocol.lost()
            names = [
                name
                for number, name in enumerate(protocol.calls)
                if number == 0 or name != protocol.calls[number - 1]
            ]
            assert names == ["made", "data", "eof", "lost"]
            assert protocol.reason is None
    assert sorted(len(protocol.data) for protocol in made) == sorted(
        (1, 5000, 300_000) * 4
    )
    for protocol in made:
        assert protocol.data == pattern(300_000)[: len(protocol.data)]


async def test_half_closed(loop):
    """After the peer's end there is still something to be written."""
    async with connections(loop, 4) as made:
        for transport, protocol, peer in made:
            protocol.keep_open = True
            peer.sendall(b"request")
            peer.shutdown(socket.SHUT_WR)
            await protocol.called("eof")
            for number in range(50):
                transport.write(b"%d " % number)
                if number % 10 == 0:
                    await turns()
            transport.write_eof()
            assert await in_thread(read_all, peer) == b"".join(
                b"%d " % number for number in range(50)
            )


async def test_resets(loop):
    async with serving(loop, lambda: made.append(Echo()) or made[-1]) as address:
        made = []
        for number in range(12):
            sock = dial(address)
            await until(lambda n=number: len(made) == n + 1)
            if number % 3:
                sock.sendall(b"x" * 1000 * number)
                await made[-1].called("data")
            reset(sock)
        for protocol in made:
            await protocol.lost()
            assert isinstance(protocol.reason, ConnectionError), protocol.calls


async def test_writes_keep_their_order(loop):
    """Many small ones and some large, over many turns and some threads."""
    chance = random.Random(5)
    async with connections(loop, 4) as made:
        sent = [bytearray() for _ in made]
        running, results = in_threads(lambda i: (i, read_all(made[i][2])), 4)
        for _ in range(300):
            for number, (transport, _, _) in enumerate(made):
                for _ in range(chance.randrange(4)):
                    start = chance.randrange(4000)
                    size = chance.choice((1, 10, 100, 1000, 20_000))
                    piece = pattern(1 << 15)[start : start + size]
                    kind = chance.choice((bytes, bytearray, memoryview))
                    transport.write(kind(piece))
                    sent[number] += piece
            if chance.random() < 0.5:
                await asyncio.sleep(0)
        for transport, _, _ in made:
            transport.close()
        while any(thread.is_alive() for thread in running):
            await asyncio.sleep(0.001)
        for number, got in results:
            assert got == sent[number]


# -- ends ---------------------------------------------------------------------
class Ending(Recorder):
    """Ends its connection from within data_received()."""

    def __init__(self, how):
        super().__init__()
        self.how = how

    def data_received(self, data):
        super().data_received(data)
        if self.how == "abort":
            self.transport.abort()
        else:
            self.transport.write(b"bye")
            self.transport.close()


@pytest.mark.parametrize("how", ["abort", "close"])
async def test_ends_inside_callbacks(loop, how):
    """With data in flight in both directions: nothing after the end."""
    for _ in range(5):
        async with connections(loop, 4, lambda: Ending(how)) as made:
            running, _ = in_threads(lambda i: flood(made[i][2]), 4)
            for _, protocol, peer in made:
                await protocol.lost()
                assert protocol.calls == ["made", "data", "lost"]
                assert protocol.reason is None
                if how == "close":
                    assert (await in_thread(read_or_reset, peer))[:3] in (b"bye", b"")
            for _, _, peer in made:
                peer.close()
            for thread in running:
                thread.join()


def flood(sock):
    with contextlib.suppress(OSError):
        while True:
            sock.sendall(b"x" * 4096)


async def test_ends_of_others(loop):
    """A callback ends the connections that the same batch has data for."""
    for _ in range(10):

        class Killer(Recorder):
            def data_received(self, data):
                super().data_received(data)
                for transport, protocol, _ in made:
                    if protocol is not self:
                        transport.abort()

        async with connections(loop, 8, Killer) as made:
            for _, _, peer in made:
                peer.sendall(b"x" * 100)
            await until(lambda: sum("lost" in p.calls for _, p, _ in made) >= 7)
            await turns(2)
            assert sum(len(p.data) > 0 for _, p, _ in made) == 1


async def test_numbers_are_used_again_at_once(loop):
    """The descriptor that a close frees is the next connection's, while
    workers have events and data of the old one."""
    numbers = set()
    for round_ in range(150):
        mine, peer = unix_pair()
        mine.setblocking(False)
        numbers.add(mine.fileno())
        transport, protocol = await loop.create_connection(Recorder, sock=mine)
        message = b"%d " % round_ * 20
        peer.sendall(message)
        if round_ % 3:
            await protocol.received(1)
            assert protocol.data == message
        peer.sendall(b"stale")
        transport.abort()
        if round_ % 2:
            await protocol.lost()
        peer.close()
        assert message.startswith(bytes(protocol.data[: len(message)]))
    await until(lambda: "lost" in protocol.calls)
    assert len(numbers) < 40


async def test_a_thousand_short_connections(loop):
    """Accepted, answered, closed; on every shard."""
    lost = []

    class Once(Echo):
        def data_received(self, data):
            super().data_received(data)
            self.transport.close()

        def connection_lost(self, exc):
            super().connection_lost(exc)
            lost.append(exc)

    def once(seed):
        for number in range(125):
            with dial(address) as sock:
                message = b"%d %d" % (seed, number)
                sock.sendall(message)
                if read_all(sock) != message:
                    return False
        return True

    async with serving(loop, Once) as address:
        running, results = in_threads(once, 8)
        while any(thread.is_alive() for thread in running):
            await asyncio.sleep(0.002)
        assert results == [True] * 8
        await until(lambda: len(lost) == 1000)
        assert set(lost) == {None}


# -- flow ---------------------------------------------------------------------
async def test_a_pause_bounds_what_is_read_ahead(loop, mode):
    class Pausing(Recorder):
        def data_received(self, data):
            super().data_received(data)
            self.transport.pause_reading()

    data = BACKLOG
    async with connections(loop, 4, Pausing) as made:
        running, _ = in_threads(lambda i: made[i][2].sendall(data), 4)
        for _, protocol, _ in made:
            await protocol.called("data")
        await asyncio.sleep(0.05)
        await turns(3)
        for _, protocol, _ in made:
            assert protocol.calls.count("data") == 1
        if mode != "asyncio":
            read = sum(read_by_shard(loop))
            seen = sum(len(protocol.data) for _, protocol, _ in made)
            assert read - seen <= 4 * LANDING_MAX
        for transport, protocol, _ in made:
            while len(protocol.data) < len(data):
                count = protocol.calls.count("data")
                transport.resume_reading()
                await protocol.called("data", count + 1)
            assert protocol.data == data
        for thread in running:
            thread.join()


async def test_writers_are_told_to_wait(loop):
    async with connections(loop, 4) as made:
        for transport, protocol, _ in made:
            transport.set_write_buffer_limits(high=100_000, low=50_000)
            transport.write(BACKLOG)
            assert protocol.calls[-1] == "pause"
        for transport, protocol, peer in made:
            assert transport.get_write_buffer_size() > 100_000
            got = await in_thread(read_exactly, peer, len(BACKLOG))
            assert got == BACKLOG
            await protocol.called("resume")
            await until(lambda t=transport: t.get_write_buffer_size() == 0)
            assert protocol.calls.count("pause") == protocol.calls.count("resume")


async def test_drain(loop):
    """Streams that write faster than the peer reads."""
    async with serving(loop, Echo) as address:

        async def talk(number):
            reader, writer = await asyncio.open_connection(*address)
            data = pattern(1 << 20)[number * 4 :]

            async def send():
                for start in range(0, len(data), 10_000):
                    writer.write(data[start : start + 10_000])
                    await writer.drain()
                writer.write_eof()

            task = asyncio.ensure_future(send())
            assert await within(reader.readexactly(len(data))) == data
            await task
            assert await within(reader.read()) == b""
            writer.close()
            await writer.wait_closed()

        await asyncio.gather(*map(talk, range(4)))


# -- what is built on transports ----------------------------------------------
@pytest.fixture(scope="module")
def contexts():
    import trustme

    authority = trustme.CA()
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("localhost").configure_cert(server)
    client = ssl.create_default_context()
    authority.configure_trust(client)
    return server, client


async def test_tls(loop, contexts):
    server, client = contexts
    async with serving(loop, Echo, ssl=server) as address:

        async def talk(number):
            reader, writer = await asyncio.open_connection(
                *address, ssl=client, server_hostname="localhost"
            )
            for size in (1, 1000, 100_000, 700_000):
                data = pattern(size + 4 * number)
                writer.write(data)
                assert await within(reader.readexactly(len(data))) == data
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()

        await asyncio.gather(*map(talk, range(4)))


async def test_start_tls(loop, contexts):
    server, client = contexts

    async def serve(reader, writer):
        assert await reader.readline() == b"STARTTLS\n"
        writer.write(b"go\n")
        await writer.drain()
        await writer.start_tls(server)
        writer.write(await reader.readline())
        await writer.drain()
        writer.close()

    served = await asyncio.start_server(serve, "127.0.0.1", 0)
    for number in range(6):
        reader, writer = await asyncio.open_connection(*served.sockets[0].getsockname())
        writer.write(b"STARTTLS\n")
        assert await within(reader.readline()) == b"go\n"
        await within(writer.start_tls(client, server_hostname="localhost"))
        writer.write(b"hello %d\n" % number)
        assert await within(reader.readline()) == b"hello %d\n" % number
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()
    served.close()


async def test_readers_and_writers(loop):
    """Watched descriptors stand in the home shard, wherever that is."""
    a, b = unix_pair()
    a.setblocking(False)
    seen, written = bytearray(), []

    def write():
        written.append(a.send(b"y" * 10))
        if len(written) == 50:
            loop.remove_writer(a)

    loop.add_reader(a, lambda: seen.extend(a.recv(7)))
    for number in range(200):
        b.sendall(b"%05d" % number)
        if number % 3 == 0:
            await until(lambda n=number: len(seen) == 5 * n + 5)
    await until(lambda: len(seen) == 1000)
    assert seen == b"".join(b"%05d" % number for number in range(200))
    loop.add_writer(a, write)
    await until(lambda: len(written) == 50)
    assert await in_thread(read_exactly, b, 500) == b"y" * 500
    assert loop.remove_reader(a) and not loop.remove_reader(a)
    b.sendall(b"nobody")
    await turns(5)
    assert len(seen) == 1000 and len(written) == 50
    a.close()
    b.close()


async def test_sock_calls(loop):
    with listener(blocking=False) as lsock:

        async def accept():
            for _ in range(4):
                conn, _ = await loop.sock_accept(lsock)
                serving.append(asyncio.ensure_future(serve(conn)))

        async def serve(conn):
            while data := await loop.sock_recv(conn, 65536):
                await loop.sock_sendall(conn, data)
            conn.close()

        async def talk(number):
            sock = socket.socket()
            sock.setblocking(False)
            await loop.sock_connect(sock, lsock.getsockname())
            data = pattern(200_000 + 4 * number)
            sending = asyncio.ensure_future(loop.sock_sendall(sock, data))
            got, buffer = bytearray(), bytearray(50_000)
            while len(got) < len(data):
                got += buffer[: await loop.sock_recv_into(sock, buffer)]
            await sending
            assert got == data
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(loop.sock_recv(sock, 1), 0.01)
            sock.close()

        serving = []
        await within(asyncio.gather(accept(), *map(talk, range(4))))
        await within(asyncio.gather(*serving))


async def test_calls_from_other_threads(loop):
    """call_soon_threadsafe() finds the loop wherever it sleeps."""
    seen = []

    def call(number):
        for turn in range(100):
            loop.call_soon_threadsafe(seen.append, (number, turn))
            if turn % 10 == 0:
                time.sleep(0.001)

    running, _ = in_threads(call, 4)
    await until(lambda: len(seen) == 400)
    for thread in running:
        thread.join()
    for number in range(4):
        assert [turn for who, turn in seen if who == number] == list(range(100))


async def test_wakes_from_sleep(loop):
    """One at a time, each with the loop asleep for good."""
    async with serving(loop, Echo) as address:
        await load(loop, address, clients=2, rounds=5)
        for _ in range(30):
            event = asyncio.Event()
            timer = threading.Timer(
                0.002, lambda e=event: loop.call_soon_threadsafe(e.set)
            )
            timer.start()
            await within(event.wait())
            timer.join()
