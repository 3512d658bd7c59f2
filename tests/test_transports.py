"""TCP and Unix stream transports: data, the end of either side, closing."""

import array
import asyncio
import socket
import sys

import pytest
from support import (
    BACKLOG,
    Echo,
    Recorder,
    fill_transport,
    in_thread,
    not_with_home_away,
    pattern,
    read_all,
    read_exactly,
    read_or_reset,
    turns,
    until,
    within,
)


# -- data -------------------------------------------------------------------
async def test_calls_in_their_order(loop, link):
    transport, protocol, peer = await link(Recorder)
    assert protocol.calls == ["made"]
    peer.sendall(b"data")
    await protocol.received(4)
    peer.shutdown(socket.SHUT_WR)
    await protocol.lost()
    assert protocol.calls == ["made", "data", "eof", "lost"]
    assert protocol.reason is None
    assert peer.recv(10) == b""


async def test_data_is_bytes(loop, link):
    class Typed(Recorder):
        def data_received(self, data):
            assert type(data) is bytes
            super().data_received(data)

    _, protocol, peer = await link(Typed)
    for size in (1, 100, 5000, 300_000):
        data = pattern(size)
        sending = asyncio.create_task(in_thread(peer.sendall, data))
        await protocol.received(size)
        assert protocol.data == data
        protocol.data.clear()
        await sending


async def test_echo(loop, link):
    _, protocol, peer = await link(Echo)
    for number in range(200):
        peer.sendall(b"%07d\n" % number)
        assert await in_thread(peer.recv, 100) == b"%07d\n" % number
    assert protocol.calls.count("data") == 200


async def test_large_transfers_both_ways(loop, link):
    transport, protocol, peer = await link(Recorder)
    transport.write(BACKLOG)
    reading = asyncio.create_task(in_thread(read_exactly, peer, len(BACKLOG)))
    assert await reading == BACKLOG
    sending = asyncio.create_task(in_thread(peer.sendall, BACKLOG))
    await protocol.received(len(BACKLOG))
    await sending
    assert protocol.data == BACKLOG
    assert "eof" not in protocol.calls


async def test_large_echo(loop, link):
    """Both directions at once, more than the buffers of both hold."""
    _, protocol, peer = await link(Echo)
    sending = asyncio.create_task(in_thread(peer.sendall, BACKLOG))
    got = await in_thread(read_exactly, peer, len(BACKLOG))
    await sending
    assert got == BACKLOG
    assert protocol.data == BACKLOG


async def test_write_in_connection_made(loop, link):
    class Greeting(Recorder):
        def connection_made(self, transport):
            super().connection_made(transport)
            transport.write(b"hello, ")
            transport.write(b"world")

    _, _, peer = await link(Greeting)
    assert await in_thread(read_exactly, peer, 12) == b"hello, world"


async def test_data_that_came_with_the_connection(loop):
    """The peer has sent and gone before the connection is accepted."""
    made = []

    class Server(Recorder):
        def connection_made(self, transport):
            super().connection_made(transport)
            made.append(self)

    server = await loop.create_server(Server, "127.0.0.1", 0)
    with socket.create_connection(server.sockets[0].getsockname()) as peer:
        peer.sendall(b"early")
    while not made:
        await asyncio.sleep(0.001)
    await made[0].lost()
    assert made[0].data == b"early"
    assert made[0].calls == ["made", "data", "eof", "lost"]
    server.close()


async def test_writes_keep_their_order(loop, link):
    transport, _, peer = await link(Recorder)
    pieces = [bytes([number % 251]) * (number % 700) for number in range(2000)]
    reading = asyncio.create_task(in_thread(read_exactly, peer, sum(map(len, pieces))))
    for number, piece in enumerate(pieces):
        transport.write(piece)
        if number % 100 == 0:
            await turns(1)
    assert await reading == b"".join(pieces)


# -- what write() takes -------------------------------------------------------
class OddBytes(bytes):
    pass


DATA = [
    b"bytes",
    bytearray(b"bytearray"),
    memoryview(b"memoryview"),
    memoryview(bytearray(b"-part-"))[1:-1],
    OddBytes(b"subclass"),
]
WIDE = [
    memoryview(array.array("I", range(5))),
    memoryview(b"123456").cast("B", (2, 3)),
    memoryview(array.array("d", [0.5])),
]


@pytest.mark.parametrize("data", DATA + WIDE)
async def test_types_of_data(loop, link, data):
    transport, _, peer = await link(Recorder)
    expected = bytes(data)
    transport.write(data)
    assert await in_thread(read_exactly, peer, len(expected)) == expected


