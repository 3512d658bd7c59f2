"""loop.sendfile() and sock_sendfile(): what is sent, where the file stands
afterwards, what the kernel cannot send, and who else gets a turn meanwhile.
(More of both in test_executors.py and test_sock.py.)"""

import asyncio
import contextlib
import io
import os
import socket
import ssl
import tempfile

import pytest
import support
from support import Recorder, in_thread, pattern, read_all, read_exactly, within

SIZE = 1 << 20


@pytest.fixture
def file():
    with tempfile.TemporaryFile() as made:
        made.write(pattern(SIZE))
        made.flush()
        yield made


@pytest.fixture(params=["sendfile", "sock_sendfile"])
def sender(request, loop, link):
    """Makes (send(file, ...), the peer's socket, what ends it)."""

    async def make():
        if request.param == "sendfile":
            transport, _, peer = await link(Recorder)

            async def send(*args, **kwargs):
                return await within(loop.sendfile(transport, *args, **kwargs))

            return send, peer, transport.abort
        mine, peer = support.stream_pair(link.family)
        link.sockets += [mine, peer]
        mine.setblocking(False)

        async def send(*args, **kwargs):
            return await within(loop.sock_sendfile(mine, *args, **kwargs))

        return send, peer, mine.close

    return make


class Raw(io.RawIOBase):
    """A file that has no descriptor; `seekable` as told."""

    def __init__(self, data, can_seek=True):
        self.inner = io.BytesIO(data)
        self.can_seek = can_seek
        self.sizes = []

    def readable(self):
        return True

    def readinto(self, buffer):
        self.sizes.append(len(buffer))
        return self.inner.readinto(buffer)

    def seekable(self):
        return self.can_seek

    def seek(self, *args):
        return self.inner.seek(*args)

    def tell(self):
        return self.inner.tell()


@pytest.mark.parametrize(
    ("offset", "count"),
    [(0, None), (0, 1), (SIZE - 1, None), (5, SIZE), (SIZE, 5), (SIZE + 9, None)],
)
@pytest.mark.parametrize("kind", ["file", "raw"])
async def test_offset_count_and_position(sender, new_loop, file, kind, offset, count):
    send, peer, end = await sender()
    data = pattern(SIZE)
    want = data[offset : None if count is None else offset + count]
    source = file if kind == "file" else Raw(data)
    if new_loop.kind != "asyncio":  # whose fallback would go on from there
        source.seek(77)
    reading = asyncio.create_task(in_thread(read_all, peer))
    assert await send(source, offset, count) == len(want)
    if want:
        assert source.tell() == offset + len(want)
    end()
    with contextlib.suppress(ConnectionResetError):
        assert (await reading) == want or end.__name__ == "abort"


async def test_a_pipe_goes_by_the_fallback(sender):
    send, peer, _ = await sender()
    source, other = os.pipe()
    os.write(other, b"0123456789")
    os.close(other)
    with open(source, "rb", buffering=0) as pipe:
        with pytest.raises(asyncio.SendfileNotAvailableError):
            await send(pipe, 0, 4, fallback=False)
        # A pipe has no position to be set afterwards, as in asyncio.
        with pytest.raises(OSError, match="Illegal seek"):
            await send(pipe, 0, 4)
    assert await in_thread(read_exactly, peer, 4) == b"0123"


async def test_device(sender):
    send, peer, _ = await sender()
    with open("/dev/zero", "rb", buffering=0) as zero:
        reading = asyncio.create_task(in_thread(read_exactly, peer, 100_000))
        assert await send(zero, 0, 100_000) == 100_000
        assert await reading == bytes(100_000)
        # It has no size: without a count it is empty, as in asyncio.
        assert await send(zero) == 0


async def test_what_cannot_be_sent(sender, file):
    send, peer, _ = await sender()
    with pytest.raises(ValueError, match="count must be a positive integer"):
        await send(file, 0, 0)
    with pytest.raises(TypeError, match="offset must be a non-negative integer"):
        await send(file, "0")
    with pytest.raises(AttributeError):
        await send(object())
    with tempfile.NamedTemporaryFile("w") as text:
        with pytest.raises(ValueError, match="binary mode"):
            await send(text)
    closed = tempfile.TemporaryFile()
    closed.close()
    with pytest.raises(ValueError, match="closed file"):
        await send(closed)
    with tempfile.TemporaryFile() as empty:
        assert await send(empty) == 0
    write_only = os.open(file.fileno() and "/dev/null", os.O_WRONLY)
    with open(write_only, "wb", buffering=0) as sink:
        with pytest.raises((OSError, asyncio.SendfileNotAvailableError)):
            await send(sink, 0, 10, fallback=False)
    # And the connection is as it was.
    assert await send(file, 0, 10) == 10
    assert await in_thread(read_exactly, peer, 10) == pattern(SIZE)[:10]


@pytest.mark.parametrize("size", [0, 16384, 16385, 200_000])
async def test_fallback_is_bounded(sender, size):
    send, peer, _ = await sender()
    data = pattern(200_000)
    source = Raw(data)
    reading = asyncio.create_task(in_thread(read_exactly, peer, len(data)))
    assert await send(source, 0, size or None) == (size or len(data))
    if size and size < len(data):
        assert await send(source, size) == len(data) - size
    assert await reading == data
    assert max(source.sizes) <= 1 << 18


