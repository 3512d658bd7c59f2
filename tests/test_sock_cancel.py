"""sock_*: cancelled, timed out, closed underneath; numbers used again."""

import asyncio
import contextlib
import os
import random
import socket
import time

import pytest
from support import (
    Recorder,
    fill,
    in_thread,
    listener,
    pattern,
    read_exactly,
    turns,
    unix_pair,
    until,
    within,
)

LOSES = "it receives in a callback: a cancel in that turn loses the data"


async def cancelled(task):
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


# -- cancelling -------------------------------------------------------------
@pytest.mark.parametrize("rounds", [1, 3])
async def test_recv_cancelled_and_called_again(loop, pair, rounds):
    mine, peer = pair
    for _ in range(rounds):
        task = loop.create_task(loop.sock_recv(mine, 100))
        await turns(3)
        await cancelled(task)
    assert loop.remove_reader(mine) is False
    peer.sendall(b"data")
    assert await within(loop.sock_recv(mine, 100)) == b"data"


async def test_recv_cancelled_and_at_once_called_again(loop, pair):
    """The new call begins before the old one has been told."""
    mine, peer = pair
    old = loop.create_task(loop.sock_recv(mine, 100))
    await turns(3)
    old.cancel()
    new = loop.create_task(loop.sock_recv(mine, 100))
    await turns(3)
    assert old.cancelled()
    assert not new.done()
    peer.sendall(b"data")
    assert await within(new) == b"data"


async def test_recv_into_cancelled(loop, pair):
    mine, peer = pair
    buffer = bytearray(4)
    task = loop.create_task(loop.sock_recv_into(mine, buffer))
    await turns(3)
    await cancelled(task)
    peer.sendall(b"data")
    await turns(3)
    assert buffer == bytes(4)
    buffer.extend(b"the buffer is not held any more")
    assert await within(loop.sock_recv_into(mine, buffer)) == 4


async def test_buffer_changed_while_recv_into_waits(loop, pair):
    mine, peer = pair
    buffer = bytearray(4)
    task = loop.create_task(loop.sock_recv_into(mine, buffer))
    await turns(3)
    try:
        del buffer[2:]
    except BufferError:
        room = 4
    else:
        room = 2
    peer.sendall(b"data")
    assert await within(task) == room
    assert buffer == b"data"[:room]


@pytest.mark.parametrize("name", ["sock_recvfrom", "sock_recvfrom_into"])
async def test_datagram_receives_cancelled(loop, name):
    with socket.socket(type=socket.SOCK_DGRAM) as sock:
        sock.bind(("127.0.0.1", 0))
        sock.setblocking(False)
        method = getattr(loop, name)
        argument = 100 if name == "sock_recvfrom" else bytearray(100)
        task = loop.create_task(method(sock, argument))
        await turns(3)
        await cancelled(task)
        sock.sendto(b"data", sock.getsockname())
        result, address = await within(method(sock, argument))
        assert address == sock.getsockname()
        assert result in (b"data", 4)


async def test_sendall_cancelled(loop, pair):
    mine, peer = pair
    before = fill(mine)
    task = loop.create_task(loop.sock_sendall(mine, b"never sent"))
    await turns(3)
    await cancelled(task)
    assert loop.remove_writer(mine) is False
    assert read_exactly(peer, before) == b"f" * before
    await within(loop.sock_sendall(mine, b"sent"))
    assert peer.recv(100) == b"sent"


async def test_accept_cancelled_and_called_again(loop):
    with listener(blocking=False) as lsock:
        task = loop.create_task(loop.sock_accept(lsock))
        await turns(3)
        await cancelled(task)
        with socket.create_connection(lsock.getsockname()) as client:
            conn, address = await within(loop.sock_accept(lsock))
            assert address == client.getsockname()
            conn.close()


async def test_cancelled_before_it_began(loop, pair):
    mine, peer = pair
    peer.sendall(b"data")
    task = loop.create_task(loop.sock_recv(mine, 100))
    await cancelled(task)
    assert await within(loop.sock_recv(mine, 100)) == b"data"


@pytest.mark.parametrize("way", ["close", "throw"])
async def test_driven_by_hand(loop, pair, way):
    """As a coroutine may be, outside a task: ended while it waits."""
    mine, peer = pair
    coroutine = loop.sock_recv(mine, 100)
    future = coroutine.send(None)
    assert asyncio.isfuture(future)
    if way == "close":
        coroutine.close()
    else:
        with pytest.raises(ZeroDivisionError):
            coroutine.throw(ZeroDivisionError())
    with pytest.raises(RuntimeError):
        coroutine.send(None)
    task = loop.create_task(loop.sock_recv(mine, 100))
    await turns(3)
    peer.sendall(b"data")
    assert await within(task) == b"data"


# -- nothing is lost ----------------------------------------------------------


