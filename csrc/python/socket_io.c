/* socket_io: how a call runs, and recv(), send() and their kin. */
#include "python/socket.h"

#include "base/clock.h"
#include "base/sys.h"

#include <errno.h>
#include <limits.h>
#include <string.h>
#include <sys/ioctl.h>

/* -- a call ------------------------------------------------------------- */

/* What net/fd says, as what fnet_socket_fail() tells from the kernel's own. */
static ssize_t
outcome(int rc)
{
    return rc == -ETIMEDOUT ? FNET_TIMED_OUT : rc == -EBADF ? FNET_CLOSED : rc;
}

/* Handlers of signals run between two waits; their exceptions leave. */
static int
run_handlers(void)
{
    return PyErr_CheckSignals() < 0 ? FNET_RAISED : 0;
}

typedef int (*blocking)(fnet_fd *fd, fnet_fd_op *op);

static int
without_gil(fnet_call *call, blocking function)
{
    fnet_gate *gate = &call->sock->state->gate;
    int rc;
    do {
        PyThreadState *saved = fnet_gate_leave(gate);
        rc = function(&call->sock->fd, &call->op);
        fnet_gate_enter(gate, saved);
        if (rc == -EINTR && run_handlers() < 0) {
            return FNET_RAISED;
        }
    } while (rc == -EINTR);
    return rc;
}

int
fnet_call_begin(fnet_call *call, SocketObject *self, const char *name,
                enum fnet_fd_dir dir, int flags)
{
    int64_t timeout =
        atomic_load_explicit(&self->timeout, memory_order_relaxed);

    call->sock = self;
    call->name = name;
    call->wait = timeout != 0 && !(flags & MSG_DONTWAIT);
    int rc = fnet_fd_begin(&self->fd, &call->op, dir, timeout);
    if (rc == -EAGAIN && call->wait) {
        rc = without_gil(call, fnet_fd_await_turn);
    }
    return (int)outcome(rc);
}

/* Without the GIL: until the step is done, or a signal or the end of the time
 * comes. */
static ssize_t
run_blocked(fnet_call *call, fnet_step step, void *arg, ssize_t n)
{
    fnet_fd *fd = &call->sock->fd;

    for (;;) {
        int rc = 0;
        if (n == FNET_MORE) {
            rc = fnet_fd_check(fd, &call->op);
        }
        else if (n == FNET_LATER && call->wait) {
            rc = fnet_fd_pause(fd, &call->op, 1000000);
        }
        else if (n == -EAGAIN && call->wait) {
            rc = fnet_fd_wait(fd, &call->op);
        }
        else {
            return n == FNET_LATER ? -EAGAIN : n;
        }
        if (rc < 0) {
            return rc == -EINTR ? rc : outcome(rc);
        }
        n = step(fd->number, arg);
    }
}

/* -- steps, with the GIL and without ------------------------------------ */

ssize_t
fnet_call_go(fnet_call *call, fnet_step step, void *arg, ssize_t n)
{
    fnet_gate *gate = &call->sock->state->gate;

    if (n == -EAGAIN && !call->wait) {
        return n;
    }
    for (;;) {
        PyThreadState *saved = fnet_gate_leave(gate);
        n = run_blocked(call, step, arg, n);
        fnet_gate_enter(gate, saved);
        if (n != -EINTR) {
            return n;
        }
        if (run_handlers() < 0) {
            return FNET_RAISED;
        }
        n = -EAGAIN; /* which waits on, or finds it ready */
    }
}

/* A reader whose last reads all had to wait is spared the try where the GIL
 * is better given up at once: 5 % of an exchange.  Each SAMPLE-th tries. */
#define STREAK 8
#define SAMPLE 16

static bool
will_wait(fnet_call *call)
{
    SocketObject *self = call->sock;

    if (self->waits < STREAK || !call->wait ||
        !fnet_gate_crowded(&self->state->gate)) {
        return false;
    }
    self->waits++;
    if (self->waits == STREAK + SAMPLE) {
        self->waits = STREAK;
        return false;
    }
    return true;
}

