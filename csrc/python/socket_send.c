/* socket_send: send(), sendall() of one or many buffers, sendto(), sendmsg()
 * and sendfile(). */
#include "python/socket.h"

#include "base/mem.h"
#include "base/sys.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <string.h>
#include <sys/sendfile.h>
#include <unistd.h>

/* As many buffers as stand on the stack; more are allocated. */
#define FEW 8

/* What is sent: the buffers of the caller, of which the first `sent` bytes
 * are gone.  `iov` moves along. */
typedef struct outgoing {
    Py_buffer few_views[FEW], *views;
    struct iovec few_iov[FEW], *iov;
    Py_ssize_t nviews;
    size_t niov;
    size_t total, sent;
    int flags;
    bool whole; /* sendall(): FNET_MORE until everything is sent */
    const struct sockaddr_storage *addr;
    socklen_t addrlen;
} outgoing;

static void
outgoing_fini(outgoing *out)
{
    for (Py_ssize_t i = 0; i < out->nviews; i++) {
        PyBuffer_Release(&out->views[i]);
    }
    if (out->views != out->few_views) {
        PyMem_Free(out->views);
    }
    struct iovec *first = out->iov - (out->nviews - (Py_ssize_t)out->niov);
    if (first != out->few_iov) {
        PyMem_Free(first);
    }
}

static int
add_buffer(outgoing *out, PyObject *object, const char *name)
{
    Py_buffer *view = &out->views[out->nviews];

    if (PyObject_GetBuffer(object, view, PyBUF_SIMPLE) < 0) {
        if (!PyObject_CheckBuffer(object)) {
            PyErr_Format(PyExc_TypeError,
                         "%s(): a bytes-like object is required, not '%.100s'",
                         name, Py_TYPE(object)->tp_name);
        }
        return -1;
    }
    out->iov[out->nviews].iov_base = view->buf;
    out->iov[out->nviews].iov_len = (size_t)view->len;
    out->total += (size_t)view->len;
    out->nviews++;
    return 0;
}

static void
outgoing_init(outgoing *out, int flags)
{
    out->views = out->few_views;
    out->iov = out->few_iov;
    out->nviews = 0;
    out->niov = 0;
    out->total = out->sent = 0;
    out->flags = flags;
    out->whole = false;
    out->addr = NULL;
    out->addrlen = 0;
}

static int
add_buffers(outgoing *out, PyObject *list, const char *name)
{
    PyObject *fast = PySequence_Fast(list, "buffers: a sequence is required");
    if (fast == NULL) {
        return -1;
    }
    Py_ssize_t count = PySequence_Fast_GET_SIZE(fast);
    if (count > FEW) {
        Py_buffer *views = PyMem_New(Py_buffer, (size_t)count);
        struct iovec *iov = PyMem_New(struct iovec, (size_t)count);
        if (views == NULL || iov == NULL) {
            PyMem_Free(views);
            PyMem_Free(iov);
            Py_DECREF(fast);
            PyErr_NoMemory();
            return -1;
        }
        out->views = views;
        out->iov = iov;
    }
    int rc = 0;
    for (Py_ssize_t i = 0; rc == 0 && i < count; i++) {
        if (i >= PySequence_Fast_GET_SIZE(fast)) {
            break; /* a __buffer__ of the program's has shortened the list */
        }
        PyObject *item = Py_NewRef(PySequence_Fast_GET_ITEM(fast, i));
        rc = add_buffer(out, item, name);
        Py_DECREF(item);
    }
    Py_DECREF(fast);
    return rc;
}

/* The object may be a buffer, or for sendall() a list or tuple of them. */
static int
outgoing_fill(outgoing *out, PyObject *data, const char *name, bool many)
{
    int rc = many && (PyList_Check(data) || PyTuple_Check(data))
                 ? add_buffers(out, data, name)
                 : add_buffer(out, data, name);
    out->niov = (size_t)out->nviews;
    if (rc < 0) {
        outgoing_fini(out);
    }
    return rc;
}

static void
advance(outgoing *out, size_t n)
{
    out->sent += n;
    while (out->niov > 0 && n >= out->iov->iov_len) {
        n -= out->iov->iov_len;
        out->iov++;
        out->niov--;
    }
    if (out->niov > 0) {
        out->iov->iov_base = (char *)out->iov->iov_base + n;
        out->iov->iov_len -= n;
    }
}

