"""Programs that mean harm, or make mistakes: what they do to themselves must
not become a crash, a hang or a lost byte.

asyncio is the oracle wherever its answer is the right one; what would crash
runs in a process of its own.
"""

import asyncio
import contextlib
import fcntl
import gc
import os
import socket
import sys
import weakref

import pytest
from support import (
    BufferedRecorder,
    Recorder,
    drain,
    listener,
    not_with_home_away,
    not_with_workers,
    read_exactly,
    run_script,
    turns,
    unix_pair,
    within,
)

ours = pytest.mark.not_on("asyncio", reason="our own objects")


async def transport_on(loop, sock, factory=Recorder):
    sock.setblocking(False)
    return await loop.create_unix_connection(factory, sock=sock)


# -- handles ----------------------------------------------------------------
def test_a_long_chain_of_handles(new_loop):
    out = run_script(
        new_loop,
        """
        loop = new_loop()
        handle = None
        for _ in range(200_000 if not loop.get_debug() else 3000):
            handle = loop.call_soon(lambda *args: None, handle)
        loop.call_soon(loop.stop)
        loop.run_forever()
        del handle
        timer = None
        for _ in range(200_000 if not loop.get_debug() else 3000):
            timer = loop.call_later(3600, print, timer)
        loop.close()
        del timer
        print("alive")
        """,
    )
    assert out == "alive\n"


def test_timers_cancelled_while_they_are_compared(new_loop):
    out = run_script(
        new_loop,
        """
        class Callback:
            def __call__(self): pass
            def __eq__(self, other):
                one.cancel()
                two.cancel()
                return NotImplemented

        loop = new_loop()
        one = loop.call_at(5e9, Callback())
        two = loop.call_at(5e9, Callback())
        print(one == two)
        loop.close()
        """,
    )
    assert out == "False\n"


def test_timers_are_equal_with_equal_arguments_only(loop):
    when = loop.time() + 3600
    one = loop.call_at(when, print, 1)
    assert one == loop.call_at(when, print, 1)
    assert one != loop.call_at(when, print, 2)
    assert one != loop.call_at(when, repr, 1)


# -- descriptors ------------------------------------------------------------
@pytest.mark.parametrize("fd", [1 << 25, (1 << 31) - 1])
def test_a_number_that_is_not_open(new_loop, fd):
    """The table of descriptors does not grow for it."""
    out = run_script(
        new_loop,
        f"""
        import resource
        def peak():
            return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        loop = new_loop()
        before = peak()
        for method in loop.add_reader, loop.add_writer:
            try:
                method({fd}, print)
            except OSError as exc:
                print(exc.errno)
        print(peak() - before < 50_000)
        loop.close()
        """,
    )
    assert out == "9\n9\nTrue\n"


@ours
async def test_waiting_for_a_closed_socket(loop):
    sock = socket.socket()
    sock.setblocking(False)
    sock.close()
    with pytest.raises(OSError):
        await loop._wait_readable(sock)


@pytest.mark.parametrize("how", ["replaced", "removed"])
async def test_a_reader_replaced_while_its_event_is_on_the_way(loop, how):
    """The event is the old one's, which has read what it told of."""
    pairs = [unix_pair() for _ in range(2)]
    peers = dict(pairs)
    ran = []
    replaced = None

    def first(mine, others):
        nonlocal replaced
        ran.append("first")
        for sock in mine, others:
            assert drain(sock) == b"x"
        if how == "removed":
            loop.remove_reader(others)
        loop.add_reader(others, second, others)
        replaced = others

    def second(mine):
        ran.append("second")
        drain(mine)

    (one, a), (two, b) = pairs
    for sock in one, two:
        sock.setblocking(False)
        loop.add_writer(sock, int)
    loop.add_reader(one, first, one, two)
    loop.add_reader(two, first, two, one)
    a.send(b"x")
    b.send(b"x")
    await turns(5)
    assert ran == ["first"]
    peers[replaced].send(b"x")
    await turns(5)
    assert ran == ["first", "second"]
    for sock in one, two:
        loop.remove_reader(sock)
        loop.remove_writer(sock)
        drain(sock)
    for one, other in pairs:
        one.close()
        other.close()


