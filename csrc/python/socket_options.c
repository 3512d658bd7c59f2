/* socket_options: timeouts, deadlines, options, and what else is said to a
 * socket in one word. */
#include "python/socket.h"

#include "base/clock.h"
#include "base/sys.h"

#include <errno.h>
#include <math.h>

/* ns of a number of seconds, rounded up; < 0 with an exception. */
int64_t
fnet_socket_ns(PyObject *object)
{
    double seconds;

    if (PyFloat_Check(object)) {
        seconds = PyFloat_AS_DOUBLE(object);
    }
    else {
        long long whole = PyLong_AsLongLong(object);
        if (whole == -1 && PyErr_Occurred()) {
            return -1;
        }
        seconds = (double)whole;
    }
    if (isnan(seconds)) {
        PyErr_SetString(PyExc_ValueError, "Invalid value NaN (not a number)");
        return -1;
    }
    if (seconds < 0) {
        PyErr_SetString(PyExc_ValueError, "Timeout value out of range");
        return -1;
    }
    double ns = ceil(seconds * 1e9);
    if (ns >= 9.2e18) {
        PyErr_SetString(PyExc_OverflowError,
                        "timeout: timestamp too large to count");
        return -1;
    }
    return (int64_t)ns;
}

/* -- time --------------------------------------------------------------- */

static PyObject *
set_timeout(SocketObject *self, const char *name, int64_t ns)
{
    if (fnet_fd_closed(&self->fd)) {
        return fnet_socket_fail(self, name, NULL, FNET_CLOSED);
    }
    atomic_store_explicit(&self->timeout, ns, memory_order_relaxed);
    Py_RETURN_NONE;
}

static PyObject *
socket_settimeout(SocketObject *self, PyObject *value)
{
    int64_t ns = -1;

    if (value != Py_None) {
        ns = fnet_socket_ns(value);
        if (ns < 0) {
            return NULL;
        }
    }
    return set_timeout(self, "settimeout", ns);
}

PyObject *
fnet_socket_gettimeout(SocketObject *self, PyObject *unused)
{
    int64_t ns = atomic_load_explicit(&self->timeout, memory_order_relaxed);
    if (ns < 0) {
        Py_RETURN_NONE;
    }
    return PyFloat_FromDouble((double)ns / 1e9);
}

static PyObject *
socket_setblocking(SocketObject *self, PyObject *flag)
{
    int block = PyObject_IsTrue(flag);
    if (block < 0) {
        return NULL;
    }
    return set_timeout(self, "setblocking", block ? -1 : 0);
}

static PyObject *
socket_getblocking(SocketObject *self, PyObject *unused)
{
    return PyBool_FromLong(
        atomic_load_explicit(&self->timeout, memory_order_relaxed) != 0);
}

/* (when=None, *, after=None) -> a time of the clock; 0, or -1 with an
 * exception. */
static int
parse_deadline(PyObject *args, PyObject *kwargs, const char *format,
               int64_t *when)
{
    static char *names[] = {"when", "after", NULL};
    PyObject *at = Py_None, *after = Py_None;

    if (!PyArg_ParseTupleAndKeywords(args, kwargs, format, names, &at,
                                     &after)) {
        return -1;
    }
    if (at != Py_None && after != Py_None) {
        PyErr_SetString(PyExc_TypeError, "either `when` or `after`");
        return -1;
    }
    *when = FNET_NEVER;
    PyObject *given = at != Py_None ? at : after;
    if (given == Py_None) {
        return 0;
    }
    double seconds = PyFloat_AsDouble(given);
    if (seconds == -1.0 && PyErr_Occurred()) {
        return -1;
    }
    if (isnan(seconds)) {
        PyErr_SetString(PyExc_ValueError, "Invalid value NaN (not a number)");
        return -1;
    }
    /* Beyond what the clock can count is never, or long ago. */
    if (seconds > 9e9) {
        return 0;
    }
    int64_t ns = seconds < -9e9 ? 0 : (int64_t)ceil(seconds * 1e9);
    *when = given == at ? ns : fnet_clock_ns() + ns;
    return 0;
}

static PyObject *
set_deadlines(SocketObject *self, const char *name, bool reads, bool writes,
              int64_t when)
{
    if (fnet_fd_closed(&self->fd)) {
        return fnet_socket_fail(self, name, NULL, FNET_CLOSED);
    }
    if (reads) {
        fnet_fd_set_deadline(&self->fd, FNET_FD_READ, when);
    }
    if (writes) {
        fnet_fd_set_deadline(&self->fd, FNET_FD_WRITE, when);
    }
    Py_RETURN_NONE;
}

static PyObject *
socket_set_deadline(SocketObject *self, PyObject *args, PyObject *kwargs)
{
    int64_t when;
    if (parse_deadline(args, kwargs, "|O$O:set_deadline", &when) < 0) {
        return NULL;
    }
    return set_deadlines(self, "set_deadline", true, true, when);
}

static PyObject *
socket_set_read_deadline(SocketObject *self, PyObject *args, PyObject *kwargs)
{
    int64_t when;
    if (parse_deadline(args, kwargs, "|O$O:set_read_deadline", &when) < 0) {
        return NULL;
    }
    return set_deadlines(self, "set_read_deadline", true, false, when);
}

