"""Paired rounds: what every comparison here is made of.

A Workload measures one loop once and returns a dict of figures.  Every round
runs each loop in turn, so that a drift of the machine falls on all of them,
and what counts is the median over the rounds of the ratio to the base loop
(uvloop, else the first) within a round.  A round in which a process waited for
a CPU more than 5 % of the time is dirty; where three or more rounds are clean,
the medians are over these alone, else the row is marked with `~`.  On a shared
machine the CPU time per operation is the figure to trust.
"""

import argparse
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks import loops, procs

DIRTY = 0.05
FORMAT = "pyfastnet-benchmarks-1"

Round = dict[str, Any]


@dataclass(frozen=True)
class Metric:
    key: str
    label: str
    digits: int = 1
    more: bool = False
    """more is better"""
    compare: bool = True
    """a ratio says something"""

    def text(self, value: float) -> str:
        return f"{value:,.{self.digits}f}"


RATE = Metric("rate", "1/s", 0, more=True)
CPU = Metric("cpu_us", "CPU µs", 2)
P99 = Metric("p99_us", "p99 µs", 0)


@dataclass
class Options:
    """How a measurement is to be made."""

    secs: float | None = None
    """of a measured window; None: what the workload thinks best"""
    warmup: float = 0.3
    rounds: int = 5
    http_client: str = "auto"
    cpus: procs.Cpus = field(default_factory=procs.Cpus.default)


class Workload:
    """One thing that is measured."""

    metrics: Sequence[Metric] = (RATE, CPU, P99)
    takes_limit = False
    secs = 2.0

    def __init__(self, name: str, group: str) -> None:
        self.name, self.group = name, group

    def window_secs(self, options: Options) -> float:
        return options.secs or self.secs

    def measure(self, loop: str, options: Options) -> Round:
        raise NotImplementedError

    def benchmark(self, benchmark: Any, loop: str, options: Options) -> None:
        """The same under pytest-benchmark; sets its extra_info."""
        raise NotImplementedError


Workloads = dict[str, Workload]


def registry(*workloads: Workload) -> Workloads:
    return {w.name: w for w in workloads}


