"""Forks, each test in a process of its own."""

from support import run_script

HEAD = """
    import gc, logging, warnings
    # for what debug mode tells of a busy machine: slow callbacks
    logging.getLogger('asyncio').setLevel(logging.ERROR)
    # for the threads that a loop may have (3.12 warns of any)
    warnings.simplefilter('ignore', DeprecationWarning)
    signal.alarm(20)

    class Recorder(asyncio.Protocol):
        def __init__(self):
            self.data = bytearray()
            self.lost = False
        def connection_made(self, transport):
            self.transport = transport
        def data_received(self, data):
            self.data += data
        def connection_lost(self, exc):
            self.lost = True

    class Echo(Recorder):
        def data_received(self, data):
            self.transport.write(data)

    async def until(condition):
        end = time.monotonic() + 10
        while not condition():
            assert time.monotonic() < end
            await asyncio.sleep(0.001)

    def child(function):
        '''Runs the function in a child; its exit status.'''
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                signal.alarm(15)
                code = function() or 0
            except BaseException:
                import traceback
                traceback.print_exc()
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(code)
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

    async def use_everything(loop):
        server = await loop.create_server(Echo, '127.0.0.1', 0)
        transport, protocol = await loop.create_connection(
            Recorder, *server.sockets[0].getsockname())
        transport.write(b'x' * 100_000)
        await until(lambda: len(protocol.data) == 100_000)
        assert await loop.run_in_executor(None, lambda: 7) == 7
        a, b = socket.socketpair()
        a.setblocking(False)
        loop.call_later(0.001, b.send, b'sock')
        assert await loop.sock_recv(a, 10) == b'sock'
        a.close()
        b.close()
        transport.close()
        server.close()
        await until(lambda: protocol.lost)
        await loop.shutdown_default_executor()

    def new_loop_works():
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            pass
        else:
            return 3
        loop = new_loop()
        loop.run_until_complete(asyncio.wait_for(use_everything(loop), 10))
        loop.close()
"""


def run(new_loop, body):
    out = run_script(
        new_loop,
        HEAD + body + "\n    print('done')",
        options=("-W", "ignore::ResourceWarning"),
    )
    # On a busy machine debug mode's "took 0.1 seconds" may follow.
    assert "done\n" in out


def test_a_new_loop_in_the_child(new_loop):
    """Forked while the parent's loop runs, with everything open."""
    run(
        new_loop,
        """
    async def main(loop):
        a, b = socket.socketpair()
        c, d = socket.socketpair()
        transport, protocol = await loop.create_unix_connection(
            Recorder, sock=a)
        seen, ticks = [], []
        loop.add_reader(c, lambda: seen.append(c.recv(10)))
        loop.call_later(0.05, ticks.append, 1)
        await loop.run_in_executor(None, int)
        assert child(new_loop_works) == 0
        # the parent is not disturbed
        b.send(b'data')
        d.send(b'seen')
        await until(lambda: protocol.data == b'data' and seen and ticks)
        assert seen == [b'seen']
        transport.write(b'answer')
        b.settimeout(10)
        assert b.recv(10) == b'answer'
        assert await loop.run_in_executor(None, lambda: 5) == 5
        await use_everything(loop)

    loop = new_loop()
    loop.run_until_complete(main(loop))
    """,
    )


def test_forked_outside_of_a_run(new_loop):
    run(
        new_loop,
        """
    loop = new_loop()
    loop.run_until_complete(asyncio.sleep(0))
    assert child(new_loop_works) == 0
    loop.run_until_complete(use_everything(loop))
    loop.close()
    assert child(new_loop_works) == 0
    """,
    )


def test_several_generations(new_loop):
    run(
        new_loop,
        """
    def generation(left):
        assert not new_loop_works()
        return child(lambda: generation(left - 1)) if left else 0
    assert generation(3) == 0
    """,
    )


def test_the_inherited_objects_are_dropped_in_the_child(new_loop):
    """Closing and freeing them there is nothing to the parent."""
    run(
        new_loop,
        """
    async def main(loop):
        a, b = socket.socketpair()
        things = [await loop.create_unix_connection(Recorder, sock=a)]
        server = await loop.create_server(Echo, '127.0.0.1', 0)
        address = server.sockets[0].getsockname()
        def drop():
            things.clear()
            gc.collect()
            asyncio._set_running_loop(None)
        assert child(drop) == 0
        transport, protocol = things[0]
        b.send(b'data')
        await until(lambda: protocol.data == b'data')
        b.settimeout(10)
        transport.write(b'answer')
        assert b.recv(10) == b'answer'
        other, echoed = await loop.create_connection(Recorder, *address)
        other.write(b'served')
        await until(lambda: echoed.data == b'served')

    loop = new_loop()
    loop.run_until_complete(main(loop))
    """,
    )


