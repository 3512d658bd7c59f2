"""One server of one kind on one loop, as a process of its own:

    python -m benchmarks.servers KIND LOOP [--unix PATH] [--busy FILE] ...

Prints where it listens as JSON, serves until it is killed.  Kinds:

proto      echo, asyncio.Protocol          pieces   the answer in 16 writes
heavy      echo after some 2 us of Python  buffered echo, BufferedProtocol
streams    echo, StreamReader.read         exact    1 KiB frames, readexactly
lines      echo, readline                  sock     echo, loop.sock_recv/sendall
udp        echo, DatagramProtocol
http       a keep-alive HTTP server, header and body in two writes
uvicorn, uvicorn-h11, aiohttp              the servers that people use
sink-streams, sink-sock, sink-paused       read at leisure (see bench_idle)
"""

import argparse
import asyncio
import json
import mmap
import os
import resource
import socket
import struct
import threading
from collections.abc import Awaitable, Callable
from typing import Any

from benchmarks import loops, procs

BODY = b"Hello, world!"
READ_SIZE = 256 * 1024
BACKLOG = 1024


# -- protocols -----------------------------------------------------------------


class Echo(asyncio.Protocol):
    def connection_made(self, transport):
        self.transport = transport

    def data_received(self, data):
        self.transport.write(data)