ssize_t
fnet_call_run(fnet_call *call, fnet_step step, void *arg, bool keep)
{
    bool reads = call->op.dir == FNET_FD_READ;
    ssize_t n = FNET_MORE;

    if (keep && reads && will_wait(call)) {
        n = -EAGAIN;
    }
    /* What receives takes a tenth of what sends takes: it tries in any case.
     */
    else if (keep &&
             (reads || !fnet_gate_call_crowded(&call->sock->state->gate))) {
        n = step(call->sock->fd.number, arg);
        if (reads && n == -EAGAIN && call->sock->waits < STREAK) {
            call->sock->waits++;
        }
        else if (reads && n != -EAGAIN) {
            call->sock->waits = 0;
        }
        if (FNET_LIKELY(n >= 0)) {
            return n;
        }
    }
    return fnet_call_go(call, step, arg, n);
}

int
fnet_call_wait(fnet_call *call)
{
    return call->wait ? (int)outcome(without_gil(call, fnet_fd_wait))
                      : -EAGAIN;
}

/* -- receiving ---------------------------------------------------------- */

ssize_t
fnet_step_receive(int number, void *arg)
{
    fnet_receive *r = arg;

    r->addrlen = sizeof(r->addr);
    ssize_t n = fnet_sys_recvfrom(number, r->buf + r->got, r->len - r->got,
                                  r->flags | MSG_DONTWAIT,
                                  r->from ? (struct sockaddr *)&r->addr : NULL,
                                  r->from ? &r->addrlen : NULL);
    if (n <= 0 || !r->all) {
        return n;
    }
    r->got += (size_t)n;
    return r->got == r->len ? 1 : FNET_MORE;
}

static bool
is_stream(const SocketObject *self)
{
    return self->type == SOCK_STREAM;
}

/* MSG_WAITALL is ours to do: the kernel's does not go with MSG_DONTWAIT. */
static void
receive_init(fnet_receive *r, SocketObject *self, char *buf, size_t len,
             int flags)
{
    r->buf = buf;
    r->len = len;
    r->got = 0;
    r->flags = flags & ~MSG_WAITALL;
    r->all = (flags & MSG_WAITALL) && is_stream(self) && len > 0;
    r->from = false;
}

/* Bytes that a call before had received in vain, else one receive. */
static ssize_t
run_receive(fnet_call *call, fnet_receive *r)
{
    fnet_inbuf *held = &call->sock->held;
    size_t size = r->len;

    if (FNET_UNLIKELY(fnet_inbuf_len(held) > 0)) {
        if (r->flags & MSG_PEEK) {
            size_t n = fnet_inbuf_len(held);
            n = n < r->len ? n : r->len;
            memcpy(r->buf, held->data + held->start, n);
            return (ssize_t)n;
        }
        size_t n = fnet_inbuf_take(held, r->buf, r->len);
        if (!r->all || n == r->len) {
            return (ssize_t)n;
        }
        r->got = n;
    }
    bool keep = size <= FNET_GIL_MAX;
    if (!keep && !r->all && is_stream(call->sock)) {
        r->len = FNET_GIL_MAX;
        keep = true;
    }
    else if (!keep && !r->all) {
        /* A datagram is one piece: what the last one was, the next will be. */
        keep = !call->sock->big_datagrams;
    }
    ssize_t n = fnet_call_run(call, fnet_step_receive, r, keep);
    r->len = size;
    if (!is_stream(call->sock) && n >= 0) {
        call->sock->big_datagrams = (size_t)n > FNET_GIL_MAX;
    }
    if (r->all && r->got > 0) {
        if (n != FNET_RAISED) {
            return (ssize_t)r->got;
        }
        if (fnet_inbuf_put_back(held, r->buf, r->got) < 0) {
            PyErr_NoMemory();
        }
    }
    return n;
}

