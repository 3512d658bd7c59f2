"""pyfastnet: a fast asyncio event loop for Linux, and blocking sockets.

    import pyfastnet

    pyfastnet.run(main())

A program that is given its loop by a framework names the factory instead:

    asyncio         asyncio.Runner(loop_factory=pyfastnet.new_event_loop)
    uvicorn         uvicorn app:app --loop pyfastnet:new_event_loop
    aiohttp         web.run_app(app, loop=pyfastnet.new_event_loop())
    anyio           anyio.run(main, backend_options={
                        "loop_factory": pyfastnet.new_event_loop})
    pytest-asyncio  def pytest_asyncio_loop_factories(config, item):
                        return {"pyfastnet": pyfastnet.new_event_loop}
    gunicorn        a subclass of uvicorn_worker.UvicornWorker with
                    CONFIG_KWARGS = {"loop": "pyfastnet:new_event_loop"}

Programs of threads have Socket, create_connection() and their kin: see
pyfastnet.socket, which can be imported in the place of the socket module.
"""

import asyncio
import sys
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

from ._stats import stats
from .loop import EventLoop
from .socket import (
    Socket,
    create_connection,
    create_server,
    from_socket,
    fromfd,
    socketpair,
)

__version__ = "0.1.0"
__all__ = ["EventLoop", "new_event_loop", "run", "stats"]
__all__ += ["Socket", "create_connection", "create_server"]
__all__ += ["from_socket", "fromfd", "socketpair"]

_T = TypeVar("_T")

if sys.version_info < (3, 16):
    if TYPE_CHECKING:
        from .policy import EventLoopPolicy as EventLoopPolicy
        from .policy import install as install
    __all__ += ["EventLoopPolicy", "install"]

    def __getattr__(name: str) -> Any:
        # Policies are deprecated: only who asks for one imports it.
        if name in ("EventLoopPolicy", "install"):
            from . import policy

            return getattr(policy, name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})


def new_event_loop(
    *, shards: int | None = None, cache_limit: int | None = None
) -> EventLoop:
    """Makes an event loop; any thread may.

    `shards` is the number of threads that do the loop's I/O, 1 to 64; None
    leaves it to PYFASTNET_SHARDS (a number or `auto`), else to what pays: see
    EventLoop.  Raises TypeError or ValueError for anything else.

    `cache_limit` bounds the free buffers that the loop keeps, in bytes: None
    (then PYFASTNET_CACHE_LIMIT, else 64 MiB) or at least 256 KiB.

    Give the function itself to whatever takes a loop factory:

        with asyncio.Runner(loop_factory=pyfastnet.new_event_loop) as runner:
            runner.run(main())
    """
    return EventLoop(shards=shards, cache_limit=cache_limit)


def run(main: Coroutine[Any, Any, _T], *, debug: bool | None = None) -> _T:
    """asyncio.run() on a pyfastnet loop, for every Python version.

    Runs the coroutine, then cancels the tasks that are left and closes
    asynchronous generators, the default executor and the loop.  `debug` sets
    the debug mode of the loop; None leaves it to PYTHONASYNCIODEBUG.  Returns
    the coroutine's result or raises its exception; RuntimeError if a loop
    runs in this thread, ValueError or TypeError if `main` is no coroutine.
    In the main thread Ctrl-C cancels the coroutine.
    """
    if asyncio._get_running_loop() is not None:
        raise RuntimeError("pyfastnet.run() cannot be called from a running event loop")
    with asyncio.Runner(debug=debug, loop_factory=new_event_loop) as runner:
        return runner.run(main)
