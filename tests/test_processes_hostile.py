"""Children under hostile use: cancelled, spawned from many threads, reaped by
somebody else, with protocols that raise or close."""

import asyncio
import contextlib
import gc
import io
import os
import resource
import signal
import subprocess
import sys
import threading
import weakref

import pytest
from support import (
    TIMEOUT,
    fd_count,
    in_thread,
    pattern,
    run_script,
    shut,
    turns,
    until,
    within,
)
from test_processes import PIPE, Watching


def zombies():
    """The children that have ended and were not waited for."""
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError):
                with open(f"/proc/{name}/stat") as file:
                    state, parent = file.read().rpartition(")")[2].split()[:2]
                if state == "Z" and int(parent) == os.getpid():
                    found.append(name)
    return found


def shell(script, **options):
    return asyncio.create_subprocess_exec("sh", "-c", script, **options)


# -- the end of a child --------------------------------------------------------
async def test_wait_is_for_the_process_alone(loop):
    """A grandchild holds the pipe; what it writes is still to be had."""
    process = await shell("(read x; echo later) <&3 & exit 3", stdout=PIPE, **fd3())
    if sys.version_info < (3, 14) and "pyfastnet" not in type(loop).__module__:
        # asyncio waits for the pipes as well.
        feed()
    assert await within(process.wait()) == 3 == process.returncode
    feed()
    assert await within(process.stdout.read()) == b"later\n"


_gate = []


def fd3():
    """Options by which the child has a pipe as descriptor 3."""
    reader, writer = os.pipe()
    _gate.append((reader, writer))

    def move():
        os.dup2(reader, 3)

    return {"preexec_fn": move, "pass_fds": [3, reader]}


def feed():
    while _gate:
        reader, writer = _gate.pop()
        os.close(reader)
        os.write(writer, b"x\n")
        os.close(writer)


async def test_many_wait(loop):
    process = await shell("read x; exit 5", stdin=PIPE)
    tasks = [loop.create_task(process.wait()) for _ in range(10)]
    await turns(2)
    for task in tasks[::2]:
        task.cancel()
    await turns(2)
    process.stdin.write(b"x\n")
    assert await within(asyncio.gather(*tasks[1::2])) == [5] * 5
    assert await within(process.wait()) == 5


async def test_signals_after_the_end(loop):
    process = await shell("exit 0", stdin=PIPE, stdout=PIPE)
    await within(process.communicate())
    await turns(3)
    for call in (
        process.kill,
        process.terminate,
        lambda: process.send_signal(signal.SIGUSR1),
    ):
        with pytest.raises(ProcessLookupError):
            call()


async def test_signals_reach_no_stranger(loop):
    """The child is reaped, and its transport still open."""
    transport, protocol = await loop.subprocess_exec(
        Watching, "sh", "-c", "sleep 60 & echo $!; exit 0"
    )
    while b"\n" not in protocol.data[1]:
        await asyncio.sleep(0.001)
    await within(transport._wait() if is_ours(loop) else until_exited(transport))
    sent = []
    kill, os.kill = os.kill, lambda *args: sent.append(args)
    try:
        transport.send_signal(signal.SIGTERM)
        transport.kill()
    finally:
        os.kill = kill
    if is_ours(loop):
        assert sent == []
    os.kill(int(protocol.data[1]), signal.SIGKILL)
    transport.close()
    await within(protocol.done)


def is_ours(loop):
    return type(loop).__module__.startswith("pyfastnet")


async def until_exited(transport):
    while transport.get_returncode() is None:
        await asyncio.sleep(0.001)


@pytest.mark.not_on("asyncio", reason="its watcher may find nothing to wait for")
async def test_the_program_polls(loop):
    """Popen.poll() reaps the child before the loop can."""
    process = await shell("exit 9")
    popen = process._transport.get_extra_info("subprocess")
    assert isinstance(popen, subprocess.Popen)
    while await in_thread(popen.poll) is None:
        pass
    assert await within(process.wait()) == 9


async def test_pidfds_that_cannot_be_waited_for(loop, monkeypatch):
    """Linux 5.3 has pidfds, and waitid() takes them from 5.4 on."""
    waitid = os.waitid

    def older(kind, number, options):
        if kind == os.P_PIDFD:
            raise OSError(22, "Invalid argument")
        return waitid(kind, number, options)

    monkeypatch.setattr(os, "waitid", older)
    for code in (0, 7):
        process = await shell(f"exit {code}")
        assert await within(process.wait()) == code
    process = await shell("kill -9 $$")
    assert await within(process.wait()) == -9