static ssize_t
step_send(int number, void *arg)
{
    outgoing *out = arg;
    int flags = out->flags | MSG_DONTWAIT;
    ssize_t n;

    if (out->niov == 1) {
        n = fnet_sys_sendto(number, out->iov->iov_base, out->iov->iov_len,
                            flags, (const struct sockaddr *)out->addr,
                            out->addrlen);
    }
    else {
        struct msghdr msg = {
            .msg_name = (void *)(uintptr_t)out->addr,
            .msg_namelen = out->addrlen,
            .msg_iov = out->iov,
            .msg_iovlen = out->niov < IOV_MAX ? out->niov : IOV_MAX,
        };
        n = fnet_sys_sendmsg_flags(number, &msg, flags);
    }
    if (n < 0 || !out->whole) {
        return n;
    }
    advance(out, (size_t)n);
    return out->sent == out->total ? (ssize_t)out->total : FNET_MORE;
}

/* Runs it; the buffers are let go. */
static ssize_t
run_send(SocketObject *self, const char *name, outgoing *out)
{
    fnet_call call;

    ssize_t n = fnet_call_begin(&call, self, name, FNET_FD_WRITE, out->flags);
    if (n == 0) {
        n = fnet_call_run(&call, step_send, out, out->total <= FNET_GIL_MAX);
        fnet_call_end(&call);
    }
    return n;
}

static int
parse_flags(PyObject *const *args, Py_ssize_t nargs, const char *name,
            int *flags)
{
    *flags = 0;
    if (nargs < 1 || nargs > 2) {
        PyErr_Format(PyExc_TypeError,
                     "%s() takes 1 or 2 arguments (%zd given)", name, nargs);
        return -1;
    }
    if (nargs == 2) {
        *flags = fnet_int_arg(args[1]);
        if (*flags == -1 && PyErr_Occurred()) {
            return -1;
        }
    }
    return 0;
}

static PyObject *
socket_send(SocketObject *self, PyObject *const *args, Py_ssize_t nargs)
{
    outgoing out;
    int flags;

    if (parse_flags(args, nargs, "send", &flags) < 0) {
        return NULL;
    }
    outgoing_init(&out, flags);
    if (outgoing_fill(&out, args[0], "send", false) < 0) {
        return NULL;
    }
    ssize_t n = run_send(self, "send", &out);
    outgoing_fini(&out);
    return n < 0 ? fnet_socket_fail(self, "send", NULL, n)
                 : PyLong_FromSsize_t(n);
}

/* A stream that has nothing to say is not asked; a datagram may be empty. */
static bool
nothing_to_send(const SocketObject *self, const outgoing *out)
{
    return out->total == 0 && self->type == SOCK_STREAM;
}

static PyObject *
socket_sendall(SocketObject *self, PyObject *const *args, Py_ssize_t nargs)
{
    outgoing out;
    int flags;

    if (parse_flags(args, nargs, "sendall", &flags) < 0) {
        return NULL;
    }
    outgoing_init(&out, flags);
    out.whole = true;
    if (outgoing_fill(&out, args[0], "sendall", true) < 0) {
        return NULL;
    }
    ssize_t n = 0;
    if (nothing_to_send(self, &out)) {
        fnet_call call;
        n = fnet_call_begin(&call, self, "sendall", FNET_FD_WRITE, flags);
        if (n == 0) {
            fnet_call_end(&call);
        }
    }
    else {
        n = run_send(self, "sendall", &out);
    }
    size_t sent = out.sent;
    outgoing_fini(&out);
    if (n < 0) {
        (void)fnet_socket_fail(self, "sendall", NULL, n);
        fnet_socket_note_progress("bytes_sent", sent);
        return NULL;
    }
    Py_RETURN_NONE;
}

static PyObject *
socket_sendto(SocketObject *self, PyObject *const *args, Py_ssize_t nargs)
{
    struct sockaddr_storage addr;
    outgoing out;
    int flags = 0;

    if (nargs < 2 || nargs > 3) {
        return PyErr_Format(PyExc_TypeError,
                            "sendto() takes 2 or 3 arguments (%zd given)",
                            nargs);
    }
    PyObject *address = args[nargs - 1];
    if (nargs == 3) {
        flags = fnet_int_arg(args[1]);
        if (flags == -1 && PyErr_Occurred()) {
            return NULL;
        }
    }
    outgoing_init(&out, flags);
    if (!fnet_parse_address(self->family, address, &addr, &out.addrlen)) {
        return fnet_socket_cold_call(self, "_sendto", args, nargs);
    }
    out.addr = &addr;
    if (outgoing_fill(&out, args[0], "sendto", false) < 0) {
        return NULL;
    }
    ssize_t n = run_send(self, "sendto", &out);
    outgoing_fini(&out);
    return n < 0 ? fnet_socket_fail(self, "sendto", address, n)
                 : PyLong_FromSsize_t(n);
}

