"""BaseLoop: asyncio.BaseEventLoop under the C core.

The parts of EventLoop (signals, servers, sockets, ...) are classes over it,
each in a module of its own; pyfastnet.loop puts them together.  There C comes
first in the order of resolution and has the hot methods: next to the class
itself, as each call of one walks that order up to it.  What C lacks is
asyncio's, and so follows the Python version by itself.
"""

import asyncio
import contextlib
import operator
import os
import sys
import threading
import warnings
import weakref
from asyncio import events
from collections.abc import Callable
from concurrent.futures import Executor
from typing import TYPE_CHECKING, Any

from . import _core

MAX_SHARDS = 64
# Where nobody says how many: at most, and from how many CPUs on more than one.
MAX_AUTO = 8
MIN_CPUS = 4


class NoSelector:
    """What asyncio's transports ask for the state that their repr() shows."""

    def get_key(self, fileobj: Any) -> Any:
        raise KeyError(fileobj)

    def get_map(self) -> dict[Any, Any]:
        return {}


if TYPE_CHECKING:

    class _Base(_core.Loop, asyncio.BaseEventLoop):  # type: ignore[misc]
        pass
else:
    _Base = asyncio.BaseEventLoop


class BaseLoop(_Base):
    # asyncio's transports for pipes and for rare kinds of sockets enter
    # themselves here, by descriptor; the core looks here too before it lets
    # anybody watch one.
    _transports: "weakref.WeakValueDictionary[int, Any]"

    def __init__(self, *, shards: int | None = None) -> None:
        try:
            limit, adaptive = shard_limit(shards)
            _core.Loop.__init__(self, shards=limit, adaptive=adaptive)
        except BaseException:
            # There is nothing to close: keeps __del__() silent.
            self._closed = True
            raise
        self._transports = weakref.WeakValueDictionary()
        self._selector = NoSelector()
        self._old_agen_hooks: Any = None
        asyncio.BaseEventLoop.__init__(self)

    def _after_fork(self) -> None:
        _core.Loop._after_fork(self)

    if TYPE_CHECKING:
        # BaseEventLoop's, which typeshed does not show.
        _default_executor: Executor | None
        _asyncgen_firstiter_hook: Callable[[Any], None]
        _asyncgen_finalizer_hook: Callable[[Any], None]

        def _check_closed(self) -> None: ...
        def _check_callback(self, callback: Any, method: str) -> None: ...
        def _check_running(self) -> None: ...
        def _check_sendfile_params(
            self, sock: Any, file: Any, offset: int, count: int | None
        ) -> None: ...
        def _set_coroutine_origin_tracking(self, enabled: bool) -> None: ...
        async def _ensure_resolved(
            self,
            address: Any,
            *,
            family: int = 0,
            type: int = ...,
            proto: int = 0,
            flags: int = 0,
            loop: asyncio.AbstractEventLoop,
        ) -> list[tuple[Any, ...]]: ...

    if sys.version_info < (3, 13):
        # What BaseEventLoop has from 3.13 on: two hooks for loops that are
        # driven by another one, and a timeout that is kept.

        def _run_forever_setup(self) -> None:
            self._check_closed()
            self._check_running()
            self._set_coroutine_origin_tracking(self._debug)
            self._old_agen_hooks = sys.get_asyncgen_hooks()
            self._thread_id = threading.get_ident()
            sys.set_asyncgen_hooks(
                firstiter=self._asyncgen_firstiter_hook,
                finalizer=self._asyncgen_finalizer_hook,
            )
            events._set_running_loop(self)

        def _run_forever_cleanup(self) -> None:
            self._stopping = False
            self._thread_id = None
            events._set_running_loop(None)
            self._set_coroutine_origin_tracking(False)
            if self._old_agen_hooks is not None:
                sys.set_asyncgen_hooks(*self._old_agen_hooks)
                self._old_agen_hooks = None

        async def shutdown_default_executor(self, timeout: float | None = None) -> None:
            """Waits for the default executor's threads, at most `timeout`
            seconds, and lets it take no more jobs."""
            self._executor_shutdown_called = True
            executor = self._default_executor
            if executor is None:
                return
            future = self.create_future()
            thread = threading.Thread(
                target=self._join_executor, args=(executor, future)
            )
            thread.start()
            try:
                async with asyncio.timeout(timeout):
                    await future
            except TimeoutError:
                warnings.warn(
                    "The executor did not finishing joining "
                    f"its threads within {timeout} seconds.",
                    RuntimeWarning,
                    stacklevel=2,
                )
                executor.shutdown(wait=False)
            else:
                thread.join()

        def _join_executor(
            self, executor: Executor, future: "asyncio.Future[None]"
        ) -> None:
            """In a thread of its own, as it may take for ever."""
            exception: Exception | None = None
            try:
                executor.shutdown(wait=True)
            except Exception as exc:
                exception = exc

            def done() -> None:
                if future.done():
                    pass
                elif exception is not None:
                    future.set_exception(exception)
                else:
                    future.set_result(None)

            with contextlib.suppress(RuntimeError):  # the loop is closed
                self.call_soon_threadsafe(done)

    elif TYPE_CHECKING:

        def _run_forever_setup(self) -> None: ...
        def _run_forever_cleanup(self) -> None: ...


def shard_limit(shards: int | None) -> tuple[int, bool]:
    """How many shards a loop may have, and whether it has them only as they
    pay.

    From `shards`, else from PYFASTNET_SHARDS (a number, or `auto`: as they
    pay, wherever there are two CPUs); else as they pay with 4 CPUs and more,
    and one with fewer.  A wrong argument raises TypeError or ValueError; a
    wrong variable, which the program may know nothing of, warns.
    """
    if shards is not None:
        if isinstance(shards, bool):
            raise TypeError("shards must be None or an int, not bool")
        shards = operator.index(shards)
        if not 1 <= shards <= MAX_SHARDS:
            raise ValueError(f"shards must be from 1 to {MAX_SHARDS}: {shards}")
        return shards, False
    text = os.environ.get("PYFASTNET_SHARDS", "").strip()
    if text.isascii() and text.isdigit() and 1 <= int(text) <= MAX_SHARDS:
        return int(text), False
    if text not in ("", "auto"):
        warnings.warn(
            f"PYFASTNET_SHARDS={text!r} is ignored: expected auto or a number "
            f"from 1 to {MAX_SHARDS}",
            RuntimeWarning,
            stacklevel=2,
        )
    cpus = _core.usable_cpus()
    if text != "auto" and cpus < MIN_CPUS:
        return 1, False
    return max(1, min(cpus, MAX_AUTO)), cpus > 1
