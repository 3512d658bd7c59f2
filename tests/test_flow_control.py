"""Water marks of the write buffer; pausing and resuming the reading."""

import asyncio
import socket
import sys
import time

import pytest
from support import (
    Echo,
    Recorder,
    fill_transport,
    in_thread,
    pattern,
    read_all,
    read_exactly,
    turns,
    until,
    within,
)

KIB = 1024


# -- the write buffer ---------------------------------------------------------
async def test_default_limits(loop, link):
    transport, _, _ = await link(Recorder)
    assert transport.get_write_buffer_limits() == (16 * KIB, 64 * KIB)


@pytest.mark.parametrize(
    ("arguments", "limits"),
    [
        ({}, (16 * KIB, 64 * KIB)),
        ({"high": 1000}, (250, 1000)),
        ({"low": 1000}, (1000, 4000)),
        ({"high": 1000, "low": 1000}, (1000, 1000)),
        ({"high": 0}, (0, 0)),
        ({"low": 0}, (0, 0)),
        ({"high": 3}, (0, 3)),
        ({"high": None, "low": None}, (16 * KIB, 64 * KIB)),
    ],
)
async def test_set_limits(loop, link, arguments, limits):
    transport, _, _ = await link(Recorder)
    transport.set_write_buffer_limits(high=5, low=5)
    assert transport.set_write_buffer_limits(**arguments) is None
    assert transport.get_write_buffer_limits() == limits


@pytest.mark.parametrize(
    ("high", "low"), [(1, 2), (-1, None), (None, -1), (5, -1), (-1, -2)]
)
async def test_bad_limits(loop, link, high, low):
    transport, _, _ = await link(Recorder)
    with pytest.raises(ValueError, match="must be >= low"):
        transport.set_write_buffer_limits(high, low)
    with pytest.raises(TypeError):
        transport.set_write_buffer_limits("many")
    assert transport.get_write_buffer_limits() == (16 * KIB, 64 * KIB)


async def test_size_of_the_buffer(loop, link):
    transport, _, peer = await link(Recorder)
    assert transport.get_write_buffer_size() == 0
    filled = fill_transport(transport)
    transport.write(b"x" * 1000)
    transport.write(bytearray(500))
    assert transport.get_write_buffer_size() == 1500
    transport.writelines([b"12345", b"67890"])
    assert transport.get_write_buffer_size() == 1510
    await turns(3)
    assert transport.get_write_buffer_size() == 1510
    await in_thread(read_exactly, peer, filled + 1510)
    await until(lambda: transport.get_write_buffer_size() == 0)


async def test_small_writes_never_pause(loop, link):
    transport, protocol, peer = await link(Recorder)
    for _ in range(100):
        transport.write(b"x" * 100)
        await turns(1)
    assert await in_thread(read_exactly, peer, 10_000) == b"x" * 10_000
    assert protocol.calls == ["made"]


async def test_pause_above_high_and_resume_at_low(loop, link):
    transport, protocol, peer = await link(Recorder)
    filled = fill_transport(transport)
    transport.write(b"x" * (64 * KIB))
    assert protocol.calls == ["made"]
    transport.write(b"x")
    # at once, inside the call
    assert protocol.calls == ["made", "pause"]
    transport.write(b"x" * (64 * KIB))
    assert protocol.calls == ["made", "pause"]
    reading = asyncio.create_task(in_thread(read_exactly, peer, filled + 128 * KIB + 1))
    await protocol.called("resume")
    assert transport.get_write_buffer_size() <= 16 * KIB
    await reading
    assert protocol.calls == ["made", "pause", "resume"]


async def test_pause_and_resume_many_times(loop, link):
    transport, protocol, peer = await link(Recorder)
    data = pattern(3 << 20)
    transport.set_write_buffer_limits(high=32 * KIB)

    async def send():
        for at in range(0, len(data), 10_000):
            transport.write(data[at : at + 10_000])
            await protocol.until(
                lambda: protocol.calls.count("pause") == protocol.calls.count("resume")
            )

    reading = asyncio.create_task(in_thread(read_exactly, peer, len(data)))
    await within(send())
    assert await reading == data
    flow = [call for call in protocol.calls if call != "made"]
    assert flow[::2] == ["pause"] * len(flow[::2])
    assert flow[1::2] == ["resume"] * len(flow[1::2])


