"""getaddrinfo() and getnameinfo(): the answers and errors of the socket
module's, without blocking the loop, on a bounded pool of threads."""

import asyncio
import gc
import itertools
import logging
import os
import shutil
import socket
import subprocess
import textwrap
import threading
from unittest import mock

import pytest
import support

HOSTS = [None, "", "127.0.0.1", "127.1", "::1", "fe80::1%lo", "fe80::1%1"]
HOSTS += ["localhost", "::ffff:1.2.3.4", b"127.0.0.1", "255.255.255.255"]
BAD_HOSTS = ["a" * 70, "a\0b", 5, "a..b", ".a", "\udc80", bytearray(b"::1")]
PORTS = [None, 0, 80, "80", "http", b"domain", "", " 80"]
BAD_PORTS = ["no-such-service", -1, 70000, 2**70, 1.5, "a\0", True, "\udc80"]
OPTIONS = [
    {},
    {"type": socket.SOCK_STREAM},
    {"type": socket.SOCK_DGRAM, "proto": socket.IPPROTO_UDP},
    {"type": socket.SOCK_RAW},
    {"family": socket.AF_INET6},
    {"family": socket.AF_INET6, "flags": socket.AI_V4MAPPED},
    {"flags": socket.AI_CANONNAME},
    {"flags": socket.AI_PASSIVE},
    {"flags": socket.AI_ADDRCONFIG},
    {"flags": socket.AI_NUMERICHOST},
    {"flags": socket.AI_NUMERICHOST | socket.AI_NUMERICSERV},
    {"flags": socket.AI_NUMERICSERV},
    {"flags": 1 << 30},
    {"family": 99},
    {"type": 77},
    {"family": "inet"},
    {"proto": 2**40},
]


def outcome(function, *args, **kwargs):
    try:
        return function(*args, **kwargs)
    except Exception as exc:
        return type(exc), exc.args


async def outcome_of(awaitable):
    try:
        return await awaitable
    except Exception as exc:
        return type(exc), exc.args


def differences(loop, cases):
    async def ask():
        for host, port, options in cases:
            if host == "localhost" and options.get("family") == socket.AF_INET6:
                continue  # where /etc/hosts has none a name server is asked
            want = outcome(socket.getaddrinfo, host, port, **options)
            got = await outcome_of(loop.getaddrinfo(host, port, **options))
            # repr() tells the enumerations from plain numbers.
            if repr(got) != repr(want):
                yield (host, port, options), got, want

    async def collect():
        return [difference async for difference in ask()]

    return loop.run_until_complete(collect())


def test_answers_are_those_of_the_socket_module(loop):
    cases = list(itertools.product(HOSTS, PORTS, OPTIONS))
    if loop.get_debug():
        cases = cases[::7]
    assert differences(loop, cases) == []


def test_errors_are_those_of_the_socket_module(loop):
    cases = list(itertools.product(BAD_HOSTS, [80, "http"], OPTIONS[:6]))
    cases += list(itertools.product(["::1", "localhost"], BAD_PORTS, OPTIONS[:6]))
    numeric = {"flags": socket.AI_NUMERICHOST}  # no name server is asked
    cases += itertools.product(["fe80::1%nope", "1.2.3.4.5"], [80, "http"], [numeric])
    assert differences(loop, cases) == []


SOCKADDRS = [
    ("127.0.0.1", 80),
    ("127.0.0.1", 80, 0),
    ("::1", 80),
    ("::1", 22, 5, 1),
    ("::1", 22, 1 << 20, 1),
    ("fe80::1", 80, 0, 1),
    ("::1", 1, 0, -1),
    ("127.0.0.1", 70000),
    ("127.0.0.1", -1),
    ("localhost", 1),
    ("127.0.0.1\0", 1),
    ["127.0.0.1", 80],
    "127.0.0.1",
    (1, 2),
    (),
]


@pytest.mark.parametrize("sockaddr", SOCKADDRS, ids=repr)
async def test_getnameinfo(loop, sockaddr):
    numeric = socket.NI_NUMERICHOST | socket.NI_NUMERICSERV
    for flags in (numeric, socket.NI_NUMERICHOST, 0, socket.NI_DGRAM, "x", 2**40):
        if flags in (0, socket.NI_DGRAM) and sockaddr[:1] not in (
            ("127.0.0.1",),
            ("::1",),
        ):
            continue  # would ask a name server
        want = outcome(socket.getnameinfo, sockaddr, flags)
        got = await outcome_of(loop.getnameinfo(sockaddr, flags))
        assert got == want, flags


