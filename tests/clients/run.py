"""The test suites of programs that use asyncio, unmodified, on this loop.

    python tests/clients/run.py                 all of them, whole
    python tests/clients/run.py aiohttp redis   these
    python tests/clients/run.py --smoke         a few files of each: a minute
    python tests/clients/run.py --both aiohttp  on asyncio too, test by test

A suite comes from its package's source distribution, which pip downloads into
the work folder (build/clients), where it gets an environment of its own.  It
runs on pyfastnet, the one that this Python imports; what fails is tried alone,
on asyncio and then on pyfastnet again.  The run fails if a test fails on
pyfastnet twice that asyncio passes.

With --both the suite runs on asyncio first, and each test that ended otherwise
on pyfastnet is told, with what further runs of it alone, on both in turn, gave.

A component that is not on the machine (redis-server, PostgreSQL) fails the
run where CI=true is set, and skips its suite with the reason elsewhere.
"""

import argparse
import contextlib
import dataclasses
import glob
import importlib.util
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile

import services

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
LIMIT = 3600  # seconds for a suite
SMOKE_LIMIT = 300
EACH = 60  # seconds for a test
ORDER = ("passed", "skipped", "failed")  # as on_loop has them
PYTEST = ["pytest>=9", "pytest-timeout", "pytest-mock", "trustme", "psutil"]


@dataclasses.dataclass
class Suite:
    name: str
    version: str
    needs: list[str]  # to install, beside the package and PYTEST
    plugins: list[str]  # of pytest; those of other suites stay out
    options: list[str]  # for pytest
    smoke: list[str]  # what of it is a smoke run
    whole: list[str] = dataclasses.field(default_factory=lambda: ["tests"])
    service: str = ""
    known: dict[str, str] = dataclasses.field(default_factory=dict)  # id: why
    extra: str = ""
    # files of the source distribution to run in; the package itself is left
    # out, as it would hide the one that is installed
    files: tuple[str, ...] = ("tests", "pytest.ini", "pyproject.toml", "setup.cfg")


