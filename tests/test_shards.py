"""Worker shards: how many threads, which connections they have, and the
controller that lends them the home shard."""

import asyncio
import contextlib
import os
import sys
import threading
import time

import pytest
import support
from shards_support import (
    connections,
    load,
    read_by_shard,
    serving,
    settled_threads,
    threads,
)
from support import Echo, in_thread, read_exactly, until, within

import pyfastnet

pytestmark = pytest.mark.skipif(
    "pyfastnet" not in os.environ.get("PYFASTNET_TEST_LOOPS", "pyfastnet"),
    reason="about the workers of pyfastnet",
)


@pytest.fixture
def make_loop(monkeypatch):
    """Makes loops of pyfastnet, with `shards`, `home` and other variables."""
    loops = []

    def make(shards=None, home=None, **variables):
        for name in ("PYFASTNET_HOME", "PYFASTNET_SHARDS"):
            monkeypatch.delenv(name, raising=False)
        if home is not None:
            monkeypatch.setenv("PYFASTNET_HOME", home)
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        loops.append(pyfastnet.new_event_loop(shards=shards))
        return loops[-1]

    yield make
    for loop in loops:
        support.shut(loop)


# -- which threads there are, and what they have ------------------------------
@pytest.mark.parametrize("shards", [None, 1])
def test_one_shard_starts_no_thread(make_loop, monkeypatch, shards):
    """With few CPUs, or where one shard is asked for: the clients' threads
    are the only ones.  The prompter, which is no shard's, is off."""
    monkeypatch.setattr(pyfastnet._core, "usable_cpus", lambda: 3)
    loop = make_loop(shards=shards, PYFASTNET_DEFER="0")

    async def main():
        before = settled_threads()
        async with serving(loop, Echo) as address:
            assert await load(loop, address) <= before + 4
        async with connections(loop, 20) as made:
            for transport, _, peer in made:
                transport.write(b"x")
                assert await in_thread(peer.recv, 10) == b"x"
            await loop.shutdown_default_executor()
            # Fewer, when one of an earlier test's has ended meanwhile.
            assert settled_threads() <= before
            assert len(loop.stats()["shards"]) == 1

    loop.run_until_complete(main())


def test_the_default_with_this_many_cpus(make_loop):
    """Nothing but the number of usable CPUs decides."""
    loop = make_loop()
    limit, adaptive = pyfastnet.base.shard_limit(None)
    cpus = pyfastnet._core.usable_cpus()
    assert 1 <= cpus <= len(os.sched_getaffinity(0))
    assert (limit, adaptive) == ((1, False) if cpus < 4 else (min(cpus, 8), True))

    async def main():
        async with connections(loop, 10):
            # Adaptive or not: one shard, as long as nothing is saturated.
            assert len(loop.stats()["shards"]) == 1

    loop.run_until_complete(main())


def test_threads_are_started_when_connections_come(make_loop):
    loop = make_loop(shards=4, PYFASTNET_DEFER="0")

    async def main():
        before = settled_threads()
        seen = []
        async with contextlib.AsyncExitStack() as stack:
            for _ in range(6):
                await stack.enter_async_context(connections(loop, 1))
                seen.append((threads() - before, len(loop.stats()["shards"])))
        return seen

    before = settled_threads()
    assert loop.run_until_complete(main()) == [
        (0, 1),
        (1, 2),
        (2, 3),
        (3, 4),
        (3, 4),
        (3, 4),
    ]
    loop.close()
    assert settled_threads() <= before


def test_connections_are_spread_and_pinned(make_loop):
    loop = make_loop(shards=4)

    async def main():
        base = loop.stats()["shards"][0]["descriptors"]
        async with connections(loop, 12) as made:
            counts = [shard["descriptors"] for shard in loop.stats()["shards"]]
            assert counts == [base + 3, 3, 3, 3]
            for _ in range(3):
                for number, (_, protocol, peer) in enumerate(made):
                    before = read_by_shard(loop)
                    protocol.data.clear()
                    peer.sendall(b"x" * 100)
                    await protocol.received(100)
                    grown = [
                        b - a for a, b in zip(before, read_by_shard(loop), strict=True)
                    ]
                    assert grown == [100 * (i == number % 4) for i in range(4)]

    loop.run_until_complete(main())


