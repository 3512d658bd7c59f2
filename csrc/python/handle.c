/* handle: asyncio.Handle and asyncio.TimerHandle in C.
 *
 * Arguments stand inline and objects come from a bounded free list.
 * isinstance() with asyncio's classes holds through __class__: inheriting
 * their lay-out of eight slots would make each handle twice as large and as
 * slow to free. */
#include "python/context.h"

#include "base/clock.h"

#include <math.h>

#define DEALLOC_DEPTH 32

/* -- life ----------------------------------------------------------------- */

/* An object whose fields are empty, but for `loop`. */
static HandleObject *
new_object(module_state *state, bool timer)
{
    HandleObject *self;

#if FNET_FREELISTS
    self = state->free_handles[timer];
    if (FNET_LIKELY(self != NULL)) {
        state->free_handles[timer] = (HandleObject *)(void *)self->loop;
        state->free_count[timer]--;
        return self;
    }
#endif
    if (timer) {
        TimerObject *object = PyObject_GC_New(TimerObject, state->timer_type);
        if (object == NULL) {
            return NULL;
        }
        fnet_heap_node_init(&object->node);
        self = &object->handle;
    }
    else {
        self = PyObject_GC_New(HandleObject, state->handle_type);
        if (self == NULL) {
            return NULL;
        }
    }
    self->callback = self->context = self->args = NULL;
    self->source_traceback = self->old_repr = self->weakrefs = NULL;
    self->nargs = 0;
    self->cancelled = self->again = self->snapshot = false;
    self->is_timer = timer;
    return self;
}

