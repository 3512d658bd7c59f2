"""What the tests of blocking sockets in threads share."""

import errno
import threading
import time

import pyfastnet

TIMEOUT = 10
SLOW = 2.0  # seconds that waking a thread may take on a busy machine


class Call:
    """A call in a thread of its own."""

    def __init__(self, function, *args):
        self.value = self.error = None
        self.begun = threading.Event()
        self.thread = threading.Thread(
            target=self._run, args=(function, args), daemon=True
        )
        self.thread.start()
        self.begun.wait()

    def _run(self, function, args):
        self.begun.set()
        try:
            self.value = function(*args)
        except BaseException as exc:
            self.error = exc
        self.ended = time.monotonic()

    @property
    def running(self):
        return self.thread.is_alive()

    def join(self, timeout=TIMEOUT):
        self.thread.join(timeout)
        assert not self.running, "the call is still blocked"
        return self

    def failed(self, kind):
        self.join()
        assert isinstance(self.error, kind), (self.value, self.error)
        return self.error

    def gave(self):
        self.join()
        assert self.error is None, self.error
        return self.value


def closed(call):
    """The call has ended because the socket was closed."""
    error = call.failed(OSError)
    assert error.errno == errno.EBADF and "closed" in str(error)
    return error


def tcp_pair(stack):
    with pyfastnet.create_server(("127.0.0.1", 0)) as listener:
        one = stack.enter_context(pyfastnet.create_connection(listener.getsockname()))
        other = stack.enter_context(listener.accept()[0])
    return one, other


def settle():
    """Time for the calls of other threads to block."""
    time.sleep(0.05)


def blocking_calls(sock):
    return {
        "recv": lambda: sock.recv(10),
        "recv large": lambda: sock.recv(1 << 20),
        "recv_into": lambda: sock.recv_into(bytearray(10)),
        "recvfrom": lambda: sock.recvfrom(10),
        "recvmsg": lambda: sock.recvmsg(10),
        "recv_exactly": lambda: sock.recv_exactly(10),
        "recv_exactly large": lambda: sock.recv_exactly(1 << 20),
        "recv_until": lambda: sock.recv_until(b"\n"),
        "sendall": lambda: sock.sendall(b"x" * (8 << 20)),
        "sendall of many": lambda: sock.sendall([b"x" * (1 << 20)] * 8),
    }
