"""Several loops in several threads at once, and threads that reach into a loop
of another one: storms, cancelling, looking.  Without a GIL these run truly at
once; with one they are interleaved.

What runs in a thread reports through `Team`, which raises in the test what a
thread raised."""

import asyncio
import contextvars
import gc
import random
import subprocess
import sys
import threading
import time
import weakref

import pytest
from support import FREE_THREADED, Echo, pattern

LOOPS = 3
VAR = contextvars.ContextVar("VAR", default=None)


class Team:
    """Threads that start together."""

    def __init__(self):
        self.errors = []
        self.threads = []

    def add(self, function, *args):
        def work():
            try:
                self.gate.wait(10)
                function(*args)
            except BaseException as exc:
                self.errors.append(exc)

        self.threads.append(threading.Thread(target=work, daemon=True))

    def run(self, limit=25):
        self.gate = threading.Barrier(len(self.threads))
        for thread in self.threads:
            thread.start()
        for thread in self.threads:
            thread.join(limit)
            assert not thread.is_alive(), "a thread hangs"
        if self.errors:
            raise self.errors[0]


async def settle(condition):
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end, "never happened"
        await asyncio.sleep(0.001)


# -- a loop in each thread ----------------------------------------------------


async def echo_traffic(rounds):
    """Two clients and a server of this loop's."""
    loop = asyncio.get_running_loop()
    server = await loop.create_server(Echo, "127.0.0.1", 0)
    address = server.sockets[0].getsockname()

    async def client(number):
        reader, writer = await asyncio.open_connection(*address)
        for turn in range(rounds):
            data = pattern(1 + (turn * 977 + number) % 20_000)
            writer.write(data)
            await writer.drain()
            assert await reader.readexactly(len(data)) == data
        writer.close()
        await writer.wait_closed()

    await asyncio.wait_for(asyncio.gather(client(1), client(2)), 50)
    server.close()
    await server.wait_closed()


def test_echo_in_each_thread(new_loop):
    team = Team()
    for _ in range(LOOPS):
        loop = new_loop()
        team.add(loop.run_until_complete, echo_traffic(150))
    team.run()


def test_loops_come_and_go_in_each_thread(new_loop):
    def work():
        for _ in range(25):
            loop = new_loop()
            loop.run_until_complete(asyncio.sleep(0))
            loop.call_soon(print)
            loop.call_later(60, print)
            loop.run_until_complete(loop.run_in_executor(None, int))
            loop.run_until_complete(loop.shutdown_default_executor())
            loop.close()

    team = Team()
    for _ in range(LOOPS):
        team.add(work)
    team.run()


def test_callbacks_and_timers_in_each_thread(new_loop):
    def work(loop):
        count = [0]

        def step(left):
            count[0] += 1
            if left:
                loop.call_soon(step, left - 1)

        for n in range(200):
            loop.call_soon(step, 10)
            loop.call_later(n % 5 / 1000, step, 0)
            loop.call_later(60, step, 0).cancel()
        loop.run_until_complete(settle(lambda: count[0] == 200 * 12))
        loop.close()

    team = Team()
    for _ in range(LOOPS):
        team.add(work, new_loop())
    team.run()


def test_the_collector_runs_beside_the_loops(new_loop):
    over = threading.Event()

    def collect():
        while not over.is_set():
            gc.collect()
            time.sleep(0.002)

    def work(loop):
        try:
            loop.run_until_complete(echo_traffic(60))
        finally:
            over.set()

    team = Team()
    team.add(collect)
    for _ in range(2):
        team.add(work, new_loop())
    team.run()


# -- storms -------------------------------------------------------------------


def test_threadsafe_storms_across_loops(new_loop):
    """Each loop calls into every other one; what one has sent to another
    arrives in order, once."""
    calls = 400
    loops = [new_loop() for _ in range(LOOPS)]
    seen = [[[] for _ in range(LOOPS)] for _ in range(LOOPS)]

    async def storm(me):
        for call in range(calls):
            for other, loop in enumerate(loops):
                loop.call_soon_threadsafe(seen[other][me].append, call)
            if call % 50 == 0:
                await asyncio.sleep(0)
        await settle(lambda: all(len(got) == calls for got in seen[me]))

    team = Team()
    for me, loop in enumerate(loops):
        team.add(loop.run_until_complete, storm(me))
    team.run()
    assert seen == [[list(range(calls))] * LOOPS] * LOOPS


