"""Echo servers on asyncio.Protocol, over TCP and Unix sockets.

    pytest benchmarks/bench_echo.py [--loops asyncio,uvloop] [--benchmark-json=F]
    python -m benchmarks.bench_echo [-w proto-1k] [-l uvloop,pyfastnet,limit] [-r 5]

An operation is one message of the C client that came back in full.  `pieces`
answers each in 16 writes; `pipelined` keeps 32 small ones in flight on each
connection.  `limit` is a C server with one receive and one send per message.
"""

from benchmarks import harness


def echo(name: str, client: str, ops: int, kind: str = "proto") -> harness.Workload:
    return harness.ServerWorkload(name, "echo", kind, client, ops)


WORKLOADS = harness.registry(
    echo("proto-1k", "--conns 10 --size 1024", 20_000),
    echo("proto-10k", "--conns 10 --size 10240", 20_000),
    echo("proto-100k", "--conns 10 --size 102400", 6_000),
    echo("proto-1conn", "--conns 1 --size 1024", 8_000),
    echo("proto-1000conn", "--conns 1000 --size 1024", 20_000),
    echo("pipelined", "--conns 10 --size 128 --depth 32", 400_000),
    echo("pieces", "--conns 10 --size 1024", 4_000, "pieces"),
    echo("heavy-100conn", "--conns 100 --size 1024", 20_000, "heavy"),
    echo("unix-1k", "--conns 10 --size 1024 --unix", 30_000),
)


def test_echo(benchmark, workload, loop_name, options):
    workload.benchmark(benchmark, loop_name, options)


if __name__ == "__main__":
    harness.cli(__doc__, WORKLOADS, "default,limit")
