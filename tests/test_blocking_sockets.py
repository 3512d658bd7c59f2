"""Blocking sockets: what the socket module does, on both."""

import array
import contextlib
import errno
import io
import os
import pickle
import select
import socket as stdlib
import ssl
import struct
import sys
import tempfile
import threading
import time

import pytest

import pyfastnet
import pyfastnet.socket
from pyfastnet import Socket

MODULES = {"socket": stdlib, "pyfastnet": pyfastnet.socket}
TIMEOUT = 10


@pytest.fixture(params=sorted(MODULES))
def net(request):
    return MODULES[request.param]


@pytest.fixture
def stack():
    with contextlib.ExitStack() as stack:
        yield stack


@pytest.fixture(params=["tcp", "tcp6", "unix"])
def pair(request, net, stack):
    """Two connected sockets of the module under test."""
    one, other = make_pair(net, stack, request.param)
    one.settimeout(TIMEOUT)
    other.settimeout(TIMEOUT)
    return one, other


def make_pair(net, stack, kind):
    if kind == "unix":
        return tuple(stack.enter_context(s) for s in net.socketpair())
    host, family = (
        ("127.0.0.1", net.AF_INET) if kind == "tcp" else ("::1", net.AF_INET6)
    )
    with net.create_server((host, 0), family=family) as listener:
        one = stack.enter_context(net.create_connection(listener.getsockname()[:2]))
        other, address = listener.accept()
        stack.enter_context(other)
        assert address == one.getsockname()
        assert one.getpeername() == listener.getsockname()
    return one, other


def start(function, *args):
    thread = threading.Thread(target=function, args=args, daemon=True)
    thread.start()
    return thread


# -- sending and receiving ----------------------------------------------------


def test_recv_and_send(pair):
    one, other = pair
    assert one.send(b"hello") == 5
    assert other.recv(2) == b"he"
    assert other.recv(100, stdlib.MSG_PEEK) == b"llo"
    assert other.recv(100) == b"llo"
    assert one.sendall(bytearray(b"x")) is None
    assert other.recv(1) == b"x"
    one.sendall(b"")
    one.shutdown(stdlib.SHUT_WR)
    assert other.recv(1) == b""
    assert other.recv(1) == b""


def test_recv_into(pair):
    one, other = pair
    buffer = bytearray(10)
    one.sendall(b"0123456789")
    assert other.recv_into(buffer, 4) == 4
    assert other.recv_into(memoryview(buffer)[4:], nbytes=2, flags=0) == 2
    assert other.recv_into(memoryview(buffer)[6:]) == 4
    assert buffer == b"0123456789"
    items = array.array("i", [0, 0])
    one.sendall(struct.pack("2i", 7, 8))
    assert other.recv_into(items) == 8
    assert list(items) == [7, 8]


def test_views_of_wide_items_are_sent_whole(pair):
    one, other = pair
    one.sendall(memoryview(array.array("i", range(100))))
    got = b""
    while len(got) < 400:
        got += other.recv(400)
    assert got == array.array("i", range(100)).tobytes()


@pytest.mark.parametrize("size", [1, 1000, 16383, 16384, 16385, 100_000, 3_000_000])
def test_sizes(pair, size):
    one, other = pair
    data = os.urandom(size)
    sender = start(one.sendall, data)
    got = bytearray()
    while len(got) < size:
        piece = other.recv(1 << 20)
        assert piece
        got += piece
    sender.join()
    assert got == data


def test_large_receives_into_a_buffer(pair):
    one, other = pair
    data = os.urandom(1_000_000)
    sender = start(one.sendall, data)
    buffer = bytearray(len(data))
    view = memoryview(buffer)
    got = 0
    while got < len(data):
        got += other.recv_into(view[got:])
    sender.join()
    assert buffer == data


def test_waitall(pair):
    one, other = pair
    other.settimeout(None)
    one.sendall(b"abc")
    finish = threading.Timer(0.1, one.sendall, [b"def"])
    finish.start()
    assert other.recv(6, stdlib.MSG_WAITALL) == b"abcdef"
    one.sendall(b"ghi")
    one.shutdown(stdlib.SHUT_WR)
    assert other.recv(6, stdlib.MSG_WAITALL) == b"ghi"
    finish.join()


