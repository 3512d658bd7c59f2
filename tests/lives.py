"""Forks, exits, finalization, loops in threads, loops closed in full flight:
each again and again, in processes that must end as they should.

    python tests/lives.py [--times 1000] [--seed 0] [NAME ...]
    python tests/lives.py --list

A life is a forked child that makes loops with workers, loads them, ends in
some way, and is then finalized by the interpreter.  It has failed when its
exit status is another than expected, when it prints anything to its standard
error, or when it takes longer than LIMIT: then its stacks are printed.
test_shards_life.py runs a few of each, `make soak-life` a thousand.
"""

import argparse
import asyncio
import contextlib
import faulthandler
import gc
import os
import random
import select
import signal
import socket
import sys
import tempfile
import threading
import time
import warnings

import pyfastnet

LIMIT = 30.0  # seconds for a life; most take some 20 ms
# shards, PYFASTNET_HOME
MODES = ((4, None), (2, None), (1, "worker"), (2, "flips"), (3, "worker"))
DATA = bytes(range(256)) * 64

kept = []  # what is still there when the interpreter is finalized


class Echo(asyncio.Protocol):
    def __init__(self, loop=None):
        self.loop = loop
        self.got = 0

    def connection_made(self, transport):
        self.transport = transport

    def data_received(self, data):
        self.got += len(data)
        self.transport.write(data)


def new_loop(chance):
    shards, home = chance.choice(MODES)
    os.environ.pop("PYFASTNET_HOME", None)
    if home is not None:
        os.environ["PYFASTNET_HOME"] = home
    return pyfastnet.new_event_loop(shards=shards)


async def connect(loop, factory=Echo, filled=True):
    """A connection, and its peer, which has sent as much as it could."""
    mine, peer = socket.socketpair()
    mine.setblocking(False)
    peer.setblocking(False)
    if filled:
        with contextlib.suppress(BlockingIOError):
            for _ in range(8):
                peer.send(DATA)
    _, protocol = await loop.create_connection(factory, sock=mine)
    return protocol, peer


async def full_flight(loop, count=5):
    """Connections with data on their way in both directions."""
    pairs = [await connect(loop) for _ in range(count)]
    kept.append((loop, pairs))
    while not any(protocol.got for protocol, _ in pairs):
        await asyncio.sleep(0)
    return pairs


async def use(loop, count=3):
    """Every byte there and back."""
    for _ in range(count):
        protocol, peer = await connect(loop, filled=False)
        peer.send(DATA)
        got = b""
        while len(got) < len(DATA):
            got += await loop.sock_recv(peer, 1 << 16)
        assert got == DATA, "not what was sent"
        protocol.transport.close()
        while await loop.sock_recv(peer, 10):
            pass
        peer.close()


def a_loop_works(chance):
    loop = new_loop(chance)
    loop.run_until_complete(asyncio.wait_for(use(loop), 15))
    loop.close()


def threads():
    return len(os.listdir("/proc/self/task"))


def threads_end(count, limit=5.0):
    """Joined threads stay in /proc for a moment."""
    end = time.monotonic() + limit
    while threads() > count and time.monotonic() < end:
        time.sleep(0.001)
    assert threads() <= count, f"{threads()} threads, not {count}"


def wait_for(pid, expected=0):
    _, status = os.waitpid(pid, 0)
    code = os.waitstatus_to_exitcode(status)
    assert code == expected, f"a forked child ended with {code}, not {expected}"


def quietly_exit(function, *args):
    """The end of a forked child that is not to be finalized."""
    code = 1
    try:
        faulthandler.cancel_dump_traceback_later()
        signal.alarm(int(LIMIT))
        function(*args)
        code = 0
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        os._exit(code)


# -- lives ---------------------------------------------------------------------


def fork(chance):
    """In a callback, with everything in flight; both go on."""
    loop = new_loop(chance)

    async def main():
        pairs = await full_flight(loop)
        for _ in range(3):
            pid = os.fork()
            if pid == 0:
                asyncio.events._set_running_loop(None)
                quietly_exit(child_of_fork, loop, chance)
            wait_for(pid)
            await asyncio.sleep(0)
        await use(loop)
        for protocol, peer in pairs:
            protocol.transport.abort()
            peer.close()
        await asyncio.sleep(0.001)

    loop.run_until_complete(main())
    loop.close()


