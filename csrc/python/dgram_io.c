/* dgram_io: the hot half of a datagram transport: what its protocol is given,
 * and what it is told to send. */
#include "python/context.h"
#include "python/dgram.h"

#include "base/clock.h"

#include <errno.h>

/* As asyncio: so many sends on a lost endpoint are silent. */
#define SENDS_BEFORE_WARNING 5
/* At most between two attempts where the kernel does not tell of room. */
#define RETRY_MAX 0.05

/* -- calling the protocol ----------------------------------------------- */

/* What a method of the protocol has raised: reported, and the endpoint goes
 * on; -1 if it must leave run_forever(). */
static int
callback_failed(DatagramObject *self, PyObject *name)
{
    return fnet_report_raised(self->loop, "method_failed",
                              PyUnicode_AsUTF8(name), (PyObject *)self,
                              self->protocol);
}

int
fnet_datagram_call(DatagramObject *self, PyObject *name, PyObject *arg)
{
    if (self->protocol == NULL) {
        return 0; /* lost meanwhile */
    }
    PyObject *context = Py_NewRef(self->context);
    PyObject *argv[] = {Py_NewRef(self->protocol), arg};
    size_t n = arg == NULL ? 1 : 2;
    PyObject *raised;
    /* From within sendto() or close(): it may be entered already. */
    bool entered = fnet_context_enter(context, &raised);
    PyObject *result = PyObject_VectorcallMethod(
        name, argv, n | PY_VECTORCALL_ARGUMENTS_OFFSET, NULL);
    if (entered && PyContext_Exit(context) < 0) {
        Py_CLEAR(result);
    }
    result = fnet_err_instead(result, raised);
    Py_DECREF(argv[0]);
    Py_DECREF(context);
    int rc = result == NULL ? callback_failed(self, name) : 0;
    Py_XDECREF(result);
    return rc;
}

static int
error_received(DatagramObject *self, int error)
{
    PyObject *exc = fnet_make_oserror(error);
    int rc =
        fnet_datagram_call(self, self->loop->state->str_error_received, exc);
    Py_DECREF(exc);
    return rc;
}

int
fnet_datagram_report_errors(DatagramObject *self)
{
    int error, count = 0;

    while (self->attached &&
           (error = fnet_dgram_take_error(&self->dgram)) != 0) {
        if (error_received(self, error) < 0) {
            return -1;
        }
        count++;
    }
    return count;
}

/* -- delivering --------------------------------------------------------- */

static int
hold(DatagramObject *self, PyObject *data, PyObject *address)
{
    PyObject *pair = PyTuple_Pack(2, data, address);

    if (pair != NULL && self->held == NULL) {
        self->held = PyList_New(0);
    }
    int rc = pair == NULL || self->held == NULL
                 ? -1
                 : PyList_Append(self->held, pair);
    Py_XDECREF(pair);
    return rc;
}

/* One datagram, in the transport's context. */
static int
deliver_one(DatagramObject *self, PyObject *data, PyObject *address)
{
    PyObject *name = self->loop->state->str_datagram_received;
    PyObject *argv[] = {Py_NewRef(self->protocol), data, address};
    int64_t begin = FNET_UNLIKELY(self->loop->debug) ? fnet_clock_ns() : 0;
    PyObject *result = PyObject_VectorcallMethod(
        name, argv, 3 | PY_VECTORCALL_ARGUMENTS_OFFSET, NULL);
    int rc = 0;

    Py_DECREF(argv[0]);
    if (FNET_UNLIKELY(result == NULL)) {
        rc = callback_failed(self, name);
    }
    Py_XDECREF(result);
    if (FNET_UNLIKELY(begin != 0) && rc == 0) {
        double took = (double)(fnet_clock_ns() - begin) / 1e9;
        if (took >= self->loop->slow_callback_duration) {
            rc = fnet_report(self->loop->state, "slow_callback", "(OOd)",
                             self->loop, self, took);
        }
    }
    return rc;
}

