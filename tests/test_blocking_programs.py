"""Programs on the blocking sockets: http.server, http.client, urllib3, a
database client like PyMySQL; each with the socket module as well."""

import contextlib
import http.client
import http.server
import importlib
import os
import re
import shutil
import socket as stdlib
import socketserver
import subprocess
import sys
import threading
import time

import pytest

import pyfastnet.socket

MODULES = {"socket": stdlib, "pyfastnet": pyfastnet.socket}
TIMEOUT = 10


@pytest.fixture(params=sorted(MODULES))
def net(request):
    return MODULES[request.param]


@pytest.fixture(params=sorted(MODULES))
def peer(request):
    return MODULES[request.param]


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = TIMEOUT

    def do_GET(self):
        body = b"x" * int(self.path.rpartition("/")[2] or 0)
        self.send_response(200)
        if "chunked" in self.path:
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            for i in range(0, len(body), 1000):
                piece = body[i : i + 1000]
                self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))
            self.wfile.write(b"0\r\n\r\n")
            return
        if "close" in self.path:
            self.close_connection = True
            self.send_header("Connection", "close")
        else:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body.upper())

    def log_message(self, *args):
        pass


class Server(socketserver.ThreadingMixIn, http.server.HTTPServer):
    daemon_threads = True

    def __init__(self, net):
        super().__init__(("127.0.0.1", 0), Handler, bind_and_activate=False)
        self.socket.close()
        self.socket = net.socket(self.address_family, self.socket_type)
        self.server_bind()
        self.server_activate()


@contextlib.contextmanager
def http_server(net):
    with Server(net) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield server.server_address
        finally:
            server.shutdown()
            thread.join()


@contextlib.contextmanager
def http_client(net, address):
    client = http.client.HTTPConnection(*address, timeout=TIMEOUT)
    client._create_connection = net.create_connection
    try:
        yield client
    finally:
        client.close()


def test_http(net, peer):
    with http_server(peer) as address, http_client(net, address) as client:
        for path, size in (
            ("/0", 0),
            ("/10", 10),
            ("/1000000", 1_000_000),
            ("/chunked/5500", 5500),
        ):
            client.request("GET", path)
            response = client.getresponse()
            assert response.status == 200
            assert response.read() == b"x" * size
        client.request("POST", "/", body=b"abc" * 50_000)
        assert client.getresponse().read() == b"ABC" * 50_000
        client.request("GET", "/close/70000")
        response = client.getresponse()
        assert client.sock is None, "closed, and read through the file"
        assert response.read(10) == b"x" * 10
        assert len(response.read()) == 69_990
        client.request("GET", "/5")
        response = client.getresponse()
        buffer = bytearray(10)
        assert response.readinto(buffer) == 5


