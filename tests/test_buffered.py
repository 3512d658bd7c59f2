"""BufferedProtocol, and switching from one protocol to another."""

import asyncio
import socket

import pytest
from support import (
    BACKLOG,
    BufferedRecorder,
    Echo,
    Recorder,
    in_thread,
    pattern,
    read_all,
    read_exactly,
    turns,
    until,
)


@pytest.mark.parametrize("size", [1, 7, 4096, 1 << 20])
async def test_data_arrive_in_the_protocols_buffer(loop, link, size):
    data = pattern(400 if size < 100 else 1 << 20)
    _, protocol, peer = await link(lambda: BufferedRecorder(size))
    sending = asyncio.create_task(in_thread(peer.sendall, data))
    await protocol.received(len(data))
    await sending
    assert protocol.data == data
    # asked for before each receive, with a hint that may be unknown
    assert len(protocol.hints) >= protocol.calls.count("data")
    assert all(type(hint) is int for hint in protocol.hints)
    peer.shutdown(socket.SHUT_WR)
    await protocol.lost()
    assert protocol.calls[-2:] == ["eof", "lost"]
    assert protocol.reason is None


async def test_echo(loop, link):
    class BufferedEcho(BufferedRecorder):
        def buffer_updated(self, nbytes):
            self.transport.write(self.buffer[:nbytes])
            super().buffer_updated(nbytes)

    _, _, peer = await link(BufferedEcho)
    data = pattern(1 << 20)
    sending = asyncio.create_task(in_thread(peer.sendall, data))
    assert await in_thread(read_exactly, peer, len(data)) == data
    await sending


async def test_echo_of_the_buffer_itself(loop, link):
    """Written as a view of the buffer, which the next receive overwrites."""

    class ViewEcho(BufferedRecorder):
        def buffer_updated(self, nbytes):
            self.transport.write(memoryview(self.buffer)[:nbytes])
            super().buffer_updated(nbytes)

    _, _, peer = await link(ViewEcho)
    for number in range(100):
        peer.sendall(b"%07d" % number)
        assert await in_thread(read_exactly, peer, 7) == b"%07d" % number


@pytest.mark.parametrize("kind", ["view", "slice", "array"])
async def test_kinds_of_buffers(loop, link, kind):
    class Other(BufferedRecorder):
        def get_buffer(self, sizehint):
            view = memoryview(self.buffer)
            if kind == "slice":
                return view[:5]
            return self.buffer if kind == "array" else view

    _, protocol, peer = await link(Other)
    peer.sendall(b"0123456789")
    await protocol.received(10)
    assert protocol.data == b"0123456789"


async def test_a_new_buffer_for_each_call(loop, link):
    """Resized in between: no export may be held."""

    class Fresh(BufferedRecorder):
        def buffer_updated(self, nbytes):
            super().buffer_updated(nbytes)
            self.buffer.extend(b"x")
            self.buffer.clear()
            self.buffer.extend(bytes(100))

    _, protocol, peer = await link(Fresh)
    for number in range(50):
        peer.sendall(b"%05d" % number)
        await protocol.received(5 * number + 5)
    assert protocol.data == b"".join(b"%05d" % number for number in range(50))


async def test_protocols_that_share_a_buffer(loop, link):
    shared = bytearray(4096)
    seen = []

    class Sharing(BufferedRecorder):
        def get_buffer(self, sizehint):
            return shared

        def buffer_updated(self, nbytes):
            self.data += shared[:nbytes]
            self.note("data")
            seen.append(bytes(shared[:nbytes]))

    links = [await link(Sharing) for _ in range(8)]
    for number, (_, _, peer) in enumerate(links):
        peer.sendall(b"%d" % number * 100)
    for number, (_, protocol, _) in enumerate(links):
        await protocol.received(100)
        assert protocol.data == b"%d" % number * 100
    assert sorted(seen) == sorted(b"%d" % n * 100 for n in range(8))


