"""Nothing grows: descriptors, objects, handles, memory.

Up to two thousand connections of each kind are opened and closed; what is there
afterwards is compared with what was there after the first few.
"""

import asyncio
import contextlib
import gc
import socket
import ssl

import pytest
from support import (
    BufferedRecorder,
    Echo,
    Recorder,
    dial,
    fd_count,
    listener,
    need,
    reset,
    socket_path,
    tcp_pair,
    turns,
    unix_pair,
    until,
)

WARM_UP = 30
COUNT = 2000
# Objects that caches and free lists may come to hold on the way.
SLACK = 60


def census():
    gc.collect()
    return fd_count(), len(gc.get_objects())


async def assert_no_growth(loop, round_trip, count=COUNT):
    """Makes `count` round trips, and counts before and after.

    Fewer where it is about the test itself, and not about the loop."""
    if loop.get_debug() or type(loop).__module__.startswith("asyncio"):
        count = min(count, max(count // 16, 2 * SLACK))
    for _ in range(WARM_UP):
        await round_trip()
    await turns(5)
    fds, objects = census()
    for _ in range(count):
        await round_trip()
    await turns(5)
    await until(lambda: fd_count() <= fds)
    more = census()[1] - objects
    assert more <= SLACK, f"{more} objects more after {count} rounds"


async def lost(protocol):
    """As Notes.lost(), without the timeout's cost."""
    while "lost" not in protocol.calls:
        await asyncio.sleep(0)


@contextlib.asynccontextmanager
async def serving(loop, family, factory):
    """A server, and a function that dials it."""
    with socket_path() as path:
        if family == "tcp":
            server = await loop.create_server(factory, "127.0.0.1", 0)
            address = server.sockets[0].getsockname()
        else:
            server = await loop.create_unix_server(factory, path)
            address = path
        yield address
        server.close()


def connect(loop, address, factory):
    if isinstance(address, str):
        return loop.create_unix_connection(factory, address)
    return loop.create_connection(factory, *address)


@pytest.mark.parametrize("cls", [Recorder, BufferedRecorder])
async def test_clients(loop, family, cls):
    """Made by the loop, and closed by it after some data."""
    with contextlib.ExitStack() as stack:
        if family == "tcp":
            lsock = stack.enter_context(listener())
            address = lsock.getsockname()
        else:
            address = stack.enter_context(socket_path())
            lsock = stack.enter_context(socket.socket(socket.AF_UNIX))
            lsock.bind(address)
            lsock.listen()

        async def round_trip():
            transport, protocol = await connect(loop, address, cls)
            peer, _ = lsock.accept()
            transport.write(b"x")
            peer.send(b"y")
            while not protocol.data:
                await asyncio.sleep(0)
            peer.close()
            await lost(protocol)

        # half as many: each of two classes
        await assert_no_growth(loop, round_trip, COUNT // 2)


async def test_accepted_connections(loop, family):
    """Ended by the peer, by a reset, by close() and by abort() in turn."""
    protocols = []

    def factory():
        protocols.append(Echo())
        return protocols[-1]

    async with serving(loop, family, factory) as address:
        count = 0

        async def round_trip():
            nonlocal count
            count += 1
            peer = dial(address)
            peer.send(b"x")
            while not protocols or not protocols[-1].data:
                await asyncio.sleep(0)
            protocol = protocols.pop()
            if count % 4 == 0:
                protocol.transport.close()
            elif count % 4 == 1:
                protocol.transport.abort()
            elif count % 4 == 2 and family == "tcp":
                reset(peer)
            else:
                peer.close()
            await lost(protocol)
            peer.close()

        await assert_no_growth(loop, round_trip)


async def test_both_ends(loop, family):
    """Client and server on the loop, with output pending at the end."""
    protocols = []

    def factory():
        protocols.append(Recorder())
        return protocols[-1]

    async with serving(loop, family, factory) as address:

        async def round_trip():
            transport, protocol = await connect(loop, address, Recorder)
            transport.write(bytes(100_000))
            transport.close()
            await lost(protocol)
            while not protocols:
                await asyncio.sleep(0)
            await lost(protocols[-1])
            assert len(protocols.pop().data) == 100_000

        await assert_no_growth(loop, round_trip, COUNT // 4)


async def test_sock_calls(loop, family):
    async def round_trip():
        one, other = tcp_pair() if family == "tcp" else unix_pair()
        one.setblocking(False)
        other.setblocking(False)
        task = loop.create_task(loop.sock_recv(one, 10))
        await asyncio.sleep(0)
        cancelled = loop.create_task(loop.sock_recv(other, 10))
        await asyncio.sleep(0)
        cancelled.cancel()
        await loop.sock_sendall(other, b"x")
        assert await task == b"x"
        one.close()
        other.close()

    await assert_no_growth(loop, round_trip, COUNT // 2)


async def test_readers(loop):
    async def round_trip():
        one, other = socket.socketpair()
        done = loop.create_future()
        loop.add_reader(one, lambda: done.done() or done.set_result(None))
        other.send(b"x")
        await done
        loop.remove_reader(one)
        one.close()
        other.close()

    await assert_no_growth(loop, round_trip)


async def test_streams(loop):
    async def handler(reader, writer):
        writer.write(await reader.readline())
        writer.close()

    server = await asyncio.start_server(handler, "127.0.0.1", 0)
    address = server.sockets[0].getsockname()

    async def round_trip():
        reader, writer = await asyncio.open_connection(*address)
        writer.write(b"line\n")
        assert await reader.read() == b"line\n"
        writer.close()
        await writer.wait_closed()

    await assert_no_growth(loop, round_trip, COUNT // 4)
    server.close()


async def test_tls(loop):
    authority = need("trustme").CA()
    server_context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("localhost").configure_cert(server_context)
    client_context = ssl.create_default_context()
    authority.configure_trust(client_context)
    protocols = []

    def factory():
        protocols.append(Echo())
        return protocols[-1]

    server = await loop.create_server(factory, "127.0.0.1", 0, ssl=server_context)
    address = server.sockets[0].getsockname()

    async def round_trip():
        transport, protocol = await loop.create_connection(
            Recorder,
            *address,
            ssl=client_context,
            server_hostname="localhost",
        )
        transport.write(b"x")
        while not protocol.data:
            await asyncio.sleep(0)
        transport.close()
        await lost(protocol)
        await lost(protocols.pop())

    await assert_no_growth(loop, round_trip, 2 * SLACK)
    server.close()


async def test_refused_connections(loop):
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        address = nobody.getsockname()

        async def round_trip():
            try:
                await loop.create_connection(Recorder, *address)
            except ConnectionRefusedError:
                return
            raise AssertionError("nobody refused it")

        await assert_no_growth(loop, round_trip, COUNT // 4)


async def test_callbacks_and_timers(loop):
    async def round_trip():
        for _ in range(20):
            loop.call_soon(int)
            loop.call_later(60, int).cancel()
            loop.call_later(0, int)
            loop.call_soon_threadsafe(int)
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    await assert_no_growth(loop, round_trip, 2 * SLACK)


def test_loops(new_loop):
    """Made, used and closed."""

    async def work(loop):
        one, other = unix_pair()
        transport, protocol = await loop.create_unix_connection(Recorder, sock=one)
        other.send(b"x")
        await protocol.received(1)
        transport.close()
        await protocol.lost()
        other.close()

    def rounds(count):
        for _ in range(count):
            loop = new_loop()
            loop.run_until_complete(work(loop))
            loop.close()
        new_loop.loops.clear()
        del loop

    rounds(10)
    fds, objects = census()
    rounds(2 * SLACK)
    assert fd_count() <= fds
    assert census()[1] - objects <= SLACK


async def test_errors_in_protocols(loop, reports):
    class Failing(Recorder):
        def data_received(self, data):
            raise ZeroDivisionError

    async def round_trip():
        one, other = unix_pair()
        transport, protocol = await loop.create_unix_connection(Failing, sock=one)
        other.send(b"x")
        await lost(protocol)
        other.close()
        reports.clear()

    await assert_no_growth(loop, round_trip, COUNT // 4)
