/* dgram: a datagram transport: its life and its methods.
 *
 * The rules are those of asyncio's selector transport, call for call; what
 * moves the datagrams is net/dgram.c.  A transport is kept alive by the loop
 * from its making to connection_lost(). */
#include "python/dgram.h"

#include <errno.h>
#include <netinet/in.h>

/* -- life --------------------------------------------------------------- */

static DatagramObject *
allocate(LoopObject *loop)
{
    PyTypeObject *type = loop->state->datagram_type;
    DatagramObject *self = (DatagramObject *)type->tp_alloc(type, 0);

    if (self != NULL) {
        fnet_list_init(&self->link);
        self->loop = (LoopObject *)Py_NewRef((PyObject *)loop);
        self->high = FNET_HIGH_WATER;
        self->low = FNET_HIGH_WATER / 4;
        self->retry_delay = FNET_RETRY_FIRST;
        self->fd = -1;
    }
    return self;
}

/* The core forgets the descriptor, which is closed next, or left open. */
static void
detach(DatagramObject *self)
{
    LoopObject *loop = self->loop;

    self->attached = false;
    fnet_list_remove(&self->link);
    /* The program has the socket, and may have duplicated it. */
    fnet_dgram_detach(&self->dgram, false);
    if ((size_t)self->fd < loop->nfds &&
        loop->fds[self->fd] == (PyObject *)self) {
        loop->fds[self->fd] = NULL;
    }
}

static void
close_socket(DatagramObject *self)
{
    PyObject *exc = PyErr_Occurred() ? fnet_err_take() : NULL;
    PyObject *sock;

    FNET_BEGIN_SHARED(self)
    sock = self->sock;
    self->sock = NULL;
    FNET_END_SHARED()
    if (sock != NULL) {
        PyObject *result =
            PyObject_CallMethodNoArgs(sock, self->loop->state->str_close);
        if (result == NULL) {
            PyErr_WriteUnraisable(sock);
        }
        Py_XDECREF(result);
        Py_DECREF(sock);
    }
    if (exc != NULL) {
        fnet_err_restore(exc);
    }
}

bool
fnet_datagram_uses_fd(PyObject *object)
{
    return !((DatagramObject *)object)->closing;
}

void
fnet_datagrams_abandon(LoopObject *loop)
{
    fnet_list *node;

    while ((node = loop->datagrams.next) != &loop->datagrams) {
        DatagramObject *self = fnet_container_of(node, DatagramObject, link);
        detach(self);
        self->orphan = true;
        Py_DECREF(self); /* the loop's */
    }
}

int
fnet_datagrams_traverse(LoopObject *loop, visitproc visit, void *arg)
{
    fnet_list *node;

    if (loop->datagrams.next != NULL) {
        fnet_list_foreach(node, &loop->datagrams)
        {
            Py_VISIT(fnet_container_of(node, DatagramObject, link));
        }
    }
    return 0;
}

/* Nobody closed it before its loop was closed: as asyncio's, it warns when it
 * goes, and closes then. */
static void
datagram_finalize(DatagramObject *self)
{
    if (!self->orphan) {
        return;
    }
    PyObject *exc = PyErr_Occurred() ? fnet_err_take() : NULL;
    self->orphan = false;
    if (PyErr_ResourceWarning((PyObject *)self, 1, "unclosed transport %R",
                              self) < 0) {
        PyErr_WriteUnraisable((PyObject *)self);
    }
    close_socket(self);
    self->closing = self->lost = true;
    if (exc != NULL) {
        fnet_err_restore(exc);
    }
}

static int
datagram_traverse(DatagramObject *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(self->extra);
    Py_VISIT(self->loop);
    Py_VISIT(self->protocol);
    Py_VISIT(self->context);
    Py_VISIT(self->sock);
    Py_VISIT(self->address);
    Py_VISIT(self->held);
    Py_VISIT(self->sent_object);
    return fnet_dgram_names_traverse(&self->names, visit, arg);
}

static int
datagram_clear(DatagramObject *self)
{
    Py_CLEAR(self->extra);
    Py_CLEAR(self->protocol);
    Py_CLEAR(self->context);
    Py_CLEAR(self->address);
    Py_CLEAR(self->held);
    Py_CLEAR(self->sent_object);
    fnet_dgram_names_clear(&self->names);
    return 0;
}

