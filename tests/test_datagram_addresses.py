"""Addresses of datagrams: every family, and whatever sendto() may be given."""

import asyncio
import errno
import os
import socket
import struct
import sys

import pytest
from endpoints import Endpoint, drained, endpoint, udp_socket
from support import in_thread, socket_path, turns, until


def scoped():
    """(host with a zone, scope id) of a link-local address, or None."""
    try:
        with open("/proc/net/if_inet6") as file:
            rows = [line.split() for line in file]
    except FileNotFoundError:
        return None
    for digits, _, _, scope, _, name in rows:
        if scope == "20":
            host = socket.inet_ntop(socket.AF_INET6, bytes.fromhex(digits))
            return host, name, socket.if_nametoindex(name)
    return None


def has_ipv6():
    try:
        udp_socket("::1", socket.AF_INET6).close()
    except OSError:
        return False
    return True


needs_ipv6 = pytest.mark.skipif(not has_ipv6(), reason="the machine has no IPv6")
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="raw sockets are root's")


def own_families():
    """Of sockets that only the core takes before Python 3.13."""
    return pytest.mark.not_on(
        "asyncio", reason="no raw sockets before 3.13", when=sys.version_info < (3, 13)
    )


# -- Internet ---------------------------------------------------------------
@needs_ipv6
async def test_ipv6(loop):
    with udp_socket("::1", socket.AF_INET6) as peer:
        async with endpoint(loop, local_addr=("::1", 0)) as (transport, protocol, own):
            assert len(own) == 4
            peer.sendto(b"hello", own)
            await protocol.received(1)
            data, address = protocol.got[0]
            assert (data, address) == (b"hello", peer.getsockname())
            assert [type(part) for part in address] == [str, int, int, int]
            for target in (address, address[:2], address[:3]):
                transport.sendto(b"back", target)
                assert await in_thread(peer.recvfrom, 10) == (b"back", own)


@needs_ipv6
async def test_ipv6_connected(loop):
    with udp_socket("::1", socket.AF_INET6) as peer:
        address = peer.getsockname()
        async with endpoint(loop, remote_addr=address[:2]) as (transport, protocol, _):
            assert transport.get_extra_info("peername") == address
            transport.sendto(b"one")
            transport.sendto(b"two", address)
            assert await in_thread(peer.recv, 10) == b"one"
            assert await in_thread(peer.recv, 10) == b"two"
            with pytest.raises(ValueError, match="Invalid address: must be None or"):
                transport.sendto(b"x", address[:2])


@pytest.mark.skipif(scoped() is None, reason="no link-local address here")
async def test_scope_ids(loop):
    host, name, index = scoped()
    local = (f"{host}%{name}", 0)
    async with (
        endpoint(loop, local_addr=local) as (one, first, own),
        endpoint(loop, local_addr=local) as (other, second, address),
    ):
        assert own[0] == host and own[3] == address[3] == index
        one.sendto(b"with a number", address)
        one.sendto(b"with a name", (f"{host}%{name}", address[1]))
        await second.received(2)
        assert second.got == [(b"with a number", own), (b"with a name", own)]
        other.sendto(b"back", second.got[0][1])
        await first.received(1)
        assert first.got == [(b"back", address)]


async def test_host_names(loop):
    """Looked up by sendto() itself, as the socket's does."""
    with udp_socket() as peer:
        port = peer.getsockname()[1]
        async with endpoint(loop) as (transport, _, own):
            for host in ("localhost", "127.0.0.1", b"127.0.0.1", "127.1"):
                transport.sendto(b"data", (host, port))
                assert await in_thread(peer.recvfrom, 10) == (b"data", own)


async def test_any_address_is_this_machine(loop):
    with udp_socket() as peer:
        async with endpoint(loop, local_addr=("0.0.0.0", 0)) as (transport, _, _):
            transport.sendto(b"data", ("", peer.getsockname()[1]))
            assert await in_thread(peer.recv, 10) == b"data"


@pytest.mark.parametrize("allowed", [False, True])
async def test_broadcast(loop, allowed):
    """What the kernel says to a plain socket; by name and by number."""
    with socket.socket(type=socket.SOCK_DGRAM) as plain:
        plain.bind(("127.0.0.1", 0))
        plain.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, allowed)
        try:
            plain.sendto(b"x", ("<broadcast>", 9))
            expected = None
        except OSError as exc:
            expected = exc.errno
    assert allowed or expected == errno.EACCES
    async with endpoint(
        loop, local_addr=("127.0.0.1", 0), allow_broadcast=allowed
    ) as (transport, protocol, _):
        for host in ("<broadcast>", "255.255.255.255"):
            protocol.errors.clear()
            transport.sendto(b"x", (host, 9))
            if expected is not None:
                await until(lambda: protocol.errors)
                assert protocol.errors[0].errno == expected
            await turns(3)
            assert len(protocol.errors) == (expected is not None)
            assert not transport.is_closing()


