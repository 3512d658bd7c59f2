"""Pipe transports under hostile use: numbers shared, reused and closed behind
the loop's back, protocols that raise, close or pause where they should not."""

import asyncio
import fcntl
import gc
import os
import stat
import warnings
import weakref

import pytest
from support import (
    Notes,
    fd_count,
    in_thread,
    not_with_home_away,
    pattern,
    run_script,
    turns,
    until,
)
from test_pipes import (
    Reading,
    Writing,
    is_open,
    opened,
    raw_terminal,
    read_to_the_end,
    reading,
    writing,
)


# -- numbers -----------------------------------------------------------------
@pytest.mark.not_on("asyncio", reason="takes the pipes for one")
async def test_the_program_closes_the_file(loop):
    """The number is another pipe's then."""
    reader, writer = os.pipe()
    file = opened(reader, "rb")
    old, got = await loop.connect_read_pipe(Reading, file)
    file.close()
    again, other = os.pipe()
    assert again == reader
    new, news = await reading(loop, again)
    os.write(other, b"for the new one")
    await news.received(15)
    old.close()
    await got.lost()
    await turns(3)
    assert is_open(again)
    os.write(other, b"!")
    await news.received(16)
    assert got.data == b""
    os.close(writer)
    os.close(other)
    await news.lost()
    assert not is_open(again)


async def test_the_program_watches_the_file(loop):
    """As with asyncio, it may: here without taking the transport's events."""
    reader, writer = os.pipe()
    _, got = await reading(loop, reader)
    seen = []
    loop.add_writer(writer, lambda: (seen.append(1), loop.remove_writer(writer)))
    await until(lambda: seen)
    os.write(writer, b"data")
    await got.received(4)
    os.close(writer)
    await got.lost()


@pytest.mark.not_on("asyncio", reason="takes the program's reader away")
async def test_beside_a_reader_of_the_program(loop):
    master, slave = raw_terminal()
    os.set_blocking(master, False)
    seen = []
    loop.add_reader(master, lambda: seen.append(os.read(master, 100)))
    transport, sent = await loop.connect_write_pipe(
        Writing, opened(master, "wb", closefd=False)
    )
    os.write(slave, b"typed")
    await until(lambda: seen)
    transport.write(b"shown")
    assert await in_thread(os.read, slave, 100) == b"shown"
    transport.close()
    await sent.lost()
    os.write(slave, b"again")
    await until(lambda: len(seen) == 2)
    assert seen == [b"typed", b"again"]
    loop.remove_reader(master)
    os.close(master)
    os.close(slave)


async def test_given_twice_to_write(loop):
    reader, writer = os.pipe()
    file = opened(writer, "wb")
    first, sent = await loop.connect_write_pipe(Writing, file)
    second, also = await loop.connect_write_pipe(Writing, file)
    first.write(b"one")
    assert await in_thread(os.read, reader, 100) == b"one"
    second.write(b"two")
    assert await in_thread(os.read, reader, 100) == b"two"
    first.close()
    second.close()
    await sent.lost()
    await also.lost()
    assert await in_thread(read_to_the_end, reader) == b""
    assert file.closed


@pytest.mark.not_on("asyncio", reason="the first one gets nothing any more")
async def test_given_twice_to_read(loop):
    reader, writer = os.pipe()
    file = opened(reader, "rb")
    _, first = await loop.connect_read_pipe(Reading, file)
    _, second = await loop.connect_read_pipe(Reading, file)
    for number in range(20):
        os.write(writer, b"x" * 10)
        total = 10 * number + 10
        await until(lambda t=total: len(first.data) + len(second.data) == t)
    os.close(writer)
    await first.lost()
    await second.lost()
    assert file.closed


@pytest.mark.not_on("asyncio", reason="reads and writes the stranger's pipe")
async def test_the_program_closes_a_shared_file(loop):
    """The number is a stranger's then, whose pipe would block."""
    master, slave = raw_terminal()
    file = opened(master, "rb+")
    incoming, got = await loop.connect_read_pipe(Reading, file)
    outgoing, sent = await loop.connect_write_pipe(Writing, file)
    file.close()
    reader, writer = os.pipe()
    assert reader == master
    os.write(slave, b"data")
    await got.received(4)
    outgoing.write(b"still here")
    assert await in_thread(os.read, slave, 100) == b"still here"
    outgoing.close()
    incoming.close()
    await sent.lost()
    await got.lost()
    os.close(slave)
    assert os.get_blocking(reader) and is_open(reader)
    os.write(writer, b"x")
    assert os.read(reader, 10) == b"x"
    os.close(reader)
    os.close(writer)


