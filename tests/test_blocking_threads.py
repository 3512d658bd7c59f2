"""Blocking sockets that several threads use at once: close(), deadlines,
signals, forks.  What the socket module cannot do has no oracle here."""

import contextlib
import errno
import gc
import os
import resource
import select
import signal
import socket as stdlib
import statistics
import sys
import threading
import time

import pytest
import support

import pyfastnet
from pyfastnet import Socket

TIMEOUT = 10
SLOW = 2.0  # seconds that waking a thread may take on a busy machine


class Call:
    """A call in a thread of its own."""

    def __init__(self, function, *args):
        self.value = self.error = None
        self.begun = threading.Event()
        self.thread = threading.Thread(
            target=self._run, args=(function, args), daemon=True
        )
        self.thread.start()
        self.begun.wait()

    def _run(self, function, args):
        self.begun.set()
        try:
            self.value = function(*args)
        except BaseException as exc:
            self.error = exc
        self.ended = time.monotonic()

    @property
    def running(self):
        return self.thread.is_alive()

    def join(self, timeout=TIMEOUT):
        self.thread.join(timeout)
        assert not self.running, "the call is still blocked"
        return self

    def failed(self, kind):
        self.join()
        assert isinstance(self.error, kind), (self.value, self.error)
        return self.error

    def gave(self):
        self.join()
        assert self.error is None, self.error
        return self.value


def closed(call):
    """The call has ended because the socket was closed."""
    error = call.failed(OSError)
    assert error.errno == errno.EBADF and "closed" in str(error)
    return error


@pytest.fixture
def stack():
    with contextlib.ExitStack() as stack:
        yield stack


@pytest.fixture
def pair(stack):
    one, other = pyfastnet.socketpair()
    return stack.enter_context(one), stack.enter_context(other)


def tcp_pair(stack):
    with pyfastnet.create_server(("127.0.0.1", 0)) as listener:
        one = stack.enter_context(pyfastnet.create_connection(listener.getsockname()))
        other = stack.enter_context(listener.accept()[0])
    return one, other


def settle():
    """Time for the calls of other threads to block."""
    time.sleep(0.05)


# -- close() (blk_01 to blk_04) -----------------------------------------------


def blocking_calls(sock):
    return {
        "recv": lambda: sock.recv(10),
        "recv large": lambda: sock.recv(1 << 20),
        "recv_into": lambda: sock.recv_into(bytearray(10)),
        "recvfrom": lambda: sock.recvfrom(10),
        "recvmsg": lambda: sock.recvmsg(10),
        "recv_exactly": lambda: sock.recv_exactly(10),
        "recv_exactly large": lambda: sock.recv_exactly(1 << 20),
        "recv_until": lambda: sock.recv_until(b"\n"),
        "sendall": lambda: sock.sendall(b"x" * (8 << 20)),
        "sendall of many": lambda: sock.sendall([b"x" * (1 << 20)] * 8),
    }


@pytest.mark.parametrize("timeout", [None, 60.0])
@pytest.mark.parametrize("kind", ["unix", "tcp"])
@pytest.mark.parametrize("name", sorted(blocking_calls(None)))
def test_close_wakes_a_blocked_call(stack, name, kind, timeout):
    if kind == "unix":
        one, other = map(stack.enter_context, pyfastnet.socketpair())
    else:
        one, other = tcp_pair(stack)
    one.settimeout(timeout)
    fd = one.fileno()
    call = Call(blocking_calls(one)[name])
    settle()
    assert call.running
    begin = time.monotonic()
    one.close()
    assert time.monotonic() - begin < SLOW
    error = closed(call)
    assert name.split()[0] in str(error)
    assert one.fileno() == -1
    with pytest.raises(OSError):
        os.fstat(fd)
    one.close()
    if name.startswith("sendall"):
        taken = 0
        while data := other.recv(1 << 20):
            taken += len(data)
        assert taken == error.bytes_sent


def test_close_wakes_every_thread(pair):
    one, _ = pair
    calls = [Call(one.recv, 10) for _ in range(8)]
    calls += [Call(one.sendall, b"x" * (8 << 20)) for _ in range(4)]
    settle()
    one.close()
    for call in calls:
        closed(call)


