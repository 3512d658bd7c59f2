/* watch: descriptors of the program's: add_reader() and its kin, and the
 * waiting of sock_*.
 *
 * One WatchObject per descriptor number stands in loop->fds.  A number may be
 * closed and given out again behind our back, so the registration that sock_*
 * keeps between calls is remembered together with the socket object that it
 * was made for: another socket gets a new one. */
#include "python/module.h"

#include <errno.h>

#define RECEIVE 0
#define SEND 1

/* -- descriptors -------------------------------------------------------- */

int
fnet_fileno(module_state *state, PyObject *fdobj)
{
    long fd;

    if (PyLong_Check(fdobj)) {
        fd = PyLong_AsLong(fdobj);
    }
    else {
        PyObject *number = PyObject_CallMethodNoArgs(fdobj, state->str_fileno);
        fd = -1;
        if (number != NULL) {
            fd = PyLong_Check(number) ? PyLong_AsLong(number) : -1;
            bool wrong = !PyLong_Check(number);
            Py_DECREF(number);
            if (wrong) {
                PyErr_SetString(PyExc_TypeError, "fileno() is not an int");
            }
        }
        if (PyErr_ExceptionMatches(PyExc_AttributeError) ||
            PyErr_ExceptionMatches(PyExc_TypeError) ||
            PyErr_ExceptionMatches(PyExc_ValueError)) {
            PyErr_Format(PyExc_ValueError, "Invalid file object: %R", fdobj);
        }
    }
    if (fd == -1 && PyErr_Occurred()) {
        if (PyErr_ExceptionMatches(PyExc_OverflowError)) {
            PyErr_Clear();
        }
        else {
            return -1;
        }
    }
    if (fd < 0 || fd > INT_MAX) {
        PyErr_Format(PyExc_ValueError, "Invalid file descriptor: %ld", fd);
        return -1;
    }
    return (int)fd;
}

/* asyncio's own transports (pipes, rare sockets) stand in loop._transports. */
static int
check_foreign_transports(LoopObject *loop, int fd, PyObject *fdobj)
{
    PyObject *map =
        PyObject_GetAttr((PyObject *)loop, loop->state->str__transports);
    if (map == NULL) {
        if (!PyErr_ExceptionMatches(PyExc_AttributeError)) {
            return -1;
        }
        PyErr_Clear();
        return 0;
    }
    PyObject *key = PyLong_FromLong(fd);
    PyObject *transport =
        key == NULL
            ? NULL
            : PyObject_CallMethodOneArg(map, loop->state->str_get, key);
    int closing = 1;
    if (transport != NULL && transport != Py_None) {
        PyObject *answer =
            PyObject_CallMethodNoArgs(transport, loop->state->str_is_closing);
        closing = answer == NULL ? -1 : PyObject_IsTrue(answer);
        Py_XDECREF(answer);
        if (closing == 0) {
            PyErr_Format(PyExc_RuntimeError,
                         "File descriptor %R is used by transport %R", fdobj,
                         transport);
        }
    }
    int rc = transport == NULL || closing <= 0 ? -1 : 0;
    Py_XDECREF(transport);
    Py_XDECREF(key);
    Py_DECREF(map);
    return rc;
}

int
fnet_ensure_no_transport(LoopObject *loop, int fd, PyObject *fdobj)
{
    PyObject *object = fnet_loop_fd_object(loop, fd);

    if (object != NULL && fnet_is_transport(loop->state, object)) {
        TransportObject *transport = (TransportObject *)object;
        if (!transport->closing && !transport->unguarded) {
            PyErr_Format(PyExc_RuntimeError,
                         "File descriptor %R is used by transport %R", fdobj,
                         object);
            return -1;
        }
    }
    if (object != NULL && Py_IS_TYPE(object, loop->state->datagram_type) &&
        fnet_datagram_uses_fd(object)) {
        PyErr_Format(PyExc_RuntimeError,
                     "File descriptor %R is used by transport %R", fdobj,
                     object);
        return -1;
    }
    return check_foreign_transports(loop, fd, fdobj);
}

/* -- the table ---------------------------------------------------------- */

