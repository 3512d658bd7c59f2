"""call_soon: order, arguments, contexts, cancelling, errors."""

import asyncio
import contextvars
import functools
import socket
import sys
import time
import tracemalloc
import weakref

import pytest
from support import not_with_workers, turns, within

VAR = contextvars.ContextVar("VAR", default="unset")
WAYS = ["call_soon", "call_soon_threadsafe", "call_later", "call_at"]


def schedule(loop, way, callback, *args, **options):
    """Calls the scheduling method `way`, with a time that is due."""
    if way == "call_later":
        return loop.call_later(0, callback, *args, **options)
    if way == "call_at":
        return loop.call_at(loop.time(), callback, *args, **options)
    return getattr(loop, way)(callback, *args, **options)


class Thing:
    """Weakly referable."""


def test_callbacks_run_in_order(loop):
    ran = []
    for number in range(1000):
        loop.call_soon(ran.append, number)
    loop.call_soon(loop.stop)
    loop.run_forever()
    assert ran == list(range(1000))


@pytest.mark.parametrize("count", range(9))
@pytest.mark.parametrize("way", WAYS)
async def test_arguments(loop, way, count):
    got = loop.create_future()
    args = tuple(object() for _ in range(count))
    schedule(loop, way, lambda *args: got.set_result(args), *args)
    assert await within(got) == args


async def test_partial_and_bound_method_callbacks(loop):
    got = []
    loop.call_soon(functools.partial(got.insert, 0), 2)
    loop.call_soon(got.extend, "ab")
    await turns(1)
    assert got == [2, "a", "b"]


@pytest.mark.parametrize("way", WAYS)
async def test_given_context(loop, way):
    context = contextvars.copy_context()
    context.run(VAR.set, "given")
    got = loop.create_future()

    def callback():
        got.set_result(VAR.get())
        VAR.set("changed")

    schedule(loop, way, callback, context=context)
    assert await within(got) == "given"
    assert context[VAR] == "changed"
    assert VAR.get() == "unset"


@pytest.mark.parametrize("options", [{}, {"context": None}])
@pytest.mark.parametrize("way", WAYS)
async def test_current_context_is_copied(loop, way, options):
    got = loop.create_future()
    VAR.set("at the call")

    def callback():
        got.set_result(VAR.get())
        VAR.set("inside")

    schedule(loop, way, callback, **options)
    VAR.set("after the call")
    assert await within(got) == "at the call"
    assert VAR.get() == "after the call"


async def test_callbacks_that_share_a_context_see_each_others_changes(loop):
    context = contextvars.copy_context()
    other = contextvars.copy_context()
    seen = []
    loop.call_soon(VAR.set, "first", context=context)
    loop.call_soon(lambda: seen.append(VAR.get()), context=context)
    loop.call_soon(lambda: seen.append(VAR.get()), context=other)
    loop.call_soon(lambda: seen.append(VAR.get()), context=context)
    await turns(1)
    assert seen == ["first", "unset", "first"]


async def test_context_after_an_error_in_a_shared_context(loop, reports):
    context = contextvars.copy_context()
    seen = []
    loop.call_soon(lambda: 1 / 0, context=context)
    loop.call_soon(lambda: seen.append(VAR.get()), context=context)
    loop.call_soon(lambda: seen.append(VAR.get()))
    context.run(VAR.set, "shared")
    await turns(1)
    assert seen == ["shared", "unset"]
    assert len(reports) == 1


@pytest.mark.skipif(sys.version_info < (3, 12), reason="new in 3.12")
async def test_get_context(loop):
    context = contextvars.copy_context()
    assert loop.call_soon(int, context=context).get_context() is context
    later = loop.call_later(0, int, context=context)
    assert later.get_context() is context
    assert isinstance(loop.call_soon(int).get_context(), contextvars.Context)