async def test_pause_in_buffer_updated(loop, link):
    class Once(BufferedRecorder):
        def buffer_updated(self, nbytes):
            self.transport.pause_reading()
            super().buffer_updated(nbytes)

    transport, protocol, peer = await link(lambda: Once(10))
    peer.sendall(b"0123456789abcde")
    peer.shutdown(socket.SHUT_WR)
    await protocol.received(10)
    await turns(4)
    assert protocol.calls == ["made", "data"]
    transport.resume_reading()
    await protocol.received(15)
    await turns(4)
    assert protocol.calls == ["made", "data", "data"]
    transport.resume_reading()
    await protocol.lost()
    assert protocol.data == b"0123456789abcde"


async def test_pause_in_get_buffer(loop, link):
    """Too late for this receive, in time for the next one."""

    class Pausing(BufferedRecorder):
        def get_buffer(self, sizehint):
            self.transport.pause_reading()
            return super().get_buffer(sizehint)

    transport, protocol, peer = await link(lambda: Pausing(4))
    peer.sendall(b"01234567")
    await turns(6)
    assert protocol.data in (b"", b"0123")
    got = len(protocol.data)
    transport.resume_reading()
    await protocol.received(got + 4)
    await turns(4)
    assert len(protocol.data) == got + 4
    transport.resume_reading()
    await protocol.received(8)
    assert protocol.data == b"01234567"


@pytest.mark.parametrize("name", ["get_buffer", "buffer_updated"])
@pytest.mark.parametrize("way", ["close", "abort"])
async def test_end_in_the_callbacks(loop, link, name, way):
    class Ending(BufferedRecorder):
        def get_buffer(self, sizehint):
            if name == "get_buffer":
                getattr(self.transport, way)()
            return super().get_buffer(sizehint)

        def buffer_updated(self, nbytes):
            if name == "buffer_updated":
                getattr(self.transport, way)()
            super().buffer_updated(nbytes)

    _, protocol, peer = await link(Ending)
    peer.sendall(b"x")
    await protocol.lost()
    assert protocol.calls[0] == "made"
    assert protocol.calls.count("lost") == 1
    assert protocol.calls.count("data") <= 1


# -- errors -----------------------------------------------------------------
async def fatal(link, factory, reports, message):
    """The peer sends; the connection is lost with what was reported."""
    transport, protocol, peer = await link(factory)
    peer.sendall(b"data")
    await protocol.lost()
    (context,) = reports
    assert context["message"] == message
    assert context["exception"] is protocol.reason
    assert context["transport"] is transport
    assert context["protocol"] is protocol
    return protocol


async def test_error_in_get_buffer(loop, link, reports):
    class Failing(BufferedRecorder):
        def get_buffer(self, sizehint):
            raise ZeroDivisionError

    protocol = await fatal(
        link,
        Failing,
        reports,
        "Fatal error: protocol.get_buffer() call failed.",
    )
    assert isinstance(protocol.reason, ZeroDivisionError)
    assert protocol.calls == ["made", "lost"]


async def test_error_in_buffer_updated(loop, link, reports):
    class Failing(BufferedRecorder):
        def buffer_updated(self, nbytes):
            raise ZeroDivisionError

    protocol = await fatal(
        link,
        Failing,
        reports,
        "Fatal error: protocol.buffer_updated() call failed.",
    )
    assert isinstance(protocol.reason, ZeroDivisionError)
    assert protocol.calls == ["made", "lost"]


async def test_empty_buffer(loop, link, reports):
    class Empty(BufferedRecorder):
        def get_buffer(self, sizehint):
            return bytearray()

    protocol = await fatal(
        link,
        Empty,
        reports,
        "Fatal error: protocol.get_buffer() call failed.",
    )
    assert isinstance(protocol.reason, RuntimeError)
    assert str(protocol.reason) == "get_buffer() returned an empty buffer"


@pytest.mark.parametrize("value", [None, 17, b"read-only", "text", []])
async def test_what_is_no_buffer(loop, link, reports, value):
    class Wrong(BufferedRecorder):
        def get_buffer(self, sizehint):
            return value

    _, protocol, peer = await link(Wrong)
    peer.sendall(b"data")
    await protocol.lost()
    (context,) = reports
    assert context["exception"] is protocol.reason
    assert isinstance(protocol.reason, (TypeError, RuntimeError, BufferError))