# -- protocols ---------------------------------------------------------------
class Failing(Reading):
    where = ""

    def note(self, name):
        super().note(name)
        if name == self.where:
            raise ZeroDivisionError(name)


@pytest.mark.parametrize("where", ["made", "data", "eof", "lost"])
async def test_errors_in_a_reader(loop, reports, where):
    reader, writer = os.pipe()
    protocol = Failing()
    protocol.where = where
    await loop.connect_read_pipe(lambda: protocol, opened(reader, "rb"))
    for number in range(2):
        os.write(writer, b"data")
        await protocol.until(lambda number=number: len(protocol.data) == 4 * number + 4)
        await turns(2)
    os.close(writer)
    await protocol.lost()
    await turns(2)
    assert [type(context["exception"]) for context in reports] == (
        [ZeroDivisionError] * (2 if where == "data" else 1)
    )
    assert protocol.data == b"datadata"
    assert protocol.calls[-2:] == ["eof", "lost"]
    assert not is_open(reader)


@pytest.mark.parametrize("where", ["made", "pause", "resume", "lost"])
async def test_errors_in_a_writer(loop, reports, where):
    reader, writer = os.pipe()
    protocol = Failing()
    protocol.where = where
    transport, _ = await loop.connect_write_pipe(lambda: protocol, opened(writer, "wb"))
    data = pattern(300_000)
    transport.write(data)
    transport.close()
    assert await in_thread(read_to_the_end, reader) == data
    await protocol.lost()
    await turns(2)
    assert [type(context["exception"]) for context in reports] == [ZeroDivisionError]
    assert not is_open(writer)


@pytest.mark.parametrize("where", ["data", "eof", "pause", "resume"])
async def test_closed_in_a_callback(loop, where):
    await close_in_a_callback(loop, where, "close")


@pytest.mark.not_on("asyncio", reason="reports errors of its own")
@pytest.mark.parametrize("where", ["made", "data", "eof", "pause", "resume"])
async def test_aborted_in_a_callback(loop, where):
    await close_in_a_callback(loop, where, "abort")


@pytest.mark.not_on("asyncio", reason="reports errors of its own")
async def test_closed_at_once(loop):
    await close_in_a_callback(loop, "made", "close")


async def close_in_a_callback(loop, where, how):
    class Closing(Notes, asyncio.Protocol):
        def note(self, name):
            super().note(name)
            if name == where:
                getattr(self.transport, how, self.transport.close)()

        def data_received(self, data):
            self.data += data
            self.note("data")

    loop.set_debug(False)  # in which asyncio asks the file for its number
    await turns(1)
    before = fd_count()
    reader, writer = os.pipe()
    incoming, got = await reading(loop, reader, Closing)
    outgoing, sent = await writing(loop, writer, Closing)
    outgoing.write(pattern(200_000))
    outgoing.write(b"more")
    await turns(5)
    outgoing.close()
    await got.lost()
    await sent.lost()
    await turns(2)
    for protocol in (got, sent):
        assert protocol.calls.count("lost") == 1
        assert protocol.calls[-1] == "lost"
    assert fd_count() == before
    assert incoming.is_closing() and outgoing.is_closing()


async def test_paused_in_a_callback(loop):
    reader, writer = os.pipe()

    class Pausing(Reading):
        def data_received(self, data):
            super().data_received(data)
            self.transport.pause_reading()

    transport, got = await reading(loop, reader, Pausing)
    os.write(writer, b"one")
    await got.received(3)
    os.write(writer, b"two")
    os.close(writer)
    await turns(5)
    assert got.data == b"one" and "eof" not in got.calls
    transport.resume_reading()
    await got.received(6)
    await turns(5)
    assert "eof" not in got.calls
    transport.resume_reading()
    await got.lost()
    assert got.data == b"onetwo" and got.calls[-2:] == ["eof", "lost"]


async def test_paused_before_the_start(loop):
    reader, writer = os.pipe()
    os.write(writer, b"early")

    class Paused(Reading):
        def connection_made(self, transport):
            super().connection_made(transport)
            transport.pause_reading()

    transport, got = await reading(loop, reader, Paused)
    await turns(5)
    assert got.data == b""
    transport.resume_reading()
    await got.received(5)
    os.close(writer)
    await got.lost()