static int
deliver_received(DatagramObject *self, const struct mmsghdr *header)
{
    const struct msghdr *msg = &header->msg_hdr;

    if (FNET_UNLIKELY(self->conn_lost != 0 || self->closing ||
                      self->protocol == NULL)) {
        return 0;
    }
    PyObject *data = PyBytes_FromStringAndSize(msg->msg_iov->iov_base,
                                               (Py_ssize_t)header->msg_len);
    PyObject *address =
        data == NULL ? NULL
                     : fnet_dgram_names_find(&self->names, msg->msg_name,
                                             msg->msg_namelen);
    int rc = -1;
    if (FNET_LIKELY(address != NULL)) {
        if (FNET_UNLIKELY(self->paused || self->held != NULL)) {
            rc = hold(self, data, address); /* since the pass received */
        }
        else {
            rc = deliver_one(self, data, address);
            Py_DECREF(data);
            Py_DECREF(address);
            return rc;
        }
    }
    Py_XDECREF(data);
    Py_XDECREF(address);
    if (rc < 0) {
        return fnet_datagram_fatal_error(
            self, "Fatal read error on datagram transport");
    }
    return 0;
}

/* A run: all that came at once, in order.  When an exception must leave
 * run_forever() the rest stays in the batch for the next run. */
static int
deliver_run(DatagramObject *self, fnet_completion *item)
{
    PyObject *context = Py_NewRef(self->context);
    PyObject *exc;
    bool entered = fnet_context_enter(context, &exc);
    int rc = exc == NULL ? 0 : -1;

    self->company = item->result > 1;
    while (rc == 0 && item->result > 0) {
        const struct mmsghdr *header = item->data;
        item->data = (struct mmsghdr *)item->data + 1;
        item->result--;
        rc = deliver_received(self, header);
    }
    self->company = false;
    if (rc < 0 && exc == NULL) {
        exc = fnet_err_take();
    }
    if (entered && PyContext_Exit(context) < 0) {
        PyErr_Clear();
    }
    if (exc != NULL) {
        fnet_err_restore(exc);
        if (item->result > 0) {
            self->loop->delivering->next--;
        }
    }
    Py_DECREF(context);
    return rc;
}

/* deliver_held() in a turn of its own. */
int
fnet_datagram_schedule_held(DatagramObject *self)
{
    PyObject *method = PyObject_GetAttr((PyObject *)self,
                                        self->loop->state->str__deliver_held);
    int rc = fnet_loop_call_soon(self->loop, method, NULL, 0, NULL);

    Py_XDECREF(method);
    return rc;
}

PyObject *
fnet_datagram_deliver_held(DatagramObject *self, PyObject *unused)
{
    PyObject *held = self->held;
    Py_ssize_t done = 0;
    int rc = 0;

    if (held == NULL || self->paused || self->closing) {
        Py_RETURN_NONE;
    }
    PyObject *context = Py_NewRef(self->context);
    PyObject *exc;
    bool entered = fnet_context_enter(context, &exc);
    rc = exc == NULL ? 0 : -1;
    Py_INCREF(held);
    /* It grows when more of the batch comes while it is delivered. */
    while (rc == 0 && !self->paused && !self->closing && self->held == held &&
           done < PyList_GET_SIZE(held)) {
        PyObject *pair = Py_NewRef(PyList_GET_ITEM(held, done));
        done++;
        rc = deliver_one(self, PyTuple_GET_ITEM(pair, 0),
                         PyTuple_GET_ITEM(pair, 1));
        Py_DECREF(pair);
    }
    if (rc < 0 && exc == NULL) {
        exc = fnet_err_take();
    }
    if (entered && PyContext_Exit(context) < 0) {
        PyErr_Clear();
    }
    Py_DECREF(context);
    if (self->held == held) {
        if (done == PyList_GET_SIZE(held)) {
            Py_CLEAR(self->held);
        }
        else if (PyList_SetSlice(held, 0, done, NULL) < 0) {
            PyErr_Clear();
        }
    }
    Py_DECREF(held);
    if (self->held == NULL && !self->paused && !self->closing &&
        self->attached) {
        fnet_dgram_want(&self->dgram, true);
    }
    if (exc != NULL) {
        if (self->held != NULL && !self->paused && !self->closing &&
            fnet_datagram_schedule_held(self) < 0) {
            PyErr_Clear();
        }
        fnet_err_restore(exc);
        return NULL;
    }
    Py_RETURN_NONE;
}

