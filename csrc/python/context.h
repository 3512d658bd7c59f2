/* context: what callbacks without a context of their own run in; see
 * context.c.  For a thread that may call the loop's methods. */
#ifndef FNET_PYTHON_CONTEXT_H
#define FNET_PYTHON_CONTEXT_H

#include "python/module.h"

/* Where a context keeps its variables: behind the context that it was entered
 * from.  Nothing relies on it unless fnet_context_probe() said so. */
#define FNET_CONTEXT_VARS (sizeof(PyObject) + sizeof(void *))

static inline void *
fnet_context_vars(PyObject *context)
{
    return *(void **)(void *)((char *)context + FNET_CONTEXT_VARS);
}

/* True if contexts are as we know them. */
bool fnet_context_probe(void);

/* A new reference to a context that nobody has entered, like a copy of the
 * current one: for fnet_context_own() to make something of.  NULL with an
 * exception. */
PyObject *fnet_context_renew(LoopObject *loop);

static inline PyObject *
fnet_context_take(LoopObject *loop)
{
    PyObject *current = fnet_current_context();

    if (FNET_LIKELY(fnet_loop_owned(loop) && loop->snapshot != NULL &&
                    current != NULL &&
                    fnet_context_vars(current) == loop->snapshot_vars)) {
        return Py_NewRef(loop->snapshot);
    }
    return fnet_context_renew(loop);
}

/* For what fnet_context_take() gave (the reference is taken over) a context
 * that may be entered and shown, and is nobody else's; the loop's thread
 * alone.  NULL with an exception. */
PyObject *fnet_context_own(LoopObject *loop, PyObject *context);

/* Ends with it. */
void fnet_context_give_back(LoopObject *loop, PyObject *own);

/* Enters the context of a protocol for a call, unless we are within it
 * already: false.  The attempt may run handlers of signals (its error message
 * asks for them): what one raised, and must not be lost, is in *raised, else
 * NULL. */
bool fnet_context_enter(PyObject *context, PyObject **raised);

/* Lets go of the snapshot; after a callback, if no handle has it. */
void fnet_context_forget(LoopObject *loop);

static inline void
fnet_context_settle(LoopObject *loop)
{
    if (loop->snapshot != NULL && Py_REFCNT(loop->snapshot) == 1) {
        fnet_context_forget(loop);
    }
}

#endif
