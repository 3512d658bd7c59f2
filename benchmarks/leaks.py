"""Does anything stay behind when connections have come and gone?

    python -m benchmarks.leaks [-l pyfastnet] [-n 100000] [-w KIND,...] [--json FILE]

Opens and closes N connections of every kind, each kind in a process of its own
that has done a tenth of it before the first look, and prints by how much the
resident memory, the open descriptors and the objects that the garbage collector
knows have grown.  Memory that leaks grows steadily, in the first half of the
connections as in the second; malloc's heap grows in steps.  So `steady` is twice
the growth in the half with less of it.  Ends with status 1 if anything leaks:
more than 10 steady bytes for each connection (512 KiB at least), a descriptor,
or 50 objects.
"""

import argparse
import asyncio
import contextlib
import gc
import json
import os
import socket
import ssl
import struct
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import Any

from benchmarks import harness, loops, procs

BATCH = 50
# Enough listeners that 100,000 connections a minute find a free pair of ports,
# those in TIME_WAIT not counted.
HOSTS = [f"127.0.0.{n}" for n in range(1, 9)]
HELLO = b"x" * 64
MIN_BYTES, BYTES_PER_CONN, MAX_OBJECTS = 512 * 1024, 10, 50
PATIENCE = 20.0


def batches(count: int) -> Iterator[int]:
    for start in range(0, count, BATCH):
        yield min(BATCH, count - start)


class Countdown:
    """Waits until something has happened so often."""

    def __init__(self) -> None:
        self._left = 0
        self._future: asyncio.Future[None] | None = None

    def expect(self, count: int) -> None:
        self._left = count
        self._future = asyncio.get_running_loop().create_future()

    def hit(self) -> None:
        self._left -= 1
        if self._left == 0 and self._future and not self._future.done():
            self._future.set_result(None)

    async def wait(self) -> None:
        await asyncio.wait_for(self._future, PATIENCE)


class Served(asyncio.Protocol):
    """The server's side of a connection."""

    def __init__(self, gone: Countdown) -> None:
        self.gone = gone

    def connection_made(self, transport):
        self.transport = transport

    def connection_lost(self, exc):
        self.gone.hit()


class Echo(Served):
    def data_received(self, data):
        self.transport.write(data)


class EchoBuffered(asyncio.BufferedProtocol):
    def __init__(self, gone: Countdown) -> None:
        self.gone = gone
        self.buffer = bytearray(1024)

    def connection_made(self, transport):
        self.transport = transport

    def get_buffer(self, sizehint):
        return self.buffer

    def buffer_updated(self, nbytes):
        self.transport.write(bytes(self.buffer[:nbytes]))

    def connection_lost(self, exc):
        self.gone.hit()


class Closes(Served):
    def data_received(self, data):
        self.transport.write(data)
        self.transport.close()


class Aborts(Served):
    def data_received(self, data):
        self.transport.write(data)
        self.transport.abort()


class HalfClosed(Served):
    """Answers only after the peer's end of file."""

    def eof_received(self):
        self.transport.write(HELLO)
        self.transport.write_eof()
        asyncio.get_running_loop().call_soon(self.transport.close)
        return True


class Asking(asyncio.Protocol):
    """The client's side: says hello, and ends as told when it is answered."""

    def __init__(self, gone: Countdown, end: str) -> None:
        self.gone, self.end = gone, end

    def connection_made(self, transport):
        self.transport = transport
        transport.write(HELLO)

    def data_received(self, data):
        if self.end != "wait":
            getattr(self.transport, self.end)()

    def connection_lost(self, exc):
        self.gone.hit()


@contextlib.asynccontextmanager
async def serving(factory: Callable[[], Any], **how: Any):
    """Addresses of a server, which is closed and waited for at the end."""
    loop = asyncio.get_running_loop()
    server = await loop.create_server(factory, HOSTS, 0, backlog=1024, **how)
    try:
        yield [sock.getsockname() for sock in server.sockets]
    finally:
        server.close()
        await server.wait_closed()