@pytest.mark.parametrize(
    "data",
    [
        *DATA,
        *(
            pytest.param(
                data,
                marks=pytest.mark.not_on(
                    "asyncio", reason="it takes items for bytes (gh-135862)"
                ),
            )
            for data in WIDE
        ),
    ],
)
async def test_types_of_lines(loop, link, data):
    transport, _, peer = await link(Recorder)
    expected = bytes(data) + b"+" + bytes(data)
    transport.writelines([data, b"+", data])
    assert await in_thread(read_exactly, peer, len(expected)) == expected


@pytest.mark.parametrize("data", ["text", 17, None, [1], array.array("B")])
async def test_wrong_types(loop, link, data):
    transport, _, peer = await link(Recorder)
    name = type(data).__name__
    with pytest.raises(
        TypeError,
        match=rf"data argument must be a bytes-like object, not '{name}'",
    ):
        transport.write(data)
    with pytest.raises(TypeError):
        transport.write()
    with pytest.raises(TypeError):
        transport.write(b"1", b"2")
    transport.write(b"unharmed")
    assert await in_thread(read_exactly, peer, 8) == b"unharmed"


async def test_wrong_lines(loop, link):
    transport, _, peer = await link(Recorder)
    for lines in (17, ["text"], [b"ok", None]):
        with pytest.raises(TypeError):
            transport.writelines(lines)
    transport.abort()
    with peer:
        assert b"text" not in await in_thread(read_or_reset, peer)


@pytest.mark.not_on("asyncio", reason="it takes items for bytes (gh-135862)")
async def test_wide_items_that_do_not_fit_at_once(loop, link):
    transport, _, peer = await link(Recorder)
    numbers = array.array("I", range(1 << 20))
    view = memoryview(numbers)
    transport.write(view)
    assert transport.get_write_buffer_size() <= 4 << 20
    transport.writelines([view[:1000], view[1000:2000]])
    expected = numbers.tobytes() + numbers[:2000].tobytes()
    assert await in_thread(read_exactly, peer, len(expected)) == expected


async def test_view_that_is_not_contiguous(loop, link, reports):
    """Its bytes in order, or an error: never other bytes."""
    transport, protocol, peer = await link(Recorder)
    view = memoryview(b"a1b2c3")[::2]
    try:
        transport.write(view)
        await turns(3)
        failed = bool(reports)
    except (BufferError, ValueError, TypeError):
        failed = True
        transport.close()
    if failed:
        await protocol.lost()
        assert await in_thread(read_or_reset, peer) == b""
    else:
        assert await in_thread(read_exactly, peer, 3) == b"abc"


async def test_empty_writes(loop, link):
    transport, protocol, peer = await link(Recorder)
    transport.write(b"")
    transport.write(bytearray())
    transport.writelines([])
    transport.writelines([b"", b""])
    transport.write(b"x")
    transport.write(b"")
    transport.writelines([b"", b"y", b""])
    assert await in_thread(read_exactly, peer, 2) == b"xy"
    assert transport.get_write_buffer_size() == 0
    assert protocol.calls == ["made"]


@pytest.mark.not_on(
    "asyncio", when=sys.version_info >= (3, 12), reason="it spins on empty lines"
)
async def test_empty_lines_only(loop, link):
    transport, protocol, peer = await link(Recorder)
    transport.writelines([b""])
    transport.writelines([b"", bytearray(), memoryview(b"")])
    await turns(3)
    assert transport.get_write_buffer_size() == 0
    transport.write_eof()
    assert await in_thread(read_all, peer) == b""
    transport.close()
    await protocol.lost()


@pytest.mark.not_on(
    "asyncio",
    when=sys.version_info >= (3, 12),
    reason="it keeps a view of the buffer",
)
async def test_mutable_buffers_are_copied(loop, link):
    """What the program changes after write() is not sent."""
    transport, _, peer = await link(Recorder)
    filled = fill_transport(transport)
    buffer = bytearray(b"before")
    transport.write(buffer)
    buffer[:] = b"after!"
    view = memoryview(bytearray(b"VIEW"))
    transport.write(view)
    view[:] = b"lost"
    buffer.extend(b"and it may be resized")
    got = await in_thread(read_exactly, peer, filled + 10)
    assert got[filled:] == b"beforeVIEW"


async def test_mutable_buffers_are_copied_within_the_turn(loop, link):
    transport, _, peer = await link(Recorder)
    buffer = bytearray(8)
    for number in range(50):
        buffer[:] = b"%08d" % number
        transport.write(buffer)
        buffer[:] = b"modified"
    expected = b"".join(b"%08d" % number for number in range(50))
    assert await in_thread(read_exactly, peer, 400) == expected