def test_close_wakes_accept_and_frees_the_port(stack):
    listener = pyfastnet.create_server(("127.0.0.1", 0))
    address = listener.getsockname()
    calls = [Call(listener.accept) for _ in range(4)]
    settle()
    listener.close()
    for call in calls:
        closed(call)
    with pytest.raises(ConnectionRefusedError):
        pyfastnet.create_connection(address)
    with pyfastnet.create_server(address):
        pass


def test_close_wakes_connect(stack):
    """To an address whose listener does not answer: its backlog is full."""
    listener = stack.enter_context(stdlib.socket())
    listener.bind(("127.0.0.1", 0))
    listener.listen(0)
    fillers = [stack.enter_context(stdlib.socket()) for _ in range(4)]
    for filler in fillers:
        filler.setblocking(False)
        filler.connect_ex(listener.getsockname())
    sock = Socket()
    call = Call(sock.connect, listener.getsockname())
    settle()
    assert call.running
    sock.close()
    closed(call)
    sock = stack.enter_context(Socket())
    sock.settimeout(0.05)
    with pytest.raises(TimeoutError, match="connect"):
        sock.connect(listener.getsockname())
    sock = stack.enter_context(Socket())
    sock.settimeout(0.05)
    assert sock.connect_ex(listener.getsockname()) == errno.EAGAIN
    with pytest.raises(TimeoutError):
        pyfastnet.create_connection(
            listener.getsockname(), deadline=time.monotonic() + 0.05
        )


def test_accepted_clients_are_returned_or_closed(stack):
    """Clients that come while the listener is closed: none is left open."""
    for _ in range(20):
        listener = pyfastnet.create_server(("127.0.0.1", 0))
        accepts = [Call(listener.accept) for _ in range(3)]
        clients = []
        closer = threading.Timer(0.001, listener.close)
        closer.start()
        with contextlib.suppress(OSError):
            for _ in range(3):
                clients.append(
                    stack.enter_context(
                        pyfastnet.create_connection(listener.getsockname(), 2)
                    )
                )
        closer.join()
        accepted = 0
        for call in accepts:
            call.join()
            if call.error is None:
                call.value[0].close()
                accepted += 1
        for client in clients:
            try:
                assert client.recv(1) == b""
            except ConnectionResetError:
                pass  # was in the backlog of the closed listener
        assert accepted <= 3


def test_no_call_uses_a_number_again(stack):
    """Readers race with close() and with strangers that get the number."""
    strange = []
    for round_ in range(100):
        one, other = pyfastnet.socketpair()
        calls = [Call(one.recv, 100) for _ in range(2)]
        if round_ % 2:
            time.sleep(0.001)
        one.close()
        a, b = stdlib.socketpair()
        a.sendall(b"private")
        b.sendall(b"private")
        for call in calls:
            call.join()
            if call.error is None:
                strange.append(call.value)
        for sock in (a, b, other):
            sock.close()
    assert not strange


def test_a_thousand_blocked_threads(stack):
    """close() of each from one other thread: all wake soon, nothing leaks,
    and while they are blocked no buffers are held."""
    count = 1000
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 4 * count
    if before[1] != resource.RLIM_INFINITY and before[1] < wanted:
        pytest.skip("needs 4,000 descriptors")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(wanted, before[0]), before[1]))
    stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, before)
    descriptors = len(os.listdir("/proc/self/fd"))
    pairs = [pyfastnet.socketpair() for _ in range(count)]
    size = threading.stack_size(256 * 1024)
    stack.callback(threading.stack_size, size)

    def sleepers(target):
        return [Call(target, one) for one, _ in pairs]

    # The same threads, first waiting for nothing, then in recv(1 MiB).
    gate = threading.Event()
    idle = sleepers(lambda one: gate.wait())
    settle()
    idle_memory = memory()
    gate.set()
    for call in idle:
        call.join()
    calls = sleepers(lambda one: one.recv(1 << 20))
    time.sleep(0.5)
    assert all(call.running for call in calls)
    held = (memory() - idle_memory) / count
    assert held < 8 * 1024, f"{held:.0f} bytes for each blocked call"
    closed_at = []
    for one, _ in pairs:
        closed_at.append(time.monotonic())
        one.close()
    for call in calls:
        closed(call)
    took = sorted(c.ended - at for c, at in zip(calls, closed_at, strict=True))
    print(f"woken: p50 {took[500] * 1e3:.1f} ms, p99 {took[990] * 1e3:.1f} ms")
    assert took[990] < SLOW
    for _, other in pairs:
        other.close()
    del calls, idle
    pairs.clear()
    gc.collect()
    for _ in range(100):
        if len(os.listdir("/proc/self/fd")) <= descriptors + 2:
            break
        time.sleep(0.02)  # threads end
    assert len(os.listdir("/proc/self/fd")) <= descriptors + 2


