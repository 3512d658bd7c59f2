"""Blocking sockets in threads, after the benchmarks of Go's net package.

    pytest benchmarks/bench_blocking.py [--bench-rounds 5]
    python -m benchmarks.bench_blocking [-w TCPPersistent,Framed] [-r 5]
        [-m socket,pyfastnet] [-t 1,2,4,8] [--json FILE]

-t: so many client threads exchange 512-byte messages, each with a server
thread that has a listener of its own; all are started beforehand.  TCPOneShot
makes a connection for each exchange, TCPPersistent keeps one for each client
thread; with Timeout, 5 s are set on each connection.
Framed exchanges messages of 512 bytes behind four of length: sendall() of the
joined message and loops around recv() with the socket module, sendall() of
both parts and recv_exactly() with pyfastnet.

Each measurement is a process of its own, in which both ends use the same
module; rounds take the modules, and a workload with and without timeout, in
turn.  Wall and CPU time and voluntary context switches per exchange; ratios
are medians of those within rounds.  On a machine with other work the CPU time
is the figure to trust.
"""

import argparse
import contextlib
import importlib
import json
import os
import resource
import statistics
import struct
import subprocess
import sys
import threading
import time

import pytest

SIZE = 512
TIMEOUT = 5.0
LENGTH = struct.Struct("!I")

# name: (connections are kept, a timeout is set, framed, exchanges)
WORKLOADS = {
    "TCPOneShot": (False, False, False, 4_000),
    "TCPOneShotTimeout": (False, True, False, 4_000),
    "TCPPersistent": (True, False, False, 20_000),
    "TCPPersistentTimeout": (True, True, False, 20_000),
    "Framed": (True, False, True, 20_000),
    "FramedTimeout": (True, True, True, 20_000),
}
MODULES = ("socket", "pyfastnet")


def receive(sock, size):
    """The usual loop."""
    pieces = []
    while size:
        piece = sock.recv(size)
        if not piece:
            raise EOFError
        pieces.append(piece)
        size -= len(piece)
    return b"".join(pieces)


def plain_send(sock, body):
    sock.sendall(body)


def plain_receive(sock):
    return receive(sock, SIZE)


def joined_send(sock, body):
    sock.sendall(LENGTH.pack(len(body)) + body)


def joined_receive(sock):
    return receive(sock, LENGTH.unpack(receive(sock, LENGTH.size))[0])


def vectored_send(sock, body):
    sock.sendall([LENGTH.pack(len(body)), body])


def exact_receive(sock):
    return sock.recv_exactly(LENGTH.unpack(sock.recv_exactly(LENGTH.size))[0])


def calls(net, framed):
    if not framed:
        return plain_send, plain_receive
    if net.__name__ == "socket":
        return joined_send, joined_receive
    return vectored_send, exact_receive


def measure(module, name, threads):
    """One run in this process."""
    keep, timeout, framed, count = WORKLOADS[name]
    net = importlib.import_module(module)
    send, recv = calls(net, framed)
    listeners = [net.create_server(("127.0.0.1", 0)) for _ in range(threads)]
    gate = threading.Barrier(threads + 1)
    body = b"x" * SIZE

    def serve(listener):
        with contextlib.suppress(OSError):
            while True:
                conn, _ = listener.accept()
                with conn, contextlib.suppress(OSError, EOFError):
                    if timeout:
                        conn.settimeout(TIMEOUT)
                    while True:
                        send(conn, recv(conn))
                        if not keep:
                            break

    def connect(listener):
        sock = net.create_connection(listener.getsockname())
        if timeout:
            sock.settimeout(TIMEOUT)
        return sock

    def persistent(listener, exchanges):
        with connect(listener) as sock:
            gate.wait()
            for _ in range(exchanges):
                send(sock, body)
                recv(sock)
            gate.wait()

    def oneshot(listener, exchanges):
        gate.wait()
        for _ in range(exchanges):
            with connect(listener) as sock:
                send(sock, body)
                recv(sock)
        gate.wait()

    client = persistent if keep else oneshot
    for listener in listeners:
        for target, args in (
            (serve, (listener,)),
            (client, (listener, count // threads)),
        ):
            threading.Thread(target=target, args=args, daemon=True).start()
    gate.wait()
    began, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_SELF)
    gate.wait()
    wall, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_SELF)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    done = count // threads * threads
    return {
        "wall": wall / done * 1e6,
        "cpu": cpu / done * 1e6,
        "switches": (after.ru_nvcsw - before.ru_nvcsw) / done,
    }