static WatchObject *
watch_new(LoopObject *loop, int fd)
{
    WatchObject *self = PyObject_GC_New(WatchObject, loop->state->watch_type);
    if (self == NULL) {
        return NULL;
    }
    fnet_watch_init(&self->watch, &loop->home, self);
    self->loop = loop;
    self->fd = fd;
    self->reader = self->writer = NULL;
    self->objects[RECEIVE] = self->objects[SEND] = NULL;
    self->since[RECEIVE] = self->since[SEND] = 0;
    self->since_batch[RECEIVE] = self->since_batch[SEND] = 0;
    self->waiters[RECEIVE] = self->waiters[SEND] = NULL;
    self->sockref = NULL;
    PyObject_GC_Track(self);
    return self;
}

WatchObject *
fnet_watch_of(LoopObject *loop, int fd)
{
    PyObject **slot = fnet_loop_fd_slot(loop, fd);
    if (slot == NULL) {
        return NULL;
    }
    if (*slot != NULL && Py_IS_TYPE(*slot, loop->state->watch_type)) {
        return (WatchObject *)*slot;
    }
    if (*slot != NULL && Py_IS_TYPE(*slot, loop->state->listener_type)) {
        PyErr_Format(PyExc_RuntimeError,
                     "File descriptor %d is used by a server", fd);
        return NULL;
    }
    WatchObject *watch = watch_new(loop, fd);
    if (watch == NULL) {
        return NULL;
    }
    /* A transport that is closing still has its number: its own entry goes
     * when it lets go, and does not disturb ours.  The table may have moved:
     * the collector runs Python. */
    loop->fds[fd] = (PyObject *)watch;
    return watch;
}

static WatchObject *
find_watch(LoopObject *loop, int fd)
{
    PyObject *object = fnet_loop_fd_object(loop, fd);
    return object != NULL && Py_IS_TYPE(object, loop->state->watch_type)
               ? (WatchObject *)object
               : NULL;
}

static uint32_t
levels_of(const WatchObject *self)
{
    return (self->reader != NULL ? (uint32_t)EPOLLIN : 0) |
           (self->writer != NULL ? (uint32_t)EPOLLOUT : 0);
}

static uint32_t
waits_of(const WatchObject *self)
{
    return (self->waiters[RECEIVE] != NULL ? (uint32_t)EPOLLIN : 0) |
           (self->waiters[SEND] != NULL ? (uint32_t)EPOLLOUT : 0);
}

static int
update(WatchObject *self)
{
    int rc = fnet_watch_set(&self->watch, self->fd, levels_of(self),
                            waits_of(self));
    if (rc == -EBADF || rc == -ENOENT) {
        /* Closed behind our back. */
        if (levels_of(self) == 0 && waits_of(self) == 0) {
            fnet_watch_detach(&self->watch);
            return 0;
        }
    }
    if (rc < 0) {
        fnet_raise(rc);
        return -1;
    }
    return 0;
}

void
fnet_watch_drop(WatchObject *self)
{
    fnet_watch_detach(&self->watch);
    if (self->reader != NULL) {
        fnet_handle_cancel(self->reader);
    }
    if (self->writer != NULL) {
        fnet_handle_cancel(self->writer);
    }
    Py_CLEAR(self->reader);
    Py_CLEAR(self->writer);
    Py_CLEAR(self->objects[RECEIVE]);
    Py_CLEAR(self->objects[SEND]);
    Py_CLEAR(self->waiters[RECEIVE]);
    Py_CLEAR(self->waiters[SEND]);
    Py_CLEAR(self->sockref);
}

static int
watch_traverse(WatchObject *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(self->reader);
    Py_VISIT(self->writer);
    Py_VISIT(self->objects[RECEIVE]);
    Py_VISIT(self->objects[SEND]);
    Py_VISIT(self->waiters[RECEIVE]);
    Py_VISIT(self->waiters[SEND]);
    Py_VISIT(self->sockref);
    return 0;
}

static int
watch_clear(WatchObject *self)
{
    Py_CLEAR(self->reader);
    Py_CLEAR(self->writer);
    Py_CLEAR(self->objects[RECEIVE]);
    Py_CLEAR(self->objects[SEND]);
    Py_CLEAR(self->waiters[RECEIVE]);
    Py_CLEAR(self->waiters[SEND]);
    Py_CLEAR(self->sockref);
    return 0;
}

static void
watch_dealloc(WatchObject *self)
{
    PyTypeObject *type = Py_TYPE(self);

    PyObject_GC_UnTrack(self);
    fnet_assert(!fnet_source_attached(&self->watch.source));
    watch_clear(self);
    PyObject_GC_Del(self);
    Py_DECREF(type);
}

