"""TLS over the transports: clients, servers, start_tls, and what goes wrong."""

import asyncio
import contextlib
import gc
import socket
import ssl
import warnings

import pytest
from support import (
    Recorder,
    dial,
    fd_count,
    in_thread,
    listener,
    need,
    pattern,
    read_all,
    read_exactly,
    reset,
    socket_path,
    turns,
    until,
    within,
)
from tls_support import Peer, Served, connected, serving

need("trustme")

BIG = pattern(2 << 20)


# -- data -------------------------------------------------------------------
async def test_client(loop, contexts):
    transport, protocol, peer = await connected(loop, contexts)
    with peer:
        assert protocol.calls == ["made"]
        assert protocol.transport is transport
        transport.write(b"hello ")
        transport.writelines([b"wor", bytearray(b"ld")])
        assert await in_thread(read_exactly, peer, 11) == b"hello world"
        await in_thread(peer.sendall, b"answer")
        await protocol.received(6)
        transport.close()
        assert await in_thread(read_all, peer) == b""
    await protocol.lost()
    assert protocol.reason is None


async def test_server(loop, contexts):
    served = Served()
    async with serving(loop, contexts[0], served) as port:
        for number in range(5):
            async with Peer(
                contexts[1],
                dial(("127.0.0.1", port)),
                server_hostname="localhost",
            ) as peer:
                await in_thread(peer.sendall, b"%d" % number)
                assert await in_thread(peer.recv, 10) == b"%d" % number
        assert len(served.all) == 5
        for protocol in served.all:
            await protocol.lost()


async def test_loop_to_loop(loop, contexts):
    served = Served()
    async with serving(loop, contexts[0], served) as port:
        transport, protocol = await loop.create_connection(
            Recorder,
            "localhost",
            port,
            ssl=contexts[1],
            family=socket.AF_INET,
        )
        transport.write(BIG)
        await protocol.received(len(BIG))
        assert protocol.data == BIG
        transport.close()
        await protocol.lost()
        await served.all[0].lost()
        assert served.all[0].data == BIG
        assert served.all[0].calls.count("eof") <= 1


async def test_unix_sockets(loop, contexts):
    served = Served()
    with socket_path() as path:
        server = await loop.create_unix_server(served, path, ssl=contexts[0])
        transport, protocol = await loop.create_unix_connection(
            Recorder, path, ssl=contexts[1], server_hostname="localhost"
        )
        transport.write(b"data")
        await protocol.received(4)
        transport.close()
        await protocol.lost()
        await served.all[0].lost()
        server.close()


async def test_large_transfers(loop, contexts):
    transport, protocol, peer = await connected(loop, contexts)
    with peer:
        transport.write(BIG)
        got = await in_thread(read_exactly, peer, len(BIG))
        assert got == BIG
        sending = asyncio.create_task(in_thread(peer.sendall, BIG))
        await protocol.received(len(BIG))
        await sending
        assert protocol.data == BIG
        transport.close()
        await in_thread(read_all, peer)
    await protocol.lost()


async def test_close_sends_what_is_pending(loop, contexts):
    transport, protocol, peer = await connected(loop, contexts)
    with peer:
        transport.write(BIG)
        transport.close()
        assert transport.is_closing()
        assert await in_thread(read_all, peer) == BIG
        await in_thread(peer.unwrap)
    await protocol.lost()


async def test_abort(loop, contexts):
    transport, protocol, peer = await connected(loop, contexts)
    with peer:
        transport.write(BIG)
        transport.abort()
        await protocol.lost()
        with pytest.raises((ssl.SSLError, OSError)):
            data = await in_thread(read_all, peer)
            raise OSError(f"a clean end after {len(data)} bytes")


async def test_the_peer_closes(loop, contexts):
    transport, protocol, peer = await connected(loop, contexts)
    with peer:
        await in_thread(peer.sendall, b"last words")
        unwrapping = asyncio.create_task(in_thread(peer.unwrap))
        await protocol.lost()
        with contextlib.suppress(OSError):
            await unwrapping
    assert protocol.data == b"last words"
    assert protocol.calls[-2:] == ["eof", "lost"]
    assert protocol.reason is None


