/* sock: sock_recv(), sock_recv_into(), sock_sendall() and the waiting under
 * the other sock_* calls.
 *
 * Each is a coroutine in C (it has send, throw and close, so create_task()
 * takes it).  It tries the call first; on EAGAIN it waits for a future of
 * watch.c and tries again *itself*, so that a cancelled or timed-out
 * operation has taken nothing from the socket. */
#include "python/module.h"

#include <errno.h>

enum op_kind { OP_RECV, OP_RECV_INTO, OP_SENDALL, OP_WAIT };
enum op_state { OP_FRESH, OP_WAITING, OP_DONE };

/* One receive or send holds the GIL for at most so many bytes (~10 us); what
 * is larger is done without it. */
#define KEEP_GIL ((size_t)64 * 1024)

typedef struct SockOpObject {
    PyObject_HEAD
    LoopObject *loop;
    PyObject *sock;
    PyObject *future;  /* what is waited for */
    PyObject *awaiter; /* its iterator */
    Py_buffer view;    /* RECV_INTO, SENDALL */
    Py_ssize_t size;   /* RECV */
    Py_ssize_t done;   /* SENDALL: bytes sent */
    int fd;
    uint8_t kind, state, direction;
    bool running;   /* in send(): Python that it calls must keep off */
    fnet_list hold; /* in loop->holds while the socket's close() waits */
} SockOpObject;

/* -- life --------------------------------------------------------------- */

static int
check_socket(LoopObject *loop, PyObject *sock)
{
    module_state *state = loop->state;

    if (state->sslsocket_type != Py_None) {
        int is_ssl = PyObject_IsInstance(sock, state->sslsocket_type);
        if (is_ssl > 0) {
            PyErr_SetString(PyExc_TypeError,
                            "Socket cannot be of type SSLSocket");
        }
        if (is_ssl != 0) {
            return -1;
        }
    }
    if (FNET_UNLIKELY(loop->debug)) {
        PyObject *timeout =
            PyObject_CallMethodNoArgs(sock, state->str_gettimeout);
        if (timeout == NULL) {
            return -1;
        }
        double seconds = timeout == Py_None ? -1.0 : PyFloat_AsDouble(timeout);
        Py_DECREF(timeout);
        if (PyErr_Occurred()) {
            return -1;
        }
        if (seconds != 0.0) {
            PyErr_SetString(PyExc_ValueError,
                            "the socket must be non-blocking");
            return -1;
        }
    }
    return 0;
}

static SockOpObject *
op_new(LoopObject *loop, PyObject *sock, int kind, int direction)
{
    SockOpObject *self =
        PyObject_GC_New(SockOpObject, loop->state->sockop_type);
    if (self == NULL) {
        return NULL;
    }
    self->loop = (LoopObject *)Py_NewRef((PyObject *)loop);
    self->sock = Py_NewRef(sock);
    self->future = self->awaiter = NULL;
    self->view = (Py_buffer){0};
    self->size = self->done = 0;
    self->fd = -1;
    self->kind = (uint8_t)kind;
    self->state = OP_FRESH;
    self->direction = (uint8_t)direction;
    self->running = false;
    fnet_list_init(&self->hold);
    PyObject_GC_Track(self);
    return self;
}

/* While we wait on the descriptor a close() of the socket object is put off,
 * as for socket.makefile(): the number must not become another file's under
 * the waiting, which then ends as if nothing had happened. */
static int
hold_socket(SockOpObject *self)
{
    module_state *state = self->loop->state;

    if (!PyObject_TypeCheck(self->sock, (PyTypeObject *)state->socket_type)) {
        return 0;
    }
    PyObject *refs = PyObject_GetAttr(self->sock, state->str__io_refs);
    PyObject *more = refs == NULL ? NULL : PyNumber_Add(refs, state->one);
    int rc = more == NULL
                 ? -1
                 : PyObject_SetAttr(self->sock, state->str__io_refs, more);
    Py_XDECREF(refs);
    Py_XDECREF(more);
    if (rc == 0) {
        FNET_LOCK(self->loop);
        fnet_list_push(&self->loop->holds, &self->hold);
        FNET_UNLOCK(self->loop);
    }
    return rc;
}

