"""add_reader, add_writer, remove_reader, remove_writer."""

import asyncio
import contextvars
import errno
import os
import pty
import socket
import tempfile

import pytest
from support import Notes, drain, fill, not_with_home_away, turns, until, within

VAR = contextvars.ContextVar("VAR", default="unset")
DIRECTIONS = ["reader", "writer"]


class Box:
    """Anything with fileno()."""

    def __init__(self, number):
        self.number = number

    def fileno(self):
        return self.number


def add(loop, direction, *args):
    return getattr(loop, f"add_{direction}")(*args)


def remove(loop, direction, fd):
    return getattr(loop, f"remove_{direction}")(fd)


@pytest.fixture
def ends(loop):
    """Two connected non-blocking sockets; nothing is left registered."""
    one, other = socket.socketpair()
    one.setblocking(False)
    other.setblocking(False)
    yield one, other
    for sock in (one, other):
        if sock.fileno() >= 0 and not loop.is_closed():
            loop.remove_reader(sock)
            loop.remove_writer(sock)
        sock.close()


async def test_reader_is_called_while_there_is_data(loop, ends):
    mine, peer = ends
    got = Notes()

    def ready(*args):
        got.note(args)
        if len(got.calls) == 3:
            mine.recv(100)

    assert loop.add_reader(mine, ready, 1, "two") is None
    peer.send(b"data")
    await got.until(lambda: len(got.calls) == 3)
    await turns(5)
    assert got.calls == [(1, "two")] * 3
    peer.send(b"more")
    await got.until(lambda: len(got.calls) > 3)


@not_with_home_away
async def test_one_call_for_each_turn(loop, ends):
    mine, peer = ends
    got = []
    loop.add_reader(mine, got.append, 1)
    peer.send(b"data")
    await turns(1)
    before = len(got)
    await turns(5)
    assert len(got) == before + 5


async def test_writer_is_called_while_there_is_room(loop, ends):
    mine, _ = ends
    got = Notes()
    assert loop.add_writer(mine, got.note, "writable") is None
    await got.until(lambda: len(got.calls) >= 3)
    assert loop.remove_writer(mine) is True
    count = len(got.calls)
    await turns(5)
    assert len(got.calls) == count


async def test_writer_waits_for_room(loop, ends):
    mine, peer = ends
    fill(mine)
    got = Notes()
    loop.add_writer(mine, got.note, "writable")
    await turns(5)
    assert got.calls == []
    drain(peer)
    await got.called("writable")


async def test_reader_and_writer_of_one_descriptor(loop, ends):
    mine, peer = ends
    got = Notes()
    loop.add_reader(mine, got.note, "readable")
    loop.add_writer(mine, got.note, "writable")
    await got.called("writable")
    assert "readable" not in got.calls
    peer.send(b"x")
    await got.called("readable")
    assert loop.remove_writer(mine) is True
    got.calls.clear()
    await got.called("readable", 2)
    assert "writable" not in got.calls
    loop.add_writer(mine, got.note, "writable")
    assert loop.remove_reader(mine) is True
    got.calls.clear()
    await got.called("writable", 2)
    assert "readable" not in got.calls


@not_with_home_away
async def test_reader_before_writer(loop, ends):
    mine, peer = ends
    got = []
    loop.add_writer(mine, got.append, "writable")
    loop.add_reader(mine, got.append, "readable")
    peer.send(b"x")
    await turns(2)
    assert got == ["readable", "writable"]


@pytest.mark.parametrize("direction", DIRECTIONS)
async def test_the_second_call_replaces_the_first(loop, ends, direction):
    mine, peer = ends
    got = Notes()
    add(loop, direction, mine, got.note, "old")
    add(loop, direction, mine.fileno(), got.note, "new")
    peer.send(b"x")
    await got.until(lambda: len(got.calls) >= 2)
    assert set(got.calls) == {"new"}
    assert remove(loop, direction, mine) is True
    assert remove(loop, direction, mine) is False


@not_with_home_away
async def test_replaced_within_the_turn(loop, ends):
    """The event was found already: it is nothing to the old callback."""
    mine, peer = ends
    got = []
    loop.add_reader(mine, got.append, "old")
    loop.call_soon(loop.add_reader, mine, got.append, "new")
    peer.send(b"x")
    await turns(3)
    assert set(got) == {"new"}


