"""The processes of a benchmark: C programs built when first used, children
pinned to CPUs, and what a process has cost so far."""

import contextlib
import ctypes
import hashlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(HERE)

_PR_SET_PDEATHSIG = 1
_PR_SET_PTRACER = 0x59616D61
_PR_SET_PTRACER_ANY = ctypes.c_ulong(-1)


class BenchmarkError(Exception):
    """A measurement could not be made; the text says why."""


# -- programs ------------------------------------------------------------------


def build_dir() -> str:
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    path = os.path.join(base, "pyfastnet-benchmarks")
    try:
        os.makedirs(path, exist_ok=True)
        if os.access(path, os.W_OK):
            return path
    except OSError:
        pass
    path = os.path.join(tempfile.gettempdir(), f"pyfastnet-benchmarks-{os.getuid()}")
    os.makedirs(path, mode=0o700, exist_ok=True)
    if os.stat(path).st_uid != os.getuid():
        raise SystemExit(f"benchmarks: {path} belongs to somebody else")
    return path


def program(name: str) -> str:
    """The path of the C program `name`, compiled unless this very source was."""
    source = os.path.join(HERE, name + ".c")
    with open(source, "rb") as f:
        tag = hashlib.sha256(f.read()).hexdigest()[:12]
    target = os.path.join(build_dir(), f"{name}-{tag}")
    if os.path.exists(target):
        return target
    compiler = os.environ.get("CC", "cc").split()
    scratch = f"{target}.{os.getpid()}"
    command = [*compiler, "-O2", "-std=c11", "-o", scratch, source]
    hint = "install one with libc's headers: apt install gcc libc6-dev"
    try:
        done = subprocess.run(command, capture_output=True, text=True)
    except OSError as e:
        raise SystemExit(f"benchmarks: no C compiler ({e}); {hint}") from None
    if done.returncode:
        raise SystemExit(f"benchmarks: {' '.join(command)}:\n{done.stderr}\n{hint}")
    os.replace(scratch, target)
    return target


# -- CPUs ----------------------------------------------------------------------


@dataclass(frozen=True)
class Cpus:
    """Where the two sides of a benchmark run; the same CPU if there is one."""

    server: frozenset[int]
    client: frozenset[int]

    @classmethod
    def default(cls) -> "Cpus":
        allowed = sorted(os.sched_getaffinity(0))
        return cls(frozenset(allowed[:1]), frozenset(allowed[1:2] or allowed[:1]))

    @property
    def both(self) -> frozenset[int]:
        return self.server | self.client


@contextlib.contextmanager
def pinned(cpus: frozenset[int] | None) -> Iterator[None]:
    """Runs the block, and starts its children, on these CPUs only."""
    if cpus is None:
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cpus)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


@dataclass(frozen=True)
class Usage:
    """What a process has used so far, over all of its threads."""

    cpu: float = 0.0
    """seconds of CPU time"""
    waited: float = 0.0
    """seconds it was runnable and had no CPU"""
    switches: int = 0
    """times a thread went to sleep of its own will"""

    def __add__(self, other: "Usage") -> "Usage":
        return Usage(
            self.cpu + other.cpu,
            self.waited + other.waited,
            self.switches + other.switches,
        )

    def __sub__(self, other: "Usage") -> "Usage":
        return Usage(
            self.cpu - other.cpu,
            self.waited - other.waited,
            self.switches - other.switches,
        )


def thread_usage(pid: int, tid: int) -> Usage:
    """From the scheduler's own books, in nanoseconds."""
    with open(f"/proc/{pid}/task/{tid}/schedstat") as f:
        run_ns, wait_ns, _ = map(int, f.read().split())
    with open(f"/proc/{pid}/task/{tid}/status") as f:
        switches = int(f.read().split("\nvoluntary_ctxt_switches:")[1].split()[0])
    return Usage(run_ns / 1e9, wait_ns / 1e9, switches)