def test_a_storm_wakes_a_loop_that_sleeps(new_loop):
    """Callbacks come in one by one, so that the loop mostly sleeps."""
    loop = new_loop()
    rounds = 300

    async def main():
        for _ in range(rounds):
            await asyncio.wait_for(queue.get(), 10)

    queue = None

    async def make():
        nonlocal queue
        queue = asyncio.Queue()

    loop.run_until_complete(make())

    def feed():
        for n in range(rounds):
            loop.call_soon_threadsafe(queue.put_nowait, n)
            if n % 3 == 0:
                time.sleep(0.0005)

    team = Team()
    team.add(loop.run_until_complete, main())
    team.add(feed)
    team.run()


def test_a_storm_on_a_loop_that_is_closed(new_loop):
    """Every call is taken, or refused because the loop is closed."""
    for _ in range(10):
        loop = new_loop()
        refused = []

        def storm(loop=loop, refused=refused):
            end = time.monotonic() + 20
            while time.monotonic() < end:
                try:
                    loop.call_soon_threadsafe(int)
                except RuntimeError as exc:
                    refused.append(str(exc))
                    return

        def run(loop=loop):
            loop.run_until_complete(asyncio.sleep(0.002))
            loop.close()

        team = Team()
        team.add(run)
        team.add(storm)
        team.add(storm)
        team.run()
        assert refused == ["Event loop is closed"] * 2


def test_before_the_loop_runs(new_loop):
    """From several threads, and all is there in the order of each."""
    loop = new_loop()
    seen = [[] for _ in range(4)]

    def work(number):
        for call in range(300):
            loop.call_soon_threadsafe(seen[number].append, call)

    team = Team()
    for number in range(4):
        team.add(work, number)
    team.run()
    loop.run_until_complete(asyncio.sleep(0))
    assert seen == [list(range(300))] * 4


# -- handles ------------------------------------------------------------------


def test_handles_cancelled_by_other_threads(new_loop):
    """Each has run, or was cancelled, and its arguments are gone."""
    loop = new_loop()
    ran = set()
    handles, arguments = [], []

    class Argument:
        pass

    def callback(number, argument):
        assert isinstance(argument, Argument)
        ran.add(number)

    async def main():
        chance = random.Random(1)
        for number in range(1500):
            argument = Argument()
            arguments.append(weakref.ref(argument))
            if number % 2:
                handle = loop.call_soon(callback, number, argument)
            else:
                delay = chance.choice((0, 0.001, 0.005, 60))
                handle = loop.call_later(delay, callback, number, argument)
            del argument
            handles.append(handle)
            if number % 20 == 0:
                await asyncio.sleep(0)
        over.set()
        await asyncio.sleep(0.05)

    over = threading.Event()

    def cancel(seed):
        chance = random.Random(seed)
        while not over.is_set():
            count = len(handles)
            if count:
                handle = handles[chance.randrange(count)]
                handle.cancel()
                handle.cancelled()
                repr(handle)
                handle.get_context() if hasattr(handle, "get_context") else None
            time.sleep(0)

    team = Team()
    team.add(loop.run_until_complete, main())
    team.add(cancel, 2)
    team.add(cancel, 3)
    team.run()
    for handle in handles:
        handle.cancel()
    gc.collect()
    assert len(handles) == 1500
    assert {n for n, handle in enumerate(handles) if not handle.cancelled()} <= ran
    loop.run_until_complete(asyncio.sleep(0))
    handles.clear()
    gc.collect()
    assert not any(ref() for ref in arguments)


def test_handles_that_a_storm_keeps_and_cancels(new_loop):
    """The thread that has scheduled a callback cancels it while it may run."""
    loop = new_loop()
    ran = []
    cancelled = []
    left = [2]

    def storm(start):
        for n in range(start, start + 400):
            handle = loop.call_soon_threadsafe(ran.append, n)
            if n % 3 == 0:
                handle.cancel()
                cancelled.append(n)
        loop.call_soon_threadsafe(finish)

    def finish():
        left[0] -= 1

    team = Team()
    team.add(loop.run_until_complete, settle(lambda: not left[0]))
    team.add(storm, 0)
    team.add(storm, 1000)
    team.run()
    assert len(ran) == len(set(ran))
    expected = {*range(400), *range(1000, 1400)}
    assert expected - set(cancelled) <= set(ran) <= expected


