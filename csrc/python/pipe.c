/* pipe: the transports of connect_read_pipe() and connect_write_pipe().
 *
 * Both are transports (transport.c) in one direction, with asyncio's rules
 * for pipes where these differ; net/pipe.h has what differs below.
 *
 * The file object that the program gave owns its descriptor, and is closed
 * once, at the end.  The transport works on a duplicate of its own: the
 * program may close the file, whose number may be a stranger's then, and may
 * connect one file several times (a terminal is read and written), where an
 * epoll set has one entry per number.  Pipes that nobody else knows (those of
 * a child) do without. */
#include "python/module.h"

#include "net/pipe.h"

#include <errno.h>

#define WRITES_BEFORE_WARNING 5

typedef struct PipeObject {
    TransportObject base; /* base.sock: the file object */
    int number;           /* its descriptor; base.fd may be a duplicate */
} PipeObject;

/* -- the descriptor ----------------------------------------------------- */

static int
number_of(LoopObject *loop, PyObject *pipe)
{
    PyObject *number =
        PyObject_CallMethodNoArgs(pipe, loop->state->str_fileno);
    long fd = -1;

    if (number != NULL) {
        fd = PyLong_Check(number) ? PyLong_AsLong(number) : -1;
        Py_DECREF(number);
    }
    if ((fd < 0 || fd > INT_MAX) && !PyErr_Occurred()) {
        PyErr_Format(PyExc_ValueError, "Invalid file object: %R", pipe);
        fd = -1;
    }
    return (int)fd;
}

static int
register_(PipeObject *self, int fd)
{
    TransportObject *base = &self->base;
    LoopObject *loop = base->loop;

    PyObject **slot = fnet_loop_free_number(loop, fd) < 0
                          ? NULL
                          : fnet_loop_fd_slot(loop, fd);
    if (slot == NULL) {
        return -1;
    }
    int rc = fnet_pipe_attach(&base->stream, &loop->home, fd, self,
                              (enum fnet_pipe_end)base->pipe);
    if (rc < 0) {
        fnet_raise(rc);
        return -1;
    }
    fnet_stream_set_direct(&base->stream, base->buffered);
    base->fd = fd;
    base->attached = true;
    *slot = (PyObject *)self;
    fnet_list_push(&loop->transports, &base->link);
    Py_INCREF(self); /* the loop's */
    return 0;
}

static int
attach(PipeObject *self, PyObject *pipe, int number, bool own)
{
    int fd = number;

    if (!own) {
        fd = fnet_sys_dup(number);
        if (fd < 0) {
            fnet_raise(fd);
            return -1;
        }
    }
    self->number = number;
    if (register_(self, fd) < 0) {
        if (!own) {
            fnet_sys_close(fd);
        }
        return -1;
    }
    self->base.sock = Py_NewRef(pipe);
    return 0;
}

void
fnet_pipe_detach(TransportObject *self)
{
    LoopObject *loop = self->loop;

    self->attached = false;
    fnet_list_remove(&self->link);
    /* Not by closing: other descriptors are open for the same file. */
    fnet_stream_detach(&self->stream, false);
    if ((size_t)self->fd < loop->nfds &&
        loop->fds[self->fd] == (PyObject *)self) {
        loop->fds[self->fd] = NULL;
    }
}

void
fnet_pipe_close_descriptor(TransportObject *self)
{
    PyObject *file = self->sock;

    self->sock = NULL;
    if (self->fd != ((PipeObject *)self)->number) {
        fnet_sys_close(self->fd);
    }
    if (file != NULL) {
        PyObject *result =
            PyObject_CallMethodNoArgs(file, self->loop->state->str_close);
        if (result == NULL) {
            PyErr_WriteUnraisable(file);
        }
        Py_XDECREF(result);
        Py_DECREF(file);
    }
}

/* -- what comes --------------------------------------------------------- */

int
fnet_pipe_fatal_error(TransportObject *self)
{
    if (fnet_must_propagate()) {
        return -1;
    }
    PyObject *exc = fnet_err_take();
    int rc = fnet_report(self->loop->state, "pipe_failed", "(OOOOi)",
                         self->loop, exc, self,
                         self->protocol != NULL ? self->protocol : Py_None,
                         self->pipe == FNET_PIPE_WRITE);
    if (rc == 0) {
        rc = fnet_transport_force_close(self, exc);
    }
    Py_DECREF(exc);
    return rc;
}

int
fnet_pipe_data_failed(TransportObject *self)
{
    return fnet_report_raised(self->loop, "method_failed", "data_received",
                              (PyObject *)self, self->protocol);
}