def test_dontwait(pair):
    one, other = pair
    one.settimeout(None)
    other.settimeout(None)
    with pytest.raises(BlockingIOError):
        other.recv(1, stdlib.MSG_DONTWAIT)
    with pytest.raises(BlockingIOError):
        for _ in range(100):
            one.send(b"x" * 1_000_000, stdlib.MSG_DONTWAIT)


def test_sendmsg_and_recvmsg(pair):
    one, other = pair
    assert one.sendmsg([b"ab", bytearray(b"cd"), memoryview(b"ef")]) == 6
    data, ancillary, flags, _ = other.recvmsg(3)
    assert (data, ancillary) == (b"abc", [])
    assert flags & stdlib.MSG_TRUNC == 0
    first, second = bytearray(2), bytearray(2)
    assert other.recvmsg_into([first, second])[0] == 3
    assert first + second == b"def\0"
    assert one.sendmsg([b"x"] * 20) == 20
    assert other.recv(100) == b"x" * 20
    assert one.sendmsg([b"y"], [], 0) == 1
    assert other.recv(100) == b"y"
    assert one.sendmsg(iter([b"1", b"2"])) == 2
    assert other.recv(100) == b"12"


def test_descriptors_are_passed(net, stack):
    one, other = make_pair(net, stack, "unix")
    reading, writing = os.pipe()
    try:
        net.send_fds(one, [b"take it"], [reading])
        data, fds, _, _ = net.recv_fds(other, 100, 4)
        assert data == b"take it"
        os.write(writing, b"!")
        assert os.read(fds[0], 1) == b"!"
        os.close(fds[0])
    finally:
        os.close(reading)
        os.close(writing)


def test_sendfile(pair):
    one, other = pair
    data = os.urandom(300_000)
    with tempfile.TemporaryFile() as file:
        file.write(data)
        file.flush()
        sent = []
        sender = start(lambda: sent.append(one.sendfile(file, 1000, 200_000)))
        got = b""
        while len(got) < 200_000:
            got += other.recv(100_000)
        sender.join()
        assert sent == [200_000]
        assert file.tell() == 201_000
        assert got == data[1000:201_000]
        sender = start(lambda: sent.append(one.sendfile(file, 250_000)))
        got = b""
        while len(got) < 50_000:
            got += other.recv(100_000)
        sender.join()
        assert sent[1:] == [50_000]
        assert got == data[250_000:]
    sent = one.sendfile(io.BytesIO(b"no descriptor"), 3)
    assert sent == 10
    assert other.recv(100) == b"descriptor"
    assert one.sendfile(io.BytesIO(b"some of it"), 0, 4) == 4
    assert other.recv(100) == b"some"


def test_sendfile_refuses(pair):
    one, _ = pair
    for arguments in ((0, 0), (0, -1)):
        with pytest.raises(ValueError):
            one.sendfile(io.BytesIO(b"x"), *arguments)
    with pytest.raises(TypeError):
        one.sendfile(io.BytesIO(b"x"), 0, 1.5)
    one.setblocking(False)
    with pytest.raises(ValueError):
        one.sendfile(io.BytesIO(b"x"))


# -- datagrams ----------------------------------------------------------------


@pytest.fixture(params=["udp", "udp6"])
def datagrams(request, net, stack):
    host, family = (
        ("127.0.0.1", net.AF_INET) if request.param == "udp" else ("::1", net.AF_INET6)
    )
    cls = net.socket
    sockets = [stack.enter_context(cls(family, net.SOCK_DGRAM)) for _ in range(2)]
    for sock in sockets:
        sock.bind((host, 0))
        sock.settimeout(TIMEOUT)
    return sockets


def test_datagrams(datagrams):
    one, other = datagrams
    assert one.sendto(b"ping", other.getsockname()) == 4
    assert other.recvfrom(100) == (b"ping", one.getsockname())
    assert one.sendto(b"", 0, other.getsockname()) == 0
    assert other.recvfrom(100) == (b"", one.getsockname())
    buffer = bytearray(10)
    one.sendto(b"abc", other.getsockname())
    assert other.recvfrom_into(buffer) == (3, one.getsockname())
    one.connect(other.getsockname())
    one.send(b"0123456789")
    assert other.recv(4) == b"0123", "the rest of a datagram is cut off"
    for size in (60_000, 60_000, 3, 60_000):
        one.send(b"x" * size)
        assert len(other.recv(65536)) == size
        one.send(b"x" * size)
        assert len(other.recv(65536)) == size
    one.sendall(b"")
    assert other.recv(1) == b""
    with pytest.raises(OSError) as info:
        one.send(b"x" * 70_000)
    assert info.value.errno == errno.EMSGSIZE
    assert one.sendmsg([b"a", b"b"], [], 0, other.getsockname()[:2]) == 2
    data, _, _, address = other.recvmsg(10)
    assert (data, address) == (b"ab", one.getsockname())


