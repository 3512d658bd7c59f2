"""What the tests of TLS share: servers and clients on both sides."""

import asyncio
import contextlib

from support import Echo, Recorder, in_thread, listener, turns, within


class Served:
    """The protocols that a TLS server of the loop has made."""

    def __init__(self, cls=Echo):
        self.cls = cls
        self.all = []

    def __call__(self):
        self.all.append(self.cls())
        return self.all[-1]


@contextlib.asynccontextmanager
async def serving(loop, context, served, **options):
    server = await loop.create_server(served, "127.0.0.1", 0, ssl=context, **options)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for protocol in served.all:
            if protocol.transport and "lost" not in protocol.calls:
                protocol.transport.abort()
        await turns(5)


class Peer:
    """A TLS server or client of the standard library's, in threads."""

    def __init__(self, context, sock, **options):
        self.sock = context.wrap_socket(sock, do_handshake_on_connect=False, **options)

    async def __aenter__(self):
        await in_thread(self.sock.do_handshake)
        return self.sock

    async def __aexit__(self, *exc):
        self.sock.close()


async def dialling(loop, context, factory=Recorder, **options):
    """A client of the loop on its way: (task, the peer's plain socket)."""
    with listener() as lsock:
        task = asyncio.ensure_future(
            loop.create_connection(
                factory,
                *lsock.getsockname(),
                ssl=context,
                server_hostname="localhost",
                **options,
            )
        )
        conn, _ = await in_thread(lsock.accept)
    conn.settimeout(10)
    return task, conn


async def connected(loop, contexts, factory=Recorder, **options):
    """A client of the loop: (transport, protocol, the peer's socket)."""
    server_context, client_context = contexts
    task, conn = await dialling(loop, client_context, factory, **options)
    peer = server_context.wrap_socket(
        conn, server_side=True, do_handshake_on_connect=False
    )
    await in_thread(peer.do_handshake)
    transport, protocol = await within(task)
    return transport, protocol, peer
