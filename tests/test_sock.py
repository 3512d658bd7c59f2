"""The nine sock_* calls: what they do, and what they refuse."""

import array
import asyncio
import inspect
import io
import os
import socket
import ssl
import tempfile

import pytest
from support import (
    TIMEOUT,
    Recorder,
    black_hole,
    fill,
    in_thread,
    listener,
    pattern,
    read_all,
    read_exactly,
    socket_path,
    turns,
    within,
)


def nine(loop, sock):
    """A call of each, none of which can succeed at once on `sock`."""
    yield "recv", lambda: loop.sock_recv(sock, 10)
    yield "recv_into", lambda: loop.sock_recv_into(sock, bytearray(10))
    yield "recvfrom", lambda: loop.sock_recvfrom(sock, 10)
    yield "recvfrom_into", lambda: loop.sock_recvfrom_into(sock, bytearray(9))
    yield "sendall", lambda: loop.sock_sendall(sock, b"data")
    yield "sendto", lambda: loop.sock_sendto(sock, b"data", ("127.0.0.1", 9))
    yield "connect", lambda: loop.sock_connect(sock, ("127.0.0.1", 9))
    yield "accept", lambda: loop.sock_accept(sock)
    yield "sendfile", lambda: loop.sock_sendfile(sock, io.BytesIO(b"data"))


NINE = [name for name, _ in nine(None, None)]


@pytest.fixture
def udp():
    """Two datagram sockets on the loopback."""
    socks = [socket.socket(type=socket.SOCK_DGRAM) for _ in range(2)]
    for sock in socks:
        sock.bind(("127.0.0.1", 0))
        sock.setblocking(False)
    yield socks
    for sock in socks:
        sock.close()


# -- receiving --------------------------------------------------------------
async def test_recv_at_once_and_after_a_wait(loop, pair):
    mine, peer = pair
    peer.sendall(b"first")
    assert await within(loop.sock_recv(mine, 3)) == b"fir"
    assert await within(loop.sock_recv(mine, 100)) == b"st"
    task = loop.create_task(loop.sock_recv(mine, 100))
    await turns(5)
    assert not task.done()
    peer.sendall(b"second")
    assert await within(task) == b"second"
    peer.close()
    assert await within(loop.sock_recv(mine, 100)) == b""
    assert await within(loop.sock_recv(mine, 100)) == b""


async def test_recv_into(loop, pair):
    mine, peer = pair
    buffer = bytearray(b"." * 10)
    task = loop.create_task(loop.sock_recv_into(mine, memoryview(buffer)[2:8]))
    await turns(3)
    peer.sendall(b"12345678")
    assert await within(task) == 6
    assert buffer == b"..123456.."
    assert await within(loop.sock_recv_into(mine, buffer)) == 2
    assert buffer == b"78123456.."
    peer.close()
    assert await within(loop.sock_recv_into(mine, buffer)) == 0


async def test_recv_into_wide_items(loop, pair):
    mine, peer = pair
    numbers = array.array("I", [0] * 4)
    peer.sendall(bytes(range(16)))
    assert await within(loop.sock_recv_into(mine, numbers)) == 16
    assert numbers.tobytes() == bytes(range(16))


async def test_recvfrom(loop, udp):
    mine, peer = udp
    task = loop.create_task(loop.sock_recvfrom(mine, 100))
    await turns(3)
    peer.sendto(b"datagram", mine.getsockname())
    assert await within(task) == (b"datagram", peer.getsockname())
    peer.sendto(b"cut short", mine.getsockname())
    peer.sendto(b"", mine.getsockname())
    assert (await within(loop.sock_recvfrom(mine, 3)))[0] == b"cut"
    data, address = await within(loop.sock_recvfrom(mine, 100))
    assert (data, address) == (b"", peer.getsockname())


async def test_recvfrom_into(loop, udp):
    mine, peer = udp
    buffer = bytearray(b"." * 8)
    task = loop.create_task(loop.sock_recvfrom_into(mine, buffer))
    await turns(3)
    peer.sendto(b"data", mine.getsockname())
    assert await within(task) == (4, peer.getsockname())
    assert buffer == b"data...."
    for _ in range(2):
        peer.sendto(b"123456", mine.getsockname())
    count, _ = await within(loop.sock_recvfrom_into(mine, buffer, 2))
    assert (count, buffer) == (2, b"12ta....")
    count, _ = await within(loop.sock_recvfrom_into(mine, buffer, nbytes=0))
    assert (count, buffer) == (6, b"123456..")