static void
release_socket(LoopObject *loop, PyObject *sock)
{
    PyObject *exc = fnet_err_take();
    PyObject *result =
        PyObject_CallMethodNoArgs(sock, loop->state->str__decref_socketios);

    if (result == NULL) {
        PyErr_WriteUnraisable(sock);
    }
    Py_XDECREF(result);
    if (exc != NULL) {
        fnet_err_restore(exc);
    }
}

static void
let_go(SockOpObject *self)
{
    FNET_LOCK(self->loop);
    bool held = !fnet_list_empty(&self->hold);
    if (held) {
        fnet_list_remove(&self->hold);
    }
    FNET_UNLOCK(self->loop);
    if (held) {
        release_socket(self->loop, self->sock);
    }
}

void
fnet_sock_let_all_go(LoopObject *loop)
{
    for (;;) {
        PyObject *sock = NULL;
        FNET_LOCK(loop);
        if (!fnet_list_empty(&loop->holds)) {
            fnet_list *node = loop->holds.next;
            /* It has the socket until it is taken from the list. */
            sock =
                Py_NewRef(fnet_container_of(node, SockOpObject, hold)->sock);
            fnet_list_remove(node);
        }
        FNET_UNLOCK(loop);
        if (sock == NULL) {
            return;
        }
        release_socket(loop, sock);
        Py_DECREF(sock);
    }
}

static void
stop_waiting(SockOpObject *self)
{
    PyObject *future = self->future;
    PyObject *awaiter = self->awaiter;

    self->future = self->awaiter = NULL;
    if (future != NULL) {
        fnet_watch_unwait(self->loop, self->fd, self->direction, future);
        Py_DECREF(future);
    }
    Py_XDECREF(awaiter);
}

static void
finish(SockOpObject *self)
{
    self->state = OP_DONE;
    stop_waiting(self);
    let_go(self);
    PyBuffer_Release(&self->view);
    Py_CLEAR(self->sock);
}

static int
op_traverse(SockOpObject *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(self->loop);
    Py_VISIT(self->sock);
    Py_VISIT(self->future);
    Py_VISIT(self->awaiter);
    Py_VISIT(self->view.obj);
    return 0;
}

static int
op_clear(SockOpObject *self)
{
    if (self->state != OP_DONE) {
        finish(self);
    }
    return 0;
}

static void
op_dealloc(SockOpObject *self)
{
    PyTypeObject *type = Py_TYPE(self);

    PyObject_GC_UnTrack(self);
    op_clear(self);
    Py_DECREF(self->loop);
    PyObject_GC_Del(self);
    Py_DECREF(type);
}

/* -- trying ------------------------------------------------------------- */

static ssize_t
receive(int fd, void *buf, size_t len)
{
    ssize_t n;

    if (len <= KEEP_GIL) {
        return fnet_sys_recv(fd, buf, len);
    }
    PyThreadState *tstate = PyEval_SaveThread();
    n = fnet_sys_recv(fd, buf, len);
    PyEval_RestoreThread(tstate);
    return n;
}

/* Each try answers with a new reference, or NULL: with *error -EAGAIN, or
 * with an exception. */
static PyObject *
try_recv(SockOpObject *self, int *error)
{
    char small[16 * 1024];
    ssize_t n;

    if (self->size <= (Py_ssize_t)sizeof(small)) {
        n = fnet_sys_recv(self->fd, small, (size_t)self->size);
        if (n >= 0) {
            return PyBytes_FromStringAndSize(small, n);
        }
        *error = (int)n;
        return NULL;
    }
    /* Most reads with a large size bring little: a first look on the stack
     * spares the allocation of what would mostly be given back. */
    n = fnet_sys_recv(self->fd, small, sizeof(small));
    if (n < (ssize_t)sizeof(small)) {
        if (n >= 0) {
            return PyBytes_FromStringAndSize(small, n);
        }
        *error = (int)n;
        return NULL;
    }
    PyObject *bytes = PyBytes_FromStringAndSize(NULL, self->size);
    if (bytes == NULL) {
        /* The size is beyond all memory: what was taken is not lost. */
        PyErr_Clear();
        return PyBytes_FromStringAndSize(small, n);
    }
    memcpy(PyBytes_AS_STRING(bytes), small, sizeof(small));
    ssize_t more = receive(self->fd, PyBytes_AS_STRING(bytes) + sizeof(small),
                           (size_t)self->size - sizeof(small));
    /* An end or an error shows again in the next call. */
    n += more > 0 ? more : 0;
    if (n != self->size && _PyBytes_Resize(&bytes, n) < 0) {
        return NULL;
    }
    return bytes;
}

