/* transport_api: a transport's methods, and its type. */
#include "python/module.h"

#include "net/pipe.h"

#include <netinet/in.h>
#include <netinet/tcp.h>

static int
check_thread(TransportObject *self)
{
    return fnet_loop_check_thread(self->loop);
}

static PyObject *
transport_call_connection_lost(TransportObject *self, PyObject *exc)
{
    if (fnet_transport_lost(self, exc) < 0) {
        return NULL;
    }
    Py_RETURN_NONE;
}

static PyObject *
transport_close(TransportObject *self, PyObject *unused)
{
    if (check_thread(self) < 0 || fnet_transport_close(self) < 0) {
        return NULL;
    }
    Py_RETURN_NONE;
}

static PyObject *
transport_abort(TransportObject *self, PyObject *unused)
{
    if (check_thread(self) < 0 || fnet_transport_force_close(self, NULL) < 0) {
        return NULL;
    }
    Py_RETURN_NONE;
}

static PyObject *
transport_force_close(TransportObject *self, PyObject *exc)
{
    if (check_thread(self) < 0 ||
        fnet_transport_force_close(self, exc == Py_None ? NULL : exc) < 0) {
        return NULL;
    }
    Py_RETURN_NONE;
}

static PyObject *
transport_is_closing(TransportObject *self, PyObject *unused)
{
    return PyBool_FromLong(self->closing);
}

static PyObject *
transport_is_reading(TransportObject *self, PyObject *unused)
{
    return PyBool_FromLong(!self->closing && !self->paused);
}

static PyObject *
transport_pause_reading(TransportObject *self, PyObject *unused)
{
    if (check_thread(self) < 0) {
        return NULL;
    }
    if (!self->closing && !self->paused && self->attached) {
        self->paused = true;
        fnet_stream_want(&self->stream, false);
    }
    Py_RETURN_NONE;
}

static PyObject *
transport_resume_reading(TransportObject *self, PyObject *unused)
{
    if (check_thread(self) < 0) {
        return NULL;
    }
    if (self->closing || !self->paused || !self->attached) {
        Py_RETURN_NONE;
    }
    self->paused = false;
    if (self->held != NULL) {
        /* In a turn of its own: never from within this call. */
        PyObject *method = PyObject_GetAttr(
            (PyObject *)self, self->loop->state->str__deliver_held);
        int rc = fnet_loop_call_soon(self->loop, method, NULL, 0, NULL);
        Py_XDECREF(method);
        if (rc < 0) {
            return NULL;
        }
    }
    else if (self->started) {
        fnet_stream_want(&self->stream, true);
    }
    Py_RETURN_NONE;
}

static PyObject *
transport_write_eof(TransportObject *self, PyObject *unused)
{
    if (check_thread(self) < 0) {
        return NULL;
    }
    if (!self->closing && !self->eof_written && self->attached) {
        self->eof_written = true;
        fnet_stream_shutdown(&self->stream);
    }
    Py_RETURN_NONE;
}

static PyObject *
transport_can_write_eof(TransportObject *self, PyObject *unused)
{
    Py_RETURN_TRUE;
}

static PyObject *
transport_get_protocol(TransportObject *self, PyObject *unused)
{
    PyObject *protocol = fnet_shared_get((PyObject *)self, &self->protocol);
    return protocol != NULL ? protocol : Py_NewRef(Py_None);
}

/* A BufferedProtocol; or, as for uvloop, one that has its methods and is no
 * Protocol. */
static int
is_buffered(module_state *state, PyObject *protocol)
{
    int yes = PyObject_IsInstance(protocol, state->buffered_type);

    if (yes == 0 &&
        !PyObject_TypeCheck(protocol, (PyTypeObject *)state->protocol_type)) {
        PyObject *method = PyObject_GetAttr(protocol, state->str_get_buffer);
        yes = method != NULL ? 1 : fnet_must_propagate() ? -1 : 0;
        if (yes == 0) {
            PyErr_Clear();
        }
        Py_XDECREF(method);
    }
    return yes;
}

int
fnet_transport_set_protocol(TransportObject *self, PyObject *protocol)
{
    int buffered = is_buffered(self->loop->state, protocol);

    if (buffered < 0) {
        return -1;
    }
    self->buffered = buffered != 0 && self->pipe != FNET_PIPE_WRITE;
    fnet_shared_set((PyObject *)self, &self->protocol, Py_NewRef(protocol));
    if (self->attached) {
        fnet_stream_set_direct(&self->stream, self->buffered);
    }
    return 0;
}