def test_names_are_looked_up(net, stack):
    one = stack.enter_context(net.socket(net.AF_INET, net.SOCK_DGRAM))
    other = stack.enter_context(net.socket(net.AF_INET, net.SOCK_DGRAM))
    other.bind(("localhost", 0))
    other.settimeout(TIMEOUT)
    one.sendto(b"x", ("localhost", other.getsockname()[1]))
    assert other.recv(1) == b"x"
    one.connect(("localhost", other.getsockname()[1]))
    assert one.getpeername() == other.getsockname()
    with pytest.raises(stdlib.gaierror):
        one.connect(("nonexistent.invalid", 80))


def test_unix_addresses(net, stack, tmp_path):
    path = str(tmp_path / "socket")
    listener = stack.enter_context(net.socket(net.AF_UNIX))
    listener.bind(path)
    listener.listen()
    assert listener.getsockname() == path
    for target in (path, os.fsencode(path)):
        client = stack.enter_context(net.socket(net.AF_UNIX))
        client.connect(target)
        assert client.getpeername() == path
        conn, address = listener.accept()
        conn.close()
        assert address == ""
    name = b"\0pyfastnet-test-%d" % os.getpid()
    abstract = stack.enter_context(net.socket(net.AF_UNIX, net.SOCK_DGRAM))
    abstract.bind(name)
    assert abstract.getsockname() == name
    sender = stack.enter_context(net.socket(net.AF_UNIX, net.SOCK_DGRAM))
    sender.sendto(b"one", name)
    sender.connect(name)
    sender.send(b"two")
    assert abstract.recvfrom(10)[0] == b"one"
    assert abstract.recv(10) == b"two"
    with pytest.raises(OSError):
        sender.connect("x" * 200)
    with pytest.raises(FileNotFoundError):
        client = stack.enter_context(net.socket(net.AF_UNIX))
        client.connect(str(tmp_path / "nobody"))


def test_a_full_backlog_of_a_unix_listener(net, stack, tmp_path):
    path = str(tmp_path / "socket")
    listener = stack.enter_context(net.socket(net.AF_UNIX))
    listener.bind(path)
    listener.listen(0)
    clients = [stack.enter_context(net.socket(net.AF_UNIX)) for _ in range(3)]
    clients[0].connect(path)

    def take():
        for _ in range(3):
            conn, _ = listener.accept()
            stack.callback(conn.close)

    timer = threading.Timer(0.1, take)
    timer.start()
    for client in clients[1:]:
        client.connect(path)
    timer.join()


# -- attributes ---------------------------------------------------------------


def test_attributes(pair):
    one, other = pair
    assert one.type is stdlib.SOCK_STREAM
    assert one.family in (stdlib.AF_INET, stdlib.AF_INET6, stdlib.AF_UNIX)
    assert isinstance(one.family, stdlib.AddressFamily)
    assert one.proto == other.proto == 0 or one.family != stdlib.AF_UNIX
    assert one.timeout == one.gettimeout() == TIMEOUT
    assert one.getblocking()
    one.setblocking(False)
    assert one.gettimeout() == 0.0 and not one.getblocking()
    one.setblocking(True)
    assert one.gettimeout() is None
    one.settimeout(1)
    assert one.gettimeout() == 1.0
    assert one.get_inheritable() is False
    one.set_inheritable(True)
    assert one.get_inheritable() is True
    assert f"fd={one.fileno()}" in repr(one)
    with pytest.raises(TypeError):
        pickle.dumps(one)


