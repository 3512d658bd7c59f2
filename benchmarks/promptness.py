"""How soon written bytes leave a handler that does not give way.

    python -m benchmarks.promptness [-l asyncio,uvloop,pyfastnet] [-r 5] [--json FILE]

The time from a handler's write() to the arrival at the peer, in milliseconds,
for handlers that after it
    compute   compute for 50 ms
    block     block until the peer has reacted (0.5 s at most)
    late      compute for 10 ms, write again (this is the write that is timed)
              and compute for 50 ms
    crowd     compute for 20 ms, with ten connections served in one turn
each on a connection that is new (`fresh`) and on one that has had 1,000 short
turns (`worn`).  A loop that defers its writes must keep this within 2 ms.  The
processes may use both CPUs, as most programs may.
"""

import asyncio
import contextlib
import json
import os
import selectors
import socket
import statistics
import struct
import sys
import time

from benchmarks import harness, loops, procs

STAMP = struct.Struct("=dQ")
"""when write() was called, by the machine's monotonic clock, and which it was"""
SHORT_TURNS = 1000
CROWD = 10
REACTION = 0.5


def compute(secs: float) -> None:
    end = time.monotonic() + secs
    while time.monotonic() < end:
        pass


class Prompt(asyncio.Protocol):
    """Does what single bytes tell it to."""

    serial = 0

    def __init__(self, side: socket.socket) -> None:
        self.side = side

    def connection_made(self, transport):
        self.transport = transport

    def data_received(self, data):
        for order in data:
            self.orders[order](self)

    def write(self) -> None:
        Prompt.serial += 1
        self.transport.write(STAMP.pack(time.monotonic(), Prompt.serial))

    def then_compute(self) -> None:
        self.write()
        compute(0.05)

    def then_block(self) -> None:
        self.write()
        end = time.monotonic() + REACTION
        while (left := end - time.monotonic()) > 0:
            self.side.settimeout(left)
            # Reactions to earlier writes may still be on their way.
            with contextlib.suppress(TimeoutError):
                if struct.unpack("=Q", self.side.recv(8))[0] == Prompt.serial:
                    return

    def late(self) -> None:
        self.write()
        compute(0.01)
        self.then_compute()

    def crowd(self) -> None:
        self.write()
        compute(0.02)

    orders = {
        ord("e"): write,
        ord("c"): then_compute,
        ord("b"): then_block,
        ord("l"): late,
        ord("w"): crowd,
    }


class Peer:
    """The other end: one connection, and the side channel for reactions."""

    def __init__(self, port: int) -> None:
        self.sock = socket.create_connection(("127.0.0.1", port), timeout=3)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def __enter__(self) -> "Peer":
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.sock.close()

    def arrival(self) -> tuple[float, int]:
        """Waits for a stamp; the milliseconds it took, and its number."""
        data = self.sock.recv(STAMP.size)
        now = time.monotonic()
        while len(data) < STAMP.size:
            more = self.sock.recv(STAMP.size - len(data))
            if not more:
                raise procs.BenchmarkError("the server closed the connection")
            data += more
        written, serial = STAMP.unpack(data)
        return (now - written) * 1e3, serial

    def wear(self) -> None:
        for _ in range(SHORT_TURNS):
            self.sock.send(b"e")
            self.arrival()


def measure_one(mode: str, worn: bool, port: int, side: socket.socket) -> list[float]:
    with Peer(port) as peer:
        if worn:
            peer.wear()
        peer.sock.send(mode[:1].encode())
        took, serial = peer.arrival()
        if mode == "block":
            side.send(struct.pack("=Q", serial))
        if mode == "late":
            took, _ = peer.arrival()
        return [took]


def measure_crowd(worn: bool, port: int) -> list[float]:
    """Ten orders that the loop finds in one turn, busy as it is with another."""
    times = []
    with contextlib.ExitStack() as stack:
        blocker = stack.enter_context(Peer(port))
        peers = [stack.enter_context(Peer(port)) for _ in range(CROWD)]
        for peer in peers if worn else ():
            peer.wear()
        selector = stack.enter_context(selectors.DefaultSelector())
        for peer in peers:
            selector.register(peer.sock, selectors.EVENT_READ, peer)
        blocker.sock.send(b"w")
        time.sleep(0.005)
        for peer in peers:
            peer.sock.send(b"w")
        while len(times) < CROWD:
            for key, _ in selector.select(3) or ():
                times.append(key.data.arrival()[0])
        blocker.arrival()
    return times


class PromptWorkload(harness.Workload):
    metrics = (
        harness.Metric("p50_ms", "median ms", 3, compare=False),
        harness.Metric("max_ms", "worst ms", 3, compare=False),
    )
    repeats = 5

    def __init__(self, mode: str, state: str) -> None:
        super().__init__(f"{mode}-{state}", "promptness")
        self.mode, self.worn = mode, state == "worn"

    def measure(self, loop: str, options: harness.Options) -> harness.Round:
        command = procs.python("promptness", "--child", loop)
        with procs.Child(command, options.cpus.both) as child:
            with procs.pinned(options.cpus.both):
                return self.measure_child(child)

    def measure_child(self, child: procs.Child) -> harness.Round:
        def waited() -> float:
            used = procs.usage(child.pid), procs.thread_usage(me, me)
            return max(u.waited for u in used)

        me = os.getpid()
        ports = child.answer()
        times: list[float] = []
        with socket.create_connection(("127.0.0.1", ports["side"]), 3) as side:
            child.answer()
            before, began = waited(), time.monotonic()
            for _ in range(self.repeats):
                if self.mode == "crowd":
                    times += measure_crowd(self.worn, ports["port"])
                else:
                    times += measure_one(self.mode, self.worn, ports["port"], side)
            share = (waited() - before) / (time.monotonic() - began)
        return {
            "p50_ms": statistics.median(times),
            "max_ms": max(times),
            "waited": share,
        }


WORKLOADS = harness.registry(
    *(
        PromptWorkload(mode, state)
        for mode in ("compute", "block", "late", "crowd")
        for state in ("fresh", "worn")
    )
)


def child(loop_name: str) -> None:
    """The server's process."""
    procs.child_setup()
    listener = socket.create_server(("127.0.0.1", 0))

    async def main() -> None:
        loop = asyncio.get_running_loop()
        server = await loop.create_server(lambda: Prompt(side), "127.0.0.1", 0)
        ports = {
            "port": server.sockets[0].getsockname()[1],
            "side": listener.getsockname()[1],
        }
        print(json.dumps(ports), flush=True)
        side, _ = listener.accept()
        print(json.dumps("ready"), flush=True)
        await asyncio.Event().wait()

    loop = loops.factory(loop_name)()
    asyncio.set_event_loop(loop)
    loop.run_until_complete(main())


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        child(sys.argv[2])
    else:
        harness.cli(__doc__, WORKLOADS)
