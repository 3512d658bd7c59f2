"""A pytest plugin (-p on_loop) that puts another loop in asyncio's place, for
test suites that know nothing of it.

    CLIENTS_LOOP      the module whose loop it is: asyncio or pyfastnet
    CLIENTS_RESULTS   the file for {"loops": made, "outcomes": {node id: word}}
"""

import asyncio
import importlib
import json
import os
import warnings
from asyncio import unix_events

# A test has the worst of what its phases had.
_WORDS = ("passed", "skipped", "failed")
_outcomes = {}
_made = 0


def _install(module):
    loop_class = module.EventLoop

    class Counted(loop_class):
        """Counts itself, to prove that the suite has run on this loop."""

        def __init__(self, *args, **kwargs):
            global _made
            _made += 1
            super().__init__(*args, **kwargs)

    Counted.__name__ = Counted.__qualname__ = loop_class.__name__
    for place in (asyncio, unix_events):
        for name in ("SelectorEventLoop", "EventLoop", "new_event_loop"):
            if hasattr(place, name):
                setattr(place, name, Counted)
    if hasattr(asyncio, "set_event_loop_policy"):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            policy = _default_policy()
            asyncio.set_event_loop_policy(
                type("Policy", (policy,), {"_loop_factory": Counted})()
            )


def _default_policy():
    # 3.14 has the name with an underscore, and warns of the one without.
    name = "_DefaultEventLoopPolicy"
    return getattr(unix_events, name, None) or unix_events.DefaultEventLoopPolicy


def pytest_configure(config):
    name = os.environ["CLIENTS_LOOP"]
    if name == "asyncio":
        return
    _install(importlib.import_module(name))


def pytest_runtest_logreport(report):
    word = report.outcome
    if hasattr(report, "wasxfail"):
        word = "skipped" if report.skipped else "passed"
    before = _outcomes.get(report.nodeid, "passed")
    _outcomes[report.nodeid] = max(before, word, key=_WORDS.index)


def pytest_collectreport(report):
    if report.failed:
        _outcomes[report.nodeid or "collection"] = "failed"


def pytest_sessionfinish(session):
    with open(os.environ["CLIENTS_RESULTS"], "w") as file:
        json.dump({"loops": _made, "outcomes": _outcomes}, file)
