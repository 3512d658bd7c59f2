"""create_server: keywords, serving, closing, and what accept() meets."""

import asyncio
import contextlib
import contextvars
import errno
import socket
import ssl
import sys

import pytest
from support import (
    BACKLOG,
    Echo,
    Recorder,
    dial,
    fd_count,
    in_thread,
    listener,
    read_all,
    read_exactly,
    read_or_reset,
    run_script,
    turns,
    until,
    within,
)

VAR = contextvars.ContextVar("VAR", default="unset")
OLD = sys.version_info < (3, 12)
NO_WAIT = "wait_closed() does not wait for connections before 3.12.1"
NO_CLIENTS = "close_clients() and abort_clients() are new in 3.13"


class Served:
    """The protocols that a server has made."""

    def __init__(self, cls=Recorder):
        self.cls = cls
        self.all = []

    def __call__(self):
        self.all.append(self.cls())
        return self.all[-1]

    async def made(self, count):
        await until(lambda: len(self.all) >= count)
        for protocol in self.all:
            await protocol.called("made")

    async def lost(self):
        for protocol in self.all:
            await protocol.lost()


def refused(address):
    """Whether nobody listens there."""
    try:
        dial(address).close()
    except ConnectionRefusedError:
        return True
    return False


@contextlib.asynccontextmanager
async def serving(loop, served, **options):
    """A server on the loopback: (server, its address)."""
    server = await loop.create_server(served, "127.0.0.1", 0, **options)
    try:
        yield server, server.sockets[0].getsockname()
    finally:
        server.close()
        for protocol in served.all:
            if "lost" not in protocol.calls and protocol.transport:
                protocol.transport.abort()
        await turns(4)


# -- basics -----------------------------------------------------------------
async def test_serves(loop):
    served = Served(Echo)
    async with serving(loop, served) as (server, address):
        assert isinstance(server, asyncio.AbstractServer)
        assert server.is_serving() is True
        assert server.get_loop() is loop
        assert "sockets=" in repr(server)
        clients = [dial(address) for _ in range(50)]
        for number, client in enumerate(clients):
            client.sendall(b"%d" % number)
        for number, client in enumerate(clients):
            assert await in_thread(client.recv, 100) == b"%d" % number
            client.close()
        await served.lost()
        assert len(served.all) == 50


async def test_sockets(loop):
    served = Served()
    async with serving(loop, served) as (server, _):
        assert isinstance(server.sockets, tuple)
        (sock,) = server.sockets
        assert isinstance(sock, asyncio.trsock.TransportSocket)
        assert sock.family == socket.AF_INET
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR) == 1
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN) == 1
        number = sock.fileno()
        assert number > 2
    assert server.sockets == ()
    assert sock.fileno() == -1
    assert server.is_serving() is False


async def test_connections_in_a_burst(loop):
    """More at once than the core accepts in one pass."""
    served = Served(Echo)
    async with serving(loop, served, backlog=400) as (_, address):
        clients = [dial(address) for _ in range(300)]
        await served.made(300)
        for client in clients:
            client.sendall(b"x")
        for client in clients:
            assert await in_thread(client.recv, 1) == b"x"
            client.close()
        await served.lost()


async def test_start_serving_later(loop):
    served = Served()
    async with serving(loop, served, start_serving=False) as (server, address):
        assert server.is_serving() is False
        assert await in_thread(refused, address)
        await server.start_serving()
        assert server.is_serving() is True
        await server.start_serving()
        with dial(address):
            await served.made(1)


async def test_port_and_backlog(loop):
    with listener() as lsock:
        port = lsock.getsockname()[1]
    server = await loop.create_server(Recorder, "127.0.0.1", port, backlog=5)
    assert server.sockets[0].getsockname() == ("127.0.0.1", port)
    with pytest.raises(OSError, match="while attempting to bind") as info:
        await loop.create_server(Recorder, "127.0.0.1", port)
    assert info.value.errno == errno.EADDRINUSE
    server.close()
    # at once again, although connections may be in TIME_WAIT
    server = await loop.create_server(Recorder, "127.0.0.1", port)
    server.close()


