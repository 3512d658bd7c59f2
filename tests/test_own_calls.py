"""Sockets of a class that has recv() or send() of its own: these are used, as
asyncio does; proxies and test suites want to see what goes over a socket."""

import asyncio
import socket
import ssl

import pytest
import support
from support import BACKLOG, Recorder, in_thread, read_all, read_exactly, within


class Watched(socket.socket):
    """Counts what goes over it, and changes nothing."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.received = self.sent = 0

    def recv(self, *args):
        data = super().recv(*args)
        self.received += len(data)
        return data

    def recv_into(self, *args):
        count = super().recv_into(*args)
        self.received += count
        return count

    def send(self, *args):
        count = super().send(*args)
        self.sent += count
        return count

    def sendmsg(self, *args):
        count = super().sendmsg(*args)
        self.sent += count
        return count


class Renamed(socket.socket):
    """A class of its own, with the usual calls."""


@pytest.fixture
def watched(family):
    one, peer = support.stream_pair(family)
    mine = Watched(one.family, one.type, fileno=one.detach())
    mine.setblocking(False)
    with mine, peer:
        yield mine, peer


async def test_transport(loop, watched):
    mine, peer = watched
    transport, protocol = await loop.create_connection(Recorder, sock=mine)
    peer.sendall(b"hello")
    await protocol.received(5)
    assert (mine.received, mine.sent) == (5, 0)
    transport.write(b"world!")
    assert await in_thread(read_exactly, peer, 6) == b"world!"
    transport.writelines([b"two ", b"pieces"])
    assert await in_thread(read_exactly, peer, 10) == b"two pieces"
    assert (mine.received, mine.sent) == (5, 16)
    transport.write(BACKLOG)
    transport.close()
    assert await in_thread(read_all, peer) == BACKLOG
    await protocol.lost()
    assert mine.sent == 16 + len(BACKLOG)
    assert mine.fileno() == -1


async def test_sock_calls(loop, watched):
    mine, peer = watched
    receiving = asyncio.create_task(loop.sock_recv(mine, 100))
    await support.turns(3)
    peer.sendall(b"abc")
    assert await within(receiving) == b"abc"
    receiving = asyncio.create_task(loop.sock_recv_into(mine, bytearray(10)))
    await support.turns(3)
    peer.sendall(b"defg")
    assert await within(receiving) == 4
    assert mine.received == 7
    sending = asyncio.create_task(loop.sock_sendall(mine, BACKLOG))
    assert await in_thread(read_exactly, peer, len(BACKLOG)) == BACKLOG
    await within(sending)
    assert mine.sent == len(BACKLOG)
    await loop.sock_sendall(mine, b"")
    with pytest.raises(TypeError):
        await loop.sock_sendall(mine, "text")


async def test_tls(loop, authority):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("localhost").configure_cert(context)
    lsock = support.listener()

    def serve():
        peer, _ = lsock.accept()
        with lsock, peer, context.wrap_socket(peer, server_side=True) as wrapped:
            wrapped.sendall(wrapped.recv(100))

    serving = asyncio.create_task(in_thread(serve))
    mine = Watched()
    mine.connect(lsock.getsockname())
    mine.setblocking(False)
    client = ssl.create_default_context()
    authority.configure_trust(client)
    transport, protocol = await loop.create_connection(
        Recorder, sock=mine, ssl=client, server_hostname="localhost"
    )
    transport.write(b"secret")
    await protocol.received(6)
    assert mine.received > 6
    assert mine.sent > 6
    await serving
    transport.close()
    await protocol.lost()


@pytest.mark.not_on("asyncio", reason="about the transports of pyfastnet")
async def test_a_class_with_the_usual_calls_is_no_exception(loop, family):
    one, peer = support.stream_pair(family)
    mine = Renamed(one.family, one.type, fileno=one.detach())
    mine.setblocking(False)
    with mine, peer:
        transport, protocol = await loop.create_connection(Recorder, sock=mine)
        assert type(transport).__module__ == "pyfastnet._core"
        transport.abort()
        await protocol.lost()
