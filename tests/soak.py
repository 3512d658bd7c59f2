"""Mixed load on four shards, for as long as one likes, every byte checked.

    python tests/soak.py [--minutes 30] [--seed 0] [--shards 4]

Echo over TCP, Unix sockets and TLS, BufferedProtocol, datagrams, one-shot
connections, subprocesses, operations that are cancelled, peers that reset and
peers that read slowly, blocking clients in threads and call_soon_threadsafe:
all at a time, on one loop.  The time is cut into legs of a minute or less,
each with a loop of its own: with its home shard going to and fro, then with
the loop's thread, then at a worker, then as the controller likes.

Fails (exit status 1) on a wrong byte, an exception, anything told to the
exception handler, a kind of load that does not get on for STALL seconds (its
stacks and stats() are printed), and growth: of descriptors or threads from
leg to leg, of memory beyond that of the first legs.
"""

import argparse
import asyncio
import contextlib
import ctypes
import faulthandler
import gc
import os
import random
import socket
import ssl
import sys
import threading
import time
import traceback
import warnings
from collections import Counter

import support

import pyfastnet

STALL = 30.0
LEG = 60.0
HOMES = ("flips", None, "worker", "auto")
# What allocators may keep beyond what they have kept after the first legs.
GROWTH_BYTES = 12 << 20
GROWTH = 1.1
DATA = support.pattern(1 << 20)


def piece(chance, limit):
    """A part of DATA of a random size: most are small."""
    size = int(limit ** chance.random())
    start = chance.randrange(len(DATA) - size)
    return DATA[start : start + size]


def check(got, expected):
    if got != expected:
        at = next(
            (i for i, (a, b) in enumerate(zip(got, expected, strict=False)) if a != b),
            min(len(got), len(expected)),
        )
        raise AssertionError(
            f"{len(got)} bytes for {len(expected)}, the first difference at {at}"
        )


# -- servers -------------------------------------------------------------------


class Echo(asyncio.Protocol):
    """Answers, and stops reading while its peer does not read."""

    alive = Counter()

    def connection_made(self, transport):
        self.transport = transport
        self.alive["connections"] += 1

    def data_received(self, data):
        self.transport.write(data)

    def pause_writing(self):
        self.transport.pause_reading()

    def resume_writing(self):
        self.transport.resume_reading()

    def connection_lost(self, exc):
        self.alive["connections"] -= 1
        if exc is not None and not isinstance(exc, (OSError, ssl.SSLError)):
            raise exc


class OneShot(Echo):
    def data_received(self, data):
        super().data_received(data)
        self.transport.close()


class Buffered(Echo, asyncio.BufferedProtocol):
    def __init__(self):
        self.buffer = bytearray(50_000)

    def get_buffer(self, sizehint):
        return self.buffer

    def buffer_updated(self, count):
        self.transport.write(self.buffer[:count])


class DatagramEcho(asyncio.DatagramProtocol):
    def connection_made(self, transport):
        self.transport = transport

    def datagram_received(self, data, address):
        self.transport.sendto(data, address)


class DatagramClient(asyncio.DatagramProtocol):
    def __init__(self):
        self.answers = asyncio.Queue()

    def datagram_received(self, data, address):
        self.answers.put_nowait(data)


def make_contexts():
    import trustme

    authority = trustme.CA()
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("localhost").configure_cert(server)
    client = ssl.create_default_context()
    authority.configure_trust(client)
    return server, client


# -- one leg ---------------------------------------------------------------------