def memory():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


def test_detach_wakes_and_gives_the_number(pair):
    one, other = pair
    call = Call(one.recv, 10)
    settle()
    fd = one.detach()
    closed(call)
    again = stdlib.socket(fileno=fd)
    with again:
        again.sendall(b"x")
        assert other.recv(1) == b"x"


# -- deadlines (blk_05 to blk_07, blk_12) -------------------------------------


def test_a_deadline_set_by_another_thread(pair):
    one, other = pair
    for name in ("recv", "recv_into", "recv_exactly", "recv_until", "sendall"):
        call = Call(blocking_calls(one)[name])
        settle()
        one.set_deadline(time.monotonic() + 10)
        one.set_deadline(None)
        settle()
        assert call.running
        begin = time.monotonic()
        one.set_deadline(begin - 1)
        call.failed(TimeoutError)
        assert time.monotonic() - begin < SLOW
        one.set_deadline(None)
    taken = other.recv(1)
    assert taken == b"x"
    other.sendall(b"usable")
    assert one.recv(10) == b"usable"


def test_deadlines_are_per_direction(pair):
    one, other = pair
    one.set_read_deadline(0)
    one.sendall(b"x")
    assert other.recv(1) == b"x"
    other.sendall(b"y")
    with pytest.raises(TimeoutError):
        one.recv(1)
    one.set_read_deadline(None)
    assert one.recv(1) == b"y"
    one.set_write_deadline(0)
    other.sendall(b"y")
    assert one.recv(1) == b"y"
    with pytest.raises(TimeoutError) as info:
        one.sendall(b"x")
    assert info.value.bytes_sent == 0


def test_an_extended_deadline_is_waited_for(pair):
    one, other = pair
    one.set_read_deadline(time.monotonic() + 0.1)
    call = Call(one.recv, 10)
    settle()
    one.set_read_deadline(time.monotonic() + 60)
    time.sleep(0.2)
    assert call.running
    other.sendall(b"late")
    assert call.gave() == b"late"


@pytest.mark.parametrize("how", ["when", "after"])
@pytest.mark.parametrize("value", [0, -1, -0.5, -1e30, float("-inf")])
def test_a_deadline_in_the_past(pair, how, value):
    one, other = pair
    other.sendall(b"data")
    if how == "when":
        one.set_deadline(value)
    else:
        one.set_deadline(after=value)
    for call in (
        lambda: one.recv(1),
        lambda: one.recv_into(bytearray(1)),
        lambda: one.recvfrom(1),
        lambda: one.recvmsg(1),
        lambda: one.recv_exactly(1),
        lambda: one.recv_until(b"a"),
        lambda: one.send(b"x"),
        lambda: one.sendall(b"x"),
        lambda: one.sendmsg([b"x"]),
        lambda: one.makefile("rb").read(1),
    ):
        with pytest.raises(TimeoutError):
            call()
    one.set_deadline()
    assert one.recv(10) == b"data"
    other.settimeout(0.01)
    with pytest.raises(TimeoutError):
        other.recv(1)


@pytest.mark.parametrize("how", ["when", "after"])
@pytest.mark.parametrize("value", [None, float("inf"), 1e30, 1e12])
def test_a_deadline_that_never_comes(pair, how, value):
    one, other = pair
    one.set_deadline(0)
    one.set_deadline(**{how: value})
    call = Call(one.recv, 10)
    settle()
    assert call.running
    other.sendall(b"x")
    assert call.gave() == b"x"


def test_bad_deadlines(pair):
    one, _ = pair
    for bad, error in ((float("nan"), ValueError), ("1", TypeError)):
        for name in ("set_deadline", "set_read_deadline", "set_write_deadline"):
            with pytest.raises(error):
                getattr(one, name)(bad)
            with pytest.raises(error):
                getattr(one, name)(after=bad)
    with pytest.raises(TypeError):
        one.set_deadline(1, after=1)
    one.close()
    with pytest.raises(OSError):
        one.set_deadline(1)


