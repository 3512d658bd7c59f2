"""Signals, each test in a process of its own.

The signals come from a thread while the loop sleeps, which is what they have
to interrupt.
"""

import signal
import threading

import pytest
from support import in_thread, run_script

LATER = """
    def later(number, seconds=0.02):
        def send():
            time.sleep(seconds)
            os.kill(os.getpid(), number)
        threading.Thread(target=send, daemon=True).start()

    signal.alarm(20)    # ends the process if something hangs
"""


def run(new_loop, body, **options):
    out = run_script(new_loop, LATER + body + "\n    print('done')", **options)
    assert out.endswith("done\n")
    return out


def test_add_signal_handler(new_loop):
    run(
        new_loop,
        """
    got = []
    loop = new_loop()
    def handler(*args):
        got.append((args, asyncio.get_running_loop() is loop))
        loop.stop()
    assert loop.add_signal_handler(signal.SIGUSR1, handler, 1, 'two') is None
    loop.add_signal_handler(signal.SIGUSR2, print)
    loop.add_signal_handler(signal.SIGUSR2, handler)    # replaces
    for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGUSR1):
        later(number, 0.02)
        loop.run_forever()      # idle: nothing but the signal wakes it
    assert got == [((1, 'two'), True), ((), True), ((1, 'two'), True)], got
    assert loop.remove_signal_handler(signal.SIGUSR1) is True
    assert loop.remove_signal_handler(signal.SIGUSR1) is False
    assert signal.getsignal(signal.SIGUSR1) == signal.SIG_DFL
    loop.close()
    assert signal.getsignal(signal.SIGUSR2) == signal.SIG_DFL
    """,
    )


def test_keyboard_interrupt_in_an_idle_loop(new_loop):
    run(
        new_loop,
        """
    loop = new_loop()
    for _ in range(3):
        later(signal.SIGINT)
        begin = time.monotonic()
        try:
            loop.run_forever()
        except KeyboardInterrupt:
            pass
        else:
            raise SystemExit('no KeyboardInterrupt')
        assert time.monotonic() - begin < 5
        assert not loop.is_running()
        assert loop.run_until_complete(asyncio.sleep(0.001, 'on')) == 'on'
    loop.close()
    """,
    )


def test_keyboard_interrupt_in_a_busy_loop(new_loop):
    run(
        new_loop,
        """
    loop = new_loop()
    def again():
        loop.call_soon(again)
    again()
    for _ in range(3):
        later(signal.SIGINT, 0.02)
        try:
            loop.run_forever()
        except KeyboardInterrupt:
            continue
        raise SystemExit('no KeyboardInterrupt')
    # also through a run of I/O that never pauses
    loop2 = new_loop()
    class Bouncer(asyncio.Protocol):
        def connection_made(self, transport):
            self.transport = transport
        def data_received(self, data):
            self.transport.write(data)
    a, b = socket.socketpair()
    async def main():
        await loop2.create_unix_connection(Bouncer, sock=a)
        transport, _ = await loop2.create_unix_connection(Bouncer, sock=b)
        transport.write(b'ball')
        later(signal.SIGINT, 0.02)
        await loop2.create_future()
    try:
        loop2.run_until_complete(main())
    except KeyboardInterrupt:
        pass
    os._exit(print('done', flush=True) or 0)
    """,
    )