static PyObject *
socket_set_write_deadline(SocketObject *self, PyObject *args, PyObject *kwargs)
{
    int64_t when;
    if (parse_deadline(args, kwargs, "|O$O:set_write_deadline", &when) < 0) {
        return NULL;
    }
    return set_deadlines(self, "set_write_deadline", false, true, when);
}

/* -- options ------------------------------------------------------------ */

static bool
is_small_int(PyObject *object)
{
    if (!PyLong_CheckExact(object)) {
        return false;
    }
    int overflow;
    long value = PyLong_AsLongAndOverflow(object, &overflow);
    return overflow == 0 && value == (int)value;
}

/* The common form here, the others in the socket module. */
static PyObject *
socket_setsockopt(SocketObject *self, PyObject *const *args, Py_ssize_t nargs)
{
    if (nargs != 3 || !is_small_int(args[0]) || !is_small_int(args[1]) ||
        !is_small_int(args[2])) {
        return fnet_socket_cold_call(self, "_setsockopt", args, nargs);
    }
    if (fnet_fd_hold(&self->fd) < 0) {
        return fnet_socket_fail(self, "setsockopt", NULL, FNET_CLOSED);
    }
    int rc = fnet_sys_set_int(self->fd.number, (int)PyLong_AsLong(args[0]),
                              (int)PyLong_AsLong(args[1]),
                              (int)PyLong_AsLong(args[2]));
    fnet_fd_release(&self->fd);
    if (rc < 0) {
        return fnet_socket_fail(self, "setsockopt", NULL, rc);
    }
    Py_RETURN_NONE;
}

static PyObject *
socket_shutdown(SocketObject *self, PyObject *arg)
{
    int how = fnet_int_arg(arg);
    if (how == -1 && PyErr_Occurred()) {
        return NULL;
    }
    if (fnet_fd_hold(&self->fd) < 0) {
        return fnet_socket_fail(self, "shutdown", NULL, FNET_CLOSED);
    }
    int rc = fnet_sys_shutdown(self->fd.number, how);
    fnet_fd_release(&self->fd);
    if (rc < 0) {
        return fnet_socket_fail(self, "shutdown", NULL, rc);
    }
    Py_RETURN_NONE;
}

static PyObject *
socket_listen(SocketObject *self, PyObject *const *args, Py_ssize_t nargs)
{
    int backlog = SOMAXCONN < 128 ? SOMAXCONN : 128;

    if (nargs > 1) {
        return PyErr_Format(PyExc_TypeError,
                            "listen() takes at most 1 argument (%zd given)",
                            nargs);
    }
    if (nargs == 1) {
        backlog = fnet_int_arg(args[0]);
        if (backlog == -1 && PyErr_Occurred()) {
            return NULL;
        }
    }
    if (fnet_fd_hold(&self->fd) < 0) {
        return fnet_socket_fail(self, "listen", NULL, FNET_CLOSED);
    }
    int rc =
        listen(self->fd.number, backlog < 0 ? 0 : backlog) < 0 ? -errno : 0;
    fnet_fd_release(&self->fd);
    if (rc < 0) {
        return fnet_socket_fail(self, "listen", NULL, rc);
    }
    Py_RETURN_NONE;
}

PyMethodDef fnet_socket_option_methods[] = {
    {"shutdown", (PyCFunction)socket_shutdown, METH_O, "shutdown(how)."},
    {"listen", (PyCFunction)(void (*)(void))socket_listen, METH_FASTCALL,
     "listen([backlog])."},
    {"settimeout", (PyCFunction)socket_settimeout, METH_O,
     "settimeout(seconds or None): for each call that begins from now on.  "
     "It\n"
     "counts from the moment the call has to wait, for the whole call;\n"
     "0: raise BlockingIOError instead of waiting."},
    {"gettimeout", (PyCFunction)fnet_socket_gettimeout, METH_NOARGS,
     "What settimeout() was given."},
    {"setblocking", (PyCFunction)socket_setblocking, METH_O,
     "settimeout(None) or settimeout(0)."},
    {"getblocking", (PyCFunction)socket_getblocking, METH_NOARGS,
     "Whether calls may wait."},
    {"set_deadline", (PyCFunction)(void (*)(void))socket_set_deadline,
     METH_VARARGS | METH_KEYWORDS,
     "set_deadline(when=None, *, after=None): the time.monotonic() at which\n"
     "calls, those blocked now too, end with TimeoutError; or in `after`\n"
     "seconds (0 and less: at once).  Once it has passed each call fails\n"
     "before any I/O, until it is moved.  None: no deadline.  Any thread."},
    {"set_read_deadline",
     (PyCFunction)(void (*)(void))socket_set_read_deadline,
     METH_VARARGS | METH_KEYWORDS,
     "set_deadline() for what receives and accepts."},
    {"set_write_deadline",
     (PyCFunction)(void (*)(void))socket_set_write_deadline,
     METH_VARARGS | METH_KEYWORDS,
     "set_deadline() for what sends and connects."},
    {"setsockopt", (PyCFunction)(void (*)(void))socket_setsockopt,
     METH_FASTCALL, "setsockopt(level, option, value[, optlen])."},
    {NULL, NULL, 0, NULL},
};