def test_options(pair):
    one, _ = pair
    one.setsockopt(stdlib.SOL_SOCKET, stdlib.SO_KEEPALIVE, 1)
    assert one.getsockopt(stdlib.SOL_SOCKET, stdlib.SO_KEEPALIVE) == 1
    linger = struct.pack("ii", 0, 0)
    one.setsockopt(stdlib.SOL_SOCKET, stdlib.SO_LINGER, linger)
    assert one.getsockopt(stdlib.SOL_SOCKET, stdlib.SO_LINGER, 8) == linger
    with pytest.raises(OSError) as info:
        one.setsockopt(stdlib.SOL_SOCKET, 9999, 1)
    assert info.value.errno == errno.ENOPROTOOPT
    with pytest.raises(OSError):
        one.getsockopt(stdlib.SOL_SOCKET, 9999)
    with pytest.raises(TypeError):
        one.setsockopt(stdlib.SOL_SOCKET)


def test_detach_and_fileno(net, stack):
    one, other = make_pair(net, stack, "tcp")
    fd = one.fileno()
    assert one.detach() == fd
    assert one.fileno() == -1
    assert one.detach() == -1
    one.close()
    again = stack.enter_context(net.socket(fileno=fd))
    assert again.family == net.AF_INET and again.type == net.SOCK_STREAM
    again.sendall(b"still there")
    assert other.recv(100) == b"still there"


def test_dup_and_fromfd(pair, net):
    one, other = pair
    with one.dup() as copy:
        assert copy.fileno() != one.fileno()
        assert copy.gettimeout() == one.gettimeout()
        copy.sendall(b"a")
    with net.fromfd(one.fileno(), one.family, one.type) as copy:
        copy.sendall(b"b")
    one.sendall(b"c")
    got = b""
    while len(got) < 3:
        got += other.recv(3)
    assert got == b"abc"


def test_connect_errors(net, stack):
    with net.create_server(("127.0.0.1", 0)) as listener:
        address = listener.getsockname()
    for timeout in (None, 5):
        sock = stack.enter_context(net.socket())
        sock.settimeout(timeout)
        with pytest.raises(ConnectionRefusedError):
            sock.connect(address)
        sock = stack.enter_context(net.socket())
        sock.settimeout(timeout)
        assert sock.connect_ex(address) == errno.ECONNREFUSED
    with pytest.raises(ConnectionRefusedError):
        net.create_connection(address)
    with pytest.raises(ExceptionGroup):
        net.create_connection(("localhost", address[1]), all_errors=True)
    one, _ = make_pair(net, stack, "tcp")
    with pytest.raises(OSError) as info:
        one.connect(address)
    assert info.value.errno == errno.EISCONN
    assert one.connect_ex(address) == errno.EISCONN


def test_connect_without_blocking(net, stack):
    with net.create_server(("127.0.0.1", 0)) as listener:
        sock = stack.enter_context(net.socket())
        sock.setblocking(False)
        code = sock.connect_ex(listener.getsockname())
        assert code in (0, errno.EINPROGRESS)
        select.select([], [sock], [], TIMEOUT)
        assert sock.getsockopt(net.SOL_SOCKET, net.SO_ERROR) == 0
        sock.send(b"x")
        conn, _ = listener.accept()
        with conn:
            assert conn.recv(1) == b"x"


def test_accept_without_blocking(net):
    with net.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        with pytest.raises(BlockingIOError):
            listener.accept()
        listener.settimeout(0.05)
        with pytest.raises(TimeoutError):
            listener.accept()


def test_create_server_options(net):
    with net.create_server(
        ("", 0), family=net.AF_INET6, dualstack_ipv6=True, backlog=5, reuse_port=True
    ) as listener:
        assert listener.getsockopt(net.SOL_SOCKET, net.SO_REUSEPORT)
        port = listener.getsockname()[1]
        with net.create_connection(("127.0.0.1", port), 5, ("127.0.0.1", 0)) as client:
            assert client.gettimeout() == 5
            conn, address = listener.accept()
            conn.close()
            assert address[0] == "::ffff:127.0.0.1"
    with pytest.raises(ValueError):
        net.create_server(("", 0), dualstack_ipv6=True)


def test_the_default_timeout_is_used(net, stack):
    stdlib.setdefaulttimeout(3.5)
    stack.callback(stdlib.setdefaulttimeout, None)
    sock = stack.enter_context(net.socket())
    assert sock.gettimeout() == 3.5
    with net.create_server(("127.0.0.1", 0)) as listener:
        with net.create_connection(listener.getsockname()) as client:
            conn, _ = listener.accept()
            with conn:
                assert conn.gettimeout() == client.gettimeout() == 3.5


# -- errors -------------------------------------------------------------------


def errors_of(call):
    try:
        call()
    except Exception as exc:
        return type(exc)
    return None


