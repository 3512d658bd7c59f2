"""tests/clients: what its runner does about servers, missing and there."""

import glob
import os
import socket
import sys

import pytest

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "clients"))
import run
import services


@pytest.fixture
def bare(monkeypatch, tmp_path):
    """A machine without servers."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(glob, "glob", lambda pattern: [])


@pytest.mark.parametrize("name", ["redis", "postgres"])
def test_missing_servers_are_named(bare, name):
    with pytest.raises(services.Missing, match="Debian"):
        with getattr(services, name)():
            raise AssertionError("there is none")


@pytest.mark.parametrize("ci", ["true", ""])
def test_missing_servers_fail_in_ci_and_skip_elsewhere(monkeypatch, capsys, ci):
    def missing(self, suite):
        raise services.Missing("redis-server")

    monkeypatch.setattr(run.Runner, "make_environment", lambda self: None)
    monkeypatch.setattr(run.Runner, "run", missing)
    monkeypatch.setattr(sys, "argv", ["run.py", "redis"])
    monkeypatch.setenv("CI", ci)
    assert run.main() == bool(ci)
    said = capsys.readouterr().out
    assert "redis: skipped: needs redis-server" in said
    assert said.endswith("0 passed, 1 failed\n" if ci else "0 passed, 0 failed\n")


def test_failures_of_ours_alone_are_told(monkeypatch, capsys):
    """What asyncio fails too, what passes alone and what is known is not."""
    suite = run.Suite("it", "1", [], [], [], [], known={"known": "a reason"})
    names = ["both", "once", "ours", "known"]
    answers = [
        dict.fromkeys(names, "failed") | {"good": "passed"},
        {"both": "failed", "once": "passed", "ours": "passed", "known": "passed"},
        {"once": "passed", "ours": "failed", "known": "failed"},
    ]
    asked = []

    def pytest_run(self, suite, folder, loop, what, service):
        asked.append(loop)
        return answers.pop(0)

    monkeypatch.setattr(run.Runner, "unpack", lambda self, suite: "/nowhere")
    monkeypatch.setattr(run.Runner, "install", lambda self, suite: None)
    monkeypatch.setattr(run.Runner, "pytest", pytest_run)

    class Options:
        work = os.devnull
        smoke = False
        both = False

    runner = run.Runner(Options)
    runner.work = os.path.dirname(__file__)
    monkeypatch.setattr(run.Runner, "again", pytest_run)
    runner.run(suite)
    assert asked == ["pyfastnet", "asyncio", "pyfastnet"]
    assert runner.ours_only == ["ours"]
    said = capsys.readouterr().out
    assert "FAILED it ours" in said
    assert "known: it known: a reason" in said


def test_both_tells_what_ended_otherwise(monkeypatch, capsys):
    suite = run.Suite("it", "1", [], [], [], [])
    answers = [
        {"good": "passed", "bad": "failed", "left out": "passed", "gone": "passed"},
        {"good": "passed", "bad": "failed", "left out": "skipped", "new": "passed"},
        {"left out": "passed", "gone": "passed"},
        {"left out": "skipped", "gone": "passed"},
    ]
    asked = []

    def pytest_run(self, suite, folder, loop, what, service):
        asked.append((loop, what))
        return answers.pop(0)

    monkeypatch.setattr(run.Runner, "unpack", lambda self, suite: "/nowhere")
    monkeypatch.setattr(run.Runner, "install", lambda self, suite: None)
    monkeypatch.setattr(run.Runner, "pytest", pytest_run)
    monkeypatch.setattr(run.Runner, "again", pytest_run)

    class Options:
        work = os.devnull
        smoke = False
        both = True

    runner = run.Runner(Options)
    runner.run(suite)
    alone = ["left out", "gone"]
    assert asked == [
        ("asyncio", ["tests"]),
        ("pyfastnet", ["tests"]),
        ("asyncio", alone),
        ("pyfastnet", alone),
    ]
    assert runner.ours_only == ["left out"]
    said = capsys.readouterr().out
    assert "it 1 on asyncio: 3 passed, 0 skipped, 1 failed" in said
    assert "it 1 on pyfastnet: 2 passed, 1 skipped, 1 failed" in said
    assert "differs: left out: passed, on pyfastnet skipped" in said
    assert "differs: gone: passed, on pyfastnet not run" in said
    assert "differs: new: not run, on pyfastnet passed" in said
    assert "bad" not in said


@pytest.mark.skipif(
    "asan" in os.environ.get("LD_PRELOAD", ""),
    reason="the servers are not ours, and take minutes under a sanitizer",
)
@pytest.mark.parametrize("name", ["redis", "postgres"])
def test_servers_come_and_go(name):
    try:
        with getattr(services, name)() as port:
            socket.create_connection(("127.0.0.1", port), 5).close()
    except services.Missing as exc:
        pytest.skip(f"needs {exc}; the CI's stage clients fails without")
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), 5)
