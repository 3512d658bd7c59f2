/* context: what callbacks without a context of their own run in.
 *
 * asyncio copies the current context for each of them.  The variables in a
 * context are an immutable map, which a copy shares and a change replaces; so
 * where two callbacks are scheduled with the same map current, one copy, the
 * snapshot, stands for both.  A snapshot is never entered and never shown to
 * the program, and so never changes.  What runs, runs in a copy of it, made
 * when it runs, or when somebody asks the handle for its context: nothing that
 * the program can see tells it from a copy made at the time of the call.
 *
 * A copy in which a callback ran without changing a variable, and which nobody
 * holds, is as good as new: the next callback with the same snapshot gets it.
 *
 * What variables refer to must not live longer for it: once no handle has the
 * snapshot the loop lets go of it, when the callback that runs returns.
 *
 * That the map is current is seen by comparing pointers, in the place where
 * CPython keeps it; whether it is there is tried out once. */
#include "python/context.h"

/* Contexts differ in this word if, and only if, their variables may. */
bool
fnet_context_probe(void)
{
    bool same = false, differs = false;
    PyObject *one = PyContext_New();
    PyObject *var = PyContextVar_New("pyfastnet", NULL);
    PyObject *other = one == NULL ? NULL : PyContext_Copy(one);

    if (other != NULL && var != NULL &&
        (size_t)Py_TYPE(one)->tp_basicsize >=
            FNET_CONTEXT_VARS + sizeof(void *)) {
        void *before = fnet_context_vars(one);
        same = before != NULL && before == fnet_context_vars(other);
        if (same && PyContext_Enter(one) == 0) {
            same = before == fnet_context_vars(one);
            PyObject *token = PyContextVar_Set(var, Py_None);
            Py_XDECREF(token);
            differs = token != NULL && PyContext_Exit(one) == 0 &&
                      before != fnet_context_vars(one) &&
                      before == fnet_context_vars(other);
        }
    }
    Py_XDECREF(other);
    other = one == NULL ? NULL : PyContext_Copy(one);
    same = same && other != NULL &&
           fnet_context_vars(one) == fnet_context_vars(other);
    Py_XDECREF(one);
    Py_XDECREF(other);
    Py_XDECREF(var);
    PyErr_Clear();
    return same && differs;
}

PyObject *
fnet_context_renew(LoopObject *loop)
{
    PyObject *copy = PyContext_CopyCurrent();

    if (copy != NULL && loop->state->contexts_known && fnet_loop_owned(loop)) {
        PyObject *before = loop->snapshot;
        PyObject *spare = loop->spare_context;
        loop->spare_context = NULL;
        loop->snapshot_vars = fnet_context_vars(copy);
        loop->snapshot = Py_NewRef(copy);
        Py_XDECREF(before);
        Py_XDECREF(spare);
    }
    return copy;
}

PyObject *
fnet_context_own(LoopObject *loop, PyObject *context)
{
    PyObject *own = NULL;

    if (context == loop->snapshot) {
        own = loop->spare_context;
        loop->spare_context = NULL;
        if (own == NULL && Py_REFCNT(context) == 2) {
            /* The last one to have it. */
            loop->snapshot = NULL;
            Py_DECREF(context);
            return context;
        }
    }
    else if (Py_REFCNT(context) == 1) {
        return context; /* a snapshot no more, and nobody else's */
    }
    if (own == NULL) {
        own = PyContext_Copy(context);
    }
    Py_DECREF(context);
    return own;
}

void
fnet_context_give_back(LoopObject *loop, PyObject *own)
{
    if (FNET_LIKELY(loop->spare_context == NULL && loop->snapshot != NULL &&
                    Py_REFCNT(own) == 1 &&
                    fnet_context_vars(own) == loop->snapshot_vars)) {
        loop->spare_context = own;
    }
    else {
        Py_DECREF(own);
    }
}

void
fnet_context_forget(LoopObject *loop)
{
    PyObject *snapshot = loop->snapshot;
    PyObject *spare = loop->spare_context;

    loop->snapshot = loop->spare_context = NULL;
    Py_XDECREF(snapshot);
    Py_XDECREF(spare);
}

int
fnet_handle_own_context(HandleObject *handle)
{
#ifdef Py_GIL_DISABLED
    /* Any thread may ask; the first copy counts. */
    FNET_LOCK(handle->loop);
    PyObject *context = handle->snapshot ? Py_XNewRef(handle->context) : NULL;
    FNET_UNLOCK(handle->loop);
    if (context == NULL) {
        return 0;
    }
    PyObject *copy = PyContext_Copy(context);
    Py_DECREF(context);
    if (copy == NULL) {
        return -1;
    }
    FNET_LOCK(handle->loop);
    if (handle->snapshot) {
        context = handle->context;
        handle->context = copy;
        handle->snapshot = false;
        copy = context;
    }
    FNET_UNLOCK(handle->loop);
    Py_XDECREF(copy);
    return 0;
#else
    if (handle->snapshot) {
        PyObject *own = fnet_context_own(handle->loop, handle->context);
        handle->context = own;
        handle->snapshot = false;
        return own == NULL ? -1 : 0;
    }
    return 0;
#endif
}

bool
fnet_context_enter(PyObject *context, PyObject **raised)
{
    bool entered = PyContext_Enter(context) == 0;

    *raised = NULL;
    if (!entered && !PyErr_ExceptionMatches(PyExc_RuntimeError)) {
        *raised = fnet_err_take();
    }
    else if (!entered) {
        PyErr_Clear();
    }
    return entered;
}
