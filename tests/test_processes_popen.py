"""Children: what subprocess.Popen takes, and what it refuses."""

import asyncio
import gc
import os
import subprocess
import sys

import pytest
from support import fd_count, in_thread, until, within
from test_processes import PIPE, python
from test_processes_hostile import shell, zombies

# -- what subprocess.Popen takes -----------------------------------------------
OPTIONS = {
    "cwd": {"cwd": b"/"},
    "executable": {"executable": sys.executable},
    "environment": {"env": {b"COLOUR": b"red", "SHAPE": "round"}},
    "umask": {"umask": 0o27},
    "new-session": {"start_new_session": True},
    "process-group": {"process_group": 0},
    "user": {"user": os.getuid()},
    "group": {"group": os.getgid()},
    "groups": {"extra_groups": [os.getgid()]},
    "pipesize": {"pipesize": 4096},
    "restore-signals": {"restore_signals": False},
    "inherit": {"close_fds": False},
    "preexec": {"preexec_fn": lambda: os.nice(1)},
}
TELL = """
import os, fcntl
F_GETPIPE_SZ = 1032
sigpipe = [line for line in open('/proc/self/status') if line.startswith('SigIgn')]
print(os.getcwd(), os.environ.get('COLOUR'), os.environ.get('SHAPE'),
      oct(os.umask(0)), os.getsid(0) == os.getpid(), os.getpgid(0) == os.getpid(),
      os.getuid(), os.getgid(), sorted(os.getgroups()), os.nice(0),
      fcntl.fcntl(0, F_GETPIPE_SZ), int(sigpipe[0].split()[1], 16) >> 12 & 1,
      len(os.listdir('/proc/self/fd')))
"""


@pytest.mark.parametrize("name", OPTIONS)
async def test_keywords_of_popen(loop, name):
    """A child of the loop and one of subprocess tell the same."""
    options = dict(OPTIONS[name])
    command = [sys.executable, "-S", "-E", "-c", TELL]
    if name in ("user", "groups") and os.getuid() != 0:
        options = {}  # for root alone
    expected = await in_thread(
        lambda: subprocess.run(command, input=b"", stdout=PIPE, check=True, **options)
    )
    process = await asyncio.create_subprocess_exec(
        *command, stdin=PIPE, stdout=PIPE, **options
    )
    out, _ = await within(process.communicate())
    assert process.returncode == 0
    told, wanted = out.split(), expected.stdout.split()
    if name == "inherit":  # the loop's pipes and the tests' differ
        told.pop()
        wanted.pop()
    assert told == wanted


async def test_an_error_in_preexec_fn(loop):
    def fail():
        raise ZeroDivisionError

    before = fd_count()
    with pytest.raises(subprocess.SubprocessError, match="preexec_fn"):
        await shell("true", preexec_fn=fail, stdin=PIPE, stdout=PIPE)
    await until(lambda: fd_count() <= before)
    assert zombies() == []


async def test_bad_arguments_leave_nothing(loop, tmp_path):
    before = fd_count()
    for command, options, error in (
        (["/no/such/program"], {}, FileNotFoundError),
        ([str(tmp_path)], {}, PermissionError),
        (["true"], {"cwd": tmp_path / "missing"}, FileNotFoundError),
        (["true", "nul\0byte"], {}, ValueError),
        (["true"], {"env": {"a=b": "c"}}, ValueError),
        (["true"], {"stdin": 12345}, OSError),
        (["true"], {"stdout": -77}, OSError),
        (["true"], {"stdout": "text"}, AttributeError),
        (["true"], {"pass_fds": [-1]}, ValueError),
        (["true"], {"user": -1}, ValueError),
        (["true"], {"startupinfo": 1}, ValueError),
        ([17], {}, TypeError),
    ):
        pipes = {"stdin": PIPE, "stdout": PIPE, "stderr": PIPE}
        with pytest.raises(error):
            await asyncio.create_subprocess_exec(*command, **pipes | options)
    gc.collect()
    await until(lambda: fd_count() <= before)
    assert zombies() == []


async def test_the_pipes_are_pipes(loop):
    process = await python(
        """
import os, stat, sys
print(all(stat.S_ISFIFO(os.fstat(fd).st_mode) for fd in range(3)))
with open('/dev/stdin') as file:
    print(file.readline().strip(), flush=True)
with open('/proc/self/fd/1', 'w') as file:
    file.write('reopened')
""",
        stdin=PIPE,
        stdout=PIPE,
        stderr=PIPE,
    )
    out, err = await within(process.communicate(b"a line\n"))
    assert (out, err) == (b"True\na line\nreopened", b"")


async def test_only_its_own_descriptors(loop):
    reader, writer = os.pipe()
    os.set_inheritable(writer, True)
    others = [
        await asyncio.create_subprocess_exec("cat", stdin=PIPE, stdout=PIPE)
        for _ in range(3)
    ]
    # sh has the directory itself open as well
    process = await shell("ls /proc/self/fd", stdin=PIPE, stdout=PIPE, stderr=PIPE)
    out, _ = await within(process.communicate())
    assert out.split() == [b"0", b"1", b"2", b"3"]
    for other in others:
        other.stdin.close()
        assert await within(other.stdout.read()) == b""
        assert await within(other.wait()) == 0
    os.close(reader)
    os.close(writer)
