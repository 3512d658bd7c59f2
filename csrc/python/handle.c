/* handle: asyncio.Handle and asyncio.TimerHandle in C.
 *
 * Arguments stand inline and objects come from a bounded free list.
 * isinstance() with asyncio's classes holds through __class__: inheriting
 * their lay-out of eight slots would make each handle twice as large and as
 * slow to free. */
#include "python/module.h"

#include "base/clock.h"

#include <math.h>

#define DEALLOC_DEPTH 32

/* -- life -------------------------------------------------------------------
 */

static PyObject *
new_object(module_state *state, bool timer)
{
#if FNET_FREELISTS
    if (timer && state->free_timers_count > 0) {
        PyObject *object = state->free_timers[--state->free_timers_count];
        Py_SET_REFCNT(object, 1);
        return object;
    }
    if (!timer && state->free_handles_count > 0) {
        PyObject *object = state->free_handles[--state->free_handles_count];
        Py_SET_REFCNT(object, 1);
        return object;
    }
#endif
    if (timer) {
        return (PyObject *)PyObject_GC_New(TimerObject, state->timer_type);
    }
    return (PyObject *)PyObject_GC_New(HandleObject, state->handle_type);
}

static int
set_args(HandleObject *self, PyObject *const *args, Py_ssize_t nargs)
{
    self->args = NULL;
    self->nargs = 0;
    if (nargs > HANDLE_INLINE_ARGS) {
        self->args = PyTuple_New(nargs);
        if (self->args == NULL) {
            return -1;
        }
        for (Py_ssize_t i = 0; i < nargs; i++) {
            PyTuple_SET_ITEM(self->args, i, Py_NewRef(args[i]));
        }
        return 0;
    }
    for (Py_ssize_t i = 0; i < nargs; i++) {
        self->argv[1 + i] = Py_NewRef(args[i]);
    }
    self->nargs = (uint8_t)nargs;
    return 0;
}

static int
init_handle(HandleObject *self, LoopObject *loop, PyObject *callback,
            PyObject *const *args, Py_ssize_t nargs, PyObject *context)
{
    self->loop = (LoopObject *)Py_NewRef((PyObject *)loop);
    self->callback = Py_NewRef(callback);
    self->source_traceback = NULL;
    self->old_repr = NULL;
    self->weakrefs = NULL;
    self->cancelled = false;
    self->again = false;
    self->context = context == NULL || context == Py_None
                        ? PyContext_CopyCurrent()
                        : Py_NewRef(context);
    int rc = set_args(self, args, nargs);
    if (rc == 0 && self->context == NULL) {
        rc = -1;
    }
    if (rc == 0 && loop->debug) {
        PyObject *stack =
            PyObject_CallMethod(loop->state->report, "extract_stack", NULL);
        if (stack == NULL) {
            rc = -1;
        }
        self->source_traceback = stack;
    }
    if (self->is_timer) {
        /* Programs keep timers, in objects that the callback refers to.  A
         * plain handle is seldom kept, and holds nothing once it ran: the
         * collector sees through those that the loop alone holds
         * (loop_traverse), which spares it a hundred thousand objects when
         * that many callbacks wait (micro.py, threadsafe: twice the rate). */
        PyObject_GC_Track(self);
    }
    return rc;
}

HandleObject *
fnet_handle_new(LoopObject *loop, PyObject *callback, PyObject *const *args,
                Py_ssize_t nargs, PyObject *context)
{
    HandleObject *self = (HandleObject *)new_object(loop->state, false);
    if (self == NULL) {
        return NULL;
    }
    self->is_timer = false;
    if (init_handle(self, loop, callback, args, nargs, context) < 0) {
        Py_DECREF(self);
        return NULL;
    }
    return self;
}

TimerObject *
fnet_timer_new(LoopObject *loop, double when, PyObject *callback,
               PyObject *const *args, Py_ssize_t nargs, PyObject *context)
{
    TimerObject *self = (TimerObject *)new_object(loop->state, true);
    if (self == NULL) {
        return NULL;
    }
    self->handle.is_timer = true;
    self->when = when;
    self->whole = false;
    fnet_heap_node_init(&self->node);
    if (init_handle(&self->handle, loop, callback, args, nargs, context) < 0) {
        Py_DECREF(self);
        return NULL;
    }
    return self;
}

