"""Connections and clients for the tests of worker shards."""

import asyncio
import contextlib
import os
import random
import threading
import time

from support import (
    Recorder,
    dial,
    pattern,
    read_exactly,
    socket_path,
    tcp_pair,
    unix_pair,
)


def threads():
    return len(os.listdir("/proc/self/task"))


def settled_threads():
    """The same, once those that were joined before have left /proc."""
    count, same = threads(), 0
    while same < 10:
        time.sleep(0.002)
        same = same + 1 if threads() == count else 0
        count = threads()
    return count


def read_by_shard(loop):
    return [shard["bytes_read"] for shard in loop.stats()["shards"]]


async def connect(loop, factory=Recorder, family="tcp"):
    """(transport, protocol, the peer's plain socket)"""
    mine, peer = tcp_pair() if family == "tcp" else unix_pair()
    mine.setblocking(False)
    transport, protocol = await loop.create_connection(factory, sock=mine)
    return transport, protocol, peer


@contextlib.asynccontextmanager
async def connections(loop, count, factory=Recorder, family="tcp"):
    made = [await connect(loop, factory, family) for _ in range(count)]
    try:
        yield made
    finally:
        for transport, _, peer in made:
            transport.abort()
            peer.close()
        for _, protocol, _ in made:
            await protocol.lost()


@contextlib.asynccontextmanager
async def serving(loop, factory, family="tcp", **options):
    """The address of a server of the loop, whose connections end first."""
    made = []

    def build():
        made.append(factory())
        return made[-1]

    with contextlib.ExitStack() as stack:
        if family == "tcp":
            server = await loop.create_server(build, "127.0.0.1", 0, **options)
            address = server.sockets[0].getsockname()
        else:
            address = stack.enter_context(socket_path())
            server = await loop.create_unix_server(build, address, **options)
        try:
            yield address
        finally:
            server.close()
            for protocol in made:
                await protocol.lost()


def in_threads(function, count):
    """Runs the function in threads of its own; (threads, results)."""
    results = []
    running = [
        threading.Thread(target=lambda i=i: results.append(function(i)))
        for i in range(count)
    ]
    for thread in running:
        thread.start()
    return running, results


def ping(address, rounds, size=1024, seed=0):
    """Sends messages of random sizes and checks that they come back."""
    chance = random.Random(seed)
    data = pattern(size * 2)
    with dial(address) as sock:
        for _ in range(rounds):
            start = chance.randrange(size)
            message = data[start : start + chance.randrange(1, size)]
            sock.sendall(message)
            assert read_exactly(sock, len(message)) == message
    return rounds


async def load(loop, address, clients=4, rounds=100, size=1024):
    """Python clients in threads; what they did is checked there."""
    running, results = in_threads(
        lambda seed: ping(address, rounds, size, seed), clients
    )
    most = 0
    while any(thread.is_alive() for thread in running):
        most = max(most, threads())
        await asyncio.sleep(0.001)
    for thread in running:
        thread.join()
    assert results == [rounds] * clients
    return most
