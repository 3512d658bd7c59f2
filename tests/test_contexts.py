"""Contexts of callbacks: each runs in a copy of what was current when it was
scheduled, which is its own, whatever an implementation shares."""

import asyncio
import contextvars
import gc
import random
import sys
import threading
import weakref

import pytest

VAR = contextvars.ContextVar("VAR", default=0)
with_get_context = pytest.mark.not_on(
    "asyncio",
    reason="its handles have no get_context()",
    when=sys.version_info < (3, 12),
)
OTHER = contextvars.ContextVar("OTHER", default=None)


def schedule(loop, way, callback, *args):
    if way == "call_soon":
        return loop.call_soon(callback, *args)
    if way == "threadsafe":
        return loop.call_soon_threadsafe(callback, *args)
    if way == "call_later":
        return loop.call_later(0, callback, *args)
    return loop.call_at(loop.time(), callback, *args)


WAYS = ("call_soon", "threadsafe", "call_later", "call_at")


async def turns(n=4):
    for _ in range(n):
        await asyncio.sleep(0.001)


@pytest.mark.parametrize("way", WAYS)
async def test_changes_stay_with_the_callback_that_made_them(loop, way):
    VAR.set(1)
    seen = []

    def callback(change):
        seen.append(VAR.get())
        if change:
            VAR.set(change)
            seen.append(VAR.get())

    for change in (0, 5, 0, 6, 7, 0):
        schedule(loop, way, callback, change)
    await turns()
    assert seen == [1, 1, 5, 1, 1, 6, 1, 7, 1]
    assert VAR.get() == 1


@pytest.mark.parametrize("way", WAYS)
async def test_what_is_current_at_the_call_counts(loop, way):
    seen = []
    for value in (1, 2, 2, 3, 1):
        VAR.set(value)
        schedule(loop, way, lambda: seen.append(VAR.get()))
    VAR.set(9)
    await turns()
    assert seen == [1, 2, 2, 3, 1]


@with_get_context
@pytest.mark.parametrize("way", WAYS)
async def test_contexts_of_handles_are_their_own(loop, way):
    VAR.set(1)
    handles = [schedule(loop, way, VAR.set, n) for n in (10, 11, 12)]
    contexts = [handle.get_context() for handle in handles]
    assert len({id(context) for context in contexts}) == 3
    assert [context[VAR] for context in contexts] == [1, 1, 1]
    assert [handle.get_context() for handle in handles] == contexts
    contexts[1].run(OTHER.set, "seen")
    schedule(loop, way, VAR.set, 13)
    await turns()
    assert [context[VAR] for context in contexts] == [10, 11, 12]
    assert [context.get(OTHER) for context in contexts] == [None, "seen", None]
    assert VAR.get() == 1


@with_get_context
async def test_context_of_a_kept_handle_shows_what_ran(loop):
    VAR.set(1)
    kept = loop.call_soon(VAR.set, 2)
    loop.call_soon(VAR.set, 3)
    await turns()
    assert kept.get_context()[VAR] == 2


@with_get_context
async def test_context_in_the_report_of_an_error(loop):
    reports = []
    loop.set_exception_handler(lambda _, report: reports.append(report))

    def fails():
        VAR.set(VAR.get() + 1)
        raise ZeroDivisionError

    VAR.set(1)
    for _ in range(3):
        loop.call_soon(fails)
    seen = []
    loop.call_soon(lambda: seen.append(VAR.get()))
    await turns()
    assert [report["handle"].get_context()[VAR] for report in reports] == [2, 2, 2]
    assert seen == [1]


@with_get_context
async def test_a_callback_may_enter_the_context_of_another(loop):
    VAR.set(1)
    seen = []
    late = loop.call_later(60, print)

    def callback():
        late.get_context().run(VAR.set, 4)
        seen.append((VAR.get(), late.get_context()[VAR]))
        with pytest.raises(RuntimeError, match="already entered"):
            own[0].get_context().run(print)
        VAR.set(5)

    own = [loop.call_soon(callback)]
    await turns()
    late.cancel()
    assert seen == [(1, 4)]
    assert own[0].get_context()[VAR] == 5


