/* loop: the hot half of the event loop: scheduling, its state, its life.
 *
 * The cold half is Python (pyfastnet/loop.py), in a class that inherits from
 * this one and from asyncio.BaseEventLoop.  turn.c runs it. */
#include "python/context.h"

#include "base/clock.h"
#include "base/mem.h"

#include <errno.h>
#include <fcntl.h>

/* Until _set_cache_limit() says what pyfastnet/_limits.py has found. */
#define CACHE_LIMIT ((size_t)64 << 20)

/* -- small answers ------------------------------------------------------ */

static PyObject *
loop_time(LoopObject *self, PyObject *unused)
{
    return PyFloat_FromDouble((double)fnet_clock_ns() / 1e9);
}

static PyObject *
loop_get_debug(LoopObject *self, PyObject *unused)
{
    return PyBool_FromLong(self->debug);
}

static PyObject *
loop_is_running(LoopObject *self, PyObject *unused)
{
    return PyBool_FromLong(self->thread_id != Py_None);
}

static PyObject *
loop_is_closed(LoopObject *self, PyObject *unused)
{
    return PyBool_FromLong(self->closed);
}

static PyObject *
loop_stop(LoopObject *self, PyObject *unused)
{
    self->stopping = true;
    Py_RETURN_NONE;
}

PyObject *
fnet_loop_create_future(LoopObject *self)
{
    PyObject *args[] = {NULL, (PyObject *)self};
    static const size_t keyword_only = 0 | PY_VECTORCALL_ARGUMENTS_OFFSET;
    return PyObject_Vectorcall(self->state->future_type, args + 1,
                               keyword_only, self->state->kw_loop);
}

static PyObject *
loop_create_future(LoopObject *self, PyObject *unused)
{
    return fnet_loop_create_future(self);
}

static PyObject *
loop_write_to_self(LoopObject *self, PyObject *unused)
{
    fnet_loop_wake(self);
    Py_RETURN_NONE;
}

static PyObject *
loop_signal_fd(LoopObject *self, PyObject *unused)
{
    if (fnet_loop_check(self) < 0) {
        return NULL;
    }
    return PyLong_FromLong(self->signal_pipe[1]);
}

/* -- descriptors -------------------------------------------------------- */

PyObject **
fnet_loop_fd_slot(LoopObject *self, int fd)
{
    if (fd < 0 || (size_t)fd >= self->nfds) {
        /* The table is as long as the largest number that is open, not as
         * whatever number somebody names. */
        if (fcntl(fd, F_GETFD) < 0) {
            fnet_raise(-errno);
            return NULL;
        }
        size_t n = self->nfds;
        while (n <= (size_t)fd) {
            n *= 2;
        }
        PyObject **fds = self->fds;
        PyMem_Resize(fds, PyObject *, n);
        if (fds == NULL) {
            PyErr_NoMemory();
            return NULL;
        }
        for (size_t i = self->nfds; i < n; i++) {
            fds[i] = NULL;
        }
        self->fds = fds;
        self->nfds = n;
    }
    return &self->fds[fd];
}

PyObject *
fnet_loop_fd_object(LoopObject *self, int fd)
{
    return fd >= 0 && (size_t)fd < self->nfds ? self->fds[fd] : NULL;
}

int
fnet_loop_free_number(LoopObject *loop, int fd)
{
    PyObject *object;

    while ((object = fnet_loop_fd_object(loop, fd)) != NULL &&
           !fnet_is_transport(loop->state, object)) {
        loop->fds[fd] = NULL;
        if (Py_IS_TYPE(object, loop->state->watch_type)) {
            fnet_watch_drop((WatchObject *)object);
        }
        else {
            fnet_listener_drop((ListenerObject *)object);
        }
        Py_DECREF(object);
    }
    return fnet_loop_check(loop);
}

/* -- life ----------------------------------------------------------------- */

static int
watch_signals(LoopObject *self)
{
    int rc = fnet_sys_pipe(self->signal_pipe);
    if (rc < 0) {
        fnet_raise(rc);
        return -1;
    }
    self->signal_watch = fnet_watch_of(self, self->signal_pipe[0]);
    if (self->signal_watch == NULL) {
        return -1;
    }
    rc = fnet_watch_set(&self->signal_watch->watch, self->signal_pipe[0],
                        EPOLLIN, 0);
    if (rc < 0) {
        fnet_raise(rc);
        return -1;
    }
    return 0;
}

/* PYFASTNET_HOME, for tests and benchmarks: `worker` lends the home shard to
 * one for good, `flips` again and again. */