static PyObject *
watch_repr(WatchObject *self)
{
    return PyUnicode_FromFormat(
        "<watch fd=%d reader=%R writer=%R>", self->fd,
        self->reader != NULL ? (PyObject *)self->reader : Py_None,
        self->writer != NULL ? (PyObject *)self->writer : Py_None);
}

static PyType_Slot watch_slots[] = {
    {Py_tp_dealloc, watch_dealloc},
    {Py_tp_traverse, watch_traverse},
    {Py_tp_clear, watch_clear},
    {Py_tp_repr, watch_repr},
    {0, NULL},
};

PyType_Spec fnet_watch_spec = {
    .name = "pyfastnet._core.Watch",
    .basicsize = sizeof(WatchObject),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC |
             Py_TPFLAGS_DISALLOW_INSTANTIATION | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = watch_slots,
};

/* -- events --------------------------------------------------------------- */

/* Ends the waiting of everybody in this direction. */
static int
wake_waiters(WatchObject *self, int direction)
{
    module_state *state = self->loop->state;
    PyObject *waiters = self->waiters[direction];
    int rc = 0;

    if (waiters == NULL) {
        return 0;
    }
    self->waiters[direction] = NULL;
    for (Py_ssize_t i = 0; rc == 0 && i < PyList_GET_SIZE(waiters); i++) {
        PyObject *future = PyList_GET_ITEM(waiters, i);
        PyObject *done = PyObject_CallMethodNoArgs(future, state->str_done);
        if (done == Py_False) {
            PyObject *result = PyObject_CallMethodOneArg(
                future, state->str_set_result, Py_None);
            rc = result == NULL ? -1 : 0;
            Py_XDECREF(result);
        }
        rc = done == NULL ? -1 : rc;
        Py_XDECREF(done);
    }
    Py_DECREF(waiters);
    return rc;
}

static HandleObject **
handle_slot(WatchObject *self, int direction)
{
    return direction == RECEIVE ? &self->reader : &self->writer;
}

/* The event was another one's if this one was set in the present turn, or
 * after a worker had begun the pass that found it: what that one has read is
 * no news to this one. */
static bool
is_old(const WatchObject *self, int direction)
{
    uint64_t batch = self->watch.source.sequence;

    return self->since[direction] == self->loop->turns ||
           (batch != 0 && batch <= self->since_batch[direction]);
}

static int
run_handler(WatchObject *self, int direction)
{
    HandleObject *handle = *handle_slot(self, direction);

    if (handle == NULL || is_old(self, direction)) {
        return 0;
    }
    Py_INCREF(handle);
    int rc = fnet_handle_run(self->loop, handle);
    Py_DECREF(handle);
    return rc;
}

/* 0; -1: what it raised must leave run_forever(). */
static int
check_signals_call(LoopObject *loop, PyObject *result)
{
    if (result == NULL) {
        if (fnet_must_propagate()) {
            return -1;
        }
        PyErr_WriteUnraisable((PyObject *)loop);
    }
    Py_XDECREF(result);
    return 0;
}

static int
deliver_signals(LoopObject *loop)
{
    char bytes[256];
    ssize_t n;
    size_t total = 0;

    for (;;) {
        /* Handlers that raise run before the bytes are taken, not after. */
        if (PyErr_CheckSignals() < 0) {
            return -1;
        }
        n = fnet_sys_read(loop->signal_pipe[0], bytes, sizeof(bytes));
        if (n <= 0) {
            break;
        }
        total += (size_t)n;
        PyObject *result = PyObject_CallMethod(
            (PyObject *)loop, "_process_self_data", "y#", bytes, n);
        if (check_signals_call(loop, result) < 0) {
            return -1;
        }
    }
    /* As much as the smallest pipe holds: it may have been full. */
    if (total < 4096) {
        return 0;
    }
    return check_signals_call(
        loop,
        PyObject_CallMethod((PyObject *)loop, "_signals_were_lost", NULL));
}

static int
deliver_events(WatchObject *self, uint32_t events)
{
    LoopObject *loop = self->loop;

    if (FNET_UNLIKELY(self == loop->signal_watch)) {
        return deliver_signals(loop);
    }
    if ((events & EPOLLIN) != 0 && wake_waiters(self, RECEIVE) < 0) {
        return -1;
    }
    if ((events & EPOLLOUT) != 0 && wake_waiters(self, SEND) < 0) {
        return -1;
    }
    if ((events & EPOLLIN) != 0 && run_handler(self, RECEIVE) < 0) {
        return -1;
    }
    if ((events & EPOLLOUT) != 0 && run_handler(self, SEND) < 0) {
        return -1;
    }
    return 0;
}