def child_of_fork(loop, chance):
    try:
        loop.call_soon(print)
    except RuntimeError:
        pass
    else:
        raise AssertionError("the parent's loop can be used")
    a_loop_works(chance)
    if chance.random() < 0.5:
        with contextlib.suppress(RuntimeError):
            loop.close()
    kept.clear()
    del loop
    gc.collect()
    a_loop_works(chance)


def fork_elsewhere(chance):
    """By another thread than the loop's, at any point of its work."""
    loop = new_loop(chance)
    ended = threading.Event()

    def forks():
        for _ in range(4):
            time.sleep(chance.random() * 0.002)
            pid = os.fork()
            if pid == 0:
                quietly_exit(child_of_fork, loop, chance)
            wait_for(pid)
        ended.set()

    async def main():
        pairs = await full_flight(loop)
        thread = threading.Thread(target=forks)
        thread.start()
        while not ended.is_set():
            for _, peer in pairs:
                with contextlib.suppress(BlockingIOError):
                    while peer.recv(1 << 20):
                        peer.send(DATA)
            await asyncio.sleep(0)
        thread.join()
        await use(loop)

    loop.run_until_complete(asyncio.wait_for(main(), LIMIT / 2))
    loop.close()


def exit_open(chance):
    """The end of the program, with the loop open and stopped."""
    loop = new_loop(chance)
    loop.run_until_complete(full_flight(loop))


def exit_running(chance):
    """sys.exit() in a callback, and nobody closes anything."""
    loop = new_loop(chance)

    class Exiting(Echo):
        def data_received(self, data):
            sys.exit(7)

    async def main():
        await full_flight(loop)
        kept.append(await connect(loop, Exiting))
        await asyncio.sleep(LIMIT)

    task = loop.create_task(main())
    task._log_destroy_pending = False
    kept.append(task)
    loop.run_forever()


exit_running.status = 7


def exit_in_cycles(chance):
    """What is in flight is part of a cycle that finalization breaks up."""
    for _ in range(3):
        loop = new_loop(chance)
        pairs = loop.run_until_complete(full_flight(loop))
        for protocol, _ in pairs:
            protocol.loop, protocol.pairs = loop, pairs
    kept.clear()
    if chance.random() < 0.5:
        sys.modules[f"kept{id(loop)}"] = loop


def daemon_threads(chance):
    """Loops that run in daemon threads when the program ends."""

    def run():
        loop = new_loop(chance)
        try:
            loop.run_until_complete(forever(loop))
        finally:
            kept.append(loop)

    async def forever(loop):
        pairs = await full_flight(loop)
        started.release()
        while True:
            for _, peer in pairs:
                with contextlib.suppress(BlockingIOError):
                    while peer.recv(1 << 20):
                        peer.send(DATA)
            await asyncio.sleep(0)

    started = threading.Semaphore(0)
    for _ in range(2):
        threading.Thread(target=run, daemon=True).start()
    for _ in range(2):
        started.acquire()
    time.sleep(chance.random() * 0.003)