class Pieces(Echo):
    """Answers in 16 writes, as servers do that write a header and a body, or
    one frame at a time."""

    def data_received(self, data):
        step = max(1, len(data) // 16)
        write = self.transport.write
        for start in range(0, len(data), step):
            write(data[start : start + step])


class Heavy(Echo):
    """Some Python for each message, as a parser takes."""

    def data_received(self, data):
        n = 0
        for _ in range(60):
            n += 1
        self.transport.write(data)


class Buffered(asyncio.BufferedProtocol):
    def __init__(self):
        self.buffer = memoryview(bytearray(READ_SIZE))

    def connection_made(self, transport):
        self.transport = transport

    def get_buffer(self, sizehint):
        return self.buffer

    def buffer_updated(self, nbytes):
        self.transport.write(self.buffer[:nbytes])


class PlainHTTP(asyncio.Protocol):
    """Answers keep-alive GET requests without looking at them."""

    HEAD = (
        b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n"
        b"Content-Length: %d\r\n\r\n" % len(BODY)
    )

    def connection_made(self, transport):
        self.transport = transport
        self.pending = b""

    def data_received(self, data):
        *requests, self.pending = (self.pending + data).split(b"\r\n\r\n")
        for _ in requests:
            self.transport.write(self.HEAD)
            self.transport.write(BODY)


class Datagram(asyncio.DatagramProtocol):
    def connection_made(self, transport):
        self.transport = transport

    def datagram_received(self, data, addr):
        self.transport.sendto(data, addr)


PROTOCOLS = {
    "proto": Echo,
    "pieces": Pieces,
    "heavy": Heavy,
    "buffered": Buffered,
    "http": PlainHTTP,
}


# -- streams and sock_* --------------------------------------------------------

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def stream_handler(answer: Handler) -> Handler:
    """`answer` until the peer leaves, in whatever way."""

    async def handler(reader, writer):
        try:
            await answer(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    return handler


@stream_handler
async def stream_echo(reader, writer):
    while data := await reader.read(READ_SIZE):
        writer.write(data)
        await writer.drain()


@stream_handler
async def exact_echo(reader, writer):
    """Length-framed, as most binary protocols are: a head, then a body."""
    while True:
        head = await reader.readexactly(4)
        body = await reader.readexactly(1020)
        writer.write(head + body)
        await writer.drain()


@stream_handler
async def line_echo(reader, writer):
    while line := await reader.readline():
        writer.write(line)
        await writer.drain()


STREAMS = {"streams": stream_echo, "exact": exact_echo, "lines": line_echo}


async def sock_serve(loop: asyncio.AbstractEventLoop, listener: socket.socket) -> None:
    async def serve(conn):
        try:
            while data := await loop.sock_recv(conn, READ_SIZE):
                await loop.sock_sendall(conn, data)
        except OSError:
            pass
        finally:
            conn.close()

    tasks = set()
    while True:
        conn, _ = await loop.sock_accept(listener)
        conn.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        task = loop.create_task(serve(conn))
        tasks.add(task)
        task.add_done_callback(tasks.discard)


# -- servers that take their time ----------------------------------------------


class Sink:
    """Reads from one connection, 50 ms between two reads, and when the peer has
    ended prints what this cost the process since the connection was made."""

    def start(self) -> None:
        self.got = 0
        self.before = resource.getrusage(resource.RUSAGE_SELF)

    def report(self) -> None:
        after = resource.getrusage(resource.RUSAGE_SELF)
        before = self.before
        cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        answer = {
            "bytes": self.got,
            "cpu_ms": cpu * 1e3,
            "switches": after.ru_nvcsw - before.ru_nvcsw,
        }
        print(json.dumps(answer), flush=True)

    async def streams(self, reader, writer):
        self.start()
        while data := await reader.read(1 << 20):
            self.got += len(data)
            await asyncio.sleep(0.05)
        self.report()
        writer.close()

    async def sock(self, loop, listener):
        conn, _ = await loop.sock_accept(listener)
        self.start()
        while data := await loop.sock_recv(conn, 1 << 20):
            self.got += len(data)
            await asyncio.sleep(0.05)
        self.report()
        conn.close()

    def paused(self, loop: asyncio.AbstractEventLoop, secs: float) -> type:
        """The protocol of a connection that is not read from for `secs`."""
        sink = self

        class Paused(asyncio.Protocol):
            def connection_made(self, transport):
                sink.start()
                transport.pause_reading()
                loop.call_later(secs, transport.resume_reading)

            def data_received(self, data):
                sink.got += len(data)

            def connection_lost(self, exc):
                sink.report()

        return Paused


# -- a thread that does not give way -------------------------------------------


class Busy:
    """A Python thread in a tight loop, on a CPU of its own choice; how far it
    has come and its id stand in a file that others map too."""

    def __init__(self, path: str, cpus: frozenset[int] | None) -> None:
        with open(path, "r+b") as f:
            self._count = mmap.mmap(f.fileno(), 16)
        self._cpus = cpus

    def start(self) -> None:
        threading.Thread(target=self._spin, daemon=True).start()

    def _spin(self) -> None:
        if self._cpus:
            os.sched_setaffinity(0, self._cpus)
        struct.pack_into("q", self._count, 8, threading.get_native_id())
        pack, count, n = struct.pack_into, self._count, 0
        while True:
            for _ in range(1000):
                n += 1
            pack("q", count, 0, n)


# -- HTTP ----------------------------------------------------------------------


def listening_socket() -> socket.socket:
    # With the protocol named: asyncio leaves Nagle's algorithm on without.
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    sock.bind(("127.0.0.1", 0))
    sock.listen(BACKLOG)
    sock.setblocking(False)
    return sock


def tell(sock: socket.socket) -> None:
    print(json.dumps({"port": sock.getsockname()[1]}), flush=True)


async def asgi_app(scope, receive, send):
    if scope["type"] != "http":
        return
    headers = [(b"content-type", b"text/plain"), (b"content-length", b"13")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": BODY})


async def serve_uvicorn(http: str) -> None:
    import uvicorn

    config = uvicorn.Config(
        asgi_app, http=http, lifespan="off", log_level="error", access_log=False
    )
    server = uvicorn.Server(config)
    sock = listening_socket()
    serving = asyncio.ensure_future(server.serve(sockets=[sock]))
    while not server.started and not serving.done():
        await asyncio.sleep(0.01)
    tell(sock)
    await serving


async def serve_aiohttp() -> None:
    from aiohttp import web

    async def hello(request):
        return web.Response(body=BODY, content_type="text/plain")

    application = web.Application()
    application.router.add_get("/", hello)
    runner = web.AppRunner(application, access_log=None)
    await runner.setup()
    sock = listening_socket()
    await web.SockSite(runner, sock, backlog=BACKLOG).start()
    tell(sock)
    await asyncio.Event().wait()


# -- the process ---------------------------------------------------------------


async def serve_sink(mode: str, secs: float) -> None:
    loop = asyncio.get_running_loop()
    sink, sock = Sink(), listening_socket()
    if mode == "streams":
        await asyncio.start_server(sink.streams, sock=sock, limit=1 << 24)
    elif mode == "paused":
        await loop.create_server(sink.paused(loop, secs), sock=sock)
    tell(sock)
    if mode == "sock":
        await sink.sock(loop, sock)
    await asyncio.Event().wait()


async def serve(args: argparse.Namespace) -> None:
    loop = asyncio.get_running_loop()
    kind = args.kind
    if kind.startswith("uvicorn"):
        return await serve_uvicorn("h11" if kind.endswith("h11") else "httptools")
    if kind == "aiohttp":
        return await serve_aiohttp()
    if kind.startswith("sink-"):
        return await serve_sink(kind.removeprefix("sink-"), args.secs)
    if kind == "udp":
        transport, _ = await loop.create_datagram_endpoint(
            Datagram, local_addr=("127.0.0.1", 0)
        )
        tell(transport.get_extra_info("socket"))
        await asyncio.Event().wait()
    if kind == "sock":
        sock = listening_socket()
        tell(sock)
        return await sock_serve(loop, sock)
    where: dict[str, Any] = {"backlog": BACKLOG}
    if args.unix and kind in STREAMS:
        server = await asyncio.start_unix_server(STREAMS[kind], args.unix, **where)
    elif args.unix:
        server = await loop.create_unix_server(PROTOCOLS[kind], args.unix, **where)
    elif kind in STREAMS:
        server = await asyncio.start_server(STREAMS[kind], "127.0.0.1", 0, **where)
    else:
        server = await loop.create_server(PROTOCOLS[kind], "127.0.0.1", 0, **where)
    if args.busy:
        Busy(args.busy, frozenset(map(int, filter(None, args.busy_cpus)))).start()
    if args.unix:
        print(json.dumps({"unix": args.unix}), flush=True)
    else:
        tell(server.sockets[0])
    await asyncio.Event().wait()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("kind")
    parser.add_argument("loop")
    parser.add_argument("--unix", help="listen on this path")
    parser.add_argument("--secs", type=float, default=3.0, help="of sink-paused")
    parser.add_argument("--busy", help="run a busy thread that counts in this file")
    parser.add_argument("--busy-cpus", default="", type=lambda s: s.split(","))
    parser.add_argument("--traceable", action="store_true")
    args = parser.parse_args()
    procs.child_setup(args.traceable)
    loop = loops.factory(args.loop)()
    asyncio.set_event_loop(loop)
    loop.run_until_complete(serve(args))


if __name__ == "__main__":
    main()