def in_a_process(module, name, threads):
    command = [sys.executable, "-m", "benchmarks.bench_blocking", "--child"]
    done = subprocess.run(
        [*command, module, name, str(threads)],
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    return json.loads(done.stdout)


@pytest.mark.parametrize("module", MODULES)
@pytest.mark.parametrize("name", WORKLOADS)
def test_blocking(benchmark, name, module, options):
    """The time is that of the whole process; what counts is in extra_info."""
    rounds = []
    benchmark.group = name
    benchmark.pedantic(
        lambda: rounds.append(in_a_process(module, name, 4)),
        rounds=options.rounds,
        iterations=1,
    )
    for metric in rounds[0]:
        benchmark.extra_info[f"{metric} us/op"] = statistics.median(
            r[metric] for r in rounds
        )


def print_table(results, names, modules, threads):
    first = modules[0]
    print(
        f"{'workload':22}{'threads':>8}{'module':>12}{'wall us':>9}{'CPU us':>8}"
        f"{'switches':>9}{'rate':>7}{'rate, CPU':>10}"
    )
    for name in names:
        for n in threads:
            for module in modules:
                rounds = results[name, n, module]
                median = {
                    key: statistics.median(r[key] for r in rounds) for key in rounds[0]
                }
                ratios = [
                    statistics.median(
                        a[key] / b[key]
                        for a, b in zip(results[name, n, first], rounds, strict=True)
                    )
                    for key in ("wall", "cpu")
                ]
                print(
                    f"{name:22}{n:8}{module:>12}{median['wall']:9.1f}"
                    f"{median['cpu']:8.1f}{median['switches']:9.2f}"
                    f"{ratios[0]:6.2f}x{ratios[1]:9.2f}x"
                )
    for name in names:
        if name + "Timeout" in names:
            for module in modules:
                for n in threads:
                    slower = [
                        statistics.median(
                            b[key] / a[key]
                            for a, b in zip(
                                results[name, n, module],
                                results[name + "Timeout", n, module],
                                strict=True,
                            )
                        )
                        for key in ("wall", "cpu")
                    ]
                    print(
                        f"{name} of {module}, {n} threads: with a timeout "
                        f"{(slower[0] - 1) * 100:+.0f} % wall, "
                        f"{(slower[1] - 1) * 100:+.0f} % CPU"
                    )


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("-w", "--workloads", default=",".join(WORKLOADS))
    parser.add_argument("-m", "--modules", default=",".join(MODULES))
    parser.add_argument("-t", "--threads", default="4")
    parser.add_argument("-r", "--rounds", type=int, default=5)
    parser.add_argument("--json", help="write every round to this file")
    options = parser.parse_args()
    names = options.workloads.split(",")
    modules = options.modules.split(",")
    threads = [int(n) for n in options.threads.split(",")]
    results = {(w, n, m): [] for w in names for n in threads for m in modules}
    for n in threads:
        for _ in range(options.rounds):
            for name in names:
                for module in modules:
                    results[name, n, module].append(in_a_process(module, name, n))
    load = os.getloadavg()[0]
    print(f"{options.rounds} rounds; load {load:.1f} on {os.cpu_count()} CPUs")
    print_table(results, names, modules, threads)
    if options.json:
        with open(options.json, "w") as file:
            json.dump(
                [
                    {"workload": w, "threads": n, "module": m, "rounds": rounds}
                    for (w, n, m), rounds in results.items()
                ],
                file,
                indent=1,
            )


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        print(json.dumps(measure(sys.argv[2], sys.argv[3], int(sys.argv[4]))))
        sys.stdout.flush()
        os._exit(0)  # the threads of the server are still in accept()
    main()
