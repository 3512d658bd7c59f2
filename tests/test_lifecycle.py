"""The life of a loop: running, stopping, closing; async generators."""

import asyncio
import contextlib
import gc
import socket
import sys
import threading
import warnings
import weakref

import pytest
from support import TIMEOUT, Recorder, fd_count, run_script, turns, until

CLOSED = "Event loop is closed"


async def nothing():
    pass


# -- running ----------------------------------------------------------------
def test_run_until_complete(loop):
    async def work():
        await asyncio.sleep(0.001)
        return "result"

    assert loop.run_until_complete(work()) == "result"
    future = loop.create_future()
    loop.call_later(0.001, future.set_result, "from a future")
    assert loop.run_until_complete(future) == "from a future"
    assert loop.run_until_complete(future) == "from a future"
    with pytest.raises(ZeroDivisionError):
        loop.run_until_complete(fail())
    with pytest.raises(TypeError):
        loop.run_until_complete(17)


async def fail():
    raise ZeroDivisionError


def test_run_until_complete_again_and_again(loop):
    for number in range(50):
        got = loop.run_until_complete(asyncio.sleep(0, number))
        assert got == number


def test_stopped_before_the_future_is_done(loop):
    future = loop.create_future()
    loop.call_soon(loop.stop)
    with pytest.raises(RuntimeError, match="stopped before Future completed"):
        loop.run_until_complete(future)
    loop.call_soon(future.set_result, "later")
    assert loop.run_until_complete(future) == "later"


def test_stop_before_run_forever(loop):
    """One turn is made, without waiting for anything."""
    ran = []
    loop.call_soon(ran.append, 1)
    loop.call_later(60, ran.append, "never")
    loop.stop()
    loop.run_forever()
    assert ran == [1]
    assert not loop.is_running()
    loop.stop()
    loop.stop()
    loop.run_forever()


def test_is_running(loop):
    seen = []
    assert loop.is_running() is False
    loop.call_soon(lambda: seen.append(loop.is_running()))
    loop.call_soon(lambda: seen.append(asyncio.get_running_loop()))
    loop.call_soon(loop.stop)
    loop.run_forever()
    assert seen == [True, loop]
    assert loop.is_running() is False
    with pytest.raises(RuntimeError, match="no running event loop"):
        asyncio.get_running_loop()


@pytest.mark.not_on(
    "asyncio",
    when=sys.version_info[:2] == (3, 13),
    reason="3.13.0 cleans up a run that it has refused",
)
def test_nested_runs(loop, new_loop):
    errors = []
    other = new_loop()

    def nested():
        for which in (loop, other):
            with pytest.raises(RuntimeError) as info:
                which.run_forever()
            errors.append(str(info.value))
        coroutine = nothing()
        with pytest.raises(RuntimeError) as info:
            loop.run_until_complete(coroutine)
        errors.append(str(info.value))
        coroutine.close()
        loop.stop()

    loop.call_soon(nested)
    loop.run_forever()
    assert errors == [
        "This event loop is already running",
        "Cannot run the event loop while another loop is running",
        "This event loop is already running",
    ]
    # both are unharmed
    loop.run_until_complete(nothing())
    other.run_until_complete(nothing())


def test_loops_one_inside_the_other_in_threads(loop, new_loop):
    """A running loop does not hinder one in another thread."""

    def elsewhere():
        other = new_loop()
        got.append(other.run_until_complete(asyncio.sleep(0.001, "other")))
        other.close()

    async def work():
        thread = threading.Thread(target=elsewhere)
        thread.start()
        await until(lambda: got)
        thread.join(TIMEOUT)

    got = []
    loop.run_until_complete(work())
    assert got == ["other"]


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt])
def test_usable_after_an_exit_in_a_coroutine(loop, error):
    async def leave():
        raise error("out")

    with pytest.raises(error, match="out"):
        loop.run_until_complete(leave())
    assert not loop.is_running()
    got = loop.run_until_complete(asyncio.sleep(0.001, "clean-up"))
    assert got == "clean-up"


def test_turns_after_the_future_is_done(loop):
    """run_until_complete() ends after the batch in which it was done."""
    ran = []

    async def work():
        loop.call_soon(ran.append, "same batch")
        await asyncio.sleep(0)

    loop.run_until_complete(work())
    assert ran == ["same batch"]


