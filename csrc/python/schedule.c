/* schedule: the ready queue and the timers: call_soon() and its kin. */
#include "python/module.h"

#include "base/clock.h"

#include <math.h>

static FNET_COLD int
refuse(LoopObject *self)
{
    PyErr_SetString(PyExc_RuntimeError,
                    self->closed
                        ? "Event loop is closed"
                        : "this event loop belongs to the parent process: "
                          "after a fork make a new one");
    return -1;
}

/* -- the ready queue ---------------------------------------------------- */

static int
grow_ring(LoopObject *self)
{
    size_t capacity = self->ring_mask + 1;
    HandleObject **ring = PyMem_New(HandleObject *, capacity * 2);
    if (ring == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    for (size_t i = 0; i < self->ring_count; i++) {
        ring[i] = self->ring[(self->ring_head + i) & self->ring_mask];
    }
    PyMem_Free(self->ring);
    self->ring = ring;
    self->ring_head = 0;
    self->ring_mask = capacity * 2 - 1;
#if FNET_FREELISTS
    if (self->state->free_max <= self->ring_mask) {
        self->state->free_max = capacity * 2 < FNET_FREELIST_MAX
                                    ? (unsigned)(capacity * 2)
                                    : FNET_FREELIST_MAX;
    }
#endif
    return 0;
}

bool
fnet_loop_ring_is_large(const LoopObject *self)
{
    return self->ring_mask >= 2 * FNET_FREELIST_MIN;
}

void
fnet_loop_shrink_ring(LoopObject *self)
{
    if (self->ring_count == 0 && fnet_loop_ring_is_large(self)) {
        HandleObject **ring = PyMem_New(HandleObject *, FNET_RING_START);
        if (ring != NULL) {
            PyMem_Free(self->ring);
            self->ring = ring;
            self->ring_head = 0;
            self->ring_mask = FNET_RING_START - 1;
        }
        fnet_handle_trim(self->state, false);
    }
}

static inline int
push_ring(LoopObject *self, HandleObject *handle)
{
    if (FNET_UNLIKELY(self->ring_count > self->ring_mask) &&
        grow_ring(self) < 0) {
        Py_DECREF(handle);
        return -1;
    }
    self->ring[(self->ring_head + self->ring_count++) & self->ring_mask] =
        handle;
    return 0;
}

#ifdef Py_GIL_DISABLED
/* From a thread that does not run the loop; or nobody does yet. */
static int
push_inbox(LoopObject *self, HandleObject *handle)
{
    FNET_LOCK(self);
    if (self->closed) { /* since it was looked at */
        FNET_UNLOCK(self);
        Py_DECREF(handle);
        return refuse(self);
    }
    size_t count =
        atomic_load_explicit(&self->inbox_count, memory_order_relaxed);
    if (count == self->inbox_capacity) {
        size_t capacity = count == 0 ? 64 : count * 2;
        HandleObject **inbox =
            PyMem_RawRealloc(self->inbox, capacity * sizeof(HandleObject *));
        if (inbox == NULL) {
            FNET_UNLOCK(self);
            Py_DECREF(handle);
            PyErr_NoMemory();
            return -1;
        }
        self->inbox = inbox;
        self->inbox_capacity = capacity;
    }
    self->inbox[count] = handle;
    /* Pairs with the loop's look after it said that it is asleep. */
    atomic_store(&self->inbox_count, count + 1);
    FNET_UNLOCK(self);
    return 0;
}

int
fnet_loop_take_inbox(LoopObject *self)
{
    FNET_LOCK(self);
    HandleObject **inbox = self->inbox;
    size_t count = self->inbox_count;
    self->inbox = NULL;
    self->inbox_capacity = 0;
    self->inbox_count = 0;
    FNET_UNLOCK(self);
    int rc = 0;
    for (size_t i = 0; i < count; i++) {
        if (rc == 0) {
            rc = push_ring(self, inbox[i]);
        }
        else {
            Py_DECREF(inbox[i]);
        }
    }
    PyMem_RawFree(inbox);
    return rc;
}
#else
int
fnet_loop_take_inbox(LoopObject *self)
{
    return 0;
}
#endif

int
fnet_loop_push(LoopObject *self, HandleObject *handle)
{
#ifdef Py_GIL_DISABLED
    if (!fnet_loop_owned(self)) {
        return push_inbox(self, handle);
    }
#endif
    return push_ring(self, handle);
}

void
fnet_loop_wake(LoopObject *self)
{
    FNET_LOCK(self);
    if (self->has_core) {
        fnet_shardset_wake_any(&self->set);
    }
    FNET_UNLOCK(self);
}

int
fnet_loop_call_soon(LoopObject *self, PyObject *callback,
                    PyObject *const *args, Py_ssize_t nargs, PyObject *context)
{
    if (callback == NULL) {
        return -1;
    }
    HandleObject *handle =
        fnet_handle_new(self, callback, args, nargs, context);
    return handle == NULL ? -1 : fnet_loop_push(self, handle);
}

/* -- checks ------------------------------------------------------------- */

int
fnet_loop_check(LoopObject *self)
{
    return FNET_UNLIKELY(self->closed || self->forked) ? refuse(self) : 0;
}

/* By a thread that is not this one. */
static bool
in_use_elsewhere(LoopObject *self)
{
#ifdef Py_GIL_DISABLED
    uintptr_t runner =
        atomic_load_explicit(&self->runner, memory_order_relaxed);
    return runner != 0 && runner != (uintptr_t)pthread_self();
#else
    return self->passing;
#endif
}

bool
fnet_loop_usable_here(LoopObject *self)
{
    return !self->forked && !in_use_elsewhere(self);
}

int
fnet_loop_check_thread(LoopObject *self)
{
    if (FNET_UNLIKELY(self->forked)) {
        return refuse(self);
    }
    if (FNET_UNLIKELY(in_use_elsewhere(self))) {
        PyErr_SetString(PyExc_RuntimeError,
                        "Non-thread-safe operation invoked on an event loop "
                        "from another thread: use call_soon_threadsafe()");
        return -1;
    }
    return 0;
}

/* Debug mode: the right thread, and something that can be called. */
int
fnet_loop_check_debug_call(LoopObject *self, PyObject *callback,
                           const char *method)
{
    PyObject *result;

    if (method[0] != '_') {
        result = PyObject_CallMethod((PyObject *)self, "_check_thread", NULL);
        if (result == NULL) {
            return -1;
        }
        Py_DECREF(result);
    }
    else {
        method++;
    }
    result = PyObject_CallMethod((PyObject *)self, "_check_callback", "Os",
                                 callback, method);
    Py_XDECREF(result);
    return result == NULL ? -1 : 0;
}

/* -- arguments of call_soon() and its kin ------------------------------- */

typedef struct call_args {
    PyObject *lead; /* delay or when; NULL for call_soon */
    PyObject *callback;
    PyObject *context; /* borrowed, may be NULL */
    PyObject *const *args;
    Py_ssize_t nargs;
} call_args;

static FNET_COLD int
take_keyword(module_state *state, const char *method, PyObject *name,
             PyObject *value, const char *lead_name, call_args *out)
{
    PyObject **place = NULL;

    if (PyUnicode_CompareWithASCIIString(name, "context") == 0) {
        place = &out->context;
    }
    else if (PyUnicode_CompareWithASCIIString(name, "callback") == 0 &&
             out->callback == NULL) {
        place = &out->callback;
    }
    else if (lead_name != NULL && out->lead == NULL &&
             PyUnicode_CompareWithASCIIString(name, lead_name) == 0) {
        place = &out->lead;
    }
    if (place == NULL) {
        PyErr_Format(PyExc_TypeError,
                     "%s() got an unexpected keyword argument '%U'", method,
                     name);
        return -1;
    }
    *place = value;
    return 0;
}

static FNET_COLD int
take_keywords(LoopObject *loop, const char *method, PyObject *kwnames,
              PyObject *const *values, const char *lead_name, call_args *out)
{
    Py_ssize_t n = PyTuple_GET_SIZE(kwnames);

    for (Py_ssize_t i = 0; i < n; i++) {
        if (take_keyword(loop->state, method, PyTuple_GET_ITEM(kwnames, i),
                         values[i], lead_name, out) < 0) {
            return -1;
        }
    }
    if (n == 1 && out->context == values[0] && fnet_loop_owned(loop)) {
        /* The tuple of _asyncio's Future and Task, which call with the same
         * one each time and have not interned the name in it. */
        Py_XSETREF(loop->kw_context, Py_NewRef(kwnames));
    }
    return 0;
}

static int
parse_call(LoopObject *self, const char *method, const char *lead_name,
           PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames,
           call_args *out)
{
    Py_ssize_t used = 0;

    *out = (call_args){0};
    if (lead_name != NULL && used < nargs) {
        out->lead = args[used++];
    }
    if (used < nargs) {
        out->callback = args[used++];
    }
    out->args = args + used;
    out->nargs = nargs - used;
    if (kwnames != NULL && FNET_LIKELY(kwnames == self->kw_context) &&
        fnet_loop_owned(self)) {
        out->context = args[nargs];
    }
    else if (kwnames != NULL &&
             take_keywords(self, method, kwnames, args + nargs, lead_name,
                           out) < 0) {
        return -1;
    }
    if (out->callback == NULL || (lead_name != NULL && out->lead == NULL)) {
        PyErr_Format(PyExc_TypeError,
                     "%s() missing required positional argument: '%s'", method,
                     lead_name != NULL && out->lead == NULL ? lead_name
                                                            : "callback");
        return -1;
    }
    return fnet_loop_check(self);
}

/* call_soon(): `check` names the method for debug mode's checks, with a "_" in
 * front where any thread may call it. */
static PyObject *
call_soon(LoopObject *self, const char *check, PyObject *const *args,
          Py_ssize_t nargs, PyObject *kwnames)
{
    call_args call;
    const char *method = check[0] == '_' ? check + 1 : check;

    if (parse_call(self, method, NULL, args, nargs, kwnames, &call) < 0) {
        return NULL;
    }
    if (FNET_UNLIKELY(self->debug) &&
        fnet_loop_check_debug_call(self, call.callback, check) < 0) {
        return NULL;
    }
    HandleObject *handle = fnet_handle_new(self, call.callback, call.args,
                                           call.nargs, call.context);
    if (handle == NULL || fnet_loop_push(self, (HandleObject *)Py_NewRef(
                                                   (PyObject *)handle)) < 0) {
        Py_XDECREF(handle);
        return NULL;
    }
    return (PyObject *)handle;
}

static PyObject *
loop_call_soon(LoopObject *self, PyObject *const *args, Py_ssize_t nargs,
               PyObject *kwnames)
{
    return call_soon(self, "call_soon", args, nargs, kwnames);
}

static PyObject *
loop_call_soon_threadsafe(LoopObject *self, PyObject *const *args,
                          Py_ssize_t nargs, PyObject *kwnames)
{
    PyObject *handle =
        call_soon(self, "_call_soon_threadsafe", args, nargs, kwnames);
    if (handle != NULL) {
        fnet_loop_wake(self);
    }
    return handle;
}

/* The first instant of the clock at which loop.time() is at least `when`. */
static int64_t
deadline_of(double when)
{
    if (isnan(when) || when <= -9.0e9) {
        return INT64_MIN; /* asyncio runs both in the next turn */
    }
    if (when >= 9.0e9) {
        return INT64_MAX;
    }
    int64_t deadline = (int64_t)ceil(when * 1e9);
    while ((double)deadline / 1e9 < when) {
        deadline++;
    }
    return deadline;
}

/* call_at(); or, where `relative`, call_later(). */
static PyObject *
schedule(LoopObject *self, bool relative, PyObject *const *args,
         Py_ssize_t nargs, PyObject *kwnames)
{
    const char *method = relative ? "call_later" : "call_at";
    call_args call;

    if (parse_call(self, method, relative ? "delay" : "when", args, nargs,
                   kwnames, &call) < 0) {
        return NULL;
    }
    if (call.lead == Py_None) {
        PyErr_SetString(PyExc_TypeError, relative ? "delay must not be None"
                                                  : "when cannot be None");
        return NULL;
    }
    double when = PyFloat_AsDouble(call.lead);
    if (when == -1.0 && PyErr_Occurred()) {
        return NULL;
    }
    if (FNET_UNLIKELY(self->debug) &&
        fnet_loop_check_debug_call(self, call.callback, method) < 0) {
        return NULL;
    }
    if (relative) {
        when += (double)fnet_clock_ns() / 1e9;
    }
    TimerObject *timer = fnet_timer_new(self, when, call.callback, call.args,
                                        call.nargs, call.context);
    if (timer == NULL) {
        return NULL;
    }
    timer->whole = !relative && PyLong_Check(call.lead);
    Py_INCREF(timer); /* the heap's */
    FNET_LOCK(self);
    int rc = fnet_heap_push(&self->timers, &timer->node, deadline_of(when));
    FNET_UNLOCK(self);
    if (rc < 0) {
        Py_DECREF(timer);
        Py_DECREF(timer);
        return PyErr_NoMemory();
    }
    return (PyObject *)timer;
}

static PyObject *
loop_call_at(LoopObject *self, PyObject *const *args, Py_ssize_t nargs,
             PyObject *kwnames)
{
    return schedule(self, false, args, nargs, kwnames);
}

static PyObject *
loop_call_later(LoopObject *self, PyObject *const *args, Py_ssize_t nargs,
                PyObject *kwnames)
{
    return schedule(self, true, args, nargs, kwnames);
}

static PyObject *
loop_add_callback(LoopObject *self, PyObject *handle)
{
    if (!PyObject_TypeCheck(handle, self->state->handle_type)) {
        /* One of asyncio's own: run it from one of ours. */
        PyObject *cancelled = PyObject_CallMethod(handle, "cancelled", NULL);
        int skip = cancelled == NULL ? -1 : PyObject_IsTrue(cancelled);
        Py_XDECREF(cancelled);
        if (skip < 0) {
            return NULL;
        }
        PyObject *run = skip ? NULL : PyObject_GetAttrString(handle, "_run");
        if (!skip && fnet_loop_call_soon(self, run, NULL, 0, NULL) < 0) {
            Py_XDECREF(run);
            return NULL;
        }
        Py_XDECREF(run);
        Py_RETURN_NONE;
    }
    ((HandleObject *)handle)->again = true;
    if (!((HandleObject *)handle)->cancelled &&
        fnet_loop_push(self, (HandleObject *)Py_NewRef(handle)) < 0) {
        return NULL;
    }
    Py_RETURN_NONE;
}

static PyObject *
loop_add_callback_signalsafe(LoopObject *self, PyObject *handle)
{
    PyObject *result = loop_add_callback(self, handle);
    if (result != NULL) {
        fnet_loop_wake(self);
    }
    return result;
}

#define FAST(function)                                                        \
    (PyCFunction)(void (*)(void))(function), METH_FASTCALL | METH_KEYWORDS

PyMethodDef fnet_schedule_methods[] = {
    {"call_soon", FAST(loop_call_soon),
     "Run callback(*args) in the next turn; see asyncio."},
    {"call_soon_threadsafe", FAST(loop_call_soon_threadsafe),
     "call_soon() from any thread: the loop is woken if it sleeps."},
    {"call_later", FAST(loop_call_later),
     "Run callback(*args) once, delay seconds from now, never earlier."},
    {"call_at", FAST(loop_call_at),
     "Run callback(*args) once loop.time() has reached when."},
    {"_add_callback", (PyCFunction)loop_add_callback, METH_O, NULL},
    {"_add_callback_signalsafe", (PyCFunction)loop_add_callback_signalsafe,
     METH_O, NULL},
    {NULL, NULL, 0, NULL},
};
