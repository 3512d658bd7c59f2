"""What goes wrong around a connection: callbacks that fail, peers that go."""

import asyncio
import contextlib
import errno
import gc
import logging
import os
import socket
import sys

import pytest
from support import (
    BACKLOG,
    Recorder,
    fd_count,
    fill_transport,
    in_thread,
    listener,
    read_all,
    read_or_reset,
    reset,
    turns,
    until,
)

TCP = pytest.mark.parametrize("link", ["tcp", "tcp-accepted"], indirect=True)
UNIX = pytest.mark.parametrize("link", ["unix", "unix-accepted"], indirect=True)


def failing(name, error=ZeroDivisionError):
    """A protocol one of whose methods raises, after it was noted."""

    def fail(self, *args):
        getattr(Recorder, name)(self, *args)
        raise error("on purpose")

    return type("Failing", (Recorder,), {name: fail})


# -- callbacks that fail --------------------------------------------------------
@pytest.mark.parametrize("name", ["data_received", "eof_received"])
async def test_fatal_errors(loop, link, name, reports):
    transport, protocol, peer = await link(failing(name))
    transport.write(b"x")
    peer.sendall(b"data")
    peer.shutdown(socket.SHUT_WR)
    await protocol.lost()
    (context,) = reports
    assert context["message"] == (f"Fatal error: protocol.{name}() call failed.")
    assert str(context["exception"]) == "on purpose"
    assert context["exception"] is protocol.reason
    assert context["transport"] is transport
    assert context["protocol"] is protocol
    assert protocol.calls.count("lost") == 1
    assert transport.is_closing()
    await in_thread(read_or_reset, peer)


async def test_pending_output_is_dropped_on_a_fatal_error(loop, link, reports):
    transport, protocol, peer = await link(failing("data_received"))
    transport.write(BACKLOG)
    peer.sendall(b"x")
    await protocol.lost()
    assert len(await in_thread(read_or_reset, peer)) < len(BACKLOG)
    assert len(reports) == 1


async def test_no_further_data_after_a_fatal_error(loop, link, reports):
    _, protocol, peer = await link(failing("data_received"))
    sent = 0
    with contextlib.suppress(OSError):
        for _ in range(20):
            sent += peer.send(b"x" * 1000)
            await turns(1)
    await protocol.lost()
    assert protocol.calls == ["made", "data", "lost"]


async def test_error_in_connection_made(loop, reports):
    """Is reported; the connection is not closed for it by asyncio."""
    made = []

    class Failing(Recorder):
        def connection_made(self, transport):
            super().connection_made(transport)
            made.append(self)
            raise ZeroDivisionError

    one, other = socket.socketpair()
    _, protocol = await loop.create_unix_connection(Failing, sock=one)
    assert made == [protocol]
    (context,) = reports
    assert isinstance(context["exception"], ZeroDivisionError)
    assert protocol.transport is not None
    other.close()
    protocol.transport.abort()
    await protocol.lost()


async def test_error_in_connection_lost(loop, link, reports):
    transport, protocol, peer = await link(failing("connection_lost"))
    number = transport.get_extra_info("socket").fileno()
    os.fstat(number)
    transport.close()
    await protocol.lost()
    await until(lambda: reports)
    (context,) = reports
    assert str(context["exception"]) == "on purpose"
    # the descriptor is closed all the same
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(number)
    assert await in_thread(peer.recv, 10) == b""


@pytest.mark.parametrize(
    "name", ["connection_made", "data_received", "connection_lost"]
)
@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt])
def test_exits_leave_run_forever(loop, name, error):
    one, other = socket.socketpair()
    protocol = failing(name, error)()
    task = loop.create_task(loop.create_unix_connection(lambda: protocol, sock=one))
    loop.call_later(10, loop.stop)
    with pytest.raises(error, match="on purpose"):
        if name != "connection_made":
            loop.run_until_complete(task)
            if name == "connection_lost":
                protocol.transport.close()
            other.send(b"x")
        loop.run_forever()
    # the loop is usable, also for this connection's clean-up
    loop.run_until_complete(turns(3))
    other.close()
    if "lost" not in protocol.calls:
        protocol.transport.abort()
        loop.run_until_complete(turns(3))
    assert protocol.calls.count("lost") == 1
    if not task.done():
        task.cancel()