@pytest.mark.not_on("asyncio", reason=LOSES)
@pytest.mark.parametrize("delay", [0, 1, 2, 3])
async def test_recv_cancelled_in_the_turn_of_the_data(loop, pair, delay):
    mine, peer = pair
    task = loop.create_task(loop.sock_recv(mine, 100))
    await turns(3)
    peer.sendall(b"data")
    await turns(delay)
    task.cancel()
    try:
        got = await task
    except asyncio.CancelledError:
        got = await within(loop.sock_recv(mine, 100))
    assert got == b"data"


@pytest.mark.not_on("asyncio", reason=LOSES)
async def test_recv_cancelled_by_a_timer_due_with_the_data(loop, pair):
    mine, peer = pair
    got, sent = bytearray(), bytearray()
    for number in range(5):
        task = loop.create_task(loop.sock_recv(mine, 64))
        await turns(3)
        loop.call_later(0.001, task.cancel)
        message = b"[message %d]" % number
        peer.sendall(message)
        sent += message
        time.sleep(0.003)
        try:
            got += await task
        except asyncio.CancelledError:
            pass
    peer.close()
    while piece := await within(loop.sock_recv(mine, 1024)):
        got += piece
    assert got == sent


@pytest.mark.not_on("asyncio", reason=LOSES)
async def test_accept_cancelled_in_the_turn_of_the_connection(loop):
    with listener(blocking=False) as lsock:
        for delay in range(4):
            task = loop.create_task(loop.sock_accept(lsock))
            await turns(3)
            client = socket.create_connection(lsock.getsockname())
            await turns(delay)
            task.cancel()
            try:
                conn, address = await task
            except asyncio.CancelledError:
                conn, address = await within(loop.sock_accept(lsock))
            assert address == client.getsockname()
            conn.close()
            client.close()


@pytest.mark.not_on("asyncio", reason=LOSES)
async def test_timeouts_lose_nothing(loop, pair):
    """Many short timeouts around receives, while the peer sends."""
    mine, peer = pair
    data = pattern(200_000)
    rng = random.Random(5)

    def send():
        at = 0
        while at < len(data):
            step = rng.randrange(1, 900)
            peer.sendall(data[at : at + step])
            at += step
            if not rng.randrange(4):
                time.sleep(0.0003)

    sending = asyncio.create_task(in_thread(send))
    got = bytearray()
    timeouts = 0
    while len(got) < len(data):
        try:
            async with asyncio.timeout(0.0002):
                got += await loop.sock_recv(mine, 500)
        except TimeoutError:
            timeouts += 1
    await within(sending)
    assert bytes(got) == data
    assert timeouts > 0


async def test_wait_for_and_retry(loop, pair):
    mine, peer = pair
    for _ in range(5):
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(loop.sock_recv(mine, 10), 0.002)
    peer.sendall(b"data")
    assert await within(loop.sock_recv(mine, 10)) == b"data"


async def test_many_sockets_half_of_them_cancelled(loop):
    pairs = [unix_pair() for _ in range(60)]
    tasks = []
    for mine, _ in pairs:
        mine.setblocking(False)
        tasks.append(loop.create_task(loop.sock_recv(mine, 10)))
    await turns(3)
    for task in tasks[::2]:
        task.cancel()
    await turns(2)
    for number, (_, peer) in enumerate(pairs):
        peer.sendall(b"%d" % number)
    for number, task in enumerate(tasks):
        if number % 2:
            assert await within(task) == b"%d" % number
        else:
            with pytest.raises(asyncio.CancelledError):
                await task
            again = loop.sock_recv(pairs[number][0], 10)
            assert await within(again) == b"%d" % number
    for sockets in pairs:
        for sock in sockets:
            sock.close()


# -- closed underneath, used again --------------------------------------------
@pytest.mark.not_on("asyncio", reason="the call waits for ever there")
async def test_closed_while_a_call_waits(loop, pair):
    """It ends: with what the peer sends, or with an error."""
    mine, peer = pair
    task = loop.create_task(loop.sock_recv(mine, 100))
    await turns(3)
    mine.close()
    await turns(3)
    if not task.done():
        with contextlib.suppress(BrokenPipeError):
            peer.sendall(b"data")
    try:
        assert await within(task) == b"data"
    except OSError:
        assert mine.fileno() == -1


async def test_closed_after_a_cancel_and_its_number_used_again(loop, pair):
    mine, peer = pair
    task = loop.create_task(loop.sock_recv(mine, 100))
    await turns(3)
    await cancelled(task)
    number = mine.fileno()
    mine.close()
    peer.close()
    for _ in range(5):
        one, other = unix_pair()
        one.setblocking(False)
        if number not in (one.fileno(), other.fileno()):
            one.close()
            other.close()
            pytest.fail("the number is still in use")
        task = loop.create_task(loop.sock_recv(one, 100))
        await turns(3)
        other.sendall(b"data")
        assert await within(task) == b"data"
        one.close()
        other.close()