@pytest.mark.not_on("asyncio", reason="its watcher may find the child in time")
async def test_the_program_reaps_the_child(loop, caplog):
    process = await shell("sleep 0.1; exit 1")
    assert os.waitpid(process.pid, 0) == (process.pid, 256)
    assert await within(process.wait()) == 255
    assert any("exit status already read" in text for text in caplog.messages)


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="Python without pidfds")
async def test_no_thread_and_no_handler(loop):
    before = signal.getsignal(signal.SIGCHLD)
    wakeup = signal.set_wakeup_fd(-1)
    signal.set_wakeup_fd(wakeup)
    threads = threading.active_count()
    processes = [await asyncio.create_subprocess_exec("cat", stdin=PIPE)]
    if is_ours(loop):
        assert threading.active_count() == threads
    assert signal.getsignal(signal.SIGCHLD) is before
    for process in processes:
        process.stdin.close()
        assert await within(process.wait()) == 0


def test_sigchld_is_the_programs(new_loop):
    run_script(
        new_loop,
        """
    async def main():
        for _ in range(20):
            process = await asyncio.create_subprocess_exec('sh', '-c', 'exit 7')
            assert await process.wait() == 7
    # a handler of the loop's
    got = []
    loop = new_loop()
    loop.add_signal_handler(signal.SIGCHLD, got.append, 1)
    loop.run_until_complete(asyncio.wait_for(main(), 20))
    assert got
    loop.remove_signal_handler(signal.SIGCHLD)
    # one of the program's
    signal.signal(signal.SIGCHLD, lambda *_: got.append(2))
    loop.run_until_complete(asyncio.wait_for(main(), 20))
    assert 2 in got
    # blocked
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])
    loop.run_until_complete(asyncio.wait_for(main(), 20))
    loop.close()
    """,
        options=(),
    )


def test_sigchld_is_ignored(new_loop):
    """The kernel reaps: the end is noticed, the status is nobody's."""
    out = run_script(
        new_loop,
        """
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    async def main():
        process = await asyncio.create_subprocess_exec(
            'sh', '-c', 'cat; exit 7', stdin=-1, stdout=-1)
        out, _ = await process.communicate(b'data')
        assert out == b'data'
        print('returned', process.returncode)
        process = await asyncio.create_subprocess_exec('sleep', '60')
        process.kill()
        await process.wait()
    loop = new_loop()
    loop.run_until_complete(asyncio.wait_for(main(), 20))
    loop.close()
    """,
        options=(),
    )
    assert "returned 255" in out


# -- cancelling ----------------------------------------------------------------
async def test_cancelled_at_every_turn(loop):
    await (await shell("true", stdin=PIPE, stdout=PIPE)).communicate()
    await turns(2)
    before = fd_count()
    for kind in range(3):
        for count in range(8):

            async def work(kind=kind):
                process = await shell(
                    "sleep 0.05", stdin=PIPE, stdout=PIPE, stderr=PIPE
                )
                if kind == 0:
                    await process.communicate(b"data")
                elif kind == 1:
                    await process.stdout.read()
                await process.wait()

            task = loop.create_task(work())
            await turns(count)
            task.cancel()
            done, _ = await asyncio.wait([task], timeout=TIMEOUT)
            assert done and task.cancelled(), (kind, count, task)
    del task, done
    for _ in range(30):
        gc.collect()
        await asyncio.sleep(0.01)
        if fd_count() <= before and not zombies():
            break
    assert fd_count() <= before
    assert zombies() == []


@pytest.mark.not_on("asyncio", reason="may hang, or forget a pipe")
async def test_cancelled_twice(loop):
    for count in range(4):
        task = loop.create_task(shell("sleep 60", stdin=PIPE, stdout=PIPE))
        await turns(1)
        for _ in range(count):
            task.cancel()
            await turns(1)
        if task.done() and not task.cancelled():
            task.result().kill()
            await within(task.result().wait())
        elif not task.done():
            task.cancel()
            await asyncio.wait([task], timeout=TIMEOUT)
            if not task.cancelled():
                process = task.result()
                process.kill()
                await within(process.wait())
    await until(lambda: not zombies())