async def test_pause_reading(loop, contexts):
    transport, protocol, peer = await connected(loop, contexts)
    with peer:
        transport.pause_reading()
        await in_thread(peer.sendall, b"held back")
        await asyncio.sleep(0.01)
        assert protocol.calls == ["made"]
        transport.resume_reading()
        await protocol.received(9)
        transport.abort()
    await protocol.lost()


async def test_flow_control(loop, contexts):
    transport, protocol, peer = await connected(loop, contexts)
    with peer:
        low, high = transport.get_write_buffer_limits()
        assert 0 < low < high
        transport.set_write_buffer_limits(high=100_000)
        written = 0
        while "pause" not in protocol.calls:
            assert written < 64 << 20
            transport.write(bytes(200_000))
            written += 200_000
        assert transport.get_write_buffer_size() > 0
        await in_thread(read_exactly, peer, written)
        await protocol.called("resume")
        transport.abort()
    await protocol.lost()


async def test_extra_info(loop, contexts):
    transport, protocol, peer = await connected(loop, contexts)
    with peer:
        info = transport.get_extra_info
        assert info("sslcontext") is contexts[1]
        assert isinstance(info("ssl_object"), ssl.SSLObject)
        subject = dict(entry for (entry,) in info("peercert")["subject"])
        assert subject
        assert info("cipher")[0] == info("ssl_object").cipher()[0]
        assert info("compression") is None
        assert info("peername") == peer.getsockname()
        assert info("socket").fileno() > 2
        assert isinstance(transport, asyncio.Transport)
        with pytest.raises(NotImplementedError):
            transport.write_eof()
        assert transport.can_write_eof() is False
        transport.abort()
    await protocol.lost()


async def test_alpn_and_server_name(loop, authority):
    names = []
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("a.example", "b.example").configure_cert(server)
    server.set_alpn_protocols(["h2", "http/1.1"])
    server.sni_callback = lambda obj, name, context: names.append(name)
    client = ssl.create_default_context()
    authority.configure_trust(client)
    client.set_alpn_protocols(["http/1.1"])
    served = Served()
    async with serving(loop, server, served) as port:
        for name in ("a.example", "b.example"):
            transport, protocol = await loop.create_connection(
                Recorder, "127.0.0.1", port, ssl=client, server_hostname=name
            )
            obj = transport.get_extra_info("ssl_object")
            assert obj.selected_alpn_protocol() == "http/1.1"
            transport.abort()
            await protocol.lost()
    assert names == ["a.example", "b.example"]


# -- start_tls ----------------------------------------------------------------
async def test_start_tls_as_a_client(loop, contexts):
    one, other = socket.socketpair()
    other.settimeout(10)
    plain, protocol = await loop.create_unix_connection(Recorder, sock=one)
    plain.write(b"STARTTLS\n")
    assert await in_thread(read_exactly, other, 9) == b"STARTTLS\n"
    task = asyncio.ensure_future(
        loop.start_tls(plain, protocol, contexts[1], server_hostname="localhost")
    )
    async with Peer(contexts[0], other, server_side=True) as peer:
        transport = await within(task)
        assert protocol.calls == ["made"]
        assert plain.get_protocol() is not protocol
        transport.write(b"secret")
        assert await in_thread(read_exactly, peer, 6) == b"secret"
        await in_thread(peer.sendall, b"answer")
        await protocol.received(6)
        transport.close()
        assert await in_thread(read_all, peer) == b""
    await protocol.lost()


async def test_start_tls_as_a_server(loop, contexts):
    one, other = socket.socketpair()
    other.settimeout(10)
    plain, protocol = await loop.create_unix_connection(Recorder, sock=one)
    task = asyncio.ensure_future(
        loop.start_tls(plain, protocol, contexts[0], server_side=True)
    )
    async with Peer(contexts[1], other, server_hostname="localhost") as peer:
        transport = await within(task)
        transport.write(b"welcome")
        assert await in_thread(read_exactly, peer, 7) == b"welcome"
        transport.abort()
    await protocol.lost()