async def test_writelines(loop, link):
    transport, _, peer = await link(Recorder)
    transport.writelines([b"a", bytearray(b"b"), memoryview(b"c")])
    transport.writelines((b"d", b"e"))
    transport.writelines([b"f"])
    transport.write(b"g")
    assert await in_thread(read_exactly, peer, 7) == b"abcdefg"


@pytest.mark.not_on(
    "asyncio", reason="whether it takes any iterable depends on the version"
)
async def test_writelines_takes_any_iterable(loop, link):
    transport, _, peer = await link(Recorder)
    transport.writelines(piece for piece in (b"a", b"b"))
    transport.writelines({b"c": 1})
    transport.writelines(iter([]))
    transport.write(b"d")
    assert await in_thread(read_exactly, peer, 4) == b"abcd"


async def test_writelines_of_an_iterable_that_fails(loop, link):
    transport, _, peer = await link(Recorder)

    def pieces():
        yield b"never sent, or sent whole;"
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        transport.writelines(pieces())
    transport.write(b"end")
    transport.close()
    got = await in_thread(read_all, peer)
    assert got in (b"end", b"never sent, or sent whole;end")


async def test_writelines_of_more_than_iov_max(loop, link):
    transport, _, peer = await link(Recorder)
    pieces = [b"%05d|" % number for number in range(5000)]
    transport.writelines(pieces)
    got = await in_thread(read_exactly, peer, 30_000)
    assert got == b"".join(pieces)


@pytest.mark.not_on("asyncio", reason="it forgot the rest before 3.12.1")
async def test_writelines_of_more_than_fits(loop, link):
    transport, _, peer = await link(Recorder)
    pieces = [BACKLOG[at : at + 9999] for at in range(0, len(BACKLOG), 9999)]
    transport.writelines(pieces)
    transport.close()
    assert await in_thread(read_all, peer) == BACKLOG


# -- the end of one side ------------------------------------------------------
async def test_write_eof(loop, link):
    transport, protocol, peer = await link(Recorder)
    assert transport.can_write_eof() is True
    transport.write(b"request")
    assert transport.write_eof() is None
    assert await in_thread(read_all, peer) == b"request"
    assert not transport.is_closing()
    peer.sendall(b"answer")
    await protocol.received(6)
    peer.close()
    await protocol.lost()
    assert protocol.calls == ["made", "data", "eof", "lost"]
    assert protocol.reason is None


async def test_write_eof_with_a_backlog(loop, link):
    transport, protocol, peer = await link(Recorder)
    transport.write(BACKLOG)
    transport.write_eof()
    transport.write_eof()
    assert await in_thread(read_all, peer) == BACKLOG
    peer.sendall(b"answer")
    await protocol.received(6)
    transport.close()
    await protocol.lost()
    assert protocol.reason is None


async def test_no_writes_after_write_eof(loop, link):
    transport, _, _ = await link(Recorder)
    transport.write_eof()
    with pytest.raises(RuntimeError, match=r"Cannot call write\(\) after"):
        transport.write(b"more")
    with pytest.raises(RuntimeError, match=r"Cannot call write\(\) after"):
        transport.write(b"")
    with pytest.raises(RuntimeError, match=r"Cannot call write.* after"):
        transport.writelines([b"more"])


async def test_write_eof_and_close_in_any_order(loop, link):
    transport, protocol, peer = await link(Recorder)
    transport.close()
    transport.write_eof()
    await protocol.lost()
    transport.write_eof()
    assert await in_thread(peer.recv, 10) == b""

    transport, protocol, peer = await link(Recorder)
    transport.write(BACKLOG)
    transport.write_eof()
    transport.close()
    assert await in_thread(read_all, peer) == BACKLOG
    await protocol.lost()


@pytest.mark.parametrize("keep", [True, 1, "yes"])
async def test_eof_received_that_keeps_the_connection(loop, link, keep):
    transport, protocol, peer = await link(Recorder)
    protocol.keep_open = keep
    peer.sendall(b"request")
    peer.shutdown(socket.SHUT_WR)
    await protocol.called("eof")
    await turns(5)
    assert protocol.calls == ["made", "data", "eof"]
    assert not transport.is_closing()
    transport.write(b"answer")
    assert await in_thread(read_exactly, peer, 6) == b"answer"
    transport.write(BACKLOG)
    transport.close()
    assert await in_thread(read_all, peer) == BACKLOG
    await protocol.lost()
    assert protocol.calls.count("eof") == 1
    assert protocol.reason is None


