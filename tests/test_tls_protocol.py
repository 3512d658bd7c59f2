"""What TLS does beyond asyncio's protocol for it, whose faults are named here."""

import asyncio
import contextvars
import gc
import socket
import ssl
import sys
import weakref

import pytest
from support import (
    Recorder,
    dial,
    in_thread,
    need,
    pattern,
    read_all,
    until,
    within,
)
from tls_support import Peer, Served, connected, dialling, serving

need("trustme")

BIG = pattern(64 << 10)


class Manual:
    """A peer whose TLS is done by hand: it says what goes out together."""

    def __init__(self, context, sock, **options):
        self.sock = sock
        self.incoming, self.outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = context.wrap_bio(self.incoming, self.outgoing, **options)

    def step(self, call, *args, send=True):
        """Its result; what it has to say is sent, or left in `outgoing`."""
        while True:
            try:
                result = call(*args)
            except ssl.SSLWantReadError:
                self.send()
                data = self.sock.recv(65536)
                if not data:
                    raise EOFError from None
                self.incoming.write(data)
                continue
            if send:
                self.send()
            return result

    def send(self, before=b""):
        data = before + self.outgoing.read()
        if data:
            self.sock.sendall(data)


@pytest.mark.not_on("asyncio", reason="closes before the alert is sent")
@pytest.mark.parametrize("side", ["server", "client"])
async def test_alerts_tell_the_peer_why(loop, contexts, authority, reports, side):
    if side == "server":
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        authority.issue_cert("localhost").configure_cert(context)
        context.sni_callback = lambda *_: ssl.ALERT_DESCRIPTION_UNRECOGNIZED_NAME
        async with serving(loop, context, Served()) as port:
            peer = Peer(
                contexts[1], dial(("127.0.0.1", port)), server_hostname="localhost"
            )
            with pytest.raises(ssl.SSLError, match="(?i)unrecognized.name"):
                async with peer:
                    raise AssertionError("nothing was refused")
            peer.sock.close()
        return
    untrusting = ssl.create_default_context()
    task, conn = await dialling(loop, untrusting)
    with contexts[0].wrap_socket(
        conn, server_side=True, do_handshake_on_connect=False
    ) as peer:

        def talk():
            peer.do_handshake()
            peer.recv(1)

        with pytest.raises(ssl.SSLError, match="(?i)alert"):
            await in_thread(talk)
    with pytest.raises(ssl.SSLCertVerificationError):
        await within(task)


@pytest.mark.not_on("asyncio", reason="loses it before gh-142352")
@pytest.mark.parametrize("lines", [1, 2])
async def test_start_tls_takes_what_the_reader_holds(loop, contexts, lines):
    """A client that sends its hello right behind the line that announces it."""
    seen = []

    async def handle(reader, writer):
        for _ in range(lines):
            seen.append(await reader.readline())
        await asyncio.sleep(0.02)  # the hello is in the reader by now
        await writer.start_tls(contexts[0])
        seen.append(await reader.readline())
        writer.write(b"answer\n")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)

    def talk():
        with dial(server.sockets[0].getsockname()) as sock:
            peer = Manual(contexts[1], sock, server_hostname="localhost")
            with pytest.raises(ssl.SSLWantReadError):
                peer.tls.do_handshake()
            peer.send(before=b"PROXY\n" * lines)
            peer.step(peer.tls.do_handshake)
            peer.step(peer.tls.write, b"request\n")
            return peer.step(peer.tls.read, 100)

    assert await within(in_thread(talk)) == b"answer\n"
    assert seen == [b"PROXY\n"] * lines + [b"request\n"]
    server.close()


def say_hello(context, sock):
    """The end of a client's handshake and data behind it, in one piece."""
    peer = Manual(context, sock, server_hostname="localhost")
    peer.step(peer.tls.do_handshake, send=False)
    peer.tls.write(b"hello")
    peer.send()
    return peer


@pytest.mark.not_on("asyncio", reason="delivers it before start_tls() returns")
async def test_data_behind_the_handshake_comes_after_start_tls(loop, contexts):
    """Else a protocol answers in the clear: it has the old transport still."""

    class Answering(Recorder):
        def data_received(self, data):
            super().data_received(data)
            self.transport.write(data)

    one, other = socket.socketpair()
    other.settimeout(10)
    plain, protocol = await loop.create_unix_connection(Answering, sock=one)

    def talk():
        peer = say_hello(contexts[1], other)
        return peer.step(peer.tls.read, 10)

    task = asyncio.ensure_future(in_thread(talk))
    protocol.transport = await loop.start_tls(
        plain, protocol, contexts[0], server_side=True
    )
    assert protocol.data == b""
    assert await within(task) == b"hello"
    protocol.transport.abort()
    await protocol.lost()
    other.close()


