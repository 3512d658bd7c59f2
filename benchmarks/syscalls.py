"""System calls per echo, by name, of one connection.

    python -m benchmarks.syscalls [-l uvloop,pyfastnet,limit] [--echoes 10000]
                                  [--kind proto] [--unix] [--json FILE]

Needs strace.  It is attached (`strace -c -f -p`) to a server that has been warm
for a while, and taken off after the echoes, so nothing of the start is in it.
What stands for a wait, a receive and a send differs from loop to loop.
"""

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

from benchmarks import harness, loops, procs

WAITS = ("epoll_wait", "epoll_pwait", "epoll_pwait2", "select", "poll", "ppoll")
RECEIVES = ("recvfrom", "recvmsg", "read", "readv")
SENDS = ("sendto", "sendmsg", "write", "writev")
CHANGES = ("epoll_ctl",)

LINE = re.compile(r"^\s*[\d.]+\s+[\d.]+\s+\d+\s+(\d+)\s+(?:\d+\s+)?(\w+)$", re.M)


class Strace:
    """strace on a process and all its threads, for the block."""

    def __init__(self, pid: int) -> None:
        self._directory = tempfile.TemporaryDirectory(prefix="bench-")
        self._path = os.path.join(self._directory.name, "counts")
        command = ["strace", "-c", "-f", "-o", self._path, "-p", str(pid)]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)

    def __enter__(self) -> "Strace":
        # It says so when it has attached to all threads.
        said = self.process.stderr.readline()
        if "attached" not in said:
            self.process.wait(5)
            self._directory.cleanup()
            raise procs.BenchmarkError(f"strace: {said.strip()}")
        time.sleep(0.1)
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.process.send_signal(signal.SIGINT)
        self.process.wait(10)
        self.process.stderr.close()
        try:
            with open(self._path) as f:
                text = f.read()
        finally:
            self._directory.cleanup()
        self.counts = {name: int(n) for n, name in LINE.findall(text)}
        self.counts.pop("total", None)


def count(loop: str, args: argparse.Namespace) -> dict[str, int]:
    cpus = procs.Cpus.default()
    with procs.Server(
        args.kind, loop, cpus.server, unix=args.unix, traceable=True
    ) as server:
        peer = f"--conns 1 --size {args.size}"
        with procs.Client(server.address, peer, cpus.client) as client:
            client.run(ops=500)
            with Strace(server.pid) as strace:
                result = client.run(ops=args.echoes)
    if result["errors"]:
        raise procs.BenchmarkError(f"{result['errors']} errors")
    return strace.counts


def per_echo(counts: dict[str, int], echoes: int) -> harness.Round:
    def share(names: tuple[str, ...]) -> float:
        return sum(counts.get(name, 0) for name in names) / echoes

    known = (*WAITS, *RECEIVES, *SENDS, *CHANGES)
    return {
        "waits": share(WAITS),
        "receives": share(RECEIVES),
        "sends": share(SENDS),
        "changes": share(CHANGES),
        "others": sum(n for name, n in counts.items() if name not in known) / echoes,
        "counts": counts,
    }


METRICS = tuple(
    harness.Metric(key, label, 4, compare=False)
    for key, label in (
        ("waits", "waits"),
        ("receives", "receives"),
        ("sends", "sends"),
        ("changes", "epoll_ctl"),
        ("others", "others"),
    )
)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("-l", "--loops", default="default,limit")
    parser.add_argument("--echoes", type=int, default=10_000)
    parser.add_argument("--size", type=int, default=1024)
    parser.add_argument("--kind", default="proto")
    parser.add_argument("--unix", action="store_true")
    parser.add_argument("--json", metavar="FILE")
    args = parser.parse_args()
    if not shutil.which("strace"):
        raise SystemExit("benchmarks: strace is needed: apt install strace")
    names = loops.resolve(args.loops)
    rounds: dict[str, list[harness.Round]] = {}
    for name in names:
        try:
            counts = count(name, args)
        except procs.BenchmarkError as e:
            print(f"{name}: {e}", flush=True)
            rounds[name] = [{"failed": str(e)}]
            continue
        rounds[name] = [per_echo(counts, args.echoes)]
        listed = sorted(counts.items(), key=lambda item: -item[1])
        print(f"{name}: " + ", ".join(f"{call} {n}" for call, n in listed), flush=True)
    report = [
        {
            "workload": "syscalls-unix" if args.unix else "syscalls",
            "group": "syscalls",
            "metrics": [vars(m) for m in METRICS],
            "loops": rounds,
        }
    ]
    print(f"\nper echo, of {args.echoes:,}:\n" + harness.table(report))
    if args.json:
        harness.save(args.json, report, names, sys.argv)


if __name__ == "__main__":
    main()