class Leg:
    """All kinds of load on one loop.  Each `load_*` runs until `stopping`, and
    calls did() as it gets on."""

    def __init__(self, loop, seed, contexts):
        self.loop = loop
        self.seed = seed
        self.server_context, self.client_context = contexts
        self.counts = Counter()
        self.last = {}
        self.stopping = False
        self.tasks = []
        self.told = []
        loop.set_exception_handler(lambda _, context: self.told.append(context))

    def did(self, name, count=1):
        self.counts[name] += count
        self.last[name] = time.monotonic()

    async def serve(self, stack):
        create = self.loop.create_server
        self.path = stack.enter_context(support.socket_path())
        servers = {
            "echo": await create(Echo, "127.0.0.1", 0, backlog=500),
            "once": await create(OneShot, "127.0.0.1", 0, backlog=500),
            "buffered": await create(Buffered, "127.0.0.1", 0),
            "tls": await create(Echo, "127.0.0.1", 0, ssl=self.server_context),
            "unix": await self.loop.create_unix_server(Echo, self.path),
        }
        for server in servers.values():
            stack.callback(server.close)
        self.address = {
            name: server.sockets[0].getsockname() for name, server in servers.items()
        }
        transport, _ = await self.loop.create_datagram_endpoint(
            DatagramEcho, ("127.0.0.1", 0)
        )
        stack.callback(transport.close)
        self.address["datagrams"] = transport.get_extra_info("sockname")

    async def run(self, secs):
        async with contextlib.AsyncExitStack() as stack:
            await self.serve(stack)
            loads = [
                (name, number)
                for name in dir(self)
                if name.startswith("load_")
                for number in range(getattr(self, name).__func__.__dict__.get("n", 2))
            ]
            for name, number in loads:
                chance = random.Random(f"{self.seed} {name} {number}")
                self.last[name] = time.monotonic()
                self.tasks.append(
                    self.loop.create_task(getattr(self, name)(chance), name=name)
                )
            await asyncio.wait(
                self.tasks, timeout=secs, return_when=asyncio.FIRST_EXCEPTION
            )
            self.stopping = True
            await asyncio.gather(*self.tasks)
            await self.loop.shutdown_default_executor()
        while Echo.alive["connections"]:
            await asyncio.sleep(0.002)
        if self.told:
            raise AssertionError(f"the exception handler was called: {self.told}")

    @contextlib.asynccontextmanager
    async def streams(self, name, **options):
        if name == "unix":
            reader, writer = await asyncio.open_unix_connection(self.path)
        else:
            reader, writer = await asyncio.open_connection(
                *self.address[name], **options
            )
        try:
            yield reader, writer
        finally:
            writer.close()
            with contextlib.suppress(OSError, ssl.SSLError):
                await writer.wait_closed()

    async def talk(self, chance, name, kind, limit, **options):
        """Some messages on a connection, then another connection."""
        while not self.stopping:
            async with self.streams(name, **options) as (reader, writer):
                for _ in range(chance.randrange(1, 100)):
                    if self.stopping:
                        break
                    message = piece(chance, limit)
                    writer.write(message)
                    check(await reader.readexactly(len(message)), message)
                    self.did(kind)

    async def load_tcp(self, chance):
        await self.talk(chance, "echo", "load_tcp", 300_000)

    load_tcp.n = 4

    async def load_unix(self, chance):
        await self.talk(chance, "unix", "load_unix", 300_000)

    async def load_buffered(self, chance):
        await self.talk(chance, "buffered", "load_buffered", 300_000)

    async def load_tls(self, chance):
        await self.talk(
            chance,
            "tls",
            "load_tls",
            100_000,
            ssl=self.client_context,
            server_hostname="localhost",
        )

    async def load_slow_reader(self, chance):
        """More than the socket takes: both sides have to wait."""
        while not self.stopping:
            async with self.streams("echo", limit=1 << 12) as (reader, writer):

                async def send(writer=writer):
                    for start in range(0, len(DATA), 1 << 16):
                        writer.write(DATA[start : start + (1 << 16)])
                        await writer.drain()
                    writer.write_eof()

                sending = asyncio.ensure_future(send())
                got = bytearray()
                while data := await reader.read(chance.randrange(1, 1 << 16)):
                    got += data
                    if chance.random() < 0.05:
                        await asyncio.sleep(0.003)
                await sending
                check(got, DATA)
                self.did("load_slow_reader")

    async def load_datagrams(self, chance):
        transport, protocol = await self.loop.create_datagram_endpoint(
            DatagramClient, remote_addr=self.address["datagrams"]
        )
        while not self.stopping:
            message = piece(chance, 1400)
            transport.sendto(message)
            check(await protocol.answers.get(), message)
            self.did("load_datagrams")
        transport.close()

    async def load_one_shot(self, chance):
        while not self.stopping:
            message = piece(chance, 1000)
            async with self.streams("once") as (reader, writer):
                writer.write(message)
                check(await reader.read(), message)
            self.did("load_one_shot")

    load_one_shot.n = 4

    async def load_processes(self, chance):
        while not self.stopping:
            message = piece(chance, 100_000)
            process = await asyncio.create_subprocess_exec("cat", stdin=-1, stdout=-1)
            check((await process.communicate(message))[0], message)
            if process.returncode != 0:
                raise AssertionError(f"cat: {process.returncode}")
            self.did("load_processes")
            await asyncio.sleep(chance.random() * 0.05)

    load_processes.n = 1

    async def load_cancelled_reads(self, chance):
        """Reads that are given up take nothing with them."""
        while not self.stopping:
            async with self.streams("echo") as (reader, writer):
                for _ in range(20):
                    message = piece(chance, 3000)
                    try:
                        async with asyncio.timeout(chance.random() * 0.002):
                            await reader.readexactly(1)
                    except TimeoutError:
                        pass
                    else:
                        raise AssertionError("a byte that nobody has sent")
                    writer.write(message)
                    check(await reader.readexactly(len(message)), message)
                self.did("load_cancelled_reads")

    async def load_cancelled_connections(self, chance):
        """Cancelled at some point between connect() and the last byte."""

        async def use():
            async with self.streams("echo") as (reader, writer):
                writer.write(DATA[:10_000])
                check(await reader.readexactly(10_000), DATA[:10_000])

        while not self.stopping:
            task = asyncio.ensure_future(use())
            await asyncio.sleep(chance.random() * 0.002)
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
            self.did("load_cancelled_connections")

    async def load_sock_calls(self, chance):
        """sock_*, some given up, on plain sockets."""
        while not self.stopping:
            with socket.socket() as sock:
                sock.setblocking(False)
                await self.loop.sock_connect(sock, self.address["echo"])
                for _ in range(20):
                    if chance.random() < 0.3:
                        try:
                            async with asyncio.timeout(chance.random() * 0.001):
                                await self.loop.sock_recv(sock, 1)
                        except TimeoutError:
                            pass
                        else:
                            raise AssertionError("a byte that nobody has sent")
                    message = piece(chance, 20_000)
                    await self.loop.sock_sendall(sock, message)
                    got = bytearray()
                    while len(got) < len(message):
                        got += await self.loop.sock_recv(sock, len(message))
                    check(got, message)
                self.did("load_sock_calls")

    async def load_resets(self, chance):
        """Peers that leave without reading, at any point."""
        while not self.stopping:
            await self.loop.run_in_executor(None, self.reset_some, chance)
            self.did("load_resets")

    def reset_some(self, chance):
        for _ in range(10):
            sock = support.dial(self.address[chance.choice(("echo", "tls", "once"))])
            sock.settimeout(0.01)
            with contextlib.suppress(OSError):
                if chance.random() < 0.7:
                    sock.sendall(piece(chance, 100_000))
                if chance.random() < 0.3:
                    sock.recv(1)
            support.reset(sock)

    load_resets.n = 1

    async def load_threads(self, chance):
        """Blocking clients, beside the loop."""
        while not self.stopping:
            await self.loop.run_in_executor(None, self.talk_blocking, chance)
            self.did("load_threads")

    def talk_blocking(self, chance):
        address = chance.choice((self.address["echo"], self.path))
        with support.dial(address) as sock:
            sock.settimeout(STALL)
            for _ in range(20):
                message = piece(chance, 60_000)
                sock.sendall(message)
                check(support.read_exactly(sock, len(message)), message)

    async def load_calls(self, chance):
        """call_soon_threadsafe() and timers, in their order."""
        while not self.stopping:
            seen, count = [], chance.randrange(1, 50)
            done = asyncio.Event()

            def call(seen=seen, count=count, done=done):
                for number in range(count):
                    self.loop.call_soon_threadsafe(seen.append, number)
                self.loop.call_soon_threadsafe(done.set)

            self.loop.run_in_executor(None, call)
            await done.wait()
            if seen != list(range(count)):
                raise AssertionError(f"calls came as {seen}")
            await asyncio.sleep(chance.random() * 0.01)
            self.did("load_calls")

    load_calls.n = 1


