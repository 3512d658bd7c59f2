"""asyncio's streams over the loop's transports."""

import asyncio
import contextlib
import gc
import random
import socket
import ssl
import sys

import pytest
from support import (
    fill_transport,
    in_thread,
    listener,
    need,
    pattern,
    read_all,
    read_exactly,
    reset,
    socket_path,
    turns,
    within,
)


@pytest.fixture(params=["tcp", "unix"])
def opened(request, loop):
    """Opens (reader, writer, peer); closes what is left open."""
    writers, socks = [], []

    async def open_one(**options):
        if request.param == "tcp":
            with listener() as lsock:
                streams = await asyncio.open_connection(*lsock.getsockname(), **options)
                peer, _ = lsock.accept()
        else:
            mine, peer = socket.socketpair()
            streams = await asyncio.open_unix_connection(sock=mine, **options)
        peer.settimeout(10)
        writers.append(streams[1])
        socks.append(peer)
        return (*streams, peer)

    yield open_one
    for writer in writers:
        if not writer.is_closing():
            writer.transport.abort()
    for sock in socks:
        sock.close()
    loop.run_until_complete(turns(4))


# -- reading ----------------------------------------------------------------
async def test_read(loop, opened):
    reader, _, peer = await opened()
    peer.sendall(b"0123456789")
    assert await within(reader.readexactly(3)) == b"012"
    assert await within(reader.read(4)) == b"3456"
    assert await within(reader.read(0)) == b""
    assert await within(reader.read(100)) == b"789"
    assert not reader.at_eof()
    task = loop.create_task(reader.read(100))
    await turns(3)
    assert not task.done()
    peer.sendall(b"more")
    assert await within(task) == b"more"
    peer.sendall(b"rest")
    peer.shutdown(socket.SHUT_WR)
    assert await within(reader.read()) == b"rest"
    assert reader.at_eof()
    assert await within(reader.read(10)) == b""
    with pytest.raises(asyncio.IncompleteReadError):
        await within(reader.readexactly(1))


async def test_lines(loop, opened):
    reader, _, peer = await opened()
    peer.sendall(b"one\ntwo\r\nthree;four\nfi")
    assert await within(reader.readline()) == b"one\n"
    assert await within(reader.readuntil(b"\r\n")) == b"two\r\n"
    assert await within(reader.readuntil(b";")) == b"three;"
    assert await within(anext(reader)) == b"four\n"
    task = loop.create_task(reader.readline())
    await turns(3)
    assert not task.done()
    peer.sendall(b"ve\nsix")
    assert await within(task) == b"five\n"
    peer.close()
    assert await within(reader.readline()) == b"six"
    assert await within(reader.readline()) == b""


async def test_iteration(loop, opened):
    reader, _, peer = await opened()
    lines = [b"%d\n" % number for number in range(2000)]
    peer.sendall(b"".join(lines) + b"no newline")
    peer.close()
    assert [line async for line in reader] == [*lines, b"no newline"]


async def test_limits(loop, opened):
    reader, _, peer = await opened(limit=64)
    peer.sendall(b"x" * 200 + b"\nshort\n")
    with pytest.raises(ValueError, match="limit"):
        await within(reader.readline())
    assert await within(reader.readline()) == b"short\n"
    peer.sendall(b"y" * 200)
    with pytest.raises(asyncio.LimitOverrunError) as info:
        await within(reader.readuntil(b";"))
    assert info.value.consumed > 64
    # nothing is lost of it
    assert await within(reader.readexactly(200)) == b"y" * 200


async def test_incomplete_reads(loop, opened):
    reader, _, peer = await opened()
    peer.sendall(b"abc")
    peer.close()
    with pytest.raises(asyncio.IncompleteReadError) as info:
        await within(reader.readexactly(10))
    assert (info.value.partial, info.value.expected) == (b"abc", 10)
    with pytest.raises(ValueError, match="less than zero"):
        await reader.readexactly(-1)


async def test_large_data_through_a_small_limit(loop, opened):
    """Back-pressure: the reader pauses the transport."""
    reader, writer, peer = await opened(limit=1000)
    data = pattern(2 << 20)
    sending = asyncio.create_task(in_thread(peer.sendall, data))
    got = bytearray()
    rng = random.Random(1)
    while len(got) < len(data):
        if not rng.randrange(50):
            await asyncio.sleep(0)
        got += await within(reader.read(rng.choice([1, 500, 70_000])))
    await sending
    assert got == data
    assert writer.transport.is_reading()


async def test_one_reader_at_a_time(loop, opened):
    reader, _, peer = await opened()
    task = loop.create_task(reader.read(10))
    await turns(3)
    with pytest.raises(RuntimeError, match="another coroutine is"):
        await reader.readexactly(5)
    peer.sendall(b"x")
    assert await within(task) == b"x"


async def test_cancelled_reads_lose_nothing(loop, opened):
    reader, _, peer = await opened()
    for number in range(10):
        task = loop.create_task(reader.readexactly(4))
        await turns(number % 4)
        peer.sendall(b"%02d" % number)
        await turns(number % 3)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        peer.sendall(b"..")
        assert await within(reader.readexactly(4)) == b"%02d.." % number


async def test_the_peer_resets(loop):
    with listener() as lsock:
        reader, writer = await asyncio.open_connection(*lsock.getsockname())
        peer, _ = lsock.accept()
    task = loop.create_task(reader.read(10))
    await turns(3)
    reset(peer)
    with pytest.raises(ConnectionResetError):
        await within(task)
    assert isinstance(reader.exception(), ConnectionResetError)
    writer.close()
    with contextlib.suppress(ConnectionResetError):
        await within(writer.wait_closed())


