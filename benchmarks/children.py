"""What children, their pipes and a file sent to one cost, a process for each:

    python -m benchmarks.children LOOP NAME [SCALE]

prints its figures as JSON; bench_processes compares them.

spawn          `true`, 16 at a time, each waited for
communicate    64 MiB through `cat` with communicate(); per MiB
lines          a line to `cat` and back, one after the other
pipe           a pipe within the loop, from transport to transport; per MiB
sendfile       loop.sendfile() over TCP to a child that drops it; per MiB
"""

import asyncio
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine
from typing import Any

from benchmarks import harness, loops, procs

Loop = asyncio.AbstractEventLoop
Benchmark = Callable[[Loop, int], Coroutine[Any, Any, None]]
PIPE = asyncio.subprocess.PIPE
MIB = 1024 * 1024


async def spawn(loop: Loop, n: int) -> None:
    left = n

    async def worker():
        nonlocal left
        while left > 0:
            left -= 1
            process = await asyncio.create_subprocess_exec("true")
            assert await process.wait() == 0

    await asyncio.gather(*(worker() for _ in range(16)))


async def communicate(loop: Loop, n: int) -> None:
    data = bytes(min(n, 64) * MIB)
    for _ in range(max(n // 64, 1)):
        process = await asyncio.create_subprocess_exec("cat", stdin=PIPE, stdout=PIPE)
        out, _ = await process.communicate(data)
        assert len(out) == len(data) and process.returncode == 0


async def lines(loop: Loop, n: int) -> None:
    process = await asyncio.create_subprocess_exec("cat", stdin=PIPE, stdout=PIPE)
    assert process.stdin is not None and process.stdout is not None
    for _ in range(n):
        process.stdin.write(b"a line of some length, which comes back as it is\n")
        await process.stdout.readline()
    process.stdin.close()
    await process.wait()


async def pipe(loop: Loop, n: int) -> None:
    done = loop.create_future()
    piece = bytes(MIB)

    class Reader(asyncio.Protocol):
        count = 0

        def data_received(self, data):
            self.count += len(data)

        def connection_lost(self, exc):
            done.set_result(self.count)

    class Writer(asyncio.Protocol):
        left = n

        def connection_made(self, transport):
            self.transport = transport
            self.resume_writing()

        def pause_writing(self):
            pass

        def resume_writing(self):
            self.left -= 1
            if self.left < 0:
                self.transport.close()
            else:
                self.transport.write(piece)

    reader, writer = os.pipe()
    await loop.connect_read_pipe(Reader, open(reader, "rb", 0))
    await loop.connect_write_pipe(Writer, open(writer, "wb", 0))
    assert await done == n * MIB


SINK = """
import socket, sys
block = bytearray(1 << 20)
with socket.create_connection(("127.0.0.1", int(sys.argv[1]))) as sock:
    while sock.recv_into(block, len(block), socket.MSG_TRUNC):  # without a copy
        pass
"""


async def sendfile(loop: Loop, n: int) -> None:
    connected = loop.create_future()

    class Sender(asyncio.Protocol):
        def connection_made(self, transport):
            connected.set_result(transport)

    server = await loop.create_server(Sender, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-S", "-c", SINK, str(port)
    )
    transport = await connected
    with tempfile.TemporaryFile() as file:
        size = min(n, 64) * MIB
        file.write(bytes(size))
        for _ in range(max(n // 64, 1)):
            assert await loop.sendfile(transport, file, 0, fallback=False) == size
    transport.close()
    assert await process.wait() == 0
    server.close()


BENCHMARKS: dict[str, tuple[Benchmark, int]] = {
    "spawn": (spawn, 1000),
    "communicate": (communicate, 64 * 8),
    "lines": (lines, 20_000),
    "pipe": (pipe, 512),
    "sendfile": (sendfile, 1024),
}


class Children(harness.Workload):
    metrics = (harness.RATE, harness.Metric("cpu_us", "own CPU µs", 2))

    def __init__(self, name: str) -> None:
        super().__init__(name, "processes")
        self.function, self.ops = BENCHMARKS[name]

    def measure(self, loop: str, options: harness.Options) -> harness.Round:
        command = procs.python("children", loop, self.name)
        if options.secs is not None:
            command.append(str(options.secs))
        with procs.Child(command, options.cpus.both) as child:
            return child.answer(120)

    def benchmark(self, benchmark: Any, loop: str, options: harness.Options) -> None:
        rounds: list[harness.Round] = []
        benchmark.group = self.name
        made = loops.factory(loop)()
        asyncio.set_event_loop(made)
        try:
            made.run_until_complete(self.function(made, self.ops // 16))
            benchmark.pedantic(
                lambda: rounds.append(run(made, self.name)),
                rounds=options.rounds,
                iterations=1,
            )
        finally:
            asyncio.set_event_loop(None)
            made.close()
        harness.note(benchmark, self, loop, rounds)


def run(loop: Loop, name: str, scale: float = 1.0) -> harness.Round:
    function, count = BENCHMARKS[name]
    count = max(int(count * scale), 64)
    if name in ("communicate", "sendfile"):
        count -= count % 64
    before, began = procs.usage(os.getpid()), time.perf_counter()
    cpu = time.process_time()
    loop.run_until_complete(function(loop, count))
    took = time.perf_counter() - began
    cpu = time.process_time() - cpu
    return {
        "ops": count,
        "secs": took,
        "rate": count / took,
        "cpu_us": cpu / count * 1e6,
        "waited": (procs.usage(os.getpid()) - before).waited / took,
        "errors": 0,
    }


def main() -> None:
    loop_name, name, *scale = sys.argv[1:]
    procs.child_setup()
    loop = loops.factory(loop_name)()
    asyncio.set_event_loop(loop)
    loop.run_until_complete(BENCHMARKS[name][0](loop, 64))
    print(json.dumps(run(loop, name, float(scale[0]) if scale else 1.0)), flush=True)


if __name__ == "__main__":
    main()
