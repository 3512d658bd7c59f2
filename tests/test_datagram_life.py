"""Datagram endpoints: what callbacks may do, order, contexts, the end."""

import asyncio
import contextvars
import gc
import os
import socket
import sys
import time
import weakref

import pytest
from endpoints import Endpoint, drained, endpoint, udp_socket
from support import fd_count, in_thread, not_with_home_away, turns, until


@pytest.fixture
def peer():
    with udp_socket() as sock:
        yield sock


def feed(peer, own, count, first=0):
    for number in range(first, first + count):
        peer.sendto(b"%d" % number, own)


def numbers(protocol):
    return [int(data) for data, _ in protocol.got]


class Acting(Endpoint):
    """Does something at the third datagram."""

    def datagram_received(self, data, address):
        super().datagram_received(data, address)
        if len(self.got) == 3:
            self.act()


# -- callbacks --------------------------------------------------------------
@pytest.mark.parametrize("way", ["close", "abort"])
async def test_closing_in_a_callback(loop, peer, way):
    class Closing(Acting):
        def act(self):
            getattr(self.transport, way)()
            self.transport.sendto(b"too late", peer.getsockname())

    transport, protocol = await loop.create_datagram_endpoint(
        Closing, local_addr=("127.0.0.1", 0)
    )
    feed(peer, transport.get_extra_info("sockname"), 20)
    await protocol.lost()
    await turns(3)
    assert numbers(protocol) == [0, 1, 2]
    assert protocol.calls == ["made", "lost"]
    assert protocol.reason is None


async def test_closing_sends_what_was_sent_before(loop, peer):
    class Answering(Acting):
        def act(self):
            for number in range(30):
                self.transport.sendto(b"%d" % number, peer.getsockname())
            self.transport.close()

    transport, protocol = await loop.create_datagram_endpoint(
        Answering, local_addr=("127.0.0.1", 0)
    )
    feed(peer, transport.get_extra_info("sockname"), 3)
    await protocol.lost()
    assert drained(peer) == [b"%d" % number for number in range(30)]


async def test_pausing_in_a_callback(loop, peer):
    """What the loop had received already is kept, in order."""

    class Pausing(Acting):
        def act(self):
            self.transport.pause_reading()

    async with endpoint(loop, Pausing, local_addr=("127.0.0.1", 0)) as (
        transport,
        protocol,
        own,
    ):
        feed(peer, own, 20)
        await protocol.received(3)
        assert not transport.is_reading()
        feed(peer, own, 5, first=20)
        await turns(5)
        assert numbers(protocol) == [0, 1, 2]
        transport.resume_reading()
        transport.pause_reading()
        await turns(5)
        assert numbers(protocol) == [0, 1, 2]
        transport.resume_reading()
        assert transport.is_reading()
        await protocol.received(25)
        assert numbers(protocol) == list(range(25))


async def test_pausing_again_and_again(loop, peer):
    class Halting(Endpoint):
        def datagram_received(self, data, address):
            super().datagram_received(data, address)
            self.transport.pause_reading()
            loop.call_soon(self.transport.resume_reading)

    async with endpoint(loop, Halting, local_addr=("127.0.0.1", 0)) as (
        _,
        protocol,
        own,
    ):
        feed(peer, own, 30)
        await protocol.received(30)
        assert numbers(protocol) == list(range(30))


@pytest.mark.parametrize("way", ["close", "abort"])
async def test_closing_with_some_that_are_kept(loop, peer, way):
    class Pausing(Acting):
        def act(self):
            self.transport.pause_reading()

    transport, protocol = await loop.create_datagram_endpoint(
        Pausing, local_addr=("127.0.0.1", 0)
    )
    feed(peer, transport.get_extra_info("sockname"), 10)
    await protocol.received(3)
    transport.resume_reading()
    getattr(transport, way)()
    await protocol.lost()
    await turns(3)
    assert numbers(protocol) == [0, 1, 2]