static void
datagram_dealloc(DatagramObject *self)
{
    PyTypeObject *type = Py_TYPE(self);

    if (FNET_UNLIKELY(self->orphan) &&
        PyObject_CallFinalizerFromDealloc((PyObject *)self) < 0) {
        return;
    }
    PyObject_GC_UnTrack(self);
    if (self->weakrefs != NULL) {
        PyObject_ClearWeakRefs((PyObject *)self);
    }
    fnet_assert(!self->attached);
    datagram_clear(self);
    Py_CLEAR(self->sock);
    Py_CLEAR(self->loop);
    type->tp_free((PyObject *)self);
    Py_DECREF(type);
}

/* -- making one --------------------------------------------------------- */

static unsigned
flags_of(int family, int type, int proto, bool connected)
{
    bool inet = family == AF_INET || family == AF_INET6;
    unsigned flags = 0;

    if (inet && type == SOCK_DGRAM && (proto == 0 || proto == IPPROTO_UDP)) {
        flags |= FNET_DGRAM_UDP;
    }
    if (!inet) {
        flags |= FNET_DGRAM_WIDE;
        flags |= connected ? 0 : (unsigned)FNET_DGRAM_NO_EDGE;
    }
    return flags;
}

static int
attach(DatagramObject *self, int fd, unsigned flags)
{
    LoopObject *loop = self->loop;
    PyObject **slot =
        fnet_loop_check(loop) < 0 ? NULL : fnet_loop_fd_slot(loop, fd);

    if (slot == NULL) {
        return -1;
    }
    if (*slot != NULL && Py_IS_TYPE(*slot, loop->state->listener_type)) {
        PyErr_Format(PyExc_RuntimeError,
                     "File descriptor %d is used by a server", fd);
        return -1;
    }
    if (*slot != NULL && Py_IS_TYPE(*slot, loop->state->watch_type)) {
        /* What sock_connect() and the like have kept of the socket. */
        WatchObject *watch = (WatchObject *)*slot;
        *slot = NULL;
        fnet_watch_drop(watch);
        Py_DECREF(watch);
    }
    int rc = fnet_dgram_attach(&self->dgram, &loop->home, fd, self, flags,
                               FNET_DGRAM_OVERHEAD);
    if (rc < 0) {
        fnet_raise(rc);
        return -1;
    }
    self->fd = fd;
    self->attached = true;
    loop->fds[fd] = (PyObject *)self;
    fnet_list_push(&loop->datagrams, &self->link);
    Py_INCREF(self); /* the loop's */
    return 0;
}

/* _make_datagram_endpoint(sock, protocol, address, waiter, extra, kind): kind
 * is (family, type, proto), extra what get_extra_info() answers. */
PyObject *
fnet_make_datagram_transport(LoopObject *loop, PyObject *args)
{
    PyObject *sock, *protocol, *address, *waiter, *extra;
    int family, type, proto;

    if (!PyArg_ParseTuple(args, "OOOOO!(iii)", &sock, &protocol, &address,
                          &waiter, &PyDict_Type, &extra, &family, &type,
                          &proto) ||
        fnet_loop_check(loop) < 0 || fnet_loop_check_thread(loop) < 0) {
        return NULL;
    }
    int fd = fnet_fileno(loop->state, sock);
    if (fd < 0 || fnet_ensure_no_transport(loop, fd, sock) < 0) {
        return NULL;
    }
    PyObject *peer = PyDict_GetItemWithError(extra, loop->state->str_peername);
    int has_name = peer == NULL ? 0 : PyObject_IsTrue(peer);
    DatagramObject *self =
        PyErr_Occurred() || has_name < 0 ? NULL : allocate(loop);
    if (self == NULL) {
        return NULL;
    }
    self->family = family;
    self->connected = peer != NULL && peer != Py_None;
    self->has_name = has_name != 0;
    self->extra = Py_NewRef(extra);
    self->protocol = Py_NewRef(protocol);
    self->sock = Py_NewRef(sock);
    int given = address == Py_None ? 0 : PyObject_IsTrue(address);
    self->address = given > 0 ? Py_NewRef(address) : NULL;
    self->context = PyContext_CopyCurrent();
    if (given < 0 || self->context == NULL ||
        attach(self, fd, flags_of(family, type, proto, self->connected)) < 0) {
        Py_DECREF(self);
        return NULL;
    }
    PyObject *method =
        PyObject_GetAttr((PyObject *)self, loop->state->str__start);
    PyObject *call[] = {waiter};
    if (fnet_loop_call_soon(loop, method, call, 1, NULL) < 0) {
        Py_CLEAR(self);
    }
    Py_XDECREF(method);
    return (PyObject *)self;
}