/* A first piece of a large receive was full: takes what else is there, with
 * the GIL released.  The new count. */
static size_t
receive_rest(fnet_call *call, fnet_receive *r, size_t got)
{
    ssize_t n;
    fnet_receive rest = {
        .buf = r->buf + got, .len = r->len - got, .flags = r->flags};
    int number = call->sock->fd.number;
    fnet_gate *gate = &call->sock->state->gate;

    PyThreadState *saved = fnet_gate_leave(gate);
    n = fnet_step_receive(number, &rest);
    fnet_gate_enter(gate, saved);
    return n > 0 ? got + (size_t)n : got;
}

static bool
wants_rest(const fnet_call *call, const fnet_receive *r, ssize_t n)
{
    return n == (ssize_t)FNET_GIL_MAX && r->len > FNET_GIL_MAX && !r->all &&
           !(r->flags & MSG_PEEK) && is_stream(call->sock);
}

/* A bytes object that begins with the first piece, large enough for what the
 * kernel has beyond it. */
static PyObject *
receive_rest_bytes(fnet_call *call, fnet_receive *r)
{
    int there = 0;
    size_t first = FNET_GIL_MAX;

    if (ioctl(call->sock->fd.number, FIONREAD, &there) < 0 || there < 0) {
        there = 0;
    }
    size_t size =
        r->len - first < (size_t)there ? r->len : first + (size_t)there;
    PyObject *bytes = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)size);
    if (bytes == NULL) {
        /* Nothing is lost if there is that much memory. */
        (void)fnet_inbuf_put_back(&call->sock->held, r->buf, first);
        return NULL;
    }
    memcpy(PyBytes_AS_STRING(bytes), r->buf, first);
    if (size > first) {
        r->buf = PyBytes_AS_STRING(bytes);
        r->len = size;
        size_t got = receive_rest(call, r, first);
        if (got < size) {
            _PyBytes_Resize(&bytes, (Py_ssize_t)got);
        }
    }
    return bytes;
}

/* A datagram of any size, or a receive into memory of its own. */
static PyObject *
receive_whole(fnet_call *call, fnet_receive *r)
{
    PyObject *bytes = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)r->len);
    if (bytes == NULL) {
        return NULL;
    }
    r->buf = PyBytes_AS_STRING(bytes);
    ssize_t n = run_receive(call, r);
    if (n < 0) {
        Py_DECREF(bytes);
        return fnet_socket_fail(call->sock, call->name, NULL, n);
    }
    if ((size_t)n < r->len) {
        _PyBytes_Resize(&bytes, n);
    }
    return bytes;
}

/* A size that no machine has; the error is that of the socket module. */
int
fnet_check_size(Py_ssize_t size, const char *name)
{
    if (size < 0) {
        PyErr_Format(PyExc_ValueError, "negative buffersize in %s", name);
        return -1;
    }
    if ((uint64_t)size >> 47 != 0) {
        if (size > PY_SSIZE_T_MAX - 64) {
            PyErr_SetString(PyExc_OverflowError, "byte string is too large");
        }
        else {
            PyErr_NoMemory();
        }
        return -1;
    }
    return 0;
}

/* Parses (n[, flags]): 0 or -1. */
static int
parse_size_flags(PyObject *const *args, Py_ssize_t nargs, const char *name,
                 Py_ssize_t *size, int *flags)
{
    if (nargs < 1 || nargs > 2) {
        PyErr_Format(PyExc_TypeError,
                     "%s() takes 1 or 2 arguments (%zd given)", name, nargs);
        return -1;
    }
    *size = PyNumber_AsSsize_t(args[0], PyExc_OverflowError);
    if (*size == -1 && PyErr_Occurred()) {
        return -1;
    }
    *flags = 0;
    if (nargs == 2) {
        *flags = fnet_int_arg(args[1]);
        if (*flags == -1 && PyErr_Occurred()) {
            return -1;
        }
    }
    return fnet_check_size(*size, name);
}

