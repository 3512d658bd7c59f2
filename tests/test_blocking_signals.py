"""Blocking sockets, signals and forks."""

import contextlib
import os
import signal
import socket as stdlib
import sys
import threading
import time

import pytest
from blocking import SLOW, TIMEOUT, Call, closed, settle

import pyfastnet


@pytest.fixture
def stack():
    with contextlib.ExitStack() as stack:
        yield stack


@pytest.fixture
def pair(stack):
    one, other = pyfastnet.socketpair()
    return stack.enter_context(one), stack.enter_context(other)


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
