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

/* A lock around what any thread may touch; the GIL is that lock where there
 * is one. */
#ifdef Py_GIL_DISABLED
#define FNET_BEGIN_SHARED(object) Py_BEGIN_CRITICAL_SECTION(object)
#define FNET_END_SHARED() Py_END_CRITICAL_SECTION()
#else
#define FNET_BEGIN_SHARED(object) {
#define FNET_END_SHARED() }
#endif

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
