/* transport_io: the hot half of a transport: what its protocol is given, and
 * what it is told to write. */
#include "python/module.h"

#include "python/context.h"

#include <errno.h>

/* As asyncio: so many writes to a lost connection are silent. */
#define WRITES_BEFORE_WARNING 5
#define MAX_PIECES 64

/* -- calling the protocol ----------------------------------------------- */

PyObject *
fnet_transport_call(TransportObject *self, PyObject *name, PyObject *arg)
{
    if (FNET_UNLIKELY(self->protocol == NULL)) {
        Py_RETURN_NONE; /* lost while a call of several was under way */
    }
    PyObject *context = Py_NewRef(self->context);
    PyObject *argv[] = {Py_NewRef(self->protocol), arg};
    size_t n = arg == NULL ? 1 : 2;
    PyObject *result = NULL;

    if (FNET_LIKELY(PyContext_Enter(context) == 0)) {
        result = PyObject_VectorcallMethod(
            name, argv, n | PY_VECTORCALL_ARGUMENTS_OFFSET, NULL);
        if (FNET_UNLIKELY(PyContext_Exit(context) < 0)) {
            Py_CLEAR(result);
        }
    }
    Py_DECREF(argv[0]);
    Py_DECREF(context);
    return result;
}

int
fnet_transport_start(TransportObject *self)
{
    LoopObject *loop = self->loop;
    int rc = 0;
    PyObject *result = fnet_transport_call(
        self, loop->state->str_connection_made, (PyObject *)self);

    if (result == NULL) {
        rc = fnet_report_raised(loop, "method_failed", "connection_made",
                                (PyObject *)self, self->protocol);
    }
    Py_XDECREF(result);
    /* Also when rc is -1, for whoever runs the loop again. */
    self->started = true;
    if (!self->closing && !self->paused) {
        fnet_stream_want(&self->stream, true);
    }
    return rc;
}

/* -- delivering --------------------------------------------------------- */

static int
deliver_bytes(TransportObject *self, PyObject *bytes)
{
    PyObject *result =
        fnet_transport_call(self, self->loop->state->str_data_received, bytes);
    if (FNET_UNLIKELY(result == NULL)) {
        if (self->pipe != 0) {
            return fnet_pipe_data_failed(self);
        }
        return fnet_transport_fatal_error(
            self, "Fatal error: protocol.data_received() call failed.");
    }
    Py_DECREF(result);
    return 0;
}

/* What is left of a delivery when the protocol has paused it, or has been
 * replaced by one that takes bytes. */
static int
deliver_rest(TransportObject *self, const char *data, size_t len)
{
    PyObject *bytes = PyBytes_FromStringAndSize(data, (Py_ssize_t)len);

    if (bytes == NULL) {
        return fnet_transport_fatal_error(
            self, "Fatal read error on socket transport");
    }
    if (self->paused) {
        fnet_assert(self->held == NULL);
        self->held = bytes;
        return 0;
    }
    int rc = deliver_bytes(self, bytes);
    Py_DECREF(bytes);
    return rc;
}

/* To a BufferedProtocol, whatever its buffers' sizes. */
static int
deliver_to_buffers(TransportObject *self, const char *data, size_t len)
{
    module_state *state = self->loop->state;

    while (len > 0 && self->protocol != NULL && !self->closing) {
        if (self->paused || !self->buffered) {
            return deliver_rest(self, data, len);
        }
        Py_ssize_t took = 0;
        PyObject *hint = PyLong_FromSize_t(len);
        PyObject *buffer =
            hint == NULL
                ? NULL
                : fnet_transport_call(self, state->str_get_buffer, hint);
        Py_XDECREF(hint);
        Py_buffer view;
        if (buffer == NULL ||
            PyObject_GetBuffer(buffer, &view, PyBUF_WRITABLE) < 0) {
            Py_XDECREF(buffer);
            return fnet_transport_fatal_error(
                self, "Fatal error: protocol.get_buffer() call failed.");
        }
        Py_DECREF(buffer);
        took = view.len < (Py_ssize_t)len ? view.len : (Py_ssize_t)len;
        memcpy(view.buf, data, (size_t)took);
        PyBuffer_Release(&view);
        if (took == 0) {
            PyErr_SetString(PyExc_RuntimeError,
                            "get_buffer() returned an empty buffer");
            return fnet_transport_fatal_error(
                self, "Fatal error: protocol.get_buffer() call failed.");
        }
        PyObject *count = PyLong_FromSsize_t(took);
        PyObject *result =
            count == NULL
                ? NULL
                : fnet_transport_call(self, state->str_buffer_updated, count);
        Py_XDECREF(count);
        if (result == NULL) {
            return fnet_transport_fatal_error(
                self, "Fatal error: protocol.buffer_updated() call failed.");
        }
        Py_DECREF(result);
        data += took;
        len -= (size_t)took;
    }
    return 0;
}