@pytest.mark.parametrize("keep", [None, False, 0, ""])
async def test_eof_received_that_does_not(loop, link, keep):
    transport, protocol, peer = await link(Recorder)
    protocol.keep_open = keep
    transport.write(BACKLOG)
    peer.shutdown(socket.SHUT_WR)
    await protocol.called("eof")
    assert transport.is_closing()
    assert await in_thread(read_all, peer) == BACKLOG
    await protocol.lost()
    assert protocol.reason is None


async def test_both_ends_half_closed(loop, link):
    transport, protocol, peer = await link(Recorder)
    protocol.keep_open = True
    transport.write_eof()
    peer.shutdown(socket.SHUT_WR)
    await protocol.called("eof")
    await turns(5)
    assert "lost" not in protocol.calls
    transport.close()
    await protocol.lost()


# -- close and abort ----------------------------------------------------------
async def test_close_sends_what_is_pending(loop, link):
    transport, protocol, peer = await link(Recorder)
    transport.write(BACKLOG)
    assert transport.close() is None
    assert transport.is_closing()
    await turns(5)
    assert "lost" not in protocol.calls
    assert await in_thread(read_all, peer) == BACKLOG
    await protocol.lost()
    assert protocol.reason is None


async def test_close_of_an_idle_connection(loop, link):
    transport, protocol, peer = await link(Recorder)
    assert transport.is_closing() is False
    transport.close()
    transport.close()
    # never inside the call
    assert protocol.calls == ["made"]
    await turns(2)
    assert protocol.calls == ["made", "lost"]
    transport.close()
    transport.abort()
    await turns(2)
    assert protocol.calls == ["made", "lost"]
    assert await in_thread(peer.recv, 10) == b""


async def test_small_write_and_close(loop, link):
    transport, protocol, peer = await link(Recorder)
    transport.write(b"goodbye")
    transport.close()
    assert await in_thread(read_all, peer) == b"goodbye"
    await protocol.lost()


async def test_nothing_is_received_after_close(loop, link):
    transport, protocol, peer = await link(Recorder)
    fill_transport(transport)
    transport.write(b"pending")
    await turns(2)  # what the peer sends may bring room to one who tries later
    transport.close()
    peer.sendall(b"late")
    peer.shutdown(socket.SHUT_WR)
    await turns(5)
    assert protocol.calls == ["made"]
    await in_thread(read_or_reset, peer)
    await protocol.lost()
    assert protocol.calls == ["made", "lost"]


async def test_abort(loop, link):
    transport, protocol, peer = await link(Recorder)
    transport.write(BACKLOG)
    assert transport.abort() is None
    assert transport.is_closing()
    assert "lost" not in protocol.calls
    await protocol.lost()
    assert protocol.reason is None
    assert len(await in_thread(read_or_reset, peer)) < len(BACKLOG)


@pytest.mark.parametrize("way", ["abort", "error"])
async def test_small_writes_before_the_end(loop, link, reports, way):
    """What asyncio would have sent by then is not lost."""

    class Dismissing(Recorder):
        def data_received(self, data):
            super().data_received(data)
            self.transport.write(b"you are ")
            self.transport.write(b"dismissed")
            if way == "error":
                raise ValueError("dismissed")
            self.transport.abort()

    transport, protocol, peer = await link(Dismissing)
    await in_thread(peer.sendall, b"hello")
    await protocol.lost()
    assert await in_thread(read_all, peer) == b"you are dismissed"
    assert len(reports) == (way == "error")


async def test_abort_after_close(loop, link):
    transport, protocol, peer = await link(Recorder)
    transport.write(BACKLOG)
    transport.close()
    await turns(3)
    assert "lost" not in protocol.calls
    transport.abort()
    await protocol.lost()
    assert protocol.reason is None
    assert protocol.calls.count("lost") == 1


@pytest.mark.parametrize("way", ["close", "abort"])
async def test_in_connection_made(loop, link, way):
    class Refusing(Recorder):
        def connection_made(self, transport):
            super().connection_made(transport)
            transport.write(b"no")
            getattr(transport, way)()

    transport, protocol, peer = await link(Refusing)
    await protocol.lost()
    assert protocol.calls == ["made", "lost"]
    assert protocol.reason is None
    assert transport.is_closing()
    got = await in_thread(read_or_reset, peer)
    assert got == b"no"