/* connection_made(), then reading, then the waiter: what asyncio schedules as
 * three callbacks. */
static PyObject *
datagram_start(DatagramObject *self, PyObject *waiter)
{
    module_state *state = self->loop->state;
    int rc = 0;

    if (self->attached) {
        rc = fnet_datagram_call(self, state->str_connection_made,
                                (PyObject *)self);
    }
    self->started = true;
    if (self->attached && !self->closing && !self->paused) {
        fnet_dgram_want(&self->dgram, true);
    }
    if (waiter != Py_None) {
        /* Also after a KeyboardInterrupt in connection_made(). */
        PyObject *exc = rc < 0 ? fnet_err_take() : NULL;
        if (fnet_report(state, "wake_waiter", "(O)", waiter) < 0) {
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

/* -- the way down ------------------------------------------------------- */

int
fnet_datagram_schedule_lost(DatagramObject *self, PyObject *exc)
{
    return fnet_schedule_lost(self->loop, (PyObject *)self, self->context,
                              exc);
}

static int
force_close(DatagramObject *self, PyObject *exc)
{
    if (self->conn_lost != 0 || !self->attached) {
        return 0;
    }
    fnet_dgram_drop(&self->dgram);
    self->closing = true;
    fnet_dgram_want(&self->dgram, false);
    Py_CLEAR(self->held);
    self->conn_lost++;
    return fnet_datagram_schedule_lost(self, exc);
}

int
fnet_datagram_fatal_error(DatagramObject *self, const char *message)
{
    PyObject *exc =
        fnet_take_fatal(self->loop, message, (PyObject *)self, self->protocol);
    int rc = exc == NULL ? -1 : force_close(self, exc);
    Py_XDECREF(exc);
    return rc;
}

static int
close_gently(DatagramObject *self)
{
    if (self->orphan && !self->closing) {
        self->closing = true;
        return fnet_loop_check(self->loop);
    }
    if (self->closing || !self->attached) {
        return 0;
    }
    self->closing = true;
    fnet_dgram_want(&self->dgram, false);
    Py_CLEAR(self->held);
    uint32_t left;
    int reported;
    do {
        /* asyncio would have told of errors when it was told to send. */
        left = fnet_dgram_flush(&self->dgram, NULL);
        reported = fnet_datagram_report_errors(self);
        if (!self->attached || self->conn_lost != 0) {
            return reported < 0 ? -1 : 0; /* error_received() has aborted it */
        }
    } while (left > 0 && reported > 0);
    if (left > 0 || reported < 0) {
        fnet_dgram_notify(&self->dgram, 0); /* goes on in on_output() */
        return reported < 0 ? -1 : 0;
    }
    self->conn_lost++;
    return fnet_datagram_schedule_lost(self, NULL);
}

/* connection_lost(), and everything is let go of.  What the protocol raises
 * is for the caller to report. */
static int
lose(DatagramObject *self, PyObject *exc)
{
    if (self->lost) {
        return 0;
    }
    self->lost = self->closing = true;
    Py_INCREF(self);
    PyObject *result =
        fnet_call_connection_lost(self->loop, self->protocol, exc);
    bool attached = self->attached;
    if (attached) {
        detach(self);
        close_socket(self);
    }
    int rc = result == NULL ? -1 : 0;
    PyObject *raised = result == NULL ? fnet_err_take() : NULL;
    Py_XDECREF(result);
    fnet_shared_set((PyObject *)self, &self->protocol, NULL);
    Py_CLEAR(self->held);
    if (attached) {
        Py_DECREF(self); /* the loop's */
    }
    if (raised != NULL) {
        fnet_err_restore(raised);
    }
    Py_DECREF(self);
    return rc;
}

/* -- methods ------------------------------------------------------------ */

static int
check_thread(DatagramObject *self)
{
    return fnet_loop_check_thread(self->loop);
}

static PyObject *
none_or_error(int rc)
{
    if (rc < 0) {
        return NULL;
    }
    Py_RETURN_NONE;
}

static PyObject *
datagram_call_connection_lost(DatagramObject *self, PyObject *exc)
{
    return none_or_error(lose(self, exc));
}

static PyObject *
datagram_close(DatagramObject *self, PyObject *unused)
{
    return none_or_error(check_thread(self) < 0 ? -1 : close_gently(self));
}

static PyObject *
datagram_abort(DatagramObject *self, PyObject *unused)
{
    return none_or_error(check_thread(self) < 0 ? -1
                                                : force_close(self, NULL));
}

static PyObject *
datagram_force_close(DatagramObject *self, PyObject *exc)
{
    if (check_thread(self) < 0) {
        return NULL;
    }
    return none_or_error(force_close(self, exc == Py_None ? NULL : exc));
}

static PyObject *
datagram_is_closing(DatagramObject *self, PyObject *unused)
{
    return PyBool_FromLong(self->closing);
}

static PyObject *
datagram_is_reading(DatagramObject *self, PyObject *unused)
{
    return PyBool_FromLong(!self->closing && !self->paused);
}

static PyObject *
datagram_pause_reading(DatagramObject *self, PyObject *unused)
{
    if (check_thread(self) < 0) {
        return NULL;
    }
    if (!self->closing && !self->paused && self->attached) {
        self->paused = true;
        fnet_dgram_want(&self->dgram, false);
    }
    Py_RETURN_NONE;
}

static PyObject *
datagram_resume_reading(DatagramObject *self, PyObject *unused)
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
        return none_or_error(fnet_datagram_schedule_held(self));
    }
    if (self->started) {
        fnet_dgram_want(&self->dgram, true);
    }
    Py_RETURN_NONE;
}

static PyObject *
datagram_get_protocol(DatagramObject *self, PyObject *unused)
{
    PyObject *protocol = fnet_shared_get((PyObject *)self, &self->protocol);
    return protocol != NULL ? protocol : Py_NewRef(Py_None);
}

static PyObject *
datagram_set_protocol(DatagramObject *self, PyObject *protocol)
{
    if (check_thread(self) < 0) {
        return NULL;
    }
    fnet_shared_set((PyObject *)self, &self->protocol, Py_NewRef(protocol));
    Py_RETURN_NONE;
}

static PyObject *
datagram_get_write_buffer_size(DatagramObject *self, PyObject *unused)
{
    size_t bytes = 0;

    if (check_thread(self) < 0) {
        return NULL;
    }
    if (self->attached) {
        /* What waits for the end of the turn only is not "buffered": asyncio
         * would have sent it. */
        (void)fnet_dgram_flush(&self->dgram, &bytes);
    }
    return PyLong_FromSize_t(bytes);
}

static PyObject *
datagram_get_write_buffer_limits(DatagramObject *self, PyObject *unused)
{
    return Py_BuildValue("(nn)", (Py_ssize_t)self->low,
                         (Py_ssize_t)self->high);
}

static PyObject *
datagram_set_write_buffer_limits(DatagramObject *self, PyObject *args,
                                 PyObject *kwargs)
{
    if (check_thread(self) < 0 ||
        fnet_parse_water_marks(args, kwargs, &self->high, &self->low) < 0) {
        return NULL;
    }
    if (self->attached) {
        if (fnet_datagram_maybe_pause(self) < 0) {
            return NULL;
        }
        if (self->attached && self->protocol_paused && !self->closing) {
            fnet_dgram_notify(&self->dgram, self->low);
        }
    }
    Py_RETURN_NONE;
}

static PyObject *
datagram_repr(DatagramObject *self)
{
    return fnet_transport_text((PyObject *)self, self->attached, self->closing,
                               self->paused, self->fd);
}

static PyObject *
datagram_get_field(DatagramObject *self, void *which)
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
    case 'P':
        field = &self->protocol;
        break;
    case 'a':
        field = &self->address;
        break;
    case 'f':
        return PyLong_FromLong(self->attached ? self->fd : -1);
    default:
        return PyLong_FromUnsignedLong(self->conn_lost);
    }
    PyObject *object = fnet_shared_get((PyObject *)self, field);
    return object != NULL ? object : Py_NewRef(Py_None);
}

