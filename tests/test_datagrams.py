"""UDP and Unix datagram endpoints: the basics of what asyncio offers."""

import asyncio
import gc
import os
import socket
import sys

import pytest
from endpoints import Endpoint
from support import in_thread, socket_path, turns, until, within


@pytest.fixture
def peer():
    with socket.socket(type=socket.SOCK_DGRAM) as sock:
        sock.bind(("127.0.0.1", 0))
        sock.settimeout(10)
        yield sock


async def test_unconnected(loop, peer):
    transport, protocol = await loop.create_datagram_endpoint(
        Endpoint, local_addr=("127.0.0.1", 0)
    )
    address = transport.get_extra_info("sockname")
    assert transport.get_extra_info("peername") is None
    assert transport.get_extra_info("socket").type == socket.SOCK_DGRAM
    for number in range(50):
        peer.sendto(b"%d" % number, address)
    await protocol.received(50)
    assert protocol.got == [
        (b"%d" % number, peer.getsockname()) for number in range(50)
    ]
    transport.sendto(b"answer", peer.getsockname())
    assert await in_thread(peer.recvfrom, 100) == (b"answer", address)
    transport.close()
    assert transport.is_closing()
    await protocol.lost()
    assert protocol.reason is None
    assert protocol.calls == ["made", "lost"]


@pytest.mark.skipif(
    sys.version_info < (3, 12), reason="asyncio's endpoints are none before"
)
async def test_type(loop):
    transport, protocol = await loop.create_datagram_endpoint(
        Endpoint, local_addr=("127.0.0.1", 0)
    )
    assert isinstance(transport, asyncio.DatagramTransport)
    transport.close()
    await protocol.lost()


async def test_connected(loop, peer):
    transport, protocol = await loop.create_datagram_endpoint(
        Endpoint, remote_addr=peer.getsockname()
    )
    assert transport.get_extra_info("peername") == peer.getsockname()
    transport.sendto(b"one")
    transport.sendto(b"two", peer.getsockname())
    assert await in_thread(peer.recv, 10) == b"one"
    data, address = await in_thread(peer.recvfrom, 10)
    assert data == b"two"
    with pytest.raises(ValueError, match="Invalid address"):
        transport.sendto(b"x", ("127.0.0.1", 1))
    peer.sendto(b"three", address)
    await protocol.received(1)
    assert protocol.got == [(b"three", peer.getsockname())]
    transport.abort()
    await protocol.lost()


async def test_sizes(loop, peer):
    transport, protocol = await loop.create_datagram_endpoint(
        Endpoint, local_addr=("127.0.0.1", 0)
    )
    address = transport.get_extra_info("sockname")
    for size in (0, 1, 1500, 65507):
        peer.sendto(b"x" * size, address)
        await until(lambda: protocol.got)
        assert protocol.got.pop() == (b"x" * size, peer.getsockname())
    transport.sendto(b"y" * 65507, peer.getsockname())
    assert await in_thread(peer.recv, 1 << 17) == b"y" * 65507
    transport.sendto(bytes(65508), peer.getsockname())
    await until(lambda: protocol.errors)
    assert isinstance(protocol.errors[0], OSError)
    transport.abort()
    await protocol.lost()


async def test_kinds_of_data(loop, peer):
    transport, protocol = await loop.create_datagram_endpoint(
        Endpoint, local_addr=("127.0.0.1", 0)
    )
    for data in (b"bytes", bytearray(b"array"), memoryview(b"views")):
        transport.sendto(data, peer.getsockname())
        assert await in_thread(peer.recv, 10) == bytes(data)
    with pytest.raises(TypeError, match="bytes-like"):
        transport.sendto("text", peer.getsockname())
    transport.abort()
    await protocol.lost()


async def test_unreachable_peers_are_reported(loop):
    with socket.socket(type=socket.SOCK_DGRAM) as nobody:
        nobody.bind(("127.0.0.1", 0))
        address = nobody.getsockname()
    transport, protocol = await loop.create_datagram_endpoint(
        Endpoint, remote_addr=address
    )
    transport.sendto(b"x")
    await until(lambda: protocol.errors)
    assert isinstance(protocol.errors[0], ConnectionRefusedError)
    assert not transport.is_closing()
    transport.abort()
    await protocol.lost()


async def test_unix(loop):
    with socket_path() as path, socket_path() as other:
        transport, protocol = await loop.create_datagram_endpoint(
            Endpoint, local_addr=path, family=socket.AF_UNIX
        )
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
            sock.bind(other)
            sock.settimeout(10)
            sock.sendto(b"data", path)
            await protocol.received(1)
            assert protocol.got == [(b"data", other)]
            transport.sendto(b"answer", other)
            assert await in_thread(sock.recvfrom, 10) == (b"answer", path)
        transport.close()
        await protocol.lost()


async def test_flow_control(loop):
    """Unix datagrams wait in the transport when the peer's queue is full."""
    with socket_path() as path:
        peer = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        peer.bind(path)
        peer.settimeout(10)
        transport, protocol = await loop.create_datagram_endpoint(
            Endpoint, remote_addr=path, family=socket.AF_UNIX
        )
        sent = 0
        while "pause" not in protocol.calls:
            transport.sendto(b"%06d" % sent + bytes(1000))
            sent += 1
            assert sent < 10_000
        assert transport.get_write_buffer_size() > 0
        for number in range(sent):
            data = await in_thread(peer.recv, 2000)
            assert data[:6] == b"%06d" % number
        await until(lambda: "resume" in protocol.calls)
        transport.close()
        await protocol.lost()
        peer.close()