async def test_scope_ids_reach_connections(loop):
    index = socket.if_nametoindex("lo")
    for zone in ("lo", index):
        for options in ({}, {"type": socket.SOCK_STREAM}):
            found = await loop.getaddrinfo(f"fe80::1%{zone}", 1, **options)
            assert {entry[4] for entry in found} == {("fe80::1", 1, 0, index)}


async def test_results_can_be_tasks(loop):
    task = loop.create_task(loop.getaddrinfo("127.0.0.1", 80))
    assert (await task)[0][4] == ("127.0.0.1", 80)


async def test_numbers_start_no_thread(loop, new_loop):
    if new_loop.kind == "asyncio":
        pytest.skip("asyncio uses the executor for all")
    before = threads()
    for host, port in itertools.product(["::1", "127.0.0.1", None], [80, "80"]):
        await loop.getaddrinfo(host, port)
    numeric = socket.NI_NUMERICHOST | socket.NI_NUMERICSERV
    await loop.getnameinfo(("::1", 80), numeric)
    assert threads() == before


async def test_many_at_once(loop):
    found = await asyncio.gather(
        *(loop.getaddrinfo("localhost", 1000 + i) for i in range(300))
    )
    assert [entries[0][4][1] for entries in found] == list(range(1000, 1300))


@pytest.mark.parametrize("where", ["socket", "_socket", "asyncio"])
async def test_a_replaced_socket_module_is_asked(loop, where):
    target = {
        "socket": "socket.getaddrinfo",
        "_socket": "_socket.getaddrinfo",
        "asyncio": "asyncio.base_events.socket.getaddrinfo",
    }[where]
    answer = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("192.0.2.1", 80))]
    with mock.patch(target, return_value=answer) as asked:
        assert await loop.getaddrinfo("example.invalid", 80) == answer
    assert asked.call_count == 1
    with mock.patch("socket.getnameinfo", return_value=("a", "b")) as asked:
        assert await loop.getnameinfo(("::1", 80)) == ("a", "b")
    assert asked.call_count == 1


async def test_debug_mode_logs_look_ups(loop, caplog):
    caplog.set_level(logging.DEBUG, "asyncio")
    await loop.getaddrinfo("localhost", 80, type=socket.SOCK_STREAM)
    said = [record.getMessage() for record in caplog.records]
    wanted = "localhost:80, type=<SocketKind.SOCK_STREAM: 1>"
    if loop.get_debug():
        assert f"Get address info {wanted}" in said
        assert any(
            text.startswith(f"Getting address info {wanted} took ") for text in said
        )
    else:
        assert not any("address info" in text for text in said)


def test_auditing_hooks_are_told(new_loop):
    text = support.run_script(
        new_loop,
        """
        seen = []
        sys.addaudithook(lambda name, args: seen.append((name, args)))
        loop = new_loop()
        for host in ("localhost", "::1"):
            loop.run_until_complete(loop.getaddrinfo(host, 80))
        loop.run_until_complete(loop.getnameinfo(("::1", 80), 3))
        loop.close()
        print([item for item in seen if item[0].startswith("socket.get")])
        """,
    )
    assert eval(text) == [
        ("socket.getaddrinfo", ("localhost", 80, 0, 0, 0)),
        ("socket.getaddrinfo", ("::1", 80, 0, 0, 0)),
        ("socket.getnameinfo", (("::1", 80),)),
    ]


async def test_create_connection_by_name(loop):
    with support.listener(family=socket.AF_INET) as lsock:
        transport, _ = await loop.create_connection(
            support.Recorder, "localhost", lsock.getsockname()[1]
        )
        lsock.accept()[0].close()
        transport.abort()
    await support.turns(2)


def test_closed_loop(loop):
    loop.close()
    for query in (
        loop.getaddrinfo("localhost", 80),
        loop.getaddrinfo("::1", 80),
        loop.getnameinfo(("::1", 80), 3),
    ):
        with pytest.raises(RuntimeError, match="Event loop is closed"):
            query.send(None)


# -- a resolver that hangs ---------------------------------------------------

# Names that begin with "slow" hang until the file RESOLVER_GATE is there;
# RESOLVER_LOG gets a line for each look-up that was begun.
RESOLVER = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <netdb.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int getaddrinfo(const char *host, const char *service,
                const struct addrinfo *hints, struct addrinfo **list)
{
    int (*real)(const char *, const char *, const struct addrinfo *,
                struct addrinfo **) = dlsym(RTLD_NEXT, "getaddrinfo");
    if (host == NULL || strncmp(host, "slow", 4) != 0 ||
        (hints->ai_flags & AI_NUMERICHOST)) {
        return real(host, service, hints, list);
    }
    int fd = open(getenv("RESOLVER_LOG"), O_WRONLY | O_APPEND | O_CREAT, 0600);
    (void)!write(fd, "x", 1);
    close(fd);
    while (access(getenv("RESOLVER_GATE"), F_OK) != 0)
        usleep(2000);
    return real("127.0.0.1", service, hints, list);
}
"""

HELPERS = """
LOG, GATE = os.environ["RESOLVER_LOG"], os.environ["RESOLVER_GATE"]

