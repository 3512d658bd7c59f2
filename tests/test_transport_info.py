"""What a transport says of itself, whose descriptor it is, when it is freed."""

import asyncio
import contextlib
import contextvars
import gc
import os
import pickle
import socket
import sys
import warnings
import weakref
from unittest import mock

import pytest
from support import (
    Recorder,
    dial,
    in_thread,
    listener,
    read_all,
    read_exactly,
    reset,
    tcp_pair,
    turns,
    unix_pair,
    until,
)

VAR = contextvars.ContextVar("VAR", default="unset")
TCP = pytest.mark.parametrize("link", ["tcp", "tcp-accepted"], indirect=True)


async def test_types(loop, link):
    transport, _, _ = await link(Recorder)
    assert isinstance(transport, asyncio.Transport)
    assert isinstance(transport, asyncio.ReadTransport)
    assert isinstance(transport, asyncio.WriteTransport)
    assert isinstance(transport, asyncio.BaseTransport)
    assert not isinstance(transport, asyncio.DatagramTransport)
    assert issubclass(type(transport), asyncio.Transport)
    assert weakref.ref(transport)() is transport
    assert hash(transport) == hash(transport)
    assert transport in {transport}
    assert transport != object()


async def test_repr(loop, link):
    transport, protocol, _ = await link(Recorder)
    number = transport.get_extra_info("socket").fileno()
    assert f"fd={number}" in repr(transport)
    assert "clos" not in repr(transport)
    transport.close()
    assert "closing" in repr(transport)
    await protocol.lost()
    await turns(2)
    assert "closed" in repr(transport)


@TCP
async def test_addresses(loop, link):
    transport, _, peer = await link(Recorder)
    assert transport.get_extra_info("sockname") == peer.getpeername()
    assert transport.get_extra_info("peername") == peer.getsockname()


async def test_unknown_names(loop, link):
    transport, _, _ = await link(Recorder)
    marker = object()
    assert transport.get_extra_info("no such thing") is None
    assert transport.get_extra_info("no such thing", marker) is marker
    assert transport.get_extra_info("sslcontext") is None
    assert transport.get_extra_info("ssl_object", 17) == 17
    with pytest.raises(TypeError):
        transport.get_extra_info()


async def test_addresses_after_the_end(loop, link):
    transport, protocol, peer = await link(Recorder)
    peername = transport.get_extra_info("peername")
    sockname = transport.get_extra_info("sockname")
    peer.close()
    await protocol.lost()
    await turns(2)
    assert transport.get_extra_info("peername") == peername
    assert transport.get_extra_info("sockname") == sockname


async def test_addresses_asked_for_only_after_the_end(loop, link):
    """Nothing may be left to be looked up on a closed descriptor."""
    transport, protocol, peer = await link(Recorder)
    address = peer.getsockname()
    peer.close()
    await protocol.lost()
    await turns(2)
    assert transport.get_extra_info("peername") == address


async def test_unix_addresses(loop):
    one, other = unix_pair()
    transport, protocol = await loop.create_unix_connection(Recorder, sock=one)
    assert transport.get_extra_info("peername") == ""
    assert transport.get_extra_info("sockname") == ""
    other.close()
    await protocol.lost()


async def test_socket(loop, link):
    transport, protocol, peer = await link(Recorder)
    sock = transport.get_extra_info("socket")
    assert isinstance(sock, asyncio.trsock.TransportSocket)
    assert sock.fileno() > 2
    assert sock.family == peer.family
    assert sock.type == socket.SOCK_STREAM
    assert sock.getsockname() == peer.getpeername()
    assert sock.getpeername() == peer.getsockname()
    assert sock.gettimeout() == 0
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
    assert f"fd={sock.fileno()}" in repr(sock)
    with pytest.raises(TypeError):
        pickle.dumps(sock)
    with sock.dup() as twin:
        assert isinstance(twin, socket.socket)
        twin.sendall(b"past the loop")
    assert await in_thread(read_exactly, peer, 13) == b"past the loop"
    assert transport.get_extra_info("socket").fileno() == sock.fileno()
    transport.close()
    await protocol.lost()
    await turns(2)
    assert sock.fileno() == -1


async def test_socket_asked_for_after_the_end(loop, link):
    transport, protocol, _ = await link(Recorder)
    transport.close()
    await protocol.lost()
    await turns(2)
    sock = transport.get_extra_info("socket")
    assert sock.fileno() == -1
    assert "fd=-1" in repr(sock)
    with pytest.raises(OSError):
        sock.getsockname()