# -- sending ----------------------------------------------------------------
async def test_sendall(loop, pair):
    mine, peer = pair
    for data in (b"bytes", bytearray(b"array"), memoryview(b"views")):
        assert await within(loop.sock_sendall(mine, data)) is None
        assert read_exactly(peer, 5) == bytes(data)
    assert await within(loop.sock_sendall(mine, b"")) is None


async def test_sendall_of_more_than_fits(loop, pair):
    mine, peer = pair
    data = pattern(2 << 20)
    reader = asyncio.create_task(in_thread(read_exactly, peer, len(data)))
    assert await within(loop.sock_sendall(mine, data)) is None
    assert await within(reader) == data


@pytest.mark.not_on("asyncio", reason="it takes items for bytes (gh-135862)")
async def test_sendall_of_wide_items(loop, pair):
    mine, peer = pair
    numbers = array.array("I", range(1 << 18))
    reader = asyncio.create_task(in_thread(read_exactly, peer, 1 << 20))
    await within(loop.sock_sendall(mine, numbers))
    assert await within(reader) == numbers.tobytes()


async def test_sendto(loop, udp):
    mine, peer = udp
    assert await within(loop.sock_sendto(mine, b"data", peer.getsockname())) == 4
    assert peer.recvfrom(100) == (b"data", mine.getsockname())
    assert await within(loop.sock_sendto(mine, b"", peer.getsockname())) == 0
    assert peer.recvfrom(100) == (b"", mine.getsockname())


async def test_sendto_waits_for_room(loop):
    with (
        socket_path() as path,
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as mine,
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as peer,
    ):
        peer.bind(path)
        mine.setblocking(False)
        sent = 0
        try:
            while True:
                mine.sendto(b"%06d" % sent, path)
                sent += 1
        except BlockingIOError:
            pass
        task = loop.create_task(loop.sock_sendto(mine, b"waited", path))
        await turns(5)
        assert not task.done()
        for number in range(sent):
            assert peer.recv(100) == b"%06d" % number
        assert await within(task) == 6
        assert peer.recv(100) == b"waited"


async def test_both_directions_at_once(loop, pair):
    """A receive and a send of one socket wait together."""
    mine, peer = pair
    data = pattern(1 << 20)

    def echo():
        got = bytearray()
        while len(got) < len(data):
            piece = peer.recv(1 << 16)
            got += piece
            peer.sendall(piece)
        return bytes(got)

    async def receive():
        got = bytearray()
        while len(got) < len(data):
            got += await loop.sock_recv(mine, 1 << 16)
        return bytes(got)

    results = await within(
        asyncio.gather(loop.sock_sendall(mine, data), receive(), in_thread(echo))
    )
    assert results[1] == results[2] == data


# -- connecting ---------------------------------------------------------------
async def test_connect_and_accept(loop):
    with listener(blocking=False) as lsock, socket.socket() as sock:
        sock.setblocking(False)
        accepting = loop.create_task(loop.sock_accept(lsock))
        await turns(3)
        assert not accepting.done()
        assert await within(loop.sock_connect(sock, lsock.getsockname())) is None
        conn, address = await within(accepting)
        assert isinstance(conn, socket.socket)
        assert address == sock.getsockname()
        assert conn.gettimeout() == 0
        assert conn.getpeername() == address
        assert os.get_inheritable(conn.fileno()) is False
        await within(loop.sock_sendall(conn, b"hello"))
        assert await within(loop.sock_recv(sock, 100)) == b"hello"
        conn.close()


async def test_connect_by_name(loop):
    with listener(blocking=False) as lsock, socket.socket() as sock:
        sock.setblocking(False)
        port = lsock.getsockname()[1]
        await within(loop.sock_connect(sock, ("localhost", port)))
        assert sock.getpeername() == lsock.getsockname()


async def test_connect_unix(loop):
    with (
        socket_path() as path,
        socket.socket(socket.AF_UNIX) as lsock,
        socket.socket(socket.AF_UNIX) as sock,
    ):
        sock.setblocking(False)
        lsock.setblocking(False)
        with pytest.raises(FileNotFoundError):
            await within(loop.sock_connect(sock, path))
        lsock.bind(path)
        lsock.listen()
        await within(loop.sock_connect(sock, path))
        conn, _ = await within(loop.sock_accept(lsock))
        conn.close()


async def test_connect_datagram(loop, udp):
    mine, peer = udp
    await within(loop.sock_connect(mine, peer.getsockname()))
    await within(loop.sock_sendall(mine, b"data"))
    assert peer.recv(100) == b"data"


