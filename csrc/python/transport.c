/* transport: a TCP or Unix stream transport: its life and its methods.
 *
 * The rules are those of asyncio's selector transport, call for call; what
 * moves the bytes is net/stream.c.  transport_io.c has the hot half: writing
 * and delivering.  A transport is kept alive by the loop from its making to
 * connection_lost(). */
#include "python/module.h"

#include <errno.h>

#define HIGH_WATER ((size_t)64 * 1024)

/* -- life ---------------------------------------------------------------------- */

static TransportObject *
allocate(LoopObject *loop)
{
    PyTypeObject *type = loop->state->transport_type;
    TransportObject *self = (TransportObject *)type->tp_alloc(type, 0);

    if (self != NULL) {
        fnet_list_init(&self->link);
        fnet_list_init(&self->conn_link);
        self->loop = (LoopObject *)Py_NewRef((PyObject *)loop);
        self->high = HIGH_WATER;
        self->low = HIGH_WATER / 4;
        self->fd = -1;
    }
    return self;
}

static int
join_server(TransportObject *self, PyObject *server)
{
    module_state *state = self->loop->state;

    if (server == NULL || server == Py_None) {
        return 0;
    }
    PyObject *clients = PyObject_GetAttr(server, state->str__clients);
    if (clients != NULL && Py_IS_TYPE(clients, state->connset_type)) {
        fnet_connset_link((ConnSetObject *)clients, self);
        Py_DECREF(clients);
        self->server = Py_NewRef(server);
        return 0;
    }
    Py_XDECREF(clients);
    PyErr_Clear();
    /* A server of asyncio's: up to 3.12 it only counts. */
#if PY_VERSION_HEX >= 0x030D0000
    PyObject *result =
        PyObject_CallMethodOneArg(server, state->str__attach, (PyObject *)self);
#else
    PyObject *result = PyObject_CallMethodNoArgs(server, state->str__attach);
#endif
    if (result == NULL) {
        return -1;
    }
    Py_DECREF(result);
    self->server = Py_NewRef(server);
    return 0;
}

static int
leave_server(TransportObject *self)
{
    module_state *state = self->loop->state;
    PyObject *server = self->server;
    PyObject *result = NULL;

    self->server = NULL;
    if (server == NULL) {
        return 0;
    }
    if (self->conns != NULL) {
        ConnSetObject *set = (ConnSetObject *)Py_NewRef(
            (PyObject *)self->conns);
        fnet_connset_unlink(self);
        PyObject *sockets = Py_NewRef(Py_None);
        if (PyObject_Length((PyObject *)set) == 0) {
            Py_SETREF(sockets, PyObject_GetAttr(server, state->str__sockets));
            if (sockets == Py_None) {
                result =
                    PyObject_CallMethodNoArgs(server, state->str__wakeup);
            }
        }
        Py_XDECREF(sockets);
        Py_DECREF(set);
    }
    else {
#if PY_VERSION_HEX >= 0x030D0000
        result = PyObject_CallMethodOneArg(server, state->str__detach,
                                           (PyObject *)self);
#else
        result = PyObject_CallMethodNoArgs(server, state->str__detach);
#endif
    }
    Py_XDECREF(result);
    Py_DECREF(server);
    return PyErr_Occurred() ? -1 : 0;
}

/* The number can be a transport's.  After what runs Python: that may have
 * closed the loop, and it may move the table. */
static int
check_number(LoopObject *loop, int fd)
{
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
    return 0;
}

TransportObject *
fnet_transport_new(LoopObject *loop, int fd, PyObject *sock,
                   PyObject *protocol, PyObject *context, int family,
                   PyObject *server)
{
    TransportObject *self = allocate(loop);

    if (self == NULL) {
        return NULL;
    }
    self->context = Py_NewRef(context);
    if (fnet_transport_set_protocol(self, protocol) < 0 ||
        check_number(loop, fd) < 0) {
        goto fail;
    }
    int rc = fnet_stream_attach(&self->stream, &loop->home, fd, self,
                                family == AF_UNIX);
    if (rc < 0) {
        fnet_raise(rc);
        goto fail;
    }
    fnet_stream_set_direct(&self->stream, self->buffered);
    if (join_server(self, server) < 0) {
        fnet_stream_detach(&self->stream, false);
        goto fail;
    }
    PyObject *before = loop->fds[fd];
    if (before != NULL && Py_IS_TYPE(before, loop->state->watch_type)) {
        /* What sock_connect() and the like have kept of the socket. */
        WatchObject *watch = (WatchObject *)before;
        loop->fds[fd] = NULL;
        fnet_poller_detach(&loop->home.poller, &watch->watch.source, true);
        fnet_watch_drop(watch);
        Py_DECREF(watch);
    }
    self->sock = Py_XNewRef(sock);
    self->exposed = sock != NULL;
    self->fd = fd;
    self->family = family;
    self->attached = true;
    loop->fds[fd] = (PyObject *)self;
    fnet_list_push(&loop->transports, &self->link);
    Py_INCREF(self); /* the loop's */
    return self;

fail:
    Py_DECREF(self);
    return NULL;
}

