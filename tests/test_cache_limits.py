"""The bound of a loop's caches, how it is given, and what the figures say."""

import asyncio
import gc
import socket
import sys
import threading
import time
import warnings

import pytest
from support import WORKERS, run_script

pytestmark = pytest.mark.not_on("asyncio", reason="about what only pyfastnet has")

BLOCK = 256 * 1024
SMALL = 16 * 1024  # for the kernel's buffers, so that the loop's fill
DEFAULT = 64 * 1024 * 1024
FIGURES = {
    "caches",
    "held_blocks",
    "held_bytes",
    "limit_bytes",
    "high_water_bytes",
    "hits",
    "misses",
    "transfers",
    "freed",
}


@pytest.fixture
def module(new_loop, monkeypatch):
    """pyfastnet, and no limit in the environment."""
    import pyfastnet

    monkeypatch.delenv("PYFASTNET_CACHE_LIMIT", raising=False)
    gc.collect()  # loops that other tests have left
    return pyfastnet


def limit_of(loop):
    try:
        return loop.stats()["cache"]["limit_bytes"]
    finally:
        loop.close()


# -- how the limit is given ---------------------------------------------------


@pytest.mark.parametrize("limit", [BLOCK, BLOCK + 1, 10**9, sys.maxsize])
def test_a_limit_at_construction(module, limit):
    assert limit_of(module.new_event_loop(cache_limit=limit)) == limit
    assert limit_of(module.EventLoop(cache_limit=limit)) == limit


def test_the_default_limit(module):
    assert limit_of(module.new_event_loop()) == DEFAULT
    assert limit_of(module.new_event_loop(cache_limit=None)) == DEFAULT


def test_anything_with_an_index_is_a_limit(module):
    class Limit:
        def __index__(self):
            return 1 << 20

    assert limit_of(module.new_event_loop(cache_limit=Limit())) == 1 << 20


@pytest.mark.parametrize("limit", [0, -1, 1, BLOCK - 1, sys.maxsize + 1, 1 << 200])
def test_a_limit_that_cannot_be(module, limit):
    with pytest.raises(ValueError, match=r"cache_limit must be from 262144 "):
        module.new_event_loop(cache_limit=limit)
    gc.collect()  # nothing is left to warn about


@pytest.mark.parametrize("limit", ["64m", 1e9, True, b"1", [BLOCK]])
def test_a_limit_that_is_no_number(module, limit):
    with pytest.raises(TypeError):
        module.new_event_loop(cache_limit=limit)
    gc.collect()


@pytest.mark.parametrize(
    "text, limit",
    [
        (str(BLOCK), BLOCK),
        ("256k", BLOCK),
        ("1K", None),
        ("3m", 3 << 20),
        (" 2G ", 2 << 30),
        ("7 m", 7 << 20),
        ("", DEFAULT),
        ("  ", DEFAULT),
    ],
)
def test_a_limit_in_the_environment(module, monkeypatch, text, limit):
    monkeypatch.setenv("PYFASTNET_CACHE_LIMIT", text)
    if limit is None:
        with pytest.warns(RuntimeWarning, match="from one block"):
            assert limit_of(module.new_event_loop()) == DEFAULT
    else:
        assert limit_of(module.new_event_loop()) == limit
    assert limit_of(module.new_event_loop(cache_limit=BLOCK)) == BLOCK


@pytest.mark.parametrize(
    "text",
    [
        "0",
        "-1",
        str(BLOCK - 1),
        "255k",
        "1t",
        "m",
        "64mb",
        "1e9",
        "0x100000",
        "1_000_000",
        "٣m",
        "9" * 20,
        "9" * 30,
        "99999999999999g",
        "12\x7f",
    ],
)
def test_nonsense_in_the_environment_is_warned_about(module, monkeypatch, text):
    monkeypatch.setenv("PYFASTNET_CACHE_LIMIT", text)
    with pytest.warns(RuntimeWarning, match="PYFASTNET_CACHE_LIMIT") as caught:
        loop = module.new_event_loop()
    assert len(caught) == 1
    assert limit_of(loop) == DEFAULT
    # What is said in the program wins, and the environment is not looked at.
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert limit_of(module.new_event_loop(cache_limit=BLOCK)) == BLOCK


def test_a_warning_that_is_an_error_leaves_nothing_behind(module, monkeypatch):
    monkeypatch.setenv("PYFASTNET_CACHE_LIMIT", "lots")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(RuntimeWarning):
            module.new_event_loop()
        gc.collect()


def test_the_limit_is_not_changed_below_what_is_held(module):
    from pyfastnet import _core

    loop = _core.Loop()
    with pytest.raises(OSError):
        loop._set_cache_limit(BLOCK - 1)
    for wrong in (-1, 1 << 100):
        with pytest.raises(OverflowError):
            loop._set_cache_limit(wrong)
    with pytest.raises(TypeError):
        loop._set_cache_limit("1")
    loop._set_cache_limit(BLOCK)
    assert loop.stats()["cache"]["limit_bytes"] == BLOCK
    loop._close()
    with pytest.raises(RuntimeError):
        loop._set_cache_limit(BLOCK)