@not_with_home_away
@pytest.mark.not_on("asyncio", reason="a reader ends its sock_recv()")
async def test_a_reader_replaced_after_a_wait(loop, pair):
    """sock_recv() beside a reader leaves its registration behind."""
    mine, peer = pair
    ran = []

    def note(name):
        ran.append(name)
        drain(mine)

    loop.add_writer(mine, int)
    loop.add_reader(mine, loop.remove_reader, mine)
    task = asyncio.ensure_future(loop.sock_recv(mine, 10))
    await turns(2)
    loop.add_reader(mine, int)
    peer.send(b"x")
    assert await within(task) == b"x"
    for name in "one", "two":
        loop.add_reader(mine, note, name)
        peer.send(b"y")
        await turns(3)
    assert ran == ["one", "two"]
    loop.remove_reader(mine)
    loop.remove_writer(mine)


class Plain:
    """What can be received from, and has no weak references."""

    __slots__ = ("sock",)

    def __init__(self, sock):
        self.sock = sock

    def fileno(self):
        return self.sock.fileno()

    def recv(self, count):
        return self.sock.recv(count)

    def gettimeout(self):
        return self.sock.gettimeout()


async def test_a_socket_without_weak_references(loop, pair):
    mine, peer = pair
    for data in b"one", b"two":
        loop.call_later(0.01, peer.send, data)
        assert await within(loop.sock_recv(Plain(mine), 10)) == data


@ours
async def test_a_transport_on_a_servers_own_socket(loop):
    with listener(blocking=False) as sock:
        server = await loop.create_server(Recorder, sock=sock)
        with pytest.raises(RuntimeError, match="used by a server"):
            loop._make_socket_transport(sock, Recorder())
        server.close()
        await server.wait_closed()


@ours
async def test_a_listener_on_a_number_used_again(loop):
    """The first socket is closed behind the server's back."""
    first = listener(blocking=False)
    forgotten = await loop.create_server(Recorder, sock=first)
    number = first.fileno()
    first.close()
    with listener(blocking=False) as second:
        assert second.fileno() == number
        made = loop.create_future()
        server = await loop.create_server(
            lambda: made.set_result(None) or Recorder(), sock=second
        )
        with socket.create_connection(second.getsockname()):
            await within(made)
        server.abort_clients()
        await turns(2)
        server.close()
    with contextlib.suppress(ValueError):  # its socket has no number
        forgotten.close()


@ours
async def test_a_descriptor_closed_by_the_program(loop):
    """Its number is another file's by now, which must stay open."""
    made = loop.create_future()

    class Protocol(asyncio.Protocol):
        def connection_made(self, transport):
            made.set_result(transport)

    server = await loop.create_server(Protocol, "127.0.0.1", 0)
    with socket.create_connection(server.sockets[0].getsockname()):
        transport = await within(made)
        sock = transport.get_extra_info("socket")._sock
        number = sock.fileno()
        sock.close()
        other = os.open(os.devnull, os.O_RDONLY)
        assert other == number
        transport.abort()
        await turns(3)
        os.close(other)
    server.close()


# -- Python that runs in the middle of things ------------------------------
def high_number(fd):
    """A duplicate that makes the table of descriptors grow."""
    return fcntl.fcntl(fd, fcntl.F_DUPFD, 900)


async def test_a_protocol_that_adds_readers_when_looked_at(loop):
    read, write = os.pipe()
    high = high_number(read)

    class Odd(Recorder):
        def __getattribute__(self, name):
            if name in ("get_buffer", "__class__"):
                loop.add_reader(high, print)
            return super().__getattribute__(name)

    mine, peer = unix_pair()
    transport, protocol = await transport_on(loop, mine, Odd)
    peer.send(b"data")
    await protocol.received(4)
    transport.abort()
    await protocol.lost()
    loop.remove_reader(high)
    for fd in read, write, high:
        os.close(fd)
    peer.close()


async def test_a_listening_socket_that_adds_readers(loop):
    read, write = os.pipe()
    high = high_number(read)

    class Odd(socket.socket):
        def getsockname(self):
            loop.add_reader(high, print)
            return super().getsockname()

    with Odd() as sock:
        sock.bind(("127.0.0.1", 0))
        sock.setblocking(False)
        server = await loop.create_server(Recorder, sock=sock)
        server.close()
        await server.wait_closed()
    loop.remove_reader(high)
    for fd in read, write, high:
        os.close(fd)


