/* socket_read: reads of more than one receive: recv_exactly(), recv_until().
 *
 * What has come when such a call ends early (a timeout, a signal, close()) is
 * not lost: it stays with the socket, in `held`, and the next read of any
 * kind begins with it.  Nothing else is ever read ahead. */
#include "python/socket.h"

#include "base/mem.h"
#include "base/sys.h"

#include <errno.h>
#include <string.h>

/* -- inbuf -------------------------------------------------------------- */

size_t
fnet_inbuf_take(fnet_inbuf *in, void *buf, size_t len)
{
    size_t n = fnet_inbuf_len(in);

    n = n < len ? n : len;
    if (n > 0) {
        memcpy(buf, in->data + in->start, n);
        fnet_inbuf_skip(in, n);
    }
    return n;
}

void
fnet_inbuf_skip(fnet_inbuf *in, size_t n)
{
    in->start += n;
    if (in->start == in->end) {
        fnet_inbuf_free(in);
    }
}

int
fnet_inbuf_put_back(fnet_inbuf *in, const void *data, size_t len)
{
    size_t rest = fnet_inbuf_len(in);

    if (len == 0) {
        return 0;
    }
    char *all = fnet_malloc(len + rest);
    if (all == NULL) {
        return -ENOMEM;
    }
    memcpy(all, data, len);
    if (rest > 0) {
        memcpy(all + len, in->data + in->start, rest);
    }
    fnet_free(in->data);
    *in = (fnet_inbuf){.data = all, .end = len + rest, .capacity = len + rest};
    return 0;
}

int
fnet_inbuf_reserve(fnet_inbuf *in, size_t room)
{
    size_t len = fnet_inbuf_len(in);

    if (in->capacity - in->end >= room) {
        return 0;
    }
    if (in->capacity - len >= room && in->start >= len) {
        memcpy(in->data, in->data + in->start, len);
        in->start = 0;
        in->end = len;
        return 0;
    }
    /* Doubled, so that a long line is not copied over and over. */
    size_t capacity = len + (room > len ? room : len);
    char *data = fnet_malloc(capacity);
    if (data == NULL) {
        return -ENOMEM;
    }
    if (len > 0) {
        memcpy(data, in->data + in->start, len);
    }
    fnet_free(in->data);
    *in = (fnet_inbuf){.data = data, .end = len, .capacity = capacity};
    return 0;
}

void
fnet_inbuf_free(fnet_inbuf *in)
{
    fnet_free(in->data);
    *in = (fnet_inbuf){0};
}

/* -- exactly so many ---------------------------------------------------- */

/* IncompleteReadError(partial, expected); takes over both references. */
static PyObject *
raise_incomplete(PyObject *partial, PyObject *expected)
{
    PyObject *type = fnet_socket_cold("IncompleteReadError");

    if (type != NULL && partial != NULL && expected != NULL) {
        PyObject *exc =
            PyObject_CallFunctionObjArgs(type, partial, expected, NULL);
        if (exc != NULL) {
            PyErr_SetObject(type, exc);
            Py_DECREF(exc);
        }
    }
    Py_XDECREF(type);
    Py_XDECREF(partial);
    Py_XDECREF(expected);
    return NULL;
}

/* The call has failed, with `got` bytes at `data` that nobody has seen. */
static PyObject *
exactly_failed(fnet_call *call, const char *data, size_t got, ssize_t n)
{
    bool lost = fnet_inbuf_put_back(&call->sock->held, data, got) < 0;

    (void)fnet_socket_fail(call->sock, call->name, NULL, n);
    fnet_socket_note_progress(lost ? "bytes_lost" : "bytes_received", got);
    return NULL;
}

/* The end of the stream came first. */
static PyObject *
exactly_ended(const char *data, size_t got, size_t size)
{
    return raise_incomplete(PyBytes_FromStringAndSize(data, (Py_ssize_t)got),
                            PyLong_FromSize_t(size));
}

/* r->buf to r->len, of which r->got are there. */
static ssize_t
run_exactly(fnet_call *call, fnet_receive *r, bool keep)
{
    if (r->got < r->len) {
        r->got += fnet_inbuf_take(&call->sock->held, r->buf + r->got,
                                  r->len - r->got);
    }
    return r->got == r->len ? 1
                            : fnet_call_run(call, fnet_step_receive, r, keep);
}

