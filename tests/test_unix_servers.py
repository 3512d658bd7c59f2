"""create_unix_server: paths, abstract names, and what is left behind."""

import asyncio
import os
import pathlib
import socket
import sys

import pytest
from support import (
    Echo,
    Recorder,
    dial,
    in_thread,
    socket_path,
    turns,
    until,
    within,
)

CLEANS_UP = sys.version_info >= (3, 13)


@pytest.fixture
def path():
    with socket_path() as path:
        yield path


async def use(path):
    """Sends something and gets it back; until the server has ended, too."""
    with dial(path) as client:
        client.sendall(b"data")
        assert await in_thread(client.recv, 10) == b"data"
        client.shutdown(socket.SHUT_WR)
        assert await in_thread(client.recv, 10) == b""


async def test_serves(loop, path):
    server = await loop.create_unix_server(Echo, path)
    assert server.is_serving()
    (sock,) = server.sockets
    assert sock.family == socket.AF_UNIX
    assert sock.getsockname() == path
    clients = [dial(path) for _ in range(20)]
    for number, client in enumerate(clients):
        client.sendall(b"%d" % number)
    for number, client in enumerate(clients):
        assert await in_thread(client.recv, 10) == b"%d" % number
        client.close()
    server.close()
    await within(server.wait_closed())
    with pytest.raises((ConnectionRefusedError, FileNotFoundError)):
        dial(path)


async def test_the_loops_own_client(loop, path):
    server = await loop.create_unix_server(Echo, path)
    transport, protocol = await loop.create_unix_connection(Recorder, path)
    assert transport.get_extra_info("peername") == path
    transport.write(b"data")
    await protocol.received(4)
    transport.close()
    await protocol.lost()
    server.close()
    await within(server.wait_closed())


@pytest.mark.parametrize("kind", [pathlib.Path, os.fsencode, str])
async def test_kinds_of_paths(loop, path, kind):
    server = await loop.create_unix_server(Echo, kind(path))
    transport, protocol = await loop.create_unix_connection(Recorder, kind(path))
    transport.write(b"data")
    await protocol.received(4)
    transport.close()
    await protocol.lost()
    server.close()


async def test_abstract_names(loop):
    name = f"\0pyfastnet-test-{os.getpid()}"
    server = await loop.create_unix_server(Echo, name)
    await use(name)
    server.close()
    await turns(2)
    with pytest.raises(ConnectionRefusedError):
        dial(name)


async def test_the_path_after_closing(loop, path):
    server = await loop.create_unix_server(Echo, path)
    assert os.path.exists(path)
    server.close()
    await turns(2)
    assert os.path.exists(path) is not CLEANS_UP


@pytest.mark.skipif(not CLEANS_UP, reason="new in 3.13")
async def test_the_path_may_be_kept(loop, path):
    server = await loop.create_unix_server(Echo, path, cleanup_socket=False)
    server.close()
    await turns(2)
    assert os.path.exists(path)


async def test_a_path_that_was_taken_over_is_kept(loop, path):
    first = await loop.create_unix_server(Echo, path)
    second = await loop.create_unix_server(Echo, path)
    first.close()
    await turns(2)
    await use(path)
    second.close()


async def test_a_path_that_was_removed(loop, path):
    server = await loop.create_unix_server(Echo, path)
    os.unlink(path)
    server.close()
    await within(server.wait_closed())


async def test_stale_paths_are_replaced(loop, path):
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(path)
    server = await loop.create_unix_server(Echo, path)
    await use(path)
    server.close()


async def test_paths_that_are_no_sockets_are_not_replaced(loop, path):
    pathlib.Path(path).write_text("precious")
    with pytest.raises(OSError, match="already in use"):
        await loop.create_unix_server(Echo, path)
    assert pathlib.Path(path).read_text() == "precious"


async def test_given_socket(loop, path):
    sock = socket.socket(socket.AF_UNIX)
    sock.bind(path)
    server = await loop.create_unix_server(Echo, sock=sock)
    await use(path)
    server.close()
    await turns(2)
    assert sock.fileno() == -1


async def test_start_serving_later(loop, path):
    server = await loop.create_unix_server(Echo, path, start_serving=False)
    with pytest.raises(ConnectionRefusedError):
        dial(path)
    await server.start_serving()
    await use(path)
    server.close()


async def test_wrong_arguments(loop, path):
    with socket.socket() as tcp:
        with pytest.raises(ValueError, match="UNIX Domain Stream Socket"):
            await loop.create_unix_server(Recorder, sock=tcp)
        with pytest.raises(ValueError, match="can not be specified at the"):
            await loop.create_unix_server(Recorder, path, sock=tcp)
    with pytest.raises(ValueError, match="no sock specified"):
        await loop.create_unix_server(Recorder)
    with pytest.raises(TypeError, match="must be an SSLContext or None"):
        await loop.create_unix_server(Recorder, path, ssl=True)
    with pytest.raises(ValueError, match="only meaningful with ssl"):
        await loop.create_unix_server(Recorder, path, ssl_handshake_timeout=1)
    with pytest.raises(FileNotFoundError):
        await loop.create_unix_server(Recorder, path + "/no/such/folder")
    with pytest.raises(FileNotFoundError):
        await loop.create_unix_connection(Recorder, path + "-missing")
    with pytest.raises(ValueError, match="can not be specified at the same"):
        await loop.create_unix_connection(Recorder, path, sock=object())
    with pytest.raises(ValueError, match="only meaningful with ssl"):
        await loop.create_unix_connection(Recorder, path, server_hostname="x")


async def test_context_manager_and_serve_forever(loop, path):
    async with await loop.create_unix_server(Echo, path) as server:
        task = loop.create_task(server.serve_forever())
        await use(path)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await within(task)
        assert not server.is_serving()


async def test_credentials_of_the_peer(loop, path):
    made = loop.create_future()

    class Server(Recorder):
        def connection_made(self, transport):
            super().connection_made(transport)
            made.set_result(self)

    server = await loop.create_unix_server(Server, path)
    with dial(path):
        protocol = await within(made)
        sock = protocol.transport.get_extra_info("socket")
        raw = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        assert int.from_bytes(raw[:4], sys.byteorder) == os.getpid()
    await protocol.lost()
    server.close()
    await until(lambda: not server.is_serving())