/* -- output ------------------------------------------------------------- */

static int
call_flow_control(DatagramObject *self, PyObject *name, const char *message)
{
    int rc = 0;

    if (self->protocol == NULL) {
        return 0;
    }
    PyObject *protocol = Py_NewRef(self->protocol);
    PyObject *result = PyObject_CallMethodNoArgs(protocol, name);
    if (result == NULL) {
        rc = fnet_report_raised(self->loop, "flow_control_failed", message,
                                (PyObject *)self, protocol);
    }
    Py_XDECREF(result);
    Py_DECREF(protocol);
    return rc;
}

int
fnet_datagram_maybe_pause(DatagramObject *self)
{
    size_t bytes;

    (void)fnet_dgram_flush(&self->dgram, &bytes);
    if (bytes <= self->high || self->protocol_paused) {
        return 0;
    }
    self->protocol_paused = true;
    if (!self->closing) {
        fnet_dgram_notify(&self->dgram, self->low);
    }
    return call_flow_control(self, self->loop->state->str_pause_writing,
                             "protocol.pause_writing() failed");
}

/* Everything is sent: connection_lost(), in the transport's context. */
static int
finish_closing(DatagramObject *self)
{
    self->conn_lost++;
    PyObject *method = PyObject_GetAttr(
        (PyObject *)self, self->loop->state->str__call_connection_lost);
    PyObject *args[] = {Py_None};
    HandleObject *handle =
        method == NULL
            ? NULL
            : fnet_handle_new(self->loop, method, args, 1, self->context);
    int rc = -1;

    if (handle != NULL) {
        rc = fnet_handle_run(self->loop, handle);
        Py_DECREF(handle);
    }
    Py_XDECREF(method);
    return rc;
}

/* The receiver's queue is full and nobody will tell when it no longer is. */
static int
retry_later(DatagramObject *self)
{
    uint32_t left = fnet_dgram_flush(&self->dgram, NULL);

    if (left < self->stuck_at) {
        /* Some went: by this thread, or by a worker since. */
        self->retry_delay = FNET_RETRY_FIRST;
    }
    self->stuck_at = left;
    double delay = self->retry_delay;
    self->retry_delay = delay * 2 < RETRY_MAX ? delay * 2 : RETRY_MAX;
    return fnet_report(self->loop->state, "retry_later", "(OOd)", self->loop,
                       self, delay);
}

PyObject *
fnet_datagram_retry(DatagramObject *self, PyObject *unused)
{
    if (self->attached && self->conn_lost == 0) {
        fnet_dgram_retry(&self->dgram);
    }
    Py_RETURN_NONE;
}

/* Output went: below the mark that was waited for, or everything. */
static int
on_output(DatagramObject *self, bool stuck)
{
    size_t bytes;

    if (!self->attached || self->conn_lost != 0) {
        return 0;
    }
    if (stuck) {
        return retry_later(self);
    }
    uint32_t left = fnet_dgram_flush(&self->dgram, &bytes);
    if (self->protocol_paused && bytes <= self->low) {
        self->protocol_paused = false;
        if (call_flow_control(self, self->loop->state->str_resume_writing,
                              "protocol.resume_writing() failed") < 0) {
            return -1;
        }
        if (!self->attached || self->conn_lost != 0) {
            return 0;
        }
        left = fnet_dgram_flush(&self->dgram, &bytes); /* it may have sent */
    }
    if (self->closing) {
        if (fnet_datagram_report_errors(self) < 0) {
            fnet_dgram_notify(&self->dgram, 0); /* to come here again */
            return -1;
        }
        if (!self->attached || self->conn_lost != 0) {
            return 0;
        }
        if (left == 0) {
            return finish_closing(self);
        }
    }
    if (self->closing || self->protocol_paused) {
        fnet_dgram_notify(&self->dgram, self->closing ? 0 : self->low);
    }
    return 0;
}

int
fnet_datagram_deliver(PyObject *object, fnet_completion *item)
{
    DatagramObject *self = (DatagramObject *)object;

    switch (item->what) {
    case FNET_WHAT_DATAGRAMS:
        return deliver_run(self, item);
    case FNET_WHAT_OUTPUT:
        return on_output(self, item->result != 0);
    default:
        if (item->result == 0) {
            return fnet_datagram_report_errors(self) < 0 ? -1 : 0;
        }
        return self->conn_lost != 0 || self->closing
                   ? 0
                   : error_received(self, item->result);
    }
}