def bad_calls(sock):
    wide = memoryview(bytearray(20))[::2]
    return {
        "recv(-1)": lambda: sock.recv(-1),
        "recv(huge)": lambda: sock.recv(sys.maxsize),
        "recv(large)": lambda: sock.recv(1 << 62),
        "recv(too large)": lambda: sock.recv(1 << 100),
        "recv('x')": lambda: sock.recv("x"),
        "recv()": lambda: sock.recv(),
        "recv(1.5)": lambda: sock.recv(1.5),
        "recv flags": lambda: sock.recv(1, "x"),
        "recv flags huge": lambda: sock.recv(1, 1 << 40),
        "recv_into(bytes)": lambda: sock.recv_into(b"abc"),
        "recv_into(strided)": lambda: sock.recv_into(wide),
        "recv_into(too many)": lambda: sock.recv_into(bytearray(2), 3),
        "recv_into(-1)": lambda: sock.recv_into(bytearray(2), -1),
        "recvfrom(-1)": lambda: sock.recvfrom(-1),
        "recvfrom_into(-1)": lambda: sock.recvfrom_into(bytearray(2), -1),
        "recvfrom_into(too many)": lambda: sock.recvfrom_into(bytearray(2), 5),
        "recvmsg(-1)": lambda: sock.recvmsg(-1),
        "send('x')": lambda: sock.send("x"),
        "send(None)": lambda: sock.send(None),
        "send(strided)": lambda: sock.send(wide),
        "sendall(7)": lambda: sock.sendall(7),
        "sendall()": lambda: sock.sendall(),
        "sendto(data)": lambda: sock.sendto(b"x"),
        "sendto(str)": lambda: sock.sendto(b"x", "nowhere"),
        "sendto port": lambda: sock.sendto(b"x", ("127.0.0.1", 70000)),
        "sendmsg(7)": lambda: sock.sendmsg(7),
        "sendmsg(['x'])": lambda: sock.sendmsg(["x"]),
        "connect(str)": lambda: sock.connect("localhost:80"),
        "connect(1-tuple)": lambda: sock.connect(("127.0.0.1",)),
        "connect(port str)": lambda: sock.connect(("127.0.0.1", "80")),
        "connect(port)": lambda: sock.connect(("127.0.0.1", -1)),
        "connect(port huge)": lambda: sock.connect(("127.0.0.1", 1 << 70)),
        "connect(host int)": lambda: sock.connect((127, 80)),
        "connect(null)": lambda: sock.connect(("a\0b", 80)),
        "connect_ex(str)": lambda: sock.connect_ex("localhost:80"),
        "bind(str)": lambda: sock.bind("x"),
        "settimeout(-1)": lambda: sock.settimeout(-1),
        "settimeout(nan)": lambda: sock.settimeout(float("nan")),
        "settimeout(inf)": lambda: sock.settimeout(float("inf")),
        "settimeout(1e30)": lambda: sock.settimeout(1e30),
        "settimeout('1')": lambda: sock.settimeout("1"),
        "settimeout()": lambda: sock.settimeout(),
        "listen('x')": lambda: sock.listen("x"),
        "shutdown('x')": lambda: sock.shutdown("x"),
        "shutdown(9)": lambda: sock.shutdown(9),
        "makefile('z')": lambda: sock.makefile("z"),
        "makefile('r', 0)": lambda: sock.makefile("r", 0),
    }


def test_bad_arguments_raise_what_the_socket_module_raises(stack):
    ours, peer = make_pair(pyfastnet.socket, stack, "tcp")
    theirs, _ = make_pair(stdlib, stack, "tcp")
    expected = {name: errors_of(call) for name, call in bad_calls(theirs).items()}
    got = {name: errors_of(call) for name, call in bad_calls(ours).items()}
    # ours looks at the port before it sends; theirs finds the connection first
    assert got == expected
    assert None not in got.values()
    ours.sendall(b"still usable")
    assert peer.recv(100) == b"still usable"


