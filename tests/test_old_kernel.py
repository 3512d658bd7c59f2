"""Without pidfds and epoll_pwait2: an old kernel, or a strict filter.

The filter of old_kernel.py takes them away, with either error, from a
process of its own, in which a part of the tests is run.
"""

import functools
import os
import pathlib
import subprocess
import sys

import pytest

HERE = pathlib.Path(__file__).parent
# What the missing calls are about, and a little of all else.
PART = (
    "test_processes.py",
    "test_processes_hostile.py",
    "test_processes_popen.py",
    "test_signals.py",
    "test_timers.py",
    "test_pipes.py",
    "test_transports.py::test_echo",
    "test_sock.py",
    "test_threads.py",
)
ONLY_NOW = "not pidfd and not no_thread"


def run(error, *command, timeout=150, **environment):
    return subprocess.run(
        [sys.executable, str(HERE / "old_kernel.py"), error, *command],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=timeout,
        cwd=HERE.parent,
        env={**os.environ, **environment},
        check=False,
    )


@functools.cache
def has_filters():
    return run("ENOSYS", "true").returncode == 0


@pytest.fixture(params=["ENOSYS", "EPERM"])
def error(request):
    if not has_filters():
        pytest.skip("the kernel takes no seccomp filter from this process")
    return request.param


SCRIPT = """
import asyncio, errno, os, sys, threading, time
import pyfastnet

error = getattr(errno, sys.argv[1])
try:
    os.pidfd_open(os.getpid())
except OSError as exc:
    assert exc.errno == error, exc
else:
    raise SystemExit('there are pidfds')

async def main():
    process = await asyncio.create_subprocess_exec('sleep', '60')
    names = [thread.name for thread in threading.enumerate()]
    assert f'waitpid-{process.pid}' in names, names
    process.terminate()
    assert await process.wait() == -15
    process = await asyncio.create_subprocess_exec('sh', '-c', 'exit 7')
    assert await process.wait() == 7
    early = 0
    for _ in range(50):
        begin = time.monotonic()
        await asyncio.sleep(0.0003)
        early += time.monotonic() - begin < 0.0003
    assert early == 0, early
    while any(thread.name.startswith('waitpid') for thread in threading.enumerate()):
        await asyncio.sleep(0.001)

pyfastnet.run(main())
print('done')
"""


def test_the_fallbacks_are_used(error):
    done = run(error, sys.executable, "-W", "error", "-c", SCRIPT, error)
    assert done.returncode == 0, done.stdout
    assert done.stdout.endswith("done\n")


@pytest.mark.timeout(200)
def test_the_tests_pass(error):
    done = run(
        error,
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-k",
        ONLY_NOW,
        *(str(HERE / name) for name in PART),
        PYFASTNET_TEST_LOOPS="pyfastnet",
    )
    assert done.returncode == 0, done.stdout[-4000:]