async def test_start_tls_in_data_received(loop, contexts):
    """What comes next, at once, is TLS already."""
    tasks = []

    class Upgrading(Recorder):
        def data_received(self, data):
            super().data_received(data)
            if data == b"STARTTLS":
                # nothing is read until start_tls() has begun
                self.transport.pause_reading()
                self.transport.write(b"go")
                tasks.append(loop.create_task(self.upgrade()))

        async def upgrade(self):
            self.transport = await loop.start_tls(
                self.transport, self, contexts[0], server_side=True
            )
            self.transport.write(b"upgraded")

    one, other = socket.socketpair()
    other.settimeout(10)
    _, protocol = await loop.create_unix_connection(Upgrading, sock=one)
    other.sendall(b"STARTTLS")
    assert await in_thread(read_exactly, other, 2) == b"go"
    async with Peer(contexts[1], other, server_hostname="localhost") as peer:
        assert await in_thread(read_exactly, peer, 8) == b"upgraded"
        await within(tasks[0])
        await in_thread(peer.sendall, b"more")
        await protocol.received(12)
        protocol.transport.abort()
    await protocol.lost()


async def test_tls_in_tls(loop, contexts):
    served = Served()
    with socket_path() as path:
        server = await loop.create_unix_server(served, path, ssl=contexts[0])
        outer, protocol = await loop.create_unix_connection(
            Recorder, path, ssl=contexts[1], server_hostname="localhost"
        )
        await until(lambda: served.all and served.all[0].transport)
        inner = served.all[0]
        upgrading = asyncio.ensure_future(
            loop.start_tls(inner.transport, inner, contexts[0], server_side=True)
        )
        transport = await within(
            loop.start_tls(outer, protocol, contexts[1], server_hostname="localhost")
        )
        inner.transport = await within(upgrading)
        transport.write(b"wrapped twice")
        await protocol.received(13)
        transport.close()
        await protocol.lost()
        await inner.lost()
        server.close()


async def test_start_tls_refuses(loop, contexts):
    one, other = socket.socketpair()
    plain, protocol = await loop.create_unix_connection(Recorder, sock=one)
    with pytest.raises(TypeError, match="an instance of ssl.SSLContext"):
        await loop.start_tls(plain, protocol, None)
    plain.abort()
    await protocol.lost()
    other.close()


# -- what goes wrong ------------------------------------------------------------
async def test_untrusted_certificate(loop, server_context):
    loop.set_debug(False)  # where the server reports it
    before = fd_count()
    served = Served()
    async with serving(loop, server_context, served) as port:
        with pytest.raises(ssl.SSLCertVerificationError):
            await loop.create_connection(
                Recorder,
                "localhost",
                port,
                ssl=ssl.create_default_context(),
                family=socket.AF_INET,
            )
        await asyncio.sleep(0.01)
        assert all(not protocol.calls for protocol in served.all)
    gc.collect()
    await until(lambda: fd_count() <= before)


async def test_wrong_name(loop, contexts):
    loop.set_debug(False)  # where the server reports it
    served = Served()
    async with serving(loop, contexts[0], served) as port:
        with pytest.raises(ssl.SSLCertVerificationError, match="mismatch"):
            await loop.create_connection(
                Recorder,
                "127.0.0.1",
                port,
                ssl=contexts[1],
                server_hostname="elsewhere.example",
            )


async def test_a_peer_that_speaks_no_tls(loop, contexts):
    with listener() as lsock:
        task = asyncio.ensure_future(
            loop.create_connection(
                Recorder,
                *lsock.getsockname(),
                ssl=contexts[1],
                server_hostname="localhost",
            )
        )
        peer, _ = await in_thread(lsock.accept)
        with peer:
            peer.sendall(b"220 smtp.example ESMTP\r\n")
            with pytest.raises(ssl.SSLError):
                await within(task)


@pytest.mark.parametrize("way", ["close", "reset"])
async def test_a_peer_that_leaves_in_the_handshake(loop, contexts, way):
    with listener() as lsock:
        task = asyncio.ensure_future(
            loop.create_connection(
                Recorder,
                *lsock.getsockname(),
                ssl=contexts[1],
                server_hostname="localhost",
            )
        )
        peer, _ = await in_thread(lsock.accept)
        if way == "reset":
            reset(peer)
        else:
            await in_thread(peer.recv, 10_000)
            peer.close()
        with pytest.raises((ConnectionError, ssl.SSLError)):
            await within(task)


