"""Timers that are cancelled, timers that fire, timeouts, and how late they are.

    pytest benchmarks/bench_timers.py [--loops asyncio,uvloop]
    python -m benchmarks.bench_timers [-w timers] [-l uvloop,pyfastnet] [-r 5]

See micro.py for what each of them does.
"""

from benchmarks import harness, micro

WORKLOADS = harness.registry(
    *(micro.MicroWorkload(n, "timers") for n in ("timers", "timers_fire", "timeouts")),
    micro.Lateness("lateness", "timers"),
)


def test_timers(benchmark, workload, loop_name, options):
    workload.benchmark(benchmark, loop_name, options)


if __name__ == "__main__":
    harness.cli(__doc__, WORKLOADS)