async def test_number_used_again_without_any_wait_between(loop):
    """Each socket waits once; the next one gets its number."""
    numbers = set()
    for index in range(50):
        one, other = unix_pair()
        one.setblocking(False)
        numbers.add(one.fileno())
        task = loop.create_task(loop.sock_recv(one, 100))
        await turns(2)
        other.sendall(b"%d" % index)
        assert await within(task) == b"%d" % index
        one.close()
        other.close()
    assert len(numbers) < 10


async def test_number_passes_from_a_socket_to_a_pipe_reader(loop):
    one, other = unix_pair()
    one.setblocking(False)
    task = loop.create_task(loop.sock_recv(one, 100))
    await turns(2)
    other.sendall(b"x")
    await within(task)
    number = one.fileno()
    one.close()
    other.close()
    reader, writer = os.pipe()
    if reader != number:
        os.dup2(reader, number)
        os.close(reader)
    got = []
    loop.add_reader(number, got.append, "readable")
    os.write(writer, b"x")
    await until(lambda: got)
    await until(lambda: len(got) > 1)
    assert loop.remove_reader(number) is True
    os.close(number)
    os.close(writer)


async def test_refused_connects_leave_a_usable_number(loop):
    with socket.socket() as nobody, listener() as lsock:
        nobody.bind(("127.0.0.1", 0))
        for _ in range(5):
            sock = socket.socket()
            sock.setblocking(False)
            with pytest.raises(ConnectionRefusedError):
                await within(loop.sock_connect(sock, nobody.getsockname()))
            sock.close()
            sock = socket.socket()
            sock.setblocking(False)
            await within(loop.sock_connect(sock, lsock.getsockname()))
            sock.close()


# -- one socket, several ways ---------------------------------------------------
async def test_add_reader_between_receives(loop, pair):
    mine, peer = pair
    for _ in range(3):
        task = loop.create_task(loop.sock_recv(mine, 100))
        await turns(3)
        peer.sendall(b"one")
        assert await within(task) == b"one"
        got = []
        loop.add_reader(mine, got.append, "readable")
        peer.sendall(b"two")
        await until(lambda: len(got) >= 3)
        assert loop.remove_reader(mine) is True
        assert await within(loop.sock_recv(mine, 100)) == b"two"


async def test_reader_with_data_that_were_there_before(loop, pair):
    """A reader that comes after a receive left data behind is called."""
    mine, peer = pair
    task = loop.create_task(loop.sock_recv(mine, 2))
    await turns(3)
    peer.sendall(b"1234")
    assert await within(task) == b"12"
    got = []
    loop.add_reader(mine, got.append, "readable")
    await until(lambda: got)
    loop.remove_reader(mine)
    assert await within(loop.sock_recv(mine, 100)) == b"34"


async def test_receive_while_a_writer_is_registered(loop, pair):
    mine, peer = pair
    got = []
    loop.add_writer(mine, got.append, "writable")
    task = loop.create_task(loop.sock_recv(mine, 100))
    await until(lambda: len(got) >= 3)
    assert not task.done()
    peer.sendall(b"data")
    assert await within(task) == b"data"
    count = len(got)
    await until(lambda: len(got) > count)
    assert loop.remove_writer(mine) is True


async def test_from_sock_calls_to_a_transport(loop, family, pair):
    """What came before the transport was made is delivered to it."""
    mine, peer = pair
    task = loop.create_task(loop.sock_recv(mine, 5))
    await turns(3)
    peer.sendall(b"helloworld")
    assert await within(task) == b"hello"
    connect = loop.create_connection if family == "tcp" else loop.create_unix_connection
    transport, protocol = await connect(Recorder, sock=mine)
    await protocol.received(5)
    transport.write(b"answer")
    assert await in_thread(read_exactly, peer, 6) == b"answer"
    peer.sendall(b"!")
    await protocol.received(6)
    assert protocol.data == b"world!"
    transport.close()
    await protocol.lost()


async def test_from_a_reader_to_a_transport(loop, family, pair):
    mine, peer = pair
    got = []
    loop.add_reader(mine, got.append, "readable")
    peer.sendall(b"data")
    await until(lambda: got)
    loop.remove_reader(mine)
    connect = loop.create_connection if family == "tcp" else loop.create_unix_connection
    transport, protocol = await connect(Recorder, sock=mine)
    await protocol.received(4)
    transport.abort()
    await protocol.lost()


async def test_both_ends_on_one_loop(loop, family, pair):
    """Many short waits of both, to and fro."""
    mine, peer = pair
    peer.setblocking(False)

    async def answer():
        for _ in range(200):
            data = await loop.sock_recv(peer, 100)
            await loop.sock_sendall(peer, data[::-1])

    task = loop.create_task(answer())
    for number in range(200):
        await loop.sock_sendall(mine, b"%06d" % number)
        assert await loop.sock_recv(mine, 100) == (b"%06d" % number)[::-1]
    await within(task)