@pytest.mark.not_on("asyncio", reason="delivers it before start_tls() returns")
async def test_the_end_behind_the_handshake_comes_after_start_tls(loop, contexts):
    one, other = socket.socketpair()
    other.settimeout(10)
    plain, protocol = await loop.create_unix_connection(Recorder, sock=one)

    def talk():
        say_hello(contexts[1], other)
        other.shutdown(socket.SHUT_WR)

    task = asyncio.ensure_future(in_thread(talk))
    await loop.start_tls(plain, protocol, contexts[0], server_side=True)
    assert protocol.calls == ["made"]
    await within(task)
    await protocol.lost()
    assert protocol.data == b"hello"
    assert protocol.calls == ["made", "data", "eof", "lost"]
    other.close()


@pytest.mark.not_on("asyncio", reason="delivers it, or takes it for an error")
@pytest.mark.parametrize("paused", [False, True])
async def test_what_comes_after_close_is_dropped(loop, contexts, paused):
    transport, protocol, peer = await connected(loop, contexts)
    with peer:
        transport.pause_reading()
        await in_thread(peer.sendall, BIG)
        await asyncio.sleep(0.05)  # it is in the protocol by now
        if not paused:
            transport.resume_reading()
        transport.close()
        assert protocol.data == b""
        await in_thread(peer.sendall, b"more")
        assert await in_thread(read_all, peer) == b""
        await in_thread(peer.unwrap)
    await protocol.lost()
    assert protocol.reason is None
    assert protocol.data == b""


@pytest.mark.not_on("asyncio", reason="waits for resume_reading() for ever")
async def test_close_while_the_peers_end_is_held_back(loop, contexts):
    transport, protocol, peer = await connected(loop, contexts)
    with peer:
        transport.pause_reading()
        await in_thread(peer.sendall, b"held back")
        await in_thread(peer.shutdown, socket.SHUT_WR)
        await asyncio.sleep(0.05)
        assert "lost" not in protocol.calls
        transport.close()
        await protocol.lost()
    assert protocol.data == b""


async def test_the_peers_end_waits_for_its_data(loop, contexts):
    transport, protocol, peer = await connected(loop, contexts)
    with peer:
        transport.pause_reading()
        await in_thread(peer.sendall, b"held back")
        await in_thread(peer.shutdown, socket.SHUT_WR)
        await asyncio.sleep(0.05)
        assert protocol.data == b"" and "eof" not in protocol.calls
        transport.resume_reading()
        await protocol.lost()
    assert protocol.data == b"held back"


@pytest.mark.not_on("asyncio", reason="takes the context of resume_reading()")
async def test_resumed_data_has_the_context_of_the_connection(loop, contexts):
    variable = contextvars.ContextVar("variable", default="nowhere")
    seen = []

    class Looking(Recorder):
        def data_received(self, data):
            seen.append(variable.get())
            super().data_received(data)

    variable.set("connection")
    transport, protocol, peer = await connected(loop, contexts, Looking)
    with peer:
        transport.pause_reading()
        await in_thread(peer.sendall, b"data")
        await asyncio.sleep(0.05)
        variable.set("elsewhere")
        transport.resume_reading()
        await protocol.received(4)
        transport.abort()
        await protocol.lost()
    assert seen == ["connection"]


@pytest.mark.not_on("asyncio", reason="wants a BufferedProtocol")
async def test_any_protocol_with_a_buffer(loop, contexts):
    class Filling(asyncio.BaseProtocol):
        def __init__(self):
            self.buffer, self.data = bytearray(3), bytearray()
            self.is_lost = False

        def get_buffer(self, sizehint):
            return self.buffer

        def buffer_updated(self, count):
            self.data += self.buffer[:count]

        def eof_received(self):
            pass

        def connection_lost(self, exc):
            self.is_lost = True

    transport, protocol, peer = await connected(loop, contexts, Filling)
    with peer:
        await in_thread(peer.sendall, b"through a buffer")
        await until(lambda: protocol.data == b"through a buffer")
        transport.abort()
        await until(lambda: protocol.is_lost)


@pytest.mark.not_on(
    "asyncio",
    reason="left cycles behind before Python 3.13",
    when=sys.version_info < (3, 13),
)
@pytest.mark.not_on("debug", reason="a failed handshake is reported, and kept")
async def test_failed_handshakes_leave_no_cycles(loop, contexts):
    protocols = []

    def factory():
        protocol = Recorder()
        protocols.append(weakref.ref(protocol))
        return protocol

    server = await loop.create_server(factory, "127.0.0.1", 0, ssl=contexts[0])
    gc.collect()
    gc.disable()
    try:
        for _ in range(3):
            with dial(server.sockets[0].getsockname()) as sock:
                sock.sendall(b"this is not TLS")
                await in_thread(read_all, sock)
        await until(lambda: len(protocols) == 3)
        await until(lambda: not any(protocol() for protocol in protocols))
    finally:
        gc.enable()
    server.close()