async def test_another_protocol(loop):
    reader, writer = os.pipe()
    transport, got = await reading(loop, reader)
    os.write(writer, b"one")
    await got.received(3)
    other = Reading()
    transport.set_protocol(other)
    assert transport.get_protocol() is other
    os.write(writer, b"two")
    await other.received(3)
    os.close(writer)
    await other.lost()
    assert got.data == b"one" and "lost" not in got.calls


@pytest.mark.not_on("asyncio", reason="has data_received() only, for pipes")
async def test_buffers(loop):
    class Buffered(Notes, asyncio.BufferedProtocol):
        def get_buffer(self, hint):
            self.buffer = bytearray(10)
            return self.buffer

        def buffer_updated(self, count):
            self.data += self.buffer[:count]
            self.note("data")

    reader, writer = os.pipe()
    transport, got = await reading(loop, reader, Buffered)
    os.write(writer, pattern(1000))
    await got.received(1000)
    transport.pause_reading()
    os.write(writer, b"more")
    await turns(3)
    assert got.data == pattern(1000)
    transport.resume_reading()
    await got.received(1004)
    os.close(writer)
    await got.lost()


@not_with_home_away
# -- writing -----------------------------------------------------------------
async def test_flow_control(loop):
    reader, writer = os.pipe()
    transport, sent = await writing(loop, writer)
    assert transport.get_write_buffer_limits() == (16 * 1024, 64 * 1024)
    transport.set_write_buffer_limits(high=100, low=10)
    assert transport.get_write_buffer_limits() == (10, 100)
    fcntl.fcntl(reader, fcntl.F_SETPIPE_SZ, 4096)
    transport.write(pattern(4096))
    assert transport.get_write_buffer_size() == 0
    transport.write(b"x" * 100)
    assert transport.get_write_buffer_size() == 100
    assert "pause" not in sent.calls
    transport.write(b"x")
    assert sent.calls[-1] == "pause"
    assert os.read(reader, 4096) == pattern(4096)
    await sent.called("resume")
    assert transport.get_write_buffer_size() == 0
    with pytest.raises(ValueError, match="must be"):
        transport.set_write_buffer_limits(high=1, low=2)
    transport.close()
    await sent.lost()
    assert os.read(reader, 4096) == b"x" * 101
    os.close(reader)


async def test_the_reader_goes_with_data_pending(loop):
    for closing in (False, True):
        reader, writer = os.pipe()
        transport, sent = await writing(loop, writer)
        transport.write(bytes(1 << 20))
        if closing:
            transport.close()
        os.close(reader)
        await sent.lost()
        assert isinstance(sent.reason, BrokenPipeError)
        assert not is_open(writer)


async def test_writing_to_a_closed_pipe(loop, caplog):
    reader, writer = os.pipe()
    transport, sent = await writing(loop, writer)
    transport.close()
    for data in (b"", b"data", bytearray(b"data"), memoryview(b"data")):
        transport.write(data)
    transport.writelines([b"data", b"more"])
    await sent.lost()
    for _ in range(6):
        transport.write(b"data")
    transport.write_eof()
    transport.close()
    await turns(2)
    assert sent.calls == ["made", "lost"]
    assert any("pipe closed by peer" in message for message in caplog.messages)
    assert await in_thread(read_to_the_end, reader) == b""


@pytest.mark.not_on("asyncio", reason="reports its end twice, or fails")
async def test_abort_of_a_closed_pipe(loop):
    reader, writer = os.pipe()
    transport, sent = await writing(loop, writer)
    transport.close()
    transport.abort()
    await sent.lost()
    transport.abort()
    await turns(2)
    assert sent.calls == ["made", "lost"]
    os.close(reader)


@pytest.mark.not_on("asyncio", reason="fails with an AssertionError")
async def test_writing_what_is_no_data(loop):
    reader, writer = os.pipe()
    transport, sent = await writing(loop, writer)
    for data in ("text", 17, None):
        with pytest.raises(TypeError, match="bytes-like"):
            transport.write(data)
    transport.close()
    for data in ("text", 17, None):
        with pytest.raises(TypeError, match="bytes-like"):
            transport.write(data)
    await sent.lost()
    os.close(reader)


async def test_a_large_burst_of_small_writes(loop):
    reader, writer = os.pipe()
    transport, sent = await writing(loop, writer)
    data = pattern(200_000)
    for at in range(0, len(data), 100):
        transport.write(data[at : at + 100])
    transport.close()
    assert await in_thread(read_to_the_end, reader) == data
    await sent.lost()
    assert sent.reason is None


