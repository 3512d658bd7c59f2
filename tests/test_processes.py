"""Subprocesses: the basics of what asyncio offers."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import threading

import pytest
from support import TIMEOUT, fd_count, shut, until, within

PY = sys.executable
PIPE = subprocess.PIPE


def python(body, **options):
    """Starts a child; -S -E, as it needs nothing but the language."""
    return asyncio.create_subprocess_exec(PY, "-S", "-E", "-c", body, **options)


async def test_exit_status_and_pid(loop):
    for code in (0, 7, 255):
        process = await asyncio.create_subprocess_exec("sh", "-c", f"exit {code}")
        assert process.pid > 0
        assert process.stdin is process.stdout is process.stderr is None
        assert await within(process.wait()) == code
        assert process.returncode == code
        assert await within(process.wait()) == code


async def test_communicate(loop):
    process = await asyncio.create_subprocess_exec("cat", stdin=PIPE, stdout=PIPE)
    out, err = await within(process.communicate(b"through the cat"))
    assert (out, err) == (b"through the cat", None)
    assert process.returncode == 0


async def test_communicate_more_than_a_pipe_holds(loop):
    data = bytes(range(256)) * 4000
    process = await asyncio.create_subprocess_exec("cat", stdin=PIPE, stdout=PIPE)
    out, _ = await within(process.communicate(data))
    assert out == data


async def test_both_outputs(loop):
    process = await asyncio.create_subprocess_exec(
        "sh", "-c", "echo out; echo err >&2", stdout=PIPE, stderr=PIPE
    )
    out, err = await within(process.communicate())
    assert (out, err) == (b"out\n", b"err\n")
    process = await asyncio.create_subprocess_exec(
        "sh",
        "-c",
        "echo out; echo err >&2",
        stdout=PIPE,
        stderr=subprocess.STDOUT,
    )
    out, _ = await within(process.communicate())
    assert out == b"out\nerr\n"


async def test_shell(loop):
    process = await asyncio.create_subprocess_shell(
        "read line; echo got $line", stdin=PIPE, stdout=PIPE
    )
    process.stdin.write(b"it\n")
    await within(process.stdin.drain())
    assert await within(process.stdout.readline()) == b"got it\n"
    process.stdin.close()
    assert await within(process.wait()) == 0


async def test_line_by_line(loop):
    process = await python(
        "import sys\nfor line in sys.stdin: print(line.upper(), end='', flush=True)",
        stdin=PIPE,
        stdout=PIPE,
    )
    for number in range(20):
        process.stdin.write(b"line %d\n" % number)
        await within(process.stdin.drain())
        line = await within(process.stdout.readline())
        assert line == b"LINE %d\n" % number
    process.stdin.write_eof()
    assert await within(process.stdout.read()) == b""
    assert await within(process.wait()) == 0


async def test_signals(loop):
    for send, number in (
        (lambda p: p.terminate(), signal.SIGTERM),
        (lambda p: p.kill(), signal.SIGKILL),
        (lambda p: p.send_signal(signal.SIGUSR1), signal.SIGUSR1),
    ):
        process = await asyncio.create_subprocess_exec("sleep", "60")
        send(process)
        assert await within(process.wait()) == -number
        with pytest.raises(ProcessLookupError):
            process.kill()


async def test_no_such_program(loop):
    before = fd_count()
    for _ in range(5):
        with pytest.raises(FileNotFoundError):
            await asyncio.create_subprocess_exec(
                "/no/such/program", stdin=PIPE, stdout=PIPE, stderr=PIPE
            )
    await until(lambda: fd_count() <= before)


async def test_options(loop, tmp_path):
    process = await asyncio.create_subprocess_exec(
        "sh",
        "-c",
        "pwd; echo $COLOUR",
        cwd=tmp_path,
        env={"COLOUR": "red"},
        stdout=PIPE,
    )
    out, _ = await within(process.communicate())
    assert out.decode().splitlines() == [str(tmp_path), "red"]
    process = await python(
        "import os; print(os.getsid(0) == os.getpid())",
        start_new_session=True,
        stdout=PIPE,
    )
    assert (await within(process.communicate()))[0] == b"True\n"
    with open(tmp_path / "out", "wb") as file:
        process = await asyncio.create_subprocess_exec("echo", "to a file", stdout=file)
        await within(process.wait())
    assert (tmp_path / "out").read_bytes() == b"to a file\n"


async def test_descriptors_are_passed_or_not(loop):
    reader, writer = os.pipe()
    body = f"import os; os.write({writer}, b'passed')"
    process = await python(body, pass_fds=[writer])
    assert await within(process.wait()) == 0
    assert os.read(reader, 100) == b"passed"
    process = await python(body, stderr=subprocess.DEVNULL)
    assert await within(process.wait()) == 1
    os.close(reader)
    os.close(writer)


async def test_wrong_arguments(loop):
    for options in (
        {"universal_newlines": True},
        {"shell": True},
        {"bufsize": 4096},
        {"text": True},
        {"encoding": "utf-8"},
        {"errors": "strict"},
    ):
        with pytest.raises(ValueError, match="must be"):
            await loop.subprocess_exec(asyncio.SubprocessProtocol, "true", **options)
    with pytest.raises(ValueError, match="must be True"):
        await loop.subprocess_shell(asyncio.SubprocessProtocol, "true", shell=False)
    with pytest.raises(ValueError, match="cmd must be a string"):
        await loop.subprocess_shell(asyncio.SubprocessProtocol, 17)
    with pytest.raises(TypeError):
        await asyncio.create_subprocess_exec("true", colour="red")


class Watching(asyncio.SubprocessProtocol):
    def __init__(self):
        self.calls = []
        self.data = {1: b"", 2: b""}
        self.done = asyncio.get_running_loop().create_future()

    def connection_made(self, transport):
        self.transport = transport
        self.calls.append("made")

    def pipe_data_received(self, fd, data):
        self.data[fd] += data

    def pipe_connection_lost(self, fd, exc):
        self.calls.append(fd)

    def process_exited(self):
        self.calls.append("exited")

    def connection_lost(self, exc):
        self.calls.append("lost")
        self.done.set_result(exc)


async def test_transport(loop):
    transport, protocol = await loop.subprocess_exec(
        Watching, "sh", "-c", "cat; echo err >&2; exit 3"
    )
    assert isinstance(transport, asyncio.SubprocessTransport)
    assert transport.get_pid() > 0
    assert transport.get_returncode() is None
    stdin = transport.get_pipe_transport(0)
    assert isinstance(stdin, asyncio.WriteTransport)
    assert isinstance(transport.get_pipe_transport(1), asyncio.ReadTransport)
    assert transport.get_pipe_transport(7) is None
    stdin.write(b"data")
    stdin.close()
    assert await within(protocol.done) is None
    assert protocol.data == {1: b"data", 2: b"err\n"}
    assert protocol.calls[0] == "made"
    assert protocol.calls[-1] == "lost"
    assert sorted(map(str, protocol.calls[1:-1])) == ["0", "1", "2", "exited"]
    assert transport.get_returncode() == 3
    transport.close()
    assert transport.is_closing()


async def test_closing_the_transport_kills_the_child(loop):
    transport, protocol = await loop.subprocess_exec(Watching, "sleep", "60")
    pid = transport.get_pid()
    transport.close()
    await within(protocol.done)

    def gone():
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        return False

    await until(gone)


async def test_many_children(loop):
    async def one(number):
        process = await asyncio.create_subprocess_exec("echo", str(number), stdout=PIPE)
        out, _ = await process.communicate()
        assert process.returncode == 0
        return int(out)

    got = await within(asyncio.gather(*(one(number) for number in range(20))))
    assert got == list(range(20))


async def test_cancelled_wait(loop):
    process = await asyncio.create_subprocess_exec("sleep", "60")
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(process.wait(), 0.01)
    process.kill()
    assert await within(process.wait()) == -signal.SIGKILL


async def test_nothing_is_left_behind(loop):
    process = await asyncio.create_subprocess_exec(
        "true", stdin=PIPE, stdout=PIPE, stderr=PIPE
    )
    await within(process.communicate())
    del process
    await asyncio.sleep(0.01)
    before = fd_count()
    for _ in range(10):
        process = await asyncio.create_subprocess_exec(
            "cat", stdin=PIPE, stdout=PIPE, stderr=PIPE
        )
        await within(process.communicate(b"x"))
    del process
    await until(lambda: fd_count() <= before)
    with contextlib.suppress(ChildProcessError):
        pid, _ = os.waitpid(-1, os.WNOHANG)
        assert pid == 0


def test_loops_in_threads(new_loop):
    """Each starts children of its own, without the main thread's help."""
    got = []

    async def work():
        process = await asyncio.create_subprocess_exec("echo", "thread", stdout=PIPE)
        out, _ = await within(process.communicate())
        got.append((out, process.returncode))

    def thread():
        loop = new_loop()
        try:
            loop.run_until_complete(work())
        finally:
            shut(loop)

    threads = [threading.Thread(target=thread) for _ in range(3)]
    for each in threads:
        each.start()
    for each in threads:
        each.join(TIMEOUT)
    assert got == [(b"thread\n", 0)] * 3