static PyObject *
transport_set_protocol(TransportObject *self, PyObject *protocol)
{
    if (check_thread(self) < 0 ||
        fnet_transport_set_protocol(self, protocol) < 0) {
        return NULL;
    }
    Py_RETURN_NONE;
}

static PyObject *
transport_get_write_buffer_size(TransportObject *self, PyObject *unused)
{
    size_t left = 0;

    if (check_thread(self) < 0) {
        return NULL;
    }
    if (self->attached) {
        /* What waits for the end of the turn only is not "buffered": asyncio
         * would have sent it. */
        left = fnet_stream_flush(&self->stream);
    }
    return PyLong_FromSize_t(left);
}

static PyObject *
transport_get_write_buffer_limits(TransportObject *self, PyObject *unused)
{
    return Py_BuildValue("(nn)", (Py_ssize_t)self->low,
                         (Py_ssize_t)self->high);
}

static int
optional_size(PyObject *object, bool *given, Py_ssize_t *out)
{
    *given = object != Py_None;
    if (*given) {
        *out = PyNumber_AsSsize_t(object, PyExc_OverflowError);
        if (*out == -1 && PyErr_Occurred()) {
            return -1;
        }
    }
    return 0;
}

int
fnet_parse_water_marks(PyObject *args, PyObject *kwargs, size_t *high_mark,
                       size_t *low_mark)
{
    static char *names[] = {"high", "low", NULL};
    PyObject *high_object = Py_None, *low_object = Py_None;
    bool has_high, has_low;
    Py_ssize_t high = (Py_ssize_t)FNET_HIGH_WATER, low = 0;

    if (!PyArg_ParseTupleAndKeywords(args, kwargs,
                                     "|OO:set_write_buffer_limits", names,
                                     &high_object, &low_object) ||
        optional_size(low_object, &has_low, &low) < 0 ||
        optional_size(high_object, &has_high, &high) < 0) {
        return -1;
    }
    if (!has_high && has_low) {
        high = low > PY_SSIZE_T_MAX / 4 ? PY_SSIZE_T_MAX : 4 * low;
    }
    if (!has_low) {
        low = high / 4;
    }
    if (low < 0 || high < low) {
        PyErr_Format(PyExc_ValueError,
                     "high (%zd) must be >= low (%zd) must be >= 0", high,
                     low);
        return -1;
    }
    *high_mark = (size_t)high;
    *low_mark = (size_t)low;
    return 0;
}

static PyObject *
transport_set_write_buffer_limits(TransportObject *self, PyObject *args,
                                  PyObject *kwargs)
{
    if (check_thread(self) < 0 ||
        fnet_parse_water_marks(args, kwargs, &self->high, &self->low) < 0) {
        return NULL;
    }
    if (self->attached) {
        size_t left = fnet_stream_flush(&self->stream);
        if (fnet_transport_maybe_pause(self, left) < 0) {
            return NULL;
        }
        if (self->protocol_paused) {
            fnet_stream_notify(&self->stream, self->low);
        }
    }
    Py_RETURN_NONE;
}

static PyObject *
transport_get_extra_info(TransportObject *self, PyObject *args,
                         PyObject *kwargs)
{
    static char *names[] = {"name", "default", NULL};
    PyObject *name, *otherwise = Py_None;

    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O|O:get_extra_info", names,
                                     &name, &otherwise)) {
        return NULL;
    }
    PyObject *value;
    FNET_BEGIN_SHARED(self)
    value = fnet_transport_extra(self, name, otherwise);
    FNET_END_SHARED()
    return value;
}

/* -- sendfile's way in -------------------------------------------------- */

static PyObject *
transport_make_empty_waiter(TransportObject *self, PyObject *unused)
{
    if (check_thread(self) < 0) {
        return NULL;
    }
    if (self->empty_waiter != NULL) {
        PyErr_SetString(PyExc_RuntimeError, "Empty waiter is already set");
        return NULL;
    }
    PyObject *future = fnet_loop_create_future(self->loop);
    if (future == NULL) {
        return NULL;
    }
    if (!self->attached || fnet_stream_flush(&self->stream) == 0) {
        PyObject *result = PyObject_CallMethodOneArg(
            future, self->loop->state->str_set_result, Py_None);
        if (result == NULL) {
            Py_DECREF(future);
            return NULL;
        }
        Py_DECREF(result);
    }
    else {
        fnet_stream_notify(&self->stream, 0);
    }
    self->empty_waiter = Py_NewRef(future);
    return future;
}

static PyObject *
transport_reset_empty_waiter(TransportObject *self, PyObject *unused)
{
    Py_CLEAR(self->empty_waiter);
    Py_RETURN_NONE;
}