async def test_pausing_in_connection_made(loop, peer):
    class Paused(Endpoint):
        def connection_made(self, transport):
            super().connection_made(transport)
            transport.pause_reading()

    async with endpoint(loop, Paused, local_addr=("127.0.0.1", 0)) as (
        transport,
        protocol,
        own,
    ):
        feed(peer, own, 5)
        await turns(5)
        assert protocol.got == []
        transport.resume_reading()
        await protocol.received(5)


async def test_closing_in_connection_made(loop):
    class Closing(Endpoint):
        def connection_made(self, transport):
            super().connection_made(transport)
            transport.close()

    transport, protocol = await loop.create_datagram_endpoint(
        Closing, local_addr=("127.0.0.1", 0)
    )
    await protocol.lost()
    assert transport.is_closing() and protocol.calls == ["made", "lost"]


async def test_errors_in_callbacks_do_not_end_it(loop, peer, reports):
    class Failing(Endpoint):
        def datagram_received(self, data, address):
            super().datagram_received(data, address)
            if len(self.got) % 2:
                raise ZeroDivisionError(data)

    async with endpoint(loop, Failing, local_addr=("127.0.0.1", 0)) as (
        transport,
        protocol,
        own,
    ):
        feed(peer, own, 10)
        await protocol.received(10)
        assert numbers(protocol) == list(range(10))
        assert [type(report["exception"]) for report in reports] == [
            ZeroDivisionError
        ] * 5
        assert not transport.is_closing()
    assert protocol.reason is None


async def test_errors_in_connection_made(loop, peer, reports):
    class Failing(Endpoint):
        def connection_made(self, transport):
            super().connection_made(transport)
            raise ZeroDivisionError

    async with endpoint(loop, Failing, local_addr=("127.0.0.1", 0)) as (
        _,
        protocol,
        own,
    ):
        feed(peer, own, 1)
        await protocol.received(1)
    assert [type(report["exception"]) for report in reports] == [ZeroDivisionError]


async def test_errors_in_error_received(loop, reports):
    """Out of sendto() or to the exception handler: the endpoint goes on."""

    class Failing(Endpoint):
        def error_received(self, exc):
            super().error_received(exc)
            raise ZeroDivisionError

    async with endpoint(loop, Failing, local_addr=("127.0.0.1", 0)) as (
        transport,
        protocol,
        own,
    ):
        raised = 0
        for _ in range(3):
            try:
                transport.sendto(bytes(70_000), own)
            except ZeroDivisionError:
                raised += 1
        await until(lambda: len(protocol.errors) == 3)
        await turns(2)
        assert raised + len(reports) == 3
        transport.sendto(b"1", own)
        await protocol.received(1)


async def test_errors_in_connection_lost(loop, reports):
    class Failing(Endpoint):
        def connection_lost(self, exc):
            super().connection_lost(exc)
            raise ZeroDivisionError

    before = fd_count()
    transport, protocol = await loop.create_datagram_endpoint(
        Failing, local_addr=("127.0.0.1", 0)
    )
    transport.close()
    await protocol.lost()
    await turns(1)
    assert [type(report["exception"]) for report in reports] == [ZeroDivisionError]
    assert fd_count() == before


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
def test_leaving_the_loop_in_a_callback(new_loop, kind):
    """The rest of what had come is delivered by the next run."""
    loop = new_loop()

    class Leaving(Acting):
        def act(self):
            raise kind

    with udp_socket() as peer:
        transport, protocol = loop.run_until_complete(
            loop.create_datagram_endpoint(Leaving, local_addr=("127.0.0.1", 0))
        )
        feed(peer, transport.get_extra_info("sockname"), 20)
        with pytest.raises(kind):
            loop.run_until_complete(asyncio.sleep(5))
        assert numbers(protocol) == [0, 1, 2]
        loop.run_until_complete(protocol.received(20))
        assert numbers(protocol) == list(range(20))
        transport.close()
        loop.run_until_complete(protocol.lost())