/* The writer has gone: eof_received() and the end, whatever it answers. */
static int
writer_gone(TransportObject *self)
{
    if (self->protocol == NULL) {
        return 0;
    }
    self->closing = true;
    fnet_stream_want(&self->stream, false);
    PyObject *method =
        PyObject_GetAttr(self->protocol, self->loop->state->str_eof_received);
    if (method == NULL) {
        return fnet_pipe_fatal_error(self);
    }
    int rc = fnet_loop_call_soon(self->loop, method, NULL, 0, self->context);
    Py_DECREF(method);
    self->conn_lost++;
    return rc < 0 ? -1 : fnet_transport_schedule_lost(self, NULL);
}

/* An error if there is something that it has not got. */
static int
reader_gone(TransportObject *self)
{
    PyObject *exc = NULL;

    /* A worker may have tried to send it meanwhile. */
    int error = fnet_stream_error(&self->stream);
    if (error != 0 || fnet_stream_pending(&self->stream) > 0) {
        exc = fnet_make_oserror(error != 0 ? error : -EPIPE);
        if (exc == NULL) {
            return -1;
        }
    }
    int rc = fnet_transport_force_close(self, exc);
    Py_XDECREF(exc);
    return rc;
}

int
fnet_pipe_deliver_eof(TransportObject *self)
{
    if (self->loop->debug &&
        fnet_report(self->loop->state, "closed_by_peer", "(O)", self) < 0) {
        return -1;
    }
    return self->pipe == FNET_PIPE_WRITE ? reader_gone(self)
                                         : writer_gone(self);
}

/* -- making ------------------------------------------------------------- */

static PipeObject *
allocate(LoopObject *loop, enum fnet_pipe_end end)
{
    PyTypeObject *type = end == FNET_PIPE_READ ? loop->state->readpipe_type
                                               : loop->state->writepipe_type;
    PipeObject *self = (PipeObject *)type->tp_alloc(type, 0);

    if (self != NULL) {
        fnet_transport_prepare(&self->base, loop);
        self->number = -1;
        self->base.exposed = true;
        self->base.pipe = (uint8_t)end;
        self->base.context = PyContext_CopyCurrent();
        if (self->base.context == NULL) {
            Py_CLEAR(self);
        }
    }
    return self;
}

static int
set_extra(PipeObject *self, PyObject *extra, PyObject *pipe)
{
    self->base.extra = extra != Py_None && PyDict_Check(extra)
                           ? PyDict_Copy(extra)
                           : PyDict_New();
    return self->base.extra == NULL
               ? -1
               : PyDict_SetItemString(self->base.extra, "pipe", pipe);
}

static int
schedule_start(PipeObject *self, PyObject *waiter)
{
    LoopObject *loop = self->base.loop;
    PyObject *method =
        PyObject_GetAttr((PyObject *)self, loop->state->str__start);
    PyObject *args[] = {waiter};
    int rc = fnet_loop_call_soon(loop, method, args, 1, NULL);

    Py_XDECREF(method);
    return rc;
}

static PyObject *
make(LoopObject *loop, PyObject *args, PyObject *kwargs,
     enum fnet_pipe_end end)
{
    static char *names[] = {"pipe",  "protocol", "waiter",
                            "extra", "own",      NULL};
    PyObject *pipe, *protocol, *waiter = Py_None, *extra = Py_None;
    int own = 0;

    if (!PyArg_ParseTupleAndKeywords(
            args, kwargs, "OO|OO$p:_make_pipe_transport", names, &pipe,
            &protocol, &waiter, &extra, &own) ||
        fnet_loop_check(loop) < 0 || fnet_loop_check_thread(loop) < 0) {
        return NULL;
    }
    int number = number_of(loop, pipe);
    if (number < 0) {
        return NULL;
    }
    int mode = fnet_sys_mode(number);
    if (mode < 0) {
        return fnet_raise(mode);
    }
    if (!fnet_pipe_takes(mode)) {
        PyErr_SetString(PyExc_ValueError,
                        end == FNET_PIPE_READ
                            ? "Pipe transport is for pipes/sockets only."
                            : "Pipe transport is only for pipes, sockets and "
                              "character devices");
        return NULL;
    }
    PipeObject *self = allocate(loop, end);
    if (self != NULL &&
        (set_extra(self, extra, pipe) < 0 ||
         fnet_transport_set_protocol(&self->base, protocol) < 0 ||
         attach(self, pipe, number, own != 0) < 0)) {
        Py_CLEAR(self);
    }
    if (self != NULL && schedule_start(self, waiter) < 0) {
        Py_CLEAR(self);
    }
    return (PyObject *)self;
}