# -- the watchdog ------------------------------------------------------------------


class Watchdog:
    """Ends the process, with its stacks told, when a kind of load stands still,
    or when nothing of Python runs at all."""

    def __init__(self):
        self.leg = None
        self.until = None
        self.ended = threading.Event()
        self.most = Counter()
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def run(self):
        while not self.ended.wait(0.5):
            faulthandler.dump_traceback_later(2 * STALL, exit=True)
            for name, value in sample().items():
                self.most[name] = max(self.most[name], value)
            leg = self.leg
            if leg is None:
                continue
            now = time.monotonic()
            if not leg.stopping:
                late = [name for name, at in dict(leg.last).items() if now - at > STALL]
                if late:
                    self.bark(leg, f"no progress for {STALL:.0f} s: {', '.join(late)}")
            elif now > self.until + 2 * STALL:
                self.bark(leg, "the leg does not end")
        faulthandler.cancel_dump_traceback_later()

    def bark(self, leg, why):
        print(f"soak: {why}", file=sys.stderr)
        print(f"counts {dict(leg.counts)}\n{Echo.alive}", file=sys.stderr)
        print(f"stats {leg.loop.stats()}", file=sys.stderr)
        for task in leg.tasks:
            if not task.done():
                task.print_stack(file=sys.stderr)
        faulthandler.dump_traceback(all_threads=True)
        sys.stderr.flush()
        os._exit(1)