static PyObject *
bytes_of(fnet_completion *item)
{
    PyObject *bytes = item->landing;

    if (bytes == NULL) {
        return PyBytes_FromStringAndSize(item->data, (Py_ssize_t)item->len);
    }
    item->landing = NULL;
    if ((Py_ssize_t)item->len != PyBytes_GET_SIZE(bytes) &&
        _PyBytes_Resize(&bytes, (Py_ssize_t)item->len) < 0) {
        return NULL;
    }
    return bytes;
}

static int
deliver_data(TransportObject *self, fnet_completion *item)
{
    if (FNET_UNLIKELY(self->conn_lost != 0 || self->closing)) {
        return 0;
    }
    if (FNET_UNLIKELY(self->buffered && !self->paused && self->held == NULL)) {
        /* It was not when the pass received. */
        return deliver_to_buffers(self, item->data, item->len);
    }
    PyObject *bytes = bytes_of(item);
    if (bytes == NULL) {
        return fnet_transport_fatal_error(
            self, "Fatal read error on socket transport");
    }
    if (FNET_UNLIKELY(self->paused || self->held != NULL)) {
        /* Paused since the pass received. */
        if (self->held == NULL) {
            self->held = bytes;
            return 0;
        }
        PyBytes_ConcatAndDel(&self->held, bytes);
        return self->held == NULL ? -1 : 0;
    }
    int rc = deliver_bytes(self, bytes);
    Py_DECREF(bytes);
    return rc;
}

PyObject *
fnet_transport_deliver_held(TransportObject *self, PyObject *unused)
{
    PyObject *held = self->held;
    int rc = 0;

    if (held == NULL || self->paused || self->closing) {
        Py_RETURN_NONE;
    }
    self->held = NULL;
    if (self->buffered) {
        rc = deliver_to_buffers(self, PyBytes_AS_STRING(held),
                                (size_t)PyBytes_GET_SIZE(held));
    }
    else {
        rc = deliver_bytes(self, held);
    }
    Py_DECREF(held);
    if (rc == 0 && !self->paused && !self->closing) {
        fnet_stream_want(&self->stream, true);
    }
    if (rc < 0) {
        return NULL;
    }
    Py_RETURN_NONE;
}

static int
deliver_eof(TransportObject *self)
{
    if (self->conn_lost != 0 || (self->closing && self->pipe == 0)) {
        return 0;
    }
    if (self->paused || self->held != NULL) {
        fnet_stream_untake_eof(&self->stream);
        return 0;
    }
    if (FNET_UNLIKELY(self->pipe != 0)) {
        return fnet_pipe_deliver_eof(self);
    }
    PyObject *result =
        fnet_transport_call(self, self->loop->state->str_eof_received, NULL);
    int keep_open = result == NULL ? -1 : PyObject_IsTrue(result);
    Py_XDECREF(result);
    if (keep_open < 0) {
        return fnet_transport_fatal_error(
            self, "Fatal error: protocol.eof_received() call failed.");
    }
    return keep_open ? 0 : fnet_transport_close(self);
}

static int
deliver_read_error(TransportObject *self, int error)
{
    if (self->conn_lost != 0) {
        return 0;
    }
    (void)fnet_raise(error);
    return fnet_transport_fatal_error(self,
                                      "Fatal read error on socket transport");
}