static PyGetSetDef datagram_getset[] = {
    {"_paused", (getter)datagram_get_field, NULL, NULL, "p"},
    {"_closing", (getter)datagram_get_field, NULL, NULL, "c"},
    {"_loop", (getter)datagram_get_field, NULL, NULL, "l"},
    {"_sock", (getter)datagram_get_field, NULL, NULL, "s"},
    {"_sock_fd", (getter)datagram_get_field, NULL, NULL, "f"},
    {"_protocol", (getter)datagram_get_field, NULL, NULL, "P"},
    {"_address", (getter)datagram_get_field, NULL, NULL, "a"},
    {"_conn_lost", (getter)datagram_get_field, NULL, NULL, "n"},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyMemberDef datagram_members[] = {
    {"__weaklistoffset__", T_PYSSIZET, offsetof(DatagramObject, weakrefs),
     READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyMethodDef datagram_methods[] = {
    {"sendto", (PyCFunction)(void (*)(void))fnet_datagram_sendto,
     METH_FASTCALL | METH_KEYWORDS,
     "sendto(data, addr=None)\n--\n\n"
     "Send a datagram: at once, or with the turn's others, within 2 ms."},
    {"close", (PyCFunction)datagram_close, METH_NOARGS,
     "Close once everything is sent; nothing is received any more."},
    {"abort", (PyCFunction)datagram_abort, METH_NOARGS,
     "Close at once; what was not sent is dropped."},
    {"is_closing", (PyCFunction)datagram_is_closing, METH_NOARGS,
     "True once the transport is closing or closed."},
    {"is_reading", (PyCFunction)datagram_is_reading, METH_NOARGS,
     "True while datagrams are received."},
    {"pause_reading", (PyCFunction)datagram_pause_reading, METH_NOARGS,
     "Receive nothing until resume_reading()."},
    {"resume_reading", (PyCFunction)datagram_resume_reading, METH_NOARGS,
     "Receive again."},
    {"get_protocol", (PyCFunction)datagram_get_protocol, METH_NOARGS,
     "The protocol; None once the endpoint was closed."},
    {"set_protocol", (PyCFunction)datagram_set_protocol, METH_O,
     "Deliver to another protocol from now on."},
    {"get_write_buffer_size", (PyCFunction)datagram_get_write_buffer_size,
     METH_NOARGS,
     "Bytes of the datagrams that the socket had no room for; from Python "
     "3.13 on, and 8 for each."},
    {"get_write_buffer_limits", (PyCFunction)datagram_get_write_buffer_limits,
     METH_NOARGS, "The water marks (low, high), in bytes."},
    {"set_write_buffer_limits",
     (PyCFunction)(void (*)(void))datagram_set_write_buffer_limits,
     METH_VARARGS | METH_KEYWORDS, "Set the water marks, in bytes."},
    {"_force_close", (PyCFunction)datagram_force_close, METH_O, NULL},
    {"_call_connection_lost", (PyCFunction)datagram_call_connection_lost,
     METH_O, NULL},
    {"_start", (PyCFunction)datagram_start, METH_O, NULL},
    {"_retry", (PyCFunction)fnet_datagram_retry, METH_NOARGS, NULL},
    {"_deliver_held", (PyCFunction)fnet_datagram_deliver_held, METH_NOARGS,
     NULL},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot datagram_slots[] = {
    {Py_tp_doc, "A datagram transport; see asyncio.DatagramTransport."},
    {Py_tp_finalize, datagram_finalize},
    {Py_tp_dealloc, datagram_dealloc},
    {Py_tp_traverse, datagram_traverse},
    {Py_tp_clear, datagram_clear},
    {Py_tp_repr, datagram_repr},
    {Py_tp_methods, datagram_methods},
    {Py_tp_members, datagram_members},
    {Py_tp_getset, datagram_getset},
    {0, NULL},
};

PyType_Spec fnet_datagram_spec = {
    .name = "pyfastnet._core.DatagramTransport",
    .basicsize = sizeof(DatagramObject),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC |
             Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = datagram_slots,
};