async def test_restart_after_connections(loop):
    served = Served()
    async with serving(loop, served) as (server, address):
        client = dial(address)
        await served.made(1)
        served.all[0].transport.close()
        assert await in_thread(client.recv, 10) == b""
        client.close()
        server.close()
        again = await loop.create_server(Recorder, *address)
        again.close()


async def test_several_hosts(loop):
    served = Served()
    hosts = ["127.0.0.1", "127.0.0.2", "127.0.0.1"]
    # A port that is free on one address may be taken on another.
    for attempt in range(10):
        with socket.socket() as sock:
            sock.bind(("127.0.0.3", 0))
            port = sock.getsockname()[1]
        try:
            server = await loop.create_server(served, hosts, port)
            break
        except OSError as exc:
            if exc.errno != errno.EADDRINUSE or attempt == 9:
                raise
    names = sorted(sock.getsockname() for sock in server.sockets)
    assert names == [("127.0.0.1", port), ("127.0.0.2", port)]
    for name in names:
        with dial(name):
            await served.made(names.index(name) + 1)
    await served.lost()
    server.close()
    for name in names:
        assert refused(name)


@pytest.mark.parametrize("host", [None, ""])
async def test_all_interfaces(loop, host):
    served = Served()
    with listener() as lsock:
        port = lsock.getsockname()[1]
    server = await loop.create_server(served, host, port)
    families = [sock.family for sock in server.sockets]
    assert socket.AF_INET in families
    for sock in server.sockets:
        if sock.family == socket.AF_INET6:
            assert sock.getsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY)
    with dial(("127.0.0.1", port)):
        await served.made(1)
    await served.lost()
    server.close()


async def test_ipv6(loop):
    served = Served(Echo)
    try:
        server = await loop.create_server(served, "::1", 0)
    except OSError:
        pytest.skip("no IPv6 on this machine")
    address = server.sockets[0].getsockname()
    transport, protocol = await loop.create_connection(Recorder, *address[:2])
    assert transport.get_extra_info("peername") == address
    transport.write(b"six")
    await protocol.received(3)
    transport.close()
    await protocol.lost()
    await served.lost()
    server.close()


async def test_reuse_port(loop):
    first = await loop.create_server(Recorder, "127.0.0.1", 0, reuse_port=True)
    address = first.sockets[0].getsockname()
    second = await loop.create_server(Recorder, *address, reuse_port=True)
    assert second.sockets[0].getsockname() == address
    with pytest.raises(OSError, match="while attempting to bind"):
        await loop.create_server(Recorder, *address)
    first.close()
    second.close()


@pytest.mark.not_on("asyncio", when=sys.version_info < (3, 13), reason="new in 3.13")
async def test_keep_alive(loop):
    served = Served()
    async with serving(loop, served, keep_alive=True) as (_, address):
        with dial(address):
            await served.made(1)
            sock = served.all[0].transport.get_extra_info("socket")
            option = sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
            assert option == 1


async def test_given_socket(loop):
    served = Served(Echo)
    lsock = socket.socket()
    lsock.bind(("127.0.0.1", 0))
    server = await loop.create_server(served, sock=lsock)
    assert lsock.gettimeout() == 0
    with dial(lsock.getsockname()) as client:
        client.sendall(b"data")
        assert await in_thread(client.recv, 10) == b"data"
    await served.lost()
    server.close()
    # it belongs to the server, which has closed it
    assert lsock.fileno() == -1


