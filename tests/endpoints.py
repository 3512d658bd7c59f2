"""A recording datagram protocol, and endpoints for tests."""

import asyncio
import contextlib
import socket

from support import until


class Endpoint(asyncio.DatagramProtocol):
    def __init__(self):
        self.calls = []
        self.got = []
        self.errors = []
        self.reason = "not lost"

    def connection_made(self, transport):
        self.transport = transport
        self.calls.append("made")

    def datagram_received(self, data, address):
        self.got.append((data, address))

    def error_received(self, exc):
        self.errors.append(exc)

    def connection_lost(self, exc):
        self.reason = exc
        self.calls.append("lost")

    def pause_writing(self):
        self.calls.append("pause")

    def resume_writing(self):
        self.calls.append("resume")

    async def received(self, count):
        await until(lambda: len(self.got) >= count)

    async def lost(self):
        await until(lambda: "lost" in self.calls)


def udp_socket(host="127.0.0.1", family=socket.AF_INET):
    """A bound plain socket, the peer of an endpoint under test."""
    sock = socket.socket(family, socket.SOCK_DGRAM)
    sock.bind((host, 0))
    sock.settimeout(10)
    return sock


@contextlib.asynccontextmanager
async def endpoint(loop, factory=Endpoint, **options):
    """(transport, protocol, sockname) of one that is closed afterwards."""
    if not options:
        options["local_addr"] = ("127.0.0.1", 0)
    transport, protocol = await loop.create_datagram_endpoint(factory, **options)
    try:
        yield transport, protocol, transport.get_extra_info("sockname")
    finally:
        if "lost" not in protocol.calls:
            transport.abort()
        await protocol.lost()


def drained(sock):
    """All that waits in the socket, without waiting for more."""
    data, timeout = [], sock.gettimeout()
    sock.setblocking(False)
    with contextlib.suppress(BlockingIOError):
        while True:
            data.append(sock.recv(1 << 17))
    sock.settimeout(timeout)
    return data
