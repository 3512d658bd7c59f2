"""The cache of blocks against one locked list, and a list per thread.

    python -m benchmarks.cache [--rounds 9] [--ms 60] [--threads 1,2,4]
                               [--depths 1,8,64,512]

Compiles benchmarks/cachebench.c with the core's sources and runs it (see there
for what is compared). Each figure is the median over the rounds; a ratio is that
of the medians. Wall time is for all threads together, so with more threads than
CPUs it tells what they get in all; CPU time is what one pair of a take and a
return costs whoever does it, and does not mind what else the machine runs.
"""

import argparse
import glob
import hashlib
import json
import os
import statistics
import subprocess
import sys
from typing import Any

from benchmarks import procs, report

Figures = dict[str, dict[str, float]]
SOURCES = ("csrc/base/*.c", "csrc/cache/cache.c")


def program() -> str:
    """The path of the C program, compiled unless these very sources were."""
    sources = [os.path.join(procs.HERE, "cachebench.c")]
    for pattern in SOURCES:
        sources += sorted(glob.glob(os.path.join(procs.ROOT, pattern)))
    headers = sorted(glob.glob(os.path.join(procs.ROOT, "csrc/[bc]a*/*.h")))
    tag = hashlib.sha256()
    for path in sources + headers:
        with open(path, "rb") as f:
            tag.update(f.read())
    target = os.path.join(procs.build_dir(), f"cachebench-{tag.hexdigest()[:12]}")
    if not os.path.exists(target):
        scratch = f"{target}.{os.getpid()}"
        compiler = os.environ.get("CC", "cc").split()
        flags = ["-O3", "-std=c11", "-DNDEBUG", "-D_GNU_SOURCE"]
        include = ["-I" + os.path.join(procs.ROOT, "csrc")]
        subprocess.run(
            [*compiler, *flags, *include, "-o", scratch, *sources, "-pthread"],
            check=True,
        )
        os.rename(scratch, target)
    return target


def measure(threads: int, depth: int, passing: bool, args: Any) -> Figures:
    command = [program(), str(threads), str(depth), str(args.rounds), str(args.ms)]
    command += ["pass"] if passing else []
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    found: dict[str, list[dict[str, Any]]] = {}
    for line in output.splitlines():
        one = json.loads(line)
        found.setdefault(one["kind"], []).append(one)
    return {
        kind: {
            "wall": statistics.median(one["wall_ns"] for one in runs),
            "cpu": statistics.median(one["cpu_ns"] for one in runs),
            "held": max(one["held"] for one in runs) / 2**20,
        }
        for kind, runs in found.items()
    }


def row(what: str, depth: int, figures: Figures) -> list[str]:
    ours, locked, lists = (figures[k] for k in ("magazine", "locked", "unbounded"))
    return [
        what,
        str(depth),
        *(f"{figures[kind]['cpu']:.1f}" for kind in figures),
        f"{locked['wall'] / ours['wall']:.1f}",
        f"{locked['cpu'] / ours['cpu']:.1f}",
        f"{ours['wall'] / lists['wall']:.2f}",
        f"{ours['cpu'] / lists['cpu']:.2f}",
        f"{ours['held']:.1f}",
        f"{locked['held']:.1f}",
        f"{lists['held']:.1f}",
    ]


HEADER = [
    "threads",
    "depth",
    "cache ns CPU",
    "locked",
    "per thread",
    "malloc",
    "× locked: wall",
    "CPU",
    "÷ per thread: wall",
    "CPU",
    "cache holds MiB",
    "locked",
    "per thread",
]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--ms", type=int, default=60)
    parser.add_argument("--threads", default="1,2,4")
    parser.add_argument("--depths", default="1,8,64,512")
    args = parser.parse_args()
    depths = [int(n) for n in args.depths.split(",")]
    rows = []
    for threads in [int(n) for n in args.threads.split(",")]:
        for depth in depths:
            rows.append(row(str(threads), depth, measure(threads, depth, False, args)))
            print(*rows[-1], file=sys.stderr, flush=True)
    for depth in depths:
        rows.append(row("one to another", depth, measure(2, depth, True, args)))
        print(*rows[-1], file=sys.stderr, flush=True)
    print(report.markdown(HEADER, rows))


if __name__ == "__main__":
    main()
