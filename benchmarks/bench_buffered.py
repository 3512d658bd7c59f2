"""Echo servers on asyncio.BufferedProtocol.

pytest benchmarks/bench_buffered.py [--loops asyncio,uvloop]
python -m benchmarks.bench_buffered [-l uvloop,pyfastnet,limit] [-r 5]
"""

from benchmarks import harness


def echo(name: str, client: str, ops: int) -> harness.Workload:
    return harness.ServerWorkload(name, "buffered", "buffered", client, ops)


WORKLOADS = harness.registry(
    echo("buffered-1k", "--conns 10 --size 1024", 20_000),
    echo("buffered-100k", "--conns 10 --size 102400", 6_000),
)


def test_buffered(benchmark, workload, loop_name, options):
    workload.benchmark(benchmark, loop_name, options)


if __name__ == "__main__":
    harness.cli(__doc__, WORKLOADS, "default,limit")
