"""websockets' server and client on the loop, in place of its own tests, which
its source distribution does not have."""

import asyncio
import os
import ssl

import pytest
import trustme
from websockets.asyncio.client import connect
from websockets.asyncio.server import serve
from websockets.exceptions import ConnectionClosedError, ConnectionClosedOK

LIMIT = 30


def run(main):
    async def bounded():
        return await asyncio.wait_for(main, LIMIT)

    return asyncio.run(bounded())


async def echo(websocket):
    async for message in websocket:
        await websocket.send(message)


def uri(server, scheme="ws"):
    return f"{scheme}://127.0.0.1:{server.sockets[0].getsockname()[1]}"


@pytest.mark.parametrize("size", [0, 1, 125, 126, 65535, 65536, 1 << 20])
@pytest.mark.parametrize("compression", [None, "deflate"])
def test_echo(size, compression):
    async def main():
        options = {"compression": compression, "max_size": None}
        async with serve(echo, "127.0.0.1", 0, **options) as server:
            async with connect(uri(server), **options) as client:
                for message in ("x" * size, os.urandom(size)):
                    await client.send(message)
                    assert await client.recv() == message

    run(main())


def test_many_clients_at_once():
    async def main():
        async with serve(echo, "127.0.0.1", 0) as server:

            async def talk(number):
                async with connect(uri(server)) as client:
                    for turn in range(20):
                        await client.send(f"{number} {turn}")
                        assert await client.recv() == f"{number} {turn}"

            await asyncio.gather(*map(talk, range(50)))

    run(main())


def test_ping_and_close():
    async def main():
        async with serve(echo, "127.0.0.1", 0) as server:
            async with connect(uri(server)) as client:
                assert await (await client.ping()) >= 0
                await client.close(1000, "done")
                assert client.close_code == 1000
                with pytest.raises(ConnectionClosedOK):
                    await client.recv()

    run(main())


def test_server_closes_its_clients():
    async def main():
        server = await serve(echo, "127.0.0.1", 0)
        client = await connect(uri(server))
        await client.send("a")
        assert await client.recv() == "a"
        server.close()
        with pytest.raises(ConnectionClosedOK):
            await client.recv()
        assert client.close_code == 1001
        await server.wait_closed()

    run(main())


def test_handler_fails():
    async def failing(websocket):
        raise ValueError("on purpose")

    async def main():
        async with serve(failing, "127.0.0.1", 0) as server:
            async with connect(uri(server)) as client:
                with pytest.raises(ConnectionClosedError):
                    await client.recv()
                assert client.close_code == 1011

    run(main())


def test_backpressure():
    """A client that does not read holds the server's send() up."""

    async def main():
        state = {"sent": 0}
        blocked = asyncio.Event()

        async def flood(websocket):
            for _ in range(400):
                sending = asyncio.ensure_future(websocket.send(bytes(1 << 16)))
                done, _ = await asyncio.wait([sending], timeout=0.5)
                if not done:
                    blocked.set()
                    await sending
                state["sent"] += 1

        async with serve(flood, "127.0.0.1", 0, compression=None) as server:
            async with connect(uri(server), compression=None) as client:
                await blocked.wait()
                assert state["sent"] < 400
                for _ in range(400):
                    assert len(await client.recv()) == 1 << 16

    run(main())


def test_tls():
    authority = trustme.CA()
    server_context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(server_context)
    client_context = ssl.create_default_context()
    authority.configure_trust(client_context)

    async def main():
        async with serve(echo, "127.0.0.1", 0, ssl=server_context) as server:
            async with connect(uri(server, "wss"), ssl=client_context) as client:
                for size in (1, 100_000):
                    await client.send(bytes(size))
                    assert await client.recv() == bytes(size)

    run(main())