@pytest.mark.not_on("asyncio", reason="drops what it has read")
async def test_a_cancelled_read_loses_nothing(loop):
    process = await shell("echo one; read x; echo two", stdin=PIPE, stdout=PIPE)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(process.stdout.read(), 0.1)
    assert await within(process.stdout.readline()) == b"one\n"
    process.stdin.write(b"x\n")
    assert await within(process.stdout.read()) == b"two\n"
    assert await within(process.wait()) == 0


@pytest.mark.not_on("asyncio", reason="waits for the end of the child")
async def test_cancelled_and_out_of_reach(loop, monkeypatch):
    """A child of another user cannot be killed: nobody waits for its end."""
    from pyfastnet.processes import SubprocessTransport

    pids = []

    def refuse(self, number):
        pids.append(self.get_pid())
        raise PermissionError

    with monkeypatch.context() as patch:
        patch.setattr(SubprocessTransport, "_signal", refuse)
        task = loop.create_task(shell("read x", stdin=PIPE))
        await turns(1)
        task.cancel()
        for _ in range(20):
            await turns(1)
        assert task.cancelled(), task
    # It ends with its input, and is not forgotten.
    await until(lambda: not os.path.exists(f"/proc/{pids[0]}"))


# -- reading -------------------------------------------------------------------
async def test_readers(loop):
    process = await shell("cat", stdin=PIPE, stdout=PIPE)
    reader = process.stdout
    assert isinstance(reader, asyncio.StreamReader)
    process.stdin.write(b"line\n12345until;rest of it")
    assert await within(reader.readline()) == b"line\n"
    assert await within(reader.readexactly(5)) == b"12345"
    assert await within(reader.readuntil(b";")) == b"until;"
    assert await within(reader.read(4)) == b"rest"
    task = loop.create_task(reader.read())
    await turns(2)
    with pytest.raises(RuntimeError, match="already waiting"):
        await reader.read()
    with pytest.raises(RuntimeError, match="already waiting"):
        await reader.readline()
    data = pattern(1 << 20)
    process.stdin.write(data)
    process.stdin.close()
    assert await within(task) == b" of it" + data
    assert await within(reader.read()) == b""
    assert await within(reader.read(10)) == b""
    assert reader.at_eof()
    assert await within(process.wait()) == 0


async def test_much_that_nobody_reads_is_left_in_the_pipe(loop):
    process = await asyncio.create_subprocess_exec(
        "head", "-c", "10000000", "/dev/zero", stdout=PIPE, limit=1000
    )
    for _ in range(30):
        await asyncio.sleep(0.005)
    assert len(process.stdout._buffer) < 1 << 20
    assert process.returncode is None
    assert len(await within(process.stdout.read())) == 10_000_000
    assert await within(process.wait()) == 0


async def test_both_outputs_at_length(loop):
    script = "head -c 3000000 /dev/zero & head -c 3000000 /dev/zero >&2; wait"
    process = await shell(script, stdout=PIPE, stderr=PIPE)
    out, err = await within(process.communicate())
    assert (len(out), len(err)) == (3_000_000, 3_000_000)


async def test_a_child_that_does_not_read(loop):
    process = await shell("exit 0", stdin=PIPE, stdout=PIPE)
    out, _ = await within(process.communicate(bytes(1 << 20)))
    assert out == b"" and process.returncode == 0
    script = "head -c 10 >/dev/null; exec <&-; exec sleep 60"
    process = await shell(script, stdin=PIPE)
    process.stdin.write(bytes(1 << 20))
    with pytest.raises(ConnectionError):
        await within(process.stdin.drain())
        await within(process.stdin.wait_closed())
    process.kill()
    await within(process.wait())


# -- protocols -----------------------------------------------------------------
class Failing(Watching):
    where = ""

    def check(self, where):
        if where == self.where:
            raise ZeroDivisionError(where)

    def connection_made(self, transport):
        super().connection_made(transport)
        self.check("made")

    def pipe_data_received(self, fd, data):
        super().pipe_data_received(fd, data)
        self.check("data")

    def pipe_connection_lost(self, fd, exc):
        super().pipe_connection_lost(fd, exc)
        self.check("pipe")

    def process_exited(self):
        super().process_exited()
        self.check("exited")

    def connection_lost(self, exc):
        super().connection_lost(exc)
        self.check("lost")


