/* handle_api: the methods of handles and timers, and their types.  Any thread
 * may call them. */
#include "python/module.h"

/* -- Python's face ------------------------------------------------------ */

/* What a field holds, or None. */
static PyObject *
get_ref(HandleObject *self, PyObject *const *field)
{
    FNET_LOCK(self->loop);
    PyObject *object = Py_XNewRef(*field);
    FNET_UNLOCK(self->loop);
    return object != NULL ? object : Py_NewRef(Py_None);
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
    if (fnet_handle_own_context(self) < 0) {
        return NULL;
    }
    return get_ref(self, &self->context);
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
    PyObject *argv[HANDLE_INLINE_ARGS];

    FNET_LOCK(self->loop);
    bool there = self->callback != NULL;
    unsigned n = self->nargs;
    PyObject *args = Py_XNewRef(self->args);
    for (unsigned i = 0; i < n; i++) {
        argv[i] = Py_NewRef(self->argv[1 + i]);
    }
    FNET_UNLOCK(self->loop);
    if (there && args == NULL) {
        args = PyTuple_New(n);
        for (unsigned i = 0; args != NULL && i < n; i++) {
            PyTuple_SET_ITEM(args, i, Py_NewRef(argv[i]));
        }
    }
    else if (args == NULL) {
        args = Py_NewRef(Py_None);
    }
    for (unsigned i = 0; i < n; i++) {
        Py_DECREF(argv[i]);
    }
    return args;
}

static PyObject *
handle_get_field(HandleObject *self, void *which)
{
    switch (*(const char *)which) {
    case 'c':
        return get_ref(self, &self->callback);
    case 'l':
        return Py_NewRef((PyObject *)self->loop);
    case 'x':
        return handle_get_context(self, NULL);
    case 't':
        return get_ref(self, &self->source_traceback);
    case 'r':
        return get_ref(self, &self->old_repr);
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
    {Py_tp_dealloc, fnet_handle_object_dealloc},
    {Py_tp_traverse, fnet_handle_object_traverse},
    {Py_tp_clear, fnet_handle_object_clear},
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
    return PyFloat_FromDouble(self->when);
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

/* The inherited ones too: the interpreter calls methods of the very class of
 * the object without a detour. */
static PyMethodDef timer_methods[] = {
    {"cancel", (PyCFunction)handle_cancel, METH_NOARGS,
     "Cancel the callback; its arguments are released at once."},
    {"cancelled", (PyCFunction)handle_cancelled, METH_NOARGS,
     "True if the callback was cancelled."},
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
    {Py_tp_dealloc, fnet_handle_object_dealloc},
    {Py_tp_traverse, fnet_handle_object_traverse},
    {Py_tp_clear, fnet_handle_object_clear},
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