@pytest.mark.parametrize("direction", DIRECTIONS)
async def test_forms_of_a_descriptor(loop, ends, direction):
    mine, peer = ends
    peer.send(b"x")
    for form in (mine, mine.fileno(), Box(mine.fileno())):
        got = Notes()
        add(loop, direction, form, got.note, "ready")
        await got.called("ready")
        assert remove(loop, direction, Box(mine.fileno())) is True
        assert remove(loop, direction, form) is False


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("form", ["3", None, 1.5, object(), Box("x"), Box(None)])
async def test_what_is_no_descriptor(loop, direction, form):
    with pytest.raises(ValueError, match="Invalid file object"):
        add(loop, direction, form, print)
    with pytest.raises(ValueError, match="Invalid file object"):
        remove(loop, direction, form)


@pytest.mark.parametrize("direction", DIRECTIONS)
async def test_bad_descriptors(loop, direction):
    with pytest.raises(ValueError, match="Invalid file descriptor: -1"):
        add(loop, direction, -1, print)
    with pytest.raises(ValueError, match="Invalid file descriptor: -1"):
        remove(loop, direction, -1)
    closed = socket.socket()
    closed.close()
    with pytest.raises(ValueError, match="Invalid file descriptor: -1"):
        add(loop, direction, closed, print)
    reader, writer = os.pipe()
    os.close(reader)
    os.close(writer)
    with pytest.raises(OSError, match="Bad file descriptor") as info:
        add(loop, direction, writer, print)
    assert info.value.errno == errno.EBADF
    assert remove(loop, direction, writer) is False


@pytest.mark.parametrize("direction", DIRECTIONS)
async def test_regular_files_are_refused(loop, direction):
    with tempfile.TemporaryFile() as file:
        with pytest.raises(PermissionError):
            add(loop, direction, file, print)
        assert remove(loop, direction, file) is False
        # the failure left nothing behind
        with pytest.raises(PermissionError):
            add(loop, direction, file.fileno(), print)


@pytest.mark.parametrize("direction", DIRECTIONS)
async def test_not_watched(loop, ends, direction):
    mine, _ = ends
    assert remove(loop, direction, mine) is False
    other = "writer" if direction == "reader" else "reader"
    add(loop, other, mine, int)
    assert remove(loop, direction, mine) is False
    assert remove(loop, other, mine) is True


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_closed_loop(new_loop, direction):
    loop = new_loop()
    mine, peer = socket.socketpair()
    loop.close()
    with pytest.raises(RuntimeError, match="Event loop is closed"):
        add(loop, direction, mine, print)
    assert remove(loop, direction, mine) is False
    mine.close()
    peer.close()


@pytest.mark.parametrize("direction", DIRECTIONS)
async def test_wrong_calls(loop, ends, direction):
    mine, _ = ends
    with pytest.raises(TypeError):
        add(loop, direction)
    with pytest.raises(TypeError):
        add(loop, direction, mine)
    with pytest.raises(TypeError):
        getattr(loop, f"remove_{direction}")()


# -- callbacks that change what is watched ------------------------------------
async def test_remove_inside_the_callback(loop, ends):
    mine, peer = ends
    got = []

    def ready():
        got.append(loop.remove_reader(mine))

    loop.add_reader(mine, ready)
    peer.send(b"x")
    await turns(5)
    assert got == [True]


async def test_remove_another_one_of_the_batch(loop):
    """Both are ready in the same poll; only the first callback runs."""
    pairs = [socket.socketpair() for _ in range(2)]
    got = []

    def ready(mine, other):
        got.append(mine)
        loop.remove_reader(mine)
        loop.remove_reader(other)

    (a, b), (c, d) = pairs
    loop.add_reader(a, ready, a, c)
    loop.add_reader(c, ready, c, a)
    b.send(b"x")
    d.send(b"x")
    await turns(5)
    assert len(got) == 1
    for sock in (a, b, c, d):
        sock.close()


async def test_close_another_one_of_the_batch(loop):
    """Its number is at once used again, by a descriptor that isn't ready."""
    (a, b), (c, d) = socket.socketpair(), socket.socketpair()
    got = []
    opened = []

    def ready(mine, other):
        got.append("ready")
        loop.remove_reader(mine)
        loop.remove_reader(other)
        number = other.fileno()
        other.close()
        reader, writer = os.pipe()
        os.dup2(reader, number)
        opened.extend({reader, writer, number})
        loop.add_reader(number, got.append, "the new one")

    loop.add_reader(a, ready, a, c)
    loop.add_reader(c, ready, c, a)
    b.send(b"x")
    d.send(b"x")
    await turns(5)
    assert got == ["ready"]
    for number in opened:
        loop.remove_reader(number)
        os.close(number)
    for sock in (a, b, c, d):
        sock.close()


