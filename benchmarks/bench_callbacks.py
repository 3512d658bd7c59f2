"""Callbacks, tasks, futures, calls from other threads, the executor.

    pytest benchmarks/bench_callbacks.py [--loops asyncio,uvloop]
    python -m benchmarks.bench_callbacks [-w call_soon] [-l uvloop,pyfastnet] [-r 5]

See micro.py for what each of them does.  There is no peer.
"""

from benchmarks import harness, micro

NAMES = ("call_soon", "burst", "task_switch", "future_wake", "threadsafe", "executor")
WORKLOADS = harness.registry(
    *(micro.MicroWorkload(name, "callbacks") for name in NAMES)
)


def test_callbacks(benchmark, workload, loop_name, options):
    workload.benchmark(benchmark, loop_name, options)


if __name__ == "__main__":
    harness.cli(__doc__, WORKLOADS)