SUITES = [
    Suite(
        "aiohttp",
        "3.14.5",
        ["pytest-cov", "pytest-xdist", "pytest-codspeed", "freezegun", "proxy.py"]
        + ["blockbuster", "isal; python_version < '3.14'", "zlib-ng", "gunicorn"]
        + ["python-on-whales", "cryptography"],
        ["xdist", "pytest_cov", "codspeed"],
        ["-n0", "--no-cov"],
        ["tests/test_web_sendfile_functional.py", "tests/test_client_ws_functional.py"]
        + ["tests/test_resolver.py", "tests/test_web_runner.py"]
        + ["tests/test_web_websocket_functional.py", "tests/test_proxy_functional.py"],
        ["tests", "--ignore=tests/autobahn", "--ignore-glob=*test_benchmarks*"],
        known={
            "tests/test_web_functional.py::test_keepalive_expires_on_time[pyloop]": (
                "replaces loop.time() and expects timers to go by it"
            )
        },
        files=("tests", "pytest.ini", ".coveragerc.toml", "setup.cfg")
        + ("LICENSE.txt", "README.rst"),
    ),
    Suite(
        "anyio",
        "4.16.0",
        ["blockbuster", "coverage[toml]", "hypothesis", "truststore", "uvloop", "trio"],
        ["anyio", "hypothesispytest"],
        ["-k", "not trio and not uvloop"],
        # What is about IPv6 needs a localhost that has it.
        ["-k", "asyncio and not uvloop and not eager and not ipv6"]
        + ["tests/test_sockets.py", "tests/streams/test_tls.py"]
        + ["tests/test_subprocesses.py", "tests/test_signals.py"],
    ),
    Suite(
        "uvicorn",
        "0.54.0",
        ["pytest-xdist", "a2wsgi", "wsproto", "httpx2", "cryptography"]
        + ["coverage", "coverage-conditional-plugin"],
        ["anyio", "xdist"],
        ["-n0"],
        ["tests/protocols", "tests/test_server.py", "tests/test_ssl.py"],
        ["tests", "--ignore=tests/benchmarks"],
        extra="[standard]",
    ),
    Suite(
        "redis",
        "8.1.0",
        ["pytest-asyncio", "pytest-cov", "numpy", "ujson", "pybreaker", "xxhash"]
        + ["aiohttp", "opentelemetry-api", "opentelemetry-sdk", "uvloop"]
        + ["cryptography", "redis-entraid"],
        ["pytest_asyncio.plugin", "pytest_cov"],
        ["-m", "not onlycluster and not redismod and not ssl and not cp_integration"]
        + ["--redis-url", "redis://127.0.0.1:{port}/0", "--no-uvloop"],
        ["tests/test_asyncio/test_connection_pool.py"]
        + ["tests/test_asyncio/test_pubsub.py", "tests/test_asyncio/test_pipeline.py"]
        + ["tests/test_asyncio/test_cwe_404.py"],
        # The others test the client that blocks; of these, what needs Redis's
        # modules, a cluster or containers has no server here.
        ["tests/test_asyncio", "--ignore=tests/test_asyncio/test_scenario"]
        + ["--ignore=tests/test_asyncio/test_cluster.py"]
        + ["--ignore=tests/test_asyncio/test_cluster_transaction.py"],
        service="redis",
    ),
    Suite(
        "asyncpg",
        "0.32.0",
        ["distro", "uvloop"],
        [],
        [],
        ["tests/test_execute.py", "tests/test_copy.py", "tests/test_listeners.py"]
        + ["tests/test_cancellation.py", "tests/test_timeout.py"],
        service="postgres",
        files=("tests", "pyproject.toml", "README.rst"),
    ),
    # Its source distributions leave the tests out: --source websockets=DIR
    # names a copy of its repository.  Without one a check of our own runs.
    Suite(
        "websockets",
        "17.4",
        ["python-socks[asyncio]", "werkzeug"],
        [],
        [],
        ["tests/asyncio"],
        ["tests/asyncio", "tests/legacy"],
        known={
            f"tests/asyncio/test_connection.py::{side}ConnectionTests::test_{whose}"
            "_address": "replaces asyncio.Transport.get_extra_info, which "
            "pyfastnet's transports do not inherit"
            for side in ("Client", "Server")
            for whose in ("local", "remote")
        },
        files=("tests", "pyproject.toml"),
    ),
]


class Broken(Exception):
    """A suite has not run to its end, or not on the loop."""


def say(text):
    print(text, flush=True)