@pytest.mark.parametrize("way", WAYS)
async def test_not_callable(loop, way, reports):
    if loop.get_debug():
        with pytest.raises(
            TypeError, match="a callable object was expected by call_.*17"
        ):
            schedule(loop, way, 17)
        return
    handle = schedule(loop, way, 17)
    await turns(3)
    assert len(reports) == 1
    assert isinstance(reports[0]["exception"], TypeError)
    assert reports[0]["handle"] is handle


@pytest.mark.not_on("plain", reason="only debug mode looks")
@pytest.mark.parametrize("way", WAYS)
async def test_coroutines_are_no_callbacks(loop, way):
    async def function():
        pass

    with pytest.raises(TypeError, match="coroutines cannot be used with"):
        schedule(loop, way, function)
    coroutine = function()
    with pytest.raises(TypeError, match="coroutines cannot be used with"):
        schedule(loop, way, coroutine)
    coroutine.close()


@pytest.mark.parametrize("way", ["call_soon", "call_soon_threadsafe"])
async def test_wrong_calls(loop, way):
    method = getattr(loop, way)
    with pytest.raises(TypeError):
        method()
    with pytest.raises(TypeError):
        method(int, colour="red")
    with pytest.raises(TypeError):
        loop.call_later()
    with pytest.raises(TypeError):
        loop.call_later(1)
    with pytest.raises(TypeError):
        loop.call_at(1, int, context=None, colour="red")


async def test_callback_by_keyword(loop):
    got = []
    loop.call_soon(callback=lambda: got.append(1))
    loop.call_soon_threadsafe(callback=lambda: got.append(2))
    loop.call_later(delay=0, callback=lambda: got.append(3))
    await turns(3)
    assert got == [1, 2, 3]


# -- handles ----------------------------------------------------------------
async def test_handle_api(loop):
    handle = loop.call_soon(print, "never printed")
    assert isinstance(handle, asyncio.Handle)
    assert not isinstance(handle, asyncio.TimerHandle)
    assert handle.cancelled() is False
    assert "print" in repr(handle)
    assert handle.cancel() is None
    assert handle.cancelled() is True
    assert "cancelled" in repr(handle)
    handle.cancel()
    assert handle.cancelled() is True
    assert weakref.ref(handle)() is handle


async def test_cancel_before_and_within_the_turn(loop):
    ran = []
    loop.call_soon(ran.append, "never").cancel()
    loop.call_soon(lambda: second.cancel())
    second = loop.call_soon(ran.append, "never either")
    loop.call_soon(ran.append, "last")
    await turns(2)
    assert ran == ["last"]


async def test_cancel_inside_the_callback_and_afterwards(loop):
    ran = []
    handle = loop.call_soon(lambda: (handle.cancel(), ran.append("ran")))
    await turns(1)
    assert ran == ["ran"]
    handle.cancel()
    assert handle.cancelled()


@pytest.mark.parametrize("way", WAYS)
async def test_cancelled_handle_drops_its_arguments(loop, way):
    thing = Thing()
    ref = weakref.ref(thing)
    handle = schedule(loop, way, id, thing)
    if loop.get_debug():
        # A representation is kept, the objects are not.
        handle.cancel()
        del thing
        assert ref() is None
        assert "id" in repr(handle)
    else:
        handle.cancel()
        del thing
        assert ref() is None


async def test_handle_is_freed_before_the_next_callback_runs(loop):
    thing = Thing()
    ref = weakref.ref(thing)
    seen = []
    loop.call_soon(id, thing)
    del thing
    loop.call_soon(lambda: seen.append(ref() is None))
    await turns(1)
    assert seen == [True]


async def test_arguments_are_kept_until_the_callback_runs(loop):
    seen = []
    loop.call_soon(seen.append, [object()])
    loop.call_soon(lambda things: seen.append(len(things)), [1, 2, 3])
    await turns(1)
    assert seen[1] == 3
    assert len(seen[0]) == 1


async def test_handles_of_asyncio_run_here_too(loop):
    """Libraries put handles of their own making into the ready queue."""
    ran = []
    handle = asyncio.Handle(ran.append, ("mine",), loop)
    loop._add_callback(handle)
    cancelled = asyncio.Handle(ran.append, ("cancelled",), loop)
    cancelled.cancel()
    loop._add_callback(cancelled)
    await turns(1)
    assert ran == ["mine"]


