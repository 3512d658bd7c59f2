"""HTTP servers that people use, and a bare one on asyncio.Protocol.

    pytest benchmarks/bench_http.py [--loops asyncio,uvloop]
    python -m benchmarks.bench_http [-w uvicorn] [-l uvloop,pyfastnet] [-r 5]

64 keep-alive connections, one request in flight on each.  The paired runs use
wrk where it is installed (`--http-client own` for the C client of these
benchmarks), pytest-benchmark counts the C client's requests.  What is not
installed (uvicorn, httptools, h11, aiohttp) fails, and says so.
"""

import math
import re
import shutil
import subprocess

from benchmarks import harness, procs

_UNITS = {"us": 1.0, "ms": 1e3, "s": 1e6}


def wrk(address: dict, secs: float, cpus: frozenset[int]) -> harness.Round:
    """A run of wrk and what it says."""
    url = f"http://127.0.0.1:{address['port']}/"
    command = ["wrk", "-t1", "-c64", f"-d{math.ceil(secs)}s", "--latency", url]
    with procs.pinned(cpus):
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=secs + 30
        )
    said = done.stdout
    total = re.search(r"(\d+) requests in ([\d.]+)s", said)
    p99 = re.search(r"99%\s+([\d.]+)(us|ms|s)", said)
    if done.returncode or not total or not p99:
        raise procs.BenchmarkError(f"wrk: {said[-200:]} {done.stderr[-200:]}")
    bad = re.search(r"(Non-2xx.*|Socket errors.*)", said)
    if bad:
        raise procs.BenchmarkError(f"wrk: {bad[1]}")
    ops, took = int(total[1]), float(total[2])
    return {
        "ops": ops,
        "secs": took,
        "rate": ops / took,
        "p99_us": float(p99[1]) * _UNITS[p99[2]],
        "errors": 0,
        "client": "wrk",
    }


class HttpWorkload(harness.ServerWorkload):
    takes_limit = False

    def __init__(self, name: str, kind: str, ops: int) -> None:
        super().__init__(name, "http", kind, "--conns 64 --http", ops)

    def measure(self, loop: str, options: harness.Options) -> harness.Round:
        choice = options.http_client
        if choice == "own" or (choice == "auto" and not shutil.which("wrk")):
            return super().measure(loop, options)
        with self.start(loop, options) as server:
            with self.connect(server, options) as client:
                client.run(secs=options.warmup)
            before = procs.usage(server.pid)
            secs = self.window_secs(options)
            result = wrk(server.address, secs, options.cpus.client)
            used = procs.usage(server.pid) - before
        result["cpu_us"] = used.cpu / max(result["ops"], 1) * 1e6
        result["waited"] = used.waited / result["secs"]
        return result


WORKLOADS = harness.registry(
    HttpWorkload("uvicorn", "uvicorn", 8_000),
    HttpWorkload("uvicorn-h11", "uvicorn-h11", 3_000),
    HttpWorkload("aiohttp", "aiohttp", 5_000),
    HttpWorkload("http-plain", "http", 15_000),
)


def test_http(benchmark, workload, loop_name, options):
    workload.benchmark(benchmark, loop_name, options)


if __name__ == "__main__":
    harness.cli(__doc__, WORKLOADS)