/* The first FNET_GIL_MAX bytes came by way of the stack: there is no memory
 * of this call's before there is data. */
static PyObject *
exactly_large(fnet_call *call, const char *first, size_t size)
{
    PyObject *bytes = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)size);
    if (bytes == NULL) {
        (void)fnet_inbuf_put_back(&call->sock->held, first, FNET_GIL_MAX);
        return NULL;
    }
    char *data = PyBytes_AS_STRING(bytes);
    fnet_receive r = {
        .buf = data, .len = size, .got = FNET_GIL_MAX, .all = true};
    memcpy(data, first, FNET_GIL_MAX);
    ssize_t n = run_exactly(call, &r, false);
    if (n > 0) {
        return bytes;
    }
    if (n == 0) {
        exactly_ended(data, r.got, size);
    }
    else {
        exactly_failed(call, data, r.got, n);
    }
    Py_DECREF(bytes);
    return NULL;
}

static PyObject *
exactly(fnet_call *call, size_t size)
{
    char scratch[FNET_GIL_MAX];
    size_t first = size < FNET_GIL_MAX ? size : FNET_GIL_MAX;
    fnet_receive r = {.buf = scratch, .len = first, .all = true};

    ssize_t n = run_exactly(call, &r, true);
    if (n > 0) {
        return size == first
                   ? PyBytes_FromStringAndSize(scratch, (Py_ssize_t)size)
                   : exactly_large(call, scratch, size);
    }
    return n == 0 ? exactly_ended(scratch, r.got, size)
                  : exactly_failed(call, scratch, r.got, n);
}

static PyObject *
socket_recv_exactly(SocketObject *self, PyObject *arg)
{
    fnet_call call;

    Py_ssize_t size = PyNumber_AsSsize_t(arg, PyExc_OverflowError);
    if (size == -1 && PyErr_Occurred()) {
        return NULL;
    }
    if (fnet_check_size(size, "recv_exactly") < 0) {
        return NULL;
    }
    int rc = fnet_call_begin(&call, self, "recv_exactly", FNET_FD_READ, 0);
    if (rc < 0) {
        return fnet_socket_fail(self, "recv_exactly", NULL, rc);
    }
    PyObject *bytes = exactly(&call, (size_t)size);
    fnet_call_end(&call);
    return bytes;
}

/* -- up to a separator --------------------------------------------------- */

#define PEEK ((size_t)4096)

/* Looks at what the kernel has without taking it, and takes it up to the
 * separator only. */
typedef struct until {
    fnet_inbuf *in;
    const char *separator;
    size_t size, limit;
    size_t looked; /* so much of `in` holds no beginning of the separator */
} until;

/* Of the first `len` bytes: those up to the end of the separator; 0: it is
 * not there. */
static size_t
search(until *u, size_t len)
{
    const char *data = u->in->data + u->in->start;
    const char *at =
        len > u->looked
            ? memmem(data + u->looked, len - u->looked, u->separator, u->size)
            : NULL;
    if (at != NULL) {
        return (size_t)(at - data) + u->size;
    }
    if (len >= u->size) {
        u->looked = len - u->size + 1;
    }
    return 0;
}

/* Positive: that many bytes of `in` are the answer; 0: the stream has ended;
 * -EMSGSIZE: more than the limit. */
static ssize_t
step_until(int number, void *arg)
{
    until *u = arg;
    fnet_inbuf *in = u->in;
    size_t len = fnet_inbuf_len(in);

    size_t found = len > 0 ? search(u, len) : 0;
    if (found > 0) {
        return found <= u->limit ? (ssize_t)found : -EMSGSIZE;
    }
    if (len >= u->limit) {
        return -EMSGSIZE;
    }
    size_t room = u->limit - len < PEEK ? u->limit - len : PEEK;
    if (fnet_inbuf_reserve(in, room) < 0) {
        return -ENOMEM;
    }
    char *end = in->data + in->end;
    ssize_t n = fnet_sys_recvfrom(number, end, room, MSG_PEEK | MSG_DONTWAIT,
                                  NULL, NULL);
    if (n > 0) {
        found = search(u, len + (size_t)n);
        size_t take = found > 0 ? found - len : (size_t)n;
        n = fnet_sys_recvfrom(number, end, take, MSG_DONTWAIT, NULL, NULL);
    }
    if (n > 0) {
        in->end += (size_t)n;
        return found > 0 && len + (size_t)n == found ? (ssize_t)found
                                                     : FNET_MORE;
    }
    if (len == 0) {
        fnet_inbuf_free(in); /* nothing is kept for who waits */
    }
    return n;
}