def test_closing_the_loop_that_was_left_in_a_callback(new_loop):
    loop = new_loop()

    class Leaving(Acting):
        def act(self):
            raise SystemExit

    with udp_socket() as peer:
        transport, protocol = loop.run_until_complete(
            loop.create_datagram_endpoint(Leaving, local_addr=("127.0.0.1", 0))
        )
        feed(peer, transport.get_extra_info("sockname"), 20)
        with pytest.raises(SystemExit):
            loop.run_until_complete(asyncio.sleep(5))
        transport.abort()
        loop.run_until_complete(protocol.lost())
        loop.close()
        assert numbers(protocol) == [0, 1, 2]


async def test_another_protocol(loop, peer):
    second = Endpoint()

    class Replaced(Acting):
        def act(self):
            self.transport.set_protocol(second)

    async with endpoint(loop, Replaced, local_addr=("127.0.0.1", 0)) as (
        transport,
        first,
        own,
    ):
        feed(peer, own, 8)
        await second.received(5)
        assert numbers(first) + numbers(second) == list(range(8))
        assert transport.get_protocol() is second
        transport.close()
        await second.lost()
        first.calls.append("lost")  # for the fixture: it heard nothing
    assert transport.get_protocol() is None
    assert second.reason is None and first.reason == "not lost"