@pytest.mark.parametrize("where", ["made", "data", "pipe", "exited", "lost"])
async def test_errors_in_a_protocol(loop, reports, where):
    before = fd_count()
    protocol = Failing()
    protocol.where = where
    transport, _ = await loop.subprocess_exec(
        lambda: protocol, "sh", "-c", "echo out; exit 3"
    )
    transport.get_pipe_transport(0).close()
    await within(protocol.done)
    await turns(2)
    assert transport.get_returncode() == 3 and protocol.data[1] == b"out\n"
    kinds = {type(context["exception"]) for context in reports}
    assert kinds == {ZeroDivisionError}
    assert len(reports) == (3 if where == "pipe" else 1)
    transport.close()
    del transport
    await until(lambda: fd_count() <= before)


class Closing(Failing):
    def check(self, where):
        if where == self.where:
            self.transport.close()


@pytest.mark.not_on(
    "asyncio", reason="its watcher loses the child", when=sys.version_info < (3, 12)
)
@pytest.mark.parametrize("where", ["made", "data", "pipe", "exited", "lost"])
async def test_closed_in_a_callback(loop, where):
    before = fd_count()
    protocol = Closing()
    protocol.where = where
    transport, _ = await loop.subprocess_exec(
        lambda: protocol, "sh", "-c", "echo out; exit 3"
    )
    assert await within(protocol.done) is None
    await turns(2)
    assert protocol.calls[-1] == "lost" and protocol.calls.count("lost") == 1
    assert transport.get_returncode() in (3, -signal.SIGKILL)
    assert transport.is_closing() or where not in ("made", "data")
    transport.close()
    transport.close()
    del transport
    await until(lambda: fd_count() <= before)
    assert zombies() == []


async def test_nothing_keeps_a_transport(loop):
    transport, protocol = await loop.subprocess_exec(Watching, "cat")
    transport.get_pipe_transport(0).close()
    await within(protocol.done)
    transport.close()
    await turns(3)
    refs = [weakref.ref(transport), weakref.ref(protocol)]
    del transport, protocol
    gc.collect()
    assert [ref() for ref in refs] == [None, None]


async def test_the_transport_in_words(loop):
    transport, protocol = await loop.subprocess_exec(Watching, "cat", stderr=None)
    text = repr(transport)
    assert f"pid={transport.get_pid()}" in text and "running" in text
    assert "stdin=" in text and "stdout=" in text and "stderr=" not in text
    other = Watching()
    transport.set_protocol(other)
    assert transport.get_protocol() is other
    transport.get_pipe_transport(0).close()
    await within(other.done)
    assert "returncode=0" in repr(transport)
    transport.close()
    assert protocol.calls == ["made"]


# -- threads, loops, limits ----------------------------------------------------
def test_many_threads_and_loops(new_loop):
    """No child holds the pipe of another: each cat ends with its input."""
    failures = []

    async def work(number):
        for _ in range(3):
            processes = await asyncio.gather(
                *(shell("cat; exit 7", stdin=PIPE, stdout=PIPE) for _ in range(4))
            )
            data = b"%d" % number * 1000
            outs = await asyncio.gather(*(p.communicate(data) for p in processes))
            assert all(out == data for out, _ in outs)
            assert all(p.returncode == 7 for p in processes)

    def thread(number):
        loop = new_loop()
        try:
            loop.run_until_complete(asyncio.wait_for(work(number), 30))
        except BaseException as exc:
            failures.append(exc)
        finally:
            shut(loop)

    threads = [threading.Thread(target=thread, args=(n,)) for n in range(6)]
    for each in threads:
        each.start()
    for each in threads:
        each.join(60)
    assert failures == []
    assert zombies() == []


async def test_no_fork_hooks(loop):
    # They cannot be taken back: this one is switched off.
    ran, on = [], [True]
    os.register_at_fork(
        before=lambda: on and ran.append("before"),
        after_in_parent=lambda: on and ran.append("parent"),
    )
    process = await shell("true", stdin=PIPE, stdout=PIPE, start_new_session=True)
    await within(process.communicate())
    on.clear()
    assert ran == []


