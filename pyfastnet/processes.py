"""Child processes: the transport of subprocess_exec() and subprocess_shell().

subprocess.Popen starts the child, so everything that it takes is taken here;
what it does not offer is written here instead of inherited from asyncio,
whose base class changes with each Python version.

The end of a child is an event on its pidfd: any thread may run the loop, and
SIGCHLD is left to the program.  Where there are no pidfds (or no descriptors
left) a thread waits for the child.
"""

import asyncio
import contextlib
import io
import os
import signal
import subprocess
import threading
import warnings
import weakref
from asyncio.log import logger
from asyncio.subprocess import SubprocessStreamProtocol
from typing import Any

from .base import BaseLoop

_UNKNOWN = 255  # the return code of a child that somebody else has reaped


def _set_result(future: "asyncio.Future[Any]", result: Any) -> None:
    if not future.done():
        future.set_result(result)


class Input(asyncio.BaseProtocol):
    """One pipe of a child: its standard input, or the base of the others."""

    def __init__(self, process: "SubprocessTransport", fd: int) -> None:
        self.process: SubprocessTransport | None = process
        self.fd = fd
        self.pipe: Any = None
        self.disconnected = False

    def __repr__(self) -> str:
        return f"<{type(self).__name__} fd={self.fd} pipe={self.pipe!r}>"

    def connection_lost(self, exc: BaseException | None) -> None:
        process, self.process = self.process, None
        self.disconnected = True
        if process is not None:
            process._pipe_connection_lost(self.fd, exc)

    def pause_writing(self) -> None:
        if self.process is not None:
            self.process._protocol.pause_writing()

    def resume_writing(self) -> None:
        if self.process is not None:
            self.process._protocol.resume_writing()


class Output(Input, asyncio.Protocol):
    def data_received(self, data: bytes) -> None:
        if self.process is not None:
            self.process._protocol.pipe_data_received(self.fd, data)


class OutputReader(asyncio.StreamReader):
    """asyncio.StreamReader that reads to the end without detours.

    read(), with which communicate() collects the output, keeps what comes in
    one growing block: asyncio's copies it three times, in pieces of the limit,
    and so needs twice the memory.  A read() that is cancelled loses nothing.
    """

    # StreamReader's, which typeshed does not show.
    _buffer: bytearray
    _eof: bool
    _exception: BaseException | None
    _limit: int
    _loop: asyncio.AbstractEventLoop
    _paused: bool
    _transport: Any
    _waiter: "asyncio.Future[None] | None"
    _maybe_resume_transport: Any

    _whole: io.BytesIO | None = None

    def feed_data(self, data: Any) -> None:
        if self._whole is not None:
            self._whole.write(data)
        else:
            super().feed_data(data)

    async def read(self, n: int = -1) -> bytes:
        if n >= 0 or self._exception is not None or self._waiter is not None:
            return await super().read(n)
        whole = io.BytesIO()
        whole.write(self._buffer)
        self._buffer.clear()
        if not self._eof:
            self._whole = whole
            self._maybe_resume_transport()
            self._waiter = self._loop.create_future()
            try:
                await self._waiter
            except BaseException:
                self._buffer += whole.getbuffer()
                raise
            finally:
                self._whole = self._waiter = None
        return whole.getvalue()