static PyObject *
try_recv_into(SockOpObject *self, int *error)
{
    ssize_t n = receive(self->fd, self->view.buf, (size_t)self->view.len);
    if (n < 0) {
        *error = (int)n;
        return NULL;
    }
    return PyLong_FromSsize_t(n);
}

static PyObject *
try_sendall(SockOpObject *self, int *error)
{
    while (self->done < self->view.len) {
        const char *data = (const char *)self->view.buf + self->done;
        size_t len = (size_t)(self->view.len - self->done);
        ssize_t n;
        if (len <= KEEP_GIL) {
            n = fnet_sys_send(self->fd, data, len);
        }
        else {
            PyThreadState *tstate = PyEval_SaveThread();
            n = fnet_sys_send(self->fd, data, len);
            PyEval_RestoreThread(tstate);
        }
        if (n < 0) {
            *error = (int)n;
            return NULL;
        }
        self->done += n;
        if ((size_t)n < len) {
            *error = -EAGAIN;
            return NULL;
        }
    }
    Py_RETURN_NONE;
}

static PyObject *
try_once(SockOpObject *self, int *error)
{
    PyObject *result;

    *error = 0;
    switch (self->kind) {
    case OP_RECV:
        result = try_recv(self, error);
        break;
    case OP_RECV_INTO:
        result = try_recv_into(self, error);
        break;
    case OP_SENDALL:
        result = try_sendall(self, error);
        break;
    default: /* OP_WAIT waits once, and then is done */
        if (self->state == OP_WAITING) {
            Py_RETURN_NONE;
        }
        *error = -EAGAIN;
        return NULL;
    }
    if (result == NULL && *error != 0 && *error != -EAGAIN) {
        fnet_raise(*error);
    }
    return result;
}

/* -- the coroutine ------------------------------------------------------ */

static int
take_fd(SockOpObject *self)
{
    PyObject *number =
        PyObject_CallMethodNoArgs(self->sock, self->loop->state->str_fileno);
    if (number == NULL) {
        return -1;
    }
    long fd = PyLong_AsLong(number);
    Py_DECREF(number);
    if (fd == -1 && PyErr_Occurred()) {
        return -1;
    }
    if (fd < 0 || fd > INT_MAX) {
        fnet_raise(-EBADF);
        return -1;
    }
    self->fd = (int)fd;
    return 0;
}

static int
begin_waiting(SockOpObject *self)
{
    self->future =
        fnet_watch_wait(self->loop, self->sock, self->fd, self->direction);
    if (self->future == NULL ||
        (fnet_list_empty(&self->hold) && hold_socket(self) < 0)) {
        return -1;
    }
    unaryfunc get = Py_TYPE(self->future)->tp_as_async->am_await;
    self->awaiter = get(self->future);
    self->state = OP_WAITING;
    return self->awaiter == NULL ? -1 : 0;
}

/* Tries; waits if it must.  As am_send. */
static PySendResult
advance(SockOpObject *self, PyObject **result)
{
    int error;

    *result = try_once(self, &error);
    if (*result != NULL) {
        finish(self);
        return PYGEN_RETURN;
    }
    if (error != -EAGAIN || begin_waiting(self) < 0) {
        finish(self);
        return PYGEN_ERROR;
    }
    PySendResult sent = PyIter_Send(self->awaiter, Py_None, result);
    if (sent != PYGEN_NEXT) {
        Py_CLEAR(*result);
        finish(self);
        if (sent == PYGEN_RETURN) {
            PyErr_SetString(PyExc_RuntimeError,
                            "a future that nobody set is done");
        }
        return PYGEN_ERROR;
    }
    return PYGEN_NEXT;
}

