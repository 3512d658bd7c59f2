"""Pipe transports: the basics of what asyncio offers."""

import asyncio
import os
import pty
import tempfile
import termios
import tty

import pytest
from support import Notes, fd_count, in_thread, pattern, turns, until


def opened(fd, mode, **options):
    return open(fd, mode, buffering=0, **options)


class Reading(Notes, asyncio.Protocol):
    def data_received(self, data):
        self.data += data
        self.note("data")


class Writing(Notes, asyncio.BaseProtocol):
    pass


def read_to_the_end(fd):
    data = bytearray()
    while piece := os.read(fd, 1 << 16):
        data += piece
    os.close(fd)
    return bytes(data)


async def reading(loop, fd, factory=Reading):
    return await loop.connect_read_pipe(factory, opened(fd, "rb"))


async def writing(loop, fd, factory=Writing):
    return await loop.connect_write_pipe(factory, opened(fd, "wb"))


def is_open(fd):
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True


def raw_terminal():
    master, slave = pty.openpty()
    tty.setraw(slave)
    return master, slave


async def test_reading(loop):
    reader, writer = os.pipe()
    transport, protocol = await loop.connect_read_pipe(Reading, open(reader, "rb", 0))
    assert isinstance(transport, asyncio.ReadTransport)
    assert transport.get_extra_info("pipe").fileno() == reader
    os.write(writer, b"data")
    await protocol.received(4)
    transport.pause_reading()
    assert not transport.is_reading()
    os.write(writer, b"more")
    await turns(4)
    assert protocol.data == b"data"
    transport.resume_reading()
    await protocol.received(8)
    os.close(writer)
    await protocol.lost()
    assert protocol.calls[-2:] == ["eof", "lost"]
    await turns(2)
    with pytest.raises(OSError):
        os.fstat(reader)


async def test_much_data(loop):
    data = pattern(1 << 20)
    reader, writer = os.pipe()
    transport, protocol = await loop.connect_read_pipe(Reading, open(reader, "rb", 0))
    out, outgoing = await loop.connect_write_pipe(Writing, open(writer, "wb", 0))
    out.write(data)
    await outgoing.called("pause")
    await protocol.received(len(data))
    await outgoing.called("resume")
    assert protocol.data == data
    out.close()
    await outgoing.lost()
    await protocol.lost()
    assert transport.is_closing()


async def test_writing(loop):
    reader, writer = os.pipe()
    transport, protocol = await loop.connect_write_pipe(Writing, open(writer, "wb", 0))
    assert isinstance(transport, asyncio.WriteTransport)
    assert transport.can_write_eof() is True
    transport.write(b"one ")
    transport.write(bytearray(b"two "))
    transport.writelines([b"three ", memoryview(b"four")])
    transport.write_eof()
    assert await in_thread(read_to_the_end, reader) == b"one two three four"
    await protocol.lost()
    assert protocol.reason is None


async def test_close_sends_what_is_pending(loop):
    data = pattern(1 << 20)
    reader, writer = os.pipe()
    transport, protocol = await loop.connect_write_pipe(Writing, open(writer, "wb", 0))
    transport.write(data)
    transport.close()
    assert await in_thread(read_to_the_end, reader) == data
    await protocol.lost()


async def test_abort_does_not(loop):
    reader, writer = os.pipe()
    transport, protocol = await loop.connect_write_pipe(Writing, open(writer, "wb", 0))
    transport.write(bytes(1 << 20))
    transport.abort()
    await protocol.lost()
    assert len(await in_thread(read_to_the_end, reader)) < 1 << 20


async def test_the_reader_goes(loop):
    reader, writer = os.pipe()
    transport, protocol = await loop.connect_write_pipe(Writing, open(writer, "wb", 0))
    os.close(reader)
    await protocol.lost()
    transport.write(b"dropped")
    transport.write(b"dropped")
    assert transport.is_closing()


async def test_terminals(loop):
    master, slave = pty.openpty()
    mode = termios.tcgetattr(slave)
    mode[3] &= ~(termios.ECHO | termios.ICANON)
    termios.tcsetattr(slave, termios.TCSANOW, mode)
    transport, protocol = await loop.connect_read_pipe(Reading, open(slave, "rb", 0))
    os.write(master, b"typed")
    await protocol.received(5)
    transport.close()
    await protocol.lost()
    os.close(master)


async def test_regular_files_are_refused(loop):
    with tempfile.TemporaryFile() as file:
        with pytest.raises(ValueError, match="Pipe transport is"):
            await loop.connect_read_pipe(Reading, file)
        with pytest.raises(ValueError, match="Pipe transport is only for"):
            await loop.connect_write_pipe(Writing, file)


async def test_nothing_is_left_behind(loop):
    before = fd_count()
    for _ in range(20):
        reader, writer = os.pipe()
        incoming, got = await loop.connect_read_pipe(Reading, open(reader, "rb", 0))
        outgoing, sent = await loop.connect_write_pipe(Writing, open(writer, "wb", 0))
        outgoing.write(b"data")
        await got.received(4)
        outgoing.close()
        await sent.lost()
        await got.lost()
        assert incoming.is_closing()
    await until(lambda: fd_count() <= before)
