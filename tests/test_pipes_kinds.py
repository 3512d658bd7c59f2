"""Pipe transports on all that may be a pipe: FIFOs, sockets, devices,
terminals in one or both directions."""

import asyncio
import os
import pty
import socket
import termios

import pytest
from support import fd_count, in_thread, pattern, run_script, turns, within
from test_pipes import (
    Reading,
    Writing,
    is_open,
    opened,
    raw_terminal,
    reading,
    writing,
)


# -- what may be a pipe ------------------------------------------------------
async def test_named_pipes(loop, tmp_path):
    path = tmp_path / "fifo"
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    _, got = await reading(loop, reader)
    await turns(3)
    assert got.calls == ["made"]  # there was no writer yet: no end
    writers = [os.open(path, os.O_WRONLY) for _ in range(2)]
    for number, writer in enumerate(writers):
        os.write(writer, b"%d" % number)
    await got.received(2)
    os.close(writers[0])
    await turns(3)
    assert "eof" not in got.calls
    out, sent = await writing(loop, writers[1])
    out.write(b"2")
    out.close()
    await sent.lost()
    await got.lost()
    assert got.data == b"012" and got.reason is None


async def test_sockets(loop):
    a, b, c, d = *socket.socketpair(), *socket.socketpair()
    incoming, got = await loop.connect_read_pipe(Reading, a)
    outgoing, sent = await loop.connect_write_pipe(Writing, c)
    b.send(b"data")
    await got.received(4)
    outgoing.write(b"more")
    assert await in_thread(d.recv, 10) == b"more"
    outgoing.close()
    await sent.lost()
    assert await in_thread(d.recv, 10) == b""
    b.close()
    await got.lost()
    assert got.calls[-2:] == ["eof", "lost"]
    assert a.fileno() == c.fileno() == -1
    d.close()


async def test_the_reader_of_a_socket_goes(loop):
    a, b = socket.socketpair()
    _, sent = await loop.connect_write_pipe(Writing, a)
    b.shutdown(socket.SHUT_WR)
    await sent.lost()
    assert sent.reason is None
    b.close()


@pytest.mark.not_on("asyncio", reason="takes data for the end of the connection")
async def test_a_peer_that_sends_has_not_gone(loop):
    a, b = socket.socketpair()
    outgoing, sent = await loop.connect_write_pipe(Writing, a)
    b.send(b"data")
    await turns(5)
    outgoing.write(b"still here")
    assert await in_thread(b.recv, 100) == b"still here"
    assert "lost" not in sent.calls
    outgoing.close()
    await sent.lost()
    b.close()


async def test_writing_to_a_device(loop):
    before = fd_count()
    for name in ("/dev/null", "/dev/zero"):
        out, sent = await writing(loop, os.open(name, os.O_WRONLY))
        out.write(b"x" * 100_000)
        out.writelines([b"more"] * 10)
        out.close()
        await sent.lost()
        assert sent.reason is None
    assert fd_count() == before


@pytest.mark.not_on("asyncio", reason="its selector refuses such devices")
async def test_reading_from_a_device(loop):
    before = fd_count()
    _, got = await reading(loop, os.open("/dev/null", os.O_RDONLY))
    await got.lost()
    assert got.calls == ["made", "eof", "lost"]
    transport, got = await reading(loop, os.open("/dev/zero", os.O_RDONLY))
    await got.received(1 << 20)
    transport.pause_reading()
    await turns(2)
    size = len(got.data)
    await turns(3)
    assert len(got.data) == size
    transport.resume_reading()
    await got.received(size + 1)
    transport.close()
    await got.lost()
    assert fd_count() == before


@pytest.mark.not_on("asyncio", reason="its destructors fail")
@pytest.mark.parametrize("what", ["file", "folder", "closed", "number"])
async def test_what_is_refused(loop, tmp_path, what):
    if what == "file":
        file = open(tmp_path / "file", "wb+", buffering=0)
        error = ValueError
    elif what == "folder":
        fd = os.open(tmp_path, os.O_RDONLY)

        class Folder:
            def fileno(self):
                return fd

            def close(self):
                os.close(fd)

        file, error = Folder(), ValueError
    elif what == "closed":
        reader, writer = os.pipe()
        os.close(writer)
        file, error = opened(reader, "rb"), ValueError
        file.close()
    else:
        file, error = 0, AttributeError
    before = fd_count()
    for connect in (loop.connect_read_pipe, loop.connect_write_pipe):
        protocol = Reading()
        with pytest.raises(error):
            await connect(lambda protocol=protocol: protocol, file)
        await turns(2)
        assert protocol.calls == []
    assert fd_count() == before
    if what in ("file", "folder"):
        file.close()


async def test_packets_are_kept_apart(loop):
    reader, writer = os.pipe2(os.O_DIRECT | os.O_CLOEXEC)
    packets = []

    class Packets(Reading):
        def data_received(self, data):
            packets.append(data)
            super().data_received(data)

    for number in range(10):
        os.write(writer, b"%d" % number)
    _, got = await reading(loop, reader, Packets)
    await got.received(10)
    assert packets == [b"%d" % number for number in range(10)]
    os.close(writer)
    await got.lost()