/* The core forgets the descriptor, which is closed next, or left open. */
static void
detach_stream(TransportObject *self, bool closing)
{
    LoopObject *loop = self->loop;

    fnet_transport_keep_names(self);
    self->attached = false;
    fnet_list_remove(&self->link);
    fnet_stream_detach(&self->stream, closing && !self->exposed);
    if ((size_t)self->fd < loop->nfds &&
        loop->fds[self->fd] == (PyObject *)self) {
        loop->fds[self->fd] = NULL;
    }
}

static void
close_descriptor(TransportObject *self)
{
    PyObject *exc = PyErr_Occurred() ? fnet_err_take() : NULL;
    if (self->sock != NULL) {
        PyObject *result = PyObject_CallMethodNoArgs(
            self->sock, self->loop->state->str_close);
        if (result == NULL) {
            PyErr_WriteUnraisable(self->sock);
        }
        Py_XDECREF(result);
        Py_CLEAR(self->sock);
    }
    else if (self->view == NULL || fnet_sockview_detach(self->view)) {
        fnet_sys_close(self->fd);
    }
    if (exc != NULL) {
        fnet_err_restore(exc);
    }
}

/* The descriptor is let go of, once. */
static void
close_fd(TransportObject *self)
{
    if (self->attached) {
        detach_stream(self, true);
        close_descriptor(self);
    }
}

void
fnet_transport_abandon(TransportObject *self)
{
    if (self->attached) {
        detach_stream(self, false);
        self->orphan = true;
        Py_DECREF(self); /* the loop's */
    }
}

/* Nobody closed it before its loop was closed: as asyncio's, it warns when it
 * goes, and closes then. */
static void
transport_finalize(TransportObject *self)
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
    close_descriptor(self);
    if (leave_server(self) < 0) {
        PyErr_WriteUnraisable((PyObject *)self);
    }
    self->closing = self->lost = true;
    if (exc != NULL) {
        fnet_err_restore(exc);
    }
}

static int
transport_traverse(TransportObject *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(self->extra);
    Py_VISIT(self->loop);
    Py_VISIT(self->protocol);
    Py_VISIT(self->context);
    Py_VISIT(self->sock);
    Py_VISIT(self->view);
    Py_VISIT(self->server);
    Py_VISIT(self->conns);
    Py_VISIT(self->held);
    Py_VISIT(self->empty_waiter);
    Py_VISIT(self->room_waiter);
    Py_VISIT(self->sockname);
    Py_VISIT(self->peername);
    return 0;
}

static int
transport_clear(TransportObject *self)
{
    Py_CLEAR(self->extra);
    Py_CLEAR(self->protocol);
    Py_CLEAR(self->context);
    if (!self->attached) {
        Py_CLEAR(self->view); /* else it is told when the descriptor goes */
    }
    Py_CLEAR(self->held);
    Py_CLEAR(self->empty_waiter);
    Py_CLEAR(self->room_waiter);
    Py_CLEAR(self->sockname);
    Py_CLEAR(self->peername);
    return 0;
}

static void
transport_dealloc(TransportObject *self)
{
    PyTypeObject *type = Py_TYPE(self);

    if (FNET_UNLIKELY(self->orphan) &&
        PyObject_CallFinalizerFromDealloc((PyObject *)self) < 0) {
        return;
    }
    PyObject_GC_UnTrack(self);
    /* Before the weak references call back: nobody may find it again. */
    if (self->conns != NULL) {
        fnet_connset_unlink(self);
    }
    if (self->weakrefs != NULL) {
        PyObject_ClearWeakRefs((PyObject *)self);
    }
    fnet_assert(!self->attached);
    transport_clear(self);
    Py_CLEAR(self->server);
    Py_CLEAR(self->sock);
    Py_CLEAR(self->loop);
    type->tp_free((PyObject *)self);
    Py_DECREF(type);
}

/* -- the way down ----------------------------------------------------------------- */