static int
handle_traverse(HandleObject *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(self->loop);
    Py_VISIT(self->callback);
    Py_VISIT(self->context);
    Py_VISIT(self->args);
    Py_VISIT(self->source_traceback);
    for (unsigned i = 1; i <= self->nargs; i++) {
        Py_VISIT(self->argv[i]);
    }
    return 0;
}

/* Drops callback and arguments; what they free may call back, so they leave
 * their fields first. */
static void
clear_call(HandleObject *self)
{
    PyObject *argv[HANDLE_INLINE_ARGS];
    unsigned n = self->nargs;

    for (unsigned i = 0; i < n; i++) {
        argv[i] = self->argv[1 + i];
    }
    self->nargs = 0;
    Py_CLEAR(self->callback);
    Py_CLEAR(self->args);
    for (unsigned i = 0; i < n; i++) {
        Py_DECREF(argv[i]);
    }
}

static int
handle_clear(HandleObject *self)
{
    clear_call(self);
    Py_CLEAR(self->context);
    Py_CLEAR(self->source_traceback);
    Py_CLEAR(self->old_repr);
    return 0;
}

/* The memory of one whose fields are empty: to the free list, if it fits. */
static void
free_object(HandleObject *self)
{
    PyTypeObject *type = Py_TYPE(self);

#if FNET_FREELISTS
    module_state *state = self->loop->state;
    Py_DECREF(self->loop);
    if (self->is_timer && state->free_timers_count < FNET_FREELIST_MAX) {
        state->free_timers[state->free_timers_count++] = (PyObject *)self;
        return;
    }
    if (!self->is_timer && state->free_handles_count < FNET_FREELIST_MAX) {
        state->free_handles[state->free_handles_count++] = (PyObject *)self;
        return;
    }
#else
    Py_DECREF(self->loop);
#endif
    PyObject_GC_Del(self);
    Py_DECREF(type);
}

static void
empty_object(HandleObject *self)
{
    if (self->weakrefs != NULL) {
        PyObject_ClearWeakRefs((PyObject *)self);
    }
    handle_clear(self);
    fnet_assert(!self->is_timer ||
                !fnet_heap_contains(&((TimerObject *)self)->node));
}

/* A handle may be the argument of the next one, and so on: without the
 * trashcan a long chain of them overflows the stack.  It costs 5 ns, so the
 * first few of a chain do without. */
static void
handle_dealloc(HandleObject *self)
{
    PyObject_GC_UnTrack(self);
#if FNET_FREELISTS
    module_state *state = self->loop->state;
    if (FNET_LIKELY(state->dealloc_depth < DEALLOC_DEPTH)) {
        state->dealloc_depth++;
        empty_object(self);
        state->dealloc_depth--;
        free_object(self);
        return;
    }
#endif
    Py_TRASHCAN_BEGIN(self, handle_dealloc) empty_object(self);
    free_object(self);
    Py_TRASHCAN_END
}

void
fnet_handle_clear_freelists(module_state *state)
{
#if FNET_FREELISTS
    while (state->free_handles_count > 0) {
        PyObject_GC_Del(state->free_handles[--state->free_handles_count]);
        Py_DECREF(state->handle_type);
    }
    while (state->free_timers_count > 0) {
        PyObject_GC_Del(state->free_timers[--state->free_timers_count]);
        Py_DECREF(state->timer_type);
    }
#endif
}

/* -- running ----------------------------------------------------------------
 */

/* What a handle holds, in hands of our own for the time of the call: cancel()
 * in the callback empties the handle. */
typedef struct handle_call {
    PyObject *callback, *context, *args;
    PyObject *argv[1 + HANDLE_INLINE_ARGS]; /* argv[0]: the callee's scratch */
    unsigned n;
} handle_call;

/* With references of its own. */
static void
copy_call(HandleObject *self, handle_call *call)
{
    call->callback = Py_NewRef(self->callback);
    call->context = Py_NewRef(self->context);
    call->args = Py_XNewRef(self->args);
    call->n = self->nargs;
    for (unsigned i = 1; i <= call->n; i++) {
        call->argv[i] = Py_NewRef(self->argv[i]);
    }
}