def test_a_handler_that_raises_while_a_protocol_is_paused(new_loop):
    """The signal comes within the very write() that pauses: its peer's end
    tells of data (O_ASYNC).  The loop finds the protocol's context entered, and
    to say so runs the handler: what that raises was lost once."""
    run(
        new_loop,
        """
    import fcntl
    class P(asyncio.Protocol):
        paused = False
        def connection_made(self, transport):
            self.transport = transport
            transport.set_write_buffer_limits(high=1)
        def data_received(self, data):
            fcntl.fcntl(peer, fcntl.F_SETFL, os.O_ASYNC | os.O_NONBLOCK)
            self.transport.write(bytes(1 << 22))
            self.transport.write(b'more')
        def pause_writing(self):
            self.paused = True
    def handler(number, frame):
        raised.append(kind())
        raise raised[-1]
    signal.signal(signal.SIGIO, handler)
    for kind in (KeyboardInterrupt, SystemExit):
        loop = new_loop()
        mine, peer = socket.socketpair()
        peer.setblocking(False)
        fcntl.fcntl(peer, fcntl.F_SETOWN, os.getpid())
        _, protocol = loop.run_until_complete(loop.create_connection(P, sock=mine))
        raised = []
        peer.send(b'x')
        loop.call_later(5, loop.stop)
        try:
            loop.run_forever()
        except kind as exc:
            assert exc is raised[-1]
        else:
            raise AssertionError('lost')
        peer.close()
        protocol.transport.abort()
        loop.run_until_complete(asyncio.sleep(0))
        loop.close()
""",
    )


def test_runner_cancels_the_main_task(new_loop):
    run(
        new_loop,
        """
    ended = []
    async def main():
        later(signal.SIGINT)
        try:
            await asyncio.sleep(15)
        except asyncio.CancelledError:
            ended.append('cancelled')
            raise
    try:
        with asyncio.Runner(loop_factory=new_loop) as runner:
            runner.run(main())
    except KeyboardInterrupt:
        ended.append('interrupted')
    assert ended == ['cancelled', 'interrupted'], ended
    """,
    )


def test_handlers_of_the_signal_module(new_loop):
    """They run promptly although the loop sleeps, and it goes on."""
    run(
        new_loop,
        """
    stamps = []
    signal.signal(signal.SIGUSR1, lambda *_: stamps.append(time.monotonic()))
    loop = new_loop()
    begin = time.monotonic()
    later(signal.SIGUSR1, 0.02)
    later(signal.SIGUSR1, 0.06)
    loop.run_until_complete(asyncio.sleep(0.2))
    assert time.monotonic() - begin >= 0.199
    assert len(stamps) == 2 and stamps[-1] - begin < 0.18, stamps
    # what such a handler raises leaves the loop
    class Wake(Exception):
        pass
    def raising(*_):
        raise Wake
    signal.signal(signal.SIGUSR1, raising)
    later(signal.SIGUSR1)
    try:
        loop.run_forever()
    except Wake:
        pass
    assert loop.run_until_complete(asyncio.sleep(0, 'usable')) == 'usable'
    # and what it schedules is run
    future = loop.create_future()
    signal.signal(signal.SIGUSR1, lambda *_:
        loop.call_soon_threadsafe(future.set_result, 'scheduled'))
    later(signal.SIGUSR1)
    assert loop.run_until_complete(future) == 'scheduled'
    loop.close()
    """,
    )


def test_wakeup_fd(new_loop):
    run(
        new_loop,
        """
    a, b = socket.socketpair()
    a.setblocking(False)
    signal.signal(signal.SIGUSR1, lambda *_: None)
    signal.set_wakeup_fd(a.fileno())
    for _ in range(2):
        loop = new_loop()
        loop.run_until_complete(asyncio.sleep(0.001))
        assert signal.set_wakeup_fd(a.fileno()) == a.fileno()
        loop.close()
        assert signal.set_wakeup_fd(a.fileno()) == a.fileno()
    os.kill(os.getpid(), signal.SIGUSR1)
    assert b.recv(10) == bytes([signal.SIGUSR1])
    signal.set_wakeup_fd(-1)
    a.close()
    b.close()
    # with handlers, and until the last of them has gone
    loop = new_loop()
    loop.add_signal_handler(signal.SIGUSR1, int)
    loop.add_signal_handler(signal.SIGUSR2, int)
    loop.run_until_complete(asyncio.sleep(0.001))
    loop.remove_signal_handler(signal.SIGUSR1)
    loop.remove_signal_handler(signal.SIGUSR2)
    assert signal.set_wakeup_fd(-1) == -1
    loop.add_signal_handler(signal.SIGUSR2, int)
    loop.close()
    assert signal.set_wakeup_fd(-1) == -1
    """,
    )


