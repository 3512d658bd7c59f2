"""Child processes: asyncio's transport, and a watch for the end of our own.

The end of a child is an event on its pidfd, so any thread may run the loop,
and SIGCHLD is left to the program.  Where there are no pidfds (or no
descriptors left) a thread waits for the child.
"""

import errno
import os
import subprocess
import threading
from asyncio import unix_events
from asyncio.log import logger
from typing import Any

from .base import BaseLoop

_Transport: Any = unix_events._UnixSubprocessTransport  # type: ignore[attr-defined]
_UNKNOWN = 255  # the return code of a child that somebody else has reaped


class SubprocessTransport(_Transport):  # type: ignore[misc]
    _exit_waiters: Any

    def _process_exited(self, returncode: int) -> None:
        super()._process_exited(returncode)
        # wait() waits for the process alone.  Before 3.14 asyncio waits for
        # the ends of its pipes too, which a grandchild may hold open, and
        # for ever where the connecting of the pipes was cancelled.
        waiters = getattr(self, "_exit_waiters", None) or ()
        self._exit_waiters = []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(returncode)


class Subprocesses(BaseLoop):
    _pidfds: set[int]

    def __init__(self, *, shards: int | None = None) -> None:
        super().__init__(shards=shards)
        self._pidfds = set()

    async def _make_subprocess_transport(
        self,
        protocol: Any,
        args: Any,
        shell: bool,
        stdin: Any,
        stdout: Any,
        stderr: Any,
        bufsize: int,
        extra: Any = None,
        **kwargs: Any,
    ) -> SubprocessTransport:
        waiter = self.create_future()
        transport = SubprocessTransport(
            self,
            protocol,
            args,
            shell,
            stdin,
            stdout,
            stderr,
            bufsize,
            waiter=waiter,
            extra=extra,
            **kwargs,
        )
        self._watch_child(transport)
        try:
            await waiter
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException:
            transport.close()
            await transport._wait()
            raise
        return transport

    def _watch_child(self, transport: SubprocessTransport) -> None:
        pid = transport.get_pid()
        try:
            pidfd = os.pidfd_open(pid)
        except AttributeError:
            self._watch_child_by_thread(transport)
        except OSError as exc:
            if exc.errno == errno.ESRCH:  # SIGCHLD is ignored
                self._child_exited(transport, None)
            else:
                self._watch_child_by_thread(transport)
        else:
            self._pidfds.add(pidfd)
            self._add_reader(pidfd, self._pidfd_ready, pidfd, transport)

    def _pidfd_ready(self, pidfd: int, transport: SubprocessTransport) -> None:
        status = None
        try:
            # By descriptor: the number may be another child's by now.
            result = os.waitid(os.P_PIDFD, pidfd, os.WEXITED | os.WNOHANG)
            if result is None:
                return
            status = result.si_status
            if result.si_code != os.CLD_EXITED:
                status = -status
        except ChildProcessError:
            pass
        self._remove_reader(pidfd)
        self._pidfds.discard(pidfd)
        os.close(pidfd)
        self._child_exited(transport, status)

    def _watch_child_by_thread(self, transport: SubprocessTransport) -> None:
        pid = transport.get_pid()
        threading.Thread(
            target=self._wait_for_child,
            args=(pid, transport),
            name=f"waitpid-{pid}",
            daemon=True,
        ).start()

    def _wait_for_child(self, pid: int, transport: SubprocessTransport) -> None:
        returncode = None
        try:
            _, status = os.waitpid(pid, 0)
            returncode = os.waitstatus_to_exitcode(status)
        except ChildProcessError:
            pass
        try:
            self.call_soon_threadsafe(self._child_exited, transport, returncode)
        except RuntimeError:
            logger.warning("Loop %r that handles pid %r is closed", self, pid)

    def _child_exited(
        self, transport: SubprocessTransport, returncode: int | None
    ) -> None:
        if returncode is None:
            # Popen.poll(), which close() calls, may have been faster.
            process: subprocess.Popen[bytes]
            process = transport.get_extra_info("subprocess")
            returncode = process.returncode
        if returncode is None:
            returncode = _UNKNOWN
            logger.warning(
                "child process pid %d exit status already read: "
                "will report returncode %d",
                transport.get_pid(),
                returncode,
            )
        # A turn later: what the child wrote last is reported before its end.
        self.call_soon(transport._process_exited, returncode)

    def _close_pidfds(self) -> None:
        while self._pidfds:
            os.close(self._pidfds.pop())

    def _after_fork(self) -> None:
        self._close_pidfds()
        super()._after_fork()
