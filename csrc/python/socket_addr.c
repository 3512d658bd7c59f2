/* socket_addr: addresses, and the calls that make connections.
 *
 * Numeric IPv4 and IPv6 addresses are done here.  Names, and the addresses of
 * all other families, are left to the socket module's own parser: the call is
 * made through a socket.socket on the same number. */
#include "python/socket.h"

#include "base/sys.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/un.h>

/* -- addresses ---------------------------------------------------------- */

/* An ASCII host and a port in range, or false. */
static bool
host_port(PyObject *tuple, const char **host, uint16_t *port)
{
    PyObject *name = PyTuple_GET_ITEM(tuple, 0);
    PyObject *number = PyTuple_GET_ITEM(tuple, 1);

    if (!PyUnicode_CheckExact(name) || !PyUnicode_IS_ASCII(name) ||
        !PyLong_CheckExact(number)) {
        return false;
    }
    int overflow;
    long value = PyLong_AsLongAndOverflow(number, &overflow);
    if (overflow != 0 || value < 0 || value > 65535) {
        return false;
    }
    *host = (const char *)PyUnicode_DATA(name);
    *port = (uint16_t)value;
    return strlen(*host) == (size_t)PyUnicode_GET_LENGTH(name);
}

/* (host, port), and for IPv6 also flow information and zone. */
static int
parse_inet6(PyObject *tuple, struct sockaddr_in6 *in6, socklen_t *len)
{
    uint32_t more[2] = {0, 0};
    const char *host;
    uint16_t port;

    if (PyTuple_GET_SIZE(tuple) > 4 || !host_port(tuple, &host, &port)) {
        return 0;
    }
    for (Py_ssize_t i = 2; i < PyTuple_GET_SIZE(tuple); i++) {
        PyObject *item = PyTuple_GET_ITEM(tuple, i);
        int overflow;
        long long value = PyLong_CheckExact(item)
                              ? PyLong_AsLongLongAndOverflow(item, &overflow)
                              : -1;
        if (value < 0 || value > (i == 2 ? 0xfffff : UINT32_MAX)) {
            return 0;
        }
        more[i - 2] = (uint32_t)value;
    }
    in6->sin6_family = AF_INET6;
    in6->sin6_port = htons(port);
    in6->sin6_flowinfo = htonl(more[0]);
    in6->sin6_scope_id = more[1];
    *len = sizeof(*in6);
    return inet_pton(AF_INET6, host, &in6->sin6_addr) == 1;
}

static int
parse_unix(PyObject *path, struct sockaddr_un *un, socklen_t *len)
{
    const char *text = NULL;
    Py_ssize_t size = 0;

    if (PyUnicode_CheckExact(path) && PyUnicode_IS_ASCII(path)) {
        text = (const char *)PyUnicode_DATA(path);
        size = PyUnicode_GET_LENGTH(path);
    }
    else if (PyBytes_CheckExact(path)) {
        text = PyBytes_AS_STRING(path);
        size = PyBytes_GET_SIZE(path);
    }
    if (size == 0 || size >= (Py_ssize_t)sizeof(un->sun_path)) {
        return 0;
    }
    bool abstract = text[0] == '\0';
    if (!abstract && memchr(text, 0, (size_t)size) != NULL) {
        return 0;
    }
    un->sun_family = AF_UNIX;
    memcpy(un->sun_path, text, (size_t)size);
    *len = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + (size_t)size +
                       (abstract ? 0 : 1));
    return 1;
}

int
fnet_parse_address(int family, PyObject *object, struct sockaddr_storage *addr,
                   socklen_t *len)
{
    const char *host;
    uint16_t port;

    memset(addr, 0, sizeof(*addr));
    if (family == AF_UNIX) {
        return parse_unix(object, (struct sockaddr_un *)addr, len);
    }
    if ((family != AF_INET && family != AF_INET6) ||
        !PyTuple_CheckExact(object) || PyTuple_GET_SIZE(object) < 2) {
        return 0;
    }
    if (family == AF_INET6) {
        return parse_inet6(object, (struct sockaddr_in6 *)addr, len);
    }
    if (PyTuple_GET_SIZE(object) != 2 || !host_port(object, &host, &port)) {
        return 0;
    }
    struct sockaddr_in *in4 = (struct sockaddr_in *)addr;
    in4->sin_family = AF_INET;
    in4->sin_port = htons(port);
    *len = sizeof(*in4);
    return inet_pton(AF_INET, host, &in4->sin_addr) == 1;
}