int
fnet_watch_deliver(WatchObject *self, const fnet_completion *item)
{
    /* Before the callback, which may close the loop. */
    bool away = self->loop->set.home_away;
    int rc = deliver_events(self, (uint32_t)item->result);

    /* Found by a worker, it may have been left to a pass of the loop's. */
    if (FNET_UNLIKELY(away || self->watch.muted) && self->loop->has_core) {
        fnet_watch_taken(&self->watch);
    }
    return rc;
}

/* -- add_reader() and its kin ------------------------------------------- */

/* With the number checked: the new Handle. */
static HandleObject *
add_handle(LoopObject *loop, int fd, int direction, PyObject *callback,
           PyObject *const *args, Py_ssize_t nargs)
{
    /* First, as it may run Python. */
    HandleObject *handle = fnet_handle_new(loop, callback, args, nargs, NULL);
    WatchObject *watch = handle == NULL || fnet_loop_check(loop) < 0
                             ? NULL
                             : fnet_watch_of(loop, fd);
    if (watch == NULL) {
        Py_XDECREF(handle);
        return NULL;
    }
    HandleObject **slot = handle_slot(watch, direction);
    HandleObject *before = *slot;

    *slot = (HandleObject *)Py_NewRef((PyObject *)handle);
    if (watch->sockref != NULL && watch->waiters[RECEIVE] == NULL &&
        watch->waiters[SEND] == NULL) {
        /* sock_* kept it; whose number it is now nobody knows. */
        fnet_watch_detach(&watch->watch);
        Py_CLEAR(watch->sockref);
    }
    if (before != NULL) {
        fnet_watch_refresh(&watch->watch);
    }
    if (update(watch) < 0) {
        *slot = before;
        Py_DECREF(handle);
        Py_DECREF(handle);
        return NULL;
    }
    watch->since[direction] = loop->turns;
    watch->since_batch[direction] = fnet_watch_sequence(&watch->watch);
    if (before != NULL) {
        fnet_handle_cancel(before);
        Py_DECREF(before);
    }
    return handle;
}

/* 1: removed, 0: there was none, -1. */
static int
remove_handle(LoopObject *loop, int fd, int direction)
{
    WatchObject *watch = find_watch(loop, fd);
    HandleObject **slot = watch == NULL ? NULL : handle_slot(watch, direction);
    if (slot == NULL || *slot == NULL) {
        return 0;
    }
    HandleObject *handle = *slot;
    PyObject *object = watch->objects[direction];
    *slot = NULL;
    watch->objects[direction] = NULL;
    int rc = update(watch);
    fnet_handle_cancel(handle);
    Py_DECREF(handle);
    Py_XDECREF(object);
    return rc < 0 ? -1 : 1;
}

/* The number that an object had when it was added: it has been closed since,
 * and programs (anyio) remove it all the same.  -1: it never was. */
static int
number_of(LoopObject *loop, PyObject *fdobj, int direction)
{
    for (size_t fd = 0; fd < loop->nfds; fd++) {
        WatchObject *watch = find_watch(loop, (int)fd);
        if (watch != NULL && watch->objects[direction] == fdobj) {
            return (int)fd;
        }
    }
    return -1;
}

static PyObject *
add(LoopObject *loop, PyObject *const *args, Py_ssize_t nargs, int direction,
    bool public)
{
    const char *name = direction == RECEIVE ? "add_reader" : "add_writer";

    if (nargs < 2) {
        PyErr_Format(PyExc_TypeError,
                     "%s() takes a file descriptor and a callback", name);
        return NULL;
    }
    if (fnet_loop_check(loop) < 0 || fnet_loop_check_thread(loop) < 0) {
        return NULL;
    }
    int fd = fnet_fileno(loop->state, args[0]);
    if (fd < 0 ||
        (public && fnet_ensure_no_transport(loop, fd, args[0]) < 0)) {
        return NULL;
    }
    HandleObject *handle =
        add_handle(loop, fd, direction, args[1], args + 2, nargs - 2);
    WatchObject *watch = handle == NULL ? NULL : find_watch(loop, fd);
    if (watch != NULL) {
        PyObject *object = PyLong_Check(args[0]) ? NULL : Py_NewRef(args[0]);
        Py_XSETREF(watch->objects[direction], object);
    }
    return (PyObject *)handle;
}