class Value:
    """Something that a weak reference can watch."""


@pytest.mark.parametrize("way", WAYS)
async def test_values_live_no_longer_than_the_callbacks(loop, way):
    value = Value()
    ref = weakref.ref(value)
    token = OTHER.set(value)
    for _ in range(3):
        schedule(loop, way, int)
    schedule(loop, way, int).cancel()
    OTHER.reset(token)
    del token, value
    await turns()
    gc.collect()
    assert ref() is None


def test_values_of_a_loop_that_does_not_run(new_loop):
    loop = new_loop()
    value = Value()
    ref = weakref.ref(value)
    context = contextvars.copy_context()
    context.run(OTHER.set, value)
    handle = context.run(loop.call_soon, print)
    context.run(loop.call_later, 10, print).cancel()
    handle.cancel()
    del context, handle, value
    if ref() is not None:  # handles that wait for their turn
        loop.run_until_complete(asyncio.sleep(0))
        gc.collect()
    assert ref() is None
    loop.close()


async def test_threads_with_values_of_their_own(loop):
    threads, calls = 4, 200
    seen = [[] for _ in range(threads)]
    changed = [[] for _ in range(threads)]

    def callback(number, call):
        seen[number].append(VAR.get())
        if call % 7 == 0:
            VAR.set(-1)
        changed[number].append(VAR.get())

    def work(number):
        for call in range(calls):
            if call % 10 == 0:
                VAR.set(number * calls + call)
            loop.call_soon_threadsafe(callback, number, call)

    workers = [threading.Thread(target=work, args=(n,)) for n in range(threads)]
    for worker in workers:
        worker.start()
    while any(worker.is_alive() for worker in workers):
        await asyncio.sleep(0.001)
    await turns()
    for number in range(threads):
        first = [number * calls + call // 10 * 10 for call in range(calls)]
        assert seen[number] == first
        assert changed[number] == [
            -1 if call % 7 == 0 else value for call, value in enumerate(first)
        ]


@with_get_context
@pytest.mark.parametrize("seed", range(6))
async def test_random_programs(loop, seed):
    """Each callback is told what it must find."""
    chance = random.Random(seed)
    left = [600]
    wrong = []
    kept = []

    def step(value, other):
        if (VAR.get(), OTHER.get()) != (value, other):
            wrong.append((VAR.get(), OTHER.get(), value, other))
        if chance.random() < 0.3:
            VAR.set(chance.randrange(4))
        if chance.random() < 0.1:
            OTHER.set(chance.randrange(2))
        for _ in range(chance.randrange(4) if left[0] > 500 else 1):
            again()
        if chance.random() < 0.3:
            VAR.set(chance.randrange(4))

    def again():
        if left[0] <= 0:
            return
        left[0] -= 1
        way = chance.choice(WAYS)
        handle = schedule(loop, way, step, VAR.get(), OTHER.get())
        what = chance.random()
        if what < 0.1:
            handle.cancel()
        elif what < 0.2:
            kept.append((handle, handle.get_context(), VAR.get()))
        elif what < 0.3:
            kept.append((handle, None, None))

    for _ in range(8):
        VAR.set(chance.randrange(4))
        again()
    while left[0] > 0:
        await asyncio.sleep(0.001)
        if chance.random() < 0.5:
            again()
    await turns()
    assert not wrong
    assert all(
        handle.get_context() is context for handle, context, _ in kept if context
    )


async def test_cancel_while_it_runs_through_a_weak_reference(loop):
    """The arguments stay until the callback is done with them."""
    seen = []

    def callback(argument):
        handle = ref()
        if handle is not None:
            handle.cancel()
        del handle
        gc.collect()
        seen.append(argument[0])

    for way in WAYS:
        handle = schedule(loop, way, callback, [way])
        ref = weakref.ref(handle)
        del handle
        await turns()
    assert seen == list(WAYS)