static PyObject *
until_failed(fnet_call *call, const until *u, ssize_t n)
{
    fnet_inbuf *in = u->in;
    size_t len = fnet_inbuf_len(in);

    if (n == 0) {
        PyObject *partial = PyBytes_FromStringAndSize(
            len > 0 ? in->data + in->start : NULL, (Py_ssize_t)len);
        fnet_inbuf_free(in);
        return raise_incomplete(partial, Py_NewRef(Py_None));
    }
    if (n == -EMSGSIZE) {
        return PyErr_Format(PyExc_ValueError,
                            "recv_until(): no separator within %zu bytes",
                            u->limit);
    }
    (void)fnet_socket_fail(call->sock, call->name, NULL, n);
    fnet_socket_note_progress("bytes_received", len);
    return NULL;
}

static PyObject *
socket_recv_until(SocketObject *self, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"separator", "limit", NULL};
    Py_buffer separator;
    Py_ssize_t limit = 64 * 1024;
    PyObject *bytes = NULL;
    fnet_call call;

    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "y*|n:recv_until", names,
                                     &separator, &limit)) {
        return NULL;
    }
    if (separator.len == 0 || limit < 1) {
        PyErr_SetString(PyExc_ValueError,
                        separator.len == 0
                            ? "recv_until(): an empty separator"
                            : "recv_until(): the limit must be positive");
        PyBuffer_Release(&separator);
        return NULL;
    }
    until u = {.in = &self->held,
               .separator = separator.buf,
               .size = (size_t)separator.len,
               .limit = (size_t)limit};
    ssize_t n = fnet_call_begin(&call, self, "recv_until", FNET_FD_READ, 0);
    if (n < 0) {
        (void)fnet_socket_fail(self, "recv_until", NULL, n);
    }
    else {
        n = fnet_call_run(&call, step_until, &u, true);
        if (n > 0) {
            bytes = PyBytes_FromStringAndSize(
                self->held.data + self->held.start, n);
            if (bytes != NULL) {
                fnet_inbuf_skip(&self->held, (size_t)n);
            }
        }
        else {
            (void)until_failed(&call, &u, n);
        }
        fnet_call_end(&call);
    }
    PyBuffer_Release(&separator);
    return bytes;
}

static PyObject *
socket_pending(SocketObject *self, PyObject *unused)
{
    return PyLong_FromSize_t(fnet_inbuf_len(&self->held));
}

PyMethodDef fnet_socket_read_methods[] = {
    {"recv_exactly", (PyCFunction)socket_recv_exactly, METH_O,
     "recv_exactly(n) -> n bytes.  The time of settimeout() and the read\n"
     "deadline are for the whole call.  When it ends early with TimeoutError\n"
     "or an exception of a signal handler, what has come is not lost: the "
     "next\n"
     "read begins with it, `bytes_received` of the exception says how much "
     "it\n"
     "is.  asyncio.IncompleteReadError (an EOFError, with `partial`) at the\n"
     "end of the stream."},
    {"recv_until", (PyCFunction)(void (*)(void))socket_recv_until,
     METH_VARARGS | METH_KEYWORDS,
     "recv_until(separator, limit=65536) -> what comes up to and with the\n"
     "separator, and not a byte beyond it.  Ends early as recv_exactly() "
     "does;\n"
     "ValueError, with nothing lost, if it is longer than the limit."},
    {"pending", (PyCFunction)socket_pending, METH_NOARGS,
     "How many bytes of a read that ended early wait here, where select()\n"
     "cannot see them."},
    {NULL, NULL, 0, NULL},
};