/* With the handle's references, which is empty meanwhile: for one that the
 * loop alone holds. */
static void
move_call(HandleObject *self, handle_call *call)
{
    call->callback = self->callback;
    call->context = self->context;
    call->args = self->args;
    call->n = self->nargs;
    for (unsigned i = 1; i <= call->n; i++) {
        call->argv[i] = self->argv[i];
    }
    self->callback = self->context = self->args = NULL;
    self->nargs = 0;
}

static void
move_back(HandleObject *self, const handle_call *call)
{
    self->callback = call->callback;
    self->context = call->context;
    self->args = call->args;
    self->nargs = (uint8_t)call->n;
    for (unsigned i = 1; i <= call->n; i++) {
        self->argv[i] = call->argv[i];
    }
}

static void
drop_call(handle_call *call)
{
    Py_DECREF(call->context);
    Py_XDECREF(call->args);
    for (unsigned i = 1; i <= call->n; i++) {
        Py_DECREF(call->argv[i]);
    }
    Py_DECREF(call->callback);
}

static PyObject *
make_call(handle_call *call)
{
    PyObject *result = NULL;

    if (FNET_UNLIKELY(PyContext_Enter(call->context) < 0)) {
        return NULL;
    }
    if (FNET_UNLIKELY(call->args != NULL)) {
        result = PyObject_CallObject(call->callback, call->args);
    }
    else {
        result = PyObject_Vectorcall(call->callback, call->argv + 1,
                                     call->n | PY_VECTORCALL_ARGUMENTS_OFFSET,
                                     NULL);
    }
    /* Before anything is freed: what runs then may enter it. */
    if (FNET_UNLIKELY(PyContext_Exit(call->context) < 0)) {
        Py_CLEAR(result);
    }
    return result;
}

static PyObject *
call_in_context(HandleObject *self)
{
    handle_call call;

    copy_call(self, &call);
    PyObject *result = make_call(&call);
    drop_call(&call);
    return result;
}

static FNET_COLD int
call_failed(LoopObject *loop, HandleObject *self)
{
    if (fnet_must_propagate()) {
        return -1;
    }
    PyObject *exc = fnet_err_take();
    int rc =
        fnet_report(loop->state, "callback_failed", "(OOO)", loop, self, exc);
    Py_DECREF(exc);
    return rc;
}

static FNET_COLD int
run_in_debug(LoopObject *loop, HandleObject *self)
{
    int64_t begin = fnet_clock_ns();
    int rc = 0;

    Py_XSETREF(loop->current_handle, Py_NewRef((PyObject *)self));
    PyObject *result = call_in_context(self);
    if (result == NULL) {
        rc = call_failed(loop, self);
    }
    Py_XDECREF(result);
    double took = (double)(fnet_clock_ns() - begin) / 1e9;
    if (rc == 0 && took >= loop->slow_callback_duration) {
        rc = fnet_report(loop->state, "slow_callback", "(OOd)", loop, self,
                         took);
    }
    Py_CLEAR(loop->current_handle);
    return rc;
}

int
fnet_handle_run(LoopObject *loop, HandleObject *self)
{
    if (FNET_UNLIKELY(self->cancelled || self->callback == NULL)) {
        return 0;
    }
    if (FNET_UNLIKELY(loop->debug)) {
        return run_in_debug(loop, self);
    }
    PyObject *result;
    if (Py_REFCNT(self) == 1 && !self->again) {
        handle_call call;
        move_call(self, &call);
        result = make_call(&call);
        if (FNET_UNLIKELY(result == NULL)) {
            move_back(self, &call);
            return call_failed(loop, self);
        }
        drop_call(&call);
    }
    else {
        result = call_in_context(self);
        if (FNET_UNLIKELY(result == NULL)) {
            return call_failed(loop, self);
        }
    }
    Py_DECREF(result);
    return 0;
}

int
fnet_handle_traverse(HandleObject *self, visitproc visit, void *arg)
{
    if (self->is_timer || Py_REFCNT(self) > 1) {
        Py_VISIT(self);
        return 0;
    }
    return handle_traverse(self, visit, arg);
}

void
fnet_handle_drop(HandleObject *self)
{
    if (!self->again) {
        clear_call(self);
    }
    Py_DECREF(self);
}