/* connection_made(), then reading, then the waiter: what asyncio schedules as
 * three callbacks. */
static PyObject *
transport_start(TransportObject *self, PyObject *waiter)
{
    int rc = self->attached ? fnet_transport_start(self) : 0;

    if (waiter != Py_None) {
        /* Also after a KeyboardInterrupt in connection_made(). */
        PyObject *exc = rc < 0 ? fnet_err_take() : NULL;
        if (fnet_report(self->loop->state, "wake_waiter", "(O)", waiter) < 0) {
            rc = -1;
        }
        if (exc != NULL) {
            PyErr_Clear();
            fnet_err_restore(exc);
        }
    }
    if (rc < 0) {
        return NULL;
    }
    Py_RETURN_NONE;
}

PyObject *
fnet_make_socket_transport(LoopObject *loop, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"sock",  "protocol", "waiter",
                            "extra", "server",   NULL};
    PyObject *sock, *protocol, *waiter = Py_None, *extra = Py_None,
                               *server = Py_None;

    if (!PyArg_ParseTupleAndKeywords(
            args, kwargs, "OO|O$OO:_make_socket_transport", names, &sock,
            &protocol, &waiter, &extra, &server) ||
        fnet_loop_check(loop) < 0 || fnet_loop_check_thread(loop) < 0) {
        return NULL;
    }
    int fd = fnet_fileno(loop->state, sock);
    if (fd < 0 || fnet_ensure_no_transport(loop, fd, sock) < 0) {
        return NULL;
    }
    int own_calls = fnet_has_own_calls(loop->state, sock);
    if (FNET_UNLIKELY(own_calls != 0)) {
        return own_calls < 0 ? NULL
                             : PyObject_CallMethod((PyObject *)loop,
                                                   "_make_own_calls_transport",
                                                   "OOOOO", sock, protocol,
                                                   waiter, extra, server);
    }
    PyObject *family = PyObject_GetAttr(sock, loop->state->str_family);
    if (family == NULL) {
        return NULL;
    }
    int af = (int)PyLong_AsLong(family);
    Py_DECREF(family);
    PyObject *context = PyContext_CopyCurrent();
    if ((af == -1 && PyErr_Occurred()) || context == NULL) {
        Py_XDECREF(context);
        return NULL;
    }
    if (af == AF_INET || af == AF_INET6) {
        (void)fnet_sys_set_int(fd, IPPROTO_TCP, TCP_NODELAY, 1);
    }
    TransportObject *self =
        fnet_transport_new(loop, fd, sock, protocol, context, af, server);
    if (self != NULL && extra != Py_None && PyDict_Check(extra)) {
        self->extra = PyDict_Copy(extra);
    }
    if (self != NULL && fnet_transport_learn_names(self) < 0) {
        PyErr_Clear();
    }
    if (self != NULL) {
        PyObject *method =
            PyObject_GetAttr((PyObject *)self, loop->state->str__start);
        PyObject *call[] = {waiter};
        if (fnet_loop_call_soon(loop, method, call, 1, NULL) < 0) {
            Py_CLEAR(self);
        }
        Py_XDECREF(method);
    }
    Py_DECREF(context);
    return (PyObject *)self;
}

static PyObject *
transport_repr(TransportObject *self)
{
    return fnet_transport_text((PyObject *)self, self->attached, self->closing,
                               self->paused, self->fd);
}

static PyObject *
transport_get_field(TransportObject *self, void *which)
{
    PyObject **field = NULL;

    switch (*(const char *)which) {
    case 'p':
        return PyBool_FromLong(self->paused);
    case 'c':
        return PyBool_FromLong(self->closing);
    case 'l':
        return Py_NewRef((PyObject *)self->loop);
    case 's':
        field = &self->sock;
        break;
    case 'S':
        field = &self->server;
        break;
    case 'P':
        field = &self->protocol;
        break;
    case 'f':
        return PyLong_FromLong(self->attached ? self->fd : -1);
    default:
        return PyLong_FromUnsignedLong(self->conn_lost);
    }
    PyObject *object = fnet_shared_get((PyObject *)self, field);
    return object != NULL ? object : Py_NewRef(Py_None);
}