/* One read for a BufferedProtocol, into its own memory. */
static int
read_into_buffer(TransportObject *self)
{
    module_state *state = self->loop->state;
    Py_buffer view;

    PyObject *hint = PyLong_FromLong(-1);
    PyObject *buffer =
        hint == NULL ? NULL
                     : fnet_transport_call(self, state->str_get_buffer, hint);
    Py_XDECREF(hint);
    if (buffer != NULL &&
        PyObject_GetBuffer(buffer, &view, PyBUF_WRITABLE) < 0) {
        Py_CLEAR(buffer);
    }
    if (buffer != NULL && view.len == 0) {
        PyBuffer_Release(&view);
        Py_CLEAR(buffer);
        PyErr_SetString(PyExc_RuntimeError,
                        "get_buffer() returned an empty buffer");
    }
    if (buffer == NULL) {
        return fnet_transport_fatal_error(
            self, "Fatal error: protocol.get_buffer() call failed.");
    }
    Py_DECREF(buffer);
    if (!self->attached) {
        PyBuffer_Release(&view);
        return 0;
    }
    ssize_t n = fnet_stream_recv(&self->stream, view.buf, (size_t)view.len);
    PyBuffer_Release(&view);
    if (n == -EAGAIN) {
        return 0;
    }
    if (n < 0) {
        return deliver_read_error(self, (int)n);
    }
    if (n == 0) {
        return deliver_eof(self);
    }
    PyObject *count = PyLong_FromSsize_t(n);
    PyObject *result =
        count == NULL
            ? NULL
            : fnet_transport_call(self, state->str_buffer_updated, count);
    Py_XDECREF(count);
    if (result == NULL) {
        return fnet_transport_fatal_error(
            self, "Fatal error: protocol.buffer_updated() call failed.");
    }
    Py_DECREF(result);
    return 0;
}

static int
deliver_readable(TransportObject *self)
{
    int rc = 0;

    if (self->conn_lost == 0 && !self->closing && !self->paused &&
        self->buffered) {
        rc = read_into_buffer(self);
    }
    if (self->attached) {
        fnet_stream_taken(&self->stream);
    }
    return rc;
}

/* -- output --------------------------------------------------------------- */

static int
call_flow_control(TransportObject *self, PyObject *name, const char *message)
{
    PyObject *result = NULL;
    int rc = 0;

    if (self->protocol == NULL) {
        return 0;
    }
    PyObject *protocol = Py_NewRef(self->protocol);
    PyObject *context = Py_NewRef(self->context);
    PyObject *raised;
    /* From within a write(): the context may be entered already. */
    bool entered = fnet_context_enter(context, &raised);
    result = PyObject_CallMethodNoArgs(protocol, name);
    if (entered && PyContext_Exit(context) < 0) {
        Py_CLEAR(result);
    }
    result = fnet_err_instead(result, raised);
    Py_DECREF(context);
    if (result == NULL) {
        rc = fnet_report_raised(self->loop, "flow_control_failed", message,
                                (PyObject *)self, protocol);
    }
    Py_XDECREF(result);
    Py_DECREF(protocol);
    return rc;
}

int
fnet_transport_maybe_pause(TransportObject *self, size_t left)
{
    if (left <= self->high || self->protocol_paused) {
        return 0;
    }
    self->protocol_paused = true;
    return call_flow_control(self, self->loop->state->str_pause_writing,
                             "protocol.pause_writing() failed");
}

static int
set_waiter(TransportObject *self, PyObject *waiter)
{
    return fnet_report(self->loop->state, "wake_waiter", "(O)", waiter);
}

/* Everything is sent: connection_lost(), in the transport's context. */
static int
finish_closing(TransportObject *self)
{
    PyObject *method = PyObject_GetAttr(
        (PyObject *)self, self->loop->state->str__call_connection_lost);
    PyObject *args[] = {Py_None};
    HandleObject *handle =
        method == NULL
            ? NULL
            : fnet_handle_new(self->loop, method, args, 1, self->context);
    int rc = -1;

    self->conn_lost++;
    if (handle != NULL) {
        rc = fnet_handle_run(self->loop, handle);
        Py_DECREF(handle);
    }
    Py_XDECREF(method);
    return rc;
}