/* -- Python's face ------------------------------------------------------ */

static PyObject *
or_none(PyObject *object)
{
    return Py_NewRef(object != NULL ? object : Py_None);
}

int
fnet_handle_cancel(HandleObject *self)
{
    if (self->cancelled) {
        return 0;
    }
    self->cancelled = true;
    if (FNET_UNLIKELY(self->loop->debug)) {
        /* A description is kept, the objects are not. */
        PyObject *text = PyObject_Repr((PyObject *)self);
        if (text == NULL) {
            return -1;
        }
        Py_XSETREF(self->old_repr, text);
    }
    if (self->is_timer) {
        TimerObject *timer = (TimerObject *)self;
        if (fnet_heap_contains(&timer->node)) {
            fnet_heap_remove(&self->loop->timers, &timer->node);
            Py_DECREF(self); /* the heap's; the caller has one */
        }
    }
    clear_call(self);
    return 0;
}

static PyObject *
handle_cancel(HandleObject *self, PyObject *unused)
{
    if (fnet_handle_cancel(self) < 0) {
        return NULL;
    }
    Py_RETURN_NONE;
}

static PyObject *
handle_cancelled(HandleObject *self, PyObject *unused)
{
    return PyBool_FromLong(self->cancelled);
}

static PyObject *
handle_get_context(HandleObject *self, PyObject *unused)
{
    return or_none(self->context);
}

static PyObject *
handle_run(HandleObject *self, PyObject *unused)
{
    if (fnet_handle_run(self->loop, self) < 0) {
        return NULL;
    }
    Py_RETURN_NONE;
}

static PyObject *
handle_repr(HandleObject *self)
{
    return PyObject_CallMethod(self->loop->state->report, "handle_repr", "O",
                               self);
}

static PyObject *
handle_get_class(HandleObject *self, void *unused)
{
    module_state *state = self->loop->state;
    return Py_NewRef(self->is_timer ? state->asyncio_timer
                                    : state->asyncio_handle);
}

static PyObject *
handle_get_args(HandleObject *self, void *unused)
{
    if (self->callback == NULL) {
        Py_RETURN_NONE;
    }
    if (self->args != NULL) {
        return Py_NewRef(self->args);
    }
    PyObject *args = PyTuple_New(self->nargs);
    for (unsigned i = 0; args != NULL && i < self->nargs; i++) {
        PyTuple_SET_ITEM(args, i, Py_NewRef(self->argv[1 + i]));
    }
    return args;
}

static PyObject *
handle_get_field(HandleObject *self, void *which)
{
    switch (*(const char *)which) {
    case 'c':
        return or_none(self->callback);
    case 'l':
        return or_none((PyObject *)self->loop);
    case 'x':
        return or_none(self->context);
    case 't':
        return or_none(self->source_traceback);
    case 'r':
        return or_none(self->old_repr);
    default:
        return PyBool_FromLong(self->cancelled);
    }
}