async def test_broadcast_endpoint_is_not_connected(loop):
    """With allow_broadcast remote_addr is where datagrams go, no more."""
    with udp_socket() as peer, udp_socket() as stranger:
        address = peer.getsockname()
        async with endpoint(
            loop, local_addr=("127.0.0.1", 0), remote_addr=address, allow_broadcast=True
        ) as (transport, protocol, own):
            assert transport.get_extra_info("peername") is None
            transport.sendto(b"one")
            transport.sendto(b"two", address)
            assert await in_thread(peer.recvfrom, 10) == (b"one", own)
            assert await in_thread(peer.recvfrom, 10) == (b"two", own)
            with pytest.raises(ValueError, match="Invalid address"):
                transport.sendto(b"x", stranger.getsockname())
            stranger.sendto(b"news", own)
            await protocol.received(1)
            assert protocol.got == [(b"news", stranger.getsockname())]


async def test_many_peers(loop):
    """More than any cache of addresses holds at first, in any order."""
    peers = [udp_socket() for _ in range(150)]

    class Echo(Endpoint):
        def datagram_received(self, data, address):
            super().datagram_received(data, address)
            self.transport.sendto(data, address)

    async with endpoint(loop, Echo, local_addr=("127.0.0.1", 0)) as (_, protocol, own):
        for round_ in range(4):
            for number, peer in enumerate(peers[:: 1 if round_ % 2 else -1]):
                peer.sendto(b"%d %d" % (round_, number), own)
                if number % 25 == 0:
                    await turns(1)
            await protocol.received(150 * (round_ + 1))
            for number, peer in enumerate(peers[:: 1 if round_ % 2 else -1]):
                expected = b"%d %d" % (round_, number)
                assert await in_thread(peer.recv, 20) == expected
                assert (expected, peer.getsockname()) in protocol.got[-150:]
    for peer in peers:
        peer.close()


async def test_addresses_of_all_shapes(loop):
    """The same object, an equal one, a subclass, with numbers that are none of
    int's own."""

    class Port(int):
        pass

    class Address(tuple):
        pass

    with udp_socket() as peer:
        host, port = peer.getsockname()
        async with endpoint(loop) as (transport, _, _):
            same = (host, port)
            shapes = [same, same, (host, port), (host, Port(port)), Address(same)]
            for shape in shapes:
                transport.sendto(b"data", shape)
            for _ in shapes:
                assert await in_thread(peer.recv, 10) == b"data"


@pytest.mark.parametrize(
    "address",
    [
        None,
        (),
        ("127.0.0.1",),
        ("127.0.0.1", 1, 2),
        ("127.0.0.1", "1"),
        ("127.0.0.1", 65536),
        ("127.0.0.1", -1),
        ("127.0.0.1", 1.5),
        ("127.0.0.1\0", 1),
        (None, 1),
        "127.0.0.1",
        7,
    ],
)
async def test_what_is_no_address(loop, reports, address):
    """asyncio closes the endpoint with the error of the socket module."""
    with socket.socket(type=socket.SOCK_DGRAM) as plain:
        with pytest.raises(Exception) as expected:
            plain.sendto(b"x", address)
    transport, protocol = await loop.create_datagram_endpoint(
        Endpoint, local_addr=("127.0.0.1", 0)
    )
    transport.sendto(b"x", address)
    await protocol.lost()
    assert type(protocol.reason) is expected.type
    assert [report["message"] for report in reports] == [
        "Fatal write error on datagram transport"
    ]
    assert type(reports[0]["exception"]) is expected.type


async def test_names_that_nobody_has(loop):
    async with endpoint(loop) as (transport, protocol, own):
        transport.sendto(b"x", ("name.invalid", 1))
        await until(lambda: protocol.errors)
        assert isinstance(protocol.errors[0], socket.gaierror)
        transport.sendto(b"goes on", own)
        await protocol.received(1)


# -- Unix -------------------------------------------------------------------
async def test_abstract_names(loop):
    name = f"\0pyfastnet-test-{os.getpid()}"
    async with (
        endpoint(loop, local_addr=name, family=socket.AF_UNIX) as (_, server, own),
        endpoint(loop, remote_addr=name, family=socket.AF_UNIX) as (client, _, _),
    ):
        assert own == name.encode()
        assert client.get_extra_info("peername") == own
        client.sendto(b"from a nameless one")
        await server.received(1)
        assert server.got == [(b"from a nameless one", None)]
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
            sock.bind("")  # a number of the kernel's
            sock.sendto(b"x", own)
            await server.received(2)
            assert server.got[1] == (b"x", sock.getsockname())
            sock.settimeout(10)
            server.transport.sendto(b"back", server.got[1][1])
            assert await in_thread(sock.recvfrom, 10) == (b"back", own)


async def test_paths_of_all_shapes(loop):
    with socket_path() as path, socket_path() as other:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as peer:
            peer.bind(other)
            peer.settimeout(10)
            async with endpoint(loop, local_addr=path, family=socket.AF_UNIX) as (
                transport,
                protocol,
                own,
            ):
                assert own == path
                for shape in (other, os.fsencode(other), bytearray(other, "ascii")):
                    transport.sendto(b"data", shape)
                    assert await in_thread(peer.recvfrom, 10) == (b"data", path)
                peer.sendto(b"hello", path)
                await protocol.received(1)
                assert protocol.got == [(b"hello", other)]


