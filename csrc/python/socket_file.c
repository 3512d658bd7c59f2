/* socket_file: SocketReader, the buffered reader that makefile('rb') gives.
 *
 * io.BufferedReader's methods, with three differences: the time of the socket
 * is for the whole call, not for each receive; a call that ends early takes
 * nothing, so that the next one gives all of it; and a reader that waits with
 * nothing in its buffer has no buffer.  It is guarded by the read turn of its
 * socket, as the socket's own reads are. */
#include "python/socket.h"

#include "base/sys.h"

#include <errno.h>
#include <string.h>

#define DEFAULT_SIZE 8192

typedef struct ReaderObject {
    PyObject_HEAD
    SocketObject *sock;
    size_t size; /* of one receive into the buffer */
    bool closed;
    fnet_inbuf in; /* whoever has the socket's read turn */
    PyObject *weakrefs;
} ReaderObject;

/* What has to be in the buffer. */
typedef struct filling {
    fnet_inbuf *in, *held;
    size_t need;   /* so many bytes; SIZE_MAX: all until the end */
    bool line;     /* or a newline */
    size_t looked; /* no newline within so much */
    size_t found;  /* up to the end of the line */
    size_t size;
} filling;

static bool
is_filled(filling *f)
{
    size_t len = fnet_inbuf_len(f->in);

    if (f->line && len > f->looked) {
        size_t most = len < f->need ? len : f->need;
        const char *data = f->in->data + f->in->start;
        const char *at = most > f->looked
                             ? memchr(data + f->looked, '\n', most - f->looked)
                             : NULL;
        if (at != NULL) {
            f->found = (size_t)(at - data) + 1;
            return true;
        }
        f->looked = most;
    }
    return len >= f->need;
}

static ssize_t
step_fill(int number, void *arg)
{
    filling *f = arg;
    fnet_inbuf *in = f->in;
    size_t len = fnet_inbuf_len(in);

    if (is_filled(f)) {
        return 1;
    }
    size_t room = f->size > len ? f->size : len;
    if (!f->line && f->need - len < room && f->need - len > f->size) {
        room = f->need - len;
    }
    if (fnet_inbuf_reserve(in, room) < 0) {
        return -ENOMEM;
    }
    ssize_t n;
    if (FNET_UNLIKELY(fnet_inbuf_len(f->held) > 0)) {
        n = (ssize_t)fnet_inbuf_take(f->held, in->data + in->end, room);
    }
    else {
        n = fnet_sys_recvfrom(number, in->data + in->end, room, MSG_DONTWAIT,
                              NULL, NULL);
    }
    if (n > 0) {
        in->end += (size_t)n;
        return is_filled(f) ? 1 : FNET_MORE;
    }
    if (len == 0) {
        fnet_inbuf_free(in);
    }
    return n;
}

/* Begins a call: 0, or -1 with an exception. */
static int
begin(ReaderObject *self, fnet_call *call, const char *name)
{
    if (self->closed) {
        PyErr_SetString(PyExc_ValueError, "I/O operation on closed file.");
        return -1;
    }
    int rc = fnet_call_begin(call, self->sock, name, FNET_FD_READ, 0);
    if (rc < 0) {
        (void)fnet_socket_fail(self->sock, name, NULL, rc);
        return -1;
    }
    return 0;
}

/* Until `need` bytes or (with `line`) a newline are in the buffer: positive;
 * 0 at the end of the stream; else what fail() takes. */
static ssize_t
fill(ReaderObject *self, fnet_call *call, filling *f, size_t need, bool line)
{
    *f = (filling){.in = &self->in,
                   .held = &self->sock->held,
                   .need = need,
                   .line = line,
                   .size = self->size};
    if (is_filled(f)) {
        return 1;
    }
    return fnet_call_run(call, step_fill, f, self->size <= FNET_GIL_MAX);
}

static PyObject *
fail(ReaderObject *self, fnet_call *call, ssize_t n)
{
    (void)fnet_socket_fail(self->sock, call->name, NULL, n);
    fnet_socket_note_progress("bytes_received", fnet_inbuf_len(&self->in));
    return NULL;
}

