"""Memory of an echo server.

    pytest benchmarks/bench_memory.py [--loops asyncio,uvloop]
    python -m benchmarks.bench_memory [-w memory-burst] [-l uvloop,pyfastnet] [-r 5]

`memory-idle`   4,000 connections: resident KiB for each that never sent
                anything, and for each that has exchanged one message of 1 KiB
`memory-burst`  60 connections, each sends 8 MiB before it reads anything back,
                so that the server has to keep them: the size at the peak, one
                second after the burst against before it (connections open),
                and one second after all have closed
"""

import contextlib
import resource
import selectors
import socket
import time
from collections.abc import Iterator

from benchmarks import harness, procs

KIB, MIB = 1024, 1024 * 1024
GIVE_UP = 60.0


@contextlib.contextmanager
def connections(
    server: procs.Server, count: int, buffer: int = 0
) -> Iterator[list[socket.socket]]:
    """Connected sockets, closed at the end of the block."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with contextlib.ExitStack() as stack:
        socks = []
        for _ in range(count):
            sock = stack.enter_context(socket.socket())
            if buffer:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
            sock.connect(("127.0.0.1", server.address["port"]))
            socks.append(sock)
        yield socks


def receive(sock: socket.socket, count: int) -> None:
    while count:
        data = sock.recv(min(count, MIB))
        if not data:
            raise procs.BenchmarkError("the server closed a connection")
        count -= len(data)


def send_all_first(socks: list[socket.socket], size: int) -> None:
    """Sends `size` bytes on each and reads none."""
    data = memoryview(bytes(MIB))
    sent = dict.fromkeys(socks, 0)
    deadline = time.monotonic() + GIVE_UP
    with selectors.DefaultSelector() as selector:
        for sock in socks:
            sock.setblocking(False)
            selector.register(sock, selectors.EVENT_WRITE)
        while selector.get_map():
            for key, _ in selector.select(1):
                sock = key.fileobj
                sent[sock] += sock.send(data[: min(MIB, size - sent[sock])])
                if sent[sock] == size:
                    selector.unregister(sock)
                    sock.setblocking(True)
            if time.monotonic() > deadline:
                raise procs.BenchmarkError("the server stopped reading")


class MemoryWorkload(harness.Workload):
    def benchmark(self, benchmark, loop, options) -> None:
        """The time is that of the whole run; what counts is in extra_info."""
        rounds: list[harness.Round] = []
        benchmark.group = self.name
        benchmark.pedantic(
            lambda: rounds.append(self.measure(loop, options)), rounds=2, iterations=1
        )
        harness.note(benchmark, self, loop, rounds)


class Idle(MemoryWorkload):
    metrics = (
        harness.Metric("kib_idle", "KiB/idle conn", 2),
        harness.Metric("kib_used", "KiB/used conn", 2),
    )
    conns = 4000

    def measure(self, loop: str, options: harness.Options) -> harness.Round:
        with procs.Server("proto", loop, options.cpus.server) as server:
            start = procs.memory(server.pid)
            with connections(server, self.conns) as socks:
                time.sleep(1)
                idle = procs.memory(server.pid)
                for sock in socks:
                    sock.sendall(bytes(KIB))
                    receive(sock, KIB)
                time.sleep(0.5)
                used = procs.memory(server.pid)
        return {
            "kib_idle": (idle - start) / KIB / self.conns,
            "kib_used": (used - start) / KIB / self.conns,
        }


class Burst(MemoryWorkload):
    metrics = (
        harness.Metric("before_mib", "before MiB", 1),
        harness.Metric("peak_mib", "peak MiB", 1),
        harness.Metric("after_mib", "after MiB", 1),
        harness.Metric("after_ratio", "after ÷ before", 2),
        harness.Metric("closed_mib", "closed MiB", 1),
    )
    conns, size = 60, 8 * MIB

    def measure(self, loop: str, options: harness.Options) -> harness.Round:
        with procs.Server("proto", loop, options.cpus.server) as server:
            with connections(server, self.conns, 4 * KIB) as socks:
                time.sleep(1)
                before = procs.memory(server.pid)
                send_all_first(socks, self.size)
                time.sleep(0.5)
                for sock in socks:
                    sock.settimeout(GIVE_UP)
                    receive(sock, self.size)
                peak = procs.memory(server.pid, "VmHWM")
                time.sleep(1)
                after = procs.memory(server.pid)
            time.sleep(1)
            closed = procs.memory(server.pid)
        return {
            "before_mib": before / MIB,
            "peak_mib": peak / MIB,
            "after_mib": after / MIB,
            "after_ratio": after / before,
            "closed_mib": closed / MIB,
        }


WORKLOADS = harness.registry(
    Idle("memory-idle", "memory"), Burst("memory-burst", "memory")
)


def test_memory(benchmark, workload, loop_name, options):
    workload.benchmark(benchmark, loop_name, options)


if __name__ == "__main__":
    harness.cli(__doc__, WORKLOADS)