def test_the_timeout_is_for_the_whole_operation(pair):
    one, other = pair
    stop = threading.Event()

    def drip():
        while not stop.wait(0.05):
            other.send(b".")

    dripper = threading.Thread(target=drip)
    one.settimeout(0.3)
    dripper.start()
    try:
        for call in (
            lambda: one.recv_exactly(1000),
            lambda: one.recv_until(b"\n"),
            lambda: one.makefile("rb").read(1000),
            lambda: one.makefile("rb").readline(),
            lambda: one.makefile("rb").readinto(bytearray(1000)),
        ):
            begin = time.monotonic()
            with pytest.raises(TimeoutError):
                call()
            assert 0.3 <= time.monotonic() - begin < SLOW
    finally:
        stop.set()
        dripper.join()


def test_sendall_has_one_timeout_for_all_pieces(stack):
    one, other = tcp_pair(stack)
    one.settimeout(0.3)
    stop = threading.Event()

    def drain():
        while not stop.wait(0.05):
            other.recv(20_000)

    reader = threading.Thread(target=drain)
    reader.start()
    try:
        begin = time.monotonic()
        with pytest.raises(TimeoutError) as info:
            one.sendall(b"x" * (64 << 20))
        assert 0.3 <= time.monotonic() - begin < SLOW
        assert 0 < info.value.bytes_sent < 64 << 20
    finally:
        stop.set()
        reader.join()


def test_deadline_changes_race_with_reads(pair):
    one, other = pair
    timeouts = 0
    done = threading.Event()
    last = []

    def read():
        nonlocal timeouts
        while True:
            try:
                one.recv(10)
            except TimeoutError:
                timeouts += 1
                if done.is_set():
                    last.append(time.monotonic())
                    return
            except OSError:
                return

    reader = threading.Thread(target=read)
    reader.start()
    for i in range(5000):
        one.set_read_deadline(0)
        if i % 7 == 0:
            time.sleep(0)
        one.set_read_deadline(time.monotonic() + 60)
    settle()
    begin = time.monotonic()
    done.set()
    one.set_read_deadline(0)
    reader.join(TIMEOUT)
    assert not reader.is_alive()
    assert timeouts > 0 and last[0] - begin < SLOW
    # and close() ends a reader whatever the deadlines do
    one.set_read_deadline(None)
    done.clear()
    reader = threading.Thread(target=read)
    reader.start()
    setter = Call(lambda: [one.set_deadline(after=60) for _ in range(2000)])
    one.close()
    reader.join(TIMEOUT)
    assert not reader.is_alive()
    setter.join()


# -- sends and reads that end early (blk_08, blk_09) --------------------------


@pytest.mark.parametrize("kind", ["unix", "tcp"])
@pytest.mark.parametrize("many", [False, True])
def test_what_was_sent_is_countable(stack, kind, many):
    if kind == "unix":
        one, other = map(stack.enter_context, pyfastnet.socketpair())
    else:
        one, other = tcp_pair(stack)
    data = os.urandom(8 << 20)
    pieces = [data[i : i + 99_999] for i in range(0, len(data), 99_999)]
    one.settimeout(0.1)
    with pytest.raises(TimeoutError) as info:
        one.sendall(pieces if many else data)
    sent = info.value.bytes_sent
    assert 0 < sent < len(data)
    one.settimeout(None)
    rest = Call(one.sendall, memoryview(data)[sent:])
    assert other.recv_exactly(len(data)) == data
    rest.gave()