static PyObject *
remove_(LoopObject *loop, PyObject *fdobj, int direction, bool public)
{
    if (loop->closed) {
        Py_RETURN_FALSE;
    }
    if (fnet_loop_check(loop) < 0 || fnet_loop_check_thread(loop) < 0) {
        return NULL;
    }
    int fd = fnet_fileno(loop->state, fdobj);
    bool closed = fd < 0 && PyErr_ExceptionMatches(PyExc_ValueError);
    if (closed) {
        PyObject *exc = fnet_err_take();
        fd = number_of(loop, fdobj, direction);
        fd >= 0 ? Py_DECREF(exc) : fnet_err_restore(exc);
    }
    if (fd < 0 ||
        (public && !closed && fnet_ensure_no_transport(loop, fd, fdobj) < 0)) {
        return NULL;
    }
    int rc = remove_handle(loop, fd, direction);
    return rc < 0 ? NULL : PyBool_FromLong(rc);
}

#define PUBLIC_ADD(name, direction)                                           \
    static PyObject *loop_##name(LoopObject *loop, PyObject *const *args,     \
                                 Py_ssize_t nargs)                            \
    {                                                                         \
        PyObject *handle = add(loop, args, nargs, direction, true);           \
        if (handle == NULL) {                                                 \
            return NULL;                                                      \
        }                                                                     \
        Py_DECREF(handle);                                                    \
        Py_RETURN_NONE;                                                       \
    }                                                                         \
    static PyObject *loop__##name(LoopObject *loop, PyObject *const *args,    \
                                  Py_ssize_t nargs)                           \
    {                                                                         \
        return add(loop, args, nargs, direction, false);                      \
    }

#define PUBLIC_REMOVE(name, direction)                                        \
    static PyObject *loop_##name(LoopObject *loop, PyObject *fd)              \
    {                                                                         \
        return remove_(loop, fd, direction, true);                            \
    }                                                                         \
    static PyObject *loop__##name(LoopObject *loop, PyObject *fd)             \
    {                                                                         \
        return remove_(loop, fd, direction, false);                           \
    }

PUBLIC_ADD(add_reader, RECEIVE)
PUBLIC_ADD(add_writer, SEND)
PUBLIC_REMOVE(remove_reader, RECEIVE)
PUBLIC_REMOVE(remove_writer, SEND)

static PyObject *
loop_ensure_fd_no_transport(LoopObject *loop, PyObject *fdobj)
{
    int fd = fnet_fileno(loop->state, fdobj);
    if (fd < 0 || fnet_ensure_no_transport(loop, fd, fdobj) < 0) {
        return NULL;
    }
    Py_RETURN_NONE;
}

static PyObject *
loop_set_transport_guard(LoopObject *loop, PyObject *args)
{
    int fd, enabled;

    if (!PyArg_ParseTuple(args, "ip:_set_transport_guard", &fd, &enabled)) {
        return NULL;
    }
    PyObject *object = fnet_loop_fd_object(loop, fd);
    if (object != NULL && Py_IS_TYPE(object, loop->state->transport_type)) {
        ((TransportObject *)object)->unguarded = !enabled;
    }
    Py_RETURN_NONE;
}

/* -- waiting -------------------------------------------------------------- */

/* The registration that is kept is this socket's, or becomes so. */
static int
claim(WatchObject *watch, PyObject *sock)
{
    if (watch->sockref != NULL && fnet_weakref_is(watch->sockref, sock)) {
        return 0;
    }
    PyObject *ref = PyWeakref_NewRef(sock, NULL);
    if (ref == NULL) {
        /* One without weak references is a stranger each time. */
        if (!PyErr_ExceptionMatches(PyExc_TypeError)) {
            return -1;
        }
        PyErr_Clear();
    }
    if (watch->waiters[RECEIVE] == NULL && watch->waiters[SEND] == NULL &&
        levels_of(watch) == 0) {
        fnet_watch_detach(&watch->watch);
    }
    Py_XSETREF(watch->sockref, ref);
    return 0;
}

/* A transport's own descriptor, given free for sendfile. */
static PyObject *
wait_for_room(TransportObject *transport)
{
    LoopObject *loop = transport->loop;
    PyObject *future = fnet_loop_create_future(loop);

    if (future != NULL) {
        Py_XSETREF(transport->room_waiter, Py_NewRef(future));
        fnet_stream_notify_room(&transport->stream);
    }
    return future;
}