static PyGetSetDef handle_getset[] = {
    {"__class__", (getter)handle_get_class, NULL, NULL, NULL},
    {"_args", (getter)handle_get_args, NULL, NULL, NULL},
    {"_callback", (getter)handle_get_field, NULL, NULL, "c"},
    {"_loop", (getter)handle_get_field, NULL, NULL, "l"},
    {"_context", (getter)handle_get_field, NULL, NULL, "x"},
    {"_source_traceback", (getter)handle_get_field, NULL, NULL, "t"},
    {"_repr", (getter)handle_get_field, NULL, NULL, "r"},
    {"_cancelled", (getter)handle_get_field, NULL, NULL, "d"},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyMethodDef handle_methods[] = {
    {"cancel", (PyCFunction)handle_cancel, METH_NOARGS,
     "Cancel the callback; its arguments are released at once."},
    {"cancelled", (PyCFunction)handle_cancelled, METH_NOARGS,
     "True if the callback was cancelled."},
    {"get_context", (PyCFunction)handle_get_context, METH_NOARGS,
     "The context that the callback runs in."},
    {"_run", (PyCFunction)handle_run, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef handle_members[] = {
    {"__weaklistoffset__", T_PYSSIZET, offsetof(HandleObject, weakrefs),
     READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot handle_slots[] = {
    {Py_tp_doc, "A callback that is scheduled; see asyncio.Handle."},
    {Py_tp_dealloc, handle_dealloc},
    {Py_tp_traverse, handle_traverse},
    {Py_tp_clear, handle_clear},
    {Py_tp_repr, handle_repr},
    {Py_tp_methods, handle_methods},
    {Py_tp_members, handle_members},
    {Py_tp_getset, handle_getset},
    {0, NULL},
};

PyType_Spec fnet_handle_spec = {
    .name = "pyfastnet._core.Handle",
    .basicsize = sizeof(HandleObject),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC |
             Py_TPFLAGS_DISALLOW_INSTANTIATION | Py_TPFLAGS_IMMUTABLETYPE |
             Py_TPFLAGS_BASETYPE,
    .slots = handle_slots,
};

static PyObject *
timer_when(TimerObject *self, PyObject *unused)
{
    return self->whole ? PyLong_FromDouble(self->when)
                       : PyFloat_FromDouble(self->when);
}

static PyObject *
timer_get_when(TimerObject *self, void *unused)
{
    return timer_when(self, NULL);
}

static PyObject *
timer_get_scheduled(TimerObject *self, void *unused)
{
    return PyBool_FromLong(fnet_heap_contains(&self->node));
}

static Py_hash_t
timer_hash(TimerObject *self)
{
    PyObject *when = PyFloat_FromDouble(self->when);
    if (when == NULL) {
        return -1;
    }
    Py_hash_t hash = PyObject_Hash(when);
    Py_DECREF(when);
    return hash;
}

/* Compares what both return for the same question; their own references may
 * go while __eq__() runs. */
static int
same_answer(TimerObject *self, TimerObject *that,
            PyObject *(*ask)(HandleObject *, void *), void *which)
{
    PyObject *one = ask(&self->handle, which);
    PyObject *other = one == NULL ? NULL : ask(&that->handle, which);
    int same =
        other == NULL ? -1 : PyObject_RichCompareBool(one, other, Py_EQ);
    Py_XDECREF(one);
    Py_XDECREF(other);
    return same;
}

/* As asyncio's: by time; equal when callback and arguments are equal, too. */
static PyObject *
timer_richcompare(TimerObject *self, PyObject *other, int op)
{
    if (!Py_IS_TYPE(other, Py_TYPE(self))) {
        Py_RETURN_NOTIMPLEMENTED;
    }
    TimerObject *that = (TimerObject *)other;
    if (op == Py_LT || op == Py_GT || op == Py_LE || op == Py_GE) {
        Py_RETURN_RICHCOMPARE(self->when, that->when, op);
    }
    int same = self == that;
    if (!same && self->when == that->when &&
        self->handle.cancelled == that->handle.cancelled) {
        same = same_answer(self, that, handle_get_field, "c");
        if (same > 0) {
            same = same_answer(self, that, handle_get_args, NULL);
        }
        if (same < 0) {
            return NULL;
        }
    }
    return PyBool_FromLong(op == Py_EQ ? same : !same);
}

static PyMethodDef timer_methods[] = {
    {"when", (PyCFunction)timer_when, METH_NOARGS,
     "The scheduled time, in seconds of the loop's clock."},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef timer_getset[] = {
    {"_when", (getter)timer_get_when, NULL, NULL, NULL},
    {"_scheduled", (getter)timer_get_scheduled, NULL, NULL, NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot timer_slots[] = {
    {Py_tp_doc, "A callback for a later time; see asyncio.TimerHandle."},
    {Py_tp_dealloc, handle_dealloc},
    {Py_tp_traverse, handle_traverse},
    {Py_tp_clear, handle_clear},
    {Py_tp_hash, timer_hash},
    {Py_tp_richcompare, timer_richcompare},
    {Py_tp_methods, timer_methods},
    {Py_tp_getset, timer_getset},
    {0, NULL},
};

PyType_Spec fnet_timer_spec = {
    .name = "pyfastnet._core.TimerHandle",
    .basicsize = sizeof(TimerObject),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC |
             Py_TPFLAGS_DISALLOW_INSTANTIATION | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = timer_slots,
};