/* -- sending ------------------------------------------------------------ */

/* The exception that is set, as asyncio takes it: 0 if it was dealt with.
 * What error_received() raises comes out of sendto(). */
static int
send_failed(DatagramObject *self)
{
    if (!PyErr_ExceptionMatches(PyExc_OSError)) {
        return fnet_datagram_fatal_error(
            self, "Fatal write error on datagram transport");
    }
    PyObject *exc = fnet_err_take();
    PyObject *protocol = Py_XNewRef(self->protocol);
    PyObject *result = NULL;

    if (protocol != NULL) {
        result = PyObject_CallMethodOneArg(
            protocol, self->loop->state->str_error_received, exc);
    }
    int rc = protocol != NULL && result == NULL ? -1 : 0;
    Py_XDECREF(result);
    Py_XDECREF(protocol);
    Py_DECREF(exc);
    return rc;
}

static int
send_to(DatagramObject *self, PyObject *data, const void *addr, socklen_t len)
{
    fnet_piece piece = {0};
    Py_buffer view = {0};

    if (FNET_LIKELY(PyBytes_CheckExact(data))) {
        piece.data = PyBytes_AS_STRING(data);
        piece.len = (size_t)PyBytes_GET_SIZE(data);
        piece.foreign = Py_NewRef(data); /* kept until it is spent */
    }
    else if (PyObject_GetBuffer(data, &view, PyBUF_SIMPLE) < 0) {
        return send_failed(self);
    }
    else {
        piece.data = view.buf;
        piece.len = (size_t)view.len;
    }
    ssize_t left =
        fnet_dgram_send(&self->dgram, &piece, addr, len, self->company);
    if (piece.foreign != NULL && !piece.kept) {
        Py_DECREF((PyObject *)piece.foreign);
    }
    PyBuffer_Release(&view);
    if (FNET_UNLIKELY(left < 0)) {
        (void)fnet_raise((int)left);
        return send_failed(self);
    }
    if (FNET_UNLIKELY((size_t)left > self->high && !self->protocol_paused)) {
        return fnet_datagram_maybe_pause(self);
    }
    return 0;
}

/* Names to be looked up, and what is no address: by the socket module, which
 * blocks for the one and raises for the other. */
static FNET_COLD int
send_by_socket(DatagramObject *self, PyObject *data, PyObject *address)
{
    module_state *state = self->loop->state;
    struct sockaddr_storage addr;
    socklen_t len;

    if (fnet_dgram_flush(&self->dgram, NULL) == 0) {
        PyObject *result = PyObject_CallMethodObjArgs(
            self->sock, state->str_sendto, data, address, NULL);
        if (result != NULL) {
            Py_DECREF(result);
            return 0;
        }
        if (!PyErr_ExceptionMatches(PyExc_BlockingIOError)) {
            return send_failed(self);
        }
        PyErr_Clear();
    }
    PyObject *plain = PyObject_CallMethod(state->report, "resolve_address",
                                          "OO", self->sock, address);
    if (plain == NULL) {
        return send_failed(self);
    }
    int rc = fnet_datagram_address(self, plain, &addr, &len);
    if (rc == 0) {
        PyErr_Format(PyExc_TypeError, "%R is no address", address);
        rc = -1;
    }
    Py_DECREF(plain);
    if (rc < 0) {
        return send_failed(self);
    }
    return self->attached && self->conn_lost == 0
               ? send_to(self, data, &addr, len)
               : 0;
}

/* Keeps the address of the object that was used last. */
static void
remember(DatagramObject *self, PyObject *object,
         const struct sockaddr_storage *addr, socklen_t len)
{
    /* Of an exact tuple its parts may be subclasses; they were looked at. */
    if (PyTuple_CheckExact(object) || PyUnicode_CheckExact(object)) {
        memcpy(&self->sent_to, addr, len);
        self->sent_len = len;
        Py_XSETREF(self->sent_object, Py_NewRef(object));
    }
}