async def test_given_socket(loop, peer):
    sock = socket.socket(type=socket.SOCK_DGRAM)
    sock.bind(("127.0.0.1", 0))
    transport, protocol = await loop.create_datagram_endpoint(Endpoint, sock=sock)
    peer.sendto(b"data", sock.getsockname())
    await protocol.received(1)
    transport.close()
    await protocol.lost()
    await turns(1)
    assert sock.fileno() == -1


async def test_wrong_arguments(loop):
    with pytest.raises(ValueError, match="unexpected address family"):
        await loop.create_datagram_endpoint(Endpoint)
    with pytest.raises(ValueError, match="A datagram socket was expected|UDP"):
        with socket.socket() as tcp:
            await loop.create_datagram_endpoint(Endpoint, sock=tcp)
    with pytest.raises(TypeError, match="2-tuple"):
        await loop.create_datagram_endpoint(Endpoint, local_addr="host")


async def test_arguments_that_contradict(loop, peer):
    for options in (
        {"local_addr": ("127.0.0.1", 0)},
        {"remote_addr": ("127.0.0.1", 1)},
        {"family": socket.AF_INET},
        {"proto": socket.IPPROTO_UDP},
        {"flags": socket.AI_PASSIVE},
        {"reuse_port": True},
        {"allow_broadcast": True},
    ):
        with pytest.raises(ValueError, match="socket modifier keyword arguments"):
            await loop.create_datagram_endpoint(Endpoint, sock=peer, **options)
    with pytest.raises(TypeError, match="reuse_address"):
        await loop.create_datagram_endpoint(
            Endpoint, local_addr=("127.0.0.1", 0), reuse_address=True
        )
    with pytest.raises(TypeError, match="string is expected"):
        await loop.create_datagram_endpoint(
            Endpoint, local_addr=b"/tmp/path", family=socket.AF_UNIX
        )
    with pytest.raises(OSError):
        await loop.create_datagram_endpoint(Endpoint, local_addr=peer.getsockname())
    with pytest.raises((OSError, ValueError)):
        await loop.create_datagram_endpoint(
            Endpoint, local_addr=("127.0.0.1", 0), remote_addr=("::1", 1)
        )


async def test_keywords(loop, peer):
    transport, protocol = await loop.create_datagram_endpoint(
        Endpoint,
        ("127.0.0.1", 0),
        peer.getsockname(),
        family=socket.AF_INET,
        proto=socket.IPPROTO_UDP,
        flags=socket.AI_NUMERICHOST,
        reuse_port=True,
    )
    sock = transport.get_extra_info("socket")
    assert (sock.family, sock.proto) == (socket.AF_INET, socket.IPPROTO_UDP)
    assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT)
    transport.sendto(b"data")
    assert await in_thread(peer.recvfrom, 9) == (b"data", sock.getsockname())
    transport.abort()
    await protocol.lost()


async def test_stale_unix_socket(loop):
    """One that its owner has left behind is removed."""
    with socket_path() as path:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as stale:
            stale.bind(path)
        transport, protocol = await loop.create_datagram_endpoint(
            Endpoint, local_addr=path, family=socket.AF_UNIX
        )
        transport.abort()
        await protocol.lost()


async def test_reuse_port(loop):
    first, one = await loop.create_datagram_endpoint(
        Endpoint, local_addr=("127.0.0.1", 0), reuse_port=True
    )
    address = first.get_extra_info("sockname")
    second, two = await loop.create_datagram_endpoint(
        Endpoint, local_addr=address, reuse_port=True
    )
    for transport, protocol in ((first, one), (second, two)):
        transport.close()
        await protocol.lost()


async def test_errors_in_callbacks(loop, peer, reports):
    class Failing(Endpoint):
        def datagram_received(self, data, address):
            super().datagram_received(data, address)
            raise ZeroDivisionError

    transport, protocol = await loop.create_datagram_endpoint(
        Failing, local_addr=("127.0.0.1", 0)
    )
    address = transport.get_extra_info("sockname")
    peer.sendto(b"one", address)
    await until(lambda: reports)
    assert isinstance(reports[0]["exception"], ZeroDivisionError)
    transport.abort()
    await protocol.lost()


async def test_endpoints_talk(loop):
    """Two of the loop's own, a ball to and fro."""

    class Bouncing(Endpoint):
        def datagram_received(self, data, address):
            super().datagram_received(data, address)
            if len(self.got) < 100:
                self.transport.sendto(data, address)

    pair = [
        await loop.create_datagram_endpoint(Bouncing, local_addr=("127.0.0.1", 0))
        for _ in range(2)
    ]
    (one, first), (other, second) = pair
    one.sendto(b"ball", other.get_extra_info("sockname"))
    await within(first.received(99))
    await within(second.received(100))
    for transport, protocol in pair:
        transport.close()
        await protocol.lost()


async def test_closed_endpoints_are_freed(loop):
    number = os.open("/dev/null", os.O_RDONLY)
    os.close(number)
    for _ in range(5):
        transport, protocol = await loop.create_datagram_endpoint(
            Endpoint, local_addr=("127.0.0.1", 0)
        )
        transport.close()
        await protocol.lost()
        await turns(2)
    del transport, protocol
    gc.collect()
    again = os.open("/dev/null", os.O_RDONLY)
    os.close(again)
    assert again == number
