"""The servers that clients talk to: redis-server and PostgreSQL, each with
its data in a temporary folder and on a free port, ended with the run."""

import contextlib
import glob
import os
import pwd
import shutil
import socket
import subprocess
import tempfile
import time

READY = 30  # seconds for a server to come up


class Missing(Exception):
    """A component is not on this machine."""


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def wait_for_port(port, process=None):
    end = time.monotonic() + READY
    while time.monotonic() < end:
        if process is not None and process.poll() is not None:
            raise RuntimeError(f"the server ended with status {process.returncode}")
        with contextlib.suppress(OSError):
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        time.sleep(0.05)
    raise RuntimeError(f"no server on port {port} after {READY} s")


@contextlib.contextmanager
def redis():
    """Yields the port."""
    program = shutil.which("redis-server")
    if program is None:
        raise Missing("redis-server (Debian: redis-server)")
    port = free_port()
    with tempfile.TemporaryDirectory(prefix="clients-redis") as folder:
        options = {
            "port": str(port),
            "bind": "127.0.0.1",
            "dir": folder,
            "save": "",
            "appendonly": "no",
            "enable-debug-command": "yes",
        }
        command = [program]
        for name, value in options.items():
            command += [f"--{name}", value]
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL
        )
        try:
            wait_for_port(port, process)
            yield port
        finally:
            process.terminate()
            process.wait(READY)


def _postgres_program(name):
    found = shutil.which(name)
    if found is not None:
        return os.path.realpath(found)
    folders = glob.glob("/usr/lib/postgresql/*/bin")
    newest_first = sorted(folders, key=lambda path: -float(path.split("/")[4]))
    for folder in newest_first:
        path = os.path.join(folder, name)
        if os.access(path, os.X_OK):
            return path
    raise Missing(f"PostgreSQL's {name} (Debian: postgresql)")


def _unprivileged():
    """What subprocess needs to run as somebody whom PostgreSQL accepts."""
    if os.getuid() != 0:
        return {}, os.getuid(), os.getgid()
    for name in ("postgres", "nobody"):
        with contextlib.suppress(KeyError):
            entry = pwd.getpwnam(name)
            break
    else:
        raise Missing("a user postgres or nobody, as PostgreSQL refuses root")
    options = {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}
    return options, entry.pw_uid, entry.pw_gid


@contextlib.contextmanager
def postgres():
    """Yields the port; the user is postgres, without a password."""
    initdb = _postgres_program("initdb")
    pg_ctl = _postgres_program("pg_ctl")
    options, uid, gid = _unprivileged()
    port = free_port()
    with tempfile.TemporaryDirectory(prefix="clients-postgres") as folder:
        os.chown(folder, uid, gid)
        data = os.path.join(folder, "data")
        options |= {
            "cwd": folder,
            "check": True,
            "stdin": subprocess.DEVNULL,
            "stdout": subprocess.DEVNULL,
        }
        subprocess.run(
            [initdb, "-D", data, "-U", "postgres", "-A", "trust", "-E", "UTF8"]
            + ["--locale=C.UTF-8", "--no-sync"],
            **options,
        )
        settings = f"-p {port} -h 127.0.0.1 -k {folder} -F"
        control = [pg_ctl, "-D", data, "-l", os.path.join(folder, "log"), "-w"]
        subprocess.run([*control, "-o", settings, "start"], **options)
        try:
            wait_for_port(port)
            yield port
        finally:
            subprocess.run([*control, "-m", "immediate", "stop"], **options)