async def test_wrong_arguments(loop):
    with (
        socket.socket() as sock,
        socket.socket(type=socket.SOCK_DGRAM) as udp,
    ):
        with pytest.raises(ValueError, match="can not be specified at the"):
            await loop.create_server(Recorder, "127.0.0.1", 0, sock=sock)
        with pytest.raises(ValueError, match="Neither host/port nor sock"):
            await loop.create_server(Recorder)
        with pytest.raises(ValueError, match="Stream Socket was expected"):
            await loop.create_server(Recorder, sock=udp)
        with pytest.raises(TypeError, match="must be an SSLContext or None"):
            await loop.create_server(Recorder, "127.0.0.1", 0, ssl=True)
        for name in ("ssl_handshake_timeout", "ssl_shutdown_timeout"):
            with pytest.raises(ValueError, match="only meaningful with ssl"):
                await loop.create_server(Recorder, "127.0.0.1", 0, **{name: 1})
    with pytest.raises(TypeError):
        await loop.create_server(Recorder, "127.0.0.1", 0, colour="red")
    with pytest.raises(OSError, match="while attempting to bind|any address"):
        await loop.create_server(Recorder, "203.0.113.1", 0)
    with pytest.raises(socket.gaierror):
        await loop.create_server(Recorder, "no.such.invalid", 0)


# -- serve_forever ------------------------------------------------------------
async def test_serve_forever(loop):
    served = Served(Echo)
    async with serving(loop, served, start_serving=False) as (server, address):
        task = loop.create_task(server.serve_forever())
        await until(server.is_serving)
        with pytest.raises(RuntimeError, match="already being awaited"):
            await server.serve_forever()
        client = dial(address)
        await served.made(1)
        task.cancel()
        await until(lambda: not server.is_serving())
        assert await in_thread(refused, address)
        # connections that are established go on
        client.sendall(b"still")
        assert await in_thread(client.recv, 10) == b"still"
        client.close()
        with pytest.raises(asyncio.CancelledError):
            await within(task)
        with pytest.raises(RuntimeError, match="is closed"):
            await server.serve_forever()


async def test_close_ends_serve_forever(loop):
    served = Served()
    async with serving(loop, served) as (server, _):
        task = loop.create_task(server.serve_forever())
        await turns(3)
        server.close()
        with pytest.raises(asyncio.CancelledError):
            await within(task)


async def test_async_with(loop):
    served = Served()
    server = await loop.create_server(served, "127.0.0.1", 0)
    async with server as same:
        assert same is server
        address = server.sockets[0].getsockname()
    assert not server.is_serving()
    assert refused(address)


# -- closing ------------------------------------------------------------------
async def test_close(loop):
    served = Served(Echo)
    async with serving(loop, served) as (server, address):
        client = dial(address)
        await served.made(1)
        assert server.close() is None
        server.close()
        assert not server.is_serving()
        assert server.sockets == ()
        assert refused(address)
        client.sendall(b"still")
        assert await in_thread(client.recv, 10) == b"still"
        client.close()


async def test_close_with_connections_waiting(loop):
    """Those that nobody has accepted yet are refused or reset."""
    served = Served()
    async with serving(loop, served) as (server, address):
        clients = [dial(address) for _ in range(5)]
        server.close()
        for client in clients:
            assert await in_thread(read_or_reset, client) == b""
            client.close()
        await served.lost()
        assert not server.is_serving()


@pytest.mark.not_on("asyncio", when=OLD, reason=NO_WAIT)
async def test_wait_closed(loop):
    served = Served()
    async with serving(loop, served) as (server, address):
        clients = [dial(address) for _ in range(2)]
        await served.made(2)
        waiter = loop.create_task(server.wait_closed())
        await turns(3)
        assert not waiter.done()
        server.close()
        await turns(3)
        assert not waiter.done()
        clients[0].close()
        await until(lambda: any("lost" in p.calls for p in served.all))
        await turns(3)
        assert not waiter.done()
        clients[1].close()
        await within(waiter)
        await within(server.wait_closed())
        await served.lost()


