"""EventLoop, from its parts."""

import os
import threading
import weakref
from typing import TYPE_CHECKING, NoReturn

from . import _core
from ._limits import cache_limit as chosen_cache_limit
from .datagrams import Datagrams
from .names import Names
from .processes import Subprocesses
from .server import Servers
from .signals import Signals
from .sockets import Sockets
from .unix import Unix

if TYPE_CHECKING:

    class _Parts(  # type: ignore[misc]
        Signals, Servers, Sockets, Datagrams, Names, Unix, Subprocesses
    ):
        pass
else:

    class _Parts(
        _core.Loop,
        Signals,
        Servers,
        Sockets,
        Datagrams,
        Names,
        Unix,
        Subprocesses,
    ):
        pass


@_core.bind_methods
class EventLoop(_Parts):
    """An asyncio event loop whose I/O is C without the GIL.

    A drop-in replacement for asyncio's loop: every method of
    asyncio.AbstractEventLoop, with the arguments, errors and meaning that it
    has in asyncio of the same Python version.

    `shards` is the number of threads that do the I/O of this loop, its own
    included, 1 to 64: connections are spread over them, and those beyond the
    first are started when they are needed.  None: what PYFASTNET_SHARDS in
    the environment says (a number or `auto`); else as they pay, at most 8,
    with 4 usable CPUs and more, and 1 with fewer.  `auto` is as they pay
    wherever there are two CPUs.  Raises TypeError or ValueError for anything
    else; a wrong variable warns.

    `cache_limit` bounds the free buffers that the loop keeps for its I/O, in
    bytes, over all its threads: None (then PYFASTNET_CACHE_LIMIT, a number
    that k, m or g may follow, else 64 MiB), or at least one block of 256 KiB;
    TypeError or ValueError for anything else.  Buffers in use do not count.

    As with asyncio, a loop belongs to the thread that runs it.
    call_soon_threadsafe() and stats() may be called from any thread,
    run_in_executor() and all else from the loop's own.  After os.fork() the
    loop goes on in the parent; in the child its use is a RuntimeError, and a
    new loop works.
    """

    # All that a loop has, BaseEventLoop's included.  Where an instance has no
    # dictionary, which is made with its first other attribute, the interpreter
    # calls the methods without searching one (call_soon(): 9 % fewer
    # instructions in all).  What a later Python adds may stand there.
    __slots__ = (
        "_asyncgens",
        "_asyncgens_shutdown_called",
        "_children",
        "_clock_resolution",
        "_coroutine_origin_tracking_enabled",
        "_coroutine_origin_tracking_saved_depth",
        "_default_executor",
        "_exception_handler",
        "_executor_shutdown_called",
        "_internal_fds",
        "_old_agen_hooks",
        "_pid",
        "_pidfds",
        "_ready",
        "_scheduled",
        "_selector",
        "_signal_handlers",
        "_task_factory",
        "_timer_cancelled_count",
        "_transports",
        "_unix_server_sockets",
        "_wakeup",
    )

    def __init__(
        self, *, shards: int | None = None, cache_limit: int | None = None
    ) -> None:
        try:
            limit = chosen_cache_limit(cache_limit)
        except BaseException:
            self._closed = True  # nothing to close: keeps __del__() silent
            raise
        Signals.__init__(self, shards=shards)  # C's is called by the last
        self._set_cache_limit(limit)
        self._pid = os.getpid()
        _loops.add(self)

    def run_forever(self) -> None:
        """Runs until stop() is called.

        Raises RuntimeError if the loop is closed or runs already, if another
        loop runs in this thread, and in a forked child.  KeyboardInterrupt
        and SystemExit come out of it and leave the loop usable.
        """
        self._check_closed()
        self._check_running()
        try:
            # Within, as a KeyboardInterrupt may come in the middle of it.
            self._run_forever_setup()
            self._run()
        finally:
            try:
                self._run_forever_cleanup()
            except BaseException:
                # So may one here, most likely at the very beginning: a loop
                # that is left half running can not be used again.
                self._run_forever_cleanup()
                raise

    def close(self) -> None:
        """Closes the loop: what is pending is dropped.

        Does nothing on a closed loop; raises RuntimeError on a running one.
        """
        if self.is_running():
            raise RuntimeError("Cannot close a running event loop")
        if self.is_closed():
            return
        try:
            self._remove_signal_handlers()
        finally:
            try:
                # First, as it marks the loop as closed: the destructors of
                # what the core lets go of must find it so.
                super().close()
            finally:
                self._close()
                self._close_pidfds()

    def _after_fork(self) -> None:
        Signals._after_fork(self)  # and on to C's
        # An attribute, so that the check costs the parent nothing.
        self._check_closed = (  # type: ignore[method-assign]
            self._raise_forked
        )

    def _raise_forked(self) -> NoReturn:
        raise RuntimeError(
            f"this event loop belongs to the parent process {self._pid}: "
            "a forked child needs a new one"
        )


_loops: "weakref.WeakSet[EventLoop]" = weakref.WeakSet()
# By the thread that forks: the loops whose threads it has stopped.  Those are
# started again whoever runs them by then.
_stopped: dict[int, list[EventLoop]] = {}


def open_loops() -> list[EventLoop]:
    """The loops that are not closed; from any thread."""
    while True:
        try:
            return [loop for loop in _loops if not loop.is_closed()]
        except RuntimeError:
            # Another thread has made or dropped a loop meanwhile.
            continue


def _before_fork() -> None:
    """What was written is sent before the child could be thought to do it."""
    this_thread = threading.get_ident()
    stopped = _stopped[this_thread] = []
    for loop in open_loops():
        # A loop that another thread runs is not to be touched from here.
        if loop._thread_id in (None, this_thread):
            stopped.append(loop)
            loop._before_fork()


def _after_fork_in_child() -> None:
    _stopped.clear()
    for loop in open_loops():
        loop._after_fork()


def _after_fork_in_parent() -> None:
    for loop in _stopped.pop(threading.get_ident(), ()):
        loop._after_fork_in_parent()


os.register_at_fork(
    before=_before_fork,
    after_in_parent=_after_fork_in_parent,
    after_in_child=_after_fork_in_child,
)