def test_attributes_may_be_set(loop):
    loop.my_own_attribute = 17
    assert loop.my_own_attribute == 17
    loop.time = lambda: 42.0
    assert loop.time() == 42.0
    del loop.time
    assert loop.time() != 42.0
    assert weakref.ref(loop)() is loop
    assert isinstance(loop, asyncio.AbstractEventLoop)
    assert isinstance(loop, asyncio.BaseEventLoop)


def test_repr(loop):
    assert "running=False closed=False" in repr(loop)
    assert f"debug={loop.get_debug()}" in repr(loop)


# -- closing ----------------------------------------------------------------
def test_close(new_loop):
    loop = new_loop()
    assert loop.is_closed() is False
    assert loop.close() is None
    assert loop.is_closed() is True
    loop.close()
    assert "closed=True" in repr(loop)


def test_closed_loop_refuses(new_loop):
    loop = new_loop()
    loop.close()
    coroutine = nothing()
    for call in (
        lambda: loop.call_soon(print),
        lambda: loop.call_soon_threadsafe(print),
        lambda: loop.call_later(1, print),
        lambda: loop.call_at(1, print),
        lambda: loop.run_forever(),
        lambda: loop.run_until_complete(coroutine),
        lambda: loop.create_task(coroutine),
        lambda: loop.run_in_executor(None, print),
        lambda: loop.add_reader(0, print),
        lambda: loop.add_writer(0, print),
        lambda: loop.add_signal_handler(10, print),
    ):
        with pytest.raises(RuntimeError, match=CLOSED):
            call()
    coroutine.close()
    # and this still works
    assert loop.time() > 0
    assert loop.get_debug() is new_loop.debug
    assert loop.is_running() is False
    assert loop.remove_reader(0) is False
    loop.stop()


def test_running_loop_is_not_closed(loop):
    errors = []

    def close():
        with pytest.raises(RuntimeError) as info:
            loop.close()
        errors.append(str(info.value))
        loop.stop()

    loop.call_soon(close)
    loop.run_forever()
    assert errors == ["Cannot close a running event loop"]
    assert not loop.is_closed()


def test_descriptors_of_a_loop_are_closed(new_loop):
    gc.collect()
    before = fd_count()
    for _ in range(20):
        loop = new_loop()
        loop.run_until_complete(nothing())
        loop.close()
    assert fd_count() == before


def test_loop_is_freed(new_loop):
    loop = new_loop()
    loop.run_until_complete(asyncio.sleep(0.001))
    loop.close()
    ref = weakref.ref(loop)
    new_loop.loops.clear()
    del loop
    gc.collect()
    assert ref() is None


def test_unclosed_loops_warn(new_loop):
    gc.collect()
    before = fd_count()
    loop = new_loop()
    new_loop.loops.clear()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        del loop
        gc.collect()
    messages = [str(warning.message) for warning in caught]
    assert any(text.startswith("unclosed event loop") for text in messages)
    assert fd_count() == before


def test_closing_with_everything_open(new_loop):
    """Transports, servers, readers, timers and tasks are left behind."""
    out = run_script(
        new_loop,
        """
        import gc, warnings

        async def main(loop):
            server = await loop.create_server(asyncio.Protocol, '127.0.0.1', 0)
            address = server.sockets[0].getsockname()
            one, other = socket.socketpair()
            one.setblocking(False)
            things = [server, one, other]
            for _ in range(10):
                things.append(
                    await loop.create_connection(asyncio.Protocol, *address))
            things[-1][0].write(bytes(10 << 20))
            things[-2][0].pause_reading()
            things[-3][0].close()
            loop.add_reader(other, print)
            loop.call_later(60, print)
            things.append(loop.create_task(loop.sock_recv(one, 10)))
            things.append(loop.run_in_executor(None, int))
            await asyncio.sleep(0.01)
            return things

        warnings.simplefilter('ignore', ResourceWarning)
        for _ in range(3):
            loop = new_loop()
            loop.set_exception_handler(lambda loop, context: None)
            things = loop.run_until_complete(main(loop))
            loop.close()
            for transport, _ in things[3:-2]:
                assert transport.is_closing() in (True, False)
            del things, loop, transport, _
            gc.collect()
        print('done')
        """,
    )
    assert out.endswith("done\n")