def test_a_partial_read_survives_a_timeout(pair):
    one, other = pair
    one.settimeout(0.05)
    other.sendall(b"first half, ")
    with pytest.raises(TimeoutError) as info:
        one.recv_exactly(24)
    assert info.value.bytes_received == 12
    assert one.pending() == 12
    with pytest.raises(TimeoutError):
        one.recv_until(b"\n")
    with pytest.raises(BufferError):
        one.detach()
    assert one.recv(3, stdlib.MSG_PEEK) == b"fir"
    other.sendall(b"second half\n")
    assert one.recv_until(b"\n") == b"first half, second half\n"
    assert one.pending() == 0
    big = os.urandom(100_000)
    other.sendall(big[:60_000])
    with pytest.raises(TimeoutError) as info:
        one.recv_exactly(100_000)
    assert info.value.bytes_received == 60_000
    other.sendall(big[60_000:])
    assert one.recv(10) == big[:10]
    assert one.recvfrom(10)[0] == big[10:20]
    buffer = bytearray(10)
    assert one.recv_into(buffer) == 10 and buffer == big[20:30]
    assert one.recvmsg(10)[0] == big[30:40]
    assert one.recvmsg_into([buffer])[0] == 10 and buffer == big[40:50]
    assert one.makefile("rb").read(10) == big[50:60]
    # a file has read ahead of what it was asked for: its own affair


# -- signals (blk_10) ---------------------------------------------------------


@pytest.fixture
def alarm():
    """Calls a handler in the main thread every so often."""
    before = signal.getsignal(signal.SIGALRM)

    def set_alarm(handler, interval):
        signal.signal(signal.SIGALRM, handler)
        signal.setitimer(signal.ITIMER_REAL, interval, interval)

    yield set_alarm
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


def test_signals_do_not_stretch_a_timeout(pair, alarm):
    one, _ = pair
    count = []
    alarm(lambda *_: count.append(1), 0.02)
    one.settimeout(0.3)
    for call in (
        lambda: one.recv(1),
        lambda: one.recv_exactly(1),
        lambda: one.recvmsg(1),
        lambda: one.makefile("rb").read(1),
    ):
        begin = time.monotonic()
        with pytest.raises(TimeoutError):
            call()
        assert 0.3 <= time.monotonic() - begin < SLOW
    assert len(count) > 10


def test_an_exception_of_a_handler_leaves_the_call(pair, alarm):
    class Stop(Exception):
        pass

    def stop(*_):
        signal.setitimer(signal.ITIMER_REAL, 0)
        raise Stop

    one, other = pair
    other.sendall(b"abc")
    alarm(stop, 0.05)
    with pytest.raises(Stop) as info:
        one.recv_exactly(6)
    assert info.value.bytes_received == 3
    other.sendall(b"def")
    assert one.recv_exactly(6) == b"abcdef"
    alarm(stop, 0.05)
    with pytest.raises(Stop):
        one.recv(1)
    alarm(stop, 0.05)
    with pytest.raises(Stop) as info:
        one.sendall(b"x" * (8 << 20))
    taken = 0
    other.setblocking(False)
    with contextlib.suppress(BlockingIOError):
        while True:
            taken += len(other.recv(1 << 20))
    assert taken == info.value.bytes_sent > 0


def test_a_handler_may_use_the_socket(pair, alarm):
    """The interrupted call has the turn: the handler is let in beside it."""
    one, other = pair
    seen = []

    def handler(*_):
        signal.setitimer(signal.ITIMER_REAL, 0)
        other.sendall(b"for the handler, and the rest")
        seen.append(one.recv(17))

    alarm(handler, 0.05)
    assert one.recv(100) == b"and the rest"
    assert seen == [b"for the handler, "]


def test_a_handler_may_close_the_socket(pair, alarm):
    one, _ = pair

    def handler(*_):
        signal.setitimer(signal.ITIMER_REAL, 0)
        one.close()

    alarm(handler, 0.05)
    with pytest.raises(OSError, match="closed"):
        one.recv(1)
    assert one.fileno() == -1


def test_ctrl_c_interrupts(pair):
    one, _ = pair
    timer = threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        one.recv(1)
    timer.join()


def test_ctrl_c_interrupts_the_wait_for_a_turn(pair):
    one, _ = pair
    other_reader = Call(one.recv, 1)
    settle()
    timer = threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        one.recv(1)
    timer.join()
    one.close()
    closed(other_reader)


# -- turns (blk_11) -----------------------------------------------------------


def test_readiness_is_a_hint(pair):
    """Two readers, one message each: none sees "not now"."""
    one, other = pair
    one.settimeout(TIMEOUT)
    for _ in range(50):
        calls = [Call(one.recv, 100) for _ in range(2)]
        other.sendall(b"one")
        time.sleep(0.002)
        other.sendall(b"two")
        time.sleep(0.002)
        if any(call.running for call in calls):
            other.sendall(b"one call has got both messages")
        for call in calls:
            call.gave()