async def test_zero_marks(loop, link):
    transport, protocol, peer = await link(Recorder)
    transport.set_write_buffer_limits(0)
    filled = fill_transport(transport)
    transport.write(b"x")
    assert protocol.calls == ["made", "pause"]
    await in_thread(read_exactly, peer, filled + 1)
    await protocol.called("resume")
    assert transport.get_write_buffer_size() == 0


async def test_new_limits_are_applied_at_once(loop, link):
    transport, protocol, _ = await link(Recorder)
    fill_transport(transport)
    transport.write(b"x" * 1000)
    transport.set_write_buffer_limits(high=999)
    assert protocol.calls == ["made", "pause"]


async def test_write_in_resume_writing(loop, link):
    """A pump: writes until it is paused, goes on when it is resumed."""

    class Pump(Recorder):
        rounds = 0
        paused = False

        def pump(self):
            while self.rounds < 20 and not self.paused:
                self.transport.write(b"%02d" % self.rounds * 50_000)
                self.rounds += 1
            if self.rounds == 20:
                self.note("all written")

        def pause_writing(self):
            super().pause_writing()
            self.paused = True

        def resume_writing(self):
            super().resume_writing()
            self.paused = False
            self.pump()

    transport, protocol, peer = await link(Pump)
    transport.get_extra_info("socket").setsockopt(
        socket.SOL_SOCKET, socket.SO_SNDBUF, 65536
    )
    protocol.pump()
    assert protocol.paused
    reading = asyncio.create_task(in_thread(read_all, peer))
    await protocol.called("all written")
    transport.close()
    got = await reading
    assert got == b"".join(b"%02d" % number * 50_000 for number in range(20))
    await protocol.lost()
    assert protocol.calls.count("resume") >= 1


@pytest.mark.not_on("asyncio", reason="it ends such a connection twice")
@pytest.mark.parametrize("way", ["close", "abort"])
async def test_end_in_resume_writing(loop, link, way):
    class Ending(Recorder):
        def resume_writing(self):
            super().resume_writing()
            getattr(self.transport, way)()

    transport, protocol, peer = await link(Ending)
    filled = fill_transport(transport)
    transport.write(b"x" * 70_000)
    got = await in_thread(read_all, peer)
    await protocol.lost()
    assert protocol.calls == ["made", "pause", "resume", "lost"]
    if way == "close":
        assert len(got) == filled + 70_000


async def test_write_in_pause_writing(loop, link):
    class Last(Recorder):
        def pause_writing(self):
            super().pause_writing()
            self.transport.write(b"last")

    transport, protocol, peer = await link(Last)
    filled = fill_transport(transport)
    transport.write(b"x" * 70_000)
    transport.close()
    got = await in_thread(read_all, peer)
    assert got[filled:] == b"x" * 70_000 + b"last"
    assert protocol.calls.count("pause") == 1


@pytest.mark.parametrize("way", ["close", "abort"])
async def test_end_in_pause_writing(loop, link, way):
    class Ending(Recorder):
        def pause_writing(self):
            super().pause_writing()
            getattr(self.transport, way)()

    transport, protocol, peer = await link(Ending)
    fill_transport(transport)
    transport.write(b"x" * 70_000)
    transport.write(b"dropped" if way == "abort" else b"")
    await in_thread(read_all, peer)
    await protocol.lost()
    assert protocol.calls[:2] == ["made", "pause"]
    assert protocol.calls.count("lost") == 1


@pytest.mark.parametrize("name", ["pause_writing", "resume_writing"])
async def test_errors_in_flow_control_are_reported(loop, link, name, reports):
    def fail(self):
        getattr(Recorder, name)(self)
        raise ZeroDivisionError

    cls = type("Failing", (Recorder,), {name: fail})
    transport, protocol, peer = await link(cls)
    filled = fill_transport(transport)
    transport.write(b"x" * 70_000)
    got = await in_thread(read_exactly, peer, filled + 70_000)
    assert got[filled:] == b"x" * 70_000
    await until(lambda: reports)
    (context,) = reports
    assert context["message"] == f"protocol.{name}() failed"
    assert isinstance(context["exception"], ZeroDivisionError)
    assert context["transport"] is transport
    assert context["protocol"] is protocol
    # the connection goes on
    peer.sendall(b"data")
    await protocol.received(4)