def test_signals_while_the_loop_does_not_run(new_loop):
    """They are handled when it runs the next time."""
    run(
        new_loop,
        """
    got = []
    loop = new_loop()
    loop.add_signal_handler(signal.SIGUSR1, got.append, 1)
    os.kill(os.getpid(), signal.SIGUSR1)
    time.sleep(0.01)
    assert got == []
    async def wait():
        while not got:
            await asyncio.sleep(0.001)
    loop.run_until_complete(asyncio.wait_for(wait(), 10))
    assert got == [1]
    loop.close()
    """,
    )


def test_bursts_of_signals(new_loop):
    """Signals of different kinds are all told apart."""
    run(
        new_loop,
        """
    got = set()
    loop = new_loop()
    numbers = list(range(signal.SIGRTMIN, signal.SIGRTMIN + 10))
    for number in numbers:
        loop.add_signal_handler(number, got.add, number)
    async def main():
        for number in numbers:
            os.kill(os.getpid(), number)
        while got != set(numbers):
            await asyncio.sleep(0.001)
    loop.run_until_complete(asyncio.wait_for(main(), 10))
    loop.close()
    """,
    )


def test_handlers_and_connections(new_loop):
    """The signal pipe and the transports share the loop's waiting."""
    run(
        new_loop,
        """
    got = []
    class Recorder(asyncio.Protocol):
        def data_received(self, data):
            got.append(data)
    async def main():
        a, b = socket.socketpair()
        transport, _ = await loop.create_unix_connection(Recorder, sock=a)
        loop.add_signal_handler(signal.SIGUSR1, got.append, 'signal')
        for _ in range(50):
            del got[:]
            os.kill(os.getpid(), signal.SIGUSR1)
            b.send(b'x')
            while len(got) < 2:
                await asyncio.sleep(0.0005)
            assert sorted(got, key=str) == [b'x', 'signal'], got
        transport.abort()
        b.close()
        await asyncio.sleep(0)
    loop = new_loop()
    loop.run_until_complete(asyncio.wait_for(main(), 15))
    loop.close()
    """,
    )


def test_errors_in_handlers(new_loop):
    run(
        new_loop,
        """
    reports = []
    loop = new_loop()
    loop.set_exception_handler(lambda _, context: reports.append(context))
    def fail():
        loop.call_soon(loop.stop)
        raise ZeroDivisionError
    loop.add_signal_handler(signal.SIGUSR1, fail)
    later(signal.SIGUSR1)
    loop.run_forever()
    (context,) = reports
    assert isinstance(context['exception'], ZeroDivisionError)
    def leave():
        raise SystemExit('out')
    loop.add_signal_handler(signal.SIGUSR1, leave)
    later(signal.SIGUSR1)
    try:
        loop.run_forever()
    except SystemExit as exc:
        assert exc.args == ('out',)
    loop.close()
    """,
    )


def test_every_signal(new_loop):
    run(
        new_loop,
        """
    got = []
    loop = new_loop()
    numbers = signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}
    for number in numbers:
        loop.add_signal_handler(number, got.append, number)
    async def main():
        for number in numbers:
            os.kill(os.getpid(), number)
        while set(got) != numbers:
            await asyncio.sleep(0.001)
    loop.run_until_complete(asyncio.wait_for(main(), 10))
    for number in numbers:
        assert loop.remove_signal_handler(number) is True
        default = signal.SIG_DFL
        if number == signal.SIGINT:
            default = signal.default_int_handler
        assert signal.getsignal(number) == default, number
    assert signal.set_wakeup_fd(-1) == -1
    loop.close()
    """,
    )