def test_a_datagram_taken_by_somebody_else(stack):
    """The copy of the descriptor is faster: the call waits on."""
    one = stack.enter_context(Socket(stdlib.AF_INET, stdlib.SOCK_DGRAM))
    one.bind(("127.0.0.1", 0))
    copy = stack.enter_context(one.dup())
    sender = stack.enter_context(Socket(stdlib.AF_INET, stdlib.SOCK_DGRAM))
    calls = [Call(one.recv, 10), Call(copy.recv, 10)]
    settle()
    sender.sendto(b"1", one.getsockname())
    settle()
    sender.sendto(b"2", one.getsockname())
    assert sorted(call.gave() for call in calls) == [b"1", b"2"]


def test_messages_of_many_threads_are_not_mixed(pair):
    one, other = pair
    count, size = 20, 70_000

    def send(mark):
        for _ in range(count):
            one.sendall([mark * 10, mark * (size - 10)])

    senders = [Call(send, bytes([mark])) for mark in b"abcd"]
    seen = {}
    for _ in range(4 * count):
        message = other.recv_exactly(size)
        assert len(set(message)) == 1, "two messages are mixed"
        seen[message[:1]] = seen.get(message[:1], 0) + 1
    for sender in senders:
        sender.gave()
    assert set(seen.values()) == {count}