/* Output went: below the mark that was waited for, or everything. */
static int
deliver_output(TransportObject *self)
{
    if (!self->attached || self->conn_lost != 0) {
        return 0;
    }
    if (self->room_waiter != NULL) {
        PyObject *waiter = self->room_waiter;
        self->room_waiter = NULL;
        int rc = set_waiter(self, waiter);
        Py_DECREF(waiter);
        if (rc < 0) {
            return -1;
        }
    }
    size_t left = fnet_stream_flush(&self->stream);
    if (self->protocol_paused && left <= self->low) {
        self->protocol_paused = false;
        if (call_flow_control(self, self->loop->state->str_resume_writing,
                              "protocol.resume_writing() failed") < 0) {
            return -1;
        }
        if (!self->attached || self->conn_lost != 0) {
            return 0;
        }
        left = fnet_stream_flush(&self->stream); /* it may have written */
    }
    if (left == 0 && self->empty_waiter != NULL &&
        set_waiter(self, self->empty_waiter) < 0) {
        return -1;
    }
    if (left == 0 && self->closing) {
        return finish_closing(self);
    }
    if (left > 0 && (self->protocol_paused || self->closing ||
                     self->empty_waiter != NULL)) {
        bool all = self->closing || self->empty_waiter != NULL;
        fnet_stream_notify(&self->stream,
                           self->protocol_paused && !all ? self->low : 0);
    }
    return 0;
}

int
fnet_transport_deliver(TransportObject *self, fnet_completion *item)
{
    switch (item->what) {
    case FNET_WHAT_DATA:
        return deliver_data(self, item);
    case FNET_WHAT_READABLE:
        return deliver_readable(self);
    case FNET_WHAT_EOF:
        return deliver_eof(self);
    case FNET_WHAT_OUTPUT:
        return deliver_output(self);
    default:
        if (fnet_stream_error(&self->stream) != 0) {
            (void)fnet_raise(item->result);
            return fnet_transport_fatal_error(
                self, "Fatal write error on socket transport");
        }
        return deliver_read_error(self, item->result);
    }
}

/* -- writing -------------------------------------------------------------- */

static int
wrong_type(const char *text, PyObject *data)
{
    const char *name = strrchr(Py_TYPE(data)->tp_name, '.');

    PyErr_Format(PyExc_TypeError, text,
                 name != NULL ? name + 1 : Py_TYPE(data)->tp_name);
    return -1;
}

/* 1: go on; 0: the connection is lost, and the data is dropped; -1. */
static int
may_write(TransportObject *self, const char *method)
{
    if (FNET_UNLIKELY(fnet_loop_check_thread(self->loop) < 0)) {
        return -1;
    }
    if (FNET_UNLIKELY(self->eof_written)) {
        PyErr_Format(PyExc_RuntimeError, "Cannot call %s() after write_eof()",
                     method);
        return -1;
    }
    if (FNET_UNLIKELY(self->empty_waiter != NULL)) {
        PyErr_Format(PyExc_RuntimeError,
                     "unable to %s; sendfile is in progress", method);
        return -1;
    }
    return 1;
}

static int
write_lost(TransportObject *self)
{
    if (self->conn_lost >= WRITES_BEFORE_WARNING &&
        fnet_report(self->loop->state, "warn_lost", "()") < 0) {
        return -1;
    }
    self->conn_lost++;
    return 0;
}

static int
write_pieces(TransportObject *self, fnet_piece *pieces, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        /* Kept until it turns up as spent. */
        Py_XINCREF((PyObject *)pieces[i].foreign);
        pieces[i].kept = false;
    }
    ssize_t left = fnet_stream_write(&self->stream, pieces, n);
    for (size_t i = 0; i < n; i++) {
        if (!pieces[i].kept) {
            Py_XDECREF((PyObject *)pieces[i].foreign);
        }
    }
    if (FNET_UNLIKELY(left < 0)) {
        if (left == -ENOMEM) {
            PyErr_NoMemory();
            return -1;
        }
        (void)fnet_raise((int)left);
        return fnet_transport_fatal_error(
            self, "Fatal write error on socket transport");
    }
    if (FNET_UNLIKELY((size_t)left > self->high && !self->protocol_paused)) {
        left = (ssize_t)fnet_stream_flush(&self->stream);
        if ((size_t)left > self->high) {
            if (fnet_transport_maybe_pause(self, (size_t)left) < 0) {
                return -1;
            }
            if (self->attached && self->conn_lost == 0 &&
                self->protocol_paused) {
                fnet_stream_notify(&self->stream,
                                   self->closing ? 0 : self->low);
            }
        }
    }
    return 0;
}

