"""CPU time and wake-ups for data that nobody reads yet.

    pytest benchmarks/bench_idle.py [--loops asyncio,uvloop]
    python -m benchmarks.bench_idle [-w idle-paused] [-l asyncio,uvloop] [-r 5]

A peer sends one byte every 200 us for 5 s (`-t`).  `idle-streams` and
`idle-sock` sleep 50 ms between two reads, `idle-paused` has reading paused
until the peer has ended.  The server reports its own CPU time and its
voluntary context switches; bytes that do not arrive are errors.
"""

import time

from benchmarks import harness, procs


class IdleWorkload(harness.Workload):
    metrics = (
        harness.Metric("cpu_ms", "CPU ms", 1),
        harness.Metric("switches", "switches", 0),
    )
    secs = 5.0

    def measure(self, loop: str, options: harness.Options) -> harness.Round:
        secs = self.window_secs(options)
        kind = self.name.replace("idle-", "sink-")
        flags = ["--secs", str(secs + 0.3)]
        with procs.Server(kind, loop, options.cpus.server, options=flags) as server:
            before, began = procs.usage(server.pid), time.monotonic()
            peer = "--conns 1 --size 1 --trickle 200"
            with procs.Client(server.address, peer, options.cpus.client) as client:
                sent = client.run(secs=secs)
            result = server.answer(secs + 10)
            took = time.monotonic() - began
            waited = (procs.usage(server.pid) - before).waited
        result["errors"] = sent["errors"] + abs(sent["ops"] - result["bytes"])
        result["waited"] = waited / took
        return result

    def benchmark(self, benchmark, loop, options) -> None:
        """The time is the length of the run; what counts is in extra_info."""
        rounds: list[harness.Round] = []
        benchmark.group = self.name
        short = harness.Options(secs=min(self.window_secs(options), 2.0))
        benchmark.pedantic(
            lambda: rounds.append(self.measure(loop, short)), rounds=2, iterations=1
        )
        harness.note(benchmark, self, loop, rounds)


WORKLOADS = harness.registry(
    *(IdleWorkload(f"idle-{mode}", "idle") for mode in ("streams", "sock", "paused"))
)


def test_idle(benchmark, workload, loop_name, options):
    workload.benchmark(benchmark, loop_name, options)


if __name__ == "__main__":
    harness.cli(__doc__, WORKLOADS)
