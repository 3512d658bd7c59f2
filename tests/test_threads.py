"""Threads beside the loop: call_soon_threadsafe, and checks in debug mode."""

import asyncio
import concurrent.futures
import contextlib
import contextvars
import threading
import time

import pytest
from support import TIMEOUT, Recorder, in_thread, listener, shut, within

VAR = contextvars.ContextVar("VAR", default="unset")


def start(function, *args):
    thread = threading.Thread(target=function, args=args)
    thread.start()
    return thread


async def test_burst_keeps_its_order(loop):
    ran = []
    done = loop.create_future()

    def burst():
        for number in range(5000):
            loop.call_soon_threadsafe(ran.append, number)
        loop.call_soon_threadsafe(done.set_result, None)

    thread = start(burst)
    await within(done)
    thread.join(TIMEOUT)
    assert ran == list(range(5000))


async def test_many_threads(loop):
    names, each = range(8), 400
    ran = []
    done = loop.create_future()

    def arrived(name, number):
        ran.append((name, number))
        if len(ran) == len(names) * each:
            done.set_result(None)

    def burst(name):
        for number in range(each):
            loop.call_soon_threadsafe(arrived, name, number)

    threads = [start(burst, name) for name in names]
    await within(done)
    for thread in threads:
        thread.join(TIMEOUT)
    for name in names:
        mine = [number for other, number in ran if other == name]
        assert mine == list(range(each))


def test_wakes_an_idle_loop(loop):
    """Nothing else would ever wake it."""
    times = {}
    sleeping = threading.Event()

    def wake():
        assert sleeping.wait(TIMEOUT)
        time.sleep(0.02)
        times["sent"] = time.monotonic()
        loop.call_soon_threadsafe(lambda: times.setdefault("woken", time.monotonic()))
        loop.call_soon_threadsafe(loop.stop)

    thread = start(wake)
    loop.call_soon(sleeping.set)
    loop.run_forever()
    thread.join(TIMEOUT)
    assert times["sent"] <= times["woken"] < times["sent"] + 2


def test_wakes_an_idle_loop_again_and_again(loop):
    """A wake-up that is lost once shows as a hang."""
    answers = []
    turn = threading.Semaphore(0)

    def ping():
        for number in range(300):
            loop.call_soon_threadsafe(
                lambda number=number: (answers.append(number), turn.release())
            )
            assert turn.acquire(timeout=TIMEOUT)
        loop.call_soon_threadsafe(loop.stop)

    thread = start(ping)
    loop.run_forever()
    thread.join(TIMEOUT)
    assert answers == list(range(300))


def test_callbacks_posted_before_the_loop_runs(loop):
    ran = []
    thread = start(loop.call_soon_threadsafe, ran.append, "early")
    thread.join(TIMEOUT)
    assert ran == []
    loop.call_soon(loop.stop)
    loop.run_forever()
    assert ran == ["early"]


async def test_handle_can_be_cancelled(loop):
    ran = []
    handle = await in_thread(loop.call_soon_threadsafe, ran.append, "ran")
    assert isinstance(handle, asyncio.Handle)
    kept = []

    def post():
        kept.append(loop.call_soon_threadsafe(ran.append, "cancelled"))

    loop.call_soon(post)
    loop.call_soon(lambda: kept[0].cancel())
    await asyncio.sleep(0.005)
    assert ran == ["ran"]
    assert kept[0].cancelled()


async def test_from_the_loops_own_thread(loop):
    ran = []

    def first():
        loop.call_soon_threadsafe(ran.append, "next turn")
        ran.append("this turn")

    loop.call_soon(first)
    loop.call_soon(ran.append, "this turn too")
    await asyncio.sleep(0)
    assert ran == ["this turn", "this turn too"]
    await asyncio.sleep(0)
    assert ran == ["this turn", "this turn too", "next turn"]


async def test_context_is_that_of_the_thread(loop):
    seen = loop.create_future()

    def post():
        VAR.set("of the thread")
        loop.call_soon_threadsafe(lambda: seen.set_result(VAR.get()))

    VAR.set("of the loop")
    thread = start(post)
    assert await within(seen) == "of the thread"
    thread.join(TIMEOUT)


def test_closed_loop(new_loop):
    loop = new_loop()
    loop.close()
    with pytest.raises(RuntimeError, match="Event loop is closed"):
        loop.call_soon_threadsafe(print)


