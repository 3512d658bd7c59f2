"""What all loops of the process and the core hold, and what they have done."""

from typing import Any

from . import _core
from .loop import open_loops

_CACHE_FIGURES = (
    "caches",
    "held_blocks",
    "held_bytes",
    "limit_bytes",
    "high_water_bytes",
    "hits",
    "misses",
    "transfers",
    "freed",
)


def stats() -> dict[str, Any]:
    """Figures of the whole process, as a new dict; from any thread.

    `loops`: what `loop.stats()` says of each loop that is open.

    `cache`: the sums over their caches of I/O buffers: `held_blocks` and
    `held_bytes` are free and kept, at most `limit_bytes`;
    `high_water_bytes` is the most there has been room for (of each loop at
    another time, perhaps); `hits` and `misses` count the buffers that were
    taken from a cache and those that were allocated, `transfers` the batches
    that moved between a thread's magazine and its loop's depot, `freed` the
    blocks given back to the system's allocator; `caches` is the number of
    magazines' owners.  A loop's figures go with it when it is closed.

    `stacks`: the stacks of the core's threads: `running` (in use) and
    `running_bytes`; `held` and `held_bytes`, the free ones, of which at most
    `limit_bytes` are kept (addresses: a free stack has no memory);
    `high_water`, the most in use at once; `hits` and `misses`.
    """
    loops = []
    cache: dict[str, int] = dict.fromkeys(_CACHE_FIGURES, 0)
    for loop in open_loops():
        try:
            one = loop.stats()
        except RuntimeError:
            continue  # closed, or the parent's of this forked process
        loops.append(one)
        for name in _CACHE_FIGURES:
            cache[name] += one["cache"][name]
    return {"loops": loops, "cache": cache, "stacks": _core._stack_stats()}