def test_interpreter_ends_with_a_loop_left_open(new_loop):
    """At exit nothing crashes, whatever is still open."""
    out = run_script(
        new_loop,
        """
        async def main():
            global kept
            one, other = socket.socketpair()
            loop.add_reader(other, print)
            kept = await loop.create_unix_connection(asyncio.Protocol, sock=one)
            kept[0].write(b'to be sent at exit')
            return other

        loop = new_loop()
        other = loop.run_until_complete(main())
        print('done')
        """,
        options=(),
    )
    assert "done\n" in out
    assert "Fatal" not in out


def test_interpreter_ends_while_a_loop_runs_in_a_daemon_thread(new_loop):
    out = run_script(
        new_loop,
        """
        loop = new_loop()
        thread = threading.Thread(target=loop.run_forever, daemon=True)
        thread.start()
        future = asyncio.run_coroutine_threadsafe(asyncio.sleep(0.01, 1), loop)
        assert future.result(10) == 1
        print('done', flush=True)
        """,
        options=(),
    )
    assert "done\n" in out
    assert "Fatal" not in out


def test_transports_outlive_their_loop(new_loop):
    """Calls on them after the loop was closed do not crash."""
    loop = new_loop()
    one, other = socket.socketpair()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        use_after_closing(loop, one)
        gc.collect()
    other.close()


def use_after_closing(loop, sock):
    transport, protocol = loop.run_until_complete(
        loop.create_unix_connection(Recorder, sock=sock)
    )
    loop.close()
    for call in (
        transport.is_closing,
        transport.get_write_buffer_size,
        transport.get_write_buffer_limits,
        transport.is_reading,
        transport.pause_reading,
        transport.resume_reading,
        lambda: transport.write(b"x"),
        lambda: transport.get_extra_info("peername"),
        lambda: repr(transport),
        transport.close,
        transport.abort,
    ):
        with contextlib.suppress(RuntimeError, AttributeError):
            call()
    assert isinstance(repr(transport), str)
    protocol.transport = None


# -- asynchronous generators ----------------------------------------------------
async def test_generators_are_closed_in_the_loop(loop):
    ended = []

    async def numbers():
        try:
            for number in range(10):
                yield number
        finally:
            await asyncio.sleep(0)
            ended.append(asyncio.get_running_loop())

    async for _ in numbers():
        break
    gc.collect()
    await until(lambda: ended)
    assert ended == [loop]


def test_shutdown_asyncgens(loop):
    ended = []

    async def endless(name):
        try:
            while True:
                yield name
        finally:
            await asyncio.sleep(0)
            ended.append(name)

    generators = [endless(name) for name in "abc"]

    async def begin():
        return [await anext(generator) for generator in generators]

    assert loop.run_until_complete(begin()) == ["a", "b", "c"]
    loop.run_until_complete(loop.shutdown_asyncgens())
    assert sorted(ended) == ["a", "b", "c"]
    loop.run_until_complete(loop.shutdown_asyncgens())
    assert len(ended) == 3


def test_generators_after_the_shutdown_warn(loop):
    async def one():
        yield 1

    async def use():
        with pytest.warns(ResourceWarning, match="was scheduled after"):
            async for _ in one():
                pass

    loop.run_until_complete(loop.shutdown_asyncgens())
    loop.run_until_complete(use())


def test_errors_while_generators_are_closed(loop, reports):
    async def failing():
        try:
            yield 1
        finally:
            raise ZeroDivisionError

    async def begin():
        assert await anext(generator) == 1

    generator = failing()
    loop.run_until_complete(begin())
    loop.run_until_complete(loop.shutdown_asyncgens())
    (context,) = reports
    assert isinstance(context["exception"], ZeroDivisionError)
    assert context["asyncgen"] is generator


def test_hooks_are_restored(loop):
    before = sys.get_asyncgen_hooks()
    seen = []
    loop.call_soon(lambda: seen.append(sys.get_asyncgen_hooks()))
    loop.call_soon(loop.stop)
    loop.run_forever()
    assert sys.get_asyncgen_hooks() == before
    assert seen[0].firstiter is not None
    assert seen[0] != before


async def test_many_tasks(loop):
    """A thousand tasks that wait for each other."""
    first = loop.create_future()
    last = first
    for _ in range(1000):
        last = loop.create_task(follow(last))
    await turns(2)
    first.set_result(0)
    assert await last == 1000


async def follow(previous):
    return await previous + 1