static PyObject *
make_read_pipe(LoopObject *loop, PyObject *args, PyObject *kwargs)
{
    return make(loop, args, kwargs, FNET_PIPE_READ);
}

static PyObject *
make_write_pipe(LoopObject *loop, PyObject *args, PyObject *kwargs)
{
    return make(loop, args, kwargs, FNET_PIPE_WRITE);
}

#define WITH_KEYWORDS(function)                                               \
    (PyCFunction)(void (*)(void))(function), METH_VARARGS | METH_KEYWORDS

PyMethodDef fnet_pipe_methods[] = {
    {"_make_read_pipe_transport", WITH_KEYWORDS(make_read_pipe), NULL},
    {"_make_write_pipe_transport", WITH_KEYWORDS(make_write_pipe), NULL},
    {NULL, NULL, 0, NULL},
};

/* -- methods of its own ------------------------------------------------- */

static PyObject *
writepipe_write(TransportObject *self, PyObject *data)
{
    if (FNET_LIKELY(!self->closing)) {
        return fnet_transport_write(self, data);
    }
    if (fnet_transport_check_data(data) < 0) {
        return NULL;
    }
    /* While it is closing, with data to be sent, what comes is dropped. */
    if (PyObject_Length(data) > 0 && self->conn_lost != 0) {
        if (self->conn_lost >= WRITES_BEFORE_WARNING &&
            fnet_report(self->loop->state, "warn_pipe_lost", "()") < 0) {
            return NULL;
        }
        self->conn_lost++;
    }
    Py_RETURN_NONE;
}

static PyObject *
writepipe_writelines(TransportObject *self, PyObject *list)
{
    if (FNET_LIKELY(!self->closing)) {
        return fnet_transport_writelines(self, list);
    }
    PyObject *empty = PyBytes_FromStringAndSize(NULL, 0);
    PyObject *data =
        empty == NULL ? NULL : PyObject_CallMethod(empty, "join", "O", list);
    PyObject *result = data == NULL ? NULL : writepipe_write(self, data);

    Py_XDECREF(empty);
    Py_XDECREF(data);
    return result;
}

static PyObject *
writepipe_write_eof(TransportObject *self, PyObject *unused)
{
    if (fnet_loop_check_thread(self->loop) < 0 ||
        fnet_transport_close(self) < 0) {
        return NULL;
    }
    Py_RETURN_NONE;
}

static PyObject *
pipe_repr(TransportObject *self)
{
    const char *name = strrchr(Py_TYPE(self)->tp_name, '.');
    const char *state = !self->attached ? "closed"
                        : self->closing ? "closing"
                        : self->paused  ? "paused"
                                        : "open";
    return PyUnicode_FromFormat(
        "<%s %s fd=%d>", name != NULL ? name + 1 : Py_TYPE(self)->tp_name,
        state, ((PipeObject *)self)->number);
}

/* -- types -------------------------------------------------------------- */

static PyObject *
pipe_get_field(TransportObject *self, void *which)
{
    PyObject *object = NULL;

    switch (*(const char *)which) {
    case 'p':
        return PyBool_FromLong(self->paused);
    case 'c':
        return PyBool_FromLong(self->closing);
    case 'n':
        return PyLong_FromUnsignedLong(self->conn_lost);
    case 'f':
        return PyLong_FromLong(self->attached ? ((PipeObject *)self)->number
                                              : -1);
    case 'l':
        object = (PyObject *)self->loop;
        break;
    case 's':
        object = self->sock;
        break;
    default:
        object = self->protocol;
    }
    return Py_NewRef(object != NULL ? object : Py_None);
}

