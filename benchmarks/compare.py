"""All paired benchmarks under one command.

    python -m benchmarks.compare [-w echo,sock-1k] [-l uvloop,pyfastnet,limit]
                                 [-r 5] [-t 2] [--json FILE]
    python -m benchmarks.compare --list

Every round runs each loop in turn; see harness.py for how to read the tables.
-w takes workloads and groups.  coalescing_cost, syscalls and leaks have
commands of their own.
"""

import sys

from benchmarks import (
    bench_buffered,
    bench_callbacks,
    bench_clients,
    bench_datagrams,
    bench_echo,
    bench_http,
    bench_idle,
    bench_memory,
    bench_oneshot,
    bench_processes,
    bench_sock,
    bench_streams,
    bench_timers,
    gil_contention,
    harness,
    promptness,
)

MODULES = (
    bench_echo,
    bench_buffered,
    bench_streams,
    bench_sock,
    bench_oneshot,
    bench_http,
    bench_clients,
    bench_datagrams,
    bench_callbacks,
    bench_timers,
    bench_processes,
    bench_idle,
    bench_memory,
    gil_contention,
    promptness,
)
WORKLOADS = harness.registry(
    *(workload for module in MODULES for workload in module.WORKLOADS.values())
)


def show_list() -> None:
    groups: dict[str, list[str]] = {}
    for workload in WORKLOADS.values():
        groups.setdefault(workload.group, []).append(workload.name)
    for group, names in groups.items():
        print(f"{group:12}{' '.join(names)}")


if __name__ == "__main__":
    if sys.argv[1:] == ["--list"]:
        show_list()
    else:
        harness.cli(__doc__, WORKLOADS)