static PyObject *
make_unix(const struct sockaddr_un *un, socklen_t len)
{
    size_t size = len - offsetof(struct sockaddr_un, sun_path);

    if (len <= offsetof(struct sockaddr_un, sun_path)) {
        return PyUnicode_FromString("");
    }
    if (un->sun_path[0] == '\0') { /* abstract */
        return PyBytes_FromStringAndSize(un->sun_path, (Py_ssize_t)size);
    }
    return PyUnicode_DecodeFSDefaultAndSize(
        un->sun_path, (Py_ssize_t)strnlen(un->sun_path, size));
}

PyObject *
fnet_make_address(const struct sockaddr_storage *addr, socklen_t len)
{
    fnet_addr small;

    if (len < sizeof(sa_family_t)) {
        Py_RETURN_NONE;
    }
    if (addr->ss_family == AF_UNIX) {
        return make_unix((const struct sockaddr_un *)addr, len);
    }
    fnet_addr_set(&small, addr, len);
    return fnet_addr_object(&small);
}

typedef int (*name_call)(int fd, struct sockaddr *addr, socklen_t *len);

static PyObject *
name_of(SocketObject *self, name_call function, const char *name)
{
    struct sockaddr_storage addr;
    socklen_t len = sizeof(addr);

    int rc = fnet_fd_hold(&self->fd);
    if (rc < 0) {
        return fnet_socket_fail(self, name, NULL, FNET_CLOSED);
    }
    if (!fnet_plain_family(self->family)) {
        fnet_fd_release(&self->fd);
        PyObject *arg = PyUnicode_FromString(name);
        PyObject *result =
            arg == NULL ? NULL
                        : fnet_socket_cold_call(self, "_raw_call", &arg, 1);
        Py_XDECREF(arg);
        return result;
    }
    rc = function(self->fd.number, (struct sockaddr *)&addr, &len);
    int error = errno;
    fnet_fd_release(&self->fd);
    return rc < 0 ? fnet_socket_fail(self, name, NULL, -error)
                  : fnet_make_address(&addr, len);
}

static PyObject *
socket_getsockname(SocketObject *self, PyObject *unused)
{
    return name_of(self, getsockname, "getsockname");
}

static PyObject *
socket_getpeername(SocketObject *self, PyObject *unused)
{
    return name_of(self, getpeername, "getpeername");
}

/* -- connect ------------------------------------------------------------ */

typedef struct connecting {
    SocketObject *sock;
    struct sockaddr_storage addr;
    socklen_t len;
    bool begun;
} connecting;

static int
connect_once(int number, connecting *c)
{
    int rc = connect(number, (const struct sockaddr *)&c->addr, c->len);
    if (rc == 0 || errno != EISCONN) {
        return rc == 0 ? 0 : -errno;
    }
    return c->begun ? 0 : -EISCONN;
}

/* connect() has no MSG_DONTWAIT: the flag is set for the moment of the call,
 * on a description that is of no use to others yet.  A second call tells what
 * has become of the first: over the loopback that is done already. */
static int
connect_now(int number, connecting *c)
{
    int flags = fcntl(number, F_GETFL);
    if (flags < 0) {
        return -errno;
    }
    if (!(flags & O_NONBLOCK)) {
        (void)fcntl(number, F_SETFL, flags | O_NONBLOCK);
    }
    int rc = connect_once(number, c);
    if (!c->begun && (rc == -EINPROGRESS || rc == -EINTR)) {
        c->begun = true;
        rc = connect_once(number, c);
    }
    if (!(flags & O_NONBLOCK)) {
        (void)fcntl(number, F_SETFL, flags);
    }
    return rc;
}

static ssize_t
step_connect(int number, void *arg)
{
    int rc = connect_now(number, arg);
    if (rc == -EINPROGRESS || rc == -EALREADY || rc == -EINTR) {
        return -EAGAIN;
    }
    /* A Unix socket whose listener has a full backlog: nothing tells when it
     * has room again. */
    return rc == -EAGAIN ? FNET_LATER : rc;
}

/* What is no plain address: pyfastnet.socket looks a name up (a new address)
 * or makes the connection (an errno, 0).  1: go on with c; else the answer. */
