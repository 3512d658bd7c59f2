"""What worker shards give, and what they leave to the loop's thread.

    python -m benchmarks.scale [-p handover,heavy,steps] [-r 5] [-t 2] [--json FILE]

`handover`  proto-1k and unix-1k with every connection's pass at a worker
            (PYFASTNET_HOME=worker, one shard): the CPU time per message of the
            loop's thread, which only runs Python, and of the worker, from the
            scheduler's books, against uvloop's whole.
`heavy`     heavy-100conn (some Python per message): one shard against two, the
            server on two CPUs.
`steps`     proto-1k on 1, 2, 4, 8, 16 CPUs with as many shards, as far as the
            machine has them and one for each client beside: messages a second,
            and each step's ratio to the one before.  What lies beyond the
            machine is extrapolated from the CPU time per message, and marked
            as that: min(1 / loop thread's, CPUs / everybody's).
"""

import os
import sys
import threading
from collections.abc import Sequence
from typing import Any

from benchmarks import harness, procs

ONE = "pyfastnet@PYFASTNET_SHARDS=1"
TWO = "pyfastnet@PYFASTNET_SHARDS=2"
AWAY = "pyfastnet@PYFASTNET_HOME=worker@PYFASTNET_SHARDS=1"
STEPS = (1, 2, 4, 8, 16)

LOOP_CPU = harness.Metric("loop_us", "loop's µs", 3)
OTHER_CPU = harness.Metric("other_us", "others' µs", 2, compare=False)
SHARE = harness.Metric("share", "loop ÷ all", 2, compare=False)


class ThreadWorkload(harness.ServerWorkload):
    """Tells the CPU time of the server's main thread, which runs the loop,
    from that of its other threads."""

    metrics = (harness.RATE, harness.CPU, LOOP_CPU, OTHER_CPU, SHARE)

    def window(
        self, server: procs.Child, client: procs.Client, **how: float
    ) -> harness.Round:
        before = procs.thread_usage(server.pid, server.pid)
        result = super().window(server, client, **how)
        used = procs.thread_usage(server.pid, server.pid) - before
        result["loop_us"] = used.cpu / max(result["ops"], 1) * 1e6
        result["other_us"] = result["cpu_us"] - result["loop_us"]
        result["share"] = result["loop_us"] / result["cpu_us"]
        return result


class Steps(harness.ServerWorkload):
    """One server on some CPUs with as many shards, and clients that each have
    a CPU of their own."""

    metrics = (harness.RATE, harness.CPU)

    def __init__(self, cpus: Sequence[int], clients: Sequence[int]) -> None:
        super().__init__(f"{len(cpus)} CPUs", "steps", "proto", "", 0)
        self.cpus, self.clients = frozenset(cpus), clients

    def measure(self, loop: str, options: harness.Options) -> harness.Round:
        with procs.Server(self.kind, loop, self.cpus) as server:
            clients = [
                procs.Client(server.address, "--conns 16 --size 1024", frozenset([cpu]))
                for cpu in self.clients
            ]
            try:
                self.all_run(clients, options.warmup)
                return self.measured(server, clients, self.window_secs(options))
            finally:
                for client in clients:
                    client.close()

    def measured(
        self, server: procs.Child, clients: list[procs.Client], secs: float
    ) -> harness.Round:
        before = procs.usage(server.pid)
        before_loop = procs.thread_usage(server.pid, server.pid)
        results = self.all_run(clients, secs)
        used = procs.usage(server.pid) - before
        used_loop = procs.thread_usage(server.pid, server.pid) - before_loop
        ops = max(sum(r["ops"] for r in results), 1)
        return {
            "ops": ops,
            "rate": sum(r["rate"] for r in results),
            "errors": sum(r.get("errors", 0) for r in results),
            "cpu_us": used.cpu / ops * 1e6,
            "loop_us": used_loop.cpu / ops * 1e6,
            "waited": used.waited / secs,
        }

    @staticmethod
    def all_run(clients: list[procs.Client], secs: float) -> list[dict[str, Any]]:
        results: list[dict[str, Any]] = []
        running = [
            threading.Thread(target=lambda c=client: results.append(c.run(secs=secs)))
            for client in clients
        ]
        for thread in running:
            thread.start()
        for thread in running:
            thread.join()
        if len(results) < len(clients):
            raise procs.BenchmarkError("a client failed")
        return results


HANDOVER = harness.registry(
    ThreadWorkload("proto-1k", "handover", "proto", "--conns 10 --size 1024", 0),
    ThreadWorkload("unix-1k", "handover", "proto", "--conns 10 --size 1024 --unix", 0),
)
HEAVY = harness.registry(
    ThreadWorkload("heavy-100conn", "heavy", "heavy", "--conns 100 --size 1024", 0),
)