static int
home_mode(void)
{
    const char *text = getenv("PYFASTNET_HOME");

    if (text != NULL && strcmp(text, "worker") == 0) {
        return FNET_HOME_WORKER;
    }
    if (text != NULL && strcmp(text, "flips") == 0) {
        return FNET_HOME_FLIPS;
    }
    return FNET_HOME_LOOP;
}

static int
open_core(LoopObject *self)
{
    int rc = fnet_depot_new(&self->depot, CACHE_LIMIT);
    if (rc < 0) {
        goto fail;
    }
    rc = fnet_shard_init(&self->home, self->depot);
    if (rc < 0) {
        goto fail_shard;
    }
    const char *defer = getenv("PYFASTNET_DEFER");
    self->home.defer = defer == NULL || defer[0] != '0';
    rc = fnet_shardset_init(&self->set, &self->home, self->depot);
    if (rc < 0) {
        goto fail_set;
    }
    rc = fnet_prompter_new(&self->prompter, &self->home);
    if (rc < 0) {
        goto fail_prompter;
    }
    fnet_batch_init(&self->batch);
    self->batch.shard = &self->home;
    self->home_mode = home_mode();
    self->has_core = true;
    return watch_signals(self);

fail_prompter:
    fnet_shardset_fini(&self->set);
fail_set:
    fnet_shard_fini(&self->home);
fail_shard:
    fnet_depot_free(self->depot);
    self->depot = NULL;
fail:
    fnet_raise(rc);
    return -1;
}

static PyObject *
loop_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    module_state *state = fnet_state_of_type(type);
    LoopObject *self = (LoopObject *)type->tp_alloc(type, 0);
    if (self == NULL || state == NULL) {
        Py_XDECREF(self);
        return NULL;
    }
    self->state = state;
    self->thread_id = Py_NewRef(Py_None);
    self->slow_callback_duration = 0.1;
    self->schedstat = -1;
    self->signal_pipe[0] = self->signal_pipe[1] = -1;
    self->ring_mask = FNET_RING_START - 1;
    self->nfds = 64;
    fnet_heap_init(&self->timers);
    fnet_list_init(&self->transports);
    fnet_list_init(&self->datagrams);
    fnet_list_init(&self->holds);
    fnet_loop_init_names(self);
    self->ring = PyMem_New(HandleObject *, FNET_RING_START);
    self->fds = PyMem_Calloc(self->nfds, sizeof(PyObject *));
    if (self->ring == NULL || self->fds == NULL) {
        Py_DECREF(self);
        return PyErr_NoMemory();
    }
    if (open_core(self) < 0) {
        self->closed = true;
        Py_DECREF(self);
        return NULL;
    }
    return (PyObject *)self;
}

static int
loop_init(LoopObject *self, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"shards", "adaptive", NULL};
    int shards = 1, adaptive = 0;

    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|$ip:Loop", names, &shards,
                                     &adaptive)) {
        return -1;
    }
    if (shards < 1 || shards > FNET_SHARDS_MAX) {
        PyErr_Format(PyExc_ValueError,
                     "shards must be between 1 and 64, not %d", shards);
        return -1;
    }
    self->set.limit = (unsigned)shards;
    self->set.spread = adaptive ? 1 : (unsigned)shards;
    if (adaptive && self->home_mode == FNET_HOME_LOOP) {
        self->home_mode = FNET_HOME_AUTO;
    }
    return 0;
}

/* Callbacks and timers go; what they free may schedule more. */
static void
drop_callbacks(LoopObject *self)
{
    if (fnet_loop_take_inbox(self) < 0) {
        PyErr_Clear();
    }
    while (self->ring_count > 0) {
        HandleObject *handle = self->ring[self->ring_head++ & self->ring_mask];
        self->ring_head &= self->ring_mask;
        self->ring_count--;
        fnet_handle_drop(handle);
    }
    for (;;) {
        FNET_LOCK(self);
        fnet_heap_node *node = fnet_heap_min(&self->timers);
        if (node != NULL) {
            fnet_heap_remove(&self->timers, node);
        }
        FNET_UNLOCK(self);
        if (node == NULL) {
            return;
        }
        TimerObject *timer = fnet_container_of(node, TimerObject, node);
        fnet_handle_drop(&timer->handle);
    }
}

