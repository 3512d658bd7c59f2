/* socket: the life of a blocking socket. */
#include "python/socket.h"

#include "base/sys.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

/* -- life --------------------------------------------------------------- */

static PyObject *
socket_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    module_state *state = fnet_state_of_type(type);
    SocketObject *self =
        state == NULL ? NULL : (SocketObject *)type->tp_alloc(type, 0);

    if (self == NULL) {
        return NULL;
    }
    self->state = state;
    int rc = fnet_fd_init(&self->fd, -1);
    if (rc < 0) {
        type->tp_free((PyObject *)self);
        Py_DECREF(type);
        return fnet_raise(rc);
    }
    (void)fnet_fd_detach(&self->fd); /* until __init__ */
    self->family = self->type = self->proto = -1;
    atomic_init(&self->timeout, -1);
    self->closed = true;
    return (PyObject *)self;
}

/* A descriptor for an object that has none: 0; else it is still the
 * caller's. */
static int
adopt(SocketObject *self, int number)
{
    if (!fnet_fd_closed(&self->fd)) {
        PyErr_SetString(PyExc_RuntimeError,
                        "__init__() of a socket that is open");
        return -1;
    }
    fnet_fd_fini(&self->fd);
    int rc = fnet_fd_init(&self->fd, number);
    if (rc < 0) {
        fnet_panic("socket: no memory for a lock");
    }
    self->closed = false;
    return 0;
}

/* The timeout of new sockets is socket.setdefaulttimeout()'s. */
static int
use_default_timeout(SocketObject *self)
{
    module_state *state = self->state;
    int64_t ns = -1;

    if (state->default_timeout == NULL) {
        state->default_timeout = fnet_socket_cold("getdefaulttimeout");
        if (state->default_timeout == NULL) {
            return -1;
        }
    }
    PyObject *value = PyObject_CallNoArgs(state->default_timeout);
    if (value == NULL) {
        return -1;
    }
    if (value != Py_None) {
        ns = fnet_socket_ns(value);
    }
    Py_DECREF(value);
    atomic_store_explicit(&self->timeout, ns, memory_order_relaxed);
    return PyErr_Occurred() ? -1 : 0;
}

static int
option_of(int number, int option, int otherwise)
{
    int value = otherwise;
    socklen_t len = sizeof(value);
    if (getsockopt(number, SOL_SOCKET, option, &value, &len) < 0) {
        return -errno;
    }
    return value;
}

/* -1 for what the descriptor is to be asked. */
static int
init_fileno(SocketObject *self, PyObject *fileno, int family, int type,
            int proto)
{
    int number = fnet_int_arg(fileno);
    if (number == -1 && PyErr_Occurred()) {
        return -1;
    }
    if (number < 0) {
        PyErr_SetString(PyExc_ValueError, "negative file descriptor");
        return -1;
    }
    int values[3] = {family, type, proto};
    static const int options[3] = {SO_DOMAIN, SO_TYPE, SO_PROTOCOL};
    for (int i = 0; i < 3; i++) {
        /* Asked in any case: is it a socket? */
        int found = option_of(number, options[i], 0);
        if (found < 0) {
            (void)fnet_raise(found);
            return -1;
        }
        if (values[i] < 0) {
            values[i] = found;
        }
    }
    if (adopt(self, number) < 0) {
        return -1;
    }
    self->family = values[0];
    self->type = values[1] & ~(SOCK_NONBLOCK | SOCK_CLOEXEC);
    self->proto = values[2];
    self->ours = false;
    return 0;
}

static int
init_new(SocketObject *self, int family, int type, int proto)
{
    int base = type & ~(SOCK_NONBLOCK | SOCK_CLOEXEC);
    family = family < 0 ? AF_INET : family;
    base = type < 0 ? SOCK_STREAM : base;
    proto = proto < 0 ? 0 : proto;
    int number = socket(family, base | SOCK_CLOEXEC, proto);
    if (number < 0) {
        (void)fnet_raise(-errno);
        return -1;
    }
    if (adopt(self, number) < 0) {
        close(number);
        return -1;
    }
    self->family = family;
    self->type = base;
    self->proto = proto;
    self->ours = true;
    return 0;
}

static int
socket_init(SocketObject *self, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"family", "type", "proto", "fileno", NULL};
    int family = -1, type = -1, proto = -1;
    PyObject *fileno = Py_None;

    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|iiiO:Socket", names,
                                     &family, &type, &proto, &fileno)) {
        return -1;
    }
    int rc = fileno != Py_None ? init_fileno(self, fileno, family, type, proto)
                               : init_new(self, family, type, proto);
    if (rc < 0 || use_default_timeout(self) < 0) {
        return -1;
    }
    if (type >= 0 && (type & SOCK_NONBLOCK)) {
        atomic_store_explicit(&self->timeout, 0, memory_order_relaxed);
    }
    return 0;
}