static ssize_t
resolve(connecting *c, PyObject *address, const char *name)
{
    PyObject *args[2] = {PyUnicode_FromString(name), address};
    PyObject *found =
        args[0] == NULL ? NULL
                        : fnet_socket_cold_call(c->sock, "_resolve", args, 2);
    ssize_t result = FNET_RAISED;

    Py_XDECREF(args[0]);
    if (found != NULL && PyLong_Check(found)) {
        result = -PyLong_AsSsize_t(found);
    }
    else if (found != NULL &&
             fnet_parse_address(c->sock->family, found, &c->addr, &c->len)) {
        result = 1;
    }
    else if (found != NULL) {
        PyErr_Format(PyExc_TypeError, "%s(): bad address %R", name, address);
    }
    Py_XDECREF(found);
    return result;
}

/* 0 or an error for fnet_socket_fail(). */
static ssize_t
run_connect(SocketObject *self, PyObject *address, const char *name)
{
    fnet_call call;
    connecting c = {.sock = self};
    ssize_t n;

    if (!fnet_parse_address(self->family, address, &c.addr, &c.len)) {
        n = resolve(&c, address, name);
        if (n != 1) {
            return n;
        }
    }
    n = fnet_call_begin(&call, self, name, FNET_FD_WRITE, 0);
    if (n == 0) {
        /* Without the GIL: a handshake over the loopback takes 10 us. */
        n = fnet_call_run(&call, step_connect, &c, false);
        if (n == -EAGAIN && c.begun) {
            n = -EINPROGRESS;
        }
        fnet_call_end(&call);
    }
    if (n == 0) {
        fnet_addr_set(&self->peer, &c.addr, c.len);
    }
    return n;
}

static PyObject *
socket_connect(SocketObject *self, PyObject *address)
{
    ssize_t n = run_connect(self, address, "connect");
    if (n < 0) {
        return fnet_socket_fail(self, "connect", address, n);
    }
    Py_RETURN_NONE;
}

static PyObject *
socket_connect_ex(SocketObject *self, PyObject *address)
{
    ssize_t n = run_connect(self, address, "connect_ex");
    if (n == FNET_RAISED) {
        return NULL;
    }
    /* As the socket module: a timeout is "not yet". */
    n = n == FNET_TIMED_OUT ? -EAGAIN : n == FNET_CLOSED ? -EBADF : n;
    return PyLong_FromSsize_t(n < 0 ? -n : 0);
}

/* -- accept ------------------------------------------------------------- */

typedef struct accepting {
    struct sockaddr_storage addr;
    socklen_t len;
} accepting;

/* accept4() has no MSG_DONTWAIT either: it is called once the listener was
 * ready.  Whoever takes the connection away in between makes it block, without
 * the GIL, unless the description is non-blocking (prepare_listener). */
static ssize_t
step_accept(int number, void *arg)
{
    accepting *a = arg;

    a->len = sizeof(a->addr);
    int conn =
        accept4(number, (struct sockaddr *)&a->addr, &a->len, SOCK_CLOEXEC);
    if (conn >= 0) {
        return conn;
    }
    return errno == EINTR || errno == ECONNABORTED ? -EAGAIN : -errno;
}

static bool
is_readable(int number)
{
    struct pollfd poll = {.fd = number, .events = POLLIN};
    return fnet_sys_poll(&poll, 1, 0) != 0;
}

/* Timeouts must hold although another process takes the connection away.  Of
 * a listener that was not made here the description may be shared with who
 * never heard of us: it is left alone. */
static void
prepare_listener(SocketObject *self)
{
    if (!self->ours || self->nonblocking ||
        (atomic_load_explicit(&self->timeout, memory_order_relaxed) < 0 &&
         atomic_load_explicit(&self->fd.deadline[FNET_FD_READ],
                              memory_order_relaxed) == FNET_NEVER)) {
        return;
    }
    int flags = fcntl(self->fd.number, F_GETFL);
    if (flags >= 0 &&
        fcntl(self->fd.number, F_SETFL, flags | O_NONBLOCK) == 0) {
        self->nonblocking = true;
    }
}