async def test_connect_refused(loop):
    with socket.socket() as sock, socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        sock.setblocking(False)
        with pytest.raises(ConnectionRefusedError):
            await within(loop.sock_connect(sock, nobody.getsockname()))
        # and the loop has let go of the descriptor
        assert loop.remove_writer(sock) is False


async def test_connect_unresolvable(loop):
    with socket.socket() as sock:
        sock.setblocking(False)
        with pytest.raises(socket.gaierror):
            await within(loop.sock_connect(sock, ("no.such.invalid", 80)))


async def test_accept_many(loop):
    with listener(blocking=False) as lsock:
        clients = [socket.create_connection(lsock.getsockname()) for _ in range(20)]
        conns = [await within(loop.sock_accept(lsock)) for _ in clients]
        assert {address for _, address in conns} == {
            client.getsockname() for client in clients
        }
        for client, (conn, _) in zip(clients, conns, strict=True):
            client.close()
            conn.close()


async def test_connect_in_progress_can_be_cancelled(loop):
    with black_hole() as address:
        for _ in range(3):
            with socket.socket() as sock:
                sock.setblocking(False)
                task = loop.create_task(loop.sock_connect(sock, address))
                await turns(3)
                assert not task.done()
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
                assert loop.remove_writer(sock) is False


# -- sendfile -----------------------------------------------------------------
@pytest.mark.parametrize(
    ("offset", "count"), [(0, None), (1000, None), (0, 5000), (7, 99)]
)
async def test_sendfile(loop, pair, offset, count):
    mine, peer = pair
    data = pattern(1 << 20)
    expected = data[offset : None if count is None else offset + count]
    with tempfile.TemporaryFile() as file:
        file.write(data)
        file.flush()
        reader = asyncio.create_task(in_thread(read_exactly, peer, len(expected)))
        sent = await within(loop.sock_sendfile(mine, file, offset, count))
        assert sent == len(expected)
        assert file.tell() == offset + sent
        assert await within(reader) == expected


async def test_sendfile_beyond_the_end_and_empty(loop, pair):
    mine, _ = pair
    with tempfile.TemporaryFile() as file:
        assert await within(loop.sock_sendfile(mine, file)) == 0
        file.write(b"data")
        file.flush()
        assert await within(loop.sock_sendfile(mine, file, 100)) == 0


async def test_sendfile_of_what_is_no_file(loop, pair):
    mine, peer = pair
    with pytest.raises(asyncio.SendfileNotAvailableError):
        await loop.sock_sendfile(mine, io.BytesIO(b"data"), fallback=False)
    sent = await within(loop.sock_sendfile(mine, io.BytesIO(b"0123456"), 2, 3))
    assert sent == 3
    assert read_exactly(peer, 3) == b"234"


async def test_sendfile_refuses(loop, pair, udp):
    mine, _ = pair
    with tempfile.TemporaryFile() as file:
        with pytest.raises(ValueError, match="count must be a positive integer"):
            await loop.sock_sendfile(mine, file, 0, 0)
        with pytest.raises(TypeError, match="count must be a positive integer"):
            await loop.sock_sendfile(mine, file, 0, "all")
        with pytest.raises(TypeError, match="offset must be a non-negative"):
            await loop.sock_sendfile(mine, file, None)
        with pytest.raises(ValueError, match="offset must be a non-negative"):
            await loop.sock_sendfile(mine, file, -1)
        with pytest.raises(ValueError, match="only SOCK_STREAM"):
            await loop.sock_sendfile(udp[0], file)
    with tempfile.TemporaryFile("w") as file:
        with pytest.raises(ValueError, match="binary mode"):
            await loop.sock_sendfile(mine, file)


async def test_sendfile_waits_for_room(loop, pair):
    mine, peer = pair
    before = fill(mine)
    with tempfile.TemporaryFile() as file:
        file.write(b"z" * 100)
        file.flush()
        task = loop.create_task(loop.sock_sendfile(mine, file))
        await turns(5)
        assert not task.done()
        got = await in_thread(read_exactly, peer, before + 100)
        assert await within(task) == 100
        assert got[before:] == b"z" * 100


# -- what they are and what they refuse ---------------------------------------
@pytest.mark.parametrize("name", NINE)
async def test_they_return_coroutines(loop, pair, name):
    mine, _ = pair
    coroutine = dict(nine(loop, mine))[name]()
    assert inspect.isawaitable(coroutine)
    assert asyncio.iscoroutine(coroutine)
    coroutine.close()
    # closed before it began: nothing was sent, and nothing is watched
    assert loop.remove_reader(mine) is False
    assert loop.remove_writer(mine) is False