async def test_answers_keep_their_order(loop, peer):
    """Equal and unequal ones, to two addresses, in turns of many."""
    with udp_socket() as other:
        targets = [peer.getsockname(), other.getsockname()]
        wanted = [[], []]
        async with endpoint(loop) as (transport, _, _):
            for number in range(400):
                which = number // 7 % 2
                data = b"%06d" % number + bytes(number % 5 // 4 * 100)
                wanted[which].append(data)
                transport.sendto(data, targets[which])
                if number % 90 == 0:
                    await turns(1)
            await turns(2)
            assert [drained(peer), drained(other)] == wanted


# -- contexts ---------------------------------------------------------------
async def test_context_of_callbacks(loop, peer):
    variable = contextvars.ContextVar("variable", default="unset")
    seen = []

    class Seeing(Endpoint):
        def connection_made(self, transport):
            super().connection_made(transport)
            seen.append(variable.get())

        def datagram_received(self, data, address):
            super().datagram_received(data, address)
            seen.append(variable.get())

        def connection_lost(self, exc):
            seen.append(variable.get())
            super().connection_lost(exc)

    variable.set("made here")
    async with endpoint(loop, Seeing, local_addr=("127.0.0.1", 0)) as (
        _,
        protocol,
        own,
    ):
        variable.set("later")
        feed(peer, own, 3)
        await protocol.received(3)
    assert seen[:4] == ["made here"] * 4


async def test_slow_callbacks_are_logged(loop, peer, caplog):
    loop.set_debug(True)
    loop.slow_callback_duration = 0.0

    async with endpoint(loop) as (_, protocol, own):
        feed(peer, own, 2)
        await protocol.received(2)
    assert any("atagramTransport" in record.message for record in caplog.records)
    loop.slow_callback_duration = 0.1


# -- the end ----------------------------------------------------------------
async def test_sending_after_the_end(loop, peer, caplog):
    transport, protocol = await loop.create_datagram_endpoint(
        Endpoint, remote_addr=peer.getsockname()
    )
    transport.close()
    transport.close()
    transport.abort()
    for _ in range(7):
        transport.sendto(b"x")
    await protocol.lost()
    with pytest.raises(TypeError):
        transport.sendto("text")
    assert drained(peer) == []
    assert "socket.send() raised exception." in caplog.text
    assert protocol.calls == ["made", "lost"]
    assert "closed" in repr(transport)


async def test_socket_of_an_endpoint_is_its_own(loop):
    async with endpoint(loop) as (transport, _, own):
        sock = transport.get_extra_info("socket")
        assert sock.getsockname() == own
        for use in (
            lambda: loop.add_reader(sock.fileno(), print),
            lambda: loop.add_writer(sock.fileno(), print),
            lambda: loop.remove_reader(sock.fileno()),
        ):
            with pytest.raises(RuntimeError, match="is used by transport"):
                use()
    assert sock.fileno() == -1


async def test_two_endpoints_for_one_socket(loop):
    sock = socket.socket(type=socket.SOCK_DGRAM)
    sock.bind(("127.0.0.1", 0))
    async with endpoint(loop, sock=sock) as (transport, protocol, own):
        if type(transport).__module__.startswith("pyfastnet"):
            with pytest.raises(RuntimeError, match="is used by transport"):
                await loop.create_datagram_endpoint(Endpoint, sock=sock)
        transport.sendto(b"1", own)
        await protocol.received(1)
    assert sock.fileno() == -1


async def test_descriptors_are_used_again(loop, peer):
    """An endpoint with the number of one that has just gone."""
    numbers = set()
    for round_ in range(20):
        transport, protocol = await loop.create_datagram_endpoint(
            Endpoint, local_addr=("127.0.0.1", 0)
        )
        own = transport.get_extra_info("sockname")
        numbers.add(transport.get_extra_info("socket").fileno())
        feed(peer, own, 3)
        if round_ % 2:
            await protocol.received(3)
        transport.sendto(b"bye", peer.getsockname())
        transport.close()
        feed(peer, own, 3)
        await protocol.lost()
        assert await in_thread(peer.recv, 10) == b"bye"
        assert len(protocol.got) <= 3
    assert len(numbers) < 20


def failing_factory():
    raise ZeroDivisionError


@pytest.mark.not_on("asyncio", reason="leaves the socket to the collector")
async def test_factory_that_fails(loop):
    before = fd_count()
    with pytest.raises(ZeroDivisionError):
        await loop.create_datagram_endpoint(
            failing_factory, local_addr=("127.0.0.1", 0)
        )
    assert fd_count() == before


async def test_factory_that_fails_with_a_given_socket(loop):
    with socket.socket(type=socket.SOCK_DGRAM) as sock:
        with pytest.raises(ZeroDivisionError):
            await loop.create_datagram_endpoint(failing_factory, sock=sock)
        assert sock.fileno() != -1  # the caller's


async def test_cancelled_while_it_is_made(loop):
    before = fd_count()
    task = loop.create_task(
        loop.create_datagram_endpoint(Endpoint, local_addr=("127.0.0.1", 0))
    )
    while fd_count() == before and not task.done():
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await turns(3)
    assert fd_count() == before


async def test_objects_are_released(loop, peer):
    transport, protocol = await loop.create_datagram_endpoint(
        Endpoint, local_addr=("127.0.0.1", 0)
    )
    own = transport.get_extra_info("sockname")
    feed(peer, own, 2)
    await protocol.received(2)
    for _ in range(100):
        transport.sendto(b"x" * 5000, peer.getsockname())
    await turns(2)
    transport.close()
    await protocol.lost()
    await turns(2)
    refs = [weakref.ref(transport), weakref.ref(protocol)]
    protocol.transport = None
    gc.disable()
    try:
        del transport, protocol
        await turns(2)
        assert [ref() for ref in refs] == [None, None]
    finally:
        gc.enable()


async def test_sent_objects_are_released(loop, peer):
    """What is kept until it is sent is dropped then, and what was dropped."""
    data = b"x" * 5000
    count = sys.getrefcount(data)
    async with endpoint(loop) as (transport, _, _):
        for _ in range(10):
            transport.sendto(data, peer.getsockname())
            transport.sendto(data, ("127.0.0.1", 9))
        await turns(3)
        assert sys.getrefcount(data) == count
        address = ("127.0.0.1", 9)
        before = sys.getrefcount(address)
        for _ in range(10):
            transport.sendto(b"x", address)
        assert sys.getrefcount(address) <= before + 1
        await turns(2)
    assert sys.getrefcount(address) == before


def test_unclosed_endpoints_warn(new_loop):
    loop = new_loop()
    transport, protocol = loop.run_until_complete(
        loop.create_datagram_endpoint(Endpoint, local_addr=("127.0.0.1", 0))
    )
    number = transport.get_extra_info("socket").fileno()
    loop.close()
    protocol.transport = None
    with pytest.warns(ResourceWarning, match="unclosed transport"):
        del transport, protocol
        gc.collect()
    with pytest.raises(OSError):
        os.fstat(number)


@pytest.mark.not_on("asyncio", reason="it does not look at the thread")
async def test_other_threads_are_refused(loop, peer):
    """While the loop waits without the GIL nobody may touch what it uses."""
    async with endpoint(loop) as (transport, _, _):
        errors = []

        def meddle():
            time.sleep(0.1)  # until the loop waits
            for call in (
                lambda: transport.sendto(b"x", peer.getsockname()),
                transport.close,
                transport.abort,
                transport.pause_reading,
                transport.get_write_buffer_size,
            ):
                try:
                    call()
                except RuntimeError as exc:
                    errors.append(exc)

        await in_thread(meddle)
        assert len(errors) == 5 and not transport.is_closing()


@pytest.mark.not_on("asyncio", reason="counts what the core does")
async def test_nothing_grows(loop, peer):
    class Echo(Endpoint):
        def datagram_received(self, data, address):
            self.transport.sendto(data, address)

    async def round_trip():
        transport, protocol = await loop.create_datagram_endpoint(
            Echo, local_addr=("127.0.0.1", 0)
        )
        own = transport.get_extra_info("sockname")
        for size in (0, 10, 3000, 30_000):
            peer.sendto(bytes(size), own)
        await turns(2)
        transport.close()
        await protocol.lost()
        drained(peer)

    for _ in range(20):
        await round_trip()
    gc.collect()
    before = fd_count(), len(gc.get_objects())
    for _ in range(300):
        await round_trip()
    await turns(3)
    gc.collect()
    assert fd_count() == before[0]
    assert len(gc.get_objects()) - before[1] < 60


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
def test_leaving_the_loop_with_kept_ones(new_loop, kind):
    """While those are delivered that had come before a pause."""
    loop = new_loop()

    class Leaving(Endpoint):
        def datagram_received(self, data, address):
            super().datagram_received(data, address)
            if len(self.got) == 1:
                self.transport.pause_reading()
            if len(self.got) == 5:
                raise kind

    with udp_socket() as peer:
        transport, protocol = loop.run_until_complete(
            loop.create_datagram_endpoint(Leaving, local_addr=("127.0.0.1", 0))
        )
        feed(peer, transport.get_extra_info("sockname"), 20)
        loop.run_until_complete(protocol.received(1))
        transport.resume_reading()
        with pytest.raises(kind):
            loop.run_until_complete(asyncio.sleep(5))
        loop.run_until_complete(protocol.received(20))
        assert numbers(protocol) == list(range(20))
        transport.abort()
        loop.run_until_complete(protocol.lost())


@not_with_home_away  # which tells of errors when a worker has met them
def test_leaving_the_loop_while_it_closes(new_loop):
    """From error_received(), called by close() or by the loop before it."""
    loop = new_loop()

    class Leaving(Endpoint):
        def error_received(self, exc):
            super().error_received(exc)
            raise KeyboardInterrupt

    async def send_and_close():
        for _ in range(3):
            transport.sendto(bytes(66_000), own)
        transport.close()

    transport, protocol = loop.run_until_complete(
        loop.create_datagram_endpoint(Leaving, local_addr=("127.0.0.1", 0))
    )
    own = transport.get_extra_info("sockname")
    with pytest.raises(KeyboardInterrupt):
        loop.run_until_complete(send_and_close())
    transport.close()
    for _ in range(5):
        try:
            loop.run_until_complete(protocol.lost())
        except KeyboardInterrupt:
            continue
        break
    assert protocol.calls == ["made", "lost"]


async def test_datagrams_sent_before_an_abort(loop):
    """They are gone by then, as in asyncio, though the turn has not ended."""

    class Dismissing(Endpoint):
        def datagram_received(self, data, addr):
            super().datagram_received(data, addr)
            for number in range(3):
                self.transport.sendto(b"%d" % number, addr)
            self.transport.abort()

    with udp_socket() as peer:
        async with endpoint(loop, Dismissing) as (_, protocol, sockname):
            peer.sendto(b"hello", sockname)
            await protocol.lost()
            assert drained(peer) == [b"0", b"1", b"2"]
