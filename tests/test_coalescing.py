"""Many writes in one turn: what the peer gets, and how many calls it takes."""

import asyncio
import random
import re
import shutil
import socket
import subprocess
import sys

import pytest
from support import (
    Recorder,
    fill_transport,
    in_thread,
    pattern,
    read_all,
    read_exactly,
    script_for,
    turns,
)


def strace_works():
    if shutil.which("strace") is None:
        return False
    done = subprocess.run(
        ["strace", "-o", "/dev/null", "true"], capture_output=True, check=False
    )
    return done.returncode == 0


class Splitting(Recorder):
    """Answers each request in sixteen pieces."""

    def data_received(self, data):
        super().data_received(data)
        for at in range(0, len(data), 16):
            request = data[at : at + 16]
            for byte in request:
                self.transport.write(bytes([byte]))


async def test_sixteen_writes_in_a_turn(loop, link):
    _, _, peer = await link(Splitting)
    for number in range(100):
        request = b"%016d" % number
        peer.sendall(request)
        assert await in_thread(read_exactly, peer, 16) == request


async def test_sizes_and_kinds_mixed(loop, link):
    transport, _, peer = await link(Recorder)
    rng = random.Random(3)
    expected = bytearray()
    reading = asyncio.create_task(in_thread(read_all, peer))
    for number in range(60):
        for _ in range(rng.randrange(1, 20)):
            size = rng.choice([0, 1, 7, 100, 1000, 20_000, 70_000])
            data = rng.randbytes(size)
            expected += data
            kind = rng.randrange(4)
            if kind == 0:
                transport.write(data)
            elif kind == 1:
                transport.write(bytearray(data))
            elif kind == 2:
                transport.write(memoryview(data))
            else:
                transport.writelines([data[: size // 2], data[size // 2 :]])
        if number % 3:
            await turns(rng.randrange(3))
    transport.close()
    assert await reading == expected


async def test_a_view_of_what_is_freed_later(loop, link):
    """The transport holds what it sends."""
    transport, _, peer = await link(Recorder)
    filled = fill_transport(transport)
    for number in range(200):
        transport.write(b"%06d" % number * 100)
        transport.write(memoryview(b"<%06d>" % number)[1:-1])
    got = await in_thread(read_exactly, peer, filled + 200 * 606)
    assert got[filled:] == b"".join(b"%06d" % n * 101 for n in range(200))


async def test_many_connections_in_a_turn(loop, link):
    links = [await link(Recorder) for _ in range(20)]
    for number in range(16):
        for index, (transport, _, _) in enumerate(links):
            transport.write(b"%02d:%02d;" % (index, number))
    for index, (_, _, peer) in enumerate(links):
        expected = b"".join(b"%02d:%02d;" % (index, n) for n in range(16))
        assert await in_thread(read_exactly, peer, len(expected)) == expected


async def test_more_pieces_than_iov_max_pending(loop, link):
    transport, _, peer = await link(Recorder)
    filled = fill_transport(transport)
    for number in range(5000):
        transport.write(b"%05d" % number)
    transport.close()
    got = await in_thread(read_all, peer)
    assert got[filled:] == b"".join(b"%05d" % n for n in range(5000))


async def test_partial_sends_in_the_middle_of_pieces(loop, link):
    """A small buffer at the kernel splits pieces at odd places."""
    transport, _, peer = await link(Recorder)
    sock = transport.get_extra_info("socket")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4097)
    data = pattern(300_001)
    at = 0
    for size in [1, 10, 333, 4096, 4097, 5000, 65_535, 65_537, 100_000]:
        transport.write(data[at : at + size])
        at += size
    transport.write(data[at:])
    transport.write_eof()
    assert await in_thread(read_all, peer) == data


SERVER = """
    class Splitting(asyncio.Protocol):
        def connection_made(self, transport):
            self.transport = transport
        def data_received(self, data):
            for number in range(16):
                self.transport.write(b'PIECE%03d' % number)
        def connection_lost(self, exc):
            loop.stop()

    async def main():
        server = await loop.create_server(Splitting, '127.0.0.1', 0)
        return server, server.sockets[0].getsockname()[1]

    def client(port):
        with socket.create_connection(('127.0.0.1', port)) as sock:
            for _ in range(100):
                sock.sendall(b'request')
                got = b''
                while len(got) < 128:
                    got += sock.recv(1000)
                assert got == b''.join(b'PIECE%03d' % n for n in range(16))

    loop = new_loop()
    server, port = loop.run_until_complete(main())
    thread = threading.Thread(target=client, args=(port,))
    thread.start()
    loop.run_forever()
    thread.join()
    server.close()
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()
"""


@pytest.mark.not_on("asyncio", reason="it makes a call for each write()")
@pytest.mark.not_on("debug", reason="the same path")
@pytest.mark.skipif(not strace_works(), reason="needs strace, and its rights")
def test_system_calls_of_sixteen_writes(new_loop, tmp_path):
    """One hundred turns of sixteen writes: not 1,600 calls."""
    trace = tmp_path / "trace"
    subprocess.run(
        [
            "strace",
            "-f",
            "-s",
            "4096",
            "-o",
            trace,
            "-e",
            "trace=write,writev,sendto,sendmsg,sendmmsg",
            sys.executable,
            "-c",
            script_for(new_loop.kind, new_loop.debug, SERVER),
        ],
        check=True,
        timeout=50,
    )
    sends = [line for line in trace.read_text().splitlines() if "PIECE" in line]
    pieces = sum(len(re.findall("PIECE", line)) for line in sends)
    assert pieces >= 1600
    # the first write of a turn may go at once, the watchdog may cut in
    assert len(sends) <= 250
