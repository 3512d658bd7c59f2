"""The cold error paths of the C core: called by it, never by programs."""

from __future__ import annotations

import errno
import operator
import socket
import sys
from asyncio import format_helpers
from asyncio.log import logger
from typing import Any


def extract_stack() -> Any:
    """The traceback that debug mode keeps with a handle."""
    return format_helpers.extract_stack(sys._getframe(1))


def handle_repr(handle: Any) -> str:
    """What repr() of a Handle says, in asyncio's words."""
    info = [type(handle).__name__]
    if handle._repr is not None:
        return str(handle._repr)
    if handle.cancelled():
        info.append("cancelled")
    if hasattr(handle, "_when"):
        info.append(f"when={handle._when}")
    if handle._callback is not None:
        info.append(
            format_helpers._format_callback_source(handle._callback, handle._args)
        )
    if handle._source_traceback:
        frame = handle._source_traceback[-1]
        info.append(f"created at {frame[0]}:{frame[1]}")
    return f"<{' '.join(info)}>"


def callback_failed(loop: Any, handle: Any, exc: BaseException) -> None:
    """A callback has raised: tell the loop's exception handler."""
    source = format_helpers._format_callback_source(
        handle._callback, handle._args or ()
    )
    context = {
        "message": f"Exception in callback {source}",
        "exception": exc,
        "handle": handle,
    }
    if handle._source_traceback:
        context["source_traceback"] = handle._source_traceback
    loop.call_exception_handler(context)


def _format(what: Any) -> str:
    """A handle's task, if it is a task's step; else what repr() says."""
    callback = getattr(what, "_callback", None)
    owner = getattr(callback, "__self__", None)
    if owner is not None and hasattr(owner, "get_coro"):
        return repr(owner)
    return str(what)


def slow_callback(loop: Any, what: Any, seconds: float) -> None:
    """Debug mode: a callback took its time."""
    logger.warning("Executing %s took %.3f seconds", _format(what), seconds)


def _tell(
    loop: Any, exc: BaseException, message: str, transport: Any, protocol: Any
) -> None:
    loop.call_exception_handler(
        {
            "message": message,
            "exception": exc,
            "transport": transport,
            "protocol": protocol,
        }
    )


def transport_failed(
    loop: Any, exc: BaseException, message: str, transport: Any, protocol: Any
) -> None:
    """An error ends a connection: reported unless it is the network's."""
    if isinstance(exc, OSError):
        logger.debug("%r: %s", transport, message, exc_info=exc)
        return
    _tell(loop, exc, message, transport, protocol)


def method_failed(
    loop: Any, exc: BaseException, method: str, transport: Any, protocol: Any
) -> None:
    """A method of a protocol has raised: the transport goes on."""
    _tell(
        loop, exc, f"Exception in callback {protocol!r}.{method}()", transport, protocol
    )


def flow_control_failed(
    loop: Any, exc: BaseException, message: str, transport: Any, protocol: Any
) -> None:
    """pause_writing() or resume_writing() has raised."""
    _tell(loop, exc, message, transport, protocol)


def retry_later(loop: Any, transport: Any, delay: float) -> None:
    """Datagrams wait for room of which the kernel will not tell."""
    loop.call_later(delay, transport._retry)


def resolve_address(sock: socket.socket, address: Any) -> Any:
    """The address with its host name looked up, as sock.sendto() does it,
    and with the errors that it raises."""
    if sock.family == socket.AF_UNIX:
        return bytes(address)
    host, port, *rest = address
    if isinstance(host, (bytes, bytearray)):
        host = host.decode("ascii")
    if host == "":
        host = "0.0.0.0" if sock.family == socket.AF_INET else "::"
    elif host == "<broadcast>":
        host = "255.255.255.255"
    found = socket.getaddrinfo(host, None, sock.family, socket.SOCK_DGRAM)
    resolved: Any = found[0][4]
    if sock.family == socket.AF_INET:
        return (resolved[0], operator.index(port))
    flow, scope = (*rest, 0, 0)[:2]
    host = resolved[0].partition("%")[0]
    return (host, operator.index(port), flow, scope or resolved[3])


def accept_failed(loop: Any, exc: BaseException) -> None:
    """No connection could be made of an accepted socket."""
    loop.call_exception_handler(
        {
            "message": "Error on transport creation for incoming connection",
            "exception": exc,
        }
    )


def wake_waiter(waiter: Any) -> None:
    """Complete a future that nobody has completed or cancelled yet."""
    if not waiter.done():
        waiter.set_result(None)


def fail_waiter(waiter: Any) -> None:
    """The connection is gone from under whoever waits."""
    if not waiter.done():
        waiter.set_exception(ConnectionError("Connection is closed by peer"))


def warn_lost() -> None:
    """Somebody goes on writing to a connection that is lost."""
    logger.warning("socket.send() raised exception.")


def pipe_failed(
    loop: Any, exc: BaseException, transport: Any, protocol: Any, writing: int
) -> None:
    """An error ends a pipe transport.  A reader that has gone, or a terminal
    (EIO), is not reported, but a read() that fails otherwise is."""
    message = f"Fatal {'write' if writing else 'read'} error on pipe transport"
    if isinstance(exc, OSError) and (writing or exc.errno == errno.EIO):
        if loop.get_debug():
            logger.debug("%r: %s", transport, message, exc_info=exc)
        return
    _tell(loop, exc, message, transport, protocol)


def closed_by_peer(transport: Any) -> None:
    """Debug mode: the other end of a pipe has gone."""
    logger.info("%r was closed by peer", transport)


def warn_pipe_lost() -> None:
    """Somebody goes on writing to a pipe that is closed or lost."""
    logger.warning("pipe closed by peer or os.write(pipe, data) raised exception.")