async def test_writelines_of_a_list_that_changes(loop, new_loop):
    """pause_writing() empties it while it is being sent."""
    mine, peer = unix_pair()
    pieces = [bytes([number % 251]) * 10_000 for number in range(300)]
    sent = b"".join(pieces)

    class Protocol(Recorder):
        def pause_writing(self):
            super().pause_writing()
            pieces.clear()

    transport, protocol = await transport_on(loop, mine, Protocol)
    transport.writelines(pieces)
    if new_loop.kind == "pyfastnet":  # asyncio 3.13.0 forgets to pause
        assert "pause" in protocol.calls
    got = await loop.run_in_executor(None, read_exactly, peer, len(sent))
    assert got == sent
    transport.abort()
    await protocol.lost()
    peer.close()


@ours
@pytest.mark.parametrize("kind", ["recv", "recv_into", "sendall"])
def test_a_socket_that_ends_its_own_operation(loop, kind):
    class Odd(socket.socket):
        def fileno(self):
            operation.close()
            return super().fileno()

    mine, peer = unix_pair()
    peer.send(b"data")
    with Odd(fileno=mine.detach()) as sock, peer:
        sock.setblocking(False)
        argument = {
            "recv": 100,
            "recv_into": bytearray(4096),
            "sendall": bytearray(4096),
        }[kind]
        operation = getattr(loop, f"sock_{kind}")(sock, argument)
        with pytest.raises(ValueError, match="already executing"):
            operation.send(None)
        with pytest.raises(RuntimeError):
            operation.send(None)


@ours
def test_an_operation_goes_on_after_the_loop_was_closed(new_loop):
    loop = new_loop()
    mine, peer = unix_pair()
    mine.setblocking(False)
    with mine, peer:
        operation = loop.sock_recv(mine, 10)
        future = operation.send(None)
        loop.close()
        future.set_result(None)
        with pytest.raises(RuntimeError, match="closed"):
            operation.send(None)


async def test_a_size_beyond_all_memory(loop, pair):
    """What was received is not lost."""
    mine, peer = pair
    data = os.urandom(50_000)
    peer.sendall(data)
    got = bytearray()
    while len(got) < len(data):
        try:
            got += await within(loop.sock_recv(mine, 1 << 61))
        except (MemoryError, OverflowError):
            got += await within(loop.sock_recv(mine, 1 << 16))
    assert got == data


# -- delivering -------------------------------------------------------------
class Small(BufferedRecorder):
    def __init__(self):
        super().__init__(10)


@not_with_workers
@ours
@pytest.mark.parametrize("then", ["pause", "switch", "close"])
async def test_a_protocol_switched_to_small_buffers(loop, then):
    """Between a receive and its delivery; what a buffer does not take obeys
    pause_reading(), set_protocol() and close(), too."""

    class Protocol(Small):
        def buffer_updated(self, nbytes):
            super().buffer_updated(nbytes)
            if then == "pause":
                transport.pause_reading()
            elif then == "switch":
                transport.set_protocol(after)
            else:
                transport.close()

    class Switch(Recorder):
        def data_received(self, data):
            super().data_received(data)
            transport.set_protocol(small)

    small, after = Protocol(), Recorder()
    one, one_peer = unix_pair()
    two, two_peer = unix_pair()
    transport, _ = await transport_on(loop, one)
    trigger, switch = await transport_on(loop, two, Switch)
    # Both come in one pass, the trigger first.
    two_peer.send(b"x")
    one_peer.send(b"0123456789abcdefghijABCDEFGHIJ")
    await switch.received(1)
    await small.received(10)
    await turns(3)
    assert small.data == b"0123456789"
    if then == "pause":
        for _ in range(2):
            transport.resume_reading()
            await turns(3)
        assert small.data == b"0123456789abcdefghijABCDEFGHIJ"
    elif then == "switch":
        assert after.data == b"abcdefghijABCDEFGHIJ"
    for each in transport, trigger:
        each.abort()
    await turns(3)
    one_peer.close()
    two_peer.close()


@pytest.mark.parametrize("side", ["connected", "accepted"])
def test_an_interrupt_in_connection_made(loop, side):
    """The connection is there for whoever runs the loop again."""

    class Protocol(Recorder):
        def connection_made(self, transport):
            super().connection_made(transport)
            raise KeyboardInterrupt

    protocol = Protocol()
    mine, peer = unix_pair()
    mine.setblocking(False)
    if side == "connected":
        server = None
        task = loop.create_task(
            loop.create_unix_connection(lambda: protocol, sock=mine)
        )
    else:
        task = loop.create_task(protocol.received(1))
        server = loop.run_until_complete(
            loop.create_server(lambda: protocol, "127.0.0.1", 0)
        )
        peer.close()
        peer = socket.create_connection(server.sockets[0].getsockname())
    with pytest.raises(KeyboardInterrupt):
        loop.run_until_complete(task)
    peer.send(b"x")
    loop.run_until_complete(within(task))
    loop.run_until_complete(within(protocol.received(1)))
    protocol.transport.abort()
    loop.run_until_complete(within(protocol.lost()))
    for each in server, mine, peer:
        if each is not None:
            each.close()


