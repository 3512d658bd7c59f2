"""Echo servers on asyncio.DatagramProtocol, over UDP.

    pytest benchmarks/bench_datagrams.py [--loops asyncio,uvloop]
    python -m benchmarks.bench_datagrams [-w udp-1k] [-l uvloop,pyfastnet,limit]

An operation is one datagram of the C client that came back.  `udp-deep` keeps
eight small ones in flight on each of its sockets, `udp-1sock` 32 on a single
one: answers to one address that can share a way through the kernel.  `limit`
is a C server with one receive and one send per datagram.
"""

from benchmarks import harness


def udp(name: str, client: str, ops: int) -> harness.Workload:
    return harness.ServerWorkload(name, "datagrams", "udp", client + " --udp", ops)


WORKLOADS = harness.registry(
    udp("udp-1k", "--conns 10 --size 1024", 40_000),
    udp("udp-deep", "--conns 10 --size 256 --depth 8", 60_000),
    udp("udp-1sock", "--conns 1 --size 1024 --depth 32", 60_000),
    udp("udp-lone", "--conns 1 --size 64", 10_000),
    udp("udp-8k", "--conns 5 --size 8000", 20_000),
)


def test_datagrams(benchmark, workload, loop_name, options):
    workload.benchmark(benchmark, loop_name, options)


if __name__ == "__main__":
    harness.cli(__doc__, WORKLOADS, "default,limit")
