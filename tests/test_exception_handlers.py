"""Exception handlers: the default one, one's own, and ones that fail."""

import asyncio
import contextvars
import gc
import logging
import sys

import pytest
from support import turns

VAR = contextvars.ContextVar("VAR", default="unset")


@pytest.fixture
def log(caplog):
    """The asyncio logger's records of level ERROR."""
    caplog.set_level(logging.ERROR, "asyncio")
    return caplog


def fail():
    raise ZeroDivisionError("on purpose")


async def test_default_handler_logs(loop, log):
    loop.set_exception_handler(None)
    loop.call_soon(fail)
    await turns(2)
    (record,) = log.records
    assert record.name == "asyncio"
    assert record.levelno == logging.ERROR
    assert record.getMessage().startswith("Exception in callback fail()")
    assert record.exc_info[0] is ZeroDivisionError
    if loop.get_debug():
        assert "Object created at (most recent call last)" in record.message


async def test_calling_the_handler(loop, log):
    loop.set_exception_handler(None)
    loop.call_exception_handler({"message": "something", "extra": 17})
    message = log.records[0].getMessage()
    assert message.startswith("something\nextra: 17")
    # where the callback that runs now comes from
    assert ("handle_traceback: Handle created at" in message) is (loop.get_debug())
    loop.call_exception_handler({})
    assert "Unhandled exception in event loop" in log.records[1].getMessage()


async def test_own_handler(loop):
    got = []

    def handler(loop, context):
        got.append((loop, context))

    loop.set_exception_handler(handler)
    assert loop.get_exception_handler() is handler
    handle = loop.call_soon(fail)
    await turns(2)
    ((which, context),) = got
    assert which is loop
    assert context["handle"] is handle
    assert isinstance(context["exception"], ZeroDivisionError)
    loop.set_exception_handler(None)
    assert loop.get_exception_handler() is None


async def test_handlers_that_are_none(loop):
    with pytest.raises(TypeError, match="callable object or None"):
        loop.set_exception_handler("not callable")


async def test_handler_that_fails(loop, log):
    def handler(loop, context):
        raise ValueError("of the handler")

    loop.set_exception_handler(handler)
    loop.call_soon(fail)
    await turns(2)
    loop.set_exception_handler(None)
    (record,) = log.records
    assert "Unhandled error in exception handler" in record.getMessage()
    assert record.exc_info[0] is ValueError


def test_handler_that_leaves_the_loop(new_loop):
    loop = new_loop()

    def handler(loop, context):
        raise SystemExit("out")

    loop.set_exception_handler(handler)
    loop.call_soon(fail)
    with pytest.raises(SystemExit, match="out"):
        loop.run_forever()
    loop.set_exception_handler(None)
    loop.run_until_complete(turns(2))


def test_overloaded_default_handler(new_loop):
    """As subclasses do it."""
    got = []
    loop = new_loop()

    class Mine(type(loop)):
        def default_exception_handler(self, context):
            got.append(context["message"])

    mine = Mine()
    new_loop.loops.append(mine)
    mine.call_soon(fail)
    mine.call_soon(mine.stop)
    mine.run_forever()
    assert len(got) == 1


@pytest.mark.skipif(sys.version_info < (3, 12), reason="new in 3.12")
async def test_context_of_the_handler(loop):
    """It runs in the context of the handle or the task that failed."""
    seen = []
    loop.set_exception_handler(lambda *_: seen.append(VAR.get()))
    context = contextvars.copy_context()
    context.run(VAR.set, "of the handle")
    loop.call_soon(fail, context=context)
    await turns(2)
    assert seen == ["of the handle"]
    loop.set_exception_handler(None)


async def test_exceptions_that_nobody_retrieved(loop, reports):
    async def failing():
        fail()

    task = loop.create_task(failing())
    await turns(3)
    del task
    gc.collect()
    (context,) = reports
    assert context["message"] == "Task exception was never retrieved"
    future = loop.create_future()
    future.set_exception(ValueError())
    del future
    gc.collect()
    assert reports[1]["message"] == "Future exception was never retrieved"


async def test_tasks_destroyed_while_they_wait(loop, reports):
    async def wait():
        await asyncio.get_running_loop().create_future()

    task = loop.create_task(wait())
    await turns(2)
    del task
    gc.collect()
    (context,) = reports
    assert context["message"] == "Task was destroyed but it is pending!"


async def test_done_callbacks_that_fail(loop, reports):
    future = loop.create_future()
    future.add_done_callback(lambda _: fail())
    future.set_result(1)
    await turns(2)
    (context,) = reports
    assert isinstance(context["exception"], ZeroDivisionError)
    assert "handle" in context


@pytest.mark.not_on("asyncio", reason="a frame of its own refers to itself")
async def test_no_reference_to_the_exception_is_kept(loop, reports):
    """A handler that forgets sets the frames of the traceback free."""

    class Thing:
        def __del__(self):
            freed.append(1)

    freed = []

    def failing():
        thing = Thing()
        assert thing
        fail()

    gc.collect()
    gc.disable()
    try:
        loop.call_soon(failing)
        await turns(2)
        assert len(reports) == 1
        reports.clear()
        await turns(2)
        assert freed == [1]
    finally:
        gc.enable()