# -- terminals ---------------------------------------------------------------
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("first", ["reader", "writer"])
async def test_both_directions_of_a_terminal(loop, shared, first):
    before = fd_count()
    master, slave = raw_terminal()
    if shared:
        file = opened(master, "rb+")
        files = (file, file)
    else:
        files = (opened(master, "rb"), opened(os.dup(master), "wb"))
    incoming, got = await loop.connect_read_pipe(Reading, files[0])
    outgoing, sent = await loop.connect_write_pipe(Writing, files[1])
    for number in range(5):
        os.write(slave, b"s%d" % number)
        await got.received(2 * number + 2)
        outgoing.write(b"t%d" % number)
        assert await in_thread(os.read, slave, 100) == b"t%d" % number
    for transport, protocol in (
        ((incoming, got), (outgoing, sent))
        if first == "reader"
        else ((outgoing, sent), (incoming, got))
    ):
        transport.close()
        await protocol.lost()
    assert got.data == b"s0s1s2s3s4"
    os.close(slave)
    await turns(1)
    assert fd_count() == before
    assert files[0].closed and files[1].closed


@pytest.mark.not_on("asyncio", reason="the first to close takes the number")
async def test_who_stays_goes_on(loop):
    for goes in (0, 1, 2):
        before = fd_count()
        master, slave = raw_terminal()
        file = opened(master, "rb+")
        pairs = [
            await loop.connect_read_pipe(Reading, file),
            await loop.connect_write_pipe(Writing, file),
            await loop.connect_write_pipe(Writing, file),
        ]
        transport, protocol = pairs.pop(goes)
        transport.close()
        await protocol.lost()
        for transport, protocol in pairs:
            if isinstance(protocol, Reading):
                os.write(slave, b"data")
                await protocol.received(4)
            else:
                transport.write(b"data")
                assert await in_thread(os.read, slave, 100) == b"data"
        for transport, protocol in pairs:
            transport.close()
            await protocol.lost()
        assert file.closed and not is_open(master)
        os.close(slave)
        assert fd_count() == before


async def test_a_terminal_hangs_up(loop):
    master, slave = raw_terminal()
    _, got = await reading(loop, master)
    os.write(slave, b"last words")
    os.close(slave)
    await got.lost()
    assert got.data == b"last words"
    assert isinstance(got.reason, OSError)  # EIO
    assert "eof" not in got.calls


async def test_lines_of_a_terminal(loop):
    master, slave = pty.openpty()
    lines = []

    class Lines(Reading):
        def data_received(self, data):
            lines.append(data)
            super().data_received(data)

    transport, got = await reading(loop, slave, Lines)
    os.write(master, b"one\ntwo\nthree\n")
    await got.received(14)
    assert lines == [b"one\n", b"two\n", b"three\n"]
    os.write(master, bytes([4]))  # ^D: the end
    await got.lost()
    assert got.calls[-2:] == ["eof", "lost"]
    os.close(master)


async def test_a_terminal_that_never_blocks(loop):
    master, slave = raw_terminal()
    mode = termios.tcgetattr(slave)
    mode[6][termios.VMIN] = mode[6][termios.VTIME] = 0
    termios.tcsetattr(slave, termios.TCSANOW, mode)
    transport, got = await reading(loop, slave)
    for number in range(3):
        os.write(master, b"data")
        await got.received(4 * number + 4)
        await turns(3)
    assert "eof" not in got.calls
    transport.close()
    await got.lost()
    os.close(master)


# -- standard streams ----------------------------------------------------------
@pytest.mark.not_on("asyncio", reason="cannot read from /dev/null")
def test_the_standard_streams_of_a_daemon(new_loop):
    out = run_script(
        new_loop,
        """
    async def main():
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader()
        await loop.connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
        assert await reader.read() == b''
        transport, protocol = await loop.connect_write_pipe(
            asyncio.streams.FlowControlMixin, sys.stdout)
        writer = asyncio.StreamWriter(transport, protocol, None, loop)
        for number in range(1000):
            writer.write(b'%d\\n' % number)
        await writer.drain()
        other, protocol = await loop.connect_write_pipe(
            asyncio.Protocol, open('/dev/null', 'wb', 0))
        other.write(b'nowhere')
        other.close()
        writer.close()
    loop = new_loop()
    loop.run_until_complete(asyncio.wait_for(main(), 10))
    loop.run_until_complete(asyncio.sleep(0.01))
    loop.close()
    """,
        options=(),
    )
    assert out == "".join(f"{number}\n" for number in range(1000))


async def test_streams_over_pipes(loop):
    reader, writer = os.pipe()
    stream = asyncio.StreamReader()
    incoming, _ = await loop.connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(stream), opened(reader, "rb")
    )
    transport, protocol = await loop.connect_write_pipe(
        asyncio.streams.FlowControlMixin, opened(writer, "wb")
    )
    out = asyncio.StreamWriter(transport, protocol, None, loop)
    data = pattern(1 << 20)

    async def send():
        out.write(b"a line\n")
        await out.drain()
        out.write(data)
        await out.drain()
        out.close()

    task = loop.create_task(send())
    assert await within(stream.readline()) == b"a line\n"
    assert await within(stream.readexactly(1000)) == data[:1000]
    assert await within(stream.read()) == data[1000:]
    await within(task)
    assert incoming.is_closing()
    await turns(2)