def test_stats_of_shards(make_loop):
    loop = make_loop(shards=2)

    async def main():
        async with connections(loop, 2, Echo) as made:
            for _, _, peer in made:
                peer.sendall(b"x" * 1000)
                assert await in_thread(read_exactly, peer, 1000)
            stats = loop.stats()
            assert stats["home_away"] == 0 and stats["flips"] == 0
            assert [set(shard) for shard in stats["shards"]] == [
                {
                    "passes",
                    "polls",
                    "events",
                    "empty_returns",
                    "disarmed",
                    "reads",
                    "bytes_read",
                    "writes",
                    "sends",
                    "bytes_sent",
                    "prompted_flushes",
                    "accepts",
                    "descriptors",
                }
            ] * 2
            for shard in stats["shards"]:
                assert shard["bytes_read"] == shard["bytes_sent"] == 1000
                assert shard["writes"] == shard["sends"] == 1

    loop.run_until_complete(main())


def test_stats_from_other_threads(make_loop):
    loop = make_loop(shards=3, home="flips")
    failures = []
    done = threading.Event()

    def look():
        before = 0
        while not done.is_set():
            stats = loop.stats()
            sent = sum(shard["bytes_sent"] for shard in stats["shards"])
            if sent < before:
                failures.append((before, sent))
            before = sent
            time.sleep(0.0005)

    async def main():
        async with serving(loop, Echo) as address:
            thread = threading.Thread(target=look)
            thread.start()
            await load(loop, address, rounds=150)
            done.set()
            thread.join()

    loop.run_until_complete(main())
    assert not failures


def test_a_worker_keeps_home(make_loop):
    loop = make_loop(shards=1, home="worker")

    async def main():
        async with serving(loop, Echo) as address:
            await load(loop, address)
        stats = loop.stats()
        assert stats["home_away"] == 1 and stats["flips"] == 0
        assert stats["shards"][0]["passes"] > 100

    loop.run_until_complete(main())


def test_thousands_of_flips(make_loop):
    """The token of the home shard goes to and fro under load: no stall."""
    loop = make_loop(shards=2, home="flips")
    wanted = 5000

    async def main():
        # A chain of messages that each need the loop and both shards.
        async with serving(loop, Echo) as address:
            streams = [await asyncio.open_connection(*address) for _ in range(4)]

            async def talk(reader, writer):
                count = 0
                while loop.stats()["flips"] < wanted:
                    message = b"%d\n" % count * 3
                    writer.write(message)
                    assert await within(reader.readexactly(len(message))) == message
                    count += 1
                writer.close()
                return count

            counts = await asyncio.gather(*(talk(*pair) for pair in streams))
            assert min(counts) > 100
            await until(lambda: loop.stats()["shards"][0]["descriptors"] < 4)

    loop.run_until_complete(asyncio.wait_for(main(), 50))


def test_no_thread_to_be_had():
    """A limit on threads: the loop goes on with its home shard, and says so."""
    script = """
        import resource, warnings
        import pyfastnet
        if os.getuid() == 0:
            os.setuid(65534)
        # The process counts itself.
        resource.setrlimit(resource.RLIMIT_NPROC, (1, 1))
        try:
            threading.Thread(target=int).start()
        except RuntimeError:
            pass
        else:
            raise SystemExit('the limit has no effect')

        lost = []

        class Echo(asyncio.Protocol):
            def connection_made(self, transport):
                self.transport = transport
            def data_received(self, data):
                self.transport.write(data)
            def connection_lost(self, exc):
                lost.append(exc)

        async def main(loop):
            lost.clear()
            server = await loop.create_server(Echo, '127.0.0.1', 0)
            address = server.sockets[0].getsockname()
            for _ in range(10):
                reader, writer = await asyncio.open_connection(*address)
                writer.write(b'x' * 100_000)
                assert await reader.readexactly(100_000) == b'x' * 100_000
                writer.close()
                await writer.wait_closed()
            assert len(loop.stats()['shards']) == 1
            server.close()
            while len(lost) < 10:
                await asyncio.sleep(0.001)

        for home in (None, 'worker', 'flips'):
            os.environ.pop('PYFASTNET_HOME', None)
            if home:
                os.environ['PYFASTNET_HOME'] = home
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter('always')
                loop = pyfastnet.new_event_loop(shards=4)
                loop.run_until_complete(asyncio.wait_for(main(loop), 10))
                loop.close()
            told = [str(w.message) for w in caught]
            assert len(told) == 1, told
            assert caught[0].category is RuntimeWarning
            assert 'no thread' in told[0] and '1 of 4' in told[0], told
        print('done')
    """
    factory = support.LoopFactory("pyfastnet", False)
    assert support.run_script(factory, script).endswith("done\n")


