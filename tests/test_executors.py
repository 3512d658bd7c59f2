"""run_in_executor, the default executor, name look-ups, sendfile."""

import asyncio
import concurrent.futures
import contextlib
import gc
import io
import socket
import sys
import tempfile
import threading
import time
import warnings

import pytest
from support import (
    TIMEOUT,
    Recorder,
    in_thread,
    pattern,
    read_all,
    read_exactly,
    run_script,
    turns,
    until,
    within,
)


# -- executors ----------------------------------------------------------------
async def test_run_in_executor(loop):
    main = threading.get_ident()
    thread = await within(loop.run_in_executor(None, threading.get_ident))
    assert thread != main
    assert await within(loop.run_in_executor(None, pow, 2, 10)) == 1024
    with pytest.raises(ZeroDivisionError):
        await within(loop.run_in_executor(None, divmod, 1, 0))
    future = loop.run_in_executor(None, int)
    assert asyncio.isfuture(future)
    await future


async def test_many_jobs(loop):
    jobs = [loop.run_in_executor(None, pow, n, 2) for n in range(500)]
    assert await within(asyncio.gather(*jobs)) == [n * n for n in range(500)]


async def test_given_executor(loop):
    with concurrent.futures.ThreadPoolExecutor(1, "mine") as pool:
        name = await within(
            loop.run_in_executor(pool, lambda: threading.current_thread().name)
        )
        assert name.startswith("mine")


async def test_set_default_executor(loop):
    with pytest.raises(TypeError, match="must be ThreadPoolExecutor"):
        loop.set_default_executor(object())
    pool = concurrent.futures.ThreadPoolExecutor(1, "default")
    loop.set_default_executor(pool)
    name = await within(
        loop.run_in_executor(None, lambda: threading.current_thread().name)
    )
    assert name.startswith("default")


@pytest.mark.not_on("plain", reason="only debug mode looks")
async def test_wrong_functions(loop):
    async def coroutine_function():
        pass

    with pytest.raises(TypeError, match="coroutines cannot be used"):
        loop.run_in_executor(None, coroutine_function)
    with pytest.raises(TypeError, match="a callable object was expected"):
        loop.run_in_executor(None, 17)


async def test_to_thread_keeps_the_context(loop):
    assert await within(asyncio.to_thread(pow, 3, 3)) == 27


def test_shutdown_default_executor(new_loop):
    loop = new_loop()
    ended = []
    loop.run_in_executor(None, lambda: (time.sleep(0.02), ended.append(1)))
    loop.run_until_complete(loop.shutdown_default_executor())
    assert ended == [1]
    with pytest.raises(RuntimeError, match="shutdown has been called"):
        loop.run_in_executor(None, int)
    loop.run_until_complete(loop.shutdown_default_executor())
    loop.close()


@pytest.mark.not_on(
    "asyncio",
    when=sys.version_info < (3, 13),
    reason="new in 3.12, where it waits all the same",
)
def test_shutdown_with_a_timeout(new_loop):
    loop = new_loop()
    release = threading.Event()
    loop.run_in_executor(None, release.wait, TIMEOUT)
    with pytest.warns(RuntimeWarning, match="within 0.01 seconds"):
        loop.run_until_complete(loop.shutdown_default_executor(0.01))
    loop.close()
    release.set()


async def test_cancelled_jobs_end_all_the_same(loop):
    release, ended = threading.Event(), threading.Event()

    def job():
        release.wait(TIMEOUT)
        ended.set()

    task = asyncio.ensure_future(loop.run_in_executor(None, job))
    await asyncio.sleep(0.001)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    release.set()
    assert await in_thread(ended.wait, TIMEOUT)


def test_jobs_that_end_after_the_loop_was_closed(new_loop):
    loop = new_loop()
    release = threading.Event()
    pool = concurrent.futures.ThreadPoolExecutor(1)
    loop.run_in_executor(pool, release.wait, TIMEOUT)
    loop.close()
    release.set()
    pool.shutdown()
    gc.collect()
    assert loop.is_closed()


# -- name look-ups ------------------------------------------------------------
async def test_getaddrinfo(loop):
    infos = await within(loop.getaddrinfo("127.0.0.1", 80, type=socket.SOCK_STREAM))
    assert infos == socket.getaddrinfo("127.0.0.1", 80, type=socket.SOCK_STREAM)
    infos = await within(
        loop.getaddrinfo(
            "localhost",
            "80",
            family=socket.AF_INET,
            type=socket.SOCK_DGRAM,
            flags=socket.AI_PASSIVE,
        )
    )
    assert infos[0][4] == ("127.0.0.1", 80)
    infos = await within(loop.getaddrinfo(None, 0, type=socket.SOCK_STREAM))
    assert {info[1] for info in infos} == {socket.SOCK_STREAM}
    with pytest.raises(socket.gaierror):
        await within(loop.getaddrinfo("no.such.invalid", 80))
    with pytest.raises(TypeError):
        await within(loop.getaddrinfo("localhost", 80, socket.AF_INET))