# -- kinds: the server's side --------------------------------------------------


def connect_raw(address: tuple[str, int], reset: bool) -> socket.socket:
    """A connection without the loop; the kernel completes it at once."""
    sock = socket.create_connection(address, timeout=5)
    if reset:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    return sock


def raw_peers(protocol: type, leave: str, reset: bool = False):
    """Peers that send, and then close before the server is served (`first`),
    end their side only (`half`), or close when the server has (`last`)."""

    async def kind(count: int) -> None:
        gone = Countdown()
        async with serving(lambda: protocol(gone)) as addresses:
            for number, size in enumerate(batches(count)):
                gone.expect(size)
                address = addresses[number % len(addresses)]
                peers = [connect_raw(address, reset) for _ in range(size)]
                for peer in peers:
                    peer.send(HELLO)
                    if leave == "first":
                        peer.close()
                    elif leave == "half":
                        peer.shutdown(socket.SHUT_WR)
                await gone.wait()
                for peer in peers:
                    peer.close()

    return kind


async def reset_at_once(count: int) -> None:
    """Peers that are gone before the server accepts them: it may see them or
    not, so there is nothing to count."""
    async with serving(lambda: Echo(Countdown())) as addresses:
        for number, size in enumerate(batches(count)):
            for _ in range(size):
                connect_raw(addresses[number % len(addresses)], reset=True).close()
            await asyncio.sleep(0.002)
        await asyncio.sleep(0.2)


async def paused(count: int) -> None:
    """Peers that leave while reading is paused."""

    class Paused(Served):
        def connection_made(self, transport):
            transport.pause_reading()
            asyncio.get_running_loop().call_later(0.005, transport.close)

    await raw_peers(Paused, "first")(count)


async def accepted(count: int) -> None:
    """connect_accepted_socket on socket pairs."""
    loop, gone = asyncio.get_running_loop(), Countdown()
    for size in batches(count):
        gone.expect(size)
        pairs = [socket.socketpair() for _ in range(size)]
        for ours, peer in pairs:
            await loop.connect_accepted_socket(lambda: Echo(gone), ours)
            peer.close()
        await gone.wait()