static void
drop_descriptors(LoopObject *self)
{
    fnet_list *node;

    self->signal_watch = NULL;
    while ((node = self->transports.next) != &self->transports) {
        fnet_transport_abandon(fnet_container_of(node, TransportObject, link));
    }
    fnet_datagrams_abandon(self);
    for (size_t fd = 0; fd < self->nfds; fd++) {
        PyObject *object = self->fds[fd];
        self->fds[fd] = NULL;
        if (object == NULL) {
            continue;
        }
        if (Py_IS_TYPE(object, self->state->watch_type)) {
            fnet_watch_drop((WatchObject *)object);
            Py_DECREF(object);
        }
        else if (Py_IS_TYPE(object, self->state->listener_type)) {
            fnet_listener_drop((ListenerObject *)object);
            Py_DECREF(object);
        }
    }
    for (int i = 0; i < 2; i++) {
        if (self->signal_pipe[i] >= 0) {
            fnet_sys_close(self->signal_pipe[i]);
            self->signal_pipe[i] = -1;
        }
    }
}

/* Descriptors of connections that were accepted and not delivered. */
static void
drop_batch(LoopObject *self)
{
    fnet_batch *batch;

    fnet_loop_drop_batch(&self->batch);
    while ((batch = self->mail) != NULL ||
           (batch = fnet_inbox_take(&self->set.inbox)) != NULL) {
        self->mail = NULL;
        fnet_loop_drop_batch(batch);
        (void)fnet_shard_return_batch(batch->shard, batch);
    }
    for (unsigned i = 0; self->forked && i < self->set.count; i++) {
        /* What a worker had in its hands when it was forked away. */
        self->set.members[i].shard->posted = 0;
    }
}

static void
close_core(LoopObject *self)
{
    FNET_LOCK(self);
    bool closing = self->has_core && !self->core_closing && !self->in_turn;
    if (closing) {
        self->core_closing = true; /* what is dropped may call back */
    }
    FNET_UNLOCK(self);
    if (!closing) {
        return;
    }
    fnet_loop_drop_names(self);
    fnet_loop_take_shards_over(self);
    drop_batch(self);
    drop_descriptors(self);
    drop_callbacks(self);
    fnet_handle_trim(self->state, false);
    fnet_sock_let_all_go(self);
    fnet_prompter_free(self->prompter);
    self->prompter = NULL;
    FNET_LOCK(self);
    self->has_core = false;
    FNET_UNLOCK(self);
    fnet_loop_drop_all_spent(self);
    for (unsigned i = 0; i < self->set.count; i++) {
        fnet_loop_drop_landings(self->set.members[i].shard);
    }
    fnet_batch_fini(&self->batch, self->home.read_cache);
    fnet_shardset_fini(&self->set);
    fnet_shard_fini(&self->home);
    fnet_depot_free(self->depot);
    self->depot = NULL;
}

static PyObject *
loop_close(LoopObject *self, PyObject *unused)
{
    FNET_LOCK(self);
    bool running = self->thread_id != Py_None || self->in_turn;
    if (!running) {
        self->closed = true;
    }
    FNET_UNLOCK(self);
    if (running) {
        PyErr_SetString(PyExc_RuntimeError,
                        "Cannot close a running event loop");
        return NULL;
    }
    close_core(self);
    fnet_context_forget(self);
    Py_RETURN_NONE;
}

static PyObject *
loop_before_fork(LoopObject *self, PyObject *unused)
{
    if (self->has_core && !self->forked) {
        fnet_shardset_flush(&self->set);
        /* With the GIL: another thread may be about to run the loop, or to
         * close it.  None of those that are stopped here waits for it. */
        fnet_shardset_stop(&self->set);
        fnet_prompter_stop(self->prompter);
    }
    Py_RETURN_NONE;
}

static PyObject *
loop_after_fork_in_parent(LoopObject *self, PyObject *unused)
{
    if (self->has_core && !self->forked) {
        fnet_shardset_start(&self->set);
    }
    Py_RETURN_NONE;
}

/* In the child the epoll set is shared with the parent: it is closed before
 * anything could change it. */
static PyObject *
loop_after_fork(LoopObject *self, PyObject *unused)
{
    if (self->has_core && !self->forked) {
        self->forked = true;
        if (self->home.phase == FNET_PHASE_PASS) {
            /* Another thread is filling it. */
            self->batch.next = self->batch.count;
        }
        fnet_shardset_after_fork(&self->set);
        fnet_depot_forget(self->depot);
        self->set.home_away = false;
        fnet_prompter_forget(self->prompter);
#ifdef Py_GIL_DISABLED
        self->mutex = (PyMutex){0}; /* a thread of the parent's has it */
#endif
        for (int i = 0; i < 2; i++) {
            fnet_sys_close(self->signal_pipe[i]);
            self->signal_pipe[i] = -1;
        }
    }
    Py_RETURN_NONE;
}