# -- turns ------------------------------------------------------------------
async def test_callbacks_added_while_running_wait_for_the_next_turn(loop):
    ran = []

    def first():
        loop.call_soon(ran.append, "added")
        ran.append("first")

    loop.call_soon(first)
    loop.call_soon(ran.append, "second")
    await turns(2)
    assert ran == ["first", "second", "added"]


def test_stop_ends_after_the_turn(loop):
    ran = []

    def first():
        loop.stop()
        loop.call_soon(ran.append, "next turn")
        ran.append("first")

    loop.call_soon(first)
    loop.call_soon(ran.append, "same turn")
    loop.run_forever()
    assert ran == ["first", "same turn"]
    loop.call_soon(loop.stop)
    loop.run_forever()
    assert ran == ["first", "same turn", "next turn"]


@not_with_workers
def test_ready_callbacks_before_events_before_timers(loop):
    ran = []
    mine, peer = socket.socketpair()
    loop.add_reader(mine, lambda: (ran.append("event"), mine.recv(10)))

    def prepare():
        peer.send(b"x")
        loop.call_later(0, ran.append, "timer")
        loop.call_at(loop.time() - 1, ran.append, "older timer")
        loop.call_soon(ran.append, "ready")
        loop.call_soon(loop.stop)
        time.sleep(0.001)  # or the next turn may do without a poll

    loop.call_soon(prepare)
    loop.run_forever()
    assert ran == ["ready", "event", "older timer", "timer"]
    loop.remove_reader(mine)
    mine.close()
    peer.close()


async def test_a_chain_of_callbacks_does_not_starve_events(loop):
    mine, peer = socket.socketpair()
    seen = loop.create_future()

    def again():
        if not seen.done():
            loop.call_soon(again)

    loop.add_reader(mine, lambda: seen.done() or seen.set_result("event"))
    again()
    peer.send(b"x")
    assert await within(seen) == "event"
    loop.remove_reader(mine)
    mine.close()
    peer.close()


@pytest.mark.not_on("debug", reason="the same path, 40 times slower")
async def test_many_callbacks_in_one_turn(loop):
    count = 0

    def callback():
        nonlocal count
        count += 1

    for _ in range(50_000):
        loop.call_soon(callback)
    await turns(1)
    assert count == 50_000


async def test_ring_of_callbacks_grows_while_it_is_worked_off(loop):
    """Growth in the middle of a turn keeps the order."""
    ran = []

    def spawn(number):
        ran.append(number)
        for extra in range(10):
            loop.call_soon(ran.append, (number, extra))

    for number in range(500):
        loop.call_soon(spawn, number)
    await turns(2)
    expected = list(range(500))
    expected += [(n, extra) for n in range(500) for extra in range(10)]
    assert ran == expected


async def test_tasks_take_turns(loop):
    ran = []

    async def worker(name):
        for number in range(3):
            ran.append((number, name))
            await asyncio.sleep(0)

    await asyncio.gather(*(worker(name) for name in "abc"))
    assert ran == sorted(ran)


# -- errors -----------------------------------------------------------------
@pytest.mark.parametrize("way", WAYS)
async def test_errors_go_to_the_handler(loop, way, reports):
    ran = []

    def fails():
        raise ZeroDivisionError("on purpose")

    handle = schedule(loop, way, fails)
    schedule(loop, way, ran.append, 1)
    await turns(3)
    assert ran == [1]
    (context,) = reports
    assert context["message"].startswith("Exception in callback ")
    assert "fails" in context["message"]
    assert str(context["exception"]) == "on purpose"
    assert context["handle"] is handle
    assert ("source_traceback" in context) == loop.get_debug()