/* Takes the future from those that wait; false: it is not among them. */
static bool
remove_waiter(WatchObject *watch, int direction, PyObject *future)
{
    PyObject *waiters = watch->waiters[direction];
    Py_ssize_t n = waiters == NULL ? 0 : PyList_GET_SIZE(waiters);

    for (Py_ssize_t i = 0; i < n; i++) {
        if (PyList_GET_ITEM(waiters, i) != future) {
            continue;
        }
        if (n == 1) {
            Py_CLEAR(watch->waiters[direction]);
        }
        else if (PyList_SetSlice(waiters, i, i + 1, NULL) < 0) {
            PyErr_Clear();
        }
        return true;
    }
    return false;
}

static int
add_waiter(WatchObject *watch, int direction, PyObject *future)
{
    PyObject *waiters = watch->waiters[direction];

    if (waiters == NULL) {
        waiters = PyList_New(1);
        if (waiters == NULL) {
            return -1;
        }
        PyList_SET_ITEM(waiters, 0, Py_NewRef(future));
        watch->waiters[direction] = waiters;
    }
    else if (PyList_Append(waiters, future) < 0) {
        return -1;
    }
    if (update(watch) < 0) {
        PyObject *exc = fnet_err_take();
        (void)remove_waiter(watch, direction, future);
        fnet_err_restore(exc);
        return -1;
    }
    return 0;
}

PyObject *
fnet_watch_wait(LoopObject *loop, PyObject *sock, int fd, int direction)
{
    /* The loop may have been closed since the last wait. */
    if (fnet_loop_check(loop) < 0 || fnet_loop_check_thread(loop) < 0) {
        return NULL;
    }
    PyObject *object = fnet_loop_fd_object(loop, fd);

    if (object != NULL && direction == SEND &&
        Py_IS_TYPE(object, loop->state->transport_type) &&
        ((TransportObject *)object)->unguarded &&
        ((TransportObject *)object)->attached) {
        return wait_for_room((TransportObject *)object);
    }
    WatchObject *watch = find_watch(loop, fd);
    if (watch == NULL || watch->sockref == NULL ||
        !fnet_weakref_is(watch->sockref, sock)) {
        if (fnet_ensure_no_transport(loop, fd, sock) < 0 ||
            (watch = fnet_watch_of(loop, fd)) == NULL ||
            claim(watch, sock) < 0) {
            return NULL;
        }
    }
    PyObject *future = fnet_loop_create_future(loop);
    if (future != NULL && add_waiter(watch, direction, future) < 0) {
        Py_CLEAR(future);
    }
    return future;
}

void
fnet_watch_unwait(LoopObject *loop, int fd, int direction, PyObject *future)
{
    if (!fnet_loop_usable_here(loop)) {
        return; /* nobody minds a future that is done by then */
    }
    WatchObject *watch = find_watch(loop, fd);
    PyObject *exc = fnet_err_take();

    if (watch != NULL && remove_waiter(watch, direction, future) &&
        loop->has_core && update(watch) < 0) {
        PyErr_Clear();
    }
    if (exc != NULL) {
        fnet_err_restore(exc);
    }
}

#define FAST(function) (PyCFunction)(void (*)(void))(function), METH_FASTCALL

PyMethodDef fnet_watch_methods[] = {
    {"add_reader", FAST(loop_add_reader),
     "Call callback(*args) whenever the descriptor can be read."},
    {"add_writer", FAST(loop_add_writer),
     "Call callback(*args) whenever the descriptor can be written."},
    {"remove_reader", (PyCFunction)loop_remove_reader, METH_O,
     "Stop watching for input; True if there was a callback."},
    {"remove_writer", (PyCFunction)loop_remove_writer, METH_O,
     "Stop watching for room; True if there was a callback."},
    {"_add_reader", FAST(loop__add_reader), NULL},
    {"_add_writer", FAST(loop__add_writer), NULL},
    {"_remove_reader", (PyCFunction)loop__remove_reader, METH_O, NULL},
    {"_remove_writer", (PyCFunction)loop__remove_writer, METH_O, NULL},
    {"_ensure_fd_no_transport", (PyCFunction)loop_ensure_fd_no_transport,
     METH_O, NULL},
    {"_set_transport_guard", (PyCFunction)loop_set_transport_guard,
     METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};
