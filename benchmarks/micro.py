"""What a loop costs without a network, one benchmark in a process of its own:

    python -m benchmarks.micro LOOP NAME [SCALE]

prints its figures as JSON; bench_callbacks and bench_timers compare them.

call_soon      a chain of callbacks, each scheduling the next, 100 abreast
burst          1,000 callbacks scheduled in one turn, again and again
task_switch    100 tasks, each `await asyncio.sleep(0)` in a loop
future_wake    two tasks waking each other through futures
threadsafe     call_soon_threadsafe from another thread, to the last one run
executor       run_in_executor(None, int), 16 in flight
timers         call_later and cancel, what timeouts do; none fires
timers_fire    call_later that fire, spread over 10 ms
timeouts       `async with asyncio.timeout()` around one turn of the loop
lateness       timers of 0.2 to 5 ms: how late they fire, and how many too early
"""

import asyncio
import json
import os
import statistics
import sys
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any

from benchmarks import harness, loops, procs

Loop = asyncio.AbstractEventLoop
Benchmark = Callable[[Loop, int], Coroutine[Any, Any, dict[str, float] | None]]


async def call_soon(loop: Loop, n: int) -> None:
    done, left = loop.create_future(), n

    def step():
        nonlocal left
        left -= 1
        if left > 0:
            loop.call_soon(step)
        elif not done.done():
            done.set_result(None)

    for _ in range(100):
        loop.call_soon(step)
    await done


async def burst(loop: Loop, n: int) -> None:
    def nothing(number, text):
        pass

    for _ in range(n // 1000):
        for _ in range(1000):
            loop.call_soon(nothing, 1, "x")
        await asyncio.sleep(0)


async def task_switch(loop: Loop, n: int) -> None:
    async def spin():
        for _ in range(n // 100):
            await asyncio.sleep(0)

    await asyncio.gather(*(spin() for _ in range(100)))


async def future_wake(loop: Loop, n: int) -> None:
    ping, pong = loop.create_future(), loop.create_future()

    async def one():
        nonlocal ping
        for _ in range(n // 2):
            await ping
            ping = loop.create_future()
            pong.set_result(None)

    async def other():
        nonlocal pong
        for _ in range(n // 2):
            ping.set_result(None)
            await pong
            pong = loop.create_future()

    await asyncio.gather(one(), other())


async def threadsafe(loop: Loop, n: int) -> None:
    done, seen = loop.create_future(), 0

    def hit():
        nonlocal seen
        seen += 1
        if seen == n:
            done.set_result(None)

    def other():
        for _ in range(n):
            loop.call_soon_threadsafe(hit)

    thread = threading.Thread(target=other)
    thread.start()
    await done
    thread.join()


async def executor(loop: Loop, n: int) -> None:
    async def worker():
        for _ in range(n // 16):
            await loop.run_in_executor(None, int)

    await asyncio.gather(*(worker() for _ in range(16)))


async def timers(loop: Loop, n: int) -> None:
    for i in range(n):
        loop.call_later(30 + i % 7, print).cancel()
        if i % 1000 == 0:
            await asyncio.sleep(0)


async def timers_fire(loop: Loop, n: int) -> None:
    done, left = loop.create_future(), n

    def fire():
        nonlocal left
        left -= 1
        if not left:
            done.set_result(None)

    for i in range(n):
        loop.call_later(i % 100 / 10_000, fire)
    await done


async def timeouts(loop: Loop, n: int) -> None:
    for _ in range(n):
        async with asyncio.timeout(30):
            await asyncio.sleep(0)


async def lateness(loop: Loop, n: int) -> dict[str, float]:
    # By the machine's clock: a loop's own may lag behind.
    late = []
    for i in range(n):
        done = loop.create_future()
        delay = (0.0002, 0.001, 0.0025, 0.005)[i % 4]
        began = time.monotonic()
        loop.call_later(delay, done.set_result, None)
        await done
        late.append(time.monotonic() - began - delay)
    late.sort()
    return {
        "late_p50_us": statistics.median(late) * 1e6,
        "late_p99_us": late[int(len(late) * 0.99)] * 1e6,
        "early": sum(x < -1e-6 for x in late) / n * 100,
    }


BENCHMARKS: dict[str, tuple[Benchmark, int]] = {
    "call_soon": (call_soon, 400_000),
    "burst": (burst, 400_000),
    "task_switch": (task_switch, 300_000),
    "future_wake": (future_wake, 150_000),
    "threadsafe": (threadsafe, 200_000),
    "executor": (executor, 16_000),
    "timers": (timers, 200_000),
    "timers_fire": (timers_fire, 100_000),
    "timeouts": (timeouts, 50_000),
    "lateness": (lateness, 200),
}

# Those that use more than one thread want more than one CPU.
THREADED = ("threadsafe", "executor")


class MicroWorkload(harness.Workload):
    metrics = (harness.RATE, harness.Metric("cpu_us", "CPU µs", 3))

    def __init__(self, name: str, group: str) -> None:
        super().__init__(name, group)
        self.function, self.ops = BENCHMARKS[name]

    def cpus(self, options: harness.Options) -> frozenset[int]:
        return options.cpus.both if self.name in THREADED else options.cpus.server

    def measure(self, loop: str, options: harness.Options) -> harness.Round:
        command = procs.python("micro", loop, self.name)
        if options.secs is not None:
            # The default counts take some 0.3 s.
            command.append(str(options.secs / 0.3))
        with procs.Child(command, self.cpus(options)) as child:
            return child.answer(120)

    def benchmark(self, benchmark: Any, loop: str, options: harness.Options) -> None:
        rounds: list[harness.Round] = []
        benchmark.group = self.name
        made = loops.factory(loop)()
        try:
            with procs.pinned(self.cpus(options)):
                made.run_until_complete(self.function(made, self.ops // 10))
                benchmark.pedantic(
                    lambda: rounds.append(run(made, self.name)),
                    rounds=options.rounds,
                    iterations=1,
                )
                made.run_until_complete(made.shutdown_default_executor())
        finally:
            made.close()
        harness.note(benchmark, self, loop, rounds)


class Lateness(MicroWorkload):
    metrics = (
        harness.Metric("late_p50_us", "late p50 µs", 0, compare=False),
        harness.Metric("late_p99_us", "late p99 µs", 0, compare=False),
        harness.Metric("early", "early %", 1, compare=False),
        harness.Metric("cpu_us", "CPU µs", 1),
    )


def run(loop: Loop, name: str, scale: float = 1.0) -> harness.Round:
    function, count = BENCHMARKS[name]
    count = max(int(count * scale), 1000 if count > 1000 else 20)
    before, began = procs.usage(os.getpid()), time.perf_counter()
    cpu = time.process_time()
    extra = loop.run_until_complete(function(loop, count)) or {}
    took = time.perf_counter() - began
    cpu = time.process_time() - cpu
    return {
        "ops": count,
        "secs": took,
        "rate": count / took,
        "cpu_us": cpu / count * 1e6,
        "waited": (procs.usage(os.getpid()) - before).waited / took,
        "errors": 0,
        **extra,
    }


def main() -> None:
    loop_name, name, *scale = sys.argv[1:]
    procs.child_setup()
    loop = loops.factory(loop_name)()
    asyncio.set_event_loop(loop)
    factor = float(scale[0]) if scale else 1.0
    loop.run_until_complete(BENCHMARKS[name][0](loop, 1000))
    print(json.dumps(run(loop, name, factor)), flush=True)


if __name__ == "__main__":
    main()