def test_output_pending_at_the_fork_is_sent_once(new_loop):
    run(
        new_loop,
        """
    async def main(loop):
        a, b = socket.socketpair()
        transport, protocol = await loop.create_unix_connection(
            Recorder, sock=a)
        for number in range(20):
            transport.write(b'%02d' % number)
            if number % 5 == 0:
                assert child(lambda: 0) == 0
        await asyncio.sleep(0.01)
        b.settimeout(10)
        expected = b''.join(b'%02d' % number for number in range(20))
        got = b''
        while len(got) < len(expected):
            got += b.recv(100)
        assert got == expected, got
        b.setblocking(False)
        await asyncio.sleep(0.01)
        try:
            raise AssertionError(b.recv(100))
        except BlockingIOError:
            pass

    loop = new_loop()
    loop.run_until_complete(main(loop))
    """,
    )


def test_the_parents_loop_is_unusable_in_the_child(new_loop):
    if new_loop.kind == "asyncio":
        # which shares its epoll set with the parent, and says nothing
        run(new_loop, "    assert child(new_loop_works) == 0")
        return
    run(
        new_loop,
        """
    async def main(loop):
        a, b = socket.socketpair()
        transport, _ = await loop.create_unix_connection(Recorder, sock=a)

        def use():
            coroutine = asyncio.sleep(0)
            for call in (
                loop.run_forever,
                lambda: loop.run_until_complete(coroutine),
            ):
                try:
                    call()
                except RuntimeError as exc:
                    assert 'fork' in str(exc), exc
                else:
                    return 3
            coroutine.close()
            # and nothing of these crashes
            for call in (
                lambda: loop.call_soon(print),
                lambda: loop.call_soon_threadsafe(print),
                lambda: loop.call_later(1, print),
                lambda: loop.add_reader(b, print),
                lambda: transport.write(b'x'),
                lambda: transport.abort(),
                lambda: repr(transport) + repr(loop),
                loop.is_running,
                loop.time,
                loop.close,
            ):
                try:
                    call()
                except RuntimeError:
                    pass
            return new_loop_works()

        assert child(use) == 0

    loop = new_loop()
    loop.run_until_complete(main(loop))
    """,
    )


def test_signal_handlers_in_the_child(new_loop):
    """Those of the parent's loop are not the child's; its own work."""
    run(
        new_loop,
        """
    got = []
    def handled():
        loop = new_loop()
        loop.add_signal_handler(signal.SIGUSR1, got.append, 'child')
        os.kill(os.getpid(), signal.SIGUSR1)
        loop.run_until_complete(until(lambda: got))
        loop.close()
        return 0 if got == ['child'] else 4

    async def main(loop):
        loop.add_signal_handler(signal.SIGUSR1, got.append, 'parent')
        assert child(handled) == 0
        assert got == []
        os.kill(os.getpid(), signal.SIGUSR1)
        await until(lambda: got)
        assert got == ['parent']

    loop = new_loop()
    loop.run_until_complete(main(loop))
    loop.close()
    """,
    )


def test_forked_in_a_thread(new_loop):
    """The thread is the child's main thread: signals work there."""
    run(
        new_loop,
        """
    def in_child():
        loop = new_loop()
        got = []
        loop.add_signal_handler(signal.SIGUSR1, got.append, 1)
        os.kill(os.getpid(), signal.SIGUSR1)
        loop.run_until_complete(until(lambda: got))
        loop.run_until_complete(use_everything(loop))
        loop.close()

    statuses = []
    loop = new_loop()
    loop.run_until_complete(asyncio.sleep(0))
    thread = threading.Thread(
        target=lambda: statuses.append(child(in_child)))
    thread.start()
    thread.join(15)
    assert statuses == [0], statuses
    loop.close()
    """,
    )


def test_multiprocessing(new_loop):
    """Servers in forked workers on one listening socket."""
    run(
        new_loop,
        """
    import multiprocessing
    context = multiprocessing.get_context('fork')

    class Pid(asyncio.Protocol):
        def connection_made(self, transport):
            transport.write(b'%d\\n' % os.getpid())
            transport.close()

    def serve(lsock, ready):
        async def main():
            server = await loop.create_server(Pid, sock=lsock)
            ready.set()
            await asyncio.sleep(15)
        loop = new_loop()
        loop.run_until_complete(main())

    parent = new_loop()
    parent.run_until_complete(asyncio.sleep(0))
    lsock = socket.create_server(('127.0.0.1', 0))
    events = [context.Event() for _ in range(2)]
    workers = [context.Process(target=serve, args=(lsock, event))
               for event in events]
    for worker in workers:
        worker.start()
    for event in events:
        assert event.wait(10)
    pids = set()
    for _ in range(20):
        with socket.create_connection(lsock.getsockname(), 10) as sock:
            pids.add(int(sock.makefile().readline()))
    assert pids <= {worker.pid for worker in workers}
    for worker in workers:
        worker.terminate()
        worker.join(10)
    parent.run_until_complete(asyncio.sleep(0.001))
    parent.close()
    """,
    )