async def test_getnameinfo(loop):
    flags = socket.NI_NUMERICHOST | socket.NI_NUMERICSERV
    got = await within(loop.getnameinfo(("127.0.0.1", 80), flags))
    assert got == ("127.0.0.1", "80")
    with pytest.raises((socket.gaierror, OSError)):
        await within(loop.getnameinfo(("no.such.invalid", 80)))


async def test_connecting_by_name(loop):
    server = await loop.create_server(Recorder, "localhost", 0)
    port = server.sockets[0].getsockname()[1]
    family = server.sockets[0].family
    transport, protocol = await loop.create_connection(
        Recorder, "localhost", port, family=family
    )
    transport.close()
    await protocol.lost()
    server.close()


# -- sendfile -----------------------------------------------------------------
@pytest.mark.parametrize(("offset", "count"), [(0, None), (100, None), (7, 5000)])
async def test_sendfile(loop, link, offset, count):
    """Between what was written before it and what is written after it."""
    transport, protocol, peer = await link(Recorder)
    data = pattern(1 << 20)
    expected = data[offset : None if count is None else offset + count]
    with tempfile.TemporaryFile() as file:
        file.write(data)
        file.flush()
        transport.write(b"before;")
        reading = asyncio.create_task(in_thread(read_exactly, peer, len(expected) + 13))
        sent = await within(loop.sendfile(transport, file, offset, count))
        assert sent == len(expected)
        assert file.tell() == offset + sent
    transport.write(b";after")
    assert await reading == b"before;" + expected + b";after"
    # reading goes on as before
    peer.sendall(b"data")
    await protocol.received(4)


async def test_no_write_during_sendfile(loop, link):
    transport, _, peer = await link(Recorder)
    data = pattern(8 << 20)
    with tempfile.TemporaryFile() as file:
        file.write(data)
        file.flush()
        task = loop.create_task(loop.sendfile(transport, file))
        await asyncio.sleep(0.005)
        assert not task.done()
        with pytest.raises(RuntimeError, match="sendfile is in progress"):
            transport.write(b"barge in")
        assert await in_thread(read_exactly, peer, len(data)) == data
        assert await within(task) == len(data)
    transport.write(b"now")
    transport.close()
    assert await in_thread(read_all, peer) == b"now"


async def test_sendfile_of_what_is_no_file(loop, link):
    transport, _, peer = await link(Recorder)
    with pytest.raises(asyncio.SendfileNotAvailableError):
        await loop.sendfile(transport, io.BytesIO(b"data"), fallback=False)
    assert await within(loop.sendfile(transport, io.BytesIO(b"012345"), 1)) == 5
    assert await in_thread(read_exactly, peer, 5) == b"12345"


async def test_sendfile_on_a_closing_transport(loop, link):
    transport, protocol, _ = await link(Recorder)
    transport.close()
    with tempfile.TemporaryFile() as file:
        with pytest.raises(RuntimeError, match="Transport is closing"):
            await loop.sendfile(transport, file)
    await protocol.lost()


async def test_the_peer_goes_during_sendfile(loop, link):
    transport, protocol, peer = await link(Recorder)
    with tempfile.TemporaryFile() as file:
        file.write(bytes(32 << 20))
        file.flush()
        task = loop.create_task(loop.sendfile(transport, file))
        await in_thread(read_exactly, peer, 1000)
        peer.close()
        with pytest.raises(OSError):
            await within(task)
        # its position says how much was sent
        assert file.tell() > 0
    with contextlib.suppress(AssertionError):
        await asyncio.wait_for(protocol.lost(), 0.2)
    transport.abort()


async def test_cancelled_sendfile(loop, link):
    transport, protocol, peer = await link(Recorder)
    with tempfile.TemporaryFile() as file:
        file.write(bytes(16 << 20))
        file.flush()
        task = loop.create_task(loop.sendfile(transport, file))
        await asyncio.sleep(0.005)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        transport.close()
        got = await in_thread(read_all, peer)
        assert 0 < len(got) < 16 << 20
        await protocol.lost()


# -- the end of a program -------------------------------------------------------
def test_run_waits_for_the_executor(new_loop):
    out = run_script(
        new_loop,
        """
        async def main():
            loop = asyncio.get_running_loop()
            loop.run_in_executor(None, lambda: (time.sleep(0.05), print('job')))

        with asyncio.Runner(loop_factory=new_loop) as runner:
            runner.run(main())
        print('end')
        """,
    )
    assert out == "job\nend\n"


async def test_threads_do_not_disturb_connections(loop, link):
    """Executors wake the loop while data come and go."""
    transport, protocol, peer = await link(Recorder)

    async def jobs():
        for number in range(100):
            assert await loop.run_in_executor(None, abs, -number) == number

    task = asyncio.create_task(jobs())
    for number in range(100):
        peer.sendall(b"%02d" % number)
        await turns()
    await protocol.received(200)
    await within(task)
    assert protocol.data == b"".join(b"%02d" % n for n in range(100))
    await until(lambda: task.done())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        transport.close()
        await protocol.lost()