def test_exit_in_get_buffer(loop):
    class Leaving(BufferedRecorder):
        def get_buffer(self, sizehint):
            raise SystemExit("out")

    one, other = socket.socketpair()
    transport, _ = loop.run_until_complete(
        loop.create_unix_connection(Leaving, sock=one)
    )
    other.send(b"x")
    with pytest.raises(SystemExit, match="out"):
        loop.run_forever()
    other.close()
    transport.abort()
    loop.run_until_complete(turns(3))


# -- switching ----------------------------------------------------------------
async def test_get_and_set_protocol(loop, link):
    transport, protocol, peer = await link(Recorder)
    assert transport.get_protocol() is protocol
    other = Recorder()
    assert transport.set_protocol(other) is None
    assert transport.get_protocol() is other
    peer.sendall(b"for the other")
    await other.received(13)
    peer.shutdown(socket.SHUT_WR)
    await other.lost()
    # connection_made() is not called again
    assert other.calls == ["data", "eof", "lost"]
    assert protocol.calls == ["made"]
    # for Links.close(): the connection is gone
    protocol.calls.append("lost")


@pytest.mark.parametrize("first", [Recorder, BufferedRecorder])
@pytest.mark.parametrize("second", [Recorder, BufferedRecorder])
async def test_switch_inside_the_callback(loop, link, first, second):
    other = second()

    class Switching(first):
        def switch(self):
            self.transport.set_protocol(other)

        def data_received(self, data):
            self.switch()
            super().data_received(data)

        def buffer_updated(self, nbytes):
            self.switch()
            super().buffer_updated(nbytes)

    transport, protocol, peer = await link(Switching)
    peer.sendall(b"first")
    await protocol.received(5)
    peer.sendall(b"second")
    await other.received(6)
    assert protocol.data == b"first"
    assert other.data == b"second"
    transport.set_protocol(protocol)
    peer.sendall(b"third")
    await protocol.received(10)


async def test_switch_while_data_wait(loop, link):
    """What was held back by a pause goes to the new protocol."""
    transport, protocol, peer = await link(Recorder)
    transport.pause_reading()
    peer.sendall(b"data")
    await turns(4)
    other = BufferedRecorder(2)
    transport.set_protocol(other)
    transport.resume_reading()
    await other.received(4)
    assert other.data == b"data"
    assert protocol.calls == ["made"]


async def test_switch_of_a_closing_transport(loop, link):
    transport, protocol, _ = await link(Recorder)
    other = Recorder()
    transport.close()
    transport.set_protocol(other)
    await other.lost()
    assert other.calls == ["lost"]
    assert protocol.calls == ["made"]
    protocol.calls.append("lost")


async def test_flow_control_goes_to_the_new_protocol(loop, link):
    transport, protocol, peer = await link(Recorder)
    other = Recorder()
    transport.write(BACKLOG)
    assert protocol.calls == ["made", "pause"]
    transport.set_protocol(other)
    transport.close()
    assert await in_thread(read_all, peer) == BACKLOG
    await other.lost()
    assert other.calls == ["resume", "lost"]
    protocol.calls.append("lost")


async def test_protocols_that_inherit_nothing(loop):
    """asyncio asks for no base class: what has the methods will do."""

    class Plain:
        def __init__(self):
            self.got = []

        def connection_made(self, transport):
            self.transport = transport

        def data_received(self, data):
            self.got.append(data)

        def eof_received(self):
            self.got.append("eof")

        def connection_lost(self, exc):
            self.got.append(exc)

    one, other = socket.socketpair()
    transport, protocol = await loop.create_unix_connection(Plain, sock=one)
    assert transport is protocol.transport
    other.send(b"data")
    await until(lambda: protocol.got)
    other.close()
    await until(lambda: len(protocol.got) == 3)
    assert protocol.got == [b"data", "eof", None]


async def test_attributes_changed_on_the_instance(loop, link):
    """Methods are looked up when they are called."""
    _, protocol, peer = await link(Echo)
    got = []
    protocol.data_received = got.append
    peer.sendall(b"data")
    await until(lambda: got)
    assert b"".join(got) == b"data"
    del protocol.data_received
    peer.sendall(b"more")
    assert await in_thread(read_exactly, peer, 4) == b"more"