/* The bytes of one receive of at most r->len; small ones pass through the
 * stack, so that a call that waits holds no memory. */
static PyObject *
receive_bytes(fnet_call *call, fnet_receive *r)
{
    char scratch[FNET_GIL_MAX];

    if (r->all || (r->len > FNET_GIL_MAX && !is_stream(call->sock)) ||
        (r->len > FNET_GIL_MAX && (r->flags & MSG_PEEK))) {
        return receive_whole(call, r);
    }
    r->buf = scratch;
    size_t size = r->len;
    r->len = size < FNET_GIL_MAX ? size : FNET_GIL_MAX;
    ssize_t n = run_receive(call, r);
    r->len = size;
    if (n < 0) {
        return fnet_socket_fail(call->sock, call->name, NULL, n);
    }
    if (wants_rest(call, r, n)) {
        return receive_rest_bytes(call, r);
    }
    return PyBytes_FromStringAndSize(scratch, n);
}

static PyObject *
socket_recv(SocketObject *self, PyObject *const *args, Py_ssize_t nargs)
{
    Py_ssize_t size;
    int flags;
    fnet_call call;
    fnet_receive r;

    if (parse_size_flags(args, nargs, "recv", &size, &flags) < 0) {
        return NULL;
    }
    int rc = fnet_call_begin(&call, self, "recv", FNET_FD_READ, flags);
    if (rc < 0) {
        return fnet_socket_fail(self, "recv", NULL, rc);
    }
    receive_init(&r, self, NULL, (size_t)size, flags);
    PyObject *bytes = receive_bytes(&call, &r);
    fnet_call_end(&call);
    return bytes;
}

/* The address that came with it: None where the kernel gave none. */
static PyObject *
sender(const fnet_receive *r, ssize_t n)
{
    if (r->addrlen == 0 || n < 0) {
        Py_RETURN_NONE;
    }
    return fnet_make_address(&r->addr, r->addrlen);
}

static PyObject *
socket_recvfrom(SocketObject *self, PyObject *const *args, Py_ssize_t nargs)
{
    Py_ssize_t size;
    int flags;
    fnet_call call;
    fnet_receive r;

    if (!fnet_plain_family(self->family)) {
        return fnet_socket_cold_call(self, "_recvfrom", args, nargs);
    }
    if (parse_size_flags(args, nargs, "recvfrom", &size, &flags) < 0) {
        return NULL;
    }
    int rc = fnet_call_begin(&call, self, "recvfrom", FNET_FD_READ, flags);
    if (rc < 0) {
        return fnet_socket_fail(self, "recvfrom", NULL, rc);
    }
    receive_init(&r, self, NULL, (size_t)size, flags);
    r.from = true;
    r.addrlen = 0;
    PyObject *bytes = receive_bytes(&call, &r);
    fnet_call_end(&call);
    PyObject *address = bytes == NULL ? NULL : sender(&r, 0);
    if (address == NULL) {
        Py_XDECREF(bytes);
        return NULL;
    }
    return Py_BuildValue("(NN)", bytes, address);
}

/* -- receiving into a buffer --------------------------------------------- */

static ssize_t
receive_into(fnet_call *call, fnet_receive *r)
{
    ssize_t n = run_receive(call, r);
    if (wants_rest(call, r, n)) {
        n = (ssize_t)receive_rest(call, r, (size_t)n);
    }
    return n;
}

typedef struct into_args {
    Py_buffer view;
    Py_ssize_t size;
    int flags;
} into_args;