def usage(pid: int) -> Usage:
    """The sum over the threads.  Those that have ended are not counted: measure
    while a process keeps its threads."""
    total = Usage()
    for tid in os.listdir(f"/proc/{pid}/task"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            total += thread_usage(pid, int(tid))
    return total


def memory(pid: int, key: str = "VmRSS") -> int:
    """A figure of /proc/PID/status in bytes: VmRSS, or VmHWM for its peak."""
    with open(f"/proc/{pid}/status") as f:
        for line in f:
            if line.startswith(key + ":"):
                return int(line.split()[1]) * 1024
    raise BenchmarkError(f"/proc/{pid}/status has no {key}")


# -- children ------------------------------------------------------------------


class Child:
    """A child process that speaks in lines on its standard streams, ended
    with the block.  Its standard error is kept for the message of a failure."""

    def __init__(
        self,
        argv: Sequence[str],
        cpus: frozenset[int] | None = None,
        env: Mapping[str, str] | None = None,
    ) -> None:
        self._errors = tempfile.TemporaryFile()
        self._pending = b""
        self.name = os.path.basename(argv[0])
        with pinned(cpus):
            self.process = subprocess.Popen(
                argv,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                cwd=ROOT,
                env={**os.environ, **(env or {})},
                bufsize=0,
            )
        self.pid = self.process.pid

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(3)
            except subprocess.TimeoutExpired:
                self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout, self._errors):
            with contextlib.suppress(OSError):
                stream.close()

    def fail(self, why: str) -> BenchmarkError:
        self._errors.seek(0)
        said = self._errors.read()[-800:].decode(errors="replace").strip()
        return BenchmarkError(f"{self.name}: {why}" + (f"\n{said}" if said else ""))

    def readline(self, timeout: float = 30.0) -> str:
        deadline = time.monotonic() + timeout
        while b"\n" not in self._pending:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self.process.stdout], [], [], left)[0]:
                raise self.fail(f"said nothing for {timeout:g} s")
            piece = os.read(self.process.stdout.fileno(), 65536)
            if not piece:
                # Its last words come before its status.
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self.process.wait(3)
                raise self.fail(f"ended with status {self.process.poll()}")
            self._pending += piece
        line, _, self._pending = self._pending.partition(b"\n")
        return line.decode()

    def answer(self, timeout: float = 30.0) -> dict[str, Any]:
        """The next line, which is JSON."""
        return json.loads(self.readline(timeout))

    def send(self, line: str) -> None:
        try:
            self.process.stdin.write(line.encode() + b"\n")
        except BrokenPipeError:
            raise self.fail("is gone") from None


def python(module: str, *arguments: str) -> list[str]:
    """The command that runs a module of this package."""
    return [sys.executable, "-m", f"benchmarks.{module}", *arguments]


def child_setup(traceable: bool = False) -> None:
    """For Python children: they end with their parent, may open as many files
    as the machine lets them, and, if asked for, may be traced by a sibling."""
    import resource

    libc = ctypes.CDLL(None)
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if traceable:
        libc.prctl(_PR_SET_PTRACER, _PR_SET_PTRACER_ANY)
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


class Client(Child):
    """The C load generator, connected and waiting for orders."""

    def __init__(
        self,
        address: Mapping[str, Any],
        options: str | Sequence[str] = (),
        cpus: frozenset[int] | None = None,
    ) -> None:
        if isinstance(options, str):
            options = options.split()
        if "unix" in address:
            where = ["--unix", address["unix"]]
        else:
            where = ["--port", str(address["port"])]
        super().__init__([program("loadgen"), *where, *options, "--interactive"], cpus)
        try:
            self.answer(15)
        except BaseException:
            self.close()
            raise

    def run(
        self, *, ops: int = 0, secs: float = 0.0, timeout: float = 60.0
    ) -> dict[str, Any]:
        """One run; its result, with the errors among it."""
        self.send(f"ops {ops}" if ops else f"secs {secs}")
        return self.answer(timeout + secs)


class Server(Child):
    """A server of benchmarks.servers on a loop, or the C one for `limit`."""

    def __init__(
        self,
        kind: str,
        loop: str,
        cpus: frozenset[int] | None = None,
        *,
        unix: bool = False,
        traceable: bool = False,
        options: Sequence[str] = (),
    ) -> None:
        self._directory = tempfile.TemporaryDirectory(prefix="bench-")
        where = []
        if unix:
            where = ["--unix", os.path.join(self._directory.name, "s")]
        if loop == "limit":
            where += ["--udp"] if kind == "udp" else []
            argv = [program("cserver"), *where]
        else:
            argv = python("servers", kind, loop, *where, *options)
            argv += ["--traceable"] if traceable else []
        super().__init__(argv, cpus)
        self.name = f"{kind} on {loop}"
        try:
            self.address = self.answer()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        super().close()
        self._directory.cleanup()
