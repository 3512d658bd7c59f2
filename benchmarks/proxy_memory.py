"""Memory of a proxy: 100 connections, a million messages, then a burst.

    python -m benchmarks.proxy_memory [-l asyncio,uvloop,pyfastnet] [-r 5]
        [--conns 100] [--messages 1000000] [--size 1024] [--burst 4]

A process runs a proxy (two asyncio protocols for each connection, with flow
control) between the C client and the C echo server.  Resident MiB of the proxy:
when its connections are open (`open`), after the first tenth of the messages
(`warm`), the most and the last while the other nine tenths pass, one second
after the last message (`quiet`); the peak of a burst in which every client sends
BURST MiB before it reads any of it (`peak`, the proxy made to take them by high
water marks as large), and one second after all of it has come back (`after`),
with its ratio to `quiet`.  What passes through is `bytes` of Python.
"""

import argparse
import asyncio
import json
import os
import statistics
import sys
import threading
import time

from benchmarks import bench_memory, loops, procs, report

MIB = 1024 * 1024


# -- the proxy, a process of its own ---------------------------------------------


class Side(asyncio.Protocol):
    """One side of a connection through the proxy."""

    def __init__(self, proxy: "Proxy", other: "Side | None" = None) -> None:
        self.proxy = proxy
        self.other = other
        self.early: list[bytes] = []

    def connection_made(self, transport):
        self.transport = transport
        transport.set_write_buffer_limits(self.proxy.high)
        if self.other is None:
            task = asyncio.ensure_future(self.connect())
            self.proxy.tasks.add(task)
            task.add_done_callback(self.proxy.tasks.discard)

    async def connect(self):
        loop = asyncio.get_running_loop()
        _, other = await loop.create_connection(
            lambda: Side(self.proxy, self), "127.0.0.1", self.proxy.upstream
        )
        self.other = other
        for data in self.early:
            other.transport.write(data)
        self.early.clear()

    def data_received(self, data):
        if self.other is None:
            self.early.append(data)
        else:
            self.other.transport.write(data)

    def pause_writing(self):
        self.other.transport.pause_reading()

    def resume_writing(self):
        self.other.transport.resume_reading()

    def connection_lost(self, exc):
        if self.other is not None:
            self.other.transport.close()


class Proxy:
    def __init__(self, upstream: int, high: int) -> None:
        self.upstream = upstream
        self.high = high
        self.tasks: set[asyncio.Future[None]] = set()

    async def serve(self) -> None:
        loop = asyncio.get_running_loop()
        server = await loop.create_server(lambda: Side(self), "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        print(json.dumps({"port": port}), flush=True)
        await server.serve_forever()


def proxy_main(loop: str, upstream: int, high: int) -> None:
    procs.child_setup()
    with asyncio.Runner(loop_factory=loops.factory(loop)) as runner:
        runner.run(Proxy(upstream, high).serve())


# -- measuring -------------------------------------------------------------------


class Sampler(threading.Thread):
    """The resident bytes of a process, ten times a second."""

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self.pid = pid
        self.samples: list[int] = []
        self._stop_event = threading.Event()

    def run(self) -> None:
        while not self._stop_event.wait(0.1):
            self.samples.append(procs.memory(self.pid))

    def __exit__(self, *exc_info: object) -> None:
        self._stop_event.set()
        self.join()

    def __enter__(self) -> "Sampler":
        self.start()
        return self


def burst(proxy: procs.Child, count: int, size: int) -> float:
    """The peak while every connection sends `size` bytes and then reads."""
    with bench_memory.connections(proxy, count, 4096) as socks:
        time.sleep(0.5)
        with Sampler(proxy.pid) as sampler:
            bench_memory.send_all_first(socks, size)
            time.sleep(0.5)
            for sock in socks:
                sock.settimeout(60)
                bench_memory.receive(sock, size)
        return max(sampler.samples) / MIB


def measure(loop: str, args: argparse.Namespace) -> dict[str, float]:
    cpus = procs.Cpus.default()
    size = args.burst * MIB
    with procs.Server("proto", "limit", cpus.client) as upstream:
        argv = procs.python(
            "proxy_memory",
            "--proxy",
            loop,
            str(upstream.address["port"]),
            str(4 * size),
        )
        with procs.Child(argv, cpus.server) as proxy:
            proxy.address = proxy.answer()
            peer = f"--conns {args.conns} --size {args.size}"
            with procs.Client(proxy.address, peer, cpus.client) as client:
                time.sleep(0.5)
                figures = {"open": procs.memory(proxy.pid) / MIB}
                client.run(ops=args.messages // 10)
                figures["warm"] = procs.memory(proxy.pid) / MIB
                with Sampler(proxy.pid) as sampler:
                    result = client.run(ops=args.messages * 9 // 10, timeout=300)
                if result["errors"]:
                    raise procs.BenchmarkError(f"{result['errors']} errors")
                figures["most"] = max(sampler.samples) / MIB
                figures["last"] = sampler.samples[-1] / MIB
                time.sleep(1)
                figures["quiet"] = procs.memory(proxy.pid) / MIB
                figures["peak"] = burst(proxy, args.conns, size)
                time.sleep(1)
                figures["after"] = procs.memory(proxy.pid) / MIB
    figures["after ÷ quiet"] = figures["after"] / figures["quiet"]
    return figures


def main() -> None:
    if sys.argv[1:2] == ["--proxy"]:
        proxy_main(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
        return
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("-l", "--loops", default="pyfastnet")
    parser.add_argument("-r", "--rounds", type=int, default=5)
    parser.add_argument("--conns", type=int, default=100)
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--size", type=int, default=1024)
    parser.add_argument("--burst", type=int, default=4, help="MiB per connection")
    args = parser.parse_args()
    chosen = loops.resolve(args.loops)
    rounds: dict[str, list[dict[str, float]]] = {loop: [] for loop in chosen}
    for _ in range(args.rounds):
        for loop in chosen:
            rounds[loop].append(measure(loop, args))
            last = rounds[loop][-1]
            print(
                f"{loop:12}",
                *(f"{name} {value:.2f}" for name, value in last.items()),
                file=sys.stderr,
                flush=True,
            )
    names = list(next(iter(rounds.values()))[0])
    rows = [
        [loop]
        + [
            f"{statistics.median(r[name] for r in found):.2f}"
            + (f" (≤ {max(r[name] for r in found):.2f})" if "÷" in name else "")
            for name in names
        ]
        for loop, found in rounds.items()
    ]
    print(report.markdown(["resident MiB", *names], rows))


if __name__ == "__main__":
    os.environ.setdefault("PYTHONUNBUFFERED", "1")
    main()
