"""What the measurements have to show, in a form that report.py can check.

A bar is about one figure of one workload on one loop: the median over the
rounds (or the worst of them) or, where it is `against` another loop, the median
of the ratio within a round.
"""

import operator
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from benchmarks import coalescing_cost, harness, leaks, loops

COMPARISONS = {"≤": operator.le, "≥": operator.ge}
PEERS = "peers"
UVLOOP, LIMIT, ASYNCIO = "uvloop", loops.LIMIT, "asyncio"


@dataclass(frozen=True)
class Bar:
    workload: str
    key: str
    sign: str
    limit: float
    against: str | None = None
    loop: str = "pyfastnet"
    worst: bool = False
    """of all rounds, not the median"""


def echo_bars() -> Iterator[Bar]:
    for name in ("proto-1k", "proto-10k", "proto-1000conn", "unix-1k"):
        yield Bar(name, "cpu_us", "≤", 0.87, UVLOOP)
        yield Bar(name, "cpu_us", "≤", 1.03, LIMIT)
        yield Bar(name, "rate", "≥", 1.10, UVLOOP)
        yield Bar(name, "cpu_us", "≤", 1.00, PEERS)
    yield Bar("proto-100k", "cpu_us", "≤", 0.92, UVLOOP)
    yield Bar("buffered-100k", "cpu_us", "≤", 0.90, UVLOOP)
    yield Bar("proto-1conn", "rate", "≥", 0.97, UVLOOP)
    yield Bar("proto-1conn", "p99_us", "≤", 1.00, UVLOOP)
    yield Bar("oneshot", "cpu_us", "≤", 0.90, UVLOOP)
    yield Bar("pieces", "rate", "≥", 10.0, UVLOOP)
    yield Bar("pieces", "rate", "≥", 1.0, "blazio")
    yield Bar("pieces", "rate", "≥", 0.70, LIMIT)
    yield Bar("sock-1k", "rate", "≥", 2.3, UVLOOP)
    yield Bar("sock-1k", "rate", "≥", 1.0, "blazio")
    yield Bar("sock-1k", "rate", "≥", 1.0, "rloop")
    yield Bar("sock-1k", "cpu_us", "≤", 0.42, UVLOOP)


def datagram_bars() -> Iterator[Bar]:
    for name in ("udp-1k", "udp-deep"):
        yield Bar(name, "cpu_us", "≤", 0.68, UVLOOP)
        yield Bar(name, "rate", "≥", 1.35, UVLOOP)
        yield Bar(name, "rate", "≥", 0.97, "rloop")
    yield Bar("udp-deep", "cpu_us", "≤", 1.00, LIMIT)


def write_bars() -> Iterator[Bar]:
    for mode in ("compute", "block", "late", "crowd"):
        for state in ("fresh", "worn"):
            yield Bar(f"{mode}-{state}", "max_ms", "≤", 2.0, worst=True)
    for name in coalescing_cost.WORKLOADS:
        yield Bar(
            name, "cpu_us", "≤", 1.02, coalescing_cost.OFF, loop=coalescing_cost.ON
        )
    for conns in (1, 10, 100):
        for per_turn in (1, 16):
            yield Bar(f"clients-{conns}x{per_turn}", "cpu_us", "≤", 0.85, UVLOOP)
        yield Bar(f"clients-{conns}x16", "rate", "≥", 3.0, UVLOOP)


def callback_bars() -> Iterator[Bar]:
    wanted = {
        "call_soon": 1.5,
        "task_switch": 1.45,
        "future_wake": 1.35,
        "timers": 4.0,
        "timers_fire": 2.5,
        "executor": 1.1,
    }
    for name, ratio in wanted.items():
        yield Bar(name, "rate", "≥", ratio, UVLOOP)
    for name in (*wanted, "threadsafe"):
        yield Bar(name, "rate", "≥", 0.97, "rloop")


def process_bars() -> Iterator[Bar]:
    for name in ("spawn", "communicate"):
        yield Bar(name, "rate", "≥", 1.2, UVLOOP)
    yield Bar("sendfile", "rate", "≥", 1.0, ASYNCIO)
    yield Bar("sendfile", "cpu_us", "≤", 1.0, ASYNCIO)


def other_bars() -> Iterator[Bar]:
    for name in ("idle-paused", "idle-sock"):
        yield Bar(name, "switches", "≤", 300)
        yield Bar(name, "cpu_ms", "≤", 1.0, ASYNCIO)
    yield Bar("memory-idle", "kib_idle", "≤", 1.0, UVLOOP)
    yield Bar("memory-burst", "after_ratio", "≤", 1.15, worst=True)
    for name, ratio in (("uvicorn", 0.72), ("uvicorn-h11", 0.92), ("aiohttp", 0.87)):
        yield Bar(name, "cpu_us", "≤", ratio, UVLOOP)
        yield Bar(name, "rate", "≥", 1.0, "blazio")
    for place in ("apart", "together", "own"):
        for kind in ("proto", "streams"):
            yield Bar(f"gil-{place}-{kind}", "rate", "≥", 1.0, UVLOOP)
            yield Bar(f"gil-{place}-{kind}", "thread_rate", "≥", 0.9, UVLOOP)
    for key in ("waits", "receives", "sends"):
        yield Bar("syscalls", key, "≤", 1.01, worst=True)
    yield Bar("syscalls", "changes", "≤", 0.0, worst=True)
    for name in leaks.KINDS:
        yield Bar(name, "leaks", "≤", 0)


BARS = (
    *echo_bars(),
    *datagram_bars(),
    *write_bars(),
    *callback_bars(),
    *process_bars(),
    *other_bars(),
)

Results = Mapping[str, list[dict[str, Any]]]


def expand(bar: Bar, results: Results) -> list[Bar]:
    """One bar for each peer that was measured."""
    if bar.against != PEERS:
        return [bar]
    there = [peer for peer in loops.PEERS if peer in results]
    return [replace(bar, against=peer) for peer in there]


def reached(bar: Bar, results: Results) -> tuple[float, bool] | None:
    """The figure and whether it is good enough; None if it was not measured."""
    if bar.loop not in results:
        return None
    rounds = results[bar.loop]
    if bar.against is None and bar.worst:
        if any(bar.key not in r for r in rounds):
            return None
        indexes, _ = harness.usable_rounds({bar.loop: rounds})
        values = [rounds[i][bar.key] for i in indexes]
        value = max(values) if bar.sign == "≤" else min(values)
    else:
        base = bar.against or bar.loop
        if base not in results or not any(bar.key in r for r in results[base]):
            return None
        pair = {name: results[name] for name in {bar.loop, base}}
        figure = harness.figure(pair, bar.loop, bar.key, base)
        if figure is None:
            return None
        value = figure.ratio if bar.against else figure.median
    good = COMPARISONS[bar.sign](value, bar.limit)
    return value, good and not harness.count_errors(rounds)