async def test_other_base_exceptions_go_to_the_handler_too(loop, reports):
    class Odd(BaseException):
        pass

    def fails():
        raise Odd

    loop.call_soon(fails)
    await turns(2)
    assert [type(context["exception"]) for context in reports] == [Odd]


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt])
@pytest.mark.parametrize("way", WAYS)
def test_exits_leave_run_forever(loop, way, error):
    ran = []

    def leave():
        raise error("out")

    schedule(loop, way, leave)
    loop.call_later(0.01, ran.append, "later")
    with pytest.raises(error, match="out"):
        loop.run_forever()
    assert not loop.is_running()
    with pytest.raises(RuntimeError):
        asyncio.get_running_loop()
    loop.call_later(0.02, loop.stop)
    loop.run_forever()
    assert ran == ["later"]


def test_ready_callbacks_survive_an_exit(loop):
    ran = []

    def leave():
        raise KeyboardInterrupt

    loop.call_soon(ran.append, "before")
    loop.call_soon(leave)
    loop.call_soon(ran.append, "after")
    with pytest.raises(KeyboardInterrupt):
        loop.run_forever()
    assert ran == ["before"]
    loop.call_soon(loop.stop)
    loop.run_forever()
    assert ran == ["before", "after"]


async def test_callback_that_schedules_itself_and_fails(loop, reports):
    count = 0

    def fails():
        nonlocal count
        count += 1
        if count < 100:
            loop.call_soon(fails)
        raise ValueError(count)

    loop.call_soon(fails)
    await turns(101)
    assert [context["exception"].args for context in reports] == [
        (number,) for number in range(1, 101)
    ]


async def test_deep_recursion_in_a_callback_is_reported(loop, reports):
    def deeper():
        deeper()

    loop.call_soon(deeper)
    await turns(2)
    assert isinstance(reports[0]["exception"], RecursionError)


# -- tasks and futures --------------------------------------------------------
async def test_create_task(loop):
    async def named():
        return asyncio.current_task().get_name()

    assert await loop.create_task(named(), name="Hugo") == "Hugo"
    context = contextvars.copy_context()
    context.run(VAR.set, "in the task")

    async def variable():
        return VAR.get()

    task = loop.create_task(variable(), context=context)
    assert await task == "in the task"


async def test_task_factory(loop):
    made = []

    def factory(loop, coro, **options):
        made.append(coro)
        return asyncio.Task(coro, loop=loop, **options)

    assert loop.get_task_factory() is None
    loop.set_task_factory(factory)
    assert loop.get_task_factory() is factory
    await loop.create_task(asyncio.sleep(0))
    assert len(made) == 1
    loop.set_task_factory(None)
    with pytest.raises(TypeError):
        loop.set_task_factory(17)


@pytest.mark.skipif(sys.version_info < (3, 12), reason="new in 3.12")
async def test_eager_tasks(loop):
    loop.set_task_factory(asyncio.eager_task_factory)
    ran = []

    async def work():
        ran.append("started")
        await asyncio.sleep(0)
        ran.append("resumed")

    task = loop.create_task(work())
    assert ran == ["started"]
    await task
    assert ran == ["started", "resumed"]


async def test_create_future_belongs_to_the_loop(loop):
    future = loop.create_future()
    assert future.get_loop() is loop
    assert isinstance(future, asyncio.Future)
    loop.call_soon(future.set_result, "woken")
    assert await within(future) == "woken"


async def test_clock(loop):
    times = [loop.time() for _ in range(100)]
    assert all(isinstance(value, float) for value in times)
    assert times == sorted(times)
    assert times[-1] - times[0] < 5


def test_what_a_burst_of_callbacks_takes_is_given_back(new_loop):
    """A second after it, when the loop idles."""
    loop = new_loop()
    loop.set_debug(False)  # which takes a traceback of each call
    loop.run_until_complete(asyncio.sleep(0.01))
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for _ in range(20_000):
            loop.call_soon(int)
        burst = tracemalloc.get_traced_memory()[0] - before
        loop.run_until_complete(asyncio.sleep(1.7))
        left = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
        loop.close()
    assert burst > 2 << 20
    assert left < 1 << 19
