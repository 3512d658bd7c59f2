"""Echo servers on asyncio.start_server and its streams.

    pytest benchmarks/bench_streams.py [--loops asyncio,uvloop]
    python -m benchmarks.bench_streams [-l uvloop,pyfastnet,limit] [-r 5]

`streams` reads what there is, `exact` reads frames of 1 KiB with readexactly,
`lines` reads lines; the `-deep` ones have many of them in flight.
"""

from benchmarks import harness


def echo(name: str, kind: str, client: str, ops: int) -> harness.Workload:
    return harness.ServerWorkload(name, "streams", kind, client, ops)


WORKLOADS = harness.registry(
    echo("streams-1k", "streams", "--conns 10 --size 1024", 15_000),
    echo("streams-100k", "streams", "--conns 10 --size 102400", 4_000),
    echo("exact-1k", "exact", "--conns 10 --size 1024", 15_000),
    echo("exact-deep", "exact", "--conns 10 --size 1024 --depth 16", 15_000),
    echo("lines-deep", "lines", "--conns 10 --size 80 --depth 64", 15_000),
)


def test_streams(benchmark, workload, loop_name, options):
    workload.benchmark(benchmark, loop_name, options)


if __name__ == "__main__":
    harness.cli(__doc__, WORKLOADS, "default,limit")