@pytest.mark.parametrize(
    ("address", "number"),
    [
        ("/nonexistent/path", errno.ENOENT),
        ("\0pyfastnet-nobody", errno.ECONNREFUSED),
        ("/" + "x" * 200, None),
    ],
)
async def test_paths_that_nobody_has(loop, address, number):
    with socket_path() as path:
        async with endpoint(loop, local_addr=path, family=socket.AF_UNIX) as (
            transport,
            protocol,
            own,
        ):
            for _ in range(2):
                transport.sendto(b"x", address)
            await until(lambda: len(protocol.errors) == 2)
            assert all(type(exc) is type(protocol.errors[0]) for exc in protocol.errors)
            assert isinstance(protocol.errors[0], OSError)
            assert protocol.errors[0].errno == number
            transport.sendto(b"goes on", own)
            await protocol.received(1)


@pytest.mark.not_on("asyncio", reason="its sendto() needs an address there")
async def test_socketpair(loop):
    one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    other.settimeout(10)
    async with endpoint(loop, sock=one) as (transport, protocol, _):
        assert transport.get_extra_info("peername") == ""
        transport.sendto(b"data")
        transport.sendto(b"")
        assert await in_thread(other.recv, 10) == b"data"
        assert await in_thread(other.recv, 10) == b""
        other.send(b"answer")
        await protocol.received(1)
        assert protocol.got == [(b"answer", None)]
    other.close()


async def test_unix_datagrams_longer_than_udps(loop):
    with socket_path() as path:
        async with endpoint(loop, local_addr=path, family=socket.AF_UNIX) as (
            _,
            protocol,
            _,
        ):
            data = os.urandom(100_000)
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
                sock.sendto(data, path)
                await protocol.received(1)
                sock.sendto(b"short", path)
                await protocol.received(2)
            assert [got[0] for got in protocol.got] == [data, b"short"]


# -- others -----------------------------------------------------------------
async def test_netlink(loop):
    """Asks the kernel for its interfaces."""
    sock = socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM, 0)
    sock.bind((0, 0))
    request = struct.pack("=IHHIIBxHiII", 32, 18, 0x301, 7, 0, 0, 0, 0, 0, 0)
    async with endpoint(loop, sock=sock) as (transport, protocol, own):
        assert own == sock.getsockname() and own[0] != 0
        transport.sendto(request, (0, 0))
        await until(lambda: any(b"lo\0" in data for data, _ in protocol.got))
        assert protocol.got[0][1] == (0, 0)


@own_families()
async def test_netlink_raw(loop):
    sock = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)
    async with endpoint(loop, sock=sock) as (transport, protocol, _):
        request = struct.pack("=IHHIIBxHiII", 32, 18, 0x301, 7, 0, 0, 0, 0, 0, 0)
        transport.sendto(request, (0, 0))
        await protocol.received(1)


def checksum(data):
    total = sum(struct.unpack(f"!{len(data) // 2}H", data))
    total = (total >> 16) + (total & 0xFFFF)
    return ~(total + (total >> 16)) & 0xFFFF


@needs_root
@own_families()
async def test_raw(loop):
    """A ping, by hand."""
    sock = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP)
    async with endpoint(loop, sock=sock) as (transport, protocol, _):
        body = struct.pack("!HH", os.getpid() & 0xFFFF, 1) + b"pyfastnet"[:8]
        check = checksum(b"\x08\0\0\0" + body)
        transport.sendto(struct.pack("!BBH", 8, 0, check) + body, ("127.0.0.1", 0))
        reply = b"\0\0"  # of type 0
        await until(
            lambda: any(
                data[20:22] == reply and data.endswith(body) for data, _ in protocol.got
            )
        )
        assert protocol.got[0][1] == ("127.0.0.1", 0)


@needs_root
async def test_families_that_the_core_does_not_know(loop):
    kind = 0x88B5  # for experiments
    sock = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(kind))
    sock.bind(("lo", kind))
    async with endpoint(loop, sock=sock) as (transport, protocol, own):
        assert own[0] == "lo"
        ours = type(transport).__module__.startswith("pyfastnet")
        if ours or sys.version_info >= (3, 12):
            assert isinstance(transport, asyncio.DatagramTransport)
        transport.sendto(b"frame", ("lo", kind, 0, 0, b"\0" * 6))
        await protocol.received(1)
        data, address = protocol.got[0]
        assert data.startswith(b"frame") and address[0] == "lo"


def test_plain_socket_and_endpoint_agree(new_loop):
    """What comes before sendto(): nothing is left in the kernel."""
    loop = new_loop()
    with udp_socket() as early:
        early.setblocking(False)

        async def main():
            with udp_socket() as peer:
                for number in range(5):
                    peer.sendto(b"%d" % number, early.getsockname())
                transport, protocol = await loop.create_datagram_endpoint(
                    Endpoint, sock=early.dup()
                )
                await protocol.received(5)
                assert drained(early) == []
                transport.close()
                await protocol.lost()

        loop.run_until_complete(main())