def sample():
    with open("/proc/self/statm") as file:
        rss = int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE")
    return {
        "rss": rss,
        "descriptors": len(os.listdir("/proc/self/fd")),
        "threads": len(os.listdir("/proc/self/task")),
    }


def settled():
    """What is there when all is closed, collected and given back."""
    libc = ctypes.CDLL(None)
    for _ in range(50):
        gc.collect()
        libc.malloc_trim(0)
        now = sample()
        if now["threads"] <= 2:  # and the watchdog
            break
        time.sleep(0.02)
    return now


# -- legs --------------------------------------------------------------------------


def run_leg(number, secs, args, contexts, watchdog):
    home = HOMES[number % len(HOMES)]
    shards = args.shards
    os.environ.pop("PYFASTNET_HOME", None)
    os.environ.pop("PYFASTNET_SHARDS", None)
    if home == "auto":
        shards = None
        os.environ["PYFASTNET_SHARDS"] = "auto"
    elif home is not None:
        os.environ["PYFASTNET_HOME"] = home
    loop = pyfastnet.new_event_loop(shards=shards)
    leg = Leg(loop, f"{args.seed} {number}", contexts)
    watchdog.until = time.monotonic() + secs
    watchdog.leg = leg
    try:
        loop.run_until_complete(leg.run(secs))
        stats = loop.stats()
    finally:
        watchdog.leg = None
        if not loop.is_running():
            loop.close()
    return home or "loop", leg.counts, stats


def growth(before, now):
    """What has grown more than it may, as text."""
    faults = [
        f"{name}: {before[name]} -> {now[name]}"
        for name in ("descriptors", "threads")
        if now[name] > before[name]
    ]
    if now["rss"] > before["rss"] * GROWTH + GROWTH_BYTES:
        faults.append(f"memory: {before['rss'] >> 20} -> {now['rss'] >> 20} MiB")
    return ", ".join(faults)


def soak(args):
    secs = args.minutes * 60
    legs = max(len(HOMES), round(secs / LEG))
    contexts = make_contexts()
    watchdog = Watchdog()
    before, total = None, Counter()
    for number in range(legs):
        home, counts, stats = run_leg(number, secs / legs, args, contexts, watchdog)
        total += counts
        now = settled()
        print(
            f"leg {number + 1}/{legs}: home {home:6} flips {stats['flips']:8,}"
            f" operations {counts.total():9,}  {now['rss'] >> 20} MiB,"
            f" {now['descriptors']} descriptors, {now['threads']} threads",
            flush=True,
        )
        if min(counts[name] for name in dir(Leg) if name.startswith("load_")) == 0:
            raise AssertionError(f"some kind of load did not get on: {dict(counts)}")
        if before is None:
            before = now
        if fault := growth(before, now):
            raise AssertionError(f"growth: {fault}")
        if number < len(HOMES):
            # Each arrangement has its own first time.
            before = {**before, "rss": max(before["rss"], now["rss"])}
    watchdog.ended.set()
    watchdog.thread.join()
    most = watchdog.most
    for name in sorted(total):
        print(f"{name.removeprefix('load_'):24}{total[name]:12,}")
    print(
        f"at most {most['rss'] >> 20} MiB, {most['descriptors']} descriptors, "
        f"{most['threads']} threads\n1 passed: {args.minutes:g} minutes"
    )


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--seed", default="0")
    parser.add_argument("--shards", type=int, default=4)
    args = parser.parse_args()
    warnings.simplefilter("error")
    warnings.simplefilter("ignore", DeprecationWarning)
    faulthandler.enable()
    try:
        soak(args)
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)


if __name__ == "__main__":
    main()
