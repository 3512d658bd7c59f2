"""Fixtures: every test runs on asyncio, the oracle, and on pyfastnet, with
debug mode off and on.

A coroutine test function runs on the `loop` that it names.  What reaches the
loop's exception handler fails the test, unless the test asks for `reports`.
PYFASTNET_TEST_LOOPS=asyncio restricts a run to one loop; any module that has
new_event_loop() may be named there.
"""

import asyncio
import faulthandler
import gc
import inspect
import os
import ssl
import sys
import warnings

import pytest
import support

KINDS = ("asyncio", "pyfastnet")
LIMIT = 40  # seconds for a whole test on the loop
HARD_LIMIT = 120  # a hang in C, where no signal handler of Python runs
_stderr = pytest.StashKey[int]()


def pytest_configure(config):
    config.addinivalue_line(
        "markers",
        "not_on(*variants, reason, when=True): skip the test on asyncio, "
        "pyfastnet, debug or plain",
    )
    if not config.getini("filterwarnings"):
        config.addinivalue_line("filterwarnings", "error")
    config.stash[_stderr] = os.dup(2)


def pytest_unconfigure(config):
    os.close(config.stash[_stderr])


def pytest_generate_tests(metafunc):
    if "new_loop" in metafunc.fixturenames:
        kinds = os.environ.get("PYFASTNET_TEST_LOOPS", ",".join(KINDS))
        metafunc.parametrize(
            "new_loop",
            [
                pytest.param((kind, debug), id=f"{kind}-debug" if debug else kind)
                for kind in kinds.split(",")
                for debug in (False, True)
            ],
            indirect=True,
        )


def pytest_collection_modifyitems(config, items):
    spare = [item for item in items if _is_spare(item)]
    items[:] = [item for item in items if not _is_spare(item)]
    config.hook.pytest_deselected(items=spare)
    for item in items:
        if item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(60))
        for mark in list(item.iter_markers("not_on")):
            kind, debug = item.callspec.params["new_loop"]
            variants = set(mark.args)
            assert variants and variants <= {*KINDS, "debug", "plain"}
            hit = variants & {kind, "debug" if debug else "plain"}
            if hit and mark.kwargs.get("when", True):
                item.add_marker(pytest.mark.skip(mark.kwargs["reason"]))


def _is_spare(item):
    """Whether to do without the test: connections of all four kinds are
    tried on the loop under test without debug mode, two kinds elsewhere."""
    params = getattr(item, "callspec", None) and item.callspec.params
    if not params or params.get("link") not in ("tcp-accepted", "unix"):
        return False
    kind, debug = params["new_loop"]
    return kind == "asyncio" or debug


def pytest_collection_finish():
    # The tests collect garbage often: not each time through all of pytest.
    gc.collect()
    gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item, nextitem):
    faulthandler.dump_traceback_later(
        HARD_LIMIT, exit=True, file=item.config.stash[_stderr]
    )
    failed = item.session.testsfailed
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()
        if item.session.testsfailed > failed:
            _forget_the_failure()


def _forget_the_failure():
    """What a failed test has left open is no fault of the next one."""
    for name in ("last_exc", "last_type", "last_value", "last_traceback"):
        vars(sys).pop(name, None)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        gc.collect()


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem):
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = inspect.signature(pyfuncitem.obj).parameters
    arguments = {name: pyfuncitem.funcargs[name] for name in names}
    pyfuncitem.funcargs["loop"].run_until_complete(
        asyncio.wait_for(pyfuncitem.obj(**arguments), LIMIT)
    )
    return True


@pytest.fixture
def new_loop(request):
    """Makes loops, which are closed after the test."""
    kind, debug = request.param
    factory = support.LoopFactory(kind, debug)
    yield factory
    asyncio.set_event_loop(None)
    for loop in factory.loops:
        support.shut(loop)


@pytest.fixture
def reports():
    """The contexts that the loop's exception handler was called with."""
    return []


@pytest.fixture
def loop(request, new_loop, reports):
    loop = new_loop()
    loop.set_exception_handler(lambda _, context: reports.append(context))
    yield loop
    support.shut(loop)
    if "reports" not in inspect.signature(request.function).parameters:
        assert not reports, f"the exception handler was called: {reports}"


class Links:
    """Connections of a transport on the loop under test with a plain
    socket, of one of four kinds: made by the loop or accepted by it, over
    TCP or a Unix socket."""

    def __init__(self, loop, kind):
        self.loop = loop
        self.family, _, self.side = kind.partition("-")
        self.protocols = []
        self.sockets = []

    async def __call__(self, factory=support.Recorder, *, address=None):
        """(transport, protocol, the peer's socket)"""
        if self.side == "accepted":
            protocol, peer = await self._accept(factory)
        else:
            protocol, peer = await self._connect(factory)
        self.protocols.append(protocol)
        self.sockets.append(peer)
        peer.settimeout(support.TIMEOUT)
        return protocol.transport, protocol, peer

    async def _connect(self, factory):
        if self.family == "tcp":
            with support.listener() as lsock:
                _, protocol = await self.loop.create_connection(
                    factory, *lsock.getsockname()
                )
                peer, _ = lsock.accept()
        else:
            mine, peer = support.unix_pair()
            mine.setblocking(False)
            _, protocol = await self.loop.create_unix_connection(factory, sock=mine)
        return protocol, peer

    async def _accept(self, factory):
        made = self.loop.create_future()

        def build():
            protocol = factory()
            made.set_result(protocol)
            return protocol

        if self.family == "tcp":
            server = await self.loop.create_server(build, "127.0.0.1", 0)
            peer = support.dial(server.sockets[0].getsockname())
        else:
            with support.socket_path() as path:
                server = await self.loop.create_unix_server(build, path)
                peer = support.dial(path)
                if os.path.exists(path):
                    os.unlink(path)
        protocol = await support.within(made)
        await protocol.called("made")
        server.close()
        return protocol, peer

    def close(self):
        if not self.loop.is_closed():
            for protocol in self.protocols:
                if "lost" not in protocol.calls:
                    protocol.transport.abort()
            self.loop.run_until_complete(support.turns(3))
        for sock in self.sockets:
            sock.close()


@pytest.fixture(params=["tcp", "tcp-accepted", "unix", "unix-accepted"])
def link(request, loop):
    links = Links(loop, request.param)
    yield links
    links.close()


@pytest.fixture(params=["tcp", "unix"])
def family(request):
    return request.param


@pytest.fixture
def pair(family):
    """Two connected sockets: one non-blocking for the loop, its peer."""
    one, other = support.stream_pair(family)
    one.setblocking(False)
    yield one, other
    one.close()
    other.close()


@pytest.fixture(scope="session")
def authority():
    return support.need("trustme").CA()


@pytest.fixture(scope="session")
def server_context(authority):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("localhost", "127.0.0.1").configure_cert(context)
    return context


@pytest.fixture(scope="session")
def client_context(authority):
    context = ssl.create_default_context()
    authority.configure_trust(context)
    return context


@pytest.fixture
def contexts(server_context, client_context):
    return server_context, client_context
