"""One-shot connections: an operation is connect, one message of 64 bytes there
and back, close (by a reset from the client, so that no port is left behind).

    pytest benchmarks/bench_oneshot.py [--loops asyncio,uvloop]
    python -m benchmarks.bench_oneshot [-l uvloop,pyfastnet,limit] [-r 5]
"""

from benchmarks import harness


def oneshot(name: str, client: str, ops: int, kind: str = "proto") -> harness.Workload:
    return harness.ServerWorkload(name, "oneshot", kind, client, ops)


WORKLOADS = harness.registry(
    oneshot("oneshot", "--conns 10 --size 64 --oneshot", 6_000),
    oneshot("oneshot-unix", "--conns 10 --size 64 --oneshot --unix", 6_000),
    oneshot("oneshot-streams", "--conns 10 --size 64 --oneshot", 4_000, "streams"),
)


def test_oneshot(benchmark, workload, loop_name, options):
    workload.benchmark(benchmark, loop_name, options)


if __name__ == "__main__":
    harness.cli(__doc__, WORKLOADS, "default,limit")