static int
parse_into(PyObject *args, PyObject *kwargs, const char *format,
           const char *name, into_args *into)
{
    static char *names[] = {"buffer", "nbytes", "flags", NULL};

    into->size = 0;
    into->flags = 0;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, format, names, &into->view,
                                     &into->size, &into->flags)) {
        return -1;
    }
    if (into->size < 0) {
        PyErr_Format(PyExc_ValueError, "negative buffersize in %s", name);
    }
    else if (into->size > into->view.len) {
        PyErr_SetString(PyExc_ValueError,
                        "buffer too small for requested bytes");
    }
    else {
        if (into->size == 0) {
            into->size = into->view.len;
        }
        return 0;
    }
    PyBuffer_Release(&into->view);
    return -1;
}

static PyObject *
recv_into(SocketObject *self, into_args *into, const char *name, bool from)
{
    fnet_call call;
    fnet_receive r;
    PyObject *address = NULL;

    r.addrlen = 0;
    ssize_t n = fnet_call_begin(&call, self, name, FNET_FD_READ, into->flags);
    if (n == 0) {
        receive_init(&r, self, into->view.buf, (size_t)into->size,
                     into->flags);
        r.from = from;
        r.addrlen = 0;
        n = receive_into(&call, &r);
        fnet_call_end(&call);
    }
    PyBuffer_Release(&into->view);
    if (n < 0) {
        return fnet_socket_fail(self, name, NULL, n);
    }
    if (!from) {
        return PyLong_FromSsize_t(n);
    }
    address = sender(&r, n);
    return address == NULL ? NULL : Py_BuildValue("(nN)", n, address);
}

static PyObject *
socket_recv_into(SocketObject *self, PyObject *const *args, Py_ssize_t nargs,
                 PyObject *names)
{
    into_args into = {.size = 0};

    if (nargs == 1 && names == NULL) {
        if (PyObject_GetBuffer(args[0], &into.view, PyBUF_WRITABLE) < 0) {
            return PyErr_Format(PyExc_TypeError,
                                "recv_into() argument 1 must be read-write "
                                "bytes-like object, not %.100s",
                                Py_TYPE(args[0])->tp_name);
        }
        into.size = into.view.len;
        return recv_into(self, &into, "recv_into", false);
    }
    PyObject *tuple, *dict;
    if (fnet_pack_args(args, nargs, names, &tuple, &dict) < 0) {
        return NULL;
    }
    int rc = parse_into(tuple, dict, "w*|ni:recv_into", "recv_into", &into);
    Py_DECREF(tuple);
    Py_XDECREF(dict);
    return rc < 0 ? NULL : recv_into(self, &into, "recv_into", false);
}

static PyObject *
socket_recvfrom_into(SocketObject *self, PyObject *args, PyObject *kwargs)
{
    into_args into;

    if (!fnet_plain_family(self->family)) {
        return fnet_socket_cold_call_tuple(self, "_recvfrom_into", args,
                                           kwargs);
    }
    if (parse_into(args, kwargs, "w*|ni:recvfrom_into", "recvfrom_into",
                   &into) < 0) {
        return NULL;
    }
    return recv_into(self, &into, "recvfrom_into", true);
}

PyMethodDef fnet_socket_io_methods[] = {
    {"recv", (PyCFunction)(void (*)(void))socket_recv, METH_FASTCALL,
     "recv(bufsize[, flags]) -> bytes; b'' at the end of a stream."},
    {"recv_into", (PyCFunction)(void (*)(void))socket_recv_into,
     METH_FASTCALL | METH_KEYWORDS,
     "recv_into(buffer[, nbytes[, flags]]) -> number of bytes."},
    {"recvfrom", (PyCFunction)(void (*)(void))socket_recvfrom, METH_FASTCALL,
     "recvfrom(bufsize[, flags]) -> (bytes, address)."},
    {"recvfrom_into", (PyCFunction)(void (*)(void))socket_recvfrom_into,
     METH_VARARGS | METH_KEYWORDS,
     "recvfrom_into(buffer[, nbytes[, flags]]) -> (number of bytes, "
     "address)."},
    {NULL, NULL, 0, NULL},
};