class ServerWorkload(Workload):
    """A Python server under the C client."""

    takes_limit = True

    def __init__(self, name: str, group: str, kind: str, client: str, ops: int) -> None:
        super().__init__(name, group)
        self.kind, self.client = kind, client.replace("--unix", "")
        self.unix = "--unix" in client
        self.ops = ops
        """operations of one pytest-benchmark round: a few tenths of a second"""

    def start(self, loop: str, options: Options) -> procs.Server:
        return procs.Server(self.kind, loop, options.cpus.server, unix=self.unix)

    def connect(self, server: procs.Server, options: Options) -> procs.Client:
        return procs.Client(server.address, self.client, options.cpus.client)

    def window(self, server: procs.Child, client: procs.Client, **how: float) -> Round:
        """One run of the client, with what it cost either side."""
        before, before_client = procs.usage(server.pid), procs.usage(client.pid)
        result = client.run(**how)
        used = procs.usage(server.pid) - before
        used_client = procs.usage(client.pid) - before_client
        ops = max(result["ops"], 1)
        result["cpu_us"] = used.cpu / ops * 1e6
        result["client_cpu_us"] = used_client.cpu / ops * 1e6
        result["waited"] = max(used.waited, used_client.waited) / result["secs"]
        return result

    def measure(self, loop: str, options: Options) -> Round:
        with self.start(loop, options) as server:
            with self.connect(server, options) as client:
                client.run(secs=options.warmup)
                secs = self.window_secs(options)
                return self.window(server, client, secs=secs)

    def benchmark(self, benchmark: Any, loop: str, options: Options) -> None:
        rounds: list[Round] = []
        benchmark.group = self.name
        with self.start(loop, options) as server:
            with self.connect(server, options) as client:
                client.run(ops=max(self.ops // 4, 1))
                benchmark.pedantic(
                    lambda: rounds.append(self.window(server, client, ops=self.ops)),
                    rounds=options.rounds,
                    iterations=1,
                )
        note(benchmark, self, loop, rounds)


def note(benchmark: Any, workload: Workload, loop: str, rounds: list[Round]) -> None:
    """What report.py needs to read pytest-benchmark's file as one of ours."""
    assert not any(r.get("errors") for r in rounds), rounds
    benchmark.extra_info.update(
        suite=workload.group,
        workload=workload.name,
        loop=loop,
        version=loops.version(loop),
        metrics=[vars(m) for m in workload.metrics],
        rounds=rounds,
    )


# -- rounds --------------------------------------------------------------------

Progress = Callable[[str], None]


def paired(
    workloads: Iterable[Workload],
    names: Sequence[str],
    options: Options,
    progress: Progress = lambda text: None,
) -> list[dict[str, Any]]:
    """The rounds of each workload, in the form that save() writes."""
    report = []
    for workload in workloads:
        mine = [n for n in names if workload.takes_limit or n != loops.LIMIT]
        results: dict[str, list[Round]] = {name: [] for name in mine}
        for number in range(options.rounds):
            for name in mine:
                progress(f"{workload.name} {number + 1}/{options.rounds} {name}")
                results[name].append(attempt(workload, name, options))
        report.append(entry(workload, results))
    return report


def entry(workload: Workload, results: dict[str, list[Round]]) -> dict[str, Any]:
    return {
        "workload": workload.name,
        "group": workload.group,
        "metrics": [vars(m) for m in workload.metrics],
        "loops": results,
    }


def attempt(workload: Workload, loop: str, options: Options) -> Round:
    try:
        return workload.measure(loop, options)
    except (procs.BenchmarkError, OSError, ValueError, KeyError) as e:
        return {"failed": f"{type(e).__name__}: {e}"}


# -- figures -------------------------------------------------------------------


@dataclass(frozen=True)
class Figure:
    """A metric of a loop over all rounds."""

    median: float
    ratio: float
    rounds: int
    dirty: bool


def base_of(names: Iterable[str]) -> str:
    names = list(names)
    return "uvloop" if "uvloop" in names else names[0]


def usable_rounds(results: Mapping[str, Sequence[Round]]) -> tuple[list[int], bool]:
    """Which rounds to use, and whether they are dirty ones."""
    count = min(len(rounds) for rounds in results.values())
    clean = [
        i
        for i in range(count)
        if all(rounds[i].get("waited", 0) <= DIRTY for rounds in results.values())
    ]
    if len(clean) >= min(3, count):
        return clean, False
    return list(range(count)), True


def figure(
    results: Mapping[str, Sequence[Round]], loop: str, key: str, base: str
) -> Figure | None:
    """The median of a metric and of its ratio to `base` within a round; None
    when the loop failed in any round."""
    indexes, dirty = usable_rounds(results)
    rounds = results[loop]
    if not rounds or any(key not in r for r in rounds):
        return None
    values = [rounds[i][key] for i in indexes]
    ratios = [
        rounds[i][key] / results[base][i][key]
        for i in indexes
        if results.get(base) and results[base][i].get(key)
    ]
    return Figure(
        statistics.median(values),
        statistics.median(ratios) if ratios else float("nan"),
        len(indexes),
        dirty,
    )


def count_errors(rounds: Sequence[Round]) -> int:
    return sum(r.get("errors", 0) for r in rounds)


def table(report: Sequence[Mapping[str, Any]], base: str | None = None) -> str:
    """For a terminal: a block for each workload, a line for each loop."""
    lines = []
    for item in report:
        results = item["loops"]
        first = base if base in results else base_of(results)
        metrics = [Metric(**m) for m in item["metrics"]]
        width = max(len(item["workload"]), *(len(name) for name in results)) + 2
        to_first = f"÷ {first}" if len(first) < 10 else "÷ first"
        heads = (
            f"{m.label:>16}" + (f"{to_first:>11}" if m.compare else "") for m in metrics
        )
        lines.append(f"{item['workload']:{width}}" + "".join(heads))
        for name, rounds in results.items():
            lines.append(f"{name:{width}}" + row(results, name, first, metrics))
            failures = [r["failed"] for r in rounds if "failed" in r]
            if failures:
                lines.append(f"    failed: {failures[0].splitlines()[-1]}")
        lines.append("")
    return "\n".join(lines)


def row(
    results: Mapping[str, Sequence[Round]],
    name: str,
    base: str,
    metrics: Sequence[Metric],
) -> str:
    text, dirty = "", False
    for metric in metrics:
        f = figure(results, name, metric.key, base)
        if f is None:
            text += f"{'-':>16}" + (f"{'-':>11}" if metric.compare else "")
            continue
        dirty = dirty or f.dirty
        text += f"{metric.text(f.median):>16}"
        text += f"{f.ratio:>11.2f}" if metric.compare else ""
    errors = count_errors(results[name])
    return text + (" ~" if dirty else "") + (f" {errors} errors" if errors else "")


# -- files ---------------------------------------------------------------------


def environment(names: Iterable[str]) -> dict[str, Any]:
    model = ""
    try:
        with open("/proc/cpuinfo") as f:
            model = next((x.split(":")[1].strip() for x in f if "model name" in x), "")
    except OSError:
        pass
    return {
        "python": platform.python_version(),
        "kernel": platform.release(),
        "cpu": model,
        "cpus": len(os.sched_getaffinity(0)),
        "load": os.getloadavg(),
        "versions": {n: loops.version(n) for n in names},
        "time": time.strftime("%Y-%m-%d %H:%M"),
    }


def save(
    path: str,
    report: Sequence[Mapping[str, Any]],
    names: Sequence[str],
    command: Sequence[str],
) -> None:
    document = {
        "format": FORMAT,
        "command": list(command),
        "environment": environment(names),
        "results": report,
    }
    with open(path, "w") as f:
        json.dump(document, f, indent=1)
        f.write("\n")


# -- command line --------------------------------------------------------------


def cpu_set(text: str) -> frozenset[int]:
    return frozenset(int(number) for number in text.split(","))


def arguments(doc: str | None, default_loops: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "-l",
        "--loops",
        default=default_loops,
        help="comma-separated (see loops.py); default: %(default)s",
    )
    parser.add_argument("-r", "--rounds", type=int, default=5)
    parser.add_argument("-t", "--secs", type=float, help="of a measured window")
    parser.add_argument("--base", help="what ratios are to; default: uvloop")
    parser.add_argument("--server-cpus", type=cpu_set, metavar="N,...")
    parser.add_argument("--client-cpus", type=cpu_set, metavar="N,...")
    parser.add_argument(
        "--http-client",
        choices=("auto", "wrk", "own"),
        default="auto",
        help="for HTTP: wrk, the own C client, or wrk if it is there (default)",
    )
    parser.add_argument("--json", metavar="FILE", help="keep every round")
    return parser


def options_from(args: argparse.Namespace) -> Options:
    default = procs.Cpus.default()
    cpus = procs.Cpus(
        args.server_cpus or default.server, args.client_cpus or default.client
    )
    return Options(
        secs=args.secs, rounds=args.rounds, http_client=args.http_client, cpus=cpus
    )


def show_progress(text: str) -> None:
    if sys.stderr.isatty():
        print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)


def cli(
    doc: str | None,
    workloads: Workloads,
    default_loops: str = "default",
    base: str | None = None,
    argv: Sequence[str] | None = None,
) -> list[dict[str, Any]]:
    """The command line that all paired benchmarks share."""
    parser = arguments(doc, default_loops)
    parser.add_argument(
        "-w",
        "--workloads",
        default=",".join(workloads),
        help="comma-separated names or groups; default: all of %(default)s",
    )
    args = parser.parse_args(argv)
    chosen = choose(workloads, args.workloads)
    names = loops.resolve(args.loops)
    options = options_from(args)
    report = []
    for workload in chosen:
        report += paired([workload], names, options, show_progress)
        show_progress("")
        print(table(report[-1:], args.base or base), flush=True)
        if args.json:
            save(args.json, report, names, sys.argv)
    return report


def choose(workloads: Workloads, text: str) -> list[Workload]:
    chosen: dict[str, Workload] = {}
    for word in filter(None, text.split(",")):
        found = {n: w for n, w in workloads.items() if word in (n, w.group)}
        if not found:
            raise SystemExit(f"benchmarks: no workload named {word}")
        chosen.update(found)
    return list(chosen.values())
