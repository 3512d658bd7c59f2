"""An echo server on loop.sock_accept, sock_recv and sock_sendall.

    pytest benchmarks/bench_sock.py [--loops asyncio,uvloop]
    python -m benchmarks.bench_sock [-l uvloop,pyfastnet,limit] [-r 5]

Each connection is served by a task of its own.
"""

from benchmarks import harness

WORKLOADS = harness.registry(
    harness.ServerWorkload("sock-1k", "sock", "sock", "--conns 10 --size 1024", 8_000),
    harness.ServerWorkload("sock-1conn", "sock", "sock", "--conns 1 --size 64", 4_000),
)


def test_sock(benchmark, workload, loop_name, options):
    workload.benchmark(benchmark, loop_name, options)


if __name__ == "__main__":
    harness.cli(__doc__, WORKLOADS, "default,limit")