@pytest.mark.not_on("asyncio", when=OLD, reason=NO_WAIT)
async def test_wait_closed_of_an_open_server_without_connections(loop):
    served = Served()
    async with serving(loop, served) as (server, _):
        waiter = loop.create_task(server.wait_closed())
        await turns(5)
        assert not waiter.done()
        server.close()
        await within(waiter)


@pytest.mark.not_on("asyncio", when=OLD, reason=NO_WAIT)
async def test_wait_closed_after_all_have_gone(loop):
    served = Served()
    async with serving(loop, served) as (server, address):
        for _ in range(3):
            dial(address).close()
        await served.made(3)
        await served.lost()
        server.close()
        await within(server.wait_closed())


@pytest.mark.not_on("asyncio", when=sys.version_info < (3, 13), reason=NO_CLIENTS)
async def test_close_clients(loop):
    class Flood(Recorder):
        def connection_made(self, transport):
            super().connection_made(transport)
            transport.write(BACKLOG)

    served, others = Served(Flood), Served()
    async with (
        serving(loop, served) as (server, address),
        serving(loop, others) as (_, elsewhere),
    ):
        other = dial(elsewhere)
        clients = [dial(address) for _ in range(3)]
        await served.made(3)
        await others.made(1)
        server.close()
        assert server.close_clients() is None
        for client in clients:
            # what is pending is sent
            assert await in_thread(read_all, client) == BACKLOG
            client.close()
        await within(server.wait_closed())
        assert [p.reason for p in served.all] == [None] * 3
        # another server's clients are not touched
        assert others.all[0].calls == ["made"]
        other.close()


@pytest.mark.not_on("asyncio", when=sys.version_info < (3, 13), reason=NO_CLIENTS)
async def test_abort_clients(loop):
    class Flood(Recorder):
        def connection_made(self, transport):
            super().connection_made(transport)
            transport.write(BACKLOG)

    served = Served(Flood)
    async with serving(loop, served) as (server, address):
        clients = [dial(address) for _ in range(3)]
        await served.made(3)
        server.close()
        server.abort_clients()
        await within(server.wait_closed())
        assert [p.reason for p in served.all] == [None] * 3
        for client in clients:
            assert len(await in_thread(read_or_reset, client)) < len(BACKLOG)
            client.close()
        server.close_clients()
        server.abort_clients()


@pytest.mark.not_on("asyncio", when=sys.version_info < (3, 13), reason=NO_CLIENTS)
async def test_close_clients_of_an_open_server(loop):
    served = Served()
    async with serving(loop, served) as (server, address):
        with dial(address) as client:
            await served.made(1)
            server.close_clients()
            assert await in_thread(client.recv, 10) == b""
        with dial(address):
            await served.made(2)
            assert server.is_serving()


@pytest.mark.not_on("asyncio", reason="it accepts on, and fails to attach")
async def test_server_closed_inside_a_callback(loop):
    """In the factory, with more connections waiting behind this one."""
    protocols = []

    def factory():
        protocols.append(Recorder())
        server.close()
        return protocols[-1]

    server = await loop.create_server(factory, "127.0.0.1", 0)
    address = server.sockets[0].getsockname()
    clients = [dial(address) for _ in range(4)]
    await until(lambda: protocols)
    assert refused(address)
    for client in clients:
        with contextlib.suppress(OSError):  # it was never accepted
            client.shutdown(socket.SHUT_WR)
        await in_thread(read_or_reset, client)
        client.close()
    for protocol in protocols:
        await protocol.lost()


