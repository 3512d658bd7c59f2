"""An HTTP server under load on asyncio, uvloop and pyfastnet in turn.

    python -m benchmarks.demo [--server KIND] [-l LOOPS] [-r 5] [-t 2]

The server is uvicorn, unmodified, where it is installed, else a small one on
asyncio.Protocol that answers with a header and a body in two writes.  The load
is 64 keep-alive connections of the C client of these benchmarks, which is built
first.  Takes less than a minute, and ends with a table: requests per second,
the server's CPU time for each, the 99th percentile of the latency, and what
they are to those of the base loop (uvloop) in the same round.
"""

import argparse
import importlib.util
import sys
import time

from benchmarks import harness, loops, procs
from benchmarks.bench_http import HttpWorkload

TITLES = {
    "uvicorn": "uvicorn (httptools)",
    "uvicorn-h11": "uvicorn (h11)",
    "aiohttp": "aiohttp",
    "http": "a plain asyncio.Protocol server",
}


def pick_server(wanted: str) -> str:
    if wanted != "auto":
        return wanted
    if not importlib.util.find_spec("uvicorn"):
        return "http"
    return "uvicorn" if importlib.util.find_spec("httptools") else "uvicorn-h11"


class Progress:
    """A line that is rewritten on a terminal, and one per step elsewhere."""

    def __init__(self, steps: int) -> None:
        self.steps, self.step = steps, 0
        self.began = time.monotonic()
        self.terminal = sys.stdout.isatty()
        self.last = ""

    def show(self, text: str) -> None:
        if self.terminal:
            print(f"\r\x1b[K{text}", end="", flush=True)

    def start(self, what: str) -> None:
        left = ""
        if self.step:
            each = (time.monotonic() - self.began) / self.step
            left = f", {each * (self.steps - self.step):.0f} s to go"
        self.show(f"[{self.step + 1}/{self.steps}{left}] {what} ... {self.last}")

    def done(self, what: str, result: harness.Round) -> None:
        self.step += 1
        self.last = f"(last: {result['rate']:,.0f} requests/s)"
        if not self.terminal:
            text = f"[{self.step}/{self.steps}] {what}: "
            print(f"{text}{result['rate']:,.0f} requests/s", flush=True)

    def end(self) -> None:
        self.show("")


def measure(
    workload: harness.Workload, names: list[str], options: harness.Options
) -> dict[str, list[harness.Round]]:
    results: dict[str, list[harness.Round]] = {name: [] for name in names}
    progress = Progress(options.rounds * len(names))
    for number in range(1, options.rounds + 1):
        for name in names:
            what = f"round {number} of {options.rounds}: {name}"
            progress.start(what)
            result = harness.attempt(workload, name, options)
            if "failed" in result:
                progress.end()
                raise SystemExit(f"{name}: {result['failed']}")
            results[name].append(result)
            progress.done(what, result)
    progress.end()
    return results


def summary(results: dict[str, list[harness.Round]], base: str) -> str:
    lines = [
        f"{'':12}{'requests/s':>12}{'÷ ' + base:>11}"
        f"{'CPU/request':>14}{'÷ ' + base:>11}{'p99':>11}"
    ]
    dirty = False
    for name in results:
        rate, cpu, p99 = (
            harness.figure(results, name, key, base)
            for key in ("rate", "cpu_us", "p99_us")
        )
        dirty = dirty or rate.dirty
        lines.append(
            f"{name:12}{rate.median:>12,.0f}{rate.ratio:>11.2f}"
            f"{cpu.median:>11.1f} µs{cpu.ratio:>11.2f}{p99.median / 1e3:>8.1f} ms"
        )
    if dirty:
        lines.append(
            "The machine was busy with other things: "
            "the CPU time per request is the figure to trust."
        )
    return "\n".join(lines)


def main() -> None:
    parser = harness.arguments(__doc__, "default")
    parser.add_argument("--server", choices=("auto", *TITLES), default="auto")
    args: argparse.Namespace = parser.parse_args()
    names = loops.resolve(args.loops)
    server = pick_server(args.server)
    options = harness.options_from(args)
    options.http_client = "own"
    workload = HttpWorkload(server, server, 0)
    secs = workload.window_secs(options)
    procs.program("loadgen")
    one_cpu = options.cpus.server == options.cpus.client
    print(
        f"{TITLES[server]}, {len(names)} loops, {options.rounds} x {secs:g} s each, "
        + ("one CPU" if one_cpu else "server and client on a CPU each"),
        flush=True,
    )
    results = measure(workload, names, options)
    print("\n" + summary(results, args.base or harness.base_of(names)))
    if args.json:
        report = [harness.entry(workload, results)]
        harness.save(args.json, report, names, sys.argv)


if __name__ == "__main__":
    main()