# -- writing ----------------------------------------------------------------
async def test_write(loop, opened):
    _, writer, peer = await opened()
    writer.write(b"one ")
    writer.writelines([b"two ", b"three"])
    await within(writer.drain())
    assert await in_thread(read_exactly, peer, 13) == b"one two three"
    assert writer.can_write_eof()
    writer.write_eof()
    assert await in_thread(peer.recv, 10) == b""
    assert writer.get_extra_info("peername") == peer.getsockname()
    assert writer.transport.get_extra_info("socket").fileno() > 2
    assert not writer.is_closing()
    writer.close()
    assert writer.is_closing()
    await within(writer.wait_closed())


async def test_drain_waits(loop, opened):
    _, writer, peer = await opened()
    await within(writer.drain())
    filled = fill_transport(writer.transport)
    writer.write(bytes(100_000))
    tasks = [loop.create_task(writer.drain()) for _ in range(3)]
    await turns(5)
    assert not any(task.done() for task in tasks)
    await in_thread(read_exactly, peer, filled + 100_000)
    await within(asyncio.gather(*tasks))


async def test_drain_after_the_loss(loop, opened):
    _, writer, peer = await opened()
    fill_transport(writer.transport)
    writer.write(bytes(100_000))
    task = loop.create_task(writer.drain())
    await turns(3)
    peer.close()
    with pytest.raises((ConnectionResetError, BrokenPipeError)):
        await within(task)
    with pytest.raises((ConnectionResetError, BrokenPipeError)):
        await within(writer.drain())
    writer.close()
    with contextlib.suppress(ConnectionResetError, BrokenPipeError):
        await within(writer.wait_closed())


async def test_large_writes(loop, opened):
    _, writer, peer = await opened()
    data = pattern(3 << 20)
    reading = asyncio.create_task(in_thread(read_all, peer))
    for at in range(0, len(data), 50_000):
        writer.write(data[at : at + 50_000])
        await within(writer.drain())
    writer.close()
    await within(writer.wait_closed())
    assert await reading == data


# -- servers ----------------------------------------------------------------
@pytest.mark.parametrize("kind", ["tcp", "unix"])
async def test_server(loop, kind):
    ended = []
    with socket_path() as path:
        if kind == "tcp":
            server = await asyncio.start_server(
                lambda r, w: reverse(r, w, ended), "127.0.0.1", 0
            )
            address = server.sockets[0].getsockname()

            def connect():
                return asyncio.open_connection(*address)
        else:
            server = await asyncio.start_unix_server(
                lambda r, w: reverse(r, w, ended), path
            )

            def connect():
                return asyncio.open_unix_connection(path)

        async def talk(number):
            reader, writer = await connect()
            for index in range(20):
                writer.write(b"%d:%d\n" % (number, index))
                await writer.drain()
                reply = await within(reader.readline())
                assert reply[:-1][::-1] == b"%d:%d" % (number, index)
            writer.close()
            await writer.wait_closed()

        await within(asyncio.gather(*(talk(number) for number in range(10))))
        server.close()
        await within(server.wait_closed())
    assert len(ended) == 10


async def reverse(reader, writer, ended):
    """Sends each line back, reversed."""
    async for line in reader:
        writer.write(line[:-1][::-1] + b"\n")
        await writer.drain()
    writer.close()
    ended.append(1)
    await writer.wait_closed()


async def test_errors_in_the_handler_are_reported(loop, reports):
    async def handler(reader, writer):
        raise ZeroDivisionError

    server = await asyncio.start_server(handler, "127.0.0.1", 0)
    reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
    with contextlib.suppress(ConnectionError):
        await asyncio.wait_for(reader.read(), 0.5)
    writer.close()
    await writer.wait_closed()
    server.close()
    gc.collect()
    await turns(3)
    assert any(
        isinstance(context.get("exception"), ZeroDivisionError) for context in reports
    )


async def test_start_tls(loop):
    authority = need("trustme").CA()
    server_context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("localhost").configure_cert(server_context)
    client_context = ssl.create_default_context()
    authority.configure_trust(client_context)
    done = loop.create_future()

    async def handler(reader, writer):
        assert await reader.readline() == b"STARTTLS\n"
        writer.write(b"go\n")
        await writer.drain()
        await writer.start_tls(server_context)
        writer.write(b"secret: " + await reader.readline())
        await writer.drain()
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
        done.set_result(None)

    server = await asyncio.start_server(handler, "127.0.0.1", 0)
    reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
    writer.write(b"STARTTLS\n")
    assert await within(reader.readline()) == b"go\n"
    await within(writer.start_tls(client_context, server_hostname="localhost"))
    writer.write(b"hello\n")
    assert await within(reader.readline()) == b"secret: hello\n"
    assert await within(reader.read()) == b""
    writer.close()
    await within(writer.wait_closed())
    await within(done)
    server.close()


async def test_types(loop, opened):
    """Whatever a loop does to be fast, these stay what they are."""
    reader, writer, _ = await opened()
    assert type(reader) is asyncio.StreamReader
    assert type(writer) is asyncio.StreamWriter
    assert isinstance(writer.transport.get_protocol(), asyncio.StreamReaderProtocol)
    assert "StreamReader" in repr(reader)
    assert "StreamWriter" in repr(writer)


@pytest.mark.skipif(sys.version_info < (3, 13), reason="new in 3.13")
async def test_several_separators(loop, opened):
    reader, _, peer = await opened()
    peer.sendall(b"one;two,three;")
    for expected in (b"one;", b"two,", b"three;"):
        assert await within(reader.readuntil((b";", b","))) == expected