@pytest.mark.parametrize("name", NINE)
async def test_ssl_sockets_are_refused(loop, name):
    one, other = socket.socketpair()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    with (
        other,
        context.wrap_socket(
            one, server_hostname="localhost", do_handshake_on_connect=False
        ) as sock,
    ):
        sock.setblocking(False)
        with pytest.raises(TypeError, match="of type SSLSocket"):
            await dict(nine(loop, sock))[name]()


@pytest.mark.not_on("plain", reason="only debug mode looks")
@pytest.mark.parametrize("name", NINE)
@pytest.mark.parametrize("timeout", [None, 5.0])
async def test_blocking_sockets_are_refused_in_debug(loop, pair, name, timeout):
    mine, _ = pair
    mine.settimeout(timeout)
    with pytest.raises(ValueError, match="the socket must be non-blocking"):
        await dict(nine(loop, mine))[name]()


@pytest.mark.parametrize("name", NINE)
async def test_closed_sockets(loop, name):
    sock = socket.socket()
    sock.setblocking(False)
    sock.close()
    error = (OSError, ValueError) if name == "connect" else OSError
    if name == "sendfile":
        error = (OSError, ValueError)
    with pytest.raises(error):
        await within(dict(nine(loop, sock))[name]())


@pytest.mark.parametrize("name", ["recv", "sendall", "accept"])
async def test_unconnected_sockets(loop, name):
    with socket.socket() as sock:
        sock.setblocking(False)
        with pytest.raises(OSError):
            await within(dict(nine(loop, sock))[name]())


async def test_wrong_arguments(loop, pair):
    mine, peer = pair
    peer.sendall(b"data")
    with pytest.raises(ValueError, match="negative buffersize"):
        await loop.sock_recv(mine, -1)
    with pytest.raises(TypeError):
        await loop.sock_recv(mine, "10")
    with pytest.raises(TypeError):
        await loop.sock_recv_into(mine, b"read-only")
    with pytest.raises(TypeError):
        await loop.sock_recv_into(mine, "text")
    with pytest.raises(TypeError):
        await loop.sock_sendall(mine, "text")
    with pytest.raises(TypeError):
        await loop.sock_sendall(mine, None)
    # the data are still there
    assert await within(loop.sock_recv(mine, 100)) == b"data"


async def test_recv_of_nothing(loop, pair):
    mine, peer = pair
    peer.sendall(b"data")
    assert await within(loop.sock_recv(mine, 0)) == b""
    assert await within(loop.sock_recv(mine, 10)) == b"data"


async def test_sockets_of_transports_are_refused(loop, link):
    transport, protocol, peer = await link(Recorder)
    sock = transport.get_extra_info("socket")
    with pytest.raises(RuntimeError, match="is used by transport"):
        loop.add_reader(sock, print)
    with pytest.raises(RuntimeError, match="is used by transport"):
        loop.remove_writer(sock.fileno())
    with socket.socket(fileno=os.dup(sock.fileno())) as twin:
        twin.setblocking(False)
        number = twin.fileno()
        loop.add_reader(number, print)
        assert loop.remove_reader(number) is True
    peer.sendall(b"still alive")
    await protocol.received(11)


async def test_peer_resets(loop):
    with listener(blocking=False) as lsock, socket.socket() as sock:
        sock.setblocking(False)
        await within(loop.sock_connect(sock, lsock.getsockname()))
        conn, _ = await within(loop.sock_accept(lsock))
        task = loop.create_task(loop.sock_recv(sock, 10))
        await turns(3)
        conn.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        conn.close()
        with pytest.raises(ConnectionResetError):
            await within(task)


async def test_peer_goes_while_we_send(loop, pair):
    mine, peer = pair
    fill(mine)
    task = loop.create_task(loop.sock_sendall(mine, b"x" * 1000))
    await turns(3)
    assert not task.done()
    peer.close()
    with pytest.raises((BrokenPipeError, ConnectionResetError)):
        await within(task)


async def test_echo_of_many_small_messages(loop, pair):
    mine, peer = pair

    def echo():
        for _ in range(500):
            peer.sendall(read_exactly(peer, 8))
        peer.shutdown(socket.SHUT_WR)
        return read_all(peer)

    answering = asyncio.create_task(in_thread(echo))
    for number in range(500):
        message = b"%08d" % number
        await loop.sock_sendall(mine, message)
        assert await within(loop.sock_recv(mine, 100), TIMEOUT) == message
    assert await within(loop.sock_recv(mine, 10)) == b""
    mine.shutdown(socket.SHUT_WR)
    assert await within(answering) == b""