static PySendResult
step(SockOpObject *self, PyObject *arg, PyObject **result)
{
    if (self->state == OP_FRESH) {
        if (fnet_loop_check(self->loop) < 0 ||
            check_socket(self->loop, self->sock) < 0 || take_fd(self) < 0) {
            finish(self);
            return PYGEN_ERROR;
        }
        return advance(self, result);
    }
    PySendResult sent = PyIter_Send(self->awaiter, arg, result);
    if (sent == PYGEN_NEXT) {
        return PYGEN_NEXT;
    }
    if (sent == PYGEN_ERROR) {
        finish(self);
        return PYGEN_ERROR;
    }
    Py_CLEAR(*result);
    stop_waiting(self);
    return advance(self, result);
}

/* As of a generator: sockets may be of a class that is Python, and other
 * threads run while much is received. */
static int
check_idle(SockOpObject *self)
{
    if (FNET_UNLIKELY(self->running)) {
        PyErr_SetString(PyExc_ValueError, "coroutine already executing");
        return -1;
    }
    return 0;
}

static int
check_alive(SockOpObject *self)
{
    if (check_idle(self) < 0) {
        return -1;
    }
    if (self->state == OP_DONE) {
        PyErr_SetString(PyExc_RuntimeError,
                        "cannot reuse already awaited coroutine");
        return -1;
    }
    return 0;
}

static PySendResult
op_send(SockOpObject *self, PyObject *arg, PyObject **result)
{
    *result = NULL;
    int rc;
    FNET_BEGIN_SHARED(self)
    rc = check_alive(self);
    self->running = self->running || rc == 0;
    FNET_END_SHARED()
    if (rc < 0) {
        return PYGEN_ERROR;
    }
    PySendResult sent = step(self, arg, result);
    self->running = false;
    return sent;
}

static PyObject *
op_iternext(SockOpObject *self)
{
    PyObject *result;

    switch (op_send(self, Py_None, &result)) {
    case PYGEN_NEXT:
        return result;
    case PYGEN_RETURN:
        if (result == Py_None) {
            PyErr_SetNone(PyExc_StopIteration);
        }
        else {
            PyObject *stop = PyObject_CallOneArg(PyExc_StopIteration, result);
            if (stop != NULL) {
                PyErr_SetObject(PyExc_StopIteration, stop);
                Py_DECREF(stop);
            }
        }
        Py_DECREF(result);
        return NULL;
    default:
        return NULL;
    }
}

static PyObject *
op_send_method(SockOpObject *self, PyObject *arg)
{
    if (self->state == OP_FRESH && arg != Py_None) {
        PyErr_SetString(PyExc_TypeError, "can't send non-None value to a "
                                         "just-started coroutine");
        return NULL;
    }
    return op_iternext(self);
}

/* Sets the exception that throw()'s arguments describe. */
static int
set_thrown(PyObject *const *args, Py_ssize_t nargs)
{
    PyObject *type = args[0];

    if (PyExceptionInstance_Check(type)) {
        PyErr_SetObject((PyObject *)Py_TYPE(type), type);
        return 0;
    }
    if (PyExceptionClass_Check(type)) {
        PyObject *value = nargs > 1 && args[1] != Py_None ? args[1] : NULL;
        if (value != NULL) {
            PyErr_SetObject(type, value);
        }
        else {
            PyErr_SetNone(type);
        }
        return 0;
    }
    PyErr_Format(PyExc_TypeError,
                 "exceptions must be classes or instances deriving from "
                 "BaseException, not %s",
                 Py_TYPE(type)->tp_name);
    return -1;
}

static PyObject *
op_throw(SockOpObject *self, PyObject *const *args, Py_ssize_t nargs)
{
    if (nargs < 1 || nargs > 3) {
        PyErr_SetString(PyExc_TypeError,
                        "throw() takes one to three arguments");
        return NULL;
    }
    if (check_alive(self) < 0) {
        return NULL;
    }
    /* Whatever is thrown ends the operation: nothing here catches. */
    finish(self);
    set_thrown(args, nargs);
    return NULL;
}