static PyObject *
socket_accept(SocketObject *self, PyObject *unused)
{
    fnet_call call;
    accepting a;

    ssize_t n = fnet_call_begin(&call, self, "accept", FNET_FD_READ, 0);
    if (n < 0) {
        return fnet_socket_fail(self, "accept", NULL, n);
    }
    prepare_listener(self);
    n = fnet_call_go(&call, step_accept, &a,
                     is_readable(self->fd.number) ? FNET_MORE : -EAGAIN);
    fnet_call_end(&call);
    if (n < 0) {
        return fnet_socket_fail(self, "accept", NULL, n);
    }
    PyObject *conn = fnet_socket_wrap(self, (int)n);
    if (conn == NULL) {
        return NULL;
    }
    PyObject *address;
    if (fnet_plain_family(self->family)) {
        fnet_addr_set(&((SocketObject *)conn)->peer, &a.addr, a.len);
        address = fnet_make_address(&a.addr, a.len);
    }
    else {
        address = PyObject_CallMethod(conn, "getpeername", NULL);
    }
    if (address == NULL) {
        Py_DECREF(conn);
        return NULL;
    }
    return Py_BuildValue("(NN)", conn, address);
}

/* -- calls through the socket module ------------------------------------ */

/* _raw(name, args, address): one call of a method of socket.socket on the
 * same number that does not wait. */
static PyObject *
socket_raw(SocketObject *self, PyObject *args)
{
    const char *name;
    PyObject *arguments, *address = NULL;

    if (!PyArg_ParseTuple(args, "sO!|O:_raw", &name, &PyTuple_Type, &arguments,
                          &address)) {
        return NULL;
    }
    if (fnet_fd_hold(&self->fd) < 0) {
        return fnet_socket_fail(self, name, address, FNET_CLOSED);
    }
    PyObject *raw = fnet_socket_raw(self);
    PyObject *method = raw == NULL ? NULL : PyObject_GetAttrString(raw, name);
    PyObject *result =
        method == NULL ? NULL : PyObject_CallObject(method, arguments);
    Py_XDECREF(method);
    if (result == NULL) {
        fnet_socket_reword(self, name, address);
    }
    fnet_socket_raw_done(raw);
    fnet_fd_release(&self->fd);
    return result;
}

/* _retry(name, writes, function, address): function(socket.socket) until it
 * raises no BlockingIOError, waiting in between. */
static PyObject *
socket_retry(SocketObject *self, PyObject *args)
{
    const char *name;
    int writes;
    PyObject *function, *address = NULL, *result = NULL;
    fnet_call call;

    if (!PyArg_ParseTuple(args, "spO|O:_retry", &name, &writes, &function,
                          &address)) {
        return NULL;
    }
    if (address == Py_None) {
        address = NULL;
    }
    int rc = fnet_call_begin(&call, self, name,
                             writes ? FNET_FD_WRITE : FNET_FD_READ, 0);
    if (rc < 0) {
        return fnet_socket_fail(self, name, address, rc);
    }
    PyObject *raw = fnet_socket_raw(self);
    while (raw != NULL) {
        result = PyObject_CallOneArg(function, raw);
        if (result != NULL) {
            break;
        }
        if (!call.wait || !PyErr_ExceptionMatches(PyExc_BlockingIOError)) {
            fnet_socket_reword(self, name, address);
            break;
        }
        PyErr_Clear();
        rc = fnet_call_wait(&call);
        if (rc < 0) {
            (void)fnet_socket_fail(self, name, address, rc);
            break;
        }
    }
    fnet_socket_raw_done(raw);
    fnet_call_end(&call);
    return result;
}

PyMethodDef fnet_socket_addr_methods[] = {
    {"connect", (PyCFunction)socket_connect, METH_O, "connect(address)."},
    {"connect_ex", (PyCFunction)socket_connect_ex, METH_O,
     "connect_ex(address) -> 0 or an errno."},
    {"accept", (PyCFunction)socket_accept, METH_NOARGS,
     "accept() -> (Socket, address of the peer)."},
    {"getsockname", (PyCFunction)socket_getsockname, METH_NOARGS,
     "The own address."},
    {"getpeername", (PyCFunction)socket_getpeername, METH_NOARGS,
     "The peer's address."},
    {"_raw", (PyCFunction)socket_raw, METH_VARARGS,
     "_raw(name, args[, address]): a method of socket.socket that does not "
     "wait."},
    {"_retry", (PyCFunction)socket_retry, METH_VARARGS,
     "_retry(name, writes, function[, address]): function(socket.socket) "
     "until\nit raises no BlockingIOError, waiting in between."},
    {NULL, NULL, 0, NULL},
};