def closed_calls(sock):
    return {
        "recv": lambda: sock.recv(1),
        "recv_into": lambda: sock.recv_into(bytearray(1)),
        "recvfrom": lambda: sock.recvfrom(1),
        "recvfrom_into": lambda: sock.recvfrom_into(bytearray(1)),
        "recvmsg": lambda: sock.recvmsg(1),
        "recvmsg_into": lambda: sock.recvmsg_into([bytearray(1)]),
        "send": lambda: sock.send(b"x"),
        "sendall": lambda: sock.sendall(b"x"),
        "sendto": lambda: sock.sendto(b"x", ("127.0.0.1", 9)),
        "sendmsg": lambda: sock.sendmsg([b"x"]),
        "accept": lambda: sock.accept(),
        "connect": lambda: sock.connect(("127.0.0.1", 9)),
        "bind": lambda: sock.bind(("127.0.0.1", 0)),
        "listen": lambda: sock.listen(),
        "shutdown": lambda: sock.shutdown(stdlib.SHUT_WR),
        "getsockname": lambda: sock.getsockname(),
        "getpeername": lambda: sock.getpeername(),
        "getsockopt": lambda: sock.getsockopt(stdlib.SOL_SOCKET, stdlib.SO_TYPE),
        "setsockopt": lambda: sock.setsockopt(stdlib.SOL_SOCKET, stdlib.SO_TYPE, 1),
        "dup": lambda: sock.dup(),
        "sendfile": lambda: sock.sendfile(io.BytesIO(b"x")),
    }


def test_calls_on_a_closed_socket(net):
    sock = net.socket()
    sock.close()
    sock.close()
    assert sock.fileno() == -1
    assert "closed" in repr(sock)
    for name, call in closed_calls(sock).items():
        with pytest.raises((OSError, ValueError)) as info:
            call()
        if isinstance(info.value, OSError):
            assert info.value.errno == errno.EBADF, name
    assert sock.connect_ex(("127.0.0.1", 9)) == errno.EBADF
    for call in (lambda: sock.settimeout(1), lambda: sock.setblocking(True)):
        with pytest.raises(OSError) as info:
            call()
        assert info.value.errno == errno.EBADF


def test_exceptions_name_the_operation_and_the_address(stack):
    one, other = make_pair(pyfastnet.socket, stack, "tcp")
    peer = str(one.getpeername())
    one.settimeout(0.01)
    with pytest.raises(TimeoutError, match="timed out") as info:
        one.recv(1)
    assert "recv()" in str(info.value) and peer in str(info.value)
    other.setsockopt(stdlib.SOL_SOCKET, stdlib.SO_LINGER, struct.pack("ii", 1, 0))
    other.close()
    one.settimeout(5)
    with pytest.raises(ConnectionResetError) as info:
        one.recv(1)
    assert "recv()" in str(info.value) and peer in str(info.value)
    assert info.value.errno == errno.ECONNRESET
    with pytest.raises(BrokenPipeError) as info:
        one.sendall(b"x")
    assert "sendall()" in str(info.value) and info.value.bytes_sent == 0
    one.close()
    with pytest.raises(OSError, match="closed") as info:
        one.recv(1)
    assert "recv()" in str(info.value) and peer in str(info.value)
    sock = stack.enter_context(Socket())
    with pytest.raises(OSError) as info:
        sock.bind(("203.0.113.1", 80))
    assert "bind(('203.0.113.1', 80))" in str(info.value)
    with pytest.raises(OSError) as info:
        sock.recv(1)
    assert info.value.errno == errno.ENOTCONN and "recv()" in str(info.value)


@pytest.mark.parametrize("bad", [-1, 10**6, 1 << 80, "x", 1.5])
def test_bad_descriptors(net, bad):
    with pytest.raises((OSError, ValueError, TypeError, OverflowError)):
        net.socket(fileno=bad)


def test_a_descriptor_that_is_no_socket(net):
    with tempfile.TemporaryFile() as file:
        with pytest.raises(OSError) as info:
            net.socket(fileno=file.fileno())
        assert info.value.errno == errno.ENOTSOCK
        file.write(b"still open")


def test_a_socket_that_was_never_initialised():
    class Odd(Socket):
        def __init__(self):
            pass

    sock = Odd()
    assert sock.fileno() == -1
    with pytest.raises(OSError):
        sock.recv(1)
    sock.close()
    with Socket() as sock:
        with pytest.raises(RuntimeError):
            sock.__init__()


def test_subclasses(stack):
    class Mine(Socket):
        def __init__(self, *args, note, **kwargs):
            super().__init__(*args, **kwargs)
            self.note = note

    listener = stack.enter_context(Mine(note="x"))
    listener.bind(("127.0.0.1", 0))
    listener.listen()
    client = stack.enter_context(pyfastnet.create_connection(listener.getsockname()))
    conn, _ = listener.accept()
    with conn:
        assert type(conn) is Socket
        client.sendall(b"x")
        assert conn.recv(1) == b"x"