def test_http_of_many_threads(net):
    errors = []

    def work(address):
        try:
            with http_client(net, address) as client:
                for size in (10, 20_000, 5):
                    client.request("GET", f"/{size}")
                    assert len(client.getresponse().read()) == size
        except BaseException as exc:
            errors.append(exc)

    with http_server(net) as address:
        threads = [threading.Thread(target=work, args=(address,)) for _ in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(TIMEOUT)
    assert not errors


def test_urllib3(net, monkeypatch):
    urllib3 = pytest.importorskip("urllib3", reason="a client that is not installed")
    connection = importlib.import_module("urllib3.util.connection")
    monkeypatch.setattr(connection, "socket", net)
    with http_server(net) as (host, port):
        with urllib3.PoolManager(retries=False, timeout=TIMEOUT) as pool:
            for path, size in (("/10", 10), ("/chunked/5500", 5500), ("/300000", 3e5)):
                response = pool.request("GET", f"http://{host}:{port}{path}")
                assert response.status == 200
                assert len(response.data) == size
            response = pool.request("POST", f"http://{host}:{port}/", body=b"abc")
            assert response.data == b"ABC"
            response = pool.request(
                "GET", f"http://{host}:{port}/100000", preload_content=False
            )
            assert sum(map(len, response.stream(3000))) == 100_000
            response.release_conn()
        closed_port = port
    with urllib3.PoolManager(retries=False) as pool:
        with pytest.raises(urllib3.exceptions.HTTPError):
            pool.request("GET", f"http://{host}:{closed_port}/")
        with stdlib.create_server(("127.0.0.1", 0)) as silent:
            with pytest.raises(urllib3.exceptions.ReadTimeoutError):
                pool.request(
                    "GET", f"http://127.0.0.1:{silent.getsockname()[1]}/", timeout=0.1
                )


# -- a client of a database, as PyMySQL uses its socket ------------------------


class Lost(Exception):
    pass


class Client:
    """Packets of three bytes of length and one of sequence, read with a
    buffered file, written with sendall(); timeouts set anew for each."""

    def __init__(self, net, address, timeout=TIMEOUT):
        self._timeout = timeout
        self._sock = net.create_connection(address, timeout)
        self._sock.settimeout(None)
        self._sock.setsockopt(net.IPPROTO_TCP, net.TCP_NODELAY, 1)
        self._sock.setsockopt(net.SOL_SOCKET, net.SO_KEEPALIVE, 1)
        self._rfile = self._sock.makefile("rb")
        self._sequence = 0
        assert self.read_packet().startswith(b"\n8.0")
        self.write_packet(b"user\0password")
        assert self.read_packet() == b"\0"

    def read_packet(self):
        header = self._read(4)
        size = int.from_bytes(header[:3], "little")
        self._sequence = (header[3] + 1) % 256
        return self._read(size)

    def _read(self, size):
        self._sock.settimeout(self._timeout)
        try:
            data = self._rfile.read(size)
        except OSError as exc:
            self.close()
            raise Lost(f"during query ({exc})") from exc
        if len(data) < size:
            self.close()
            raise Lost("during query")
        return data

    def write_packet(self, payload):
        self._sock.settimeout(self._timeout)
        header = len(payload).to_bytes(3, "little") + bytes([self._sequence])
        self._sock.sendall(header + payload)
        self._sequence = (self._sequence + 1) % 256

    def query(self, text):
        self._sequence = 0
        self.write_packet(b"\3" + text)
        rows = []
        while (row := self.read_packet()) != b"\xfe":
            rows.append(row)
        return rows

    def close(self):
        self._rfile.close()
        self._sock.close()


def database(net):
    """A server for Client; its address and a function that ends it."""
    listener = net.create_server(("127.0.0.1", 0))

    def packet(sequence, payload):
        return len(payload).to_bytes(3, "little") + bytes([sequence]) + payload

    def serve(conn):
        with conn, conn.makefile("rb") as file:
            conn.sendall(packet(0, b"\n8.0.fake\0"))
            while header := file.read(4):
                sequence = header[3] + 1
                payload = file.read(int.from_bytes(header[:3], "little"))
                if payload.startswith(b"\3sleep"):
                    time.sleep(0.3)
                elif payload.startswith(b"\3quit"):
                    return
                elif payload.startswith(b"\3"):
                    count, size = map(int, payload[1:].split())
                    for _ in range(count):
                        conn.sendall(packet(sequence % 256, b"r" * size))
                        sequence += 1
                    conn.sendall(packet(sequence % 256, b"\xfe"))
                else:
                    conn.sendall(packet(sequence, b"\0"))

    def accept():
        with contextlib.suppress(OSError):
            while True:
                conn, _ = listener.accept()
                threading.Thread(target=serve, args=(conn,), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    return listener.getsockname(), listener


def test_a_database_client(net):
    address, listener = database(pyfastnet.socket)
    client = Client(net, address)
    assert client.query(b"3 10") == [b"r" * 10] * 3
    assert client.query(b"1 1000000") == [b"r" * 1_000_000]
    assert client.query(b"5000 20") == [b"r" * 20] * 5000
    assert client.query(b"0 0") == []
    with pytest.raises(Lost):
        client.query(b"quit")
    client = Client(net, address, 0.1)
    with pytest.raises(Lost, match="timed out"):
        client.query(b"sleep")
    listener.close()


# -- the same number of system calls with a timeout and without ----------------

EXCHANGE = """
import sys, threading
import pyfastnet
timeout = float(sys.argv[1]) or None
one, other = pyfastnet.socketpair()
def serve():
    other.settimeout(timeout)
    while data := other.recv(100):
        other.sendall(data)
thread = threading.Thread(target=serve)
thread.start()
one.settimeout(timeout)
for _ in range(200):
    one.sendall(b"x")
    one.recv_exactly(1)
one.shutdown(1)
thread.join()
"""


def network_calls(timeout, tmp_path):
    path = tmp_path / f"trace-{timeout}"
    subprocess.run(
        ["strace", "-f", "-c", "-o", path, "-e", "trace=network,ppoll,poll,fcntl"]
        + [sys.executable, "-c", EXCHANGE, str(timeout)],
        check=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        timeout=60,
    )
    calls = {}
    for line in path.read_text().splitlines():
        match = re.match(r"\s*[\d.]+\s+[\d.]+\s+\d+\s+(\d+)\s+(?:\d+\s+)?(\w+)$", line)
        if match and match[2] != "total":
            calls[match[2]] = int(match[1])
    return calls


@pytest.mark.skipif(not shutil.which("strace"), reason="needs strace")
def test_a_timeout_costs_no_system_call(tmp_path):
    without = network_calls(0, tmp_path)
    with_timeout = network_calls(30, tmp_path)
    assert set(without) == set(with_timeout)
    for name in ("sendto", "recvfrom", "ppoll"):
        assert 200 <= without[name] <= 900
    # whether a try succeeds is a matter of timing, what is called is not
    assert without["sendto"] == with_timeout["sendto"]
    for name in ("recvfrom", "ppoll"):
        assert abs(without[name] - with_timeout[name]) <= 100, (without, with_timeout)
    assert without.get("fcntl") == with_timeout.get("fcntl")