async def test_remove_within_the_turn_of_the_event(loop, ends):
    mine, peer = ends
    got = []
    loop.add_reader(mine, got.append, "ran")
    peer.send(b"x")
    loop.call_soon(loop.remove_reader, mine)
    await turns(3)
    assert got == []


async def test_add_inside_the_callback(loop, ends):
    mine, peer = ends
    got = Notes()

    def ready():
        got.note("read")
        mine.recv(100)
        loop.add_reader(peer, got.note, "other")
        mine.send(b"x")

    loop.add_reader(mine, ready)
    peer.send(b"x")
    await got.called("other")
    assert got.calls[0] == "read"


async def test_errors_are_reported_and_the_reader_stays(loop, ends, reports):
    mine, peer = ends

    def ready():
        if len(reports) == 2:
            mine.recv(100)
        raise ZeroDivisionError

    loop.add_reader(mine, ready)
    peer.send(b"x")
    await until(lambda: len(reports) == 3)
    await turns(3)
    assert len(reports) == 3
    assert all(
        isinstance(context["exception"], ZeroDivisionError)
        and context["message"].startswith("Exception in callback")
        for context in reports
    )
    assert loop.remove_reader(mine) is True


def test_exit_in_a_reader_leaves_the_loop(loop, ends):
    mine, peer = ends

    def ready():
        mine.recv(100)
        raise SystemExit("out")

    loop.add_reader(mine, ready)
    peer.send(b"x")
    with pytest.raises(SystemExit, match="out"):
        loop.run_forever()
    loop.run_until_complete(turns(2))


async def test_context_is_that_of_the_registration(loop, ends):
    mine, peer = ends
    seen = []

    def ready():
        seen.append(VAR.get())
        VAR.set("inside")
        if len(seen) == 2:
            loop.remove_reader(mine)

    VAR.set("registered")
    loop.add_reader(mine, ready)
    VAR.set("afterwards")
    peer.send(b"x")
    await until(lambda: len(seen) == 2)
    assert seen == ["registered", "inside"]
    assert VAR.get() == "afterwards"


# -- descriptors of all kinds -------------------------------------------------
async def test_pipes(loop):
    reader, writer = os.pipe()
    got = Notes()
    loop.add_reader(reader, got.note, "readable")
    loop.add_writer(writer, got.note, "writable")
    await got.called("writable")
    loop.remove_writer(writer)
    os.write(writer, b"x")
    await got.called("readable")
    os.read(reader, 10)
    got.calls.clear()
    os.close(writer)
    await got.called("readable")
    assert os.read(reader, 10) == b""
    loop.remove_reader(reader)
    os.close(reader)


async def test_writer_learns_that_the_reader_has_gone(loop):
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    while True:
        try:
            os.write(writer, b"x" * 65536)
        except BlockingIOError:
            break
    got = Notes()
    loop.add_writer(writer, got.note, "writable")
    await turns(3)
    assert got.calls == []
    os.close(reader)
    await got.called("writable")
    with pytest.raises(BrokenPipeError):
        os.write(writer, b"x")
    loop.remove_writer(writer)
    os.close(writer)


async def test_reader_learns_that_the_peer_has_gone(loop, ends):
    mine, peer = ends
    got = Notes()
    loop.add_reader(mine, got.note, "readable")
    peer.close()
    await got.called("readable")
    assert mine.recv(10) == b""


async def test_terminals(loop):
    master, slave = pty.openpty()
    got = Notes()
    loop.add_reader(master, got.note, "readable")
    os.write(slave, b"line\n")
    await got.called("readable")
    assert os.read(master, 100).startswith(b"line")
    loop.remove_reader(master)
    os.close(master)
    os.close(slave)


async def test_datagram_sockets_and_listeners(loop):
    got = Notes()
    with (
        socket.socket(type=socket.SOCK_DGRAM) as udp,
        socket.socket() as lsock,
        socket.socket() as client,
    ):
        udp.bind(("127.0.0.1", 0))
        lsock.bind(("127.0.0.1", 0))
        lsock.listen()
        loop.add_reader(udp, got.note, "datagram")
        loop.add_reader(lsock, got.note, "connection")
        udp.sendto(b"", udp.getsockname())
        await got.called("datagram")
        loop.remove_reader(udp)
        client.setblocking(False)
        client.connect_ex(lsock.getsockname())
        await got.called("connection")
        loop.remove_reader(lsock)