static PyObject *
take(ReaderObject *self, size_t most)
{
    size_t len = fnet_inbuf_len(&self->in);

    len = len < most ? len : most;
    PyObject *bytes = PyBytes_FromStringAndSize(
        len > 0 ? self->in.data + self->in.start : NULL, (Py_ssize_t)len);
    if (bytes != NULL && len > 0) {
        fnet_inbuf_skip(&self->in, len);
    }
    return bytes;
}

/* A size argument: SIZE_MAX for none, None and below zero. */
static int
parse_size(PyObject *const *args, Py_ssize_t nargs, const char *name,
           size_t *size)
{
    *size = SIZE_MAX;
    if (nargs > 1) {
        PyErr_Format(PyExc_TypeError,
                     "%s() takes at most 1 argument (%zd given)", name, nargs);
        return -1;
    }
    if (nargs == 1 && args[0] != Py_None) {
        Py_ssize_t n = PyNumber_AsSsize_t(args[0], PyExc_OverflowError);
        if (n == -1 && PyErr_Occurred()) {
            return -1;
        }
        if (n >= 0) {
            *size = (size_t)n;
        }
    }
    return 0;
}

/* -- methods ------------------------------------------------------------ */

static PyObject *
reader_readline(ReaderObject *self, PyObject *const *args, Py_ssize_t nargs)
{
    size_t limit;
    fnet_call call;
    filling f;

    if (parse_size(args, nargs, "readline", &limit) < 0 ||
        begin(self, &call, "readline") < 0) {
        return NULL;
    }
    PyObject *line;
    ssize_t n = fill(self, &call, &f, limit, true);
    if (n >= 0) {
        line = take(self, f.found > 0 ? f.found : limit);
    }
    else {
        line = fail(self, &call, n);
    }
    fnet_call_end(&call);
    return line;
}

/* What a non-blocking socket gives: what is there, or None. */
static PyObject *
take_or_none(ReaderObject *self, size_t most)
{
    if (fnet_inbuf_len(&self->in) == 0) {
        Py_RETURN_NONE;
    }
    return take(self, most);
}

/* `got` bytes of a read into `data` are not to be given out. */
static void
unread(ReaderObject *self, const char *data, size_t got)
{
    if (fnet_inbuf_put_back(&self->in, data, got) < 0) {
        PyErr_Clear(); /* the exception on its way says less than it should */
    }
}

/* data[got:size], straight from the kernel: as fill(). */
static ssize_t
receive_direct(ReaderObject *self, fnet_call *call, fnet_receive *r)
{
    if (r->got < r->len) {
        r->got += fnet_inbuf_take(&self->sock->held, r->buf + r->got,
                                  r->len - r->got);
    }
    if (r->got == r->len) {
        return 1;
    }
    return fnet_call_run(call, fnet_step_receive, r, false);
}

static PyObject *
read_large(ReaderObject *self, fnet_call *call, size_t size)
{
    PyObject *bytes = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)size);
    if (bytes == NULL) {
        return NULL;
    }
    fnet_receive r = {
        .buf = PyBytes_AS_STRING(bytes), .len = size, .all = true};
    r.got = fnet_inbuf_take(&self->in, r.buf, size);
    ssize_t n = receive_direct(self, call, &r);
    if (n < 0 && n != -EAGAIN) {
        unread(self, r.buf, r.got);
        Py_DECREF(bytes);
        return fail(self, call, n);
    }
    if (r.got < size) {
        _PyBytes_Resize(&bytes, (Py_ssize_t)r.got);
    }
    return bytes;
}

static PyObject *
reader_read(ReaderObject *self, PyObject *const *args, Py_ssize_t nargs)
{
    size_t size;
    fnet_call call;
    filling f;

    if (parse_size(args, nargs, "read", &size) < 0 ||
        begin(self, &call, "read") < 0) {
        return NULL;
    }
    PyObject *bytes;
    bool large = size != SIZE_MAX && size > FNET_GIL_MAX;
    /* A large one is given its memory once the first bytes are here. */
    ssize_t n = fill(self, &call, &f, large ? FNET_GIL_MAX : size, false);
    if (n == -EAGAIN) {
        bytes = take_or_none(self, size);
    }
    else if (n < 0) {
        bytes = fail(self, &call, n);
    }
    else {
        bytes =
            n > 0 && large ? read_large(self, &call, size) : take(self, size);
    }
    fnet_call_end(&call);
    return bytes;
}

