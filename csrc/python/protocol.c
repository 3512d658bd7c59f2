/* protocol: what transports of every kind do with their protocols. */
#include "python/module.h"

int
fnet_report_raised(LoopObject *loop, const char *report, const char *what,
                   PyObject *transport, PyObject *protocol)
{
    if (fnet_must_propagate()) {
        return -1;
    }
    PyObject *exc = fnet_err_take();
    int rc = fnet_report(loop->state, report, "(OOsOO)", loop, exc, what,
                         transport, protocol != NULL ? protocol : Py_None);
    Py_DECREF(exc);
    return rc;
}

PyObject *
fnet_take_fatal(LoopObject *loop, const char *message, PyObject *transport,
                PyObject *protocol)
{
    if (fnet_must_propagate()) {
        return NULL;
    }
    PyObject *exc = fnet_err_take();

    if ((!PyErr_GivenExceptionMatches(exc, PyExc_OSError) || loop->debug) &&
        fnet_report(loop->state, "transport_failed", "(OOsOO)", loop, exc,
                    message, transport,
                    protocol != NULL ? protocol : Py_None) < 0) {
        Py_CLEAR(exc);
    }
    return exc;
}

int
fnet_schedule_lost(LoopObject *loop, PyObject *transport, PyObject *context,
                   PyObject *exc)
{
    PyObject *method =
        PyObject_GetAttr(transport, loop->state->str__call_connection_lost);
    PyObject *args[] = {exc != NULL ? exc : Py_None};
    int rc = fnet_loop_call_soon(loop, method, args, 1, context);

    Py_XDECREF(method);
    return rc;
}

PyObject *
fnet_call_connection_lost(LoopObject *loop, PyObject *protocol, PyObject *exc)
{
    if (protocol == NULL) {
        Py_RETURN_NONE;
    }
    Py_INCREF(protocol);
    PyObject *result =
        PyObject_CallMethodOneArg(protocol, loop->state->str_connection_lost,
                                  exc != NULL ? exc : Py_None);
    Py_DECREF(protocol);
    return result;
}

PyObject *
fnet_transport_text(PyObject *transport, bool attached, bool closing,
                    bool paused, int fd)
{
    const char *state = !attached ? "closed" : closing ? "closing" : "open";

    return PyUnicode_FromFormat("<%s %s fd=%d reading=%s>",
                                Py_TYPE(transport)->tp_name, state, fd,
                                paused ? "paused" : "on");
}