async def test_write_eof_is_close(loop):
    reader, writer = os.pipe()
    transport, sent = await writing(loop, writer)
    transport.write(pattern(100_000))
    transport.write_eof()
    assert transport.is_closing()
    assert await in_thread(read_to_the_end, reader) == pattern(100_000)
    await sent.lost()
    assert not is_open(writer)


# -- life --------------------------------------------------------------------
async def test_what_a_transport_is(loop):
    reader, writer = os.pipe()
    incoming, got = await reading(loop, reader)
    outgoing, sent = await writing(loop, writer)
    assert isinstance(incoming, asyncio.ReadTransport)
    assert not isinstance(incoming, asyncio.WriteTransport)
    assert isinstance(outgoing, asyncio.WriteTransport)
    for transport, fd in ((incoming, reader), (outgoing, writer)):
        assert transport.get_extra_info("pipe").fileno() == fd
        assert transport.get_extra_info("socket") is None
        assert transport.get_extra_info("socket", "none") == "none"
        assert str(fd) in repr(transport)
        assert stat.S_ISFIFO(os.fstat(fd).st_mode)
        assert not os.get_blocking(fd)
        weakref.ref(transport)
    assert not hasattr(incoming, "write")
    with pytest.raises(NotImplementedError):
        outgoing.pause_reading()
    outgoing.close()
    await sent.lost()
    await got.lost()
    assert "closed" in repr(incoming) and "closed" in repr(outgoing)


async def test_a_cancelled_connect(loop):
    before = fd_count()
    for count in range(4):
        for connect, mode in (
            (loop.connect_read_pipe, "rb"),
            (loop.connect_write_pipe, "wb"),
        ):
            reader, writer = os.pipe()
            mine, other = (reader, writer) if mode == "rb" else (writer, reader)
            file = opened(mine, mode)
            task = loop.create_task(connect(Reading, file))
            await turns(count)
            task.cancel()
            try:
                transport, _ = await task
            except asyncio.CancelledError:
                pass
            else:
                transport.close()
            await turns(3)
            file.close()
            os.close(other)
    await until(lambda: fd_count() <= before)


async def test_nothing_keeps_a_closed_pipe(loop):
    reader, writer = os.pipe()
    incoming, got = await reading(loop, reader)
    outgoing, sent = await writing(loop, writer)
    outgoing.write(b"data")
    await got.received(4)
    outgoing.close()
    await sent.lost()
    await got.lost()
    await turns(2)
    refs = [weakref.ref(x) for x in (incoming, outgoing, got, sent)]
    del incoming, outgoing, got, sent
    gc.collect()
    assert [ref() for ref in refs] == [None] * 4


def test_a_loop_that_is_closed_first(new_loop):
    before = fd_count()
    loop = new_loop()
    pipes = [os.pipe() for _ in range(2)]
    files = []

    async def connect(loop):
        files.append(opened(pipes[0][0], "rb"))
        files.append(opened(pipes[1][1], "wb"))
        await loop.connect_read_pipe(Reading, files[0])
        transport, _ = await loop.connect_write_pipe(Writing, files[1])
        transport.write(bytes(1 << 20))

    loop.run_until_complete(connect(loop))
    loop.close()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        gc.collect()
    assert len([w for w in caught if "unclosed transport" in str(w.message)]) == 2
    assert all(file.closed for file in files)
    os.close(pipes[0][1])
    os.close(pipes[1][0])
    del loop
    new_loop.loops.clear()
    gc.collect()
    assert fd_count() <= before


def test_a_forked_child(new_loop):
    """It has copies of the pipes; what it does with them is its own affair."""
    run_script(
        new_loop,
        """
    import gc, warnings
    warnings.simplefilter('ignore')
    class Protocol(asyncio.Protocol):
        def __init__(self):
            self.data = b''
        def data_received(self, data):
            self.data += data
    async def main():
        r, w = os.pipe()
        incoming, got = await loop.connect_read_pipe(Protocol, open(r, 'rb', 0))
        outgoing, _ = await loop.connect_write_pipe(Protocol, open(w, 'wb', 0))
        outgoing.write(b'before ')
        pid = os.fork()
        if pid == 0:
            os._exit(0)
        assert os.waitpid(pid, 0)[1] == 0
        outgoing.write(b'after')
        outgoing.close()
        while got.data != b'before after':
            await asyncio.sleep(0.001)
        while not incoming.is_closing():
            await asyncio.sleep(0.001)
    loop = new_loop()
    loop.run_until_complete(asyncio.wait_for(main(), 10))
    loop.close()
    """,
        options=(),
    )