class Runner:
    def __init__(self, options):
        self.options = options
        self.work = os.path.abspath(options.work)
        self.limit = SMOKE_LIMIT if options.smoke else LIMIT
        self.python = os.path.join(self.work, "venv", "bin", "python")
        self.ours_only = []
        self.passed = self.skipped = 0

    # -- getting ready ---------------------------------------------------

    def pip(self, *args):
        subprocess.run(
            [self.python, "-m", "pip", *args, "-qq", "--disable-pip-version-check"],
            check=True,
            stdin=subprocess.DEVNULL,
        )

    def make_environment(self):
        os.makedirs(self.work, exist_ok=True)
        marker = os.path.join(self.work, "venv", ".python")
        if not os.path.exists(marker) or open(marker).read() != sys.version:
            folder = os.path.join(self.work, "venv")
            subprocess.run(
                [sys.executable, "-m", "venv", "--clear", folder], check=True
            )
            self.pip("install", *PYTEST)
            with open(marker, "w") as file:
                file.write(sys.version)
        # Nothing but pyfastnet of where it comes from: a link of its own.
        path = os.path.join(self.work, "path")
        os.makedirs(path, exist_ok=True)
        link = os.path.join(path, "pyfastnet")
        with contextlib.suppress(FileNotFoundError):
            os.unlink(link)
        spec = importlib.util.find_spec("pyfastnet")
        if spec is None:
            sys.exit("pyfastnet cannot be imported: install it, or set PYTHONPATH")
        os.symlink(os.path.dirname(spec.origin), link)

    def unpack(self, suite):
        """The folder to run in, with the tests of the source distribution."""
        folder = os.path.join(self.work, "run", suite.name)
        shutil.rmtree(folder, ignore_errors=True)
        os.makedirs(folder)
        given = dict(pair.split("=", 1) for pair in self.options.source)
        source = given.get(suite.name) or self.download(suite)
        for name in suite.files:
            path = os.path.join(source, name)
            if os.path.isdir(path):
                shutil.copytree(path, os.path.join(folder, name))
            elif os.path.exists(path):
                shutil.copy(path, folder)
        project = os.path.join(folder, "pyproject.toml")
        if not os.path.exists(project) or "[tool.pytest" not in open(project).read():
            # Else pytest would take this project's settings.
            open(os.path.join(folder, "pytest.ini"), "a").close()
        return folder

    def download(self, suite):
        sdist = os.path.join(self.work, "sdist")
        pattern = os.path.join(sdist, f"{suite.name}-{suite.version}")
        if not os.path.isdir(pattern):
            self.pip(
                "download", "--no-deps", "--no-binary", suite.name, "-d", sdist,
                f"{suite.name}=={suite.version}",
            )  # fmt: skip
            with tarfile.open(glob.glob(pattern + ".tar.gz")[0]) as archive:
                archive.extractall(sdist, filter="data")
        return pattern

    def install(self, suite):
        package = f"{suite.name}{suite.extra}=={suite.version}"
        self.pip("install", "--upgrade-strategy", "only-if-needed", package)
        self.pip("install", "--upgrade-strategy", "only-if-needed", *suite.needs)

    # -- running ---------------------------------------------------------

    def pytest(self, suite, folder, loop, what, service):
        """{node id: outcome}; what is missing in it was not reached."""
        results = os.path.join(self.work, f"{suite.name}.json")
        with contextlib.suppress(FileNotFoundError):
            os.unlink(results)
        environ = {
            **os.environ,
            **service["environ"],
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
            "CLIENTS_LOOP": loop,
            "CLIENTS_RESULTS": results,
            "PYTHONPATH": os.pathsep.join([os.path.join(self.work, "path"), HERE]),
        }
        environ.pop("CI", None)  # some suites are another one there
        command = [self.python, "-m", "pytest", "-p", "on_loop", "-q", "-rfE"]
        command += ["--tb=short", "-p", "no:cacheprovider", f"--timeout={EACH}"]
        for plugin in ["timeout", "pytest_mock", *suite.plugins]:
            command += ["-p", plugin]
        command += [option.format(**service) for option in suite.options]
        log_path = os.path.join(self.work, f"{suite.name}-{loop}.log")
        with open(log_path, "a") as log:
            log.write(f"\n$ {command + what}\n")
            log.flush()
            process = subprocess.Popen(
                command + what,
                cwd=folder,
                env=environ,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
            try:
                process.wait(self.limit)
            except subprocess.TimeoutExpired:
                self.ours_only.append(suite.name)
                say(f"FAILED {suite.name}: stopped on {loop} after {self.limit} s")
                process.send_signal(signal.SIGINT)  # it tells what it has
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(30)
            finally:
                process.kill()
                process.wait()
        try:
            with open(results) as file:
                found = json.load(file)
        except FileNotFoundError:
            raise Broken(
                f"{suite.name}: no results on {loop} (hung or crashed); see {log_path}"
            ) from None
        if loop != "asyncio" and not found["loops"]:
            raise Broken(f"{suite.name} has not used {loop} at all; see {log_path}")
        return found["outcomes"]

    def again(self, suite, folder, loop, failed, service):
        """The outcomes of these by themselves."""
        names = os.path.join(self.work, "failed.txt")
        with open(names, "w") as file:
            file.write("\n".join(failed) + "\n")
        return self.pytest(suite, folder, loop, ["@" + names], service)

    def tell(self, suite, loop, outcomes):
        words = list(outcomes.values())
        counts = ", ".join(f"{words.count(w)} {w}" for w in ORDER)
        say(f"{suite.name} {suite.version} on {loop}: {counts}")

    @staticmethod
    def is_lost(name, theirs, outcomes):
        return theirs[name] == "passed" and outcomes.get(name) in (None, "skipped")

    def judge(self, suite, folder, ours, service):
        """Those of `ours` that asyncio passes and pyfastnet does not, twice."""
        if ours:
            theirs = self.again(suite, folder, "asyncio", ours, service)
            ours = [name for name in ours if theirs.get(name) != "failed"]
        if ours:
            again = self.again(suite, folder, "pyfastnet", ours, service)
            ours = [name for name in ours if again.get(name) != "passed"]
        return ours

    def run(self, suite):
        with contextlib.ExitStack() as stack:
            service = {"environ": {}}
            if suite.service == "redis":
                service["port"] = stack.enter_context(services.redis())
            elif suite.service == "postgres":
                port = stack.enter_context(services.postgres())
                service["environ"] = {
                    "PGHOST": "127.0.0.1",
                    "PGPORT": str(port),
                    "PGUSER": "postgres",
                    "PGDATABASE": "postgres",
                }
            folder = self.unpack(suite)
            self.install(suite)
            what = suite.smoke if self.options.smoke else suite.whole
            if not os.path.isdir(os.path.join(folder, "tests", "asyncio")) and (
                suite.name == "websockets"
            ):
                shutil.copy(os.path.join(HERE, "check_websockets.py"), folder)
                what = ["check_websockets.py"]
            theirs = {}
            if self.options.both:
                theirs = self.pytest(suite, folder, "asyncio", what, service)
                self.tell(suite, "asyncio", theirs)
            outcomes = self.pytest(suite, folder, "pyfastnet", what, service)
            failed = [name for name, word in outcomes.items() if word == "failed"]
            # What did not pass, and what was not reached; with --both only
            # what passed on asyncio.
            ours = [name for name in failed if theirs.get(name) != "failed"]
            ours += [name for name in theirs if self.is_lost(name, theirs, outcomes)]
            if self.options.both:
                self.tell(suite, "pyfastnet", outcomes)
                for name in sorted(theirs.keys() | outcomes.keys()):
                    words = [table.get(name, "not run") for table in (theirs, outcomes)]
                    if words[0] != words[1]:
                        say(f"differs: {name}: {words[0]}, on pyfastnet {words[1]}")
            ours = self.judge(suite, folder, ours, service)
        words = list(outcomes.values())
        self.passed += words.count("passed")
        say(
            f"{suite.name} {suite.version}: {words.count('passed')} passed, "
            f"{words.count('skipped')} skipped, {len(failed)} failed, "
            f"{len(ours)} of them on pyfastnet only"
        )
        for name in ours:
            if name in suite.known:
                say(f"known: {suite.name} {name}: {suite.known[name]}")
            else:
                say(f"FAILED {suite.name} {name}")
                self.ours_only.append(name)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--smoke", action="store_true", help="a few files of each")
    parser.add_argument(
        "--both", action="store_true", help="compare all tests with asyncio's run"
    )
    parser.add_argument("--work", default=os.path.join(ROOT, "build", "clients"))
    parser.add_argument(
        "--source", action="append", default=[], metavar="NAME=DIR",
        help="a suite from a folder, not from the source distribution",
    )  # fmt: skip
    options = parser.parse_args()
    known = {suite.name: suite for suite in SUITES}
    for name in options.names:
        if name not in known:
            parser.error(f"no suite {name!r}: {', '.join(known)}")
    runner = Runner(options)
    runner.make_environment()
    missing = 0
    for name in options.names or known:
        try:
            runner.run(known[name])
        except (Broken, subprocess.CalledProcessError) as exc:
            say(f"FAILED {name}: {exc}")
            runner.ours_only.append(name)
        except services.Missing as exc:
            say(f"{name}: skipped: needs {exc}")
            missing += 1
    if missing and re.fullmatch("1|true", os.environ.get("CI", "")):
        say("FAILED with CI=true every component has to be there")
    else:
        missing = 0
    failed = len(runner.ours_only) + missing
    say(f"{runner.passed} passed, {failed} failed")
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())