# -- reading ------------------------------------------------------------------
async def test_pause_reading(loop, link):
    transport, protocol, peer = await link(Recorder)
    assert transport.is_reading() is True
    assert transport.pause_reading() is None
    transport.pause_reading()
    assert transport.is_reading() is False
    peer.sendall(b"held back")
    await turns(5)
    assert protocol.calls == ["made"]
    assert transport.resume_reading() is None
    transport.resume_reading()
    assert transport.is_reading() is True
    # never inside the call
    assert protocol.calls == ["made"]
    await protocol.received(9)
    assert protocol.data == b"held back"


async def test_pause_and_resume_without_a_turn_between(loop, link):
    transport, protocol, peer = await link(Recorder)
    for number in range(20):
        transport.pause_reading()
        peer.sendall(b"%02d" % number)
        transport.resume_reading()
        transport.pause_reading()
        await turns(2)
        assert len(protocol.data) == 2 * number
        transport.resume_reading()
        await protocol.received(2 * number + 2)
    assert protocol.data == b"".join(b"%02d" % n for n in range(20))


@pytest.mark.not_on(
    "asyncio",
    when=sys.version_info < (3, 12),
    reason="it reads all the same (gh-103607)",
)
async def test_pause_in_connection_made(loop, link):
    class Paused(Recorder):
        def connection_made(self, transport):
            transport.pause_reading()
            super().connection_made(transport)

    transport, protocol, peer = await link(Paused)
    peer.sendall(b"data")
    peer.shutdown(socket.SHUT_WR)
    await turns(6)
    assert protocol.calls == ["made"]
    transport.resume_reading()
    await protocol.lost()
    assert protocol.calls == ["made", "data", "eof", "lost"]


async def test_pause_in_data_received(loop, link):
    """One call, then silence; afterwards all the rest, and the end."""

    class Once(Recorder):
        def data_received(self, data):
            self.transport.pause_reading()
            super().data_received(data)

    transport, protocol, peer = await link(Once)
    data = pattern(2 << 20)

    def send():
        peer.sendall(data)
        peer.shutdown(socket.SHUT_WR)

    sending = asyncio.create_task(in_thread(send))
    while "eof" not in protocol.calls:
        await protocol.until(
            lambda: not transport.is_reading() or "eof" in protocol.calls
        )
        calls = len(protocol.calls)
        await turns(4)
        if not transport.is_closing():
            assert len(protocol.calls) == calls
            transport.resume_reading()
    await sending
    assert protocol.data == data
    await protocol.lost()
    assert protocol.calls.count("eof") == 1
    assert protocol.calls[-2:] == ["eof", "lost"]


async def test_eof_waits_while_paused(loop, link):
    transport, protocol, peer = await link(Recorder)
    transport.pause_reading()
    peer.sendall(b"last words")
    peer.close()
    await turns(6)
    assert protocol.calls == ["made"]
    transport.resume_reading()
    await protocol.lost()
    assert protocol.data == b"last words"
    assert protocol.calls[-2:] == ["eof", "lost"]
    assert protocol.reason is None


async def test_eof_alone_waits_while_paused(loop, link):
    transport, protocol, peer = await link(Recorder)
    transport.pause_reading()
    peer.shutdown(socket.SHUT_WR)
    await turns(6)
    assert protocol.calls == ["made"]
    transport.write(b"answer")
    assert await in_thread(read_exactly, peer, 6) == b"answer"
    assert protocol.calls == ["made"]
    transport.resume_reading()
    await protocol.lost()
    assert protocol.calls == ["made", "eof", "lost"]


async def test_a_paused_connection_costs_no_cpu(loop, link):
    """Also when its peer has gone, which epoll always reports."""
    transport, protocol, peer = await link(Recorder)
    transport.pause_reading()
    peer.sendall(b"data")
    peer.close()
    await turns(3)
    shares = []
    while not shares or (shares[-1] > 0.5 and len(shares) < 5):
        begin, cpu = time.monotonic(), time.process_time()
        await asyncio.sleep(0.1)
        used = time.process_time() - cpu
        shares.append(used / (time.monotonic() - begin))
    assert min(shares) <= 0.5
    transport.resume_reading()
    await protocol.lost()
    assert protocol.data == b"data"