def loops_in_threads(chance):
    """Several at a time, each in a thread of its own, closed there."""
    failures = []
    before = threads()

    def run(seed):
        try:
            a_loop_works(random.Random(seed))
            loop = new_loop(random.Random(seed))
            loop.run_until_complete(full_flight(loop))
            loop.close()
        except BaseException as exc:
            failures.append(exc)
            raise

    running = [threading.Thread(target=run, args=(chance.random(),)) for _ in range(4)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    assert not failures
    threads_end(before)


def closed_in_flight(chance):
    """close() with live connections, data in both directions, and batches of
    the workers' that the loop has not looked at."""
    before, descriptors = threads(), len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        loop = new_loop(chance)
        pairs = loop.run_until_complete(full_flight(loop, 8))
        peers = [peer for _, peer in pairs]
        # The workers go on, and nobody takes what they bring.
        for peer in peers:
            with contextlib.suppress(BlockingIOError):
                while peer.recv(1 << 20):
                    peer.send(DATA)
        if chance.random() < 0.7:
            time.sleep(chance.random() * 0.003)
        loop.close()
        threads_end(before)
        kept.clear()
        del loop, pairs
        gc.collect()  # the sockets that were passed in are their owners' to close
        for peer in peers:
            assert select.select([peer], [], [], 5)[0]
            peer.setblocking(True)
            with contextlib.suppress(ConnectionError):
                while peer.recv(1 << 20):
                    pass
            peer.close()
    assert len(os.listdir("/proc/self/fd")) == descriptors


def never_closed(chance):
    """Dropped with everything in flight: the collector closes it."""
    before, descriptors = threads(), len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        loop = new_loop(chance)
        pairs = loop.run_until_complete(full_flight(loop))
        peers = [peer for _, peer in pairs]
        kept.clear()
        del loop, pairs
        gc.collect()
        for peer in peers:
            peer.close()
        threads_end(before)
    assert len(os.listdir("/proc/self/fd")) == descriptors


def interrupted(chance):
    """Ctrl-C, at any point, again and again; then the loop is closed."""
    # Also between a coroutine's making and its first step.
    warnings.filterwarnings("ignore", message=".* was never awaited")
    loop = new_loop(chance)
    signal.signal(signal.SIGINT, signal.default_int_handler)

    async def main():
        pairs = await full_flight(loop)
        while True:
            for _, peer in pairs:
                with contextlib.suppress(BlockingIOError):
                    while peer.recv(1 << 20):
                        peer.send(DATA)
            await asyncio.sleep(0)

    task = loop.create_task(main())
    for _ in range(3):
        try:
            signal.signal(signal.SIGALRM, signal.default_int_handler)
            after = 0.001 + chance.random() * 0.003
            signal.setitimer(signal.ITIMER_REAL, after)
            loop.run_until_complete(loop.create_future())
        except KeyboardInterrupt:
            pass
        signal.setitimer(signal.ITIMER_REAL, 0)
        if task.done():
            break
    signal.signal(signal.SIGALRM, signal.SIG_IGN)
    if task.done():
        assert isinstance(task.exception(), KeyboardInterrupt)
    else:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            loop.run_until_complete(task)
    loop.run_until_complete(use(loop))
    loop.close()


LIVES = {
    life.__name__: life
    for life in (
        fork,
        fork_elsewhere,
        exit_open,
        exit_running,
        exit_in_cycles,
        daemon_threads,
        loops_in_threads,
        closed_in_flight,
        never_closed,
        interrupted,
    )
}


# -- the parent ------------------------------------------------------------------


def watch(pid):
    """Waits for the child; None: it had to be killed, with its stacks told."""
    descriptor = os.pidfd_open(pid)
    try:
        in_time = select.select([descriptor], [], [], LIMIT)[0]
        if not in_time:
            # To whom it was given by faulthandler.enable().
            os.kill(pid, signal.SIGABRT)
        _, status = os.waitpid(pid, 0)
    finally:
        os.close(descriptor)
    return os.waitstatus_to_exitcode(status) if in_time else None


def begin(seed, errors):
    """In the child: its own standard error, its own chance."""
    os.dup2(errors.fileno(), 2)
    faulthandler.enable()
    warnings.simplefilter("ignore", ResourceWarning)
    warnings.simplefilter("ignore", DeprecationWarning)  # forks among threads
    return random.Random(seed)


def live(life, times, seed):
    """Runs the life again and again.  In a child, returns its chance: the
    caller lives and falls off the program's end.  In the parent, None."""
    expected = getattr(life, "status", 0)
    longest = 0.0
    for number in range(times):
        began = time.monotonic()
        with tempfile.TemporaryFile() as errors:
            sys.stdout.flush()
            pid = os.fork()
            if pid == 0:
                return begin(f"{seed}-{number}", errors)
            status = watch(pid)
            errors.seek(0)
            said = errors.read().decode(errors="replace")
        if status != expected or said:
            how = "hung" if status is None else f"ended with status {status}"
            print(f"{life.__name__}: life {number} of seed {seed} {how}:\n{said}")
            sys.exit(1)
        longest = max(longest, time.monotonic() - began)
    print(f"{life.__name__}: {times} times, the longest {longest:.2f} s", flush=True)
    return None


def main():
    """The life to be lived and its chance, in a child; else None."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--times", type=int, default=1000)
    parser.add_argument("--seed", default="0")
    parser.add_argument("--list", action="store_true")
    args = parser.parse_args()
    if args.list:
        print(*LIVES, sep="\n")
        return None
    for name in args.names or LIVES:
        chance = live(LIVES[name], args.times, args.seed)
        if chance is not None:
            return LIVES[name], chance
    return None


if __name__ == "__main__":
    todo = main()
    if todo is not None:
        todo[0](todo[1])