Report = list[dict[str, Any]]


def two_cpus() -> procs.Cpus:
    """The server on two CPUs, the client on others if there are any."""
    allowed = sorted(os.sched_getaffinity(0))
    server = frozenset(allowed[:2])
    return procs.Cpus(server, frozenset(allowed[2:3]) or server)


def median(item: dict[str, Any], loop: str, key: str) -> float:
    found = harness.figure(item["loops"], loop, key, loop)
    return float("nan") if found is None else found.median


def handover(options: harness.Options) -> Report:
    report = harness.paired(
        HANDOVER.values(), ["uvloop", ONE, AWAY], options, harness.show_progress
    )
    harness.show_progress("")
    print(harness.table(report))
    for item in report:
        loop_us = median(item, AWAY, "loop_us")
        whole = median(item, "uvloop", "cpu_us")
        print(
            f"{item['workload']}: the loop's thread {loop_us:.3f} µs a message, "
            f"{loop_us / whole:.3f} of uvloop's whole {whole:.2f} µs"
        )
    print()
    return report


def heavy(options: harness.Options) -> Report:
    report = harness.paired(HEAVY.values(), [ONE, TWO], options, harness.show_progress)
    harness.show_progress("")
    print(harness.table(report, ONE))
    if options.cpus.server & options.cpus.client:
        print("the client runs on the server's CPUs: there are no others\n")
    return report


# -- steps -----------------------------------------------------------------------


def step_workloads() -> dict[int, Steps]:
    """Those that this machine has CPUs for: one client for two of the server's,
    at least one."""
    allowed = sorted(os.sched_getaffinity(0))
    found = {}
    for count in STEPS:
        clients = allowed[count : count + max(1, count // 2)]
        if len(clients) == max(1, count // 2):
            found[count] = Steps(allowed[:count], clients)
    return found


def steps(options: harness.Options, whole: Report) -> Report:
    report = []
    rates: dict[int, float] = {}
    print(f"{'CPUs':>4}{'messages/s':>14}{'÷ before':>10}{'CPU µs':>9}")
    for count, workload in step_workloads().items():
        name = f"pyfastnet@PYFASTNET_SHARDS={count}"
        report += harness.paired([workload], [name], options, harness.show_progress)
        harness.show_progress("")
        rates[count] = median(report[-1], name, "rate")
        show(rates, count, f"{median(report[-1], name, 'cpu_us'):9.2f}")
    extrapolate(rates, whole)
    return report


def show(rates: dict[int, float], count: int, rest: str) -> None:
    before = rates.get(count // 2)
    ratio = f"{rates[count] / before:10.2f}" if before else f"{'-':>10}"
    print(f"{count:4}{rates[count]:14,.0f}{ratio}{rest}", flush=True)


def extrapolate(rates: dict[int, float], whole: Report) -> None:
    """The steps that are missing, from `handover`'s figures of proto-1k."""
    item = next((i for i in whole if i["workload"] == "proto-1k"), None)
    missing = [count for count in STEPS if count not in rates]
    if item is None or not missing:
        return
    at_home = median(item, ONE, "cpu_us")
    loop_us, all_us = median(item, AWAY, "loop_us"), median(item, AWAY, "cpu_us")
    print(
        f"not measured here, extrapolated from the CPU time per message (at home "
        f"{at_home:.2f} µs; loop's thread {loop_us:.3f} of {all_us:.2f} µs):"
    )
    rates = dict(rates)
    for count in STEPS:
        bound = 1e6 / loop_us
        share = 1e6 * count / all_us
        rates[count] = 1e6 / at_home if count == 1 else min(bound, share)
        if count in missing:
            limit = "the loop's thread" if bound < share else "the CPUs"
            show(rates, count, f"  extrapolated; bound by {limit}")


def main() -> None:
    parser = harness.arguments(__doc__, "")
    parser.add_argument(
        "-p",
        "--parts",
        default="handover,heavy,steps",
        help="comma-separated; default: %(default)s",
    )
    args = parser.parse_args()
    parts = set(args.parts.split(","))
    if not parts <= {"handover", "heavy", "steps"}:
        raise SystemExit(f"benchmarks: no such part: {args.parts}")
    options = harness.options_from(args)
    if not (args.server_cpus or args.client_cpus):
        options.cpus = two_cpus()
    # The extrapolation needs what `handover` finds.
    first = handover(options) if parts & {"handover", "steps"} else []
    report = list(first)
    if "heavy" in parts:
        report += heavy(options)
    if "steps" in parts:
        report += steps(options, first)
    if args.json:
        names = sorted({name for item in report for name in item["loops"]})
        harness.save(args.json, report, names, sys.argv)


if __name__ == "__main__":
    main()
