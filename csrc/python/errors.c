/* errors: negative errnos become exceptions here, and nowhere else; and the
 * door to pyfastnet._report, where the cold error paths are Python. */
#include "python/module.h"

#include <errno.h>

PyObject *
fnet_raise(int error)
{
    if (error == -ENOMEM) {
        return PyErr_NoMemory();
    }
    errno = -error;
    return PyErr_SetFromErrno(PyExc_OSError);
}

PyObject *
fnet_make_oserror(int error)
{
    (void)fnet_raise(error);
    return fnet_err_take();
}

bool
fnet_must_propagate(void)
{
    return PyErr_ExceptionMatches(PyExc_SystemExit) ||
           PyErr_ExceptionMatches(PyExc_KeyboardInterrupt);
}

PyObject *
fnet_err_instead(PyObject *result, PyObject *raised)
{
    if (FNET_LIKELY(raised == NULL)) {
        return result;
    }
    Py_XDECREF(result);
    PyErr_Clear();
    fnet_err_restore(raised);
    return NULL;
}

int
fnet_report(module_state *state, const char *name, const char *format, ...)
{
    va_list va;

    va_start(va, format);
    PyObject *args = Py_VaBuildValue(format, va);
    va_end(va);
    PyObject *function = PyObject_GetAttrString(state->report, name);
    PyObject *result = NULL;
    if (args != NULL && function != NULL) {
        result = PyObject_CallObject(function, args);
    }
    Py_XDECREF(args);
    Py_XDECREF(function);
    if (result == NULL) {
        if (fnet_must_propagate()) {
            return -1;
        }
        PyErr_WriteUnraisable(state->report);
        return 0;
    }
    Py_DECREF(result);
    return 0;
}
