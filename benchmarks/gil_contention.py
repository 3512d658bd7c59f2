"""An echo server beside a Python thread in a tight loop: what each of them gets.

    python -m benchmarks.gil_contention [-l uvloop,pyfastnet] [-r 5] [--json FILE]

Every release of the GIL lets the other thread in for up to a switch interval
(5 ms), so both sides are measured: the echoes per second, and the rounds of the
busy thread per second.

Where the threads run decides much, so each has its CPU, and the names say
which (`gil-PLACE-…`, on two CPUs):
    apart      the loop's thread and the C client on the first CPU, the busy
               thread on the second
    together   the loop's thread and the busy thread on the first CPU, the
               client on the second
    own        each on a CPU of its own (three CPUs needed)
"""

import mmap
import os
import struct
import tempfile
import time

from benchmarks import harness, procs

PLACES = ("apart", "together", "own")


def placement(place: str, cpus: procs.Cpus) -> tuple[frozenset[int], frozenset[int]]:
    """The CPUs of the busy thread and of the client."""
    if place == "apart":
        return cpus.client, cpus.server
    if place == "together":
        return cpus.server, cpus.client
    spare = os.sched_getaffinity(0) - cpus.both
    if not spare:
        raise procs.BenchmarkError("needs three CPUs")
    return frozenset([min(spare)]), cpus.client


class BusyThread:
    """The busy thread of a server, by the file that it counts in."""

    def __init__(self) -> None:
        self._file = tempfile.NamedTemporaryFile(prefix="bench-")
        self._file.write(bytes(16))
        self._file.flush()
        self.path = self._file.name
        self._map = mmap.mmap(self._file.fileno(), 16)

    def __enter__(self) -> "BusyThread":
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._map.close()
        self._file.close()

    def count(self) -> int:
        return struct.unpack_from("q", self._map)[0]

    def tid(self) -> int:
        deadline = time.monotonic() + 5
        while not (tid := struct.unpack_from("q", self._map, 8)[0]):
            if time.monotonic() > deadline:
                raise procs.BenchmarkError("the busy thread does not run")
            time.sleep(0.01)
        return tid


class GilWorkload(harness.Workload):
    metrics = (
        harness.Metric("rate", "echoes/s", 0, more=True),
        harness.Metric("thread_rate", "rounds/s", 0, more=True),
        harness.Metric("p99_us", "p99 µs", 0),
    )
    secs = 4.0

    def __init__(self, place: str, kind: str, client: str) -> None:
        super().__init__(f"gil-{place}-{kind}", "gil")
        self.place, self.kind, self.client = place, kind, client

    def measure(self, loop: str, options: harness.Options) -> harness.Round:
        cpus, client_cpus = placement(self.place, options.cpus)
        with BusyThread() as busy:
            flags = ["--busy", busy.path, "--busy-cpus", ",".join(map(str, cpus))]
            with procs.Server(
                self.kind, loop, options.cpus.server, options=flags
            ) as server:
                with procs.Client(server.address, self.client, client_cpus) as client:
                    client.run(secs=options.warmup)
                    return self.window(server, busy, client, options)

    def window(
        self,
        server: procs.Server,
        busy: BusyThread,
        client: procs.Client,
        options: harness.Options,
    ) -> harness.Round:
        def alone() -> procs.Usage:
            # Whoever has a CPU to itself waits for it only if others disturb.
            if self.place == "together":
                return procs.usage(client.pid)
            return procs.thread_usage(server.pid, tid)

        tid = busy.tid()
        used, count, began = alone(), busy.count(), time.perf_counter()
        result = client.run(secs=self.window_secs(options))
        took = time.perf_counter() - began
        result["thread_rate"] = (busy.count() - count) / took
        result["waited"] = (alone() - used).waited / took
        return result


WORKLOADS = harness.registry(
    *(
        GilWorkload(place, kind, client)
        for place in PLACES
        for kind, client in (
            ("proto", "--conns 10 --size 1024"),
            ("streams", "--conns 10 --size 1024"),
        )
        if place != "own" or len(os.sched_getaffinity(0)) > 2
    )
)

if __name__ == "__main__":
    harness.cli(__doc__, WORKLOADS, "uvloop,pyfastnet")
