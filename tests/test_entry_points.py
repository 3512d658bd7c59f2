"""The ways in: factories, run(), install(), policies."""

import asyncio
import inspect
import os
import socket
import subprocess
import sys
import warnings

import pytest
from support import run_script, shut

pytestmark = pytest.mark.not_on("debug", reason="the tests switch it")


@pytest.fixture
def module(new_loop):
    """The module under test: asyncio, or what stands in its place."""
    return __import__(new_loop.kind)


def test_new_event_loop(new_loop):
    loops = [new_loop(), new_loop()]
    assert loops[0] is not loops[1]
    for loop in loops:
        assert isinstance(loop, asyncio.AbstractEventLoop)
        assert not loop.is_running()
        assert not loop.is_closed()
        assert loop.run_until_complete(asyncio.sleep(0, 1)) == 1


def test_runner_with_a_factory(module):
    async def main():
        return asyncio.get_running_loop()

    with asyncio.Runner(loop_factory=module.new_event_loop) as runner:
        loop = runner.run(main())
        assert runner.get_loop() is loop
        assert runner.run(main()) is loop
    assert loop.is_closed()


@pytest.mark.skipif(sys.version_info < (3, 12), reason="new in 3.12")
def test_asyncio_run_with_a_factory(module):
    async def main():
        return type(asyncio.get_running_loop())

    loop = module.new_event_loop()
    cls = type(loop)
    loop.close()
    assert asyncio.run(main(), loop_factory=module.new_event_loop) is cls


def test_run(module):
    async def main():
        loop = asyncio.get_running_loop()
        loop.create_task(asyncio.sleep(3600))
        await asyncio.sleep(0)
        return loop, loop.get_debug()

    for debug in (False, True):
        loop, seen = module.run(main(), debug=debug)
        assert seen is debug
        assert loop.is_closed()
    with pytest.raises(ZeroDivisionError):
        module.run(failing())
    with pytest.raises((ValueError, TypeError), match="coroutine"):
        module.run(17)
    # no loop is left set
    with pytest.raises(RuntimeError):
        asyncio.get_running_loop()


async def failing():
    raise ZeroDivisionError


def test_run_inside_of_a_run(module):
    async def main():
        coroutine = failing()
        with pytest.raises(RuntimeError, match="running event loop"):
            module.run(coroutine)
        coroutine.close()

    module.run(main())


def test_no_method_is_missing(new_loop):
    """Everything of AbstractEventLoop, and none of it NotImplemented."""
    loop = new_loop()
    for name, method in inspect.getmembers(
        asyncio.AbstractEventLoop, inspect.isfunction
    ):
        if name.startswith("_") or name == "set_task_factory":
            continue
        mine = getattr(type(loop), name)
        assert mine is not method, name


@pytest.mark.not_on("asyncio", reason="about what only pyfastnet has")
def test_names(new_loop, module):
    assert set(module.__all__) >= {"EventLoop", "new_event_loop", "run"}
    for name in module.__all__:
        assert getattr(module, name) is not None
        assert name in dir(module)
    assert type(new_loop()) is module.EventLoop
    assert module.__version__
    with pytest.raises(AttributeError):
        _ = module.no_such_name
    loop = module.EventLoop()
    assert isinstance(loop, asyncio.BaseEventLoop)
    shut(loop)


@pytest.mark.not_on("asyncio", reason="about what only pyfastnet has")
def test_shards(module):
    for shards in (None, 1, 2, 64):
        module.new_event_loop(shards=shards).close()
    for shards in (0, -1, 65):
        with pytest.raises(ValueError, match="from 1 to 64"):
            module.new_event_loop(shards=shards)
    for shards in ("2", 1.5, True):
        with pytest.raises(TypeError):
            module.new_event_loop(shards=shards)


@pytest.mark.not_on("asyncio", reason="about what only pyfastnet has")
@pytest.mark.parametrize(
    ("value", "good"),
    [
        ("auto", True),
        ("2", True),
        ("64", True),
        ("", True),
        ("0", False),
        ("65", False),
        ("-1", False),
        ("1.5", False),
        ("x", False),
    ],
)
def test_the_shards_variable(new_loop, value, good):
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "import pyfastnet; pyfastnet.new_event_loop().close()",
        ],
        env={**os.environ, "PYFASTNET_SHARDS": value},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0
    assert ("RuntimeWarning: PYFASTNET_SHARDS=" not in done.stderr) is good


@pytest.mark.not_on("asyncio", reason="about what only pyfastnet has")
def test_import_does_not_warn(new_loop):
    """Policies are deprecated: only who asks for one gets a warning."""
    run_script(
        new_loop,
        """
        loop = new_loop()
        loop.run_until_complete(asyncio.sleep(0))
        loop.close()
        """,
    )


@pytest.mark.not_on("asyncio", reason="about what only pyfastnet has")
def test_stats(new_loop):
    loop = new_loop()
    loop.run_until_complete(asyncio.sleep(0.001))
    stats = loop.stats()
    assert isinstance(stats, dict)
    assert stats


POLICIES = pytest.mark.skipif(sys.version_info >= (3, 16), reason="policies have gone")


@POLICIES
@pytest.mark.not_on("asyncio", reason="about what only pyfastnet has")
def test_policy(module):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        policy = module.EventLoopPolicy()
    loop = policy.new_event_loop()
    assert type(loop) is module.EventLoop
    policy.set_event_loop(loop)
    assert policy.get_event_loop() is loop
    policy.set_event_loop(None)
    with pytest.raises(RuntimeError, match="no current event loop"):
        policy.get_event_loop()
    loop.close()


@POLICIES
@pytest.mark.not_on("asyncio", reason="about what only pyfastnet has")
def test_install(new_loop):
    out = run_script(
        new_loop,
        """
        import warnings
        warnings.simplefilter('ignore', DeprecationWarning)
        under_test.install()

        async def main():
            loop = asyncio.get_running_loop()
            process = await asyncio.create_subprocess_exec('true')
            assert await process.wait() == 0
            return type(loop)

        assert asyncio.run(main()) is under_test.EventLoop
        loop = asyncio.new_event_loop()
        assert type(loop) is under_test.EventLoop
        asyncio.set_event_loop(loop)
        assert asyncio.get_event_loop() is loop
        loop.close()
        policy = asyncio.get_event_loop_policy()
        assert isinstance(policy, under_test.EventLoopPolicy)
        print('done')
        """,
    )
    assert out == "done\n"


@pytest.mark.not_on("asyncio", reason="it is asyncio's own")
def test_asyncio_is_left_as_it_is(module):
    """Importing and using a loop replaces nothing in asyncio."""
    module.new_event_loop().close()
    loop = asyncio.new_event_loop()
    assert type(loop).__module__ == "asyncio.unix_events"
    one, other = socket.socketpair()
    transport, _ = loop.run_until_complete(
        loop.create_unix_connection(asyncio.Protocol, sock=one)
    )
    assert type(transport).__module__ == "asyncio.selector_events"
    transport.abort()
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()
    other.close()