def test_closing_while_threads_post(new_loop):
    """Ends with RuntimeError in each of the threads, and no crash."""
    refused = []

    def post(loop):
        try:
            while True:
                loop.call_soon_threadsafe(int)
                time.sleep(0)
        except RuntimeError as exc:
            refused.append(str(exc))

    for _ in range(5):
        loop = new_loop()
        threads = [start(post, loop) for _ in range(3)]
        loop.run_until_complete(asyncio.sleep(0.005))
        loop.close()
        for thread in threads:
            thread.join(TIMEOUT)
            assert not thread.is_alive()
    assert refused == ["Event loop is closed"] * 15


async def test_what_any_thread_may_ask(loop):
    assert await in_thread(loop.is_running) is True
    assert await in_thread(loop.is_closed) is False
    assert await in_thread(loop.get_debug) is loop.get_debug()
    before = loop.time()
    assert before <= await in_thread(loop.time) <= loop.time()
    assert "running=True" in await in_thread(repr, loop)


def test_errors_of_callbacks_posted_by_threads(loop, reports):
    thread = start(loop.call_soon_threadsafe, lambda: 1 / 0)
    thread.join(TIMEOUT)
    loop.run_until_complete(asyncio.sleep(0))
    (context,) = reports
    assert isinstance(context["exception"], ZeroDivisionError)


# -- checks in debug mode -----------------------------------------------------
@pytest.mark.parametrize("method", ["call_soon", "call_later", "call_at"])
async def test_wrong_thread(loop, method):
    args = (print,) if method == "call_soon" else (3600, print)
    call = getattr(loop, method)
    if loop.get_debug():
        with pytest.raises(RuntimeError, match="Non-thread-safe operation"):
            await in_thread(call, *args)
    else:
        handle = await in_thread(call, *args)
        handle.cancel()


def test_no_thread_is_wrong_while_the_loop_does_not_run(loop):
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        handle = pool.submit(loop.call_soon, print).result(TIMEOUT)
        handle.cancel()
        handle = pool.submit(loop.call_later, 3600, print).result(TIMEOUT)
        handle.cancel()


# -- asyncio's bridges --------------------------------------------------------
async def test_run_coroutine_threadsafe(loop):
    async def work(value):
        await asyncio.sleep(0)
        return value / 2

    def ask(value):
        return asyncio.run_coroutine_threadsafe(work(value), loop).result(TIMEOUT)

    assert await in_thread(ask, 4) == 2
    with pytest.raises(TypeError):
        await in_thread(ask, "four")


async def test_run_coroutine_threadsafe_cancel(loop):
    started = threading.Event()
    ended = loop.create_future()

    async def work():
        started.set()
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            ended.set_result("cancelled")
            raise

    def ask():
        future = asyncio.run_coroutine_threadsafe(work(), loop)
        assert started.wait(TIMEOUT)
        return future.cancel()

    assert await in_thread(ask) is True
    assert await within(ended) == "cancelled"


async def test_wrap_future(loop):
    future = concurrent.futures.Future()
    wrapped = asyncio.wrap_future(future)
    thread = start(future.set_result, "from the thread")
    assert await within(wrapped) == "from the thread"
    thread.join(TIMEOUT)


# -- several loops ------------------------------------------------------------
def test_two_loops_in_two_threads_talk(new_loop):
    """Each posts to the other, 200 times to and fro."""
    loops = [new_loop(), new_loop()]
    count = 0

    def bounce(here, there):
        nonlocal count
        count += 1
        if count < 400:
            there.call_soon_threadsafe(bounce, there, here)
        else:
            here.call_soon_threadsafe(here.stop)
            there.call_soon_threadsafe(there.stop)

    loops[0].call_soon(bounce, *loops)
    threads = [start(loop.run_forever) for loop in loops]
    for thread in threads:
        thread.join(TIMEOUT)
        assert not thread.is_alive()
    assert count == 400


def test_a_whole_loop_in_another_thread(new_loop):
    """Made, run and closed there: connections and timers work."""

    async def work(loop):
        with listener() as lsock:
            _, protocol = await loop.create_connection(Recorder, *lsock.getsockname())
            peer, _ = lsock.accept()
        with contextlib.closing(peer):
            peer.sendall(b"data")
            await protocol.received(4)
            protocol.transport.close()
            await protocol.lost()
        await asyncio.sleep(0.001)
        return bytes(protocol.data)

    def whole():
        loop = new_loop()
        try:
            return loop.run_until_complete(work(loop))
        finally:
            shut(loop)

    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        results = [pool.submit(whole) for _ in range(4)]
        for result in results:
            assert result.result(TIMEOUT) == b"data"


def test_made_in_one_thread_and_run_in_another(loop):
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        future = pool.submit(loop.run_until_complete, asyncio.sleep(0.001, "slept"))
        assert future.result(TIMEOUT) == "slept"
    assert loop.run_until_complete(asyncio.sleep(0, "again")) == "again"