async def test_a_failing_read_ends_the_fallback(sender):
    send, peer, _ = await sender()

    class Failing(Raw):
        def readinto(self, buffer):
            if self.inner.tell() >= 70_000:
                raise OSError("the disk is on fire")
            return super().readinto(buffer)

    source = Failing(bytes(100_000))
    reading = asyncio.create_task(in_thread(read_exactly, peer, 70_000))
    with pytest.raises(OSError, match="on fire"):
        await send(source, 0)
    assert source.tell() >= 70_000
    assert await reading == bytes(70_000)


async def test_fallback_and_the_peer_goes(loop, link):
    transport, protocol, peer = await link(Recorder)
    source = Raw(bytes(64 << 20))
    task = loop.create_task(loop.sendfile(transport, source))
    await in_thread(read_exactly, peer, 1000)
    peer.close()
    with pytest.raises(OSError):
        await within(task)
    assert source.tell() < 64 << 20
    transport.abort()
    await protocol.lost()


async def test_cancelled_fallback(loop, link):
    transport, protocol, peer = await link(Recorder)
    source = Raw(bytes(64 << 20))
    task = loop.create_task(loop.sendfile(transport, source))
    await in_thread(read_exactly, peer, 1000)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await within(task)
    # The protocol is the connection's own again.
    assert transport.get_protocol() is protocol
    transport.write(b"the end")
    transport.close()
    assert (await in_thread(read_all, peer)).endswith(b"the end")
    await protocol.lost()


@pytest.mark.not_on("asyncio", reason="the position stays where it was")
async def test_cancelled_position(loop, link, file):
    transport, _, peer = await link(Recorder)
    file.truncate(64 << 20)
    task = loop.create_task(loop.sendfile(transport, file))
    await in_thread(peer.recv, 1, socket.MSG_PEEK)
    await asyncio.sleep(0.02)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await within(task)
    sent = file.tell()
    assert 0 < sent < 64 << 20
    transport.close()
    assert len(await in_thread(read_all, peer)) == sent


async def test_a_second_one_meanwhile(loop, link, file):
    transport, _, peer = await link(Recorder)
    file.truncate(32 << 20)
    task = loop.create_task(loop.sendfile(transport, file))
    await support.turns(3)
    with tempfile.TemporaryFile() as other:
        other.write(b"x")
        other.flush()
        with pytest.raises(Exception):  # noqa: B017 (asyncio: a KeyError)
            await within(loop.sendfile(transport, other))
    got = await in_thread(read_exactly, peer, 32 << 20)
    assert got[:SIZE] == pattern(SIZE)
    assert await within(task) == 32 << 20


@pytest.mark.not_on("asyncio", reason="one call may send it all")
async def test_others_have_their_turns(loop, link, file):
    """However fast the peer takes it."""
    transport, _, peer = await link(Recorder)
    file.truncate(128 << 20)
    buffer = bytearray(1 << 20)

    def drain():
        left = 128 << 20
        while left:
            left -= peer.recv_into(buffer)

    turns = 0

    async def tick():
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    ticking = loop.create_task(tick())
    reading = asyncio.create_task(in_thread(drain))
    assert await within(loop.sendfile(transport, file)) == 128 << 20
    await reading
    ticking.cancel()
    # One call sends 8 MiB at most.
    assert turns >= 15


@pytest.fixture
def tls(authority):
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("localhost").configure_cert(server)
    client = ssl.create_default_context()
    authority.configure_trust(client)
    return client, server


async def test_over_tls(loop, new_loop, tls, file):
    client, server = tls
    lsock = support.listener()

    def serve():
        peer, _ = lsock.accept()
        with lsock, peer, server.wrap_socket(peer, server_side=True) as wrapped:
            return read_all(wrapped)

    reading = asyncio.create_task(in_thread(serve))
    transport, protocol = await loop.create_connection(
        Recorder, *lsock.getsockname(), ssl=client, server_hostname="localhost"
    )
    with pytest.raises(RuntimeError, match="fallback is disabled"):
        await loop.sendfile(transport, file, fallback=False)
    transport.write(b"head;")
    # asyncio's fallback goes on from where the file is.
    file.seek(0 if new_loop.kind == "asyncio" else 1234)
    assert await within(loop.sendfile(transport, file, 0, 1000)) == 1000
    assert file.tell() == 1000
    transport.write(b";middle;")
    assert await within(loop.sendfile(transport, file, 5000)) == SIZE - 5000
    transport.write(b";tail")
    transport.close()
    data = pattern(SIZE)
    want = b"head;" + data[:1000] + b";middle;" + data[5000:] + b";tail"
    assert await reading == want
    await protocol.lost()


async def test_not_for_every_transport(loop, file):
    class Other(asyncio.Transport):
        def is_closing(self):
            return False

    with pytest.raises(RuntimeError, match="sendfile is not supported"):
        await loop.sendfile(Other(), file)