static PyObject *
socket_sendmsg(SocketObject *self, PyObject *const *args, Py_ssize_t nargs)
{
    outgoing out;

    if (nargs != 1) {
        /* ancillary data, flags, an address */
        return fnet_socket_cold_call(self, "_sendmsg", args, nargs);
    }
    PyObject *list =
        PySequence_Fast(args[0], "sendmsg() argument 1 must be iterable");
    if (list == NULL) {
        return NULL;
    }
    outgoing_init(&out, 0);
    int rc = add_buffers(&out, list, "sendmsg");
    Py_DECREF(list);
    out.niov = (size_t)out.nviews;
    ssize_t n = -1;
    if (rc == 0 && out.niov > IOV_MAX) {
        rc = -1;
        PyErr_SetString(PyExc_OSError, "sendmsg() argument 1 is too long");
    }
    if (rc == 0) {
        n = run_send(self, "sendmsg", &out);
    }
    outgoing_fini(&out);
    if (rc < 0) {
        return NULL;
    }
    return n < 0 ? fnet_socket_fail(self, "sendmsg", NULL, n)
                 : PyLong_FromSsize_t(n);
}

/* -- files -------------------------------------------------------------- */

/* One sendfile() of that much: other calls of the process get their turn, and
 * a deadline is looked at. */
#define FILE_PIECE ((size_t)1 << 20)

typedef struct outgoing_file {
    int file;
    off_t offset;
    size_t left, sent;
    bool to_the_end;
} outgoing_file;

/* sendfile() has no MSG_DONTWAIT, so the flag of the description is set for
 * the moment. */
static ssize_t
step_sendfile(int number, void *arg)
{
    outgoing_file *out = arg;
    size_t piece = out->left < FILE_PIECE ? out->left : FILE_PIECE;
    int flags = fcntl(number, F_GETFL);

    if (flags < 0) {
        return -errno;
    }
    if (!(flags & O_NONBLOCK)) {
        (void)fcntl(number, F_SETFL, flags | O_NONBLOCK);
    }
    ssize_t n = sendfile(number, out->file, &out->offset, piece);
    if (n < 0) {
        n = -errno;
    }
    if (!(flags & O_NONBLOCK)) {
        (void)fcntl(number, F_SETFL, flags);
    }
    if (n <= 0) {
        return n == -EINTR ? FNET_MORE : n;
    }
    out->sent += (size_t)n;
    if (!out->to_the_end) {
        out->left -= (size_t)n;
    }
    return out->left == 0 ? 0 : FNET_MORE;
}

/* _sendfile(fileno, offset, count or -1) -> bytes sent. */
static PyObject *
socket_sendfile(SocketObject *self, PyObject *args)
{
    fnet_call call;
    long long offset, count;
    outgoing_file out = {.sent = 0};

    if (!PyArg_ParseTuple(args, "iLL:_sendfile", &out.file, &offset, &count)) {
        return NULL;
    }
    out.offset = (off_t)offset;
    out.to_the_end = count < 0;
    out.left = count < 0 ? FILE_PIECE : (size_t)count;
    ssize_t n = fnet_call_begin(&call, self, "sendfile", FNET_FD_WRITE, 0);
    if (n == 0) {
        if (out.left > 0) {
            n = fnet_call_run(&call, step_sendfile, &out, false);
        }
        fnet_call_end(&call);
    }
    if (n < 0) {
        (void)fnet_socket_fail(self, "sendfile", NULL, n);
        fnet_socket_note_progress("bytes_sent", out.sent);
        return NULL;
    }
    return PyLong_FromSize_t(out.sent);
}

PyMethodDef fnet_socket_send_methods[] = {
    {"send", (PyCFunction)(void (*)(void))socket_send, METH_FASTCALL,
     "send(data[, flags]) -> number of bytes the kernel took; at least one of "
     "data that is not empty."},
    {"sendall", (PyCFunction)(void (*)(void))socket_sendall, METH_FASTCALL,
     "sendall(data[, flags]): all of it, or of a list or tuple of bytes-like\n"
     "objects all of them in one system call where the kernel has room.\n"
     "The time of settimeout() and the write deadline are for the whole "
     "call.\n"
     "Whatever exception it raises has `bytes_sent`, what the kernel took."},
    {"sendto", (PyCFunction)(void (*)(void))socket_sendto, METH_FASTCALL,
     "sendto(data[, flags], address) -> number of bytes."},
    {"sendmsg", (PyCFunction)(void (*)(void))socket_sendmsg, METH_FASTCALL,
     "sendmsg(buffers[, ancdata[, flags[, address]]]) -> number of bytes."},
    {"_sendfile", (PyCFunction)socket_sendfile, METH_VARARGS,
     "_sendfile(fileno, offset, count) -> number of bytes; count < 0: to the\n"
     "end of the file."},
    {NULL, NULL, 0, NULL},
};