static PyGetSetDef readpipe_getset[] = {
    {"_paused", (getter)pipe_get_field, NULL, NULL, "p"},
    {"_closing", (getter)pipe_get_field, NULL, NULL, "c"},
    {"_loop", (getter)pipe_get_field, NULL, NULL, "l"},
    {"_pipe", (getter)pipe_get_field, NULL, NULL, "s"},
    {"_fileno", (getter)pipe_get_field, NULL, NULL, "f"},
    {"_protocol", (getter)pipe_get_field, NULL, NULL, "P"},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyGetSetDef writepipe_getset[] = {
    {"_closing", (getter)pipe_get_field, NULL, NULL, "c"},
    {"_loop", (getter)pipe_get_field, NULL, NULL, "l"},
    {"_pipe", (getter)pipe_get_field, NULL, NULL, "s"},
    {"_fileno", (getter)pipe_get_field, NULL, NULL, "f"},
    {"_protocol", (getter)pipe_get_field, NULL, NULL, "P"},
    {"_conn_lost", (getter)pipe_get_field, NULL, NULL, "n"},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyMemberDef pipe_members[] = {
    {"__weaklistoffset__", T_PYSSIZET, offsetof(PipeObject, base.weakrefs),
     READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyMethodDef writepipe_methods[] = {
    {"write", (PyCFunction)writepipe_write, METH_O,
     "Write bytes: at once, or with the turn's other output, within 2 ms."},
    {"writelines", (PyCFunction)writepipe_writelines, METH_O,
     "Write an iterable of bytes-like objects in one call."},
    {"write_eof", (PyCFunction)writepipe_write_eof, METH_NOARGS, "close()."},
    {NULL, NULL, 0, NULL},
};

#define PIPE_SLOTS                                                            \
    {Py_tp_finalize, fnet_transport_finalize},                                \
        {Py_tp_dealloc, fnet_transport_dealloc},                              \
        {Py_tp_traverse, fnet_transport_traverse},                            \
        {Py_tp_clear, fnet_transport_clear}, {Py_tp_repr, pipe_repr},         \
    {                                                                         \
        Py_tp_members, pipe_members                                           \
    }

static PyType_Slot readpipe_slots[] = {
    {Py_tp_doc, "The reading end of a pipe; see asyncio.ReadTransport."},
    PIPE_SLOTS,
    {Py_tp_getset, readpipe_getset},
    {0, NULL},
};

static PyType_Slot writepipe_slots[] = {
    {Py_tp_doc, "The writing end of a pipe; see asyncio.WriteTransport."},
    PIPE_SLOTS,
    {Py_tp_methods, writepipe_methods},
    {Py_tp_getset, writepipe_getset},
    {0, NULL},
};

#define PIPE_FLAGS                                                            \
    (Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC |                                \
     Py_TPFLAGS_DISALLOW_INSTANTIATION)

static PyType_Spec readpipe_spec = {
    .name = "pyfastnet._core.ReadPipeTransport",
    .basicsize = sizeof(PipeObject),
    .flags = PIPE_FLAGS,
    .slots = readpipe_slots,
};

static PyType_Spec writepipe_spec = {
    .name = "pyfastnet._core.WritePipeTransport",
    .basicsize = sizeof(PipeObject),
    .flags = PIPE_FLAGS,
    .slots = writepipe_slots,
};

/* The methods that a pipe has in common with a socket's transport. */
static const char *const shared[] = {
    "close",        "is_closing", "get_protocol",
    "set_protocol", "_start",     "_call_connection_lost",
};
static const char *const reading[] = {"is_reading", "pause_reading",
                                      "resume_reading", "_deliver_held"};
static const char *const writing[] = {
    "abort",
    "can_write_eof",
    "get_write_buffer_size",
    "get_write_buffer_limits",
    "set_write_buffer_limits",
};

static int
borrow_methods(PyTypeObject *type, const char *const *names, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        PyMethodDef *method = fnet_transport_methods;
        while (strcmp(method->ml_name, names[i]) != 0) {
            method++;
        }
        PyObject *descriptor = PyDescr_NewMethod(type, method);
        int rc = descriptor == NULL
                     ? -1
                     : PyObject_SetAttrString((PyObject *)type, names[i],
                                              descriptor);
        Py_XDECREF(descriptor);
        if (rc < 0) {
            return -1;
        }
    }
    return 0;
}

static PyTypeObject *
make_type(PyObject *module, PyType_Spec *spec, const char *base_name,
          const char *const *names, size_t n)
{
    PyObject *asyncio = PyImport_ImportModule("asyncio");
    PyObject *base =
        asyncio == NULL ? NULL : PyObject_GetAttrString(asyncio, base_name);
    PyTypeObject *type =
        base == NULL
            ? NULL
            : (PyTypeObject *)PyType_FromModuleAndSpec(module, spec, base);

    Py_XDECREF(asyncio);
    Py_XDECREF(base);
    if (type != NULL &&
        (borrow_methods(type, shared, FNET_COUNTOF(shared)) < 0 ||
         borrow_methods(type, names, n) < 0 ||
         PyModule_AddType(module, type) < 0)) {
        Py_CLEAR(type);
    }
    return type;
}

int
fnet_pipe_make_types(PyObject *module, module_state *state)
{
    state->readpipe_type = make_type(module, &readpipe_spec, "ReadTransport",
                                     reading, FNET_COUNTOF(reading));
    /* As asyncio's, whose methods for reading are there and not implemented.
     */
    state->writepipe_type = make_type(module, &writepipe_spec, "Transport",
                                      writing, FNET_COUNTOF(writing));
    return state->readpipe_type == NULL || state->writepipe_type == NULL ? -1
                                                                         : 0;
}