async def test_no_descriptors(loop):
    """As many as a child needs are not to be had: an error, nothing leaks,
    and the next one works."""
    await (await shell("true")).wait()
    before = fd_count()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    failed = worked = 0
    for spare in range(12):
        highest = max(map(int, os.listdir("/proc/self/fd")))
        resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 20, hard))
        taken = []
        with contextlib.suppress(OSError):
            while True:
                taken.append(os.dup(0))
        for fd in taken[:spare]:
            os.close(fd)
        try:
            process = await shell("cat", stdin=PIPE, stdout=PIPE, stderr=PIPE)
        except OSError:
            failed += 1
        else:
            out, _ = await within(process.communicate(b"data"))
            assert out == b"data" and process.returncode == 0
            worked += 1
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            for fd in taken[spare:]:
                os.close(fd)
    gc.collect()
    assert failed and worked
    await until(lambda: fd_count() <= before and not zombies())


@pytest.mark.not_on("asyncio", reason="has another transport")
async def test_the_pipes_cannot_be_connected(loop, monkeypatch):
    before = fd_count()
    for name in ("_make_read_pipe_transport", "_make_write_pipe_transport"):
        made = []

        def fail(*args, made=made, **options):
            made.append(args)
            raise OSError(24, "no more descriptors")

        with monkeypatch.context() as patch:
            patch.setattr(loop, name, fail, raising=False)
            with pytest.raises(OSError, match="no more"):
                await shell("sleep 60", stdin=PIPE, stdout=PIPE, stderr=PIPE)
        assert made
        del made, fail
    await until(lambda: not zombies() and fd_count() <= before)


@pytest.mark.not_on("asyncio", reason="kills the parent's child")
def test_a_fork_leaves_the_child_alone(new_loop):
    run_script(
        new_loop,
        """
    import gc, warnings
    warnings.simplefilter('ignore')
    async def main():
        process = await asyncio.create_subprocess_exec('cat', stdin=-1, stdout=-1)
        pid = os.fork()
        if pid == 0:
            del process
            gc.collect()
            os._exit(0)
        assert os.waitpid(pid, 0)[1] == 0
        await asyncio.sleep(0.02)
        assert process.returncode is None
        out, _ = await process.communicate(b'data')
        assert out == b'data' and process.returncode == 0
    loop = new_loop()
    loop.run_until_complete(asyncio.wait_for(main(), 10))
    # the copy of a transport that nobody else holds
    transport, _ = loop.run_until_complete(
        loop.subprocess_exec(asyncio.SubprocessProtocol, 'cat'))
    pid = os.fork()
    if pid == 0:
        del transport
        gc.collect()
        loop.close()
        del loop
        gc.collect()
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    os.kill(transport.get_pid(), 0)
    loop.run_until_complete(asyncio.sleep(0.02))
    assert transport.get_returncode() is None
    transport.get_pipe_transport(0).close()
    assert loop.run_until_complete(transport._wait()) == 0
    transport.close()
    loop.run_until_complete(asyncio.sleep(0.01))
    loop.close()
    """,
        options=(),
    )


@pytest.mark.not_on("asyncio", reason="a thread of it may wait for the child")
def test_a_loop_closed_before_its_children(new_loop):
    out = run_script(
        new_loop,
        """
    import gc, subprocess, warnings
    warnings.simplefilter('ignore')
    async def main():
        return await asyncio.create_subprocess_exec(
            'sleep', '60', stdin=-1, stdout=-1)
    before = len(os.listdir('/proc/self/fd'))
    loop = new_loop()
    process = loop.run_until_complete(main())
    pid = process.pid
    loop.close()
    del process, loop
    gc.collect()
    assert len(os.listdir('/proc/self/fd')) <= before + 1, os.listdir('/proc/self/fd')
    try:    # it is killed, and perhaps reaped by Popen
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    except (ProcessLookupError, ChildProcessError):
        pass
    """,
        options=(),
    )
    assert "Exception ignored" not in out, out


async def test_output_of_any_kind(loop, tmp_path):
    with open(tmp_path / "in", "wb+") as file:
        file.write(b"from a file")
        file.seek(0)
        process = await shell("cat; echo err >&2", stdin=file, stdout=PIPE, stderr=-2)
        out, _ = await within(process.communicate())
    assert out == b"from a fileerr\n"
    process = await shell("cat", stdin=subprocess.DEVNULL, stdout=PIPE)
    assert (await within(process.communicate()))[0] == b""
    with pytest.raises(io.UnsupportedOperation):
        await shell("cat", stdin=io.BytesIO())