def begun():
    return os.path.getsize(LOG) if os.path.exists(LOG) else 0

def threads():
    names = []
    for task in os.listdir("/proc/self/task"):
        try:
            with open(f"/proc/self/task/{task}/comm") as file:
                names.append(file.read().strip())
        except OSError:
            pass
    return names.count("fnet-names")

async def until(condition):
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end, "the condition never came true"
        await asyncio.sleep(0.005)
"""


def threads():
    return len(os.listdir("/proc/self/task"))


@pytest.fixture(scope="session")
def resolver(tmp_path_factory):
    folder = tmp_path_factory.mktemp("resolver")
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        assert not os.environ.get("CI"), "no C compiler"
        pytest.skip("needs a C compiler")
    (folder / "resolver.c").write_text(RESOLVER)
    subprocess.run(
        [compiler, "-shared", "-fPIC", "-o", "resolver.so", "resolver.c", "-ldl"],
        cwd=folder,
        check=True,
    )
    return folder / "resolver.so"


@pytest.fixture
def run_slow(new_loop, resolver, tmp_path, monkeypatch):
    if new_loop.kind == "asyncio":
        pytest.skip("about the threads of pyfastnet; asyncio waits at exit")
    before = os.environ.get("LD_PRELOAD")
    monkeypatch.setenv(
        "LD_PRELOAD", f"{before}:{resolver}" if before else str(resolver)
    )
    monkeypatch.setenv("RESOLVER_LOG", str(tmp_path / "log"))
    monkeypatch.setenv("RESOLVER_GATE", str(tmp_path / "gate"))

    def run(body):
        return support.run_script(new_loop, HELPERS + textwrap.dedent(body))

    return run


def test_threads_are_bounded_and_end_when_idle(run_slow):
    run_slow(
        """
        async def main():
            loop = asyncio.get_running_loop()
            asked = [asyncio.ensure_future(loop.getaddrinfo(f"slow{i}", 80))
                     for i in range(50)]
            await until(lambda: begun() == 8)
            assert threads() == 8, threads()
            open(GATE, "w").close()
            for found in await asyncio.gather(*asked):
                assert found[0][4] == ("127.0.0.1", 80), found
            assert begun() == 50
            assert threads() <= 8
            await until(lambda: threads() == 0)

        loop = new_loop()
        loop.run_until_complete(main())
        loop.close()
        """
    )


def test_the_loop_runs_on_meanwhile(run_slow):
    run_slow(
        """
        async def main():
            loop = asyncio.get_running_loop()
            asked = loop.create_task(loop.getaddrinfo("slow", 80))
            await until(lambda: begun() == 1)
            assert await loop.getaddrinfo("127.0.0.1", 80)
            assert await loop.getaddrinfo("localhost", "http")
            open(GATE, "w").close()
            # Nothing but the answer wakes the loop now.
            assert (await asked)[0][4] == ("127.0.0.1", 80)

        loop = new_loop()
        loop.run_until_complete(main())
        loop.close()
        """
    )


def test_cancelled_look_ups_leave_nothing_behind(run_slow):
    run_slow(
        """
        import gc, weakref

        async def main():
            loop = asyncio.get_running_loop()
            asked = [loop.create_task(loop.getaddrinfo(f"slow{i}", 80))
                     for i in range(20)]
            await until(lambda: begun() == 8)
            for task in asked:
                task.cancel()
            await asyncio.wait(asked)
            assert all(task.cancelled() for task in asked)
            refs = [weakref.ref(task) for task in asked]
            del asked, task
            gc.collect()
            assert not any(ref() for ref in refs)
            try:
                await asyncio.wait_for(loop.getaddrinfo("slow", 80), 0.05)
            except TimeoutError:
                pass
            open(GATE, "w").close()
            # Those in the queue were taken back: nobody asks for them.
            assert (await loop.getaddrinfo("slow", 80))[0][4][1] == 80
            assert begun() == 9, begun()

        loop = new_loop()
        loop.run_until_complete(main())
        loop.close()
        """
    )


def test_exit_is_not_held_up(run_slow):
    run_slow(
        """
        async def main():
            loop = asyncio.get_running_loop()
            for i in range(20):
                loop.create_task(loop.getaddrinfo(f"slow{i}", 80))
            await until(lambda: begun() == 8)

        loop = new_loop()
        loop.set_exception_handler(lambda loop, context: None)
        loop.run_until_complete(main())
        tasks = asyncio.all_tasks(loop)
        for task in tasks:
            task.cancel()
        loop.run_until_complete(asyncio.wait(tasks))
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()
        """
    )


def test_a_loop_that_is_closed_hears_no_more(run_slow):
    run_slow(
        """
        import gc, warnings
        warnings.simplefilter("ignore")

        async def ask(loop):
            loop.create_task(loop.getaddrinfo("slow", 80))
            await until(lambda: begun() == 1)

        loop = new_loop()
        loop.set_exception_handler(lambda loop, context: None)
        loop.run_until_complete(ask(loop))
        loop.close()
        del loop
        gc.collect()
        open(GATE, "w").close()
        loop = new_loop()
        assert loop.run_until_complete(loop.getaddrinfo("slow", 80))
        loop.run_until_complete(until(lambda: threads() == 0))
        loop.close()
        """
    )


def test_a_child_starts_anew(run_slow):
    run_slow(
        """
        import gc, warnings
        warnings.simplefilter("ignore")

        async def main():
            loop = asyncio.get_running_loop()
            asked = [loop.create_task(loop.getaddrinfo(f"slow{i}", 80))
                     for i in range(10)]
            await until(lambda: begun() == 8)
            pid = os.fork()
            if pid == 0:
                asyncio._set_running_loop(None)
                status = 1
                try:
                    assert threads() == 0
                    child = new_loop()
                    assert child.run_until_complete(
                        child.getaddrinfo("localhost", "http"))
                    assert threads() == 1
                    child.close()
                    status = 0
                finally:
                    os._exit(status)
            pid, status = await asyncio.to_thread(os.waitpid, pid, 0)
            assert status == 0, status
            open(GATE, "w").close()
            assert len(await asyncio.gather(*asked)) == 10

        loop = new_loop()
        loop.run_until_complete(main())
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()
        """
    )


@pytest.mark.skipif(
    "asan" in os.environ.get("LD_PRELOAD", ""),
    reason="AddressSanitizer reserves terabytes of addresses",
)
def test_without_threads_the_error_says_so(run_slow):
    run_slow(
        """
        import resource

        loop = new_loop()
        loop.run_until_complete(loop.getaddrinfo("::1", 80))
        # The address space has no room for one more stack.
        with open("/proc/self/statm") as file:
            size = int(file.read().split()[0]) * resource.getpagesize()
        hard = resource.getrlimit(resource.RLIMIT_AS)[1]
        resource.setrlimit(resource.RLIMIT_AS, (size, hard))
        try:
            coroutine = loop.getaddrinfo("localhost", 80)
            try:
                loop.run_until_complete(coroutine)
            except (RuntimeError, MemoryError) as exc:
                said = repr(exc)
            else:
                said = "worked"
        finally:
            resource.setrlimit(resource.RLIMIT_AS, (hard, hard))
        assert said == "RuntimeError(\\"can't start new thread\\")", said
        assert loop.run_until_complete(loop.getaddrinfo("localhost", 80))
        loop.close()
        """
    )


@pytest.mark.not_on("asyncio", reason="its executor starts threads meanwhile")
async def test_nothing_leaks(loop):
    async def rounds(count):
        for _ in range(count):
            await loop.getaddrinfo("localhost", "http")
            await outcome_of(loop.getaddrinfo("::1", "no-such-service"))
            await loop.getnameinfo(("127.0.0.1", 80))
        gc.collect()
        return len(gc.get_objects())

    await rounds(20)
    before = await rounds(20)
    after = await rounds(100)
    assert after - before < 90


async def test_garbage_that_has_asked(loop):
    """Who asked is collected while the answer is made, or before, or after."""

    async def ask(cell):
        cell.append(cell)
        await loop.getaddrinfo("localhost", "http")

    def leave(count):
        for _ in range(count):
            cell = []
            coroutine = ask(cell)
            cell.append(coroutine)
            coroutine.send(None)

    threshold = gc.get_threshold()
    gc.set_threshold(5)
    try:
        for _ in range(30):
            leave(10)
            found = await asyncio.gather(
                *(loop.getaddrinfo("localhost", port) for port in range(10))
            )
            assert all(found)
    finally:
        gc.set_threshold(*threshold)
    gc.collect()


def test_threads_of_other_loops(new_loop):
    """Several loops, each in a thread of its own, share the pool."""
    failures = []

    def run():
        loop = new_loop()
        try:
            for _ in range(20):
                found = loop.run_until_complete(loop.getaddrinfo("localhost", 80))
                assert found
            loop.run_until_complete(loop.shutdown_default_executor())
        except BaseException as exc:
            failures.append(exc)
        finally:
            loop.close()

    workers = [threading.Thread(target=run) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(support.TIMEOUT)
    assert not failures