static PyObject *
reader_read1(ReaderObject *self, PyObject *const *args, Py_ssize_t nargs)
{
    size_t size;
    fnet_call call;
    filling f;

    if (parse_size(args, nargs, "read1", &size) < 0 ||
        begin(self, &call, "read1") < 0) {
        return NULL;
    }
    PyObject *bytes;
    ssize_t n = size == 0 ? 0 : fill(self, &call, &f, 1, false);
    if (n == -EAGAIN) {
        bytes = take_or_none(self, size);
    }
    else {
        bytes = n < 0 ? fail(self, &call, n) : take(self, size);
    }
    fnet_call_end(&call);
    return bytes;
}

static PyObject *
reader_peek(ReaderObject *self, PyObject *const *args, Py_ssize_t nargs)
{
    size_t size;
    fnet_call call;
    filling f;

    if (parse_size(args, nargs, "peek", &size) < 0 ||
        begin(self, &call, "peek") < 0) {
        return NULL;
    }
    PyObject *bytes;
    ssize_t n = fill(self, &call, &f, 1, false);
    if (n < 0 && n != -EAGAIN) {
        bytes = fail(self, &call, n);
    }
    else {
        size_t len = fnet_inbuf_len(&self->in);
        bytes = PyBytes_FromStringAndSize(
            len > 0 ? self->in.data + self->in.start : NULL, (Py_ssize_t)len);
    }
    fnet_call_end(&call);
    return bytes;
}

static PyObject *
readinto(ReaderObject *self, PyObject *arg, const char *name, bool all)
{
    Py_buffer view;
    fnet_call call;

    if (PyObject_GetBuffer(arg, &view, PyBUF_WRITABLE) < 0) {
        return PyErr_Format(PyExc_TypeError,
                            "%s() argument must be read-write bytes-like "
                            "object, not %.100s",
                            name, Py_TYPE(arg)->tp_name);
    }
    if (begin(self, &call, name) < 0) {
        PyBuffer_Release(&view);
        return NULL;
    }
    fnet_receive r = {.buf = view.buf, .len = (size_t)view.len, .all = all};
    r.got = fnet_inbuf_take(&self->in, r.buf, r.len);
    ssize_t n = 1;
    if (r.len > 0 && (all || r.got == 0)) {
        n = receive_direct(self, &call, &r);
        if (!all && n > 0 && r.got == 0) {
            r.got = (size_t)n;
        }
    }
    PyObject *result;
    if (n == -EAGAIN) {
        result = r.got > 0 ? PyLong_FromSize_t(r.got) : Py_NewRef(Py_None);
    }
    else if (n < 0) {
        unread(self, r.buf, r.got);
        result = fail(self, &call, n);
    }
    else {
        result = PyLong_FromSize_t(r.got);
    }
    fnet_call_end(&call);
    PyBuffer_Release(&view);
    return result;
}

static PyObject *
reader_readinto(ReaderObject *self, PyObject *arg)
{
    return readinto(self, arg, "readinto", true);
}

static PyObject *
reader_readinto1(ReaderObject *self, PyObject *arg)
{
    return readinto(self, arg, "readinto1", false);
}

static PyObject *
reader_iternext(ReaderObject *self)
{
    PyObject *line = reader_readline(self, NULL, 0);
    if (line != NULL && PyBytes_GET_SIZE(line) == 0) {
        Py_CLEAR(line);
    }
    return line;
}

static PyObject *
reader_close(ReaderObject *self, PyObject *unused)
{
    bool first;

    FNET_BEGIN_SHARED(self);
    first = !self->closed;
    self->closed = true;
    FNET_END_SHARED();
    /* The buffer may be in use: it goes with the object. */
    return first ? PyObject_CallMethod((PyObject *)self->sock, "_drop_file",
                                       NULL)
                 : Py_NewRef(Py_None);
}

static PyObject *
reader_fileno(ReaderObject *self, PyObject *unused)
{
    if (self->closed) {
        PyErr_SetString(PyExc_ValueError, "I/O operation on closed file.");
        return NULL;
    }
    return PyObject_CallMethod((PyObject *)self->sock, "fileno", NULL);
}

/* -- life --------------------------------------------------------------- */