PyObject *
fnet_socket_wrap(const SocketObject *like, int number)
{
    module_state *state = like->state;

    if (state->socket_class == NULL) {
        PyObject *found = fnet_socket_cold("Socket");
        if (found == NULL) {
            close(number);
            return NULL;
        }
        state->socket_class = found;
    }
    SocketObject *self = (SocketObject *)socket_new(
        (PyTypeObject *)state->socket_class, NULL, NULL);
    if (self == NULL || adopt(self, number) < 0) {
        close(number);
        Py_XDECREF(self);
        return NULL;
    }
    self->family = like->family;
    self->type = like->type;
    self->proto = like->proto;
    self->ours = true;
    if (use_default_timeout(self) < 0) {
        Py_DECREF(self);
        return NULL;
    }
    return (PyObject *)self;
}

static void
socket_finalize(SocketObject *self)
{
    if (fnet_fd_closed(&self->fd)) {
        return;
    }
    PyObject *exc = fnet_err_take();
    /* One that was closed has waited for a file, which is garbage as well. */
    if (!self->closed &&
        PyErr_ResourceWarning((PyObject *)self, 1, "unclosed %R", self) < 0 &&
        PyErr_ExceptionMatches(PyExc_Warning)) {
        PyErr_WriteUnraisable((PyObject *)self);
    }
    PyErr_Clear();
    (void)fnet_fd_close(&self->fd);
    fnet_err_restore(exc);
}

static void
socket_dealloc(SocketObject *self)
{
    PyTypeObject *type = Py_TYPE(self);

    if (PyObject_CallFinalizerFromDealloc((PyObject *)self) < 0) {
        return;
    }
    if (self->weakrefs != NULL) {
        PyObject_ClearWeakRefs((PyObject *)self);
    }
    fnet_fd_fini(&self->fd);
    fnet_inbuf_free(&self->held);
    type->tp_free((PyObject *)self);
    Py_DECREF(type);
}

/* -- close -------------------------------------------------------------- */

/* Takes effect once the files over it are closed too, as in the socket
 * module. */
static void
close_if_unused(SocketObject *self)
{
    if (!self->closed || self->io_refs > 0) {
        return;
    }
    /* It may linger, and a FIN over the loopback takes 5 to 10 us. */
    PyThreadState *saved = fnet_gate_leave(&self->state->gate);
    (void)fnet_fd_close(&self->fd);
    fnet_gate_enter(&self->state->gate, saved);
}

static PyObject *
socket_close(SocketObject *self, PyObject *unused)
{
    FNET_BEGIN_SHARED(self);
    self->closed = true;
    close_if_unused(self);
    FNET_END_SHARED();
    Py_RETURN_NONE;
}

static PyObject *
socket_add_file(SocketObject *self, PyObject *unused)
{
    FNET_BEGIN_SHARED(self);
    self->io_refs++;
    FNET_END_SHARED();
    Py_RETURN_NONE;
}

static PyObject *
socket_drop_file(SocketObject *self, PyObject *unused)
{
    FNET_BEGIN_SHARED(self);
    if (self->io_refs > 0) {
        self->io_refs--;
    }
    close_if_unused(self);
    FNET_END_SHARED();
    Py_RETURN_NONE;
}

static PyObject *
socket_detach(SocketObject *self, PyObject *unused)
{
    size_t held = fnet_inbuf_len(&self->held);
    int number = self->fd.number, rc;

    if (held > 0) {
        return PyErr_Format(PyExc_BufferError,
                            "detach(): %zu bytes of an unfinished read are "
                            "here; recv(pending()) takes them",
                            held);
    }
    if (fnet_fd_detach(&self->fd) < 0) {
        return PyLong_FromLong(-1);
    }
    self->closed = true;
    do {
        Py_BEGIN_ALLOW_THREADS
        rc = fnet_fd_await_end(&self->fd);
        Py_END_ALLOW_THREADS
    } while (rc == -EINTR); /* the handlers run later: it is ours to return */
    if (self->nonblocking) {
        int flags = fcntl(number, F_GETFL);
        if (flags >= 0) {
            (void)fcntl(number, F_SETFL, flags & ~O_NONBLOCK);
        }
        self->nonblocking = false;
    }
    return PyLong_FromLong(number);
}

static PyObject *
socket_fileno(SocketObject *self, PyObject *unused)
{
    return PyLong_FromLong(fnet_fd_closed(&self->fd) ? -1 : self->fd.number);
}

PyObject *
fnet_socket_raw(SocketObject *self)
{
    module_state *state = self->state;

    if (state->raw_socket_type == NULL) {
        PyObject *module = PyImport_ImportModule("_socket");
        state->raw_socket_type =
            module == NULL ? NULL : PyObject_GetAttrString(module, "socket");
        Py_XDECREF(module);
        if (state->raw_socket_type == NULL) {
            return NULL;
        }
    }
    /* SOCK_NONBLOCK: so that it leaves the flag of the description alone,
     * whatever the default timeout is, and never waits by itself. */
    return PyObject_CallFunction(state->raw_socket_type, "iiii", self->family,
                                 self->type | SOCK_NONBLOCK, self->proto,
                                 self->fd.number);
}

