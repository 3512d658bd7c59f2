"""Event loops by name.

A name is a module with `new_event_loop`, `EventLoop` or `Loop` (`uvloop`),
`module:factory`, or `aiofastnet+MODULE` for that transport layer on a loop.
`NAME@VAR=VALUE` sets an environment variable for the process of the loop:
`pyfastnet@PYFASTNET_DEFER=0`.  Three names stand for more: `default` for the
three that every comparison has, `peers` for the others that are installed,
and, where the loop is the server, `limit` for the bare C server.
"""

import asyncio
import importlib
import importlib.metadata
import os
from collections.abc import Callable, Iterable

DEFAULT = ("asyncio", "uvloop", "pyfastnet")
PEERS = ("blazio", "talyn", "rloop")
LIMIT = "limit"

_DISTRIBUTIONS = {"pyfastnet": "pyfastnet-io"}
_HINTS = {
    "pyfastnet": "build it: pip install -e .",
    "uvloop": "install it: pip install uvloop",
}

LoopFactory = Callable[[], asyncio.AbstractEventLoop]


def split(name: str) -> tuple[str, dict[str, str]]:
    """A name's loop and its environment variables."""
    loop, *settings = name.split("@")
    return loop, dict(setting.split("=", 1) for setting in settings)


def factory(name: str) -> LoopFactory:
    """What makes the loop `name`, whose settings enter this process."""
    name, settings = split(name)
    os.environ.update(settings)
    if name.startswith("aiofastnet"):
        import aiofastnet

        base = name.partition("+")[2]
        return aiofastnet.loop_factory(*([factory(base)] if base else []))
    module_name, _, attribute = name.partition(":")
    module = importlib.import_module(module_name)
    for candidate in (attribute, "new_event_loop", "EventLoop", "Loop"):
        if candidate and hasattr(module, candidate):
            return getattr(module, candidate)
    return module.EventLoopPolicy().new_event_loop


def problem(name: str) -> str | None:
    """Why the loop cannot be used here, or None."""
    base = split(name)[0]
    if base == LIMIT:
        return None
    try:
        factory(base)
    except (ImportError, AttributeError) as e:
        return f"{base}: {e} ({_HINTS.get(base, 'is it installed?')})"
    return None


def resolve(text: str | Iterable[str]) -> list[str]:
    """The names in a comma-separated list.  A loop that is named and missing
    is an error; `peers` leaves out what is missing."""
    wanted = text.split(",") if isinstance(text, str) else text
    names: list[str] = []
    for name in wanted:
        if name == "default":
            names.extend(DEFAULT)
        elif name == "peers":
            names.extend(peer for peer in PEERS if problem(peer) is None)
        elif name:
            names.append(name)
    names = list(dict.fromkeys(names))
    problems = [p for p in map(problem, names) if p is not None]
    if problems or not names:
        raise SystemExit("benchmarks: " + "; ".join(problems or ["no loop named"]))
    return names


def version(name: str) -> str:
    """The version of the distribution behind a name, '' for none."""
    base = split(name)[0].partition(":")[0].partition("+")[0]
    try:
        return importlib.metadata.version(_DISTRIBUTIONS.get(base, base))
    except importlib.metadata.PackageNotFoundError:
        return ""