async def test_duplicates_of_one_socket(loop, ends):
    mine, peer = ends
    got = Notes()
    with mine.dup() as twin:
        loop.add_reader(mine, got.note, "one")
        loop.add_reader(twin, got.note, "two")
        peer.send(b"x")
        await got.called("one")
        await got.called("two")
        assert loop.remove_reader(twin) is True
    got.calls.clear()
    await got.called("one", 2)
    assert "two" not in got.calls


async def test_hundreds_at_once(loop):
    pairs = [socket.socketpair() for _ in range(300)]
    got = []
    for number, (mine, _) in enumerate(pairs):
        loop.add_reader(mine, got.append, number)
    for _, peer in pairs:
        peer.send(b"x")
    await until(lambda: len(set(got)) == 300)
    for mine, peer in pairs:
        assert loop.remove_reader(mine) is True
        mine.close()
        peer.close()


# -- numbers that are used again ----------------------------------------------
async def test_number_of_a_removed_reader_is_used_again(loop):
    mine, peer = socket.socketpair()
    number = mine.fileno()
    got = Notes()
    loop.add_reader(mine, got.note, "old")
    loop.remove_reader(mine)
    mine.close()
    reader, writer = os.pipe()
    if reader != number:
        os.dup2(reader, number)
        os.close(reader)
    loop.add_reader(number, got.note, "new")
    os.write(writer, b"x")
    await got.called("new")
    assert "old" not in got.calls
    assert loop.remove_reader(number) is True
    os.close(number)
    os.close(writer)
    peer.close()


async def test_descriptor_closed_without_remove(loop):
    """A fault of the program, which must not harm the rest of it."""
    mine, peer = socket.socketpair()
    number = mine.fileno()
    got = Notes()
    loop.add_reader(number, got.note, "old")
    mine.close()
    peer.close()
    await turns(3)
    assert loop.remove_reader(number) is True
    assert loop.remove_reader(number) is False
    reader, writer = os.pipe()
    if reader != number:
        os.dup2(reader, number)
        os.close(reader)
    loop.add_reader(number, got.note, "new")
    os.write(writer, b"x")
    await got.called("new")
    assert "old" not in got.calls
    loop.remove_reader(number)
    os.close(number)
    os.close(writer)


async def test_removed_and_added_again_in_one_turn(loop, ends):
    mine, peer = ends
    got = Notes()
    for name in "abc":
        loop.add_reader(mine, got.note, name)
        loop.remove_reader(mine)
    loop.add_reader(mine, got.note, "last")
    peer.send(b"x")
    await got.called("last")
    assert set(got.calls) == {"last"}


async def test_many_rounds_of_add_and_remove(loop, ends):
    mine, peer = ends
    for number in range(200):
        got = Notes()
        loop.add_reader(mine, got.note, number)
        peer.send(b"x")
        await got.called(number)
        assert loop.remove_reader(mine) is True
        mine.recv(1)


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_closing_the_loop_drops_the_callback(new_loop, direction):
    class Thing:
        def __call__(self):
            pass

        def __del__(self):
            gone.append(True)

    gone = []
    loop = new_loop()
    mine, peer = socket.socketpair()
    add(loop, direction, mine, Thing())
    loop.call_soon(loop.stop)
    loop.run_forever()
    loop.close()
    assert gone == [True]
    # the descriptor is the program's own, and open
    peer.send(b"x")
    assert mine.recv(1) == b"x"
    mine.close()
    peer.close()


async def test_wait_in_asyncio_style(loop, ends):
    """As libraries do it: a future, a reader, and a timeout around it."""
    mine, peer = ends

    async def readable():
        future = loop.create_future()
        loop.add_reader(mine, lambda: future.done() or future.set_result(None))
        try:
            await future
        finally:
            loop.remove_reader(mine)

    with pytest.raises(TimeoutError):
        await asyncio.wait_for(readable(), 0.005)
    peer.send(b"x")
    await within(readable())
    assert mine.recv(10) == b"x"


@pytest.mark.parametrize("direction", ["reader", "writer"])
async def test_removed_by_object_after_close(loop, pair, direction):
    """As anyio does: the object has no number any more."""
    mine, _ = pair
    add = getattr(loop, f"add_{direction}")
    remove = getattr(loop, f"remove_{direction}")
    add(mine, print)
    mine.close()
    assert remove(mine) is True
    with pytest.raises(ValueError, match="Invalid file descriptor: -1"):
        remove(mine)
    other, peer = socket.socketpair()
    with other, peer:
        with pytest.raises(ValueError, match="Invalid file descriptor: -1"):
            remove(mine)
        add(other.fileno(), print)
        assert remove(other) is True
        assert remove(other) is False