static PyObject *
op_close(SockOpObject *self, PyObject *unused)
{
    if (check_idle(self) < 0) {
        return NULL;
    }
    op_clear(self);
    Py_RETURN_NONE;
}

static PyMethodDef op_methods[] = {
    {"send", (PyCFunction)op_send_method, METH_O, NULL},
    {"throw", (PyCFunction)(void (*)(void))op_throw, METH_FASTCALL, NULL},
    {"close", (PyCFunction)op_close, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot op_slots[] = {
    {Py_tp_doc, "A socket operation to be awaited."},
    {Py_tp_dealloc, op_dealloc},
    {Py_tp_traverse, op_traverse},
    {Py_tp_clear, op_clear},
    {Py_tp_iter, PyObject_SelfIter},
    {Py_tp_iternext, op_iternext},
    {Py_am_await, PyObject_SelfIter},
    {Py_am_send, op_send},
    {Py_tp_methods, op_methods},
    {0, NULL},
};

PyType_Spec fnet_sockop_spec = {
    .name = "pyfastnet._core.SocketOperation",
    .basicsize = sizeof(SockOpObject),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC |
             Py_TPFLAGS_DISALLOW_INSTANTIATION | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = op_slots,
};

/* -- sockets with calls of their own ------------------------------------ */

int
fnet_has_own_calls(module_state *state, PyObject *sock)
{
    static const char *const calls[] = {"recv", "recv_into", "send",
                                        "sendmsg"};
    PyObject *plain = state->socket_type;
    int differs = 0;

    if (FNET_LIKELY(Py_IS_TYPE(sock, (PyTypeObject *)plain)) ||
        !PyObject_TypeCheck(sock, (PyTypeObject *)plain)) {
        return 0;
    }
    if (state->sslsocket_type != Py_None) {
        int is_ssl = PyObject_IsInstance(sock, state->sslsocket_type);
        if (is_ssl != 0) {
            return is_ssl < 0 ? -1 : 0; /* it is refused elsewhere */
        }
    }
    for (size_t i = 0; i < FNET_COUNTOF(calls) && differs == 0; i++) {
        PyObject *own =
            PyObject_GetAttrString((PyObject *)Py_TYPE(sock), calls[i]);
        PyObject *usual = PyObject_GetAttrString(plain, calls[i]);
        differs = own == NULL || usual == NULL ? -1 : own != usual;
        Py_XDECREF(own);
        Py_XDECREF(usual);
    }
    return differs;
}

/* Such a socket is for Python: the coroutine of the loop's method.  NULL
 * without an exception: it is a usual one. */
static PyObject *
by_own_calls(LoopObject *loop, const char *method, PyObject *given[2])
{
    int own = fnet_has_own_calls(loop->state, given[0]);
    if (FNET_LIKELY(own == 0)) {
        return NULL;
    }
    return own < 0 ? NULL
                   : PyObject_CallMethod((PyObject *)loop, method, "OO",
                                         given[0], given[1]);
}

/* -- the loop's methods ------------------------------------------------- */

/* The arguments by position or by name. */
static int
two_args(const char *method, const char *second, PyObject *const *args,
         Py_ssize_t nargs, PyObject *kwnames, PyObject *out[2])
{
    Py_ssize_t nkw = kwnames == NULL ? 0 : PyTuple_GET_SIZE(kwnames);

    out[0] = nargs > 0 ? args[0] : NULL;
    out[1] = nargs > 1 ? args[1] : NULL;
    for (Py_ssize_t i = 0; i < nkw; i++) {
        PyObject *name = PyTuple_GET_ITEM(kwnames, i);
        int which = PyUnicode_CompareWithASCIIString(name, "sock") == 0   ? 0
                    : PyUnicode_CompareWithASCIIString(name, second) == 0 ? 1
                                                                          : 2;
        if (which == 2 || out[which] != NULL) {
            PyErr_Format(PyExc_TypeError,
                         "%s() got an unexpected keyword argument '%U'",
                         method, name);
            return -1;
        }
        out[which] = args[nargs + i];
    }
    if (nargs > 2 || out[0] == NULL || out[1] == NULL) {
        PyErr_Format(PyExc_TypeError, "%s() takes the arguments sock and %s",
                     method, second);
        return -1;
    }
    return 0;
}

static PyObject *
loop_sock_recv(LoopObject *loop, PyObject *const *args, Py_ssize_t nargs,
               PyObject *kwnames)
{
    PyObject *given[2];

    if (two_args("sock_recv", "n", args, nargs, kwnames, given) < 0) {
        return NULL;
    }
    Py_ssize_t n = PyNumber_AsSsize_t(given[1], PyExc_OverflowError);
    if (n == -1 && PyErr_Occurred()) {
        return NULL;
    }
    if (n < 0) {
        PyErr_SetString(PyExc_ValueError, "negative buffersize in recv");
        return NULL;
    }
    PyObject *other = by_own_calls(loop, "_recv_by_own_calls", given);
    if (FNET_UNLIKELY(other != NULL || PyErr_Occurred())) {
        return other;
    }
    SockOpObject *self = op_new(loop, given[0], OP_RECV, 0);
    if (self != NULL) {
        self->size = n;
    }
    return (PyObject *)self;
}

static PyObject *
with_buffer(LoopObject *loop, PyObject *given[2], int kind, int direction,
            int flags)
{
    SockOpObject *self = op_new(loop, given[0], kind, direction);
    if (self != NULL && PyObject_GetBuffer(given[1], &self->view, flags) < 0) {
        Py_CLEAR(self);
        if (kind == OP_RECV_INTO &&
            PyErr_ExceptionMatches(PyExc_BufferError)) {
            PyErr_Format(PyExc_TypeError,
                         "a read-write bytes-like object is required, not "
                         "'%.200s'",
                         Py_TYPE(given[1])->tp_name);
        }
    }
    return (PyObject *)self;
}

static PyObject *
loop_sock_recv_into(LoopObject *loop, PyObject *const *args, Py_ssize_t nargs,
                    PyObject *kwnames)
{
    PyObject *given[2];

    if (two_args("sock_recv_into", "buf", args, nargs, kwnames, given) < 0) {
        return NULL;
    }
    PyObject *other = by_own_calls(loop, "_recv_into_by_own_calls", given);
    if (FNET_UNLIKELY(other != NULL || PyErr_Occurred())) {
        return other;
    }
    return with_buffer(loop, given, OP_RECV_INTO, 0, PyBUF_WRITABLE);
}

static PyObject *
loop_sock_sendall(LoopObject *loop, PyObject *const *args, Py_ssize_t nargs,
                  PyObject *kwnames)
{
    PyObject *given[2];

    if (two_args("sock_sendall", "data", args, nargs, kwnames, given) < 0) {
        return NULL;
    }
    PyObject *other = by_own_calls(loop, "_sendall_by_own_calls", given);
    if (FNET_UNLIKELY(other != NULL || PyErr_Occurred())) {
        return other;
    }
    return with_buffer(loop, given, OP_SENDALL, 1, PyBUF_SIMPLE);
}

static PyObject *
loop_wait_readable(LoopObject *loop, PyObject *sock)
{
    return (PyObject *)op_new(loop, sock, OP_WAIT, 0);
}

static PyObject *
loop_wait_writable(LoopObject *loop, PyObject *sock)
{
    return (PyObject *)op_new(loop, sock, OP_WAIT, 1);
}

#define FAST(function)                                                        \
    (PyCFunction)(void (*)(void))(function), METH_FASTCALL | METH_KEYWORDS

PyMethodDef fnet_sock_methods[] = {
    {"sock_recv", FAST(loop_sock_recv),
     "Receive up to n bytes: a coroutine.  Cancelled, it has taken nothing."},
    {"sock_recv_into", FAST(loop_sock_recv_into),
     "Receive into buf: a coroutine of the number of bytes."},
    {"sock_sendall", FAST(loop_sock_sendall),
     "Send all of data: a coroutine."},
    {"_wait_readable", (PyCFunction)loop_wait_readable, METH_O, NULL},
    {"_wait_writable", (PyCFunction)loop_wait_writable, METH_O, NULL},
    {NULL, NULL, 0, NULL},
};