static PyObject *
reader_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"sock", "size", NULL};
    module_state *state = fnet_state_of_type(type);
    PyObject *sock;
    Py_ssize_t size = DEFAULT_SIZE;

    if (state == NULL ||
        !PyArg_ParseTupleAndKeywords(args, kwargs, "O!|n:SocketReader", names,
                                     state->blocking_type, &sock, &size)) {
        return NULL;
    }
    if (size <= 0) {
        PyErr_SetString(PyExc_ValueError,
                        "buffer size must be strictly positive");
        return NULL;
    }
    ReaderObject *self = (ReaderObject *)type->tp_alloc(type, 0);
    if (self != NULL) {
        self->sock = (SocketObject *)Py_NewRef(sock);
        self->size = (size_t)size;
        self->closed = true; /* until the socket counts it */
        PyObject *done = PyObject_CallMethod(sock, "_add_file", NULL);
        if (done == NULL) {
            Py_DECREF(self);
            return NULL;
        }
        Py_DECREF(done);
        self->closed = false;
    }
    return (PyObject *)self;
}

static int
reader_traverse(ReaderObject *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(self->sock);
    return 0;
}

static int
reader_clear(ReaderObject *self)
{
    return 0; /* the socket is needed to the end; cycles are broken elsewhere
               */
}

static void
reader_finalize(ReaderObject *self)
{
    PyObject *exc = fnet_err_take();
    PyObject *done = reader_close(self, NULL);
    if (done == NULL) {
        PyErr_WriteUnraisable((PyObject *)self);
    }
    Py_XDECREF(done);
    fnet_err_restore(exc);
}

static void
reader_dealloc(ReaderObject *self)
{
    PyTypeObject *type = Py_TYPE(self);

    if (PyObject_CallFinalizerFromDealloc((PyObject *)self) < 0) {
        return;
    }
    PyObject_GC_UnTrack(self);
    if (self->weakrefs != NULL) {
        PyObject_ClearWeakRefs((PyObject *)self);
    }
    fnet_inbuf_free(&self->in);
    Py_XDECREF(self->sock);
    type->tp_free((PyObject *)self);
    Py_DECREF(type);
}

static PyObject *
reader_get_closed(ReaderObject *self, void *unused)
{
    return PyBool_FromLong(self->closed);
}

static PyGetSetDef reader_getset[] = {
    {"closed", (getter)reader_get_closed, NULL, "close() was called.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyMemberDef reader_members[] = {
    {"__weaklistoffset__", T_PYSSIZET, offsetof(ReaderObject, weakrefs),
     READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyMethodDef reader_methods[] = {
    {"read", (PyCFunction)(void (*)(void))reader_read, METH_FASTCALL,
     "read(n=-1) -> n bytes, or fewer at the end of the stream."},
    {"read1", (PyCFunction)(void (*)(void))reader_read1, METH_FASTCALL,
     "read1(n=-1) -> what one receive gives."},
    {"peek", (PyCFunction)(void (*)(void))reader_peek, METH_FASTCALL,
     "peek(n=0) -> what is in the buffer, which is filled if it is empty."},
    {"readline", (PyCFunction)(void (*)(void))reader_readline, METH_FASTCALL,
     "readline(limit=-1) -> a line with its newline; b'' at the end."},
    {"readinto", (PyCFunction)reader_readinto, METH_O,
     "readinto(buffer) -> number of bytes; fewer at the end of the stream."},
    {"readinto1", (PyCFunction)reader_readinto1, METH_O,
     "readinto1(buffer) -> number of bytes of one receive."},
    {"close", (PyCFunction)reader_close, METH_NOARGS, "Lets the socket go."},
    {"fileno", (PyCFunction)reader_fileno, METH_NOARGS,
     "The socket's descriptor."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot reader_slots[] = {
    {Py_tp_doc, "The C half of what makefile('rb') gives."},
    {Py_tp_new, reader_new},
    {Py_tp_dealloc, reader_dealloc},
    {Py_tp_finalize, reader_finalize},
    {Py_tp_traverse, reader_traverse},
    {Py_tp_clear, reader_clear},
    {Py_tp_iter, PyObject_SelfIter},
    {Py_tp_iternext, reader_iternext},
    {Py_tp_methods, reader_methods},
    {Py_tp_getset, reader_getset},
    {Py_tp_members, reader_members},
    {0, NULL},
};

PyType_Spec fnet_reader_spec = {
    .name = "pyfastnet._core.SocketReader",
    .basicsize = sizeof(ReaderObject),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC,
    .slots = reader_slots,
};