static int
loop_traverse(LoopObject *self, visitproc visit, void *arg)
{
    fnet_heap_node **nodes = self->timers.nodes;

    Py_VISIT(Py_TYPE(self));
    Py_VISIT(self->thread_id);
    Py_VISIT(self->current_handle);
    Py_VISIT(self->snapshot);
    Py_VISIT(self->spare_context);
    for (size_t i = 0; i < self->ring_count; i++) {
        HandleObject *handle =
            self->ring[(self->ring_head + i) & self->ring_mask];
        int rc = fnet_handle_traverse(handle, visit, arg);
        if (rc != 0) {
            return rc;
        }
    }
#ifdef Py_GIL_DISABLED
    for (size_t i = 0; i < self->inbox_count; i++) {
        int rc = fnet_handle_traverse(self->inbox[i], visit, arg);
        if (rc != 0) {
            return rc;
        }
    }
#endif
    for (size_t i = 0; i < self->timers.count; i++) {
        Py_VISIT(fnet_container_of(nodes[i], TimerObject, node));
    }
    fnet_list *node;
    if (self->transports.next != NULL) {
        fnet_list_foreach(node, &self->transports)
        {
            Py_VISIT(fnet_container_of(node, TransportObject, link));
        }
    }
    for (size_t fd = 0; fd < self->nfds && self->fds != NULL; fd++) {
        PyObject *object = self->fds[fd];
        if (object != NULL && !fnet_is_transport(self->state, object)) {
            Py_VISIT(object);
        }
    }
    int rc = fnet_datagrams_traverse(self, visit, arg);
    return rc != 0 ? rc : fnet_loop_traverse_names(self, visit, arg);
}

static int
loop_clear(LoopObject *self)
{
    if (!self->in_turn) {
        self->closed = true;
        close_core(self);
        drop_callbacks(self);
    }
    Py_CLEAR(self->current_handle);
    fnet_context_forget(self);
    return 0;
}

static void
loop_dealloc(LoopObject *self)
{
    PyTypeObject *type = Py_TYPE(self);

    PyObject_GC_UnTrack(self);
    loop_clear(self);
    Py_CLEAR(self->thread_id);
    fnet_heap_fini(&self->timers);
    Py_CLEAR(self->kw_context);
    PyMem_Free(self->ring);
    PyMem_Free(self->fds);
    type->tp_free((PyObject *)self);
    Py_DECREF(type);
}

/* -- attributes that asyncio's own code looks at ------------------------ */

static PyObject *
loop_get_flag(LoopObject *self, void *which)
{
    return PyBool_FromLong(*(bool *)((char *)self + (intptr_t)which));
}

static int
loop_set_flag(LoopObject *self, PyObject *value, void *which)
{
    int yes = value == NULL ? 0 : PyObject_IsTrue(value);
    if (yes < 0) {
        return -1;
    }
    *(bool *)((char *)self + (intptr_t)which) = yes != 0;
    return 0;
}

static int
loop_set_closed(LoopObject *self, PyObject *value, void *unused)
{
    int yes = value == NULL ? 0 : PyObject_IsTrue(value);
    if (yes < 0) {
        return -1;
    }
    /* BaseEventLoop.__init__() sets it to False; nothing reopens a loop. */
    if (yes) {
        FNET_LOCK(self);
        self->closed = true;
        FNET_UNLOCK(self);
    }
    return 0;
}

static PyObject *
loop_set_debug(LoopObject *self, PyObject *enabled)
{
    if (loop_set_flag(self, enabled,
                      (void *)(intptr_t)offsetof(LoopObject, debug)) < 0) {
        return NULL;
    }
    if (self->thread_id != Py_None) {
        PyObject *method = PyObject_GetAttrString(
            (PyObject *)self, "_set_coroutine_origin_tracking");
        PyObject *args[] = {enabled};
        int rc = fnet_loop_call_soon(self, method, args, 1, NULL);
        Py_XDECREF(method);
        if (rc < 0) {
            return NULL;
        }
        fnet_loop_wake(self);
    }
    Py_RETURN_NONE;
}

static PyObject *
loop_get_thread_id(LoopObject *self, void *unused)
{
    return fnet_shared_get((PyObject *)self, &self->thread_id);
}