async def test_clients_that_speak_no_tls_or_leave(loop, contexts):
    """They are dropped; the server goes on, and no protocol is called."""
    served = Served()
    loop.set_debug(False)  # where each is reported
    async with serving(loop, contexts[0], served) as port:
        for data in (b"GET / HTTP/1.1\r\n\r\n", b"", b"\x16\x03\x01"):
            with dial(("127.0.0.1", port)) as peer:
                peer.sendall(data)
                peer.shutdown(socket.SHUT_WR)
                with contextlib.suppress(ConnectionResetError):
                    await in_thread(read_all, peer)
        assert all(not protocol.calls for protocol in served.all)
        async with Peer(
            contexts[1], dial(("127.0.0.1", port)), server_hostname="localhost"
        ) as peer:
            await in_thread(peer.sendall, b"fine")
            assert await in_thread(peer.recv, 10) == b"fine"


async def test_handshake_timeouts(loop, contexts):
    with listener() as lsock:
        with pytest.raises(ConnectionAbortedError, match="longer than 0.05"):
            await loop.create_connection(
                Recorder,
                *lsock.getsockname(),
                ssl=contexts[1],
                server_hostname="localhost",
                ssl_handshake_timeout=0.05,
            )
    served = Served()
    loop.set_debug(False)  # where it is reported
    async with serving(loop, contexts[0], served, ssl_handshake_timeout=0.05) as port:
        with dial(("127.0.0.1", port)) as peer:
            assert await in_thread(read_all, peer) == b""


async def test_a_cancelled_handshake(loop, contexts):
    before = fd_count()
    with listener() as lsock:
        task = asyncio.ensure_future(
            loop.create_connection(
                Recorder,
                *lsock.getsockname(),
                ssl=contexts[1],
                server_hostname="localhost",
            )
        )
        peer, _ = await in_thread(lsock.accept)
        await turns(3)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        with contextlib.suppress(ConnectionResetError):
            await in_thread(read_all, peer)
        peer.close()
    del task
    gc.collect()
    await until(lambda: fd_count() <= before)


async def test_shutdown_timeout(loop, contexts):
    """A peer that never answers close_notify is left behind."""
    transport, protocol, peer = await connected(
        loop, contexts, ssl_shutdown_timeout=0.05
    )
    transport.close()
    await protocol.lost()
    assert protocol.reason is None or isinstance(
        protocol.reason, (TimeoutError, OSError)
    )
    peer.close()


async def test_the_peer_resets(loop, contexts):
    _, protocol, peer = await connected(loop, contexts)
    await in_thread(peer.sendall, b"data")
    await protocol.received(4)
    reset(peer)
    await protocol.lost()
    assert isinstance(protocol.reason, ConnectionResetError)


async def test_errors_in_callbacks_are_fatal(loop, contexts, reports):
    class Failing(Recorder):
        def data_received(self, data):
            raise ZeroDivisionError

    _, protocol, peer = await connected(loop, contexts, Failing)
    await in_thread(peer.sendall, b"data")
    await protocol.lost()
    assert isinstance(protocol.reason, ZeroDivisionError)
    assert len(reports) == 1
    peer.close()


async def test_wrong_arguments(loop, contexts):
    with pytest.raises(ValueError, match="must set server_hostname"):
        await loop.create_connection(Recorder, "", 1, ssl=contexts[1])
    with pytest.raises(ValueError, match="pass server_hostname"):
        await loop.create_unix_connection(Recorder, "x", ssl=contexts[1])
    for name in ("ssl_handshake_timeout", "ssl_shutdown_timeout"):
        with pytest.raises(ValueError, match="only meaningful with ssl"):
            await loop.create_connection(Recorder, "127.0.0.1", 1, **{name: 1})


async def test_transports_do_not_warn_when_closed(loop, contexts):
    transport, protocol, peer = await connected(loop, contexts)
    with peer:
        transport.close()
        assert await in_thread(read_all, peer) == b""
    await protocol.lost()
    await turns(3)
    protocol.transport = None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        del transport, protocol
        gc.collect()
