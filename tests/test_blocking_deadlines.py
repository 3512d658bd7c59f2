"""Deadlines and timeouts of blocking sockets, and what is left of calls that
end early."""

import contextlib
import os
import socket as stdlib
import threading
import time

import pytest
from blocking import SLOW, TIMEOUT, Call, blocking_calls, settle, tcp_pair

import pyfastnet


@pytest.fixture
def stack():
    with contextlib.ExitStack() as stack:
        yield stack


@pytest.fixture
def pair(stack):
    one, other = pyfastnet.socketpair()
    return stack.enter_context(one), stack.enter_context(other)


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