async def test_missing_methods(loop, reports):
    """A protocol without eof_received(): AttributeError, and the end."""

    class Bare:
        lost = None

        def connection_made(self, transport):
            pass

        def connection_lost(self, exc):
            self.lost = exc

    one, other = socket.socketpair()
    _, protocol = await loop.create_unix_connection(Bare, sock=one)
    other.close()
    await until(lambda: protocol.lost)
    assert isinstance(protocol.lost, AttributeError)
    assert len(reports) == 1


# -- peers that go ----------------------------------------------------------------
@TCP
async def test_reset_by_the_peer(loop, link):
    transport, protocol, peer = await link(Recorder)
    peer.sendall(b"data")
    await protocol.received(4)
    reset(peer)
    await protocol.lost()
    assert isinstance(protocol.reason, ConnectionResetError)
    assert protocol.reason.errno == errno.ECONNRESET
    assert protocol.calls == ["made", "data", "lost"]
    # the program is told by connection_lost(), no one else
    transport.write(b"dropped")


@TCP
async def test_reset_while_output_is_pending(loop, link):
    transport, protocol, peer = await link(Recorder)
    transport.write(BACKLOG)
    await turns(2)
    reset(peer)
    await protocol.lost()
    assert isinstance(protocol.reason, ConnectionError)
    assert "eof" not in protocol.calls


@TCP
async def test_reset_while_paused_and_then_resumed(loop, link):
    transport, protocol, peer = await link(Recorder)
    transport.pause_reading()
    reset(peer)
    await turns(5)
    if "lost" not in protocol.calls:
        transport.resume_reading()
    await protocol.lost()
    assert isinstance(protocol.reason, ConnectionResetError)


async def test_peer_gone_while_we_write(loop, link):
    """Writes go on until the loss is known; none of them raises."""
    transport, protocol, peer = await link(Recorder)
    protocol.keep_open = True
    peer.close()
    await protocol.called("eof")
    for _ in range(1000):
        transport.write(b"x" * 1000)
        if "lost" in protocol.calls:
            break
        await asyncio.sleep(0.001)
    await protocol.lost()
    assert isinstance(protocol.reason, (BrokenPipeError, ConnectionResetError))
    for _ in range(3):
        transport.write(b"dropped")


async def test_peer_gone_before_a_large_write(loop, link):
    transport, protocol, peer = await link(Recorder)
    fill_transport(transport)
    transport.write(b"x" * 100_000)
    peer.close()
    await protocol.lost()
    assert protocol.reason is None or isinstance(protocol.reason, OSError)
    assert protocol.calls.count("lost") == 1


async def test_writes_after_the_loss_are_dropped_and_logged(loop, link, caplog):
    transport, protocol, _ = await link(Recorder)
    transport.abort()
    with caplog.at_level(logging.WARNING, "asyncio"):
        for _ in range(10):
            transport.write(b"dropped")
        await protocol.lost()
        for _ in range(10):
            transport.write(b"dropped")
    messages = [record.getMessage() for record in caplog.records]
    assert messages
    assert set(messages) == {"socket.send() raised exception."}
    assert protocol.calls == ["made", "lost"]


async def test_close_after_the_peers_reset(loop, link):
    """Both happen before the loop has its turn."""
    transport, protocol, peer = await link(Recorder)
    if link.family == "tcp":
        reset(peer)
    else:
        peer.close()
    transport.close()
    transport.write(b"dropped")
    await protocol.lost()
    assert protocol.calls == ["made", "lost"]
    assert protocol.reason is None


@TCP
async def test_urgent_data_do_no_harm(loop, link):
    _, protocol, peer = await link(Recorder)
    peer.sendall(b"ab")
    peer.send(b"!", socket.MSG_OOB)
    peer.sendall(b"cd")
    await protocol.received(4)
    peer.sendall(b"ef")
    peer.shutdown(socket.SHUT_WR)
    await protocol.lost()
    assert protocol.data.replace(b"!", b"") == b"abcdef"


@UNIX
async def test_descriptors_passed_along_do_no_harm(loop, link):
    """Data with ancillary data on a Unix socket come piece by piece."""
    _, protocol, peer = await link(Recorder)
    for number in range(5):
        socket.send_fds(peer, [b"with fd %d;" % number], [0])
        peer.sendall(b"without;")
    expected = b"".join(b"with fd %d;without;" % n for n in range(5))
    await protocol.received(len(expected))
    assert protocol.data == expected
    peer.shutdown(socket.SHUT_WR)
    await protocol.lost()


# -- connecting -----------------------------------------------------------------
async def test_connection_refused(loop):
    before = fd_count()
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        with pytest.raises(ConnectionRefusedError):
            await loop.create_connection(Recorder, *nobody.getsockname())
    gc.collect()
    assert fd_count() <= before