@ours
async def test_connection_lost_called_by_hand(loop):
    mine, peer = unix_pair()
    transport, protocol = await transport_on(loop, mine)
    transport.pause_reading()
    transport._call_connection_lost(None)
    assert protocol.calls == ["made", "lost"]
    assert transport.is_closing()
    transport.resume_reading()
    transport._start(None)
    transport._deliver_held()
    transport.write(b"x")
    transport.write_eof()
    transport.set_protocol(Recorder())
    transport.pause_reading()
    transport.resume_reading()
    transport.abort()
    transport.close()
    transport._call_connection_lost(None)
    await turns(3)
    assert protocol.calls == ["made", "lost"]
    peer.close()


@ours
@pytest.mark.parametrize("where", ["setup", "cleanup"])
def test_an_interrupt_while_a_run_begins_or_ends(loop, reports, where):
    """Wherever it comes: the loop is not taken to be running ever after."""

    def trace(frame, event, arg):
        nonlocal left
        if frame.f_code.co_name == f"_run_forever_{where}":
            left -= 1
            if left == 0:
                raise KeyboardInterrupt
        return trace

    async def nothing():
        return "ran"

    for number in range(1, 100):
        left = number
        main = nothing()
        before = sys.gettrace()
        sys.settrace(trace)
        try:
            loop.run_until_complete(main)
        except KeyboardInterrupt:
            with contextlib.suppress(RuntimeError):
                main.close()
        else:
            break
        finally:
            sys.settrace(before)
        assert not loop.is_running()
        assert asyncio._get_running_loop() is None
        assert loop.run_until_complete(nothing()) == "ran"
    assert number > 5


# -- ends -------------------------------------------------------------------
@ours
def test_a_warning_hook_that_closes(new_loop):
    """The warning about an unclosed transport runs the program's code in
    the middle of the transport's end."""
    out = run_script(
        new_loop,
        """
        import gc, warnings

        seen = []

        def hook(message, *args, **kwargs):
            seen.append(str(message))
            loop._close()
            for thing in gc.get_objects():
                if type(thing).__name__ == "Transport":
                    thing.abort()
                    thing._call_connection_lost(None)

        loop = new_loop()
        mine, peer = socket.socketpair()
        mine.setblocking(False)
        transport, _ = loop.run_until_complete(
            loop.create_unix_connection(asyncio.Protocol, sock=mine)
        )
        warnings.simplefilter("always")
        warnings.showwarning = hook
        loop.close()
        assert not seen
        print(sys.getrefcount(transport))
        del transport
        gc.collect()
        assert seen and seen[0].startswith("unclosed transport"), seen
        assert peer.recv(1) == b""
        print("alive")
        """,
        options=(),
    )
    assert out == "2\nalive\n"


@ours
async def test_a_transport_dies_in_a_connection_set(loop):
    from pyfastnet import _core

    connections = _core.ConnectionSet()
    mine, peer = unix_pair()
    transport, protocol = await transport_on(loop, mine)
    transport.abort()
    await protocol.lost()
    found = []
    connections.add(transport)
    ref = weakref.ref(transport, lambda _: found.append(connections.copy()))
    protocol.transport = None
    del transport
    gc.collect()
    assert ref() is None
    assert found == [[]]
    peer.close()


@ours
def test_a_forked_child_that_returns_to_the_loop(new_loop):
    out = run_script(
        new_loop,
        """
        async def main():
            pid = os.fork()
            if pid == 0:
                return
            end = time.monotonic() + 10
            while time.monotonic() < end:
                if os.waitpid(pid, os.WNOHANG) != (0, 0):
                    return print("the child has ended")
                await asyncio.sleep(0.01)
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            print("the child hangs")

        loop = new_loop()
        parent = os.getpid()
        try:
            loop.run_until_complete(main())
        except RuntimeError as exc:
            assert os.getpid() != parent and "parent process" in str(exc)
            os._exit(0)
        loop.close()
        """,
        options=(),
    )
    assert "the child has ended\n" in out