static int
send_to_object(DatagramObject *self, PyObject *data, PyObject *object)
{
    struct sockaddr_storage addr;
    socklen_t len;
    const fnet_names_entry *last = self->names.last;

    if (FNET_LIKELY(last != NULL && last->object == object)) {
        /* An answer to the sender of this datagram. */
        return send_to(self, data, last->bytes, last->len);
    }
    if (object == self->sent_object) {
        return send_to(self, data, &self->sent_to, self->sent_len);
    }
    int rc = fnet_datagram_address(self, object, &addr, &len);
    if (FNET_UNLIKELY(rc <= 0)) {
        return rc < 0 ? -1 : send_by_socket(self, data, object);
    }
    remember(self, object, &addr, len);
    return send_to(self, data, &addr, len);
}

static FNET_COLD int
sent_after_loss(DatagramObject *self)
{
    if (self->conn_lost >= SENDS_BEFORE_WARNING &&
        fnet_report(self->loop->state, "warn_lost", "()") < 0) {
        return -1;
    }
    self->conn_lost++;
    return 0;
}

static FNET_COLD int
wrong_address(DatagramObject *self)
{
    PyErr_Format(PyExc_ValueError, "Invalid address: must be None or %S",
                 self->address);
    return -1;
}

static FNET_COLD int
wrong_type(PyObject *data)
{
    PyObject *name = PyType_GetName(Py_TYPE(data));

    if (name != NULL) {
        PyErr_Format(PyExc_TypeError,
                     "data argument must be a bytes-like object, not %R",
                     name);
        Py_DECREF(name);
    }
    return -1;
}

static int
send_checked(DatagramObject *self, PyObject *data, PyObject *address)
{
    if (FNET_UNLIKELY(!PyBytes_Check(data) && !PyByteArray_Check(data) &&
                      !PyMemoryView_Check(data))) {
        return wrong_type(data);
    }
    if (FNET_UNLIKELY(fnet_loop_check_thread(self->loop) < 0)) {
        return -1;
    }
    if (self->address != NULL && address != Py_None &&
        address != self->address) {
        int same = PyObject_RichCompareBool(address, self->address, Py_EQ);
        if (same <= 0) {
            return same < 0 ? -1 : wrong_address(self);
        }
    }
    if (FNET_UNLIKELY(self->conn_lost != 0 || !self->attached)) {
        return sent_after_loss(self);
    }
    if (self->has_name || (self->connected && address == Py_None)) {
        return send_to(self, data, NULL, 0);
    }
    return send_to_object(self, data,
                          self->address != NULL ? self->address : address);
}

PyObject *
fnet_datagram_sendto(DatagramObject *self, PyObject *const *args,
                     Py_ssize_t nargs, PyObject *kwnames)
{
    PyObject *given[2] = {NULL, Py_None};

    if (FNET_UNLIKELY(nargs > 2)) {
        PyErr_Format(PyExc_TypeError,
                     "sendto() takes at most 2 arguments (%zd given)", nargs);
        return NULL;
    }
    for (Py_ssize_t i = 0; i < nargs; i++) {
        given[i] = args[i];
    }
    for (Py_ssize_t i = 0; kwnames != NULL && i < PyTuple_GET_SIZE(kwnames);
         i++) {
        PyObject *name = PyTuple_GET_ITEM(kwnames, i);
        int which = PyUnicode_CompareWithASCIIString(name, "data") == 0   ? 0
                    : PyUnicode_CompareWithASCIIString(name, "addr") == 0 ? 1
                                                                          : 2;
        if (which >= 2 || which < nargs) {
            PyErr_Format(PyExc_TypeError,
                         which >= 2
                             ? "sendto() got an unexpected keyword argument %R"
                             : "sendto() got multiple values for argument %R",
                         name);
            return NULL;
        }
        given[which] = args[nargs + i];
    }
    if (FNET_UNLIKELY(given[0] == NULL)) {
        PyErr_SetString(PyExc_TypeError,
                        "sendto() missing required argument 'data'");
        return NULL;
    }
    if (send_checked(self, given[0], given[1]) < 0) {
        return NULL;
    }
    Py_RETURN_NONE;
}