async def test_several_addresses(loop):
    """The first refuses, the second answers."""
    with socket.socket() as nobody, listener() as lsock:
        port = lsock.getsockname()[1]
        nobody.bind(("127.0.0.2", port))
        found = ["127.0.0.2", "127.0.0.1"]

        async def getaddrinfo(*args, **options):
            return [
                (socket.AF_INET, socket.SOCK_STREAM, 6, "", (host, port))
                for host in found
            ]

        loop.getaddrinfo = getaddrinfo
        for delay in (None, 0.01):
            transport, protocol = await loop.create_connection(
                Recorder, "a.name", port, happy_eyeballs_delay=delay
            )
            peername = transport.get_extra_info("peername")
            assert peername == ("127.0.0.1", port)
            transport.abort()
            await protocol.lost()
        found[1] = "127.0.0.3"
        with pytest.raises(OSError, match="Multiple exceptions"):
            await loop.create_connection(Recorder, "a.name", port)
        if sys.version_info >= (3, 12):
            with pytest.raises(ExceptionGroup) as info:
                await loop.create_connection(Recorder, "a.name", port, all_errors=True)
            assert len(info.value.exceptions) == 2


async def test_local_address(loop):
    with listener() as lsock:
        transport, protocol = await loop.create_connection(
            Recorder, *lsock.getsockname(), local_addr=("127.0.0.3", 0)
        )
        assert transport.get_extra_info("sockname")[0] == "127.0.0.3"
        transport.close()
        await protocol.lost()
        with pytest.raises(OSError, match="error while attempting to bind"):
            await loop.create_connection(
                Recorder, *lsock.getsockname(), local_addr=("203.0.113.1", 0)
            )


async def test_wrong_arguments_of_create_connection(loop):
    with pytest.raises(ValueError, match="host and port was not specified"):
        await loop.create_connection(Recorder)
    with (
        socket.socket() as sock,
        socket.socket(type=socket.SOCK_DGRAM) as udp,
    ):
        with pytest.raises(ValueError, match="can not be specified at the"):
            await loop.create_connection(Recorder, "localhost", 1, sock=sock)
        with pytest.raises(ValueError, match="Stream Socket was expected"):
            await loop.create_connection(Recorder, sock=udp)
        with pytest.raises(ValueError, match="Stream Socket was expected"):
            await loop.connect_accepted_socket(Recorder, udp)
        with pytest.raises(ValueError, match="only meaningful with ssl"):
            await loop.create_connection(Recorder, sock=sock, server_hostname="x")
        with pytest.raises(ValueError, match="UNIX Domain Stream Socket"):
            await loop.create_unix_connection(Recorder, sock=sock)
    with pytest.raises(ValueError, match="no path and sock"):
        await loop.create_unix_connection(Recorder)
    with pytest.raises(TypeError):
        await loop.create_connection()


@pytest.mark.not_on("asyncio", reason="it leaves the socket open")
async def test_error_in_the_protocol_factory(loop):
    before = fd_count()

    def fail():
        raise ZeroDivisionError

    with listener() as lsock:
        with pytest.raises(ZeroDivisionError):
            await loop.create_connection(fail, *lsock.getsockname())
        gc.collect()
        assert fd_count() <= before + 1


async def test_cancelled_connect_leaks_nothing(loop):
    before = fd_count()
    with listener() as lsock:
        for count in range(8):
            made = []

            def factory(made=made):
                made.append(Recorder())
                return made[0]

            task = asyncio.ensure_future(
                loop.create_connection(factory, *lsock.getsockname())
            )
            await turns(count)
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                transport, _ = await task
                transport.close()
            await turns(4)
            for protocol in made:
                assert protocol.calls in ([], ["made", "lost"])
    await until(lambda: fd_count() <= before)


async def test_connect_accepted_socket(loop):
    with listener() as lsock:
        peer = socket.create_connection(lsock.getsockname())
        conn, _ = lsock.accept()
    transport, protocol = await loop.connect_accepted_socket(Recorder, conn)
    assert transport.get_extra_info("peername") == peer.getsockname()
    peer.sendall(b"data")
    await protocol.received(4)
    transport.write(b"answer")
    transport.close()
    assert await in_thread(read_all, peer) == b"answer"
    await protocol.lost()
    # the socket object that was given has been closed
    assert conn.fileno() == -1
    peer.close()