async def test_socket_in_connection_lost(loop, link):
    """The descriptor is open until connection_lost() has returned."""

    class Last(Recorder):
        def connection_lost(self, exc):
            sock = self.transport.get_extra_info("socket")
            self.number = sock.fileno()
            os.fstat(self.number)
            super().connection_lost(exc)

    transport, protocol, _ = await link(Last)
    transport.close()
    await protocol.lost()
    await turns(2)
    assert protocol.number > 2
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(protocol.number)


@TCP
async def test_nodelay(loop, link):
    transport, _, _ = await link(Recorder)
    sock = transport.get_extra_info("socket")
    assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) != 0


@pytest.mark.not_on("asyncio", reason="it takes a socket of proto 0 for no TCP socket")
async def test_nodelay_with_given_sockets(loop):
    """Whether they were made with proto 0 or not."""
    made = loop.create_future()

    class Server(Recorder):
        def connection_made(self, transport):
            super().connection_made(transport)
            made.set_result(transport)

    lsock = listener()
    assert lsock.proto == 0
    server = await loop.create_server(Server, sock=lsock)
    one = dial(server.sockets[0].getsockname())
    one.setblocking(False)
    transport, protocol = await loop.create_connection(Recorder, sock=one)
    for end in (transport, await made):
        sock = end.get_extra_info("socket")
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) != 0
    transport.close()
    await protocol.lost()
    server.close()
    await until((await made).is_closing)


async def test_descriptors_of_transports_are_not_inherited(loop, link):
    transport, _, _ = await link(Recorder)
    number = transport.get_extra_info("socket").fileno()
    assert os.get_inheritable(number) is False


async def test_peername_of_a_client_that_has_gone(loop):
    """accept() told it, also if getpeername() fails by then."""
    protocols = []

    class Server(Recorder):
        def connection_made(self, transport):
            super().connection_made(transport)
            protocols.append((self, transport.get_extra_info("peername")))

    server = await loop.create_server(Server, "127.0.0.1", 0)
    address = server.sockets[0].getsockname()
    expected = []
    for _ in range(5):
        client = dial(address)
        expected.append(client.getsockname())
        reset(client)
    await until(lambda: len(protocols) == 5)
    assert sorted(peername for _, peername in protocols) == sorted(expected)
    for protocol, _ in protocols:
        await protocol.lost()
    server.close()


# -- whose descriptor it is -----------------------------------------------------
async def test_the_descriptor_is_protected(loop, link):
    transport, protocol, peer = await link(Recorder)
    sock = transport.get_extra_info("socket")
    for form in (sock, sock.fileno()):
        for call in (
            lambda: loop.add_reader(form, print),
            lambda: loop.add_writer(form, print),
            lambda: loop.remove_reader(form),
            lambda: loop.remove_writer(form),
        ):
            with pytest.raises(RuntimeError, match="is used by transport"):
                call()
    peer.sendall(b"data")
    await protocol.received(4)
    number = sock.fileno()
    transport.close()
    await protocol.lost()
    await turns(2)
    assert loop.remove_reader(number) is False


@pytest.mark.not_on(
    "asyncio", when=sys.version_info < (3, 12), reason="it does not look"
)
async def test_two_transports_for_one_socket(loop, family, pair):
    mine, peer = pair
    connect = loop.create_connection if family == "tcp" else loop.create_unix_connection
    transport, protocol = await connect(Recorder, sock=mine)
    with pytest.raises(RuntimeError, match="is used by transport"):
        await connect(Recorder, sock=mine)
    peer.sendall(b"data")
    await protocol.received(4)
    transport.close()
    await protocol.lost()


async def test_sock_calls_on_a_transports_socket(loop, family, pair):
    mine, _ = pair
    connect = loop.create_connection if family == "tcp" else loop.create_unix_connection
    transport, protocol = await connect(Recorder, sock=mine)
    with pytest.raises(RuntimeError, match="is used by transport"):
        await loop.sock_recv(mine, 10)
    with pytest.raises(RuntimeError, match="is used by transport"):
        await loop.sock_recv_into(mine, bytearray(10))
    transport.close()
    await protocol.lost()


async def test_numbers_are_used_again(loop, link):
    """A hundred connections one after the other, on a few descriptors."""
    numbers = set()
    for _ in range(30):
        transport, protocol, peer = await link(Recorder)
        numbers.add(transport.get_extra_info("socket").fileno())
        peer.sendall(b"data")
        await protocol.received(4)
        transport.close()
        await protocol.lost()
        peer.close()
        await turns(2)
    assert len(numbers) < 15