static int
set_args(HandleObject *self, PyObject *const *args, Py_ssize_t nargs)
{
    if (FNET_UNLIKELY(nargs > HANDLE_INLINE_ARGS)) {
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
    self->foreign = !fnet_loop_owned(loop);
    if (context == NULL || context == Py_None) {
        self->context = fnet_context_take(loop);
        self->snapshot = fnet_loop_owned(loop);
    }
    else {
        self->context = Py_NewRef(context);
    }
    int rc = set_args(self, args, nargs);
    if (FNET_UNLIKELY(self->context == NULL)) {
        rc = -1;
    }
    if (FNET_UNLIKELY(rc == 0 && loop->debug)) {
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
    HandleObject *self = new_object(loop->state, false);
    if (self == NULL) {
        return NULL;
    }
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
    self->when = when;
    self->whole = false;
    if (init_handle(&self->handle, loop, callback, args, nargs, context) < 0) {
        Py_DECREF(self);
        return NULL;
    }
    return self;
}

int
fnet_handle_object_traverse(HandleObject *self, visitproc visit, void *arg)
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

    FNET_LOCK(self->loop);
    unsigned n = self->nargs;
    PyObject *callback = self->callback;
    PyObject *args = self->args;
    for (unsigned i = 0; i < n; i++) {
        argv[i] = self->argv[1 + i];
    }
    self->nargs = 0;
    self->callback = self->args = NULL;
    FNET_UNLOCK(self->loop);
    Py_XDECREF(callback);
    Py_XDECREF(args);
    for (unsigned i = 0; i < n; i++) {
        Py_DECREF(argv[i]);
    }
}

int
fnet_handle_object_clear(HandleObject *self)
{
    clear_call(self);
    Py_CLEAR(self->context);
    if (fnet_loop_owned(self->loop) && !self->loop->in_turn) {
        fnet_context_settle(self->loop);
    }
    Py_CLEAR(self->source_traceback);
    Py_CLEAR(self->old_repr);
    return 0;
}

/* The memory of one whose fields are empty: to the free list, if it fits. */
static void
free_object(HandleObject *self)
{
    LoopObject *loop = self->loop;
    PyTypeObject *type = Py_TYPE(self);

#if FNET_FREELISTS
    module_state *state = loop->state;
    bool timer = self->is_timer;
    if (FNET_LIKELY(state->free_count[timer] < state->free_max)) {
        Py_SET_REFCNT((PyObject *)self, 1);
        self->cancelled = self->again = self->snapshot = false;
        self->loop = (LoopObject *)(void *)state->free_handles[timer];
        state->free_handles[timer] = self;
        state->free_count[timer]++;
        Py_DECREF(loop);
        return;
    }
#endif
    PyObject_GC_Del(self);
    Py_DECREF(type);
    Py_DECREF(loop);
}

static void
empty_object(HandleObject *self)
{
    if (self->weakrefs != NULL) {
        PyObject_ClearWeakRefs((PyObject *)self);
    }
    fnet_handle_object_clear(self);
    fnet_assert(!self->is_timer ||
                !fnet_heap_contains(&((TimerObject *)self)->node));
}

/* A handle may be the argument of the next one, and so on: without the
 * trashcan a long chain of them overflows the stack.  It costs 5 ns, so the
 * first few of a chain do without. */
void
fnet_handle_object_dealloc(HandleObject *self)
{
    if (self->is_timer) {
        PyObject_GC_UnTrack(self);
    }
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
    Py_TRASHCAN_BEGIN(self, fnet_handle_object_dealloc) empty_object(self);
    free_object(self);
    Py_TRASHCAN_END
}

void
fnet_handle_trim(module_state *state, bool all)
{
#if FNET_FREELISTS
    PyTypeObject *types[] = {state->handle_type, state->timer_type};

    state->free_max = all ? 0 : FNET_FREELIST_MIN;
    for (int i = 0; i < 2; i++) {
        while (state->free_count[i] > state->free_max) {
            HandleObject *self = state->free_handles[i];
            state->free_handles[i] = (HandleObject *)(void *)self->loop;
            state->free_count[i]--;
            PyObject_GC_Del(self);
            Py_DECREF(types[i]);
        }
    }
#endif
}

/* -- running -------------------------------------------------------------- */

/* What a handle holds, in hands of our own for the time of the call: cancel()
 * in the callback empties the handle. */
typedef struct handle_call {
    PyObject *callback, *context, *args;
    PyObject *argv[1 + HANDLE_INLINE_ARGS]; /* argv[0]: the callee's scratch */
    unsigned n;
} handle_call;

/* With references of its own; false: it was cancelled. */
static bool
copy_call(HandleObject *self, handle_call *call)
{
    FNET_LOCK(self->loop);
    bool there = self->callback != NULL && self->context != NULL;
    if (there) {
        call->callback = Py_NewRef(self->callback);
        call->context = Py_NewRef(self->context);
        call->args = Py_XNewRef(self->args);
        call->n = self->nargs;
        for (unsigned i = 1; i <= call->n; i++) {
            call->argv[i] = Py_NewRef(self->argv[i]);
        }
    }
    FNET_UNLOCK(self->loop);
    return there;
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

/* A callable without vectorcall, such as the one that steps a Task: what
 * PyObject_Vectorcall() does, without the detour that arguments need. */
static PyObject *
call_slot(PyObject *callback, PyObject *no_args)
{
    PyObject *result = Py_TYPE(callback)->tp_call(callback, no_args, NULL);

    if (FNET_UNLIKELY((result == NULL) != (PyErr_Occurred() != NULL))) {
        Py_CLEAR(result);
        PyErr_Format(PyExc_SystemError,
                     "%R returned a result with an exception set, or neither",
                     callback);
    }
    return result;
}

/* `argv` has a slot in front for the callee. */
static inline PyObject *
call_in(PyObject *context, PyObject *callback, PyObject **argv, size_t n,
        PyObject *args, module_state *state)
{
    PyTypeObject *type = Py_TYPE(callback);
    PyObject *result;

    if (FNET_UNLIKELY(PyContext_Enter(context) < 0)) {
        return NULL;
    }
    if (FNET_UNLIKELY(args != NULL)) {
        result = PyObject_CallObject(callback, args);
    }
    else if (type == &PyFunction_Type) {
        result = ((PyFunctionObject *)callback)
                     ->vectorcall(callback, argv + 1,
                                  n | PY_VECTORCALL_ARGUMENTS_OFFSET, NULL);
    }
    else if (n == 0 && type->tp_call != NULL &&
             !(type->tp_flags & Py_TPFLAGS_HAVE_VECTORCALL)) {
        result = call_slot(callback, state->no_args);
    }
    else {
        result = PyObject_Vectorcall(callback, argv + 1,
                                     n | PY_VECTORCALL_ARGUMENTS_OFFSET, NULL);
    }
    /* Before anything is freed: what runs then may enter it. */
    if (FNET_UNLIKELY(PyContext_Exit(context) < 0)) {
        Py_CLEAR(result);
    }
    return result;
}

static PyObject *
call_in_context(HandleObject *self)
{
    handle_call call;

    if (fnet_handle_own_context(self) < 0) {
        return NULL;
    }
    if (!copy_call(self, &call)) {
        Py_RETURN_NONE; /* meanwhile, by another thread */
    }
    PyObject *result = call_in(call.context, call.callback, call.argv, call.n,
                               call.args, self->loop->state);
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

    fnet_shared_set((PyObject *)loop, &loop->current_handle,
                    Py_NewRef((PyObject *)self));
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
    fnet_shared_set((PyObject *)loop, &loop->current_handle, NULL);
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
    PyObject *result = call_in_context(self);
    if (FNET_UNLIKELY(result == NULL)) {
        return call_failed(loop, self);
    }
    Py_DECREF(result);
    return 0;
}

/* Runs one that the loop alone has, and nobody can find: with the references
 * that it holds, which it keeps until then. */
static int
run_private(LoopObject *loop, HandleObject *self)
{
    bool snapshot = self->snapshot;
    PyObject *context = self->context;

    if (snapshot) {
        context = fnet_context_own(loop, context);
        self->context = context;
        self->snapshot = false;
    }
    PyObject *result = FNET_UNLIKELY(context == NULL)
                           ? NULL
                           : call_in(context, self->callback, self->argv,
                                     self->nargs, self->args, loop->state);
    if (FNET_UNLIKELY(result == NULL)) {
        if (self->is_timer) {
            PyObject_GC_Track(self); /* the report shows it to the program */
        }
        int rc = call_failed(loop, self);
        fnet_handle_drop(self);
        return rc;
    }
    Py_DECREF(result);
    self->context = NULL;
    if (snapshot) {
        fnet_context_give_back(loop, context);
    }
    else {
        Py_DECREF(context);
    }
    for (unsigned i = 1; i <= self->nargs; i++) {
        Py_DECREF(self->argv[i]);
    }
    self->nargs = 0;
    Py_CLEAR(self->args);
    Py_CLEAR(self->callback);
    free_object(self);
    return 0;
}

/* Nobody but the loop has it, or can get at it. */
static inline bool
is_private(HandleObject *self)
{
#ifdef Py_GIL_DISABLED
    if (self->foreign || Py_REFCNT(self) != 1) {
        return false;
    }
    /* Pairs with the release of the reference that another thread had. */
    atomic_thread_fence(memory_order_acquire);
    return true;
#else
    return Py_REFCNT(self) == 1;
#endif
}

int
fnet_handle_run_ready(LoopObject *loop, HandleObject *self)
{
    if (FNET_LIKELY(is_private(self) && !self->again &&
                    self->callback != NULL && self->weakrefs == NULL &&
                    self->source_traceback == NULL && !loop->debug)) {
        if (self->is_timer) {
            PyObject_GC_UnTrack(self);
        }
        return run_private(loop, self);
    }
    int rc = fnet_handle_run(loop, self);
    fnet_handle_drop(self);
    return rc;
}

int
fnet_handle_traverse(HandleObject *self, visitproc visit, void *arg)
{
    if (self->is_timer || Py_REFCNT(self) > 1) {
        Py_VISIT(self);
        return 0;
    }
    return fnet_handle_object_traverse(self, visit, arg);
}

void
fnet_handle_drop(HandleObject *self)
{
    if (!self->again) {
        clear_call(self);
    }
    Py_DECREF(self);
}

int
fnet_handle_cancel(HandleObject *self)
{
    LoopObject *loop = self->loop;
    bool scheduled = false;

    FNET_LOCK(loop);
    bool before = self->cancelled;
    self->cancelled = true;
    FNET_UNLOCK(loop);
    if (before) {
        return 0;
    }
    if (FNET_UNLIKELY(loop->debug)) {
        /* A description is kept, the objects are not. */
        PyObject *text = PyObject_Repr((PyObject *)self);
        if (text == NULL) {
            return -1;
        }
        FNET_LOCK(loop);
        PyObject *old = self->old_repr;
        self->old_repr = text;
        FNET_UNLOCK(loop);
        Py_XDECREF(old);
    }
    if (self->is_timer) {
        TimerObject *timer = (TimerObject *)self;
        FNET_LOCK(loop);
        scheduled = fnet_heap_contains(&timer->node);
        if (scheduled) {
            fnet_heap_remove(&loop->timers, &timer->node);
        }
        FNET_UNLOCK(loop);
    }
    clear_call(self);
    if (scheduled) {
        Py_DECREF(self); /* the heap's; the caller has one */
    }
    return 0;
}