static int
loop_set_thread_id(LoopObject *self, PyObject *value, void *unused)
{
    fnet_shared_set((PyObject *)self, &self->thread_id,
                    Py_NewRef(value == NULL ? Py_None : value));
    return 0;
}

static PyObject *
loop_get_current_handle(LoopObject *self, void *unused)
{
    PyObject *handle =
        fnet_shared_get((PyObject *)self, &self->current_handle);
    return handle != NULL ? handle : Py_NewRef(Py_None);
}

static int
loop_set_current_handle(LoopObject *self, PyObject *value, void *unused)
{
    return 0; /* BaseEventLoop.__init__() sets None */
}

#define FLAG(field) (void *)(intptr_t)offsetof(LoopObject, field)

static PyGetSetDef loop_getset[] = {
    {"_closed", (getter)loop_get_flag, (setter)loop_set_closed, NULL,
     FLAG(closed)},
    {"_stopping", (getter)loop_get_flag, (setter)loop_set_flag, NULL,
     FLAG(stopping)},
    {"_debug", (getter)loop_get_flag, (setter)loop_set_flag, NULL,
     FLAG(debug)},
    {"_forked", (getter)loop_get_flag, NULL, NULL, FLAG(forked)},
    {"_thread_id", (getter)loop_get_thread_id, (setter)loop_set_thread_id,
     NULL, NULL},
    {"_current_handle", (getter)loop_get_current_handle,
     (setter)loop_set_current_handle, NULL, NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyMemberDef loop_members[] = {
    {"slow_callback_duration", T_DOUBLE,
     offsetof(LoopObject, slow_callback_duration), 0,
     "Debug mode: callbacks that take longer, in seconds, are logged."},
    {NULL, 0, 0, 0, NULL},
};

static PyMethodDef loop_methods[] = {
    {"time", (PyCFunction)loop_time, METH_NOARGS,
     "The loop's clock, in seconds: time.monotonic()."},
    {"create_future", (PyCFunction)loop_create_future, METH_NOARGS,
     "An asyncio.Future of this loop."},
    {"get_debug", (PyCFunction)loop_get_debug, METH_NOARGS,
     "True in debug mode."},
    {"set_debug", (PyCFunction)loop_set_debug, METH_O,
     "Switch debug mode on or off."},
    {"is_running", (PyCFunction)loop_is_running, METH_NOARGS,
     "True while the loop runs."},
    {"is_closed", (PyCFunction)loop_is_closed, METH_NOARGS,
     "True once the loop was closed."},
    {"stop", (PyCFunction)loop_stop, METH_NOARGS,
     "Leave run_forever() after the present turn."},
    {"stats", (PyCFunction)fnet_loop_stats, METH_NOARGS,
     "Counters of the loop's I/O, as a dict."},
    {"_run", (PyCFunction)fnet_loop_run, METH_NOARGS, NULL},
    {"_run_once", (PyCFunction)fnet_loop_run_once, METH_NOARGS, NULL},
    {"_close", (PyCFunction)loop_close, METH_NOARGS, NULL},
    {"_before_fork", (PyCFunction)loop_before_fork, METH_NOARGS, NULL},
    {"_after_fork", (PyCFunction)loop_after_fork, METH_NOARGS, NULL},
    {"_after_fork_in_parent", (PyCFunction)loop_after_fork_in_parent,
     METH_NOARGS, NULL},
    {"_write_to_self", (PyCFunction)loop_write_to_self, METH_NOARGS, NULL},
    {"_signal_fd", (PyCFunction)loop_signal_fd, METH_NOARGS, NULL},
    {"_make_socket_transport",
     (PyCFunction)(void (*)(void))fnet_make_socket_transport,
     METH_VARARGS | METH_KEYWORDS, NULL},
    {"_make_datagram_endpoint", (PyCFunction)fnet_make_datagram_transport,
     METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot loop_slots[] = {
    {Py_tp_doc, "The hot half of pyfastnet.EventLoop."},
    {Py_tp_new, loop_new},
    {Py_tp_init, loop_init},
    {Py_tp_dealloc, loop_dealloc},
    {Py_tp_traverse, loop_traverse},
    {Py_tp_clear, loop_clear},
    {Py_tp_methods, loop_methods},
    {Py_tp_members, loop_members},
    {Py_tp_getset, loop_getset},
    {0, NULL},
};

PyType_Spec fnet_loop_spec = {
    .name = "pyfastnet._core.Loop",
    .basicsize = sizeof(LoopObject),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_BASETYPE,
    .slots = loop_slots,
};
