"""Forks, exits, finalization, loops in threads, loops closed in full flight:
some of the lives that lives.py can repeat for hours."""

import os
import pathlib
import subprocess
import sys

import lives
import pytest

# The package is where this process has found it.
ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
PROGRAM = pathlib.Path(lives.__file__)
TIMES = 8

pytestmark = pytest.mark.skipif(
    "pyfastnet" not in os.environ.get("PYFASTNET_TEST_LOOPS", "pyfastnet"),
    reason="about the workers of pyfastnet",
)


def run(*arguments):
    return subprocess.run(
        [sys.executable, str(PROGRAM), *map(str, arguments)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        env=ENVIRONMENT,
        timeout=55,
        check=False,
    )


def run_program(script, home):
    """Runs the text, with PYFASTNET_HOME, in a process of its own; what it
    has printed."""
    head = "import asyncio, os, socket, threading, time, warnings\n"
    done = subprocess.run(
        [sys.executable, "-c", head + script + "\nprint('done')"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        env={**ENVIRONMENT, "PYFASTNET_HOME": home},
        timeout=40,
        check=False,
    )
    assert done.stdout.endswith("done\n"), done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("name", lives.LIVES)
def test_a_life_ends_as_it_should(name):
    done = run("--times", TIMES, "--seed", "test", name)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{name}: {TIMES} times" in done.stdout


def test_what_goes_wrong_is_told(tmp_path):
    """A life that raises, one that ends with a wrong status, one that hangs."""
    script = tmp_path / "bad.py"
    script.write_text(
        f"import sys, time\nsys.path.insert(0, {str(PROGRAM.parent)!r})\n"
        "import lives\nlives.LIMIT = 0.5\n"
        "def raises(chance): raise ValueError('of mine')\n"
        "def exits(chance): sys.exit(3)\n"
        "def hangs(chance): time.sleep(60)\n"
        "for life in raises, exits, hangs:\n"
        "    lives.LIVES[life.__name__] = life\n"
        "todo = lives.main()\n"
        "if todo: todo[0](todo[1])\n"
    )
    for name, told in (
        ("raises", ["status 1", "ValueError: of mine"]),
        ("exits", ["status 3"]),
        ("hangs", ["hung", "in hangs"]),
    ):
        done = subprocess.run(
            [sys.executable, str(script), name],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            env=ENVIRONMENT,
            timeout=30,
            check=False,
        )
        assert done.returncode == 1
        for text in told:
            assert text in done.stdout, done.stdout + done.stderr


def test_a_loop_that_begins_to_run_during_a_fork():
    """Its workers were stopped when nobody ran it; they come back though
    another thread runs it by then."""
    script = """
warnings.simplefilter('ignore', DeprecationWarning)

def run_it():
    # Behind pyfastnet's hook: those registered last come first.
    thread.start()
    while not loop.is_running():
        time.sleep(0.001)

os.register_at_fork(before=run_it)
import pyfastnet

class Echo(asyncio.Protocol):
    def connection_made(self, transport):
        self.transport = transport
    def data_received(self, data):
        self.transport.write(data)

async def connect():
    peers = []
    for _ in range(3):
        mine, peer = socket.socketpair()
        mine.setblocking(False)
        await loop.create_connection(Echo, sock=mine)
        peers.append(peer)
    return peers

loop = pyfastnet.EventLoop(shards=3)
peers = loop.run_until_complete(connect())
thread = threading.Thread(target=loop.run_forever)
pid = os.fork()
if pid == 0:
    os._exit(0)
os.waitpid(pid, 0)
for peer in peers:
    peer.settimeout(10)
    peer.sendall(b'hello')
    assert peer.recv(10) == b'hello'
loop.call_soon_threadsafe(loop.stop)
thread.join()
loop.close()
"""
    run_program(script, "")


@pytest.mark.parametrize("home", ["", "worker"])
def test_a_socket_that_another_process_makes_blocking(home):
    """Who shares the open socket can: no thread waits in a call for it, least
    of all one that another waits for with the GIL."""
    run_program(
        """
import pyfastnet

async def main():
    received = []
    class Receiver(asyncio.Protocol):
        def data_received(self, data):
            received.append(data)

    mine, peer = socket.socketpair()
    mine.setblocking(False)
    transport, _ = await loop.create_connection(Receiver, sock=mine)
    with mine.dup() as shared:
        shared.setblocking(True)
    for data in (b'one', b'two'):
        peer.sendall(data)
        while received[-1:] != [data]:
            await asyncio.sleep(0.001)
    transport.write(bytes(1 << 20))
    await asyncio.sleep(0.01)
    assert transport.get_write_buffer_size() > 0
    transport.abort()
    await asyncio.sleep(0.01)

loop = pyfastnet.EventLoop(shards=1)
loop.run_until_complete(main())
loop.close()
""",
        home,
    )


def test_unix_datagrams_leave_as_the_receiver_takes_them():
    """The kernel does not tell of room; a worker that sends by and by is not
    taken for one that cannot send."""
    out = run_program(
        """
import tempfile
import pyfastnet

COUNT = 300

def receive(sock, done):
    for i in range(COUNT):
        assert int(sock.recv(100)) == i
    done.append(time.monotonic())

async def main():
    with tempfile.TemporaryDirectory() as folder:
        path = folder + '/socket'
        receiver = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        receiver.bind(path)
        sender = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        sender.setblocking(False)
        transport, _ = await loop.create_datagram_endpoint(
            asyncio.DatagramProtocol, sock=sender)
        for i in range(COUNT):
            transport.sendto(b'%d' % i, path)
        done = []
        thread = threading.Thread(target=receive, args=(receiver, done))
        start = time.monotonic()
        thread.start()
        while not done:
            await asyncio.sleep(0.01)
        thread.join()
        queue = int(open('/proc/sys/net/unix/max_dgram_qlen').read()) + 1
        # A retry takes what the queue holds; the slowest ones, 50 ms each.
        print('took', done[0] - start, COUNT / queue * 0.05)
        transport.close()
        receiver.close()

loop = pyfastnet.EventLoop(shards=1)
loop.run_until_complete(main())
loop.close()
""",
        "worker",
    )
    took, slow = map(float, out.split()[1:3])
    assert took < max(slow / 3, 0.2), out