# -- traffic against the limit ------------------------------------------------


class Echo(asyncio.Protocol):
    """In pieces, which are copied into blocks of the cache."""

    def __init__(self, leaving):
        self.left = asyncio.get_running_loop().create_future()
        leaving.append(self.left)

    def connection_made(self, transport):
        self.transport = transport

    def data_received(self, data):
        for start in range(0, len(data), 1000):
            self.transport.write(data[start : start + 1000])

    def connection_lost(self, exc):
        self.left.set_result(None)


class Collect(asyncio.Protocol):
    def __init__(self, expected):
        self.expected = expected
        self.done = asyncio.get_running_loop().create_future()
        self.count = 0

    def connection_made(self, transport):
        self.transport = transport

    def data_received(self, data):
        self.count += len(data)
        if self.count == self.expected and not self.done.done():
            self.done.set_result(None)


async def flood(loop, peers, size):
    """Sends size bytes from each of the peers through an echo server that is
    made to keep them."""
    leaving = []
    server = await loop.create_server(lambda: Echo(leaving), "127.0.0.1", 0)
    listener = server.sockets[0]
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SMALL)
    clients = []
    for _ in range(peers):
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL)
        sock.setblocking(False)
        await loop.sock_connect(sock, listener.getsockname())
        transport, client = await loop.create_connection(
            lambda: Collect(size), sock=sock
        )
        transport.pause_reading()
        clients.append(client)
    for client in clients:
        client.transport.write(bytes(size))
    await asyncio.sleep(0.2)
    for client in clients:
        sock = client.transport.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
        client.transport.resume_reading()
    await asyncio.wait_for(asyncio.gather(*(c.done for c in clients)), 30)
    for client in clients:
        client.transport.close()
    await asyncio.wait_for(asyncio.gather(*leaving), 20)
    server.close()
    await server.wait_closed()


@pytest.mark.parametrize("limit", [BLOCK, 3 * BLOCK, None])
def test_what_is_held_stays_within_the_limit(module, limit):
    loop = module.new_event_loop(cache_limit=limit)
    bound = limit or DEFAULT
    seen = []

    async def main():
        task = asyncio.ensure_future(flood(loop, 8, 1 << 20))
        while not task.done():
            seen.append(loop.stats()["cache"]["held_bytes"])
            await asyncio.sleep(0.005)
        await task

    try:
        loop.run_until_complete(main())
        cache = loop.stats()["cache"]
    finally:
        loop.close()
    assert max(seen) <= bound
    assert cache["held_bytes"] <= cache["high_water_bytes"] <= bound
    assert cache["misses"] > 0
    if limit == BLOCK:
        assert cache["freed"] > 0
    if limit is None:
        assert cache["high_water_bytes"] > 4 * BLOCK


@pytest.mark.parametrize("quiet", ["idle", "little to do"])
def test_memory_is_given_back_after_a_burst(module, quiet):
    """Also by a loop that is not idle, but has little to do."""
    loop = module.new_event_loop()

    async def wait_for_the_return():
        end = time.monotonic() + 10
        while loop.stats()["cache"]["held_bytes"] > 1 << 20:
            assert time.monotonic() < end
            await asyncio.sleep(0.5 if quiet == "idle" else 0.02)

    async def main():
        await flood(loop, 8, 2 << 20)
        high_water = loop.stats()["cache"]["high_water_bytes"]
        await wait_for_the_return()
        return high_water

    try:
        high_water = loop.run_until_complete(main())
        assert high_water > 4 << 20
        assert loop.stats()["cache"]["freed"] > 0
    finally:
        loop.close()


# -- the figures --------------------------------------------------------------


def test_figures_of_a_loop(module):
    loop = module.new_event_loop()
    for _ in range(2):
        loop.run_until_complete(flood(loop, 4, 500_000))
    stats = loop.stats()
    cache = stats["cache"]
    loop.close()
    assert set(cache) == FIGURES
    assert all(type(value) is int and value >= 0 for value in cache.values())
    assert cache["caches"] >= 1
    assert cache["hits"] > 0 and cache["misses"] > 0
    # Each block that was allocated is held, was freed, or is in use: two by a
    # batch at most, of which there are the loop's own and four of each worker.
    in_use = cache["misses"] - cache["freed"] - cache["held_blocks"]
    assert 0 <= in_use <= 2 * (1 + 4 * len(stats["shards"]))
    with pytest.raises(RuntimeError):
        loop.stats()


