"""Clients: create_connection clients of one process against the C server.

    pytest benchmarks/bench_clients.py [--loops asyncio,uvloop]
    python -m benchmarks.bench_clients [-w clients-10x16] [-l uvloop,pyfastnet] [-r 5]

After the ClientPool benchmark of Go's synapse: `clients-CxN` has C connections,
each of which sends N requests of 64 bytes, each with a write of its own, and
when all N answers are back the next N.  An operation is one request; the CPU
time is that of the process of the clients.
"""

import asyncio
import json
import os
import sys
import time
from typing import Any

from benchmarks import harness, loops, procs

REQUEST = b"r" * 63 + b"\n"


class Requester(asyncio.Protocol):
    def __init__(self, pool: "Pool") -> None:
        self.pool = pool
        self.pending = 0

    def connection_made(self, transport):
        self.transport = transport
        self.write = transport.write

    def data_received(self, data):
        self.pending -= len(data)
        if not self.pending:
            self.pool.turn_done(self)

    def connection_lost(self, exc):
        self.pool.lost(exc)

    def send(self, count: int) -> None:
        self.pending = count * len(REQUEST)
        write = self.write
        for _ in range(count):
            write(REQUEST)


class Pool:
    """`conns` connections that keep `per_turn` requests going on each."""

    def __init__(self, conns: int, per_turn: int) -> None:
        self.conns, self.per_turn = conns, per_turn
        self.requesters: list[Requester] = []
        self.finished: asyncio.Future[None] | None = None

    async def connect(self, port: int) -> None:
        loop = asyncio.get_running_loop()
        for _ in range(self.conns):
            _, requester = await loop.create_connection(
                lambda: Requester(self), "127.0.0.1", port
            )
            self.requesters.append(requester)

    async def run(self, ops: int = 0, secs: float = 0.0) -> int:
        """Requests until there were `ops`, or for `secs`; how many there were."""
        loop = asyncio.get_running_loop()
        self.done = self.started = 0
        self.limit = ops or 1 << 62
        self.finished = loop.create_future()
        if secs:
            loop.call_later(secs, self.stop)
        for requester in self.requesters:
            if self.started < self.limit:
                self.started += self.per_turn
                requester.send(self.per_turn)
        await self.finished
        return self.done

    def stop(self) -> None:
        self.limit = self.started

    def turn_done(self, requester: Requester) -> None:
        self.done += self.per_turn
        if self.started < self.limit:
            self.started += self.per_turn
            requester.send(self.per_turn)
        elif self.done == self.started and not self.finished.done():
            self.finished.set_result(None)

    def lost(self, exc: Exception | None) -> None:
        if self.finished is not None and not self.finished.done():
            self.finished.set_exception(exc or ConnectionError("the server left"))

    async def close(self) -> None:
        for requester in self.requesters:
            requester.transport.abort()
        await asyncio.sleep(0.01)


class ClientsWorkload(harness.Workload):
    metrics = (harness.RATE, harness.CPU)

    def __init__(self, conns: int, per_turn: int, ops: int) -> None:
        super().__init__(f"clients-{conns}x{per_turn}", "clients")
        self.conns, self.per_turn, self.ops = conns, per_turn, ops

    def measure(self, loop: str, options: harness.Options) -> harness.Round:
        # The loop is what is measured, so it has the server's CPU.
        with procs.Server("echo", "limit", options.cpus.client) as server:
            command = procs.python(
                "bench_clients",
                loop,
                str(server.address["port"]),
                str(self.conns),
                str(self.per_turn),
                str(options.warmup),
                str(self.window_secs(options)),
            )
            with procs.Child(command, options.cpus.server) as child:
                return child.answer(60)

    def benchmark(self, benchmark: Any, loop: str, options: harness.Options) -> None:
        rounds: list[harness.Round] = []
        benchmark.group = self.name
        made = loops.factory(loop)()
        pool = Pool(self.conns, self.per_turn)
        try:
            with procs.Server("echo", "limit", options.cpus.client) as server:
                with procs.pinned(options.cpus.server):
                    made.run_until_complete(pool.connect(server.address["port"]))
                    made.run_until_complete(pool.run(ops=self.ops // 10))
                    benchmark.pedantic(
                        lambda: rounds.append(run(made, pool, ops=self.ops)),
                        rounds=options.rounds,
                        iterations=1,
                    )
                    made.run_until_complete(pool.close())
        finally:
            made.close()
        harness.note(benchmark, self, loop, rounds)


def run(loop: asyncio.AbstractEventLoop, pool: Pool, **how: float) -> harness.Round:
    before, began = procs.usage(os.getpid()), time.perf_counter()
    cpu = time.process_time()
    ops = loop.run_until_complete(pool.run(**how))
    took = time.perf_counter() - began
    cpu = time.process_time() - cpu
    return {
        "ops": ops,
        "secs": took,
        "rate": ops / took,
        "cpu_us": cpu / max(ops, 1) * 1e6,
        "waited": (procs.usage(os.getpid()) - before).waited / took,
        "errors": 0,
    }


WORKLOADS = harness.registry(
    ClientsWorkload(1, 1, 5_000),
    ClientsWorkload(10, 1, 20_000),
    ClientsWorkload(100, 1, 20_000),
    ClientsWorkload(1, 16, 20_000),
    ClientsWorkload(10, 16, 40_000),
    ClientsWorkload(100, 16, 40_000),
)


def test_clients(benchmark, workload, loop_name, options):
    workload.benchmark(benchmark, loop_name, options)


def child(loop_name: str, port: str, conns: str, per_turn: str, *secs: str) -> None:
    """One measurement: how long to warm up, then how long to measure."""
    procs.child_setup()
    loop = loops.factory(loop_name)()
    asyncio.set_event_loop(loop)
    pool = Pool(int(conns), int(per_turn))
    loop.run_until_complete(pool.connect(int(port)))
    run(loop, pool, secs=float(secs[0]))
    print(json.dumps(run(loop, pool, secs=float(secs[1]))), flush=True)


if __name__ == "__main__":
    if sys.argv[1:] and not sys.argv[1].startswith("-"):
        child(*sys.argv[1:])
    else:
        harness.cli(__doc__, WORKLOADS)