@pytest.mark.parametrize("way", ["close", "abort"])
async def test_in_data_received(loop, link, way):
    class Once(Recorder):
        def data_received(self, data):
            super().data_received(data)
            self.transport.write(b"bye")
            getattr(self.transport, way)()

    _, protocol, peer = await link(Once)
    peer.sendall(b"1")
    await protocol.lost()
    assert protocol.calls == ["made", "data", "lost"]
    assert protocol.data == b"1"
    if way == "close":
        assert await in_thread(read_all, peer) == b"bye"


@pytest.mark.parametrize("way", ["close", "abort"])
async def test_in_eof_received(loop, link, way):
    class Ending(Recorder):
        def eof_received(self):
            getattr(self.transport, way)()
            return super().eof_received()

    for keep in (False, True):
        _, protocol, peer = await link(Ending)
        protocol.keep_open = keep
        peer.shutdown(socket.SHUT_WR)
        await protocol.lost()
        assert protocol.calls == ["made", "eof", "lost"]


@pytest.mark.not_on(
    "asyncio",
    when=sys.version_info >= (3, 12),
    reason="its writelines() after close() calls None",
)
async def test_calls_in_connection_lost(loop, link):
    """Everything may be called there, and does nothing any more."""
    failed = []

    class Busy(Recorder):
        def connection_lost(self, exc):
            transport = self.transport
            try:
                transport.write(b"late")
                transport.writelines([b"late"])
                transport.close()
                transport.abort()
                transport.pause_reading()
                transport.resume_reading()
                transport.write_eof()
                assert transport.is_closing()
                assert not transport.is_reading()
            except BaseException as error:
                failed.append(error)
            super().connection_lost(exc)

    transport, protocol, _ = await link(Busy)
    transport.close()
    await protocol.lost()
    await turns(3)
    assert not failed
    assert protocol.calls == ["made", "lost"]


async def test_everything_after_connection_lost(loop, link):
    transport, protocol, _ = await link(Recorder)
    transport.close()
    await protocol.lost()
    await turns(2)
    transport.write(b"dropped")
    transport.writelines([])
    transport.close()
    transport.abort()
    transport.pause_reading()
    transport.resume_reading()
    transport.write_eof()
    assert transport.is_closing() is True
    assert transport.is_reading() is False
    assert transport.get_write_buffer_size() == 0
    assert "closed" in repr(transport)
    await turns(2)
    assert protocol.calls == ["made", "lost"]


async def test_close_from_another_callback_of_the_batch(loop, link):
    """Both have data; whoever comes first closes the other one."""
    protocols = []

    class Rival(Recorder):
        def data_received(self, data):
            super().data_received(data)
            for other in protocols:
                if other is not self:
                    other.transport.close()

    peers = []
    for _ in range(2):
        _, protocol, peer = await link(Rival)
        protocols.append(protocol)
        peers.append(peer)
    for peer in peers:
        peer.sendall(b"x")
    await asyncio.wait(
        [asyncio.ensure_future(protocol.lost()) for protocol in protocols],
        return_when=asyncio.FIRST_COMPLETED,
        timeout=10,
    )
    calls = sorted(protocol.calls for protocol in protocols)
    assert calls == [["made", "data"], ["made", "lost"]]
    protocols[0].transport.close()
    protocols[1].transport.close()
    for protocol in protocols:
        await protocol.lost()


async def test_connection_lost_may_close_the_rest(loop, link):
    """A chain: the end of one connection ends the next."""
    protocols = []

    class Chained(Recorder):
        def connection_lost(self, exc):
            super().connection_lost(exc)
            at = protocols.index(self)
            if at + 1 < len(protocols):
                protocols[at + 1].transport.abort()

    for _ in range(5):
        protocols.append((await link(Chained))[1])
    protocols[0].transport.close()
    await within(protocols[-1].lost())
    assert all(protocol.calls == ["made", "lost"] for protocol in protocols)


@not_with_home_away
async def test_both_ends_on_one_loop_end_in_few_turns(loop):
    """Programs that stop the loop once their own end is closed rely on the
    other end's having heard of it."""
    served = []

    def factory():
        served.append(Recorder())
        return served[-1]

    server = await loop.create_server(factory, "127.0.0.1", 0)
    transport, protocol = await loop.create_connection(
        Recorder, *server.sockets[0].getsockname()
    )
    await until(lambda: served and served[0].calls == ["made"])
    transport.close()
    between = 0
    while "lost" not in served[0].calls:
        await asyncio.sleep(0)
        between += "lost" in protocol.calls
        assert between <= 4
    server.close()