static PyGetSetDef transport_getset[] = {
    {"_paused", (getter)transport_get_field, NULL, NULL, "p"},
    {"_closing", (getter)transport_get_field, NULL, NULL, "c"},
    {"_loop", (getter)transport_get_field, NULL, NULL, "l"},
    {"_sock", (getter)transport_get_field, NULL, NULL, "s"},
    {"_sock_fd", (getter)transport_get_field, NULL, NULL, "f"},
    {"_server", (getter)transport_get_field, NULL, NULL, "S"},
    {"_protocol", (getter)transport_get_field, NULL, NULL, "P"},
    {"_conn_lost", (getter)transport_get_field, NULL, NULL, "n"},
    /* Programs hang their own things on transports, and tests replace their
     * methods, as on asyncio's. */
    {"__dict__", PyObject_GenericGetDict, PyObject_GenericSetDict, NULL, NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyMemberDef transport_members[] = {
    {"__weaklistoffset__", T_PYSSIZET, offsetof(TransportObject, weakrefs),
     READONLY, NULL},
    {"__dictoffset__", T_PYSSIZET, offsetof(TransportObject, dict), READONLY,
     NULL},
    {NULL, 0, 0, 0, NULL},
};

#define WITH_KEYWORDS(function)                                               \
    (PyCFunction)(void (*)(void))(function), METH_VARARGS | METH_KEYWORDS

PyMethodDef fnet_transport_methods[] = {
    {"write", (PyCFunction)fnet_transport_write, METH_O,
     "Send bytes: at once, or with the turn's other output, within 2 ms."},
    {"writelines", (PyCFunction)fnet_transport_writelines, METH_O,
     "Send an iterable of bytes-like objects in one call."},
    {"write_eof", (PyCFunction)transport_write_eof, METH_NOARGS,
     "Close the sending side once everything is sent."},
    {"can_write_eof", (PyCFunction)transport_can_write_eof, METH_NOARGS,
     "True."},
    {"close", (PyCFunction)transport_close, METH_NOARGS,
     "Close once everything is sent; nothing is received any more."},
    {"abort", (PyCFunction)transport_abort, METH_NOARGS,
     "Close at once; what was not sent is dropped."},
    {"is_closing", (PyCFunction)transport_is_closing, METH_NOARGS,
     "True once the transport is closing or closed."},
    {"is_reading", (PyCFunction)transport_is_reading, METH_NOARGS,
     "True while data is received."},
    {"pause_reading", (PyCFunction)transport_pause_reading, METH_NOARGS,
     "Receive nothing until resume_reading()."},
    {"resume_reading", (PyCFunction)transport_resume_reading, METH_NOARGS,
     "Receive again."},
    {"get_protocol", (PyCFunction)transport_get_protocol, METH_NOARGS,
     "The protocol; None once the connection was lost."},
    {"set_protocol", (PyCFunction)transport_set_protocol, METH_O,
     "Deliver to another protocol from now on."},
    {"get_extra_info", WITH_KEYWORDS(transport_get_extra_info),
     "What is known of the connection: socket, sockname, peername."},
    {"get_write_buffer_size", (PyCFunction)transport_get_write_buffer_size,
     METH_NOARGS, "Bytes that the socket had no room for."},
    {"get_write_buffer_limits", (PyCFunction)transport_get_write_buffer_limits,
     METH_NOARGS, "The water marks (low, high), in bytes."},
    {"set_write_buffer_limits",
     WITH_KEYWORDS(transport_set_write_buffer_limits),
     "Set the water marks, in bytes."},
    {"_force_close", (PyCFunction)transport_force_close, METH_O, NULL},
    {"_call_connection_lost", (PyCFunction)transport_call_connection_lost,
     METH_O, NULL},
    {"_make_empty_waiter", (PyCFunction)transport_make_empty_waiter,
     METH_NOARGS, NULL},
    {"_reset_empty_waiter", (PyCFunction)transport_reset_empty_waiter,
     METH_NOARGS, NULL},
    {"_start", (PyCFunction)transport_start, METH_O, NULL},
    {"_deliver_held", (PyCFunction)fnet_transport_deliver_held, METH_NOARGS,
     NULL},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot transport_slots[] = {
    {Py_tp_doc, "A TCP or Unix stream transport; see asyncio.Transport."},
    {Py_tp_finalize, fnet_transport_finalize},
    {Py_tp_dealloc, fnet_transport_dealloc},
    {Py_tp_traverse, fnet_transport_traverse},
    {Py_tp_clear, fnet_transport_clear},
    {Py_tp_repr, transport_repr},
    {Py_tp_methods, fnet_transport_methods},
    {Py_tp_members, transport_members},
    {Py_tp_getset, transport_getset},
    {0, NULL},
};

PyType_Spec fnet_transport_spec = {
    .name = "pyfastnet._core.Transport",
    .basicsize = sizeof(TransportObject),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC |
             Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = transport_slots,
};