/* The memory of the object; the view is released by the caller if obj is set.
 * Immutable bytes need no view. */
static int
piece_of(PyObject *data, fnet_piece *piece, Py_buffer *view)
{
    view->obj = NULL;
    if (FNET_LIKELY(PyBytes_CheckExact(data))) {
        piece->data = PyBytes_AS_STRING(data);
        piece->len = (size_t)PyBytes_GET_SIZE(data);
        piece->foreign = data;
        return 0;
    }
    if (PyObject_GetBuffer(data, view, PyBUF_SIMPLE) < 0) {
        return -1;
    }
    piece->data = view->buf;
    piece->len = (size_t)view->len;
    piece->foreign = NULL;
    return 0;
}

int
fnet_transport_check_data(PyObject *data)
{
    if (FNET_UNLIKELY(!PyBytes_Check(data) && !PyByteArray_Check(data) &&
                      !PyMemoryView_Check(data))) {
        return wrong_type(
            "data argument must be a bytes-like object, not '%.200s'", data);
    }
    return 0;
}

PyObject *
fnet_transport_write(TransportObject *self, PyObject *data)
{
    fnet_piece piece;
    Py_buffer view;
    int rc = 0;

    if (fnet_transport_check_data(data) < 0 || may_write(self, "write") < 0) {
        return NULL;
    }
    if (piece_of(data, &piece, &view) < 0) {
        return NULL;
    }
    if (piece.len > 0) {
        rc = FNET_UNLIKELY(self->conn_lost != 0 || !self->attached)
                 ? write_lost(self)
                 : write_pieces(self, &piece, 1);
    }
    PyBuffer_Release(&view);
    if (rc < 0) {
        return NULL;
    }
    Py_RETURN_NONE;
}

static int
write_list(TransportObject *self, PyObject *const *items, Py_ssize_t n)
{
    fnet_piece pieces[MAX_PIECES];
    Py_buffer views[MAX_PIECES];
    int rc = 0;

    while (rc == 0 && n > 0) {
        Py_ssize_t count = 0, most = n < MAX_PIECES ? n : MAX_PIECES;
        while (count < most && rc == 0) {
            rc = piece_of(items[count], &pieces[count], &views[count]);
            count += rc == 0;
        }
        if (rc == 0 && self->attached && self->conn_lost == 0) {
            rc = write_pieces(self, pieces, (size_t)count);
        }
        for (Py_ssize_t i = 0; i < count; i++) {
            PyBuffer_Release(&views[i]);
        }
        items += count;
        n -= count;
    }
    return rc;
}

/* All of them are looked at before the first is sent. */
static int
check_items(PyObject *const *items, Py_ssize_t n)
{
    for (Py_ssize_t i = 0; i < n; i++) {
        if (!PyObject_CheckBuffer(items[i])) {
            return wrong_type(
                "memoryview: a bytes-like object is required, not '%.200s'",
                items[i]);
        }
    }
    return 0;
}

PyObject *
fnet_transport_writelines(TransportObject *self, PyObject *list)
{
    int rc = may_write(self, "writelines");
    if (rc < 0) {
        return NULL;
    }
    /* A copy: pause_writing() may change the list. */
    PyObject *tuple = PySequence_Tuple(list);
    if (tuple == NULL) {
        return NULL;
    }
    Py_ssize_t n = PyTuple_GET_SIZE(tuple);
    PyObject **items = PySequence_Fast_ITEMS(tuple);
    rc = check_items(items, n);
    if (rc == 0 && n > 0) {
        rc = self->conn_lost != 0 || !self->attached
                 ? write_lost(self)
                 : write_list(self, items, n);
    }
    Py_DECREF(tuple);
    if (rc < 0) {
        return NULL;
    }
    Py_RETURN_NONE;
}