class SubprocessTransport(asyncio.SubprocessTransport):
    _protocol: Any
    _proc: Any

    def __init__(
        self,
        loop: "Subprocesses",
        protocol: Any,
        args: Any,
        shell: bool,
        stdin: Any,
        stdout: Any,
        stderr: Any,
        bufsize: int,
        extra: Any = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(extra)
        self._loop: Any = loop
        self._protocol = protocol
        self._proc = None
        self._pid: int | None = None
        self._pidfd: int | None = None
        self._returncode: int | None = None
        self._closed = False
        self._beyond_reach = False  # it could not be killed
        self._finished = False
        self._exit_waiters: list[asyncio.Future[int]] = []
        self._pipes: dict[int, Any] = {}
        watched = False
        try:
            self._proc = subprocess.Popen(
                args,
                shell=shell,
                stdin=stdin,
                stdout=stdout,
                stderr=stderr,
                universal_newlines=False,
                bufsize=bufsize,
                **kwargs,
            )
            self._pid = self._proc.pid
            self._extra["subprocess"] = self._proc  # type: ignore[attr-defined]
            if loop.get_debug():
                program = args if isinstance(args, (bytes, str)) else args[0]
                logger.debug("process %r created: pid %s", program, self._pid)
            loop._watch_child(self)
            watched = True
            self._connect_pipes()
        except BaseException:
            self._give_up(watched)
            raise

    def _connect_pipes(self) -> None:
        """All at once, and not to be cancelled half-way.  Nothing is read
        before the protocol's connection_made(), which comes in this turn."""
        proc, loop = self._proc, self._loop
        if proc.stdin is not None:
            stdin = self._pipes[0] = Input(self, 0)
            stdin.pipe = loop._make_write_pipe_transport(proc.stdin, stdin, own=True)
        for fd, file in ((1, proc.stdout), (2, proc.stderr)):
            if file is not None:
                output = self._pipes[fd] = Output(self, fd)
                output.pipe = loop._make_read_pipe_transport(file, output, own=True)

    def _give_up(self, watched: bool) -> None:
        """The child runs, or does not, and cannot be used."""
        proc = self._proc
        # Which was not told of a beginning, and is not told of the end.
        self._protocol = asyncio.SubprocessProtocol()
        self.close()
        if proc is None:
            return
        if not watched and proc.returncode is None:
            self._loop._children.discard(self)
            # There was no thread to wait for it.
            with contextlib.suppress(subprocess.TimeoutExpired):
                proc.wait(1)
        for fd, file in enumerate((proc.stdin, proc.stdout, proc.stderr)):
            # A transport closes its own, a turn later: until then the number
            # must not become another file's.
            owner = self._pipes.get(fd)
            if file is not None and (owner is None or owner.pipe is None):
                file.close()

    def __repr__(self) -> str:
        info = [type(self).__name__]
        if self._closed:
            info.append("closed")
        if self._pid is not None:
            info.append(f"pid={self._pid}")
        if self._returncode is not None:
            info.append(f"returncode={self._returncode}")
        elif self._pid is not None:
            info.append("running")
        else:
            info.append("not started")
        for fd, name in enumerate(("stdin", "stdout", "stderr")):
            if fd in self._pipes:
                info.append(f"{name}={self._pipes[fd].pipe!r}")
        return f"<{' '.join(info)}>"

    # -- what asyncio.SubprocessTransport promises ---------------------------

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = protocol

    def get_protocol(self) -> Any:
        return self._protocol

    def is_closing(self) -> bool:
        return self._closed

    def get_pid(self) -> Any:
        return self._pid

    def get_returncode(self) -> int | None:
        return self._returncode

    def get_pipe_transport(self, fd: int) -> Any:
        pipe = self._pipes.get(fd)
        return None if pipe is None else pipe.pipe

    def send_signal(self, signal: int) -> None:
        """Raises ProcessLookupError once the process and its pipes are done
        with; of one that has just ended nothing is said."""
        if self._proc is None:
            raise ProcessLookupError()
        self._signal(signal)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _signal(self, number: int) -> None:
        """By descriptor, so that it never meets another process that has got
        the number."""
        if self._proc.returncode is not None:
            return
        try:
            if self._pidfd is not None:
                try:
                    signal.pidfd_send_signal(self._pidfd, number)
                    return
                except ProcessLookupError:
                    return
                except (AttributeError, OSError):
                    pass  # not this kernel's, or forbidden: kill() tells
            os.kill(self._proc.pid, number)
        except ProcessLookupError:
            pass

    def close(self) -> None:
        """Closes the pipes, and kills the child if it still runs."""
        if self._closed:
            return
        self._closed = True
        if self._loop is not None and not self._loop.is_closed():
            # Else they close with the transports that nobody has any more.
            for pipe in self._pipes.values():
                if pipe.pipe is not None:
                    pipe.pipe.close()
        if self._proc is not None and self._returncode is None:
            if self._loop.get_debug() and self._proc.returncode is None:
                logger.warning("Close running child process: kill %r", self)
            try:
                self._signal(signal.SIGKILL)
            except PermissionError:  # it has changed its user
                self._beyond_reach = True

    def __del__(self, _warn: Any = warnings.warn) -> None:
        if not self._closed:
            _warn(f"unclosed transport {self!r}", ResourceWarning, source=self)
            self.close()

    # -- what happens to the child -------------------------------------------

    def _begin(self, waiter: "asyncio.Future[None]") -> None:
        try:
            protocol = self._protocol
            protocol.connection_made(self)
            if isinstance(protocol, SubprocessStreamProtocol):
                for reader in (protocol.stdout, protocol.stderr):
                    if type(reader) is asyncio.StreamReader:
                        reader.__class__ = OutputReader
        finally:
            _set_result(waiter, None)

    def _pipe_connection_lost(self, fd: int, exc: BaseException | None) -> None:
        self._loop.call_soon(self._protocol.pipe_connection_lost, fd, exc)
        self._try_finish()

    def _process_exited(self, returncode: int) -> None:
        if self._loop.get_debug():
            logger.info("%r exited with return code %r", self, returncode)
        self._returncode = returncode
        if self._proc.returncode is None:
            self._proc.returncode = returncode
        self._loop.call_soon(self._protocol.process_exited)
        self._try_finish()
        # wait() is for the process alone, as subprocess.Popen's: a grandchild
        # may hold the pipes open.
        waiters, self._exit_waiters = self._exit_waiters, []
        for waiter in waiters:
            _set_result(waiter, returncode)

    async def _wait(self) -> int:
        """What Process.wait() calls."""
        if self._returncode is not None:
            return self._returncode
        waiter: asyncio.Future[int] = self._loop.create_future()
        self._exit_waiters.append(waiter)
        try:
            return await waiter
        finally:
            if waiter in self._exit_waiters:
                self._exit_waiters.remove(waiter)

    def _try_finish(self) -> None:
        if (
            self._returncode is not None
            and not self._finished
            and all(pipe.disconnected for pipe in self._pipes.values())
        ):
            self._finished = True
            self._loop.call_soon(self._call_connection_lost)

    def _call_connection_lost(self) -> None:
        try:
            self._protocol.connection_lost(None)
        finally:
            self._loop = self._proc = self._protocol = None


def _reap(pid: int) -> int | None:
    try:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    except ChildProcessError:
        return None


def _wait_for_child(
    pid: int,
    loop_ref: "weakref.ref[Subprocesses]",
    transport_ref: "weakref.ref[SubprocessTransport]",
) -> None:
    """In a thread of its own, which keeps nothing alive."""
    with contextlib.suppress(ChildProcessError):
        # Left for the loop's thread to reap: until then the number is the
        # child's, and a signal goes to nobody else.
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    loop, transport = loop_ref(), transport_ref()
    try:
        if loop is None or transport is None:
            raise RuntimeError
        loop.call_soon_threadsafe(loop._child_ended, transport)
    except RuntimeError:
        _reap(pid)
        logger.warning("Loop %r that handles pid %r is closed", loop, pid)


class Subprocesses(BaseLoop):
    _children: set[SubprocessTransport]  # those that run

    def __init__(self, *, shards: int | None = None) -> None:
        super().__init__(shards=shards)
        self._children = set()

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
        transport = SubprocessTransport(
            self, protocol, args, shell, stdin, stdout, stderr, bufsize, extra, **kwargs
        )
        waiter = self.create_future()
        self.call_soon(transport._begin, waiter)
        try:
            await waiter
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException:
            transport.close()
            if not transport._beyond_reach:
                await transport._wait()
            raise
        return transport

    def _watch_child(self, transport: SubprocessTransport) -> None:
        try:
            pidfd = os.pidfd_open(transport.get_pid())
        except (AttributeError, OSError) as exc:
            if isinstance(exc, ProcessLookupError):  # SIGCHLD is ignored
                self._child_exited(transport, None)
            else:
                self._watch_child_by_thread(transport)
            return
        transport._pidfd = pidfd
        self._children.add(transport)
        try:
            self._add_reader(pidfd, self._pidfd_ready, transport)
        except OSError:
            self._close_pidfd(transport)
            self._watch_child_by_thread(transport)

    def _close_pidfd(self, transport: SubprocessTransport) -> None:
        pidfd, transport._pidfd = transport._pidfd, None
        if pidfd is not None:
            os.close(pidfd)

    def _pidfd_ready(self, transport: SubprocessTransport) -> None:
        pidfd = transport._pidfd
        assert pidfd is not None
        try:
            # By descriptor: the number may be another child's by now.
            result = os.waitid(os.P_PIDFD, pidfd, os.WEXITED | os.WNOHANG)
        except ChildProcessError:
            status = None
        except OSError:  # P_PIDFD is younger than pidfds
            status = _reap(transport.get_pid())
        else:
            if result is None:
                return
            status = result.si_status
            if result.si_code != os.CLD_EXITED:
                status = -status
        self._remove_reader(pidfd)
        self._close_pidfd(transport)
        self._child_exited(transport, status)

    def _watch_child_by_thread(self, transport: SubprocessTransport) -> None:
        pid = transport.get_pid()
        threading.Thread(
            target=_wait_for_child,
            args=(pid, weakref.ref(self), weakref.ref(transport)),
            name=f"waitpid-{pid}",
            daemon=True,
        ).start()
        self._children.add(transport)

    def _child_ended(self, transport: SubprocessTransport) -> None:
        self._child_exited(transport, _reap(transport.get_pid()))

    def _child_exited(
        self, transport: SubprocessTransport, returncode: int | None
    ) -> None:
        process = transport._proc
        self._children.discard(transport)
        if returncode is None:
            # Popen.poll(), which the program may call, may have been faster,
            # and not have noted yet what it found: it does with this lock.
            with process._waitpid_lock:
                returncode = process.returncode
        if returncode is None:
            returncode = _UNKNOWN
            logger.warning(
                "child process pid %d exit status already read: "
                "will report returncode %d",
                transport.get_pid(),
                returncode,
            )
        # No signal is sent to the number from here on.
        process.returncode = returncode
        # A turn later: what the child wrote last is reported before its end.
        self.call_soon(transport._process_exited, returncode)

    def _close_pidfds(self) -> None:
        while self._children:
            self._close_pidfd(self._children.pop())

    def _after_fork(self) -> None:
        for transport in self._children:
            # The parent's child: when the copy of the transport is freed
            # here, it is not to be killed.
            transport._closed = True
            transport._proc = None
        self._close_pidfds()
        super()._after_fork()