def test_frames_read_by_many_threads_are_whole(pair):
    one, other = pair
    size, count = 5000, 400
    readers = [
        Call(lambda: [other.recv_exactly(size) for _ in range(count // 4)])
        for _ in range(4)
    ]
    for number in range(count):
        one.sendall(number.to_bytes(2, "big") * (size // 2))
    frames = [frame for reader in readers for frame in reader.gave()]
    assert all(frame == frame[:2] * (size // 2) for frame in frames)
    assert {frame[:2] for frame in frames} == {
        number.to_bytes(2, "big") for number in range(count)
    }


def test_one_reads_while_another_writes(pair):
    one, other = pair
    reader = Call(one.recv, 10)
    settle()
    one.sendall(b"not hindered by the reader")
    assert other.recv(100) == b"not hindered by the reader"
    other.sendall(b"x")
    assert reader.gave() == b"x"


def test_hostile_use(stack):
    """Everything at once, on one socket after the other: no crash, no hang,
    no error but those of a closed socket or a deadline."""
    errors = []

    def abuse(sock, function):
        while True:
            try:
                function()
            except (TimeoutError, BlockingIOError, BufferError):
                pass
            except OSError as exc:
                if exc.errno not in (errno.EBADF, errno.EPIPE, errno.ECONNRESET):
                    errors.append(exc)
                return
            except EOFError:
                return
            except ValueError as exc:
                if "closed" not in str(exc) and "separator" not in str(exc):
                    errors.append(exc)
                if sock.fileno() < 0:
                    return
            except BaseException as exc:
                errors.append(exc)
                return

    for _ in range(5):
        one, other = pyfastnet.socketpair()
        functions = [
            lambda one=one: one.recv(100),
            lambda one=one: one.recv_exactly(3),
            lambda one=one: one.recv_until(b"x", 50),
            lambda one=one: one.sendall([b"abc", b"x"] * 5),
            lambda one=one: one.set_deadline(after=0.001),
            lambda one=one: one.settimeout(0.001),
            lambda one=one: (one.getsockname(), one.dup().close()),
            lambda other=other: other.sendall(other.recv(50)),
        ]
        threads = [
            threading.Thread(target=abuse, args=(one, function))
            for function in functions
        ]
        for thread in threads:
            thread.start()
        time.sleep(0.1)
        one.close()
        other.close()
        for thread in threads:
            thread.join(TIMEOUT)
            assert not thread.is_alive()
    assert not errors


# -- forks --------------------------------------------------------------------


def in_child(function):
    """The function's result in a forked child, as an exit code."""
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        try:
            os._exit(0 if function() else 1)
        finally:
            os._exit(2)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_uses_its_copy(pair):
    one, other = pair
    reader = Call(one.recv, 10)
    writer = Call(one.sendall, b"x" * (8 << 20))
    settle()

    def child():
        other.settimeout(5)
        one.settimeout(0.05)
        try:
            one.recv(1)
        except TimeoutError:
            pass
        else:
            return False
        fd = one.fileno()
        one.close()
        try:
            os.fstat(fd)
        except OSError:
            return other.recv(1) == b"x"
        return False

    assert in_child(child) == 0
    assert reader.running and writer.running
    other.sendall(b"for the parent")
    assert reader.gave() == b"for the pa"
    one.close()
    closed(writer)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_handler_may_fork_in_a_call(pair, alarm):
    one, other = pair
    codes = []

    def handler(*_):
        signal.setitimer(signal.ITIMER_REAL, 0)
        pid = os.fork()
        if pid:
            codes.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
            other.sendall(b"parent")
        else:
            one.settimeout(0.01)
            other.sendall(b"child")

    alarm(handler, 0.05)
    pid = os.getpid()
    got = one.recv(5)
    if os.getpid() != pid:
        os._exit(7 if got == b"child" else 8)
    assert codes == [7]
    assert got == b"paren"


def test_a_forking_server(stack):
    """The child answers on the accepted connection, the parent closes it."""
    listener = stack.enter_context(pyfastnet.create_server(("127.0.0.1", 0)))
    client = stack.enter_context(pyfastnet.create_connection(listener.getsockname()))
    client.settimeout(TIMEOUT)
    conn, _ = listener.accept()
    client.sendall(b"ping")

    def child():
        listener.close()
        conn.sendall(conn.recv(4).upper())
        conn.shutdown(stdlib.SHUT_WR)
        return True

    with pytest.MonkeyPatch.context():
        assert in_child(child) == 0
    conn.close()
    assert client.recv(10) == b"PING"
    assert client.recv(10) == b""


# -- the GIL, wake-ups --------------------------------------------------------


def test_a_waiting_call_has_given_up_the_gil(pair):
    one, other = pair
    call = Call(one.recv, 10)
    settle()
    begin = time.monotonic()
    sum(range(200_000))
    assert time.monotonic() - begin < SLOW
    other.send(b"x")
    call.gave()


def switches():
    """Context switches of all threads of this process."""
    total = 0
    for task in os.listdir("/proc/self/task"):
        with contextlib.suppress(OSError):
            with open(f"/proc/self/task/{task}/status") as file:
                total += sum(
                    int(line.split()[1]) for line in file if "ctxt_switches" in line
                )
    return total


SENDER = """
import socket, sys, time
sock = socket.socket(fileno=int(sys.argv[1]))
end = time.monotonic() + 1.5
while time.monotonic() < end:
    sock.send(b"x", socket.MSG_DONTWAIT)
    time.sleep(0.0002)
"""


def test_data_that_nobody_reads_wakes_nobody(stack):
    """One byte per 200 us for a socket that has been read before."""
    one, other = tcp_pair(stack)
    fd = other.detach()
    script = support.subprocess.Popen(
        [sys.executable, "-c", SENDER, str(fd)], pass_fds=[fd]
    )
    os.close(fd)
    try:
        assert one.recv(1) == b"x"
        before = switches()
        time.sleep(1.0)
        made = switches() - before
    finally:
        assert script.wait(TIMEOUT) == 0
    assert select.select([one], [], [], 0)[0]
    # our own sleep, and what the interpreter's other threads may do
    assert made <= 20, f"{made} context switches in a second"


def test_large_transfers_leave_the_gil_to_others(stack):
    """A thread that wants the GIL gets it between pieces of a transfer: the
    median of its waits is far below what the whole transfer takes."""
    one, other = tcp_pair(stack)
    data = b"x" * (32 << 20)
    stop = threading.Event()

    def read():
        while other.recv(1 << 20):
            pass

    def write():
        while not stop.is_set():
            one.sendall(data)
        one.shutdown(stdlib.SHUT_WR)

    threads = [threading.Thread(target=read), threading.Thread(target=write)]
    for thread in threads:
        thread.start()
    waits = []
    try:
        for _ in range(200):
            begin = time.perf_counter()
            time.sleep(0)  # gives up the GIL and takes it back
            waits.append(time.perf_counter() - begin)
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert statistics.median(waits) < 0.002, waits