void
fnet_socket_raw_done(PyObject *raw)
{
    if (raw == NULL) {
        return;
    }
    PyObject *exc = fnet_err_take();
    Py_XDECREF(PyObject_CallMethod(raw, "detach", NULL));
    PyErr_Clear();
    fnet_err_restore(exc);
    Py_DECREF(raw);
}

static PyObject *
socket_get_timeout(SocketObject *self, void *unused)
{
    return fnet_socket_gettimeout(self, NULL);
}

static PyObject *
socket_get_closed(SocketObject *self, void *unused)
{
    return PyBool_FromLong(self->closed);
}

static PyObject *
socket_get_ours(SocketObject *self, void *unused)
{
    return PyBool_FromLong(self->ours);
}

static PyObject *
socket_get_family(SocketObject *self, void *unused)
{
    return PyLong_FromLong(self->family);
}

static PyObject *
socket_get_type(SocketObject *self, void *unused)
{
    return PyLong_FromLong(self->type);
}

static PyObject *
socket_get_proto(SocketObject *self, void *unused)
{
    return PyLong_FromLong(self->proto);
}

static PyGetSetDef socket_getset[] = {
    {"_family", (getter)socket_get_family, NULL, "The family, an int.", NULL},
    {"_type", (getter)socket_get_type, NULL, "The type, an int.", NULL},
    {"proto", (getter)socket_get_proto, NULL, "The protocol, an int.", NULL},
    {"timeout", (getter)socket_get_timeout, NULL, "As gettimeout().", NULL},
    {"_ours", (getter)socket_get_ours, NULL, "It was made here.", NULL},
    {"_closed", (getter)socket_get_closed, NULL, "close() was called.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyMemberDef socket_members[] = {
    {"__weaklistoffset__", T_PYSSIZET, offsetof(SocketObject, weakrefs),
     READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyMethodDef socket_methods[] = {
    {"close", (PyCFunction)socket_close, METH_NOARGS,
     "Wakes every blocked call, which raise OSError (EBADF, \"closed\") as "
     "all\n"
     "later ones do; the descriptor is closed when the last one has left.\n"
     "Any thread, any number of times; does not wait.  Files over the socket\n"
     "keep it open until they are closed, as in the socket module."},
    {"_add_file", (PyCFunction)socket_add_file, METH_NOARGS,
     "One more file over it."},
    {"_drop_file", (PyCFunction)socket_drop_file, METH_NOARGS,
     "One file less."},
    {"detach", (PyCFunction)socket_detach, METH_NOARGS,
     "Ends the socket without closing the descriptor, which is returned: as\n"
     "close(), and waits until the blocked calls have left.  BufferError "
     "while\n"
     "bytes of an unfinished recv_exactly() are here."},
    {"fileno", (PyCFunction)socket_fileno, METH_NOARGS,
     "The descriptor; -1 once closed."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot socket_slots[] = {
    {Py_tp_doc, "The C half of pyfastnet.Socket."},
    {Py_tp_new, socket_new},
    {Py_tp_init, socket_init},
    {Py_tp_dealloc, socket_dealloc},
    {Py_tp_finalize, socket_finalize},
    {Py_tp_methods, socket_methods},
    {Py_tp_getset, socket_getset},
    {Py_tp_members, socket_members},
    {0, NULL},
};

PyType_Spec fnet_socket_spec = {
    .name = "pyfastnet._core.Socket",
    .basicsize = sizeof(SocketObject),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE,
    .slots = socket_slots,
};

/* The methods stand in several files. */
static int
add_methods(PyTypeObject *type, PyMethodDef *methods)
{
    for (; methods->ml_name != NULL; methods++) {
        PyObject *descriptor = PyDescr_NewMethod(type, methods);
        int rc = descriptor == NULL
                     ? -1
                     : PyObject_SetAttrString((PyObject *)type,
                                              methods->ml_name, descriptor);
        Py_XDECREF(descriptor);
        if (rc < 0) {
            return -1;
        }
    }
    return 0;
}

int
fnet_socket_add_types(PyObject *module, module_state *state)
{
    PyMethodDef *tables[] = {
        fnet_socket_io_methods,     fnet_socket_send_methods,
        fnet_socket_addr_methods,   fnet_socket_read_methods,
        fnet_socket_option_methods,
    };

    state->blocking_type = (PyTypeObject *)PyType_FromModuleAndSpec(
        module, &fnet_socket_spec, NULL);
    state->reader_type = (PyTypeObject *)PyType_FromModuleAndSpec(
        module, &fnet_reader_spec, NULL);
    if (state->blocking_type == NULL || state->reader_type == NULL) {
        return -1;
    }
    for (size_t i = 0; i < FNET_COUNTOF(tables); i++) {
        if (add_methods(state->blocking_type, tables[i]) < 0) {
            return -1;
        }
    }
    return PyModule_AddType(module, state->blocking_type) < 0 ||
                   PyModule_AddType(module, state->reader_type) < 0
               ? -1
               : 0;
}