int
fnet_transport_schedule_lost(TransportObject *self, PyObject *exc)
{
    PyObject *method = PyObject_GetAttr(
        (PyObject *)self, self->loop->state->str__call_connection_lost);
    PyObject *args[] = {exc != NULL ? exc : Py_None};
    /* In the connection's context, whoever closes it. */
    int rc = fnet_loop_call_soon(self->loop, method, args, 1, self->context);

    Py_XDECREF(method);
    return rc;
}

int
fnet_transport_force_close(TransportObject *self, PyObject *exc)
{
    if (self->conn_lost != 0 || !self->attached) {
        return 0;
    }
    fnet_stream_drop(&self->stream);
    self->closing = true;
    fnet_stream_want(&self->stream, false);
    Py_CLEAR(self->held);
    self->conn_lost++;
    return fnet_transport_schedule_lost(self, exc);
}

int
fnet_transport_fatal_error(TransportObject *self, const char *message)
{
    if (fnet_must_propagate()) {
        return -1;
    }
    PyObject *exc = fnet_err_take();
    int rc = 0;

    if (!PyErr_GivenExceptionMatches(exc, PyExc_OSError) ||
        self->loop->debug) {
        rc = fnet_report(self->loop->state, "transport_failed", "(OOsOO)",
                         self->loop, exc, message, self,
                         self->protocol != NULL ? self->protocol : Py_None);
    }
    if (rc == 0) {
        rc = fnet_transport_force_close(self, exc);
    }
    Py_DECREF(exc);
    return rc;
}

int
fnet_transport_close(TransportObject *self)
{
    if (self->orphan && !self->closing) {
        self->closing = true;
        return fnet_loop_check(self->loop);
    }
    if (self->closing || !self->attached) {
        return 0;
    }
    self->closing = true;
    fnet_stream_want(&self->stream, false);
    Py_CLEAR(self->held);
    size_t left = fnet_stream_flush(&self->stream);
    int error = fnet_stream_error(&self->stream);
    if (error != 0) {
        (void)fnet_raise(error);
        return fnet_transport_fatal_error(
            self, "Fatal write error on socket transport");
    }
    if (left == 0) {
        self->conn_lost++;
        return fnet_transport_schedule_lost(self, NULL);
    }
    fnet_stream_notify(&self->stream, 0);
    return 0;
}

static void
fail_waiter(TransportObject *self, PyObject **waiter)
{
    PyObject *future = *waiter;
    *waiter = NULL;
    if (future == NULL) {
        return;
    }
    PyObject *exc = fnet_err_take();
    if (fnet_report(self->loop->state, "fail_waiter", "(O)", future) < 0) {
        PyErr_Clear();
    }
    Py_DECREF(future);
    if (exc != NULL) {
        fnet_err_restore(exc);
    }
}

/* connection_lost(), and everything is let go of.  What the protocol raises
 * is for the caller to report. */
int
fnet_transport_lost(TransportObject *self, PyObject *exc)
{
    PyObject *result = NULL;

    if (self->lost) {
        return 0;
    }
    self->lost = self->closing = true;
    Py_INCREF(self);
    if (self->protocol != NULL) {
        PyObject *protocol = Py_NewRef(self->protocol);
        result = PyObject_CallMethodOneArg(
            protocol, self->loop->state->str_connection_lost,
            exc != NULL ? exc : Py_None);
        Py_DECREF(protocol);
    }
    else {
        result = Py_NewRef(Py_None);
    }
    bool attached = self->attached;
    close_fd(self);
    Py_CLEAR(self->protocol);
    fail_waiter(self, &self->empty_waiter);
    fail_waiter(self, &self->room_waiter);
    PyObject *raised = result == NULL ? fnet_err_take() : NULL;
    Py_XDECREF(result);
    int rc = leave_server(self);
    if (raised != NULL) {
        PyErr_Clear();
        fnet_err_restore(raised);
        rc = -1;
    }
    if (attached) {
        Py_DECREF(self); /* the loop's */
    }
    Py_DECREF(self);
    return rc;
}

static PyObject *
transport_call_connection_lost(TransportObject *self, PyObject *exc)
{
    if (fnet_transport_lost(self, exc) < 0) {
        return NULL;
    }
    Py_RETURN_NONE;
}

/* -- methods ------------------------------------------------------------------------ */

