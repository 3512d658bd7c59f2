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
import asyncio, os, socket, threading, time, warnings
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
print('done')
"""
    done = subprocess.run(
        [sys.executable, "-c", script],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        env=ENVIRONMENT,
        timeout=40,
        check=False,
    )
    assert done.stdout == "done\n", done.stdout + done.stderr
