"""Nobody starves: neither by floods of data nor by endless callbacks.

A flood lasts until the others are done, so that starving is a hang.
"""

import asyncio
import contextlib
import functools
import threading
import time

import pytest
from support import (
    FREE_THREADED,
    BufferedRecorder,
    Echo,
    Recorder,
    in_thread,
    read_exactly,
    unix_pair,
    within,
)


class Sink(Recorder):
    """Counts, as the flood is long."""

    count = 0

    def data_received(self, data):
        self.count += len(data)


class BufferedSink(BufferedRecorder):
    count = 0

    def buffer_updated(self, nbytes):
        self.count += nbytes


class Source(Recorder):
    """Writes without an end, whenever it is not paused."""

    def connection_made(self, transport):
        super().connection_made(transport)
        self.pump()

    def pump(self):
        while self.calls[-1] != "pause":
            self.transport.write(bytes(50_000))

    def resume_writing(self):
        super().resume_writing()
        self.pump()


@contextlib.asynccontextmanager
async def thread_until_done(work):
    """Runs work(sock, done) beside the loop; `done` is set at the end."""
    done = threading.Event()
    task = asyncio.create_task(in_thread(work, done))
    try:
        yield
    finally:
        done.set()
        await task


def flood(peer):
    def send(done):
        with contextlib.suppress(ConnectionError):
            while not done.is_set():
                peer.sendall(bytes(200_000))

    return thread_until_done(send)


def drought(peer):
    def receive(done):
        with contextlib.suppress(ConnectionError):
            while not done.is_set():
                peer.recv(200_000)

    return thread_until_done(receive)


async def everything_else_goes_on(loop, link):
    """Other connections, timers, callbacks and threads."""
    _, _, peer = await link(Echo)
    for number in range(20):
        peer.sendall(b"%02d" % number)
        assert await in_thread(read_exactly, peer, 2) == b"%02d" % number
    for _ in range(10):
        await asyncio.sleep(0.0005)
    for _ in range(100):
        await asyncio.sleep(0)
    assert await in_thread(int, "17") == 17


@pytest.mark.parametrize("sink", [Sink, BufferedSink])
async def test_a_flood_of_input(loop, link, sink):
    transport, protocol, peer = await link(sink)
    async with flood(peer):
        await within(everything_else_goes_on(loop, link))
        transport.abort()
        await protocol.lost()
    assert protocol.count > 0


async def test_a_flood_of_output(loop, link):
    transport, protocol, peer = await link(Source)
    async with drought(peer):
        await within(everything_else_goes_on(loop, link))
        transport.abort()
        await protocol.lost()
    assert protocol.calls.count("resume") > 0


async def test_several_floods(loop, link):
    async with contextlib.AsyncExitStack() as stack:
        transports = []
        for _ in range(3):
            transport, protocol, peer = await link(Sink)
            await stack.enter_async_context(flood(peer))
            transports.append((transport, protocol))
        await within(everything_else_goes_on(loop, link))
        for transport, protocol in transports:
            transport.abort()
            await protocol.lost()
            assert protocol.count > 0


async def test_endless_callbacks(loop, link):
    ended = False

    def soon():
        if not ended:
            loop.call_soon(soon)

    def later():
        if not ended:
            loop.call_later(0, later)

    soon()
    later()
    mine, peer = unix_pair()
    loop.add_writer(mine, int)
    await within(everything_else_goes_on(loop, link))
    loop.remove_writer(mine)
    mine.close()
    peer.close()
    ended = True


async def test_closing_in_the_middle_of_a_flood(loop, link):
    """With data read already that nobody has been given."""
    for way in ("close", "abort", "pause"):
        transport, protocol, peer = await link(Sink)
        async with flood(peer):
            await asyncio.sleep(0.002)
            if way == "pause":
                transport.pause_reading()
                count = protocol.count
                await asyncio.sleep(0.002)
                assert protocol.count == count
                transport.abort()
            else:
                getattr(transport, way)()
                count = protocol.count
            await protocol.lost()
        assert protocol.count == count


@pytest.mark.skipif(FREE_THREADED, reason="there is no GIL to be given up")
async def test_threads_beside_endless_callbacks(loop):
    """They get their turn of the GIL, although the loop never sleeps.  The
    best of three tries counts, as the machine may be busy."""
    ended = False
    limit = 0.15

    def soon():
        if not ended:
            loop.call_soon(soon)

    def later():
        if not ended:
            loop.call_later(0, later)

    async def longest():
        worst = 0.0
        for _ in range(300):
            begin = time.monotonic()
            await in_thread(int)
            worst = max(worst, time.monotonic() - begin)
            if worst > limit:
                break
        return worst

    mine, peer = unix_pair()
    loop.add_writer(mine, int)
    soon()
    later()
    tries = [await longest()]
    while tries[-1] > limit and len(tries) < 3:
        tries.append(await longest())
    ended = True
    loop.remove_writer(mine)
    mine.close()
    peer.close()
    assert min(tries) <= limit, f"a thread waited for {tries} s"


@pytest.mark.skipif(FREE_THREADED, reason="about the GIL")
async def test_threads_beside_callbacks_without_bytecode(loop):
    """Where no callback is Python the interpreter never gives up the GIL: the
    loop has to."""
    soon = functools.partial(loop.call_soon, None)
    soon.__setstate__((loop.call_soon, (soon,), {}, None))
    ended = threading.Event()
    slept = []

    def sleep():
        while not ended.is_set():
            time.sleep(0.001)
            slept.append(time.monotonic())

    thread = threading.Thread(target=sleep)
    thread.start()
    soon()
    await asyncio.sleep(0.5)
    end = time.monotonic()
    soon.__setstate__((int, (), {}, None))
    ended.set()
    thread.join()
    assert sum(end - 0.45 < when < end for when in slept) >= 10