def test_an_unclosed_socket_warns(net):
    fd = net.socket().detach()
    with pytest.warns(ResourceWarning, match="unclosed"):
        net.socket(fileno=fd)
        # the reference count is enough, with the GIL or without
        import gc

        gc.collect()
    with pytest.raises(OSError):
        os.fstat(fd)


def test_from_socket(stack):
    one, other = stdlib.socketpair()
    stack.enter_context(other)
    one.settimeout(3)
    fd = one.fileno()
    ours = stack.enter_context(pyfastnet.from_socket(one))
    assert one.fileno() == -1
    assert ours.fileno() == fd and ours.gettimeout() == 3
    other.sendall(b"x")
    assert ours.recv(1) == b"x"
    with pytest.raises(OSError):
        pyfastnet.from_socket(one)


def test_the_module_can_take_the_place_of_socket():
    missing = [
        name
        for name in dir(stdlib)
        if not name.startswith("_") and not hasattr(pyfastnet.socket, name)
    ]
    assert not missing
    assert pyfastnet.socket.socket is Socket
    methods = [
        name
        for name in dir(stdlib.socket)
        if not name.startswith("_") and not hasattr(Socket, name)
    ]
    assert not methods
    assert pyfastnet.socket.EBADF == errno.EBADF


# -- TLS ----------------------------------------------------------------------


@pytest.mark.parametrize("detached", [False, True])
def test_tls_over_the_descriptor(stack, authority, detached):
    """wrap_socket() of the Socket itself, which it detaches, or of a
    socket.socket on the descriptor that detach() gave."""
    certificate = authority.issue_cert("localhost")
    server_context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    certificate.configure_cert(server_context)
    context = ssl.create_default_context()
    authority.configure_trust(context)

    def wrap(context, sock, **kwargs):
        if detached:
            timeout = sock.gettimeout()
            sock = stdlib.socket(fileno=sock.detach())
            sock.settimeout(timeout)
        return context.wrap_socket(sock, **kwargs)

    listener = stack.enter_context(pyfastnet.create_server(("127.0.0.1", 0)))

    def serve():
        conn, _ = listener.accept()
        conn.settimeout(TIMEOUT)
        with wrap(server_context, conn, server_side=True) as tls:
            tls.sendall(tls.recv(100).upper())

    server = start(serve)
    client = pyfastnet.create_connection(listener.getsockname(), TIMEOUT)
    with wrap(context, client, server_hostname="localhost") as tls:
        assert client.fileno() == -1
        tls.sendall(b"hello")
        assert tls.recv(100) == b"HELLO"
    server.join()


# -- blk_13: the flag of the description --------------------------------------


def test_the_nonblocking_flag_of_a_given_socket_is_left_alone(stack):
    for blocking in (True, False):
        one, other = stdlib.socketpair()
        stack.enter_context(other)
        one.setblocking(blocking)
        copy = stack.enter_context(one.dup())
        ours = stack.enter_context(pyfastnet.from_socket(one))
        for timeout in (None, 0.05, 0):
            ours.settimeout(timeout)
            assert os.get_blocking(ours.fileno()) is blocking
        ours.settimeout(0.05)
        with pytest.raises(TimeoutError):
            ours.recv(1)
        with pytest.raises(TimeoutError):
            ours.sendall(b"x" * 10_000_000)
        ours.set_deadline(time.monotonic() + 0.05)
        with pytest.raises(TimeoutError):
            ours.recv(1)
        assert os.get_blocking(copy.fileno()) is blocking
        assert ours.detach() >= 0
        os.close(copy.detach())


def test_our_own_sockets_are_handed_out_in_blocking_mode(stack):
    listener = stack.enter_context(pyfastnet.create_server(("127.0.0.1", 0)))
    listener.settimeout(TIMEOUT)
    client = stack.enter_context(
        pyfastnet.create_connection(listener.getsockname(), 5)
    )
    conn, _ = listener.accept()
    stack.enter_context(conn)
    assert os.get_blocking(client.fileno())
    assert os.get_blocking(conn.fileno())
    fd = listener.detach()
    assert os.get_blocking(fd)
    os.close(fd)