def test_a_cancelled_handler(new_loop):
    """Its signal takes it away."""
    run(
        new_loop,
        """
    loop = new_loop()
    loop.add_signal_handler(signal.SIGUSR1, print, 'never')
    loop._signal_handlers[signal.SIGUSR1].cancel()
    os.kill(os.getpid(), signal.SIGUSR1)
    loop.run_until_complete(asyncio.sleep(0.01))
    assert signal.getsignal(signal.SIGUSR1) == signal.SIG_DFL
    assert loop.remove_signal_handler(signal.SIGUSR1) is False
    loop.close()
    """,
    )


def test_a_handler_that_changes_handlers(new_loop):
    run(
        new_loop,
        """
    got = []
    loop = new_loop()
    def first():
        got.append('first')
        loop.remove_signal_handler(signal.SIGUSR2)
        loop.add_signal_handler(signal.SIGUSR1, second)
    def second():
        got.append('second')
    loop.add_signal_handler(signal.SIGUSR1, first)
    loop.add_signal_handler(signal.SIGUSR2, got.append, 'other')
    for _ in range(2):
        os.kill(os.getpid(), signal.SIGUSR1)
        loop.run_until_complete(asyncio.sleep(0.01))
    assert got == ['first', 'second'], got
    loop.close()
    """,
    )


@pytest.mark.not_on("asyncio", reason="a signal is lost when its socket is full")
def test_no_signal_is_lost_in_a_full_channel(new_loop):
    run(
        new_loop,
        """
    loop = new_loop()
    got = {signal.SIGUSR1: 0, signal.SIGUSR2: 0, signal.SIGHUP: 0}
    def handler(number):
        got[number] += 1
    for number in got:
        loop.add_signal_handler(number, handler, number)
    for _ in range(70_000):     # more than a pipe holds
        os.kill(os.getpid(), signal.SIGUSR1)
    os.kill(os.getpid(), signal.SIGUSR2)
    os.kill(os.getpid(), signal.SIGHUP)
    loop.run_until_complete(asyncio.sleep(0.01))
    assert got[signal.SIGUSR1] >= 65_536, got
    assert got[signal.SIGUSR2] == got[signal.SIGHUP] == 1, got
    os.kill(os.getpid(), signal.SIGUSR2)
    loop.run_until_complete(asyncio.sleep(0.01))
    assert got[signal.SIGUSR2] == 2, got
    loop.close()
    """,
    )


# -- what is refused: needs no process of its own -------------------------------
async def coroutine_function():
    pass


async def test_wrong_arguments(loop):
    # pyfastnet has one of its own set for as long as it runs
    before = signal.set_wakeup_fd(-1)
    signal.set_wakeup_fd(before)
    with pytest.raises(TypeError, match="coroutines cannot be used"):
        loop.add_signal_handler(signal.SIGUSR1, coroutine_function)
    with pytest.raises(TypeError, match="sig must be an int"):
        loop.add_signal_handler("SIGUSR1", print)
    for number in (-1, 0, 1000):
        with pytest.raises(ValueError, match="invalid signal number"):
            loop.add_signal_handler(number, print)
        with pytest.raises(ValueError, match="invalid signal number"):
            loop.remove_signal_handler(number)
    for number in (signal.SIGKILL, signal.SIGSTOP):
        with pytest.raises(RuntimeError, match="cannot be caught"):
            loop.add_signal_handler(number, print)
    after = signal.set_wakeup_fd(-1)
    signal.set_wakeup_fd(after)
    assert after == before
    assert loop.remove_signal_handler(signal.SIGUSR1) is False


async def test_other_threads_are_refused(loop):
    assert threading.current_thread() is threading.main_thread()
    with pytest.raises(RuntimeError):
        await in_thread(loop.add_signal_handler, signal.SIGUSR1, print)
    assert signal.getsignal(signal.SIGUSR1) == signal.SIG_DFL
