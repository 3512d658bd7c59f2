"""add_signal_handler() and the process's wake-up descriptor for signals.

All of this is for the main thread: signal.set_wakeup_fd() and signal.signal()
refuse to work in another one.
"""

import asyncio
import contextlib
import errno
import inspect
import os
import signal
import sys
import threading
import warnings
from asyncio.log import logger
from collections.abc import Callable
from types import FrameType
from typing import Any, TypeVarTuple

from .base import BaseLoop

_Ts = TypeVarTuple("_Ts")

if sys.version_info >= (3, 14):  # where asyncio's is deprecated
    _iscoroutinefunction = inspect.iscoroutinefunction
else:
    _iscoroutinefunction = asyncio.iscoroutinefunction


def _identity(fd: int) -> tuple[int, int] | None:
    """Which open file it is: a number may be another one's by now."""
    try:
        status = os.fstat(fd)
    except OSError:
        return None
    return status.st_dev, status.st_ino


# Signals that came and whose bytes were not read from the wake-up fd yet.
_seen: set[int] = set()


def _noop(signum: int, frame: FrameType | None) -> None:
    """With a handler in Python, its C half writes to the wake-up fd.  This
    half runs even if that was full."""
    _seen.add(signum)


class WakeupFd:
    """One loop's claim on signal.set_wakeup_fd(), of which a process has one.

    A loop holds it while it has signal handlers, so that a signal that comes
    between two runs is not lost, and while it runs, since a signal that comes
    just before the wait would not interrupt it.  For the sake of a run alone
    a descriptor that the program has set is left in place: the wait is
    interrupted by signals anyway, as asyncio's.  What was set before is put
    back at the end, as long as it is the same open file.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._reasons: set[str] = set()
        self._previous = -1
        self._previous_identity: tuple[int, int] | None = None

    def hold(self, reason: str, *, give_way: bool = False) -> None:
        """Raises ValueError in another thread than the main one."""
        previous = signal.set_wakeup_fd(self._fd, warn_on_full_buffer=False)
        if previous != self._fd:
            self._previous = previous
            self._previous_identity = _identity(previous)
            if previous != -1 and give_way and not self._reasons:
                self._set(previous)
                return
        self._reasons.add(reason)

    def drop(self, reason: str) -> None:
        if reason not in self._reasons:
            return
        if self._reasons == {reason}:
            current = self._set(self._previous if self._is_previous() else -1)
            if current != self._fd:  # somebody has set another one since
                self._set(current)
        self._reasons.discard(reason)

    def pass_on(self, signum: int) -> None:
        """A signal that the loop has no handler for, to whom it was for."""
        if self._is_previous():
            with contextlib.suppress(OSError):
                os.write(self._previous, bytes((signum,)))

    def forget(self) -> None:
        """In a forked child, where the loop is of no use."""
        self._reasons.clear()
        current = self._set(-1)
        if current != self._fd:
            self._set(current)

    def _is_previous(self) -> bool:
        return (
            self._previous_identity is not None
            and _identity(self._previous) == self._previous_identity
        )

    @staticmethod
    def _set(fd: int) -> int:
        try:
            return signal.set_wakeup_fd(fd)
        except (ValueError, OSError):  # closed, or blocking by now
            return signal.set_wakeup_fd(-1)


class Signals(BaseLoop):
    _signal_handlers: dict[int, asyncio.Handle]

    def __init__(self, *, shards: int | None = None) -> None:
        super().__init__(shards=shards)
        self._signal_handlers = {}
        self._wakeup = WakeupFd(self._signal_fd())

    def add_signal_handler(
        self, sig: int, callback: Callable[[*_Ts], Any], *args: *_Ts
    ) -> None:
        """Calls `callback(*args)` in the loop when the signal comes.

        Any signal but SIGKILL and SIGSTOP, SIGCHLD too; a handler that was
        there before is replaced.  Main thread only.  Raises TypeError for a
        coroutine or a signal that is no int, ValueError for an invalid
        signal number, RuntimeError in another thread and for a signal that
        cannot be caught.
        """
        if asyncio.iscoroutine(callback) or _iscoroutinefunction(callback):
            raise TypeError("coroutines cannot be used with add_signal_handler()")
        self._check_signal(sig)
        self._check_closed()
        try:
            # First, as this is what fails in another thread.
            self._wakeup.hold("handlers")
        except (ValueError, OSError) as exc:
            raise RuntimeError(str(exc)) from exc
        self._signal_handlers[sig] = asyncio.Handle(callback, args, self)
        try:
            signal.signal(sig, _noop)
            # SA_RESTART: fewer EINTR in libraries.
            signal.siginterrupt(sig, False)
        except OSError as exc:
            del self._signal_handlers[sig]
            if not self._signal_handlers:
                self._wakeup.drop("handlers")
            if exc.errno == errno.EINVAL:
                raise RuntimeError(f"sig {sig} cannot be caught") from exc
            raise

    def remove_signal_handler(self, sig: int) -> bool:
        """Puts back the default action of the signal.

        Returns whether the loop had a handler for it.  Main thread only.
        """
        self._check_signal(sig)
        if self._signal_handlers.pop(sig, None) is None:
            return False
        default: Any = signal.SIG_DFL
        if sig == signal.SIGINT:
            default = signal.default_int_handler
        try:
            signal.signal(sig, default)
        except OSError as exc:
            if exc.errno == errno.EINVAL:
                raise RuntimeError(f"sig {sig} cannot be caught") from exc
            raise
        if not self._signal_handlers:
            self._wakeup.drop("handlers")
        return True

    def _check_signal(self, sig: int) -> None:
        if not isinstance(sig, int):
            raise TypeError(f"sig must be an int, not {sig!r}")
        if sig not in signal.valid_signals():
            raise ValueError(f"invalid signal number {sig}")

    def _process_self_data(self, data: bytes) -> None:
        """What came through the wake-up fd.  The core calls this."""
        _seen.difference_update(data)
        for signum in data:
            if signum in self._signal_handlers:
                self._handle_signal(signum)
            elif signum:
                self._wakeup.pass_on(signum)

    def _signals_were_lost(self) -> None:
        """The wake-up fd may have been full.  The core calls this, once
        everything was read."""
        for signum in sorted(_seen & self._signal_handlers.keys()):
            _seen.discard(signum)
            self._handle_signal(signum)

    def _handle_signal(self, sig: int) -> None:
        handle = self._signal_handlers.get(sig)
        if handle is None:
            return
        if handle.cancelled():
            self.remove_signal_handler(sig)
        else:
            self._add_callback_signalsafe(handle)

    def _remove_signal_handlers(self) -> None:
        """For close(), from which point on nothing reads the signals."""
        if not self._signal_handlers:
            return
        if sys.is_finalizing():
            # The signal module may be gone already.
            warnings.warn(
                f"Closing the loop {self!r} on interpreter shutdown stage, "
                "skipping signal handlers removal",
                ResourceWarning,
                source=self,
                stacklevel=3,
            )
            self._signal_handlers.clear()
            return
        for sig in list(self._signal_handlers):
            self.remove_signal_handler(sig)

    def _run_forever_setup(self) -> None:
        super()._run_forever_setup()
        if threading.current_thread() is threading.main_thread():
            try:
                self._wakeup.hold("run", give_way=True)
            except (ValueError, OSError):
                # Not the main interpreter, where no signal handler runs.
                logger.debug("no wake-up by signals", exc_info=True)

    def _run_forever_cleanup(self) -> None:
        try:
            self._wakeup.drop("run")
        finally:
            super()._run_forever_cleanup()

    def _after_fork(self) -> None:
        self._wakeup.forget()
        super()._after_fork()
