"""How much memory a loop's caches may keep: what was asked for, checked."""

import operator
import os
import re
import sys
import warnings

BLOCK = 256 * 1024
"""the largest block; a limit below it could not keep one"""

DEFAULT_CACHE_LIMIT = 64 * 1024 * 1024
"""as much as a burst on a thousand connections uses at a time"""

_UNITS = {"": 1, "k": 1024, "m": 1024**2, "g": 1024**3}
_SIZE = re.compile(r"\s*([0-9]{1,20})\s*([kmg]?)\s*", re.ASCII | re.IGNORECASE)


def cache_limit(limit: int | None) -> int:
    """`limit` in bytes; None: what PYFASTNET_CACHE_LIMIT says, a number of
    bytes or of KiB, MiB or GiB with k, m or g behind it, else 64 MiB.

    Raises TypeError for what is no integer, and ValueError for less than one
    block of 256 KiB or more than there are addresses.  What cannot be used in
    the environment is a RuntimeWarning, and the default holds.
    """
    if limit is None:
        return _from_environment()
    if isinstance(limit, bool):
        raise TypeError("cache_limit must be None or an int, not bool")
    limit = operator.index(limit)
    if not BLOCK <= limit <= sys.maxsize:
        raise ValueError(
            f"cache_limit must be from {BLOCK} (one block) to {sys.maxsize} "
            f"bytes: {limit}"
        )
    return limit


def _from_environment() -> int:
    text = os.environ.get("PYFASTNET_CACHE_LIMIT", "")
    if not text.strip():
        return DEFAULT_CACHE_LIMIT
    match = _SIZE.fullmatch(text)
    if match is not None:
        limit = int(match[1]) * _UNITS[match[2].lower()]
        if BLOCK <= limit <= sys.maxsize:
            return limit
    warnings.warn(
        f"PYFASTNET_CACHE_LIMIT={text!r} is not a number of bytes (k, m and g "
        f"may follow it) from one block ({BLOCK}) on: {DEFAULT_CACHE_LIMIT} it is",
        RuntimeWarning,
        stacklevel=4,
    )
    return DEFAULT_CACHE_LIMIT
