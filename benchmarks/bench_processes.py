"""Children: starting them, their output, pipes, and a file sent to one.

    pytest benchmarks/bench_processes.py [--loops asyncio,uvloop]
    python -m benchmarks.bench_processes [-w spawn] [-l uvloop,pyfastnet] [-r 5]

See children.py for what each of them does.  The CPU time is the loop's own;
the children's is not in it.
"""

from benchmarks import children, harness

WORKLOADS = harness.registry(*(children.Children(n) for n in children.BENCHMARKS))


def test_processes(benchmark, workload, loop_name, options):
    workload.benchmark(benchmark, loop_name, options)


if __name__ == "__main__":
    harness.cli(__doc__, WORKLOADS)