async def test_pause_in_eof_received_of_a_kept_connection(loop, link):
    class Pausing(Recorder):
        def eof_received(self):
            self.transport.pause_reading()
            return super().eof_received()

    transport, protocol, peer = await link(Pausing)
    protocol.keep_open = True
    peer.shutdown(socket.SHUT_WR)
    await protocol.called("eof")
    transport.resume_reading()
    await turns(4)
    transport.write(b"answer")
    transport.close()
    assert await in_thread(read_all, peer) == b"answer"
    await protocol.lost()


async def test_resume_from_every_callback(loop, link):
    """Pausing and resuming inside one callback is no pause."""

    class Fickle(Recorder):
        def flip(self):
            self.transport.pause_reading()
            self.transport.resume_reading()

        def connection_made(self, transport):
            super().connection_made(transport)
            self.flip()

        def data_received(self, data):
            self.flip()
            super().data_received(data)

        def eof_received(self):
            self.flip()
            return super().eof_received()

        def connection_lost(self, exc):
            self.flip()
            super().connection_lost(exc)

    _, protocol, peer = await link(Fickle)
    for number in range(20):
        peer.sendall(b"%02d" % number)
        await protocol.received(2 * number + 2)
    peer.shutdown(socket.SHUT_WR)
    await protocol.lost()
    assert protocol.calls.count("eof") == 1
    assert protocol.data == b"".join(b"%02d" % n for n in range(20))


async def test_pausing_another_connection_of_the_batch(loop, link):
    """What was read of it already may not be delivered while paused."""
    protocols = []

    class Rival(Recorder):
        def data_received(self, data):
            super().data_received(data)
            for other in protocols:
                if other is not self:
                    other.transport.pause_reading()

    peers = []
    for _ in range(2):
        _, protocol, peer = await link(Rival)
        protocols.append(protocol)
        peers.append(peer)
    for peer in peers:
        peer.sendall(b"data")
    await turns(6)
    calls = sorted(len(protocol.data) for protocol in protocols)
    assert calls == [0, 4]
    quiet = min(protocols, key=lambda protocol: len(protocol.data))
    quiet.transport.resume_reading()
    await quiet.received(4)


async def test_close_while_paused(loop, link):
    transport, protocol, peer = await link(Recorder)
    transport.pause_reading()
    peer.sendall(b"never delivered")
    await turns(3)
    transport.close()
    assert not transport.is_reading()
    transport.resume_reading()
    await protocol.lost()
    assert protocol.calls == ["made", "lost"]
    assert protocol.reason is None


async def test_backpressure_reaches_the_peer(loop, link):
    """Nothing is read ahead without bound while reading is paused."""
    transport, protocol, peer = await link(Recorder)
    transport.pause_reading()
    peer.setblocking(False)
    sent = 0
    for _ in range(20):
        try:
            while True:
                sent += peer.send(b"x" * 65536)
        except BlockingIOError:
            await asyncio.sleep(0.001)
    assert sent < 32 << 20
    transport.resume_reading()
    await protocol.received(sent)
    assert len(protocol.data) == sent


async def test_echo_with_flow_control(loop, link):
    """The usual proxy: pause reading while writing is paused."""

    class Careful(Echo):
        def pause_writing(self):
            super().pause_writing()
            self.transport.pause_reading()

        def resume_writing(self):
            super().resume_writing()
            self.transport.resume_reading()

    _, protocol, peer = await link(Careful)
    data = pattern(3 << 20)

    def slow():
        time.sleep(0.02)
        return read_exactly(peer, len(data))

    sending = asyncio.create_task(in_thread(send_on_a_twin, peer, data))
    assert await in_thread(slow) == data
    await sending
    assert protocol.data == data


def send_on_a_twin(sock, data):
    """On a descriptor of its own, as the socket is read by another."""
    with sock.dup() as twin:
        twin.settimeout(10)
        twin.sendall(data)