# -- the default: as it pays --------------------------------------------------
class Heavy(Echo):
    """So much Python for each message that its clients have little to do, and
    leave a CPU idle."""

    def data_received(self, data):
        for _ in range(10_000):
            pass
        self.transport.write(data)


CLIENTS = """
import socket, sys
socks = []
for _ in range(20):
    socks.append(socket.create_connection(('127.0.0.1', int(sys.argv[1])), 10))
message = bytes(range(256)) * 4
for sock in socks:
    sock.sendall(message)
print('ready', flush=True)
while True:
    for sock in socks:
        data = b''
        while len(data) < len(message):
            data += sock.recv(2048)
        assert data == message
        sock.sendall(message)
"""


def run_delay():
    """Seconds that this thread was runnable and had no CPU."""
    with open("/proc/thread-self/schedstat") as file:
        return int(file.read().split()[1]) / 1e9


def idle_time():
    """Seconds that the CPUs of this process were idle, all together."""
    cpus = {f"cpu{n}" for n in os.sched_getaffinity(0)}
    with open("/proc/stat") as file:
        rows = [line.split() for line in file]
    ticks = sum(int(row[4]) + int(row[5]) for row in rows if row[0] in cpus)
    return ticks / os.sysconf("SC_CLK_TCK")


@pytest.mark.skipif(
    pyfastnet._core.usable_cpus() < 2, reason="with one CPU nothing is ever lent"
)
def test_the_controller_engages_and_comes_back(make_loop):
    """A loop that is saturated with Python gives its home shard to a worker,
    and has it back once there is little to do."""
    loop = make_loop(PYFASTNET_SHARDS="auto")

    async def reach(condition, limit):
        end = time.monotonic() + limit
        while not condition(loop.stats()) and time.monotonic() < end:
            await asyncio.sleep(0.01)
        return condition(loop.stats())

    async def main():
        async with serving(loop, Heavy) as address:
            assert loop.stats()["home_away"] == 0
            clients = await asyncio.create_subprocess_exec(
                sys.executable, "-c", CLIENTS, str(address[1]), stdout=-1
            )
            assert await within(clients.stdout.readline()) == b"ready\n"
            engaged, delay, idle = False, 0, 0
            for _ in range(6):
                began, before, rest = time.monotonic(), run_delay(), idle_time()
                engaged = await reach(lambda stats: stats["home_away"], 1)
                took = time.monotonic() - began
                delay = (run_delay() - before) / took
                idle = (idle_time() - rest) / took
                if engaged or delay > 0.2:
                    break
            clients.kill()
            await clients.wait()
            await until(lambda: loop.stats()["shards"][0]["descriptors"] <= 2)
        if not engaged and (delay > 0.04 or idle < 0.7):
            # It only tries where there are idle CPUs.
            pytest.skip(
                f"others had this thread's CPU {delay:.0%} of the time, and "
                f"{idle:.1f} CPUs were idle"
            )
        assert engaged
        assert await reach(lambda stats: not stats["home_away"], 5)
        assert loop.stats()["flips"] >= 1

    loop.run_until_complete(main())