async def servers(count: int) -> None:
    """Listeners, one connection each."""
    loop = asyncio.get_running_loop()
    for _ in range(max(count // 20, 1)):
        gone = Countdown()
        gone.expect(2)
        server = await loop.create_server(lambda g=gone: Closes(g), "127.0.0.1", 0)
        address = server.sockets[0].getsockname()
        await loop.create_connection(lambda g=gone: Asking(g, "wait"), *address)
        await gone.wait()
        server.close()
        await server.wait_closed()


# -- kinds: the client's side --------------------------------------------------


def clients(protocol: type, end: str, **how: Any):
    """create_connection to a server on the same loop."""

    async def kind(count: int) -> None:
        loop, gone = asyncio.get_running_loop(), Countdown()
        server_how = {"ssl": how["server"]} if how else {}
        client_how = (
            {"ssl": how["client"], "server_hostname": "localhost"} if how else {}
        )
        async with serving(lambda: protocol(gone), **server_how) as addresses:
            for number, size in enumerate(batches(count)):
                gone.expect(2 * size)
                address = addresses[number % len(addresses)]
                await asyncio.gather(
                    *(
                        loop.create_connection(
                            lambda: Asking(gone, end), *address, **client_how
                        )
                        for _ in range(size)
                    )
                )
                await gone.wait()

    return kind


async def refused(count: int) -> None:
    loop = asyncio.get_running_loop()
    with socket.socket() as unheard:
        unheard.bind(("127.0.0.1", 0))
        address = unheard.getsockname()
        for size in batches(count):
            results = await asyncio.gather(
                *(
                    loop.create_connection(asyncio.Protocol, *address)
                    for _ in range(size)
                ),
                return_exceptions=True,
            )
            assert all(isinstance(r, ConnectionRefusedError) for r in results), results


async def connect_cancelled(count: int) -> None:
    """Cancelled before, while and after the connection is made."""
    loop = asyncio.get_running_loop()
    async with serving(lambda: Served(Countdown())) as addresses:
        for number, size in enumerate(batches(count)):
            address = addresses[number % len(addresses)]
            tasks = [
                loop.create_task(loop.create_connection(asyncio.Protocol, *address))
                for _ in range(size)
            ]
            for _ in range(number % 4):
                await asyncio.sleep(0)
            for task in tasks:
                task.cancel()
            results = await asyncio.gather(*tasks, return_exceptions=True)
            for result in results:
                if isinstance(result, tuple):
                    result[0].abort()
            await asyncio.sleep(0)
        await asyncio.sleep(0.2)


async def unix(count: int) -> None:
    loop, gone = asyncio.get_running_loop(), Countdown()
    with tempfile.TemporaryDirectory(prefix="bench-") as directory:
        path = os.path.join(directory, "s")
        server = await loop.create_unix_server(lambda: Echo(gone), path, backlog=1024)
        for size in batches(count):
            gone.expect(2 * size)
            for _ in range(size):
                await loop.create_unix_connection(lambda: Asking(gone, "close"), path)
            await gone.wait()
        server.close()
        await server.wait_closed()


async def streams(count: int) -> None:
    async def handler(reader, writer):
        writer.write(await reader.readexactly(len(HELLO)))
        await writer.drain()
        await reader.read()
        writer.close()
        await writer.wait_closed()

    async def ask(address):
        reader, writer = await asyncio.open_connection(*address)
        writer.write(HELLO)
        await writer.drain()
        assert await reader.readexactly(len(HELLO)) == HELLO
        writer.close()
        await writer.wait_closed()

    listeners = await asyncio.start_server(handler, HOSTS, 0, backlog=1024)
    addresses = [sock.getsockname() for sock in listeners.sockets]
    for number, size in enumerate(batches(count)):
        address = addresses[number % len(addresses)]
        await asyncio.gather(*(ask(address) for _ in range(size)))
    listeners.close()
    await listeners.wait_closed()


# -- kinds: sock_* and readers -------------------------------------------------


def listeners() -> list[socket.socket]:
    made = [socket.create_server((host, 0), backlog=1024) for host in HOSTS]
    for sock in made:
        sock.setblocking(False)
    return made


async def sock_calls(count: int) -> None:
    loop = asyncio.get_running_loop()

    async def serve(conn):
        with conn:
            await loop.sock_sendall(conn, await loop.sock_recv(conn, 1024))
            await loop.sock_recv(conn, 1024)

    async def accept(listener, size):
        conns = [(await loop.sock_accept(listener))[0] for _ in range(size)]
        await asyncio.gather(*map(serve, conns))

    async def ask(listener):
        with socket.socket() as conn:
            conn.setblocking(False)
            await loop.sock_connect(conn, listener.getsockname())
            await loop.sock_sendall(conn, HELLO)
            assert await loop.sock_recv(conn, 1024) == HELLO

    with contextlib.ExitStack() as stack:
        heard = [stack.enter_context(sock) for sock in listeners()]
        for number, size in enumerate(batches(count)):
            listener = heard[number % len(heard)]
            await asyncio.gather(
                accept(listener, size), *(ask(listener) for _ in range(size))
            )


async def sock_cancelled(count: int) -> None:
    """Receives that are cancelled, their sockets closed."""
    loop = asyncio.get_running_loop()
    for number, size in enumerate(batches(count)):
        pairs = [socket.socketpair() for _ in range(size)]
        for ours, _ in pairs:
            ours.setblocking(False)
        tasks = [loop.create_task(loop.sock_recv(ours, 1)) for ours, _ in pairs]
        for _ in range(number % 3):
            await asyncio.sleep(0)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for ours, peer in pairs:
            ours.close()
            peer.close()


async def readers(count: int) -> None:
    """add_reader and add_writer on sockets that come and go."""
    loop = asyncio.get_running_loop()
    for size in batches(count):
        done = Countdown()
        done.expect(size)
        pairs = [socket.socketpair() for _ in range(size)]
        for ours, peer in pairs:
            loop.add_reader(ours, lambda c=done, s=ours: s.recv(64) and c.hit())
            loop.add_writer(peer, lambda s=peer: (loop.remove_writer(s), s.send(b"x")))
        await done.wait()
        for ours, peer in pairs:
            loop.remove_reader(ours)
            ours.close()
            peer.close()


class PipeEnd(asyncio.Protocol):
    def __init__(self, gone: Countdown) -> None:
        self.gone = gone

    def connection_lost(self, exc):
        self.gone.hit()


async def pipes(count: int) -> None:
    """Pairs of pipe transports, closed at either end or aborted."""
    loop = asyncio.get_running_loop()
    for number, size in enumerate(batches(count)):
        gone = Countdown()
        gone.expect(2 * size)
        for _ in range(size):
            reader, writer = os.pipe()
            incoming, _ = await loop.connect_read_pipe(
                lambda gone=gone: PipeEnd(gone), open(reader, "rb", 0)
            )
            outgoing, _ = await loop.connect_write_pipe(
                lambda gone=gone: PipeEnd(gone), open(writer, "wb", 0)
            )
            outgoing.write(HELLO * (1 if number % 2 else 4096))
            (outgoing.close, outgoing.abort, incoming.close)[number % 3]()
        await gone.wait()


async def children(count: int) -> None:
    """A fiftieth of the others: a child costs a millisecond."""
    for size in batches(max(count // 50, 1)):

        async def child():
            process = await asyncio.create_subprocess_exec(
                "true", stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
            )
            await process.communicate()

        await asyncio.gather(*(child() for _ in range(size)))
    await asyncio.sleep(0.05)  # the last ends of pipes


async def children_cancelled(count: int) -> None:
    """The same, cancelled at any turn."""
    loop = asyncio.get_running_loop()
    for size in batches(max(count // 50, 1)):
        tasks = [
            loop.create_task(
                asyncio.create_subprocess_exec("true", stdin=asyncio.subprocess.PIPE)
            )
            for _ in range(size)
        ]
        for number in range(4):
            for task in tasks[number::4]:
                task.cancel()
            await asyncio.sleep(0)
        done = await asyncio.gather(*tasks, return_exceptions=True)
        for process in done:
            if isinstance(process, asyncio.subprocess.Process):
                await process.communicate()
    await asyncio.sleep(0.05)


async def tls(count: int) -> None:
    """A twentieth of the others: a handshake costs a millisecond."""
    import trustme

    authority = trustme.CA()
    certificate = authority.issue_cert("localhost")
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    certificate.configure_cert(server)
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    authority.configure_trust(client)
    await clients(Echo, "close", server=server, client=client)(max(count // 20, 1))


KINDS: dict[str, Callable[[int], Awaitable[None]]] = {
    "peer-closes": raw_peers(Served, "first"),
    "peer-resets": raw_peers(Served, "first", reset=True),
    "peer-resets-at-once": reset_at_once,
    "peer-half-closes": raw_peers(HalfClosed, "half"),
    "peer-closes-paused": paused,
    "server-closes": raw_peers(Closes, "last"),
    "server-aborts": raw_peers(Aborts, "last"),
    "accepted": accepted,
    "servers": servers,
    "client-closes": clients(Echo, "close"),
    "client-aborts": clients(Echo, "abort"),
    "client-is-left": clients(Closes, "wait"),
    "client-buffered": clients(EchoBuffered, "close"),
    "client-refused": refused,
    "client-cancelled": connect_cancelled,
    "unix": unix,
    "streams": streams,
    "sock": sock_calls,
    "sock-cancelled": sock_cancelled,
    "readers": readers,
    "pipes": pipes,
    "children": children,
    "children-cancelled": children_cancelled,
    "tls": tls,
}


# -- measuring -----------------------------------------------------------------


@dataclass(frozen=True)
class Holdings:
    rss: int
    fds: int
    objects: int


def holdings() -> Holdings:
    for _ in range(3):
        gc.collect()
    return Holdings(
        procs.memory(os.getpid()),
        len(os.listdir("/proc/self/fd")),
        len(gc.get_objects()),
    )


async def settle(kind: Callable[[int], Awaitable[None]], count: int) -> Holdings:
    await kind(count)
    await asyncio.sleep(0.2)
    return holdings()


def child(loop_name: str, kind_name: str, count: int) -> None:
    procs.child_setup()
    loop, kind = loops.factory(loop_name)(), KINDS[kind_name]
    asyncio.set_event_loop(loop)
    before = loop.run_until_complete(settle(kind, max(count // 10, 1000)))
    began = time.monotonic()
    halfway = loop.run_until_complete(settle(kind, count // 2))
    after = loop.run_until_complete(settle(kind, count // 2))
    answer = {
        "bytes": after.rss - before.rss,
        "steady": 2 * min(halfway.rss - before.rss, after.rss - halfway.rss),
        "fds": after.fds - before.fds,
        "objects": after.objects - before.objects,
        "secs": time.monotonic() - began,
    }
    print(json.dumps(answer), flush=True)


def leaked(figures: harness.Round, count: int) -> bool:
    return (
        figures["steady"] > max(MIN_BYTES, BYTES_PER_CONN * count)
        or figures["fds"] > 0
        or figures["objects"] > MAX_OBJECTS
    )


METRICS = (
    harness.Metric("bytes", "bytes", 0, compare=False),
    harness.Metric("steady", "steady", 0, compare=False),
    harness.Metric("fds", "descriptors", 0, compare=False),
    harness.Metric("objects", "objects", 0, compare=False),
    harness.Metric("secs", "took s", 1, compare=False),
)


class LeakWorkload(harness.Workload):
    metrics = METRICS

    def __init__(self, name: str, count: int) -> None:
        super().__init__(name, "leaks")
        self.count = count

    def measure(self, loop: str, options: harness.Options) -> harness.Round:
        command = procs.python("leaks", "--child", loop, self.name, str(self.count))
        with procs.Child(command) as process:
            figures = process.answer(60 + self.count / 100)
        figures["leaks"] = int(leaked(figures, self.count))
        return figures


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("-l", "--loops", default="pyfastnet")
    parser.add_argument("-n", "--count", type=int, default=100_000)
    parser.add_argument("-w", "--kinds", default=",".join(KINDS))
    parser.add_argument("--json", metavar="FILE")
    args = parser.parse_args()
    names = loops.resolve(args.loops)
    unknown = set(args.kinds.split(",")) - set(KINDS)
    if unknown:
        raise SystemExit(f"benchmarks: no kind named {', '.join(sorted(unknown))}")
    report, bad = [], False
    title = f"growth over {args.count:,}"
    print(f"{title:22}{'loop':14}" + "".join(f"{m.label:>13}" for m in METRICS))
    for kind in args.kinds.split(","):
        workload = LeakWorkload(kind, args.count)
        entry = harness.paired([workload], names, harness.Options(rounds=1))[0]
        report.append(entry)
        for name, (figures,) in entry["loops"].items():
            print(f"{kind:22}{name:14}{describe(figures)}", flush=True)
            bad = bad or bool(figures.get("leaks", True))
        if args.json:
            harness.save(args.json, report, names, sys.argv)
    return 1 if bad else 0


def describe(figures: harness.Round) -> str:
    if "failed" in figures:
        return f" failed: {figures['failed'][-300:]}"
    text = "".join(f"{m.text(figures[m.key]):>13}" for m in METRICS)
    return text + ("  LEAK" if figures["leaks"] else "")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        child(sys.argv[2], sys.argv[3], int(sys.argv[4]))
    else:
        sys.exit(main())
