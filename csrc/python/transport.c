/* transport: a TCP or Unix stream transport: its life and its methods.
 *
 * The rules are those of asyncio's selector transport, call for call; what
 * moves the bytes is net/stream.c.  transport_io.c has the hot half: writing
 * and delivering.  A transport is kept alive by the loop from its making to
 * connection_lost(). */
#include "python/module.h"

#include <errno.h>

/* -- life --------------------------------------------------------------- */

void
fnet_transport_prepare(TransportObject *self, LoopObject *loop)
{
    fnet_list_init(&self->link);
    fnet_list_init(&self->conn_link);
    self->loop = (LoopObject *)Py_NewRef((PyObject *)loop);
    self->high = FNET_HIGH_WATER;
    self->low = FNET_HIGH_WATER / 4;
    self->fd = -1;
}

static TransportObject *
allocate(LoopObject *loop)
{
    PyTypeObject *type = loop->state->transport_type;
    TransportObject *self = (TransportObject *)type->tp_alloc(type, 0);

    if (self != NULL) {
        fnet_transport_prepare(self, loop);
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
        int rc = fnet_connset_add((ConnSetObject *)clients, self);
        Py_DECREF(clients);
        if (rc == 0) {
            self->server = Py_NewRef(server);
        }
        return rc;
    }
    Py_XDECREF(clients);
    PyErr_Clear();
    /* A server of asyncio's: up to 3.12 it only counts. */
#if PY_VERSION_HEX >= 0x030D0000
    PyObject *result = PyObject_CallMethodOneArg(server, state->str__attach,
                                                 (PyObject *)self);
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

    FNET_BEGIN_SHARED(self)
    self->server = NULL;
    FNET_END_SHARED()
    if (server == NULL) {
        return 0;
    }
    if (self->conns != NULL) {
        ConnSetObject *set =
            (ConnSetObject *)Py_NewRef((PyObject *)self->conns);
        fnet_connset_unlink(self);
        PyObject *sockets = Py_NewRef(Py_None);
        if (PyObject_Length((PyObject *)set) == 0) {
            Py_SETREF(sockets, PyObject_GetAttr(server, state->str__sockets));
            if (sockets == Py_None) {
                result = PyObject_CallMethodNoArgs(server, state->str__wakeup);
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
    fnet_shard *shard = fnet_loop_pick_shard(loop);
    int rc =
        fnet_stream_attach(&self->stream, shard, fd, self, family == AF_UNIX);
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
        fnet_watch_forget(&watch->watch, shard == &loop->home);
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

    if (FNET_UNLIKELY(self->pipe != 0)) {
        fnet_pipe_detach(self);
        return;
    }
    FNET_BEGIN_SHARED(self)
    fnet_transport_keep_names(self);
    self->attached = false;
    FNET_END_SHARED()
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
    if (FNET_UNLIKELY(self->pipe != 0)) {
        fnet_pipe_close_descriptor(self);
    }
    else if (self->sock != NULL) {
        PyObject *result = PyObject_CallMethodNoArgs(
            self->sock, self->loop->state->str_close);
        if (result == NULL) {
            PyErr_WriteUnraisable(self->sock);
        }
        Py_XDECREF(result);
        fnet_shared_set((PyObject *)self, &self->sock, NULL);
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
        /* The peer may be a connection of this loop: the next turn looks, so
         * that both ends see it in as many turns as in asyncio. */
        self->loop->last_pass = 0;
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
void
fnet_transport_finalize(TransportObject *self)
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

int
fnet_transport_traverse(TransportObject *self, visitproc visit, void *arg)
{
    PyObject *const held[] = {
        (PyObject *)Py_TYPE(self),
        self->extra,
        (PyObject *)self->loop,
        self->protocol,
        self->context,
        self->sock,
        self->view,
        self->server,
        (PyObject *)self->conns,
        self->held,
        self->empty_waiter,
        self->room_waiter,
        self->sockname,
        self->peername,
        self->dict,
    };

    for (size_t i = 0; i < FNET_COUNTOF(held); i++) {
        Py_VISIT(held[i]);
    }
    return 0;
}

int
fnet_transport_clear(TransportObject *self)
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
    Py_CLEAR(self->dict);
    return 0;
}

void
fnet_transport_dealloc(TransportObject *self)
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
    fnet_transport_clear(self);
    Py_CLEAR(self->server);
    Py_CLEAR(self->sock);
    Py_CLEAR(self->loop);
    type->tp_free((PyObject *)self);
    Py_DECREF(type);
}

/* -- the way down ------------------------------------------------------- */

int
fnet_transport_schedule_lost(TransportObject *self, PyObject *exc)
{
    return fnet_schedule_lost(self->loop, (PyObject *)self, self->context,
                              exc);
}

int
fnet_transport_force_close(TransportObject *self, PyObject *exc)
{
    if (self->conn_lost != 0 || !self->attached) {
        return 0;
    }
    /* Not a mere drop: asyncio would have sent what waits for the end of the
     * turn only. */
    fnet_stream_abort(&self->stream);
    self->closing = true;
    fnet_stream_want(&self->stream, false);
    Py_CLEAR(self->held);
    self->conn_lost++;
    return fnet_transport_schedule_lost(self, exc);
}

int
fnet_transport_fatal_error(TransportObject *self, const char *message)
{
    if (FNET_UNLIKELY(self->pipe != 0)) {
        return fnet_pipe_fatal_error(self);
    }
    PyObject *exc =
        fnet_take_fatal(self->loop, message, (PyObject *)self, self->protocol);
    int rc = exc == NULL ? -1 : fnet_transport_force_close(self, exc);
    Py_XDECREF(exc);
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
        Py_XSETREF(exc, fnet_err_take()); /* which must leave the loop */
    }
    Py_DECREF(future);
    fnet_err_restore(exc);
}

/* connection_lost(), and everything is let go of.  What the protocol raises
 * is for the caller to report. */
int
fnet_transport_lost(TransportObject *self, PyObject *exc)
{
    if (self->lost) {
        return 0;
    }
    self->lost = self->closing = true;
    Py_INCREF(self);
    PyObject *result =
        fnet_call_connection_lost(self->loop, self->protocol, exc);
    bool attached = self->attached;
    close_fd(self);
    fnet_shared_set((PyObject *)self, &self->protocol, NULL);
    fail_waiter(self, &self->empty_waiter);
    fail_waiter(self, &self->room_waiter);
    PyObject *raised = fnet_err_take();
    Py_XDECREF(result);
    int rc = leave_server(self);
    if (raised != NULL && (rc == 0 || !fnet_must_propagate())) {
        PyErr_Clear();
        fnet_err_restore(raised);
        rc = -1;
    }
    else {
        Py_XDECREF(raised);
    }
    if (attached) {
        Py_DECREF(self); /* the loop's */
    }
    Py_DECREF(self);
    return rc;
}
