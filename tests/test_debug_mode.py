"""Debug mode: what it checks, logs and remembers."""

import asyncio
import logging
import os
import socket
import subprocess
import sys
import time

import pytest
from support import Recorder, in_thread, script_for, turns, unix_pair

SLOW = 0.02

pytestmark = pytest.mark.not_on(
    "plain", reason="about debug mode, which the tests switch off themselves"
)


@pytest.fixture
def log(loop, caplog):
    """Messages of slow callbacks, those being slow that take SLOW."""
    caplog.set_level(logging.WARNING, "asyncio")
    assert loop.slow_callback_duration == 0.1
    loop.slow_callback_duration = SLOW
    return lambda: [
        record.getMessage()
        for record in caplog.records
        if "took" in record.getMessage()
    ]


def test_the_switch(loop):
    assert loop.get_debug() is True
    loop.set_debug(False)
    assert loop.get_debug() is False
    loop.set_debug(True)
    assert loop.get_debug() is True


@pytest.mark.parametrize(
    ("variable", "debug"), [("", False), ("1", True), (None, False)]
)
def test_the_default(new_loop, variable, debug):
    """PYTHONASYNCIODEBUG, and -X dev."""
    env = {k: v for k, v in os.environ.items() if k != "PYTHONASYNCIODEBUG"}
    if variable is not None:
        env["PYTHONASYNCIODEBUG"] = variable
    body = """
        loop = under_test.new_event_loop()
        print(loop.get_debug())
        loop.close()
    """
    for options, expected in (([], debug), (["-X", "dev"], True)):
        done = subprocess.run(
            [
                sys.executable,
                *options,
                "-c",
                script_for(new_loop.kind, True, body),
            ],
            env=env,
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stdout == f"{expected}\n"


# -- slow callbacks -----------------------------------------------------------
def slow_function():
    time.sleep(1.5 * SLOW)


async def slow_coroutine():
    time.sleep(1.5 * SLOW)


async def test_slow_callbacks_are_logged(loop, log):
    loop.call_soon(slow_function)
    await turns(2)
    loop.call_later(0, slow_function)
    await turns(3)
    loop.call_soon_threadsafe(slow_function)
    await turns(2)
    messages = log()
    assert len(messages) == 3
    for message in messages:
        assert message.startswith("Executing <")
        assert "slow_function" in message
        assert message.endswith(" seconds")
    assert "TimerHandle" in messages[1]
    assert __file__ in messages[0]


async def test_slow_tasks_are_named(loop, log):
    await loop.create_task(slow_coroutine(), name="tortoise")
    (message,) = log()
    assert "slow_coroutine" in message
    assert "tortoise" in message


async def test_quick_callbacks_are_not(loop, log):
    loop.call_soon(int)
    loop.call_later(0, int)
    await turns(4)
    assert log() == []


async def test_slow_readers_are_logged(loop, log):
    one, other = socket.socketpair()

    def slow_reader():
        one.recv(10)
        slow_function()

    loop.add_reader(one, slow_reader)
    other.send(b"x")
    await turns(3)
    loop.remove_reader(one)
    (message,) = log()
    assert "slow_reader" in message
    one.close()
    other.close()


@pytest.mark.parametrize("name", ["data_received", "eof_received"])
async def test_slow_protocols_are_logged(loop, log, name):
    def slow(self, *args):
        slow_function()
        return getattr(Recorder, name)(self, *args)

    cls = type("Tortoise", (Recorder,), {name: slow})
    one, other = unix_pair()
    transport, protocol = await loop.create_unix_connection(cls, sock=one)
    other.sendall(b"data")
    await protocol.received(4)
    other.close()
    await protocol.lost()
    assert len(log()) == 1
    assert transport.is_closing()


async def test_slow_connection_made_is_logged(loop, log):
    class Tortoise(Recorder):
        def connection_made(self, transport):
            slow_function()
            super().connection_made(transport)

    one, other = unix_pair()
    transport, protocol = await loop.create_unix_connection(Tortoise, sock=one)
    assert len(log()) == 1
    transport.abort()
    await protocol.lost()
    other.close()


async def test_nothing_is_logged_without_debug_mode(loop, log):
    loop.set_debug(False)
    loop.call_soon(slow_function)
    await turns(2)
    assert log() == []


# -- where it came from -------------------------------------------------------
async def test_source_tracebacks(loop):
    handles = [
        loop.call_soon(int),
        loop.call_soon_threadsafe(int),
        loop.call_later(0, int),
        loop.call_at(0, int),
    ]
    for handle in handles:
        frame = handle._source_traceback[-1]
        assert frame.name == "test_source_tracebacks"
        assert frame.filename == __file__
        assert f"created at {__file__}:" in repr(handle)
        handle.cancel()
    loop.set_debug(False)
    handle = loop.call_soon(int)
    assert handle._source_traceback is None
    assert "created at" not in repr(handle)


async def test_source_tracebacks_of_futures_and_tasks(loop):
    task = loop.create_task(turns(1))
    for thing in (task, loop.create_future()):
        files = [frame.filename for frame in thing._source_traceback]
        assert __file__ in files[-2:]
    await task


async def test_origin_of_coroutines_is_tracked(loop):
    depth = sys.get_coroutine_origin_tracking_depth()
    assert depth > 0
    coroutine = slow_coroutine()
    assert coroutine.cr_origin
    coroutine.close()


def test_origin_tracking_ends_with_the_run(loop):
    before = sys.get_coroutine_origin_tracking_depth()
    loop.run_until_complete(turns(1))
    assert sys.get_coroutine_origin_tracking_depth() == before


async def test_debug_mode_switched_while_running(loop):
    handle = loop.call_soon(int)
    loop.set_debug(False)
    await turns(2)
    assert sys.get_coroutine_origin_tracking_depth() == 0
    loop.call_soon(int)
    loop.set_debug(True)
    await turns(2)
    assert sys.get_coroutine_origin_tracking_depth() > 0
    assert handle._source_traceback
    # from another thread, where it is refused now
    with pytest.raises(RuntimeError):
        await in_thread(loop.call_soon, int)


async def test_what_connections_log(loop, caplog):
    """asyncio logs some of their life; nothing of it may fail."""
    caplog.set_level(logging.DEBUG, "asyncio")
    server = await loop.create_server(Recorder, "127.0.0.1", 0)
    transport, protocol = await loop.create_connection(
        Recorder, *server.sockets[0].getsockname()
    )
    transport.pause_reading()
    transport.resume_reading()
    transport.close()
    await protocol.lost()
    server.close()
    await asyncio.sleep(0)
    messages = [record.getMessage() for record in caplog.records]
    assert any("is serving" in message for message in messages)
    assert any("connected to" in message for message in messages)