# -- errors while accepting -----------------------------------------------------
@pytest.mark.parametrize(
    "where",
    [
        pytest.param(
            "factory",
            marks=pytest.mark.not_on("asyncio", reason="it leaves the connection open"),
        ),
        "connection_made",
    ],
)
async def test_errors_of_the_protocol(loop, reports, where):
    """They close the connection, not the server."""
    bad = []

    class Failing(Recorder):
        def __init__(self):
            if where == "factory" and not bad:
                bad.append(1)
                raise ZeroDivisionError("on purpose")
            super().__init__()

        def connection_made(self, transport):
            super().connection_made(transport)
            if where == "connection_made" and not bad:
                bad.append(transport)
                raise ZeroDivisionError("on purpose")

    served = Served(Failing)
    async with serving(loop, served) as (_, address):
        with dial(address):
            await until(lambda: bad)
            await turns(3)
        with dial(address) as client:
            client.sendall(b"data")
            await until(lambda: any(p.data == b"data" for p in served.all))
        await served.lost()
    assert all(str(context["exception"]) == "on purpose" for context in reports)
    assert len(reports) == 1


@pytest.mark.not_on(
    "asyncio", reason="it reports it in debug mode only, and leaves it open"
)
async def test_error_in_the_factory_is_reported_and_closes(loop, reports):
    before = fd_count()

    def fail():
        raise ZeroDivisionError("on purpose")

    server = await loop.create_server(fail, "127.0.0.1", 0)
    with dial(server.sockets[0].getsockname()) as client:
        assert await in_thread(read_or_reset, client) == b""
    await until(lambda: reports)
    (context,) = reports
    assert str(context["exception"]) == "on purpose"
    server.close()
    await until(lambda: fd_count() <= before)


@pytest.mark.not_on("debug", reason="the same path, a second long")
def test_no_descriptors_left(new_loop):
    """EMFILE: no spin, no flood of reports, nobody dropped for good."""
    # asyncio tries as often as the backlog is long, and reports each
    limit = 500 if new_loop.kind == "asyncio" else 20
    out = run_script(
        new_loop,
        """
        import resource
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (128, hard))
        reports = []

        class Echo(asyncio.Protocol):
            def connection_made(self, transport):
                self.transport = transport
            def data_received(self, data):
                self.transport.write(data)

        async def main():
            loop = asyncio.get_running_loop()
            loop.set_exception_handler(lambda _, ctx: reports.append(ctx))
            server = await loop.create_server(Echo, '127.0.0.1', 0)
            address = server.sockets[0].getsockname()
            old = socket.create_connection(address)
            old.setblocking(False)
            await loop.sock_sendall(old, b'ping')
            assert await loop.sock_recv(old, 10) == b'ping'
            clients = [socket.socket() for _ in range(4)]
            spare = []
            while True:
                try:
                    spare.append(os.open('/dev/null', os.O_RDONLY))
                except OSError:
                    break
            for client in clients:
                client.setblocking(False)
                client.connect_ex(address)
            while not reports:
                await asyncio.sleep(0.01)
            cpu = time.process_time()
            await asyncio.sleep(0.2)
            cpu = time.process_time() - cpu
            await loop.sock_sendall(old, b'pong')
            assert await loop.sock_recv(old, 10) == b'pong'
            assert cpu < 0.15, cpu
            assert len(reports) < int(sys.argv[1]), len(reports)
            assert all(
                ctx['message'] == 'socket.accept() out of system resource'
                and ctx['exception'].errno == 24 for ctx in reports), reports
            for number in spare:
                os.close(number)
            for client in clients:
                await loop.sock_sendall(client, b'late')
                data = await asyncio.wait_for(loop.sock_recv(client, 10), 10)
                assert data == b'late'
                client.close()
            old.close()
            server.close()
            await asyncio.sleep(0.05)

        loop = new_loop()
        loop.run_until_complete(asyncio.wait_for(main(), 20))
        loop.close()
        print('done')
        """,
        limit,
    )
    assert out.endswith("done\n")