def test_figures_of_the_process(module):
    before = module.stats()
    assert set(before) == {"loops", "cache", "stacks"}
    assert set(before["cache"]) == FIGURES
    loops = [module.new_event_loop(cache_limit=BLOCK << i) for i in range(3)]
    for loop in loops:
        loop.run_until_complete(flood(loop, 1, 50_000))
    now = module.stats()
    assert len(now["loops"]) == len(before["loops"]) + 3
    limits = [one["cache"]["limit_bytes"] for one in now["loops"]]
    assert {BLOCK, 2 * BLOCK, 4 * BLOCK} <= set(limits)
    for name in FIGURES:
        assert now["cache"][name] == sum(one["cache"][name] for one in now["loops"])
    loops[0].close()
    assert len(module.stats()["loops"]) == len(before["loops"]) + 2
    for loop in loops:
        loop.close()
    assert len(module.stats()["loops"]) == len(before["loops"])


def test_figures_of_stacks(module):
    """A loop that defers output has a thread, on a stack from the cache, which
    the next loop's gets after it."""

    def run():
        loop = module.new_event_loop()
        loop.run_until_complete(flood(loop, 2, 100_000))
        stacks = module.stats()["stacks"]
        loop.close()
        return stacks

    first, second = run(), run()
    after = module.stats()["stacks"]
    assert set(after) == {
        "running",
        "running_bytes",
        "held",
        "held_bytes",
        "limit_bytes",
        "high_water",
        "hits",
        "misses",
    }
    assert first["running"] >= 1 and first["running_bytes"] >= 128 * 1024
    assert first["high_water"] >= first["running"]
    assert after["held"] >= 1
    assert 0 < after["held_bytes"] <= after["limit_bytes"]
    assert second["hits"] > first["hits"]
    if not WORKERS:  # of which there may be more than are kept
        assert second["misses"] == first["misses"]


def test_figures_from_other_threads(module):
    """Asked for all the time, while loops come, work and go."""
    done = threading.Event()
    failures = []
    asked = 0

    def ask():
        nonlocal asked
        while not done.is_set():
            try:
                cache = module.stats()["cache"]
                assert cache["held_bytes"] <= cache["limit_bytes"]
                asked += 1
            except BaseException as exc:
                failures.append(exc)
                return

    thread = threading.Thread(target=ask)
    thread.start()
    try:
        for _ in range(20):
            loop = module.new_event_loop()
            loop.run_until_complete(flood_quickly(loop))
            loop.close()
    finally:
        done.set()
        thread.join()
    assert not failures
    assert asked > 0


async def flood_quickly(loop):
    leaving = []
    server = await loop.create_server(lambda: Echo(leaving), "127.0.0.1", 0)
    address = server.sockets[0].getsockname()
    transport, client = await loop.create_connection(lambda: Collect(50_000), *address)
    transport.write(bytes(50_000))
    await asyncio.wait_for(client.done, 20)
    transport.close()
    await asyncio.wait_for(asyncio.gather(*leaving), 20)
    server.close()
    await server.wait_closed()


def test_a_forked_child_has_caches_of_its_own(new_loop, module):
    """The parent's loop runs in another thread, which may hold any lock at the
    time of the fork; the child drops that loop and makes one."""
    run_script(
        new_loop,
        """
        import gc, threading, traceback, warnings
        warnings.simplefilter('ignore', DeprecationWarning)
        signal.alarm(40)

        class Echo(asyncio.Protocol):
            def connection_made(self, transport):
                self.transport = transport
            def data_received(self, data):
                for start in range(0, len(data), 500):
                    self.transport.write(data[start:start + 500])

        class Loop(Echo):
            def connection_made(self, transport):
                super().connection_made(transport)
                transport.write(bytes(200_000))

        stop = None
        async def main():
            global stop
            stop = asyncio.Event()
            loop = asyncio.get_running_loop()
            server = await loop.create_server(Echo, '127.0.0.1', 0)
            transport, _ = await loop.create_connection(
                Loop, *server.sockets[0].getsockname())
            await stop.wait()
            transport.close()
            server.close()

        async def short():
            loop = asyncio.get_running_loop()
            server = await loop.create_server(Echo, '127.0.0.1', 0)
            reader, writer = await asyncio.open_connection(
                *server.sockets[0].getsockname())
            writer.write(bytes(100_000))
            assert await reader.readexactly(100_000) == bytes(100_000)
            writer.close()
            server.close()

        parents = new_loop()
        thread = threading.Thread(target=parents.run_until_complete, args=(main(),))
        thread.start()
        while stop is None:
            time.sleep(0.01)
        for _ in range(10):
            time.sleep(0.01)
            pid = os.fork()
            if pid == 0:
                signal.alarm(20)
                code = 1
                try:
                    mine = new_loop()
                    mine.run_until_complete(short())
                    mine.close()
                    try:
                        parents.stats()
                    except RuntimeError:
                        code = 0
                except BaseException:
                    traceback.print_exc()
                finally:
                    os._exit(code)
            assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        parents.call_soon_threadsafe(stop.set)
        thread.join()
        """,
    )