def test_contexts_are_those_of_the_threads(new_loop):
    loop = new_loop()
    wrong = []
    left = [3]

    def callback(name, call):
        if VAR.get() != (name, call // 5):
            wrong.append((VAR.get(), name, call))
        VAR.set(None)

    def work(name):
        for call in range(300):
            if call % 5 == 0:
                VAR.set((name, call // 5))
            loop.call_soon_threadsafe(callback, name, call)
        loop.call_soon_threadsafe(finish)

    def finish():
        left[0] -= 1

    team = Team()
    team.add(loop.run_until_complete, settle(lambda: not left[0]))
    for name in "abc":
        team.add(work, name)
    team.run()
    assert not wrong


# -- looking, and laying hands on ---------------------------------------------


@pytest.mark.not_on("asyncio", reason="its repr() may find half a transport")
def test_looking_at_a_loop_that_runs(new_loop):
    loop = new_loop()
    transports = []
    over = threading.Event()

    class Kept(Echo):
        def connection_made(self, transport):
            super().connection_made(transport)
            transports.append(transport)

    async def main():
        try:
            server = await loop.create_server(Kept, "127.0.0.1", 0)
            address = server.sockets[0].getsockname()
            for _ in range(60):
                reader, writer = await asyncio.open_connection(*address)
                transports.append(writer.transport)
                writer.write(b"hello")
                assert await reader.readexactly(5) == b"hello"
                writer.close()
                await writer.wait_closed()
            server.close()
        finally:
            over.set()

    def look():
        while not over.is_set():
            assert not loop.is_closed()
            loop.is_running(), loop.get_debug(), loop.time(), repr(loop)
            loop.slow_callback_duration  # noqa: B018
            if hasattr(loop, "stats"):
                assert loop.stats()["shards"][0]["passes"] >= 0
            for transport in transports[-3:]:
                transport.is_closing(), transport.is_reading()
                transport.get_protocol(), repr(transport)
                for name in ("peername", "sockname", "socket", "nothing"):
                    transport.get_extra_info(name)
                sock = transport.get_extra_info("socket")
                if sock is not None:
                    sock.fileno()
            time.sleep(0.0002)

    team = Team()
    team.add(loop.run_until_complete, main())
    team.add(look)
    team.add(look)
    team.run()


@pytest.mark.not_on("asyncio", reason="it takes no notice of the thread")
def test_hands_on_a_loop_that_runs_elsewhere(new_loop):
    """A RuntimeError each time without a GIL; with one, when the loop is at
    its I/O."""
    loop = new_loop()
    started = threading.Event()
    over = threading.Event()
    found = []

    async def main():
        server = await loop.create_server(Echo, "127.0.0.1", 0)
        address = server.sockets[0].getsockname()
        _, writer = await asyncio.open_connection(*address)
        found.append(writer.transport)
        started.set()
        while not over.is_set():
            await asyncio.sleep(0.001)
        writer.close()
        server.close()

    def disturb():
        refused = taken = 0
        assert started.wait(20)
        (transport,) = found
        try:
            for _ in range(100):
                for touch in (
                    lambda: transport.write(b"x"),
                    lambda: transport.writelines([b"x"]),
                    transport.pause_reading,
                    transport.resume_reading,
                    lambda: transport.set_protocol(transport.get_protocol()),
                    lambda: loop.add_reader(0, print),
                    lambda: loop.remove_reader(0),
                ):
                    try:
                        touch()
                        taken += 1
                    except RuntimeError as exc:
                        assert "from another thread" in str(exc)
                        refused += 1
                    except OSError:  # add_reader() of a file, with a GIL
                        taken += 1
            if FREE_THREADED:
                assert not taken
            assert refused + taken == 700
            with pytest.raises(RuntimeError, match="running"):
                loop.close()
            with pytest.raises(RuntimeError, match="running"):
                loop.run_forever()
        finally:
            over.set()

    team = Team()
    team.add(loop.run_until_complete, main())
    team.add(disturb)
    team.run()


@pytest.mark.not_on("debug", reason="debug mode refuses them")
def test_timers_of_other_threads(new_loop):
    """Not what asyncio promises; but nothing is lost or broken."""
    loop = new_loop()
    fired = []
    left = [2]

    def work(start):
        for n in range(start, start + 200):
            handle = loop.call_later(n % 7 / 1000, fired.append, n)
            if n % 4 == 0:
                handle.cancel()
        loop.call_soon_threadsafe(finish)

    def finish():
        left[0] -= 1

    async def main():
        # It looks often, as these do not wake the loop.
        await settle(lambda: not left[0] and len(fired) >= 300)
        await asyncio.sleep(0.01)

    team = Team()
    team.add(loop.run_until_complete, main())
    team.add(work, 0)
    team.add(work, 200)
    team.run()
    assert sorted(fired) == [n for n in range(400) if n % 4]


@pytest.mark.skipif(not FREE_THREADED, reason="there is a GIL in any case")
def test_the_import_does_not_bring_the_gil_back():
    done = subprocess.run(
        [
            sys.executable,
            "-W",
            "error",
            "-c",
            "import sys, pyfastnet; sys.exit(sys._is_gil_enabled())",
        ],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")