@pytest.mark.not_on("asyncio", "debug", reason="asyncio reports each attempt")
def test_no_descriptors_for_several_listeners(new_loop):
    """One report a second for all of them."""
    run_script(
        new_loop,
        """
        import resource
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (128, hard))
        times, made = [], []

        class Noting(asyncio.Protocol):
            def connection_made(self, transport):
                made.append(transport)

        async def main():
            loop = asyncio.get_running_loop()
            loop.set_exception_handler(lambda _, ctx: times.append(loop.time()))
            servers = [await loop.create_server(Noting, '127.0.0.1', 0)
                       for _ in range(5)]
            clients = [socket.socket() for _ in servers]
            spare = []
            while True:
                try:
                    spare.append(os.open('/dev/null', os.O_RDONLY))
                except OSError:
                    break
            for client, server in zip(clients, servers):
                client.setblocking(False)
                client.connect_ex(server.sockets[0].getsockname())
            await asyncio.sleep(1.5)
            assert 1 <= len(times) <= 2, times
            assert all(b - a >= 1 for a, b in zip(times, times[1:])), times
            for number in spare:
                os.close(number)
            while len(made) < 5:  # nobody was dropped
                await asyncio.sleep(0.02)
            for transport in made:
                transport.abort()
            for server in servers:
                server.close()
            for client in clients:
                client.close()
            await asyncio.sleep(0)

        loop = new_loop()
        loop.run_until_complete(asyncio.wait_for(main(), 20))
        loop.close()
        """,
    )


@pytest.mark.not_on("asyncio", reason="about a hook of ours")
async def test_hook_with_a_context(loop):
    """Pythons to come may name the context that connections get."""
    context = contextvars.copy_context()
    context.run(VAR.set, "named")
    seen = []

    class Seeing(Echo):
        def connection_made(self, transport):
            super().connection_made(transport)
            seen.append(VAR.get())

    with listener(blocking=False) as lsock:
        loop._start_serving(Seeing, lsock, None, None, 5, 60, 30, context)
        loop._start_serving(Seeing, lsock, None, None, 5, 60, 30, context=context)
        with dial(lsock.getsockname()) as client:
            client.sendall(b"x")
            assert await in_thread(read_exactly, client, 1) == b"x"
        loop._unlisten(lsock.fileno())
    assert seen == ["named"]
    await turns(3)


@pytest.mark.not_on("asyncio", reason="asyncio leaves the client's socket open")
async def test_error_in_the_factory_over_tls(loop, authority, reports):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("localhost").configure_cert(context)
    good = Served(Echo)
    before = fd_count()

    def factory():
        if not good.all:
            good.all.append(None)
            raise ValueError("not today")
        return good()

    server = await loop.create_server(factory, "127.0.0.1", 0, ssl=context)
    address = server.sockets[0].getsockname()
    client_context = ssl.create_default_context()
    authority.configure_trust(client_context)

    def talk():
        with (
            dial(address) as raw,
            client_context.wrap_socket(raw, server_hostname="localhost") as client,
        ):
            client.sendall(b"x")
            return client.recv(1)

    with pytest.raises(OSError):
        await in_thread(talk)
    assert await in_thread(talk) == b"x"
    server.close()
    await until(lambda: fd_count() <= before)
    assert any(isinstance(report.get("exception"), ValueError) for report in reports)


# -- contexts -----------------------------------------------------------------
async def test_contexts_of_connections(loop):
    """A copy of the one of create_server() for each."""

    class Seeing(Echo):
        def connection_made(self, transport):
            super().connection_made(transport)
            self.seen = [VAR.get()]
            VAR.set(id(self))

        def data_received(self, data):
            self.seen.append(VAR.get())
            super().data_received(data)

    VAR.set("of the server")
    served = Served(Seeing)
    async with serving(loop, served) as (_, address):
        VAR.set("changed")
        clients = [dial(address) for _ in range(3)]
        await served.made(3)
        for client in clients:
            client.sendall(b"x")
            assert await in_thread(read_exactly, client, 1) == b"x"
            client.close()
        for protocol in served.all:
            assert protocol.seen[0] == "of the server"
        await served.lost()
