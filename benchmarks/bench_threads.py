"""A loop in each of N threads against one loop in one: what N threads gain.

    pytest benchmarks/bench_threads.py [--loops asyncio,pyfastnet]
    python -m benchmarks.bench_threads [-w threads-echo] [-l asyncio,pyfastnet] [-r 5]

N is the number of CPUs that may be used, 8 at most.  With a GIL the loops take
turns; run it with a free-threaded Python (`python3.13t -m ...`) for what it is
made for.  One process measures both, one thread and then N, for the same time.
On a machine that is shared the CPU time of an operation tells more than rates:
if it is no longer with N threads, they do not hinder each other.

threads-callbacks   chains of call_soon()
threads-tasks       tasks that await asyncio.sleep(0)
threads-echo        connections within the loop, a protocol at either end
threads-timers      call_later() and cancel()
"""

import asyncio
import json
import socket
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from benchmarks import harness, loops, procs

Loop = asyncio.AbstractEventLoop
CONNECTIONS = 10
MESSAGE = bytes(1024)


class Counter:
    """One for each thread: what it has done, and whether it is to go on."""

    def __init__(self) -> None:
        self.ops = 0
        self.stopped = False


async def callbacks(loop: Loop, counter: Counter) -> None:
    done = loop.create_future()

    def step() -> None:
        counter.ops += 1
        if not counter.stopped:
            loop.call_soon(step)
        elif not done.done():
            done.set_result(None)

    for _ in range(100):
        loop.call_soon(step)
    await done


async def tasks(loop: Loop, counter: Counter) -> None:
    async def spin() -> None:
        while not counter.stopped:
            await asyncio.sleep(0)
            counter.ops += 1

    await asyncio.gather(*(spin() for _ in range(100)))


async def timers(loop: Loop, counter: Counter) -> None:
    while not counter.stopped:
        for n in range(500):
            loop.call_later(30 + n % 7, print).cancel()
        counter.ops += 500
        await asyncio.sleep(0)


class Echo(asyncio.Protocol):
    transport: Any

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.transport.write(data)


class Bouncer(Echo):
    """Sends back what the other end has sent back, and counts."""

    def __init__(self, counter: Counter) -> None:
        self.counter = counter

    def data_received(self, data: bytes) -> None:
        self.counter.ops += 1
        if not self.counter.stopped:
            self.transport.write(data)


async def echo(loop: Loop, counter: Counter) -> None:
    made = []
    for _ in range(CONNECTIONS):
        near, far = socket.socketpair()
        near.setblocking(False)
        far.setblocking(False)
        made.append((await loop.create_connection(Echo, sock=far))[0])
        here, _ = await loop.create_connection(lambda: Bouncer(counter), sock=near)
        made.append(here)
        here.write(MESSAGE)
    while not counter.stopped:
        await asyncio.sleep(0.01)
    for transport in made:
        transport.close()
    await asyncio.sleep(0)


FUNCTIONS: dict[str, Callable[[Loop, Counter], Any]] = {
    "threads-callbacks": callbacks,
    "threads-tasks": tasks,
    "threads-echo": echo,
    "threads-timers": timers,
}


def measure(
    loop_name: str, name: str, threads: int, secs: float
) -> tuple[float, float]:
    """Operations per second of all threads together, and the CPU time of one
    in microseconds."""
    counters = [Counter() for _ in range(threads)]
    ready = threading.Barrier(threads + 1)
    failed: list[BaseException] = []

    def work(counter: Counter) -> None:
        loop = loops.factory(loop_name)()
        try:
            ready.wait(20)
            loop.run_until_complete(FUNCTIONS[name](loop, counter))
        except BaseException as exc:
            failed.append(exc)
        finally:
            loop.close()

    workers = [threading.Thread(target=work, args=(c,)) for c in counters]
    for worker in workers:
        worker.start()
    ready.wait(20)
    time.sleep(secs / 5)
    before = sum(c.ops for c in counters)
    began, cpu = time.perf_counter(), time.process_time()
    time.sleep(secs)
    ops = sum(c.ops for c in counters) - before
    took, cpu = time.perf_counter() - began, time.process_time() - cpu
    for counter in counters:
        counter.stopped = True
    for worker in workers:
        worker.join()
    if failed:
        raise failed[0]
    return ops / took, cpu / max(ops, 1) * 1e6


def run(loop_name: str, name: str, threads: int, secs: float) -> harness.Round:
    one, one_cpu = measure(loop_name, name, 1, secs)
    many, many_cpu = measure(loop_name, name, threads, secs)
    return {
        "rate": many,
        "one": one,
        "scaling": many / one,
        "cpu_us": many_cpu,
        "cpu_growth": many_cpu / one_cpu,
        "errors": 0,
    }


class ThreadsWorkload(harness.Workload):
    metrics = (
        harness.Metric("one", "1 thread, 1/s", 0, more=True),
        harness.Metric("rate", "N threads, 1/s", 0, more=True),
        harness.Metric("scaling", "N ÷ 1", 2, more=True, compare=False),
        harness.Metric("cpu_growth", "CPU N ÷ 1", 2, compare=False),
    )
    secs = 0.5

    def threads(self, options: harness.Options) -> int:
        return min(len(options.cpus.both), 8)

    def measure(self, loop: str, options: harness.Options) -> harness.Round:
        threads, secs = self.threads(options), self.window_secs(options)
        command = procs.python(
            "bench_threads", "--child", loop, self.name, str(threads), str(secs)
        )
        with procs.Child(command, options.cpus.both) as child:
            return child.answer(120)

    def benchmark(self, benchmark: Any, loop: str, options: harness.Options) -> None:
        rounds: list[harness.Round] = []
        benchmark.group = self.name
        threads, secs = self.threads(options), self.window_secs(options)
        with procs.pinned(options.cpus.both):
            benchmark.pedantic(
                lambda: rounds.append(run(loop, self.name, threads, secs)),
                rounds=options.rounds,
                iterations=1,
            )
        harness.note(benchmark, self, loop, rounds)


WORKLOADS = harness.registry(*(ThreadsWorkload(name, "threads") for name in FUNCTIONS))


def test_threads(benchmark, workload, loop_name, options):
    workload.benchmark(benchmark, loop_name, options)


def child(loop: str, name: str, threads: str, secs: str) -> None:
    procs.child_setup()
    print(json.dumps(run(loop, name, int(threads), float(secs))), flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        child(*sys.argv[2:])
    else:
        harness.cli(__doc__, WORKLOADS, "asyncio,pyfastnet")
