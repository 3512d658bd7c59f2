/* socket_errors: what the methods of sockets share: arguments, the way to the
 * Python half, exceptions that name the operation and the address. */
#include "python/socket.h"

#include <errno.h>
#include <string.h>

/* -- arguments and the Python half -------------------------------------- */

int
fnet_int_arg(PyObject *object)
{
    long value = PyLong_AsLong(object);
    if (value == (int)value) {
        return (int)value;
    }
    PyErr_SetString(PyExc_OverflowError, "int does not fit");
    return -1;
}

int
fnet_pack_args(PyObject *const *args, Py_ssize_t nargs, PyObject *names,
               PyObject **tuple, PyObject **dict)
{
    *dict = NULL;
    *tuple = PyTuple_New(nargs);
    if (*tuple == NULL) {
        return -1;
    }
    for (Py_ssize_t i = 0; i < nargs; i++) {
        PyTuple_SET_ITEM(*tuple, i, Py_NewRef(args[i]));
    }
    if (names == NULL) {
        return 0;
    }
    *dict = PyDict_New();
    for (Py_ssize_t i = 0; *dict != NULL && i < PyTuple_GET_SIZE(names); i++) {
        if (PyDict_SetItem(*dict, PyTuple_GET_ITEM(names, i),
                           args[nargs + i]) < 0) {
            Py_CLEAR(*dict);
        }
    }
    if (*dict == NULL) {
        Py_DECREF(*tuple);
        return -1;
    }
    return 0;
}

PyObject *
fnet_socket_cold(const char *name)
{
    PyObject *module = PyImport_ImportModule("pyfastnet.socket");
    PyObject *object =
        module == NULL ? NULL : PyObject_GetAttrString(module, name);
    Py_XDECREF(module);
    return object;
}

PyObject *
fnet_socket_cold_call(SocketObject *self, const char *name,
                      PyObject *const *args, Py_ssize_t nargs)
{
    PyObject *tuple, *dict, *result = NULL;

    if (fnet_pack_args(args, nargs, NULL, &tuple, &dict) == 0) {
        result = fnet_socket_cold_call_tuple(self, name, tuple, NULL);
        Py_DECREF(tuple);
    }
    return result;
}

PyObject *
fnet_socket_cold_call_tuple(SocketObject *self, const char *name,
                            PyObject *args, PyObject *kwargs)
{
    PyObject *function = fnet_socket_cold(name);
    PyObject *first = PyTuple_Pack(1, self);
    PyObject *all = first == NULL ? NULL : PySequence_Concat(first, args);
    PyObject *result = function == NULL || all == NULL
                           ? NULL
                           : PyObject_Call(function, all, kwargs);
    Py_XDECREF(all);
    Py_XDECREF(first);
    Py_XDECREF(function);
    return result;
}

/* -- errors ------------------------------------------------------------- */

/* What the message ends with: "recv, peer ('127.0.0.1', 80)". */
static PyObject *
describe(SocketObject *self, const char *name, PyObject *address)
{
    struct sockaddr_storage addr;
    socklen_t len = sizeof(addr);
    const char *what = "peer";

    if (address != NULL) {
        return PyUnicode_FromFormat("%s(%R)", name, address);
    }
    PyObject *known = NULL;
    if (self->peer.len != 0) {
        known = fnet_addr_object(&self->peer);
    }
    else if (fnet_fd_hold(&self->fd) == 0) {
        int rc = getpeername(self->fd.number, (struct sockaddr *)&addr, &len);
        if (rc < 0) {
            what = "socket";
            len = sizeof(addr);
            rc = getsockname(self->fd.number, (struct sockaddr *)&addr, &len);
        }
        fnet_fd_release(&self->fd);
        if (rc == 0 && fnet_plain_family(addr.ss_family)) {
            known = fnet_make_address(&addr, len);
        }
    }
    if (known == NULL) {
        PyErr_Clear();
        return PyUnicode_FromFormat("%s()", name);
    }
    PyObject *text = PyUnicode_FromFormat("%s(), %s %R", name, what, known);
    Py_DECREF(known);
    return text;
}

static void
set_oserror(int error, PyObject *message)
{
    PyObject *args =
        message == NULL ? NULL : Py_BuildValue("(iO)", error, message);
    PyObject *exc =
        args == NULL ? NULL : PyObject_Call(PyExc_OSError, args, NULL);
    if (exc != NULL) {
        PyErr_SetObject((PyObject *)Py_TYPE(exc), exc);
    }
    Py_XDECREF(exc);
    Py_XDECREF(args);
}

PyObject *
fnet_socket_fail(SocketObject *self, const char *name, PyObject *address,
                 ssize_t error)
{
    if (error == FNET_RAISED) {
        return NULL;
    }
    if (error == -ENOMEM) {
        return PyErr_NoMemory();
    }
    PyObject *text = error == -EAGAIN && address == NULL
                         ? PyUnicode_FromFormat("%s()", name)
                         : describe(self, name, address);
    if (text == NULL) {
        return NULL;
    }
    if (error == FNET_TIMED_OUT) {
        PyErr_Format(PyExc_TimeoutError, "timed out: %U", text);
        Py_DECREF(text);
        return NULL;
    }
    PyObject *message;
    int number = error == FNET_CLOSED ? EBADF : (int)-error;
    if (error == FNET_CLOSED) {
        message = PyUnicode_FromFormat(
            "Bad file descriptor: the socket is closed: %U", text);
    }
    else {
        message = PyUnicode_FromFormat("%s: %U", strerror(number), text);
    }
    Py_DECREF(text);
    set_oserror(number, message);
    Py_XDECREF(message);
    return NULL;
}

void
fnet_socket_reword(SocketObject *self, const char *name, PyObject *address)
{
    PyObject *exc = fnet_err_take();
    PyObject *number = NULL;

    /* Not those of name look-ups, which have numbers of their own. */
    if (exc != NULL &&
        PyObject_TypeCheck(exc, (PyTypeObject *)PyExc_OSError) &&
        strchr(Py_TYPE(exc)->tp_name, '.') == NULL) {
        number = PyObject_GetAttrString(exc, "errno");
    }
    if (number == NULL || !PyLong_Check(number)) {
        PyErr_Clear();
        fnet_err_restore(exc);
        Py_XDECREF(number);
        return;
    }
    Py_DECREF(exc);
    (void)fnet_socket_fail(self, name, address, -PyLong_AsLong(number));
    Py_DECREF(number);
}

void
fnet_socket_note_progress(const char *name, size_t count)
{
    PyObject *exc = fnet_err_take();
    PyObject *number = PyLong_FromSize_t(count);

    if (number == NULL || PyObject_SetAttrString(exc, name, number) < 0) {
        PyErr_Clear();
    }
    Py_XDECREF(number);
    fnet_err_restore(exc);
}