static int
check_thread(TransportObject *self)
{
    return fnet_loop_check_thread(self->loop);
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
    if (check_thread(self) < 0 ||
        fnet_transport_force_close(self, NULL) < 0) {
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
    if (!self->closing && !self->paused) {
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
    if (self->closing || !self->paused) {
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
    return Py_NewRef(self->protocol != NULL ? self->protocol : Py_None);
}

/* A BufferedProtocol; or, as for uvloop, one that has its methods and is no
 * Protocol. */
static int
is_buffered(module_state *state, PyObject *protocol)
{
    int yes = PyObject_IsInstance(protocol, state->buffered_type);

    if (yes == 0 && !PyObject_TypeCheck(
                        protocol, (PyTypeObject *)state->protocol_type)) {
        PyObject *method =
            PyObject_GetAttr(protocol, state->str_get_buffer);
        yes = method != NULL;
        if (method == NULL) {
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
    self->buffered = buffered != 0;
    Py_XSETREF(self->protocol, Py_NewRef(protocol));
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

static PyObject *
transport_set_write_buffer_limits(TransportObject *self, PyObject *args,
                                  PyObject *kwargs)
{
    static char *names[] = {"high", "low", NULL};
    PyObject *high_object = Py_None, *low_object = Py_None;
    bool has_high, has_low;
    Py_ssize_t high = (Py_ssize_t)HIGH_WATER, low = 0;

    if (!PyArg_ParseTupleAndKeywords(args, kwargs,
                                     "|OO:set_write_buffer_limits", names,
                                     &high_object, &low_object) ||
        check_thread(self) < 0 ||
        optional_size(low_object, &has_low, &low) < 0 ||
        optional_size(high_object, &has_high, &high) < 0) {
        return NULL;
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
        return NULL;
    }
    self->high = (size_t)high;
    self->low = (size_t)low;
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

    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O|O:get_extra_info",
                                     names, &name, &otherwise)) {
        return NULL;
    }
    return fnet_transport_extra(self, name, otherwise);
}

/* -- sendfile's way in --------------------------------------------------------------- */

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
        if (fnet_report(self->loop->state, "wake_waiter", "(O)", waiter) <
            0) {
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
    static char *names[] = {"sock", "protocol", "waiter", "extra", "server",
                            NULL};
    PyObject *sock, *protocol, *waiter = Py_None, *extra = Py_None,
                               *server = Py_None;

    if (!PyArg_ParseTupleAndKeywords(args, kwargs,
                                     "OO|O$OO:_make_socket_transport", names,
                                     &sock, &protocol, &waiter, &extra,
                                     &server) ||
        fnet_loop_check(loop) < 0 || fnet_loop_check_thread(loop) < 0) {
        return NULL;
    }
    int fd = fnet_fileno(loop->state, sock);
    if (fd < 0 || fnet_ensure_no_transport(loop, fd, sock) < 0) {
        return NULL;
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
        (void)fnet_sys_set_int(fd, IPPROTO_TCP, 1 /* TCP_NODELAY */, 1);
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
    const char *state = !self->attached ? "closed"
                        : self->closing ? "closing"
                                        : "open";
    return PyUnicode_FromFormat("<%s %s fd=%d reading=%s>",
                                Py_TYPE(self)->tp_name, state, self->fd,
                                self->paused ? "paused" : "on");
}

static PyObject *
transport_get_field(TransportObject *self, void *which)
{
    PyObject *object = NULL;

    switch (*(const char *)which) {
    case 'p':
        return PyBool_FromLong(self->paused);
    case 'c':
        return PyBool_FromLong(self->closing);
    case 'l':
        object = (PyObject *)self->loop;
        break;
    case 's':
        object = self->sock;
        break;
    case 'S':
        object = self->server;
        break;
    case 'P':
        object = self->protocol;
        break;
    case 'f':
        return PyLong_FromLong(self->attached ? self->fd : -1);
    default:
        return PyLong_FromUnsignedLong(self->conn_lost);
    }
    return Py_NewRef(object != NULL ? object : Py_None);
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
    {NULL, NULL, NULL, NULL, NULL},
};

static PyMemberDef transport_members[] = {
    {"__weaklistoffset__", T_PYSSIZET, offsetof(TransportObject, weakrefs),
     READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

#define WITH_KEYWORDS(function) (PyCFunction)(void (*)(void))function,        \
    METH_VARARGS | METH_KEYWORDS

static PyMethodDef transport_methods[] = {
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
    {"get_write_buffer_limits",
     (PyCFunction)transport_get_write_buffer_limits, METH_NOARGS,
     "The water marks (low, high), in bytes."},
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
    {Py_tp_finalize, transport_finalize},
    {Py_tp_dealloc, transport_dealloc},
    {Py_tp_traverse, transport_traverse},
    {Py_tp_clear, transport_clear},
    {Py_tp_repr, transport_repr},
    {Py_tp_methods, transport_methods},
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
