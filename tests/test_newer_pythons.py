"""What newer versions of Python change, simulated where they are not at hand:
each test gives asyncio the shape that it has there."""

import asyncio
import sys

import pytest
from support import run_script, socket_path, within

pytestmark = pytest.mark.not_on("asyncio", reason="about our use of asyncio")

# Python 3.14: no child watchers; 3.16: no policies.  What is left of them is
# an error, to be noticed.
FUTURE = """
import asyncio, collections, sys
from asyncio import events, unix_events

WATCHERS = ('AbstractChildWatcher', 'BaseChildWatcher', 'SafeChildWatcher',
            'FastChildWatcher', 'MultiLoopChildWatcher', 'ThreadedChildWatcher',
            'PidfdChildWatcher', 'get_child_watcher', 'set_child_watcher')
POLICIES = ('AbstractEventLoopPolicy', 'BaseDefaultEventLoopPolicy',
            'DefaultEventLoopPolicy', '_UnixDefaultEventLoopPolicy',
            'get_event_loop_policy', 'set_event_loop_policy')
for module in (asyncio, events, unix_events):
    for name in WATCHERS + POLICIES:
        vars(module).pop(name, None)
del asyncio.iscoroutinefunction
for name in vars(unix_events._UnixSelectorEventLoop).copy():
    if 'child' in name:
        delattr(unix_events._UnixSelectorEventLoop, name)

Version = collections.namedtuple('Version', 'major minor micro releaselevel serial')
sys.version_info = Version(3, 16, 0, 'final', 0)

import pyfastnet

assert not {'install', 'EventLoopPolicy'} & set(pyfastnet.__all__), pyfastnet.__all__
assert not hasattr(pyfastnet, 'install')

async def main():
    process = await asyncio.create_subprocess_exec('cat', stdin=-1, stdout=-1)
    out, _ = await process.communicate(b'data')
    assert out == b'data' and process.returncode == 0
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(10, print)
    try:
        loop.add_signal_handler(10, main)
    except TypeError:
        pass
    else:
        raise SystemExit('a coroutine function was taken')
    assert loop.remove_signal_handler(10)
    server = await asyncio.start_server(lambda r, w: w.close(), '127.0.0.1', 0)
    reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
    assert await reader.read() == b''
    writer.close()
    server.close()
    return 'done'

assert pyfastnet.run(main()) == 'done'
"""


@pytest.mark.skipif(sys.version_info < (3, 13), reason="has not what 3.13 added")
def test_without_watchers_and_policies(new_loop):
    run_script(
        new_loop,
        "import subprocess\nsubprocess.run([sys.executable, '-W', "
        f"'error', '-c', {FUTURE!r}], check=True)",
    )


async def test_keywords_of_create_unix_server(loop, monkeypatch):
    """Python 3.16 has `mode`, 3.13 `cleanup_socket`."""
    original = type(loop)._asyncio_unix_server
    seen = {}

    async def newer(self, factory, path=None, *, mode=None, unheard=None, **options):
        seen.update(mode=mode, unheard=unheard)
        return await original(self, factory, path, **options)

    monkeypatch.setattr(type(loop), "_asyncio_unix_server", newer)
    with socket_path() as path:
        server = await loop.create_unix_server(
            asyncio.Protocol, path, mode=0o600, unheard=1
        )
        assert server.is_serving()
        server.close()
    assert seen == {"mode": 0o600, "unheard": 1}
    with pytest.raises(TypeError):
        await loop.create_unix_server(asyncio.Protocol, path, unknown=1)


async def test_keywords_of_create_task(loop, monkeypatch):
    """Python 3.14 passes all of them on to the task factory."""
    assert type(loop).create_task is asyncio.BaseEventLoop.create_task
    seen = []

    def create_task(self, coro, **kwargs):
        seen.append(kwargs)
        return asyncio.Task(coro, loop=self)

    monkeypatch.setattr(asyncio.BaseEventLoop, "create_task", create_task)
    task = loop.create_task(asyncio.sleep(0, "slept"), eager_start=False, unheard=1)
    assert await within(task) == "slept"
    assert {"eager_start": False, "unheard": 1} in seen


async def test_keywords_of_subprocesses(loop, monkeypatch):
    """Popen may get more of them."""
    import subprocess

    seen = []

    class Popen(subprocess.Popen):
        def __init__(self, *args, unheard=None, **kwargs):
            seen.append(unheard)
            super().__init__(*args, **kwargs)

    monkeypatch.setattr(subprocess, "Popen", Popen)
    process = await asyncio.create_subprocess_exec("true", unheard=1)
    assert await within(process.wait()) == 0
    assert seen == [1]


async def test_asyncio_keeps_what_we_use(loop):
    """The base class of asyncio's subprocess transports is none of it: it has
    changed with each version."""
    from asyncio import base_subprocess

    from pyfastnet import processes

    assert not issubclass(
        processes.SubprocessTransport, base_subprocess.BaseSubprocessTransport
    )
    assert issubclass(processes.SubprocessTransport, asyncio.SubprocessTransport)