# -- contexts -------------------------------------------------------------------
async def test_context_of_a_clients_protocol(loop):
    seen = []

    class Seeing(Recorder):
        def connection_made(self, transport):
            super().connection_made(transport)
            seen.append(VAR.get())

    one, other = unix_pair()
    VAR.set("of the caller")
    transport, protocol = await loop.create_unix_connection(Seeing, sock=one)
    VAR.set("changed")
    assert seen == ["of the caller"]
    transport.close()
    await protocol.lost()
    other.close()


async def test_context_of_data_received(loop):
    """That of connection_made(), whose changes are kept."""
    seen = []

    class Seeing(Recorder):
        def data_received(self, data):
            seen.append(VAR.get())
            super().data_received(data)

    one, other = unix_pair()
    VAR.set("of the caller")
    transport, protocol = await loop.create_unix_connection(Seeing, sock=one)
    VAR.set("changed")
    other.sendall(b"data")
    await protocol.received(4)
    transport.close()
    await protocol.lost()
    other.close()
    assert seen == ["of the caller"]


# -- the end of a transport -----------------------------------------------------
@contextlib.contextmanager
def no_cycle_collector():
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


async def used_and_lost(link, way, reports):
    """Weak references to a protocol and a transport, and strong ones to
    nothing else of the test's."""

    class Failing(Recorder):
        def data_received(self, data):
            raise ZeroDivisionError

    transport, protocol, peer = await link(Failing)
    transport.write(b"some")
    if way == "error":
        peer.sendall(b"x")
    elif way == "peer":
        peer.close()
    elif way == "eof":
        peer.shutdown(socket.SHUT_WR)
    else:
        getattr(transport, way)()
    await protocol.lost()
    await turns(3)
    reports.clear()
    link.protocols.clear()
    protocol.transport = protocol.reason = None
    return weakref.ref(protocol), weakref.ref(transport)


WAYS = pytest.mark.parametrize("way", ["close", "abort", "peer", "eof", "error"])


@WAYS
async def test_protocols_need_no_cycle_collector(loop, link, reports, way):
    with no_cycle_collector():
        protocol, _ = await used_and_lost(link, way, reports)
        await turns(3)
        assert protocol() is None


@pytest.mark.not_on("asyncio", reason="its transports hold their own methods")
@WAYS
async def test_transports_need_no_cycle_collector(loop, link, reports, way):
    with no_cycle_collector():
        _, transport = await used_and_lost(link, way, reports)
        await turns(3)
        assert transport() is None


async def test_a_lost_transport_lets_go_of_its_protocol(loop, link):
    transport, protocol, peer = await link(Recorder)
    peer.close()
    await protocol.lost()
    await turns(2)
    link.protocols.clear()
    protocol.transport = None
    ref = weakref.ref(protocol)
    del protocol
    gc.collect()
    assert ref() is None
    assert transport.is_closing()


@pytest.mark.parametrize("family", ["tcp", "unix"])
def test_unclosed_transports_warn(loop, family):
    one, other = tcp_pair() if family == "tcp" else unix_pair()
    one.setblocking(False)
    connect = loop.create_connection if family == "tcp" else loop.create_unix_connection
    transport, protocol = loop.run_until_complete(connect(Recorder, sock=one))
    number = one.fileno()
    del one
    protocol.transport = None
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        loop.close()
        del transport, protocol
        gc.collect()
    assert any(
        warning.category is ResourceWarning
        and str(warning.message).startswith("unclosed transport")
        for warning in caught
    )
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(number)
    assert other.recv(10) == b""
    other.close()


async def test_closed_transports_do_not_warn(loop, link):
    transport, protocol, _ = await link(Recorder)
    transport.close()
    await protocol.lost()
    await turns(2)
    link.protocols.clear()
    protocol.transport = None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        del transport, protocol
        gc.collect()


async def test_attributes_and_replaced_methods(loop, link):
    """Transports take attributes, and mocks in the place of methods."""
    transport, protocol, peer = await link(Recorder)
    transport.mine = protocol
    assert vars(transport)["mine"] is protocol
    with mock.patch.object(transport, "write", side_effect=ConnectionResetError):
        with pytest.raises(ConnectionResetError):
            transport.write(b"no")
    transport.write(b"yes")
    transport.close()
    assert await in_thread(read_all, peer) == b"yes"
    await protocol.lost()
    # A cycle through the attribute is collected.
    link.protocols.clear()
    gone = weakref.ref(transport)
    transport.itself = transport
    protocol.transport = None
    del transport, protocol
    await turns(2)
    gc.collect()
    assert gone() is None
