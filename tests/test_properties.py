"""Properties that hold for whatever hypothesis thinks up."""

import asyncio
import socket

from support import Echo, Recorder, drain, need, turns, unix_pair, until, within

need("hypothesis")

from hypothesis import HealthCheck, Phase, given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

SETTINGS = settings(
    max_examples=25,
    deadline=None,
    database=None,
    phases=(Phase.generate, Phase.shrink),
    suppress_health_check=[
        HealthCheck.function_scoped_fixture,
        HealthCheck.too_slow,
    ],
)

# What a client of the echo server may do, one after the other.  (Lines are
# not empty: asyncio spins on those; test_transports.py has them.)
ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("write"), st.integers(0, 100_000)),
        st.tuples(st.just("writelines"), st.lists(st.integers(1, 5000), max_size=20)),
        st.tuples(st.just("pause"), st.none()),
        st.tuples(st.just("resume"), st.none()),
        st.tuples(st.just("turns"), st.integers(1, 4)),
        st.tuples(st.just("limits"), st.integers(0, 200_000)),
    ),
    max_size=40,
)


def numbered(start, size):
    """`size` bytes of an endless sequence, from `start` on."""
    period = bytes(range(251))
    repeated = period * (size // 251 + 2)
    return repeated[start % 251 : start % 251 + size]


async def act(transport, actions):
    """Does what is written there; how many bytes were sent."""
    sent = 0
    for name, value in actions:
        if name == "write":
            transport.write(numbered(sent, value))
            sent += value
        elif name == "writelines":
            lines = []
            for size in value:
                lines.append(numbered(sent, size))
                sent += size
            transport.writelines(lines)
        elif name == "pause":
            transport.pause_reading()
        elif name == "resume":
            transport.resume_reading()
        elif name == "limits":
            transport.set_write_buffer_limits(high=value)
        else:
            await turns(value)
    return sent


def test_echo_arrives_intact(loop):
    """Whatever the chunks, the pauses and the limits."""
    server = loop.run_until_complete(loop.create_server(Echo, "127.0.0.1", 0))
    address = server.sockets[0].getsockname()

    async def example(actions):
        transport, protocol = await loop.create_connection(Recorder, *address)
        sent = await act(transport, actions)
        transport.resume_reading()
        await protocol.received(sent)
        assert protocol.data == numbered(0, sent)
        transport.write_eof()
        await protocol.lost()
        assert len(protocol.data) == sent
        flow = [name for name in protocol.calls if name in ("pause", "resume")]
        assert flow[::2] == ["pause"] * len(flow[::2])
        assert flow[1::2] == ["resume"] * len(flow[1::2])

    @SETTINGS
    @given(ACTIONS)
    def run(actions):
        loop.run_until_complete(example(actions))

    run()
    server.close()


def test_reads_of_any_size(loop):
    """A peer sends in pieces; reading is paused and resumed at random."""

    async def example(pieces, pauses):
        mine, peer = unix_pair()
        transport, protocol = await loop.create_unix_connection(Recorder, sock=mine)
        peer.setblocking(False)
        sent = 0
        for index, size in enumerate(pieces):
            if pauses >> index & 1:
                transport.pause_reading()
            else:
                transport.resume_reading()
            data = numbered(sent, size)
            try:
                sent += peer.send(data) if data else 0
            except BlockingIOError:
                pass
            await turns(1)
        peer.shutdown(socket.SHUT_WR)
        transport.resume_reading()
        await protocol.lost()
        assert protocol.data == numbered(0, sent)
        assert protocol.calls.count("eof") == 1
        peer.close()

    @SETTINGS
    @given(st.lists(st.integers(0, 150_000), max_size=20), st.integers(0, 1 << 20))
    def run(pieces, pauses):
        loop.run_until_complete(example(pieces, pauses))

    run()


def test_writes_reach_a_slow_peer_in_order(loop):
    """The peer reads now and then, as much as hypothesis says."""

    async def example(actions, reads):
        mine, peer = unix_pair()
        transport, protocol = await loop.create_unix_connection(Recorder, sock=mine)
        peer.setblocking(False)
        got = bytearray()
        steps = [actions[at : at + 5] for at in range(0, len(actions), 5)]
        sent = 0
        for step in steps:
            # relative to what was sent before
            for name, value in step:
                if name == "write":
                    transport.write(numbered(sent, value))
                    sent += value
                elif name == "limits":
                    transport.set_write_buffer_limits(high=value)
                else:
                    await turns(1)
            if reads:
                try:
                    got += peer.recv(reads)
                except BlockingIOError:
                    pass
        transport.close()

        def complete():
            got.extend(drain(peer))
            return len(got) >= sent

        await until(complete)
        await protocol.lost()
        assert got == numbered(0, sent)
        peer.close()

    @SETTINGS
    @given(ACTIONS, st.integers(0, 100_000))
    def run(actions, reads):
        loop.run_until_complete(example(actions, reads))

    run()


def test_timers_fire_in_order_and_never_early(loop):
    async def example(delays, cancelled):
        base = loop.time()
        fired = []
        handles = []

        def fire(when):
            assert loop.time() >= when - 1e-9
            fired.append(when)

        for delay in delays:
            when = base + delay / 1e6
            handles.append(loop.call_at(when, fire, when))
        expected = []
        for index, handle in enumerate(handles):
            if cancelled >> index & 1:
                handle.cancel()
            else:
                expected.append(handle.when())
        done = loop.create_future()
        loop.call_at(base + 0.0051, done.set_result, None)
        await within(done)
        assert fired == sorted(expected)

    @SETTINGS
    @given(
        st.lists(st.integers(-1000, 5000), max_size=60),
        st.integers(0, 1 << 60),
    )
    def run(delays, cancelled):
        loop.run_until_complete(example(delays, cancelled))

    run()


def test_callbacks_in_any_mixture(loop):
    """call_soon keeps its order, whatever is cancelled or nested."""

    async def example(plan):
        ran, expected = [], []
        handles = []
        for number, kind in enumerate(plan):
            if kind == "nested":
                handles.append(
                    loop.call_soon(
                        lambda n: (ran.append(n), loop.call_soon(int)), number
                    )
                )
            else:
                handles.append(loop.call_soon(ran.append, number))
            expected.append(number)
            if kind == "cancel last" and expected:
                handles[expected[-1]].cancel()
                expected.pop()
            elif kind == "cancel first" and expected:
                handles[expected[0]].cancel()
                expected.pop(0)
        await asyncio.sleep(0)
        assert ran == expected

    @SETTINGS
    @given(
        st.lists(st.sampled_from(["plain", "nested", "cancel last", "cancel first"]))
    )
    def run(plan):
        loop.run_until_complete(example(plan))

    run()
