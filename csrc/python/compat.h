/* compat: what differs between the Pythons that we build on, and nowhere
 * else. */
#ifndef FNET_PYTHON_COMPAT_H
#define FNET_PYTHON_COMPAT_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <structmember.h>

#if PY_VERSION_HEX < 0x030B0000
#error "pyfastnet needs Python 3.11 or later"
#endif

/* Free lists are shared by all threads of an interpreter: with the GIL that
 * is safe; without it the allocator of CPython is per thread and fast. */
#ifdef Py_GIL_DISABLED
#define FNET_FREELISTS 0
#else
#define FNET_FREELISTS 1
#endif

/* Around what any thread may touch.  Where there is a GIL, it is the lock, and
 * these are nothing.
 *
 * FNET_LOCK is the loop's mutex: nothing within may call Python or drop a
 * reference.  FNET_BEGIN_SHARED is CPython's critical section of an object:
 * what is called within may let another thread in, so that what was looked at
 * before is looked at again. */
#ifdef Py_GIL_DISABLED
#define FNET_HAS_GIL 0
#define FNET_LOCK(loop) PyMutex_Lock(&(loop)->mutex)
#define FNET_UNLOCK(loop) PyMutex_Unlock(&(loop)->mutex)
#define FNET_BEGIN_SHARED(object) Py_BEGIN_CRITICAL_SECTION(object);
#define FNET_END_SHARED() Py_END_CRITICAL_SECTION();
#else
#define FNET_HAS_GIL 1
#define FNET_LOCK(loop) ((void)(loop))
#define FNET_UNLOCK(loop) ((void)(loop))
#define FNET_BEGIN_SHARED(object) {
#define FNET_END_SHARED() }
#endif

/* What a field holds, for a thread that is not the only one to know it: a new
 * reference, or NULL.  And a new value (its reference is taken over). */
static inline PyObject *
fnet_shared_get(PyObject *owner, PyObject *const *field)
{
    PyObject *object;

    FNET_BEGIN_SHARED(owner)
    object = Py_XNewRef(*field);
    FNET_END_SHARED()
    return object;
}

static inline void
fnet_shared_set(PyObject *owner, PyObject **field, PyObject *value)
{
    PyObject *before;

    FNET_BEGIN_SHARED(owner)
    before = *field;
    *field = value;
    FNET_END_SHARED()
    Py_XDECREF(before);
}

/* A new reference to what the dict has: 1; 0: nothing, -1. */
static inline int
fnet_dict_get(PyObject *dict, PyObject *key, PyObject **value)
{
#if PY_VERSION_HEX >= 0x030D0000
    return PyDict_GetItemRef(dict, key, value);
#else
    *value = Py_XNewRef(PyDict_GetItemWithError(dict, key));
    return *value != NULL ? 1 : PyErr_Occurred() ? -1 : 0;
#endif
}

/* The current context of the thread, borrowed; NULL: none was needed yet. */
static inline PyObject *
fnet_current_context(void)
{
#if PY_VERSION_HEX >= 0x030D0000
    return PyThreadState_GetUnchecked()->context;
#else
    return _PyThreadState_UncheckedGet()->context;
#endif
}

/* True if the weak reference is to this object, alive. */
static inline int
fnet_weakref_is(PyObject *ref, PyObject *object)
{
#if PY_VERSION_HEX >= 0x030D0000
    PyObject *found = NULL;
    (void)PyWeakref_GetRef(ref, &found);
    Py_XDECREF(found);
    return found == object;
#else
    return PyWeakref_GetObject(ref) == object;
#endif
}

/* 3.12: takes the exception as one object. */
#if PY_VERSION_HEX >= 0x030C0000
#define fnet_err_take PyErr_GetRaisedException
#define fnet_err_restore PyErr_SetRaisedException
#else
static inline PyObject *
fnet_err_take(void)
{
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    if (type == NULL) {
        return NULL;
    }
    PyErr_NormalizeException(&type, &value, &traceback);
    if (traceback != NULL) {
        (void)PyException_SetTraceback(value, traceback);
        Py_DECREF(traceback);
    }
    Py_DECREF(type);
    return value;
}

static inline void
fnet_err_restore(PyObject *exc)
{
    if (exc == NULL) {
        PyErr_Clear();
        return;
    }
    PyErr_Restore(Py_NewRef((PyObject *)Py_TYPE(exc)), exc,
                  PyException_GetTraceback(exc));
}
#endif

#endif
