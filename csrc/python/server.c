/* server: listeners, and the sets of connections that servers keep. */
#include "python/module.h"

#include <errno.h>
#include <netinet/in.h>
#include <sys/un.h>

/* -- ConnectionSet ------------------------------------------------------ */

/* Without a GIL a transport may go on another thread while it is looked at
 * here: there real weak references are kept. */
int
fnet_connset_add(ConnSetObject *set, TransportObject *transport)
{
    if (!FNET_HAS_GIL) {
        PyObject *result =
            PyObject_CallMethod(set->others, "add", "O", transport);
        Py_XDECREF(result);
        return result == NULL ? -1 : 0;
    }
    if (transport->conns == NULL) {
        transport->conns = (ConnSetObject *)Py_NewRef((PyObject *)set);
        fnet_list_push(&set->transports, &transport->conn_link);
        set->count++;
    }
    return 0;
}

void
fnet_connset_unlink(TransportObject *transport)
{
    ConnSetObject *set = transport->conns;

    if (set == NULL) {
        return;
    }
    fnet_list_remove(&transport->conn_link);
    set->count--;
    transport->conns = NULL;
    Py_DECREF(set);
}

static PyObject *
connset_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {NULL};

    if (!PyArg_ParseTupleAndKeywords(args, kwargs, ":ConnectionSet", names)) {
        return NULL;
    }
    ConnSetObject *self = (ConnSetObject *)type->tp_alloc(type, 0);
    if (self != NULL) {
        fnet_list_init(&self->transports);
        PyObject *weakref = PyImport_ImportModule("weakref");
        self->others = weakref == NULL
                           ? NULL
                           : PyObject_CallMethod(weakref, "WeakSet", NULL);
        Py_XDECREF(weakref);
        if (self->others == NULL) {
            Py_CLEAR(self);
        }
    }
    return (PyObject *)self;
}

static int
connset_traverse(ConnSetObject *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(self->others);
    return 0;
}

static int
connset_clear(ConnSetObject *self)
{
    Py_CLEAR(self->others);
    return 0;
}

static void
connset_dealloc(ConnSetObject *self)
{
    PyTypeObject *type = Py_TYPE(self);

    PyObject_GC_UnTrack(self);
    /* Each transport that is linked holds a reference. */
    fnet_assert(self->count == 0);
    connset_clear(self);
    type->tp_free((PyObject *)self);
    Py_DECREF(type);
}

static bool
is_transport(PyObject *set, PyObject *object)
{
    module_state *state =
        FNET_HAS_GIL ? fnet_state_of_type(Py_TYPE(set)) : NULL;
    return state != NULL && Py_IS_TYPE(object, state->transport_type);
}

static PyObject *
connset_add(ConnSetObject *self, PyObject *object)
{
    if (!is_transport((PyObject *)self, object)) {
        return PyObject_CallMethod(self->others, "add", "O", object);
    }
    if (fnet_connset_add(self, (TransportObject *)object) < 0) {
        return NULL;
    }
    Py_RETURN_NONE;
}

static PyObject *
connset_discard(ConnSetObject *self, PyObject *object)
{
    if (!is_transport((PyObject *)self, object)) {
        return PyObject_CallMethod(self->others, "discard", "O", object);
    }
    if (((TransportObject *)object)->conns == self) {
        fnet_connset_unlink((TransportObject *)object);
    }
    Py_RETURN_NONE;
}

static PyObject *
connset_copy(ConnSetObject *self, PyObject *unused)
{
    PyObject *list = PySequence_List(self->others);
    fnet_list *node;

    if (list == NULL) {
        return NULL;
    }
    fnet_list_foreach(node, &self->transports)
    {
        if (PyList_Append(list, (PyObject *)fnet_container_of(
                                    node, TransportObject, conn_link)) < 0) {
            Py_DECREF(list);
            return NULL;
        }
    }
    return list;
}

static PyObject *
connset_iter(ConnSetObject *self)
{
    PyObject *list = connset_copy(self, NULL);
    PyObject *iter = list == NULL ? NULL : PyObject_GetIter(list);
    Py_XDECREF(list);
    return iter;
}

static Py_ssize_t
connset_length(ConnSetObject *self)
{
    Py_ssize_t others = PyObject_Length(self->others);
    return others < 0 ? -1 : self->count + others;
}

static PyMethodDef connset_methods[] = {
    {"add", (PyCFunction)connset_add, METH_O, NULL},
    {"discard", (PyCFunction)connset_discard, METH_O, NULL},
    {"copy", (PyCFunction)connset_copy, METH_NOARGS,
     "The transports, as a list."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot connset_slots[] = {
    {Py_tp_doc, "The connections of a server, weakly held."},
    {Py_tp_new, connset_new},
    {Py_tp_dealloc, connset_dealloc},
    {Py_tp_traverse, connset_traverse},
    {Py_tp_clear, connset_clear},
    {Py_tp_iter, connset_iter},
    {Py_sq_length, connset_length},
    {Py_tp_methods, connset_methods},
    {0, NULL},
};

PyType_Spec fnet_connset_spec = {
    .name = "pyfastnet._core.ConnectionSet",
    .basicsize = sizeof(ConnSetObject),
    .flags =
        Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = connset_slots,
};

/* -- Listener ----------------------------------------------------------- */

static int
listener_traverse(ListenerObject *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(self->sock);
    Py_VISIT(self->factory);
    Py_VISIT(self->server);
    Py_VISIT(self->on_accept);
    Py_VISIT(self->context);
    Py_VISIT(self->sockname);
    return 0;
}

static int
listener_clear(ListenerObject *self)
{
    Py_CLEAR(self->sock);
    Py_CLEAR(self->factory);
    Py_CLEAR(self->server);
    Py_CLEAR(self->on_accept);
    Py_CLEAR(self->context);
    Py_CLEAR(self->sockname);
    return 0;
}

static void
listener_dealloc(ListenerObject *self)
{
    PyTypeObject *type = Py_TYPE(self);

    PyObject_GC_UnTrack(self);
    fnet_assert(!fnet_source_attached(&self->listener.source));
    listener_clear(self);
    PyObject_GC_Del(self);
    Py_DECREF(type);
}

static PyObject *
listener_repr(ListenerObject *self)
{
    return PyUnicode_FromFormat("<listener of %R>",
                                self->server != NULL ? self->server : Py_None);
}

static PyType_Slot listener_slots[] = {
    {Py_tp_dealloc, listener_dealloc},
    {Py_tp_traverse, listener_traverse},
    {Py_tp_clear, listener_clear},
    {Py_tp_repr, listener_repr},
    {0, NULL},
};

PyType_Spec fnet_listener_spec = {
    .name = "pyfastnet._core.Listener",
    .basicsize = sizeof(ListenerObject),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC |
             Py_TPFLAGS_DISALLOW_INSTANTIATION | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = listener_slots,
};

void
fnet_listener_drop(ListenerObject *self)
{
    fnet_listener_detach(&self->listener);
}

/* What every connection's own address is, unless the listener is bound to
 * all of them. */
static int
note_address(ListenerObject *self, int fd)
{
    struct sockaddr_storage storage;
    socklen_t len = sizeof(storage);
    fnet_addr addr;

    if (getsockname(fd, (struct sockaddr *)&storage, &len) < 0) {
        fnet_raise(-errno);
        return -1;
    }
    self->family = storage.ss_family;
    self->is_tcp = self->family == AF_INET || self->family == AF_INET6;
    fnet_addr_set(&addr, &storage, len);
    if (self->family == AF_UNIX || !fnet_addr_is_any(&addr)) {
        self->sockname = PyObject_CallMethod(self->sock, "getsockname", NULL);
        if (self->sockname == NULL) {
            return -1;
        }
    }
    return 0;
}

static PyObject *
loop_listen(LoopObject *loop, PyObject *args)
{
    PyObject *sock, *factory, *server, *on_accept;
    long backlog;

    if (!PyArg_ParseTuple(args, "OOOOl:_listen", &sock, &factory, &server,
                          &on_accept, &backlog) ||
        fnet_loop_check(loop) < 0 || fnet_loop_check_thread(loop) < 0) {
        return NULL;
    }
    int fd = fnet_fileno(loop->state, sock);
    PyObject **slot = fd < 0 ? NULL : fnet_loop_fd_slot(loop, fd);
    if (slot == NULL) {
        return NULL;
    }
    if (*slot != NULL && Py_IS_TYPE(*slot, loop->state->listener_type) &&
        ((ListenerObject *)*slot)->sock == sock) {
        fnet_listener_resume(&((ListenerObject *)*slot)->listener);
        Py_RETURN_NONE;
    }
    ListenerObject *self =
        PyObject_GC_New(ListenerObject, loop->state->listener_type);
    if (self == NULL) {
        return NULL;
    }
    self->listener = (fnet_listener){0};
    self->loop = loop;
    self->sock = Py_NewRef(sock);
    self->factory = Py_NewRef(factory);
    self->server = server == Py_None ? NULL : Py_NewRef(server);
    self->on_accept = on_accept == Py_None ? NULL : Py_NewRef(on_accept);
    self->sockname = NULL;
    self->backlog = backlog;
    self->context = PyContext_CopyCurrent();
    PyObject_GC_Track(self);
    /* note_address() runs Python, and what is dropped may. */
    if (self->context == NULL || note_address(self, fd) < 0 ||
        fnet_loop_free_number(loop, fd) < 0) {
        Py_DECREF(self);
        return NULL;
    }
    int rc =
        fnet_listener_attach(&self->listener, &loop->home, fd,
                             backlog > 65535 ? 65535 : (int)backlog, self);
    if (rc < 0) {
        Py_DECREF(self);
        return fnet_raise(rc);
    }
    loop->fds[fd] = (PyObject *)self;
    Py_RETURN_NONE;
}

static PyObject *
loop_unlisten(LoopObject *loop, PyObject *fdobj)
{
    int fd = fnet_fileno(loop->state, fdobj);
    if (fd < 0) {
        return NULL;
    }
    PyObject *object = fnet_loop_fd_object(loop, fd);
    if (object == NULL || !Py_IS_TYPE(object, loop->state->listener_type)) {
        Py_RETURN_FALSE;
    }
    if (fnet_loop_check_thread(loop) < 0) {
        return NULL;
    }
    loop->fds[fd] = NULL;
    fnet_listener_drop((ListenerObject *)object);
    Py_DECREF(object);
    Py_RETURN_TRUE;
}

PyMethodDef fnet_server_methods[] = {
    {"_listen", (PyCFunction)loop_listen, METH_VARARGS, NULL},
    {"_unlisten", (PyCFunction)loop_unlisten, METH_O, NULL},
    {NULL, NULL, 0, NULL},
};

/* -- accepting ------------------------------------------------------------ */

static int
report_accept_error(ListenerObject *self, int error)
{
    PyObject *exc = fnet_make_oserror(error);
    if (exc == NULL) {
        return -1;
    }
    PyObject *result = PyObject_CallMethod(
        (PyObject *)self->loop, "_accept_error", "OOOOOl", self->sock, exc,
        self->factory, self->server != NULL ? self->server : Py_None,
        self->on_accept != NULL ? self->on_accept : Py_None, self->backlog);
    Py_DECREF(exc);
    if (result == NULL && fnet_must_propagate()) {
        return -1;
    }
    if (result == NULL) {
        PyErr_WriteUnraisable((PyObject *)self);
    }
    Py_XDECREF(result);
    return 0;
}

/* No connection could be made of what was accepted. */
static FNET_COLD int
accept_failed(LoopObject *loop)
{
    if (fnet_must_propagate()) {
        return -1;
    }
    PyObject *exc = fnet_err_take();
    int rc = fnet_report(loop->state, "accept_failed", "(OO)", loop, exc);
    Py_XDECREF(exc);
    return rc;
}

/* The peer's name as socket.accept() has it. */
static PyObject *
peer_name(ListenerObject *self, const fnet_completion *item)
{
    const struct sockaddr_un *un = item->data;
    size_t start = offsetof(struct sockaddr_un, sun_path);
    fnet_addr peer;

    if (self->family != AF_UNIX) {
        fnet_addr_set(&peer, item->data, item->len);
        return fnet_addr_object(&peer);
    }
    if (un == NULL || item->len <= start) {
        return PyUnicode_FromString("");
    }
    if (un->sun_path[0] == '\0') { /* abstract: no text */
        return PyBytes_FromStringAndSize(un->sun_path,
                                         (Py_ssize_t)(item->len - start));
    }
    size_t len = strnlen(un->sun_path, item->len - start);
    return PyUnicode_DecodeFSDefaultAndSize(un->sun_path, (Py_ssize_t)len);
}

/* Another layer makes the connection: TLS. */
static int
hand_over(ListenerObject *self, const fnet_completion *item)
{
    PyObject *name = peer_name(self, item);
    if (name == NULL) {
        fnet_sys_close(item->result);
        return accept_failed(self->loop);
    }
    PyObject *result =
        PyObject_CallFunction(self->on_accept, "iO", (int)item->result, name);
    Py_DECREF(name);
    if (result == NULL) {
        return accept_failed(self->loop);
    }
    Py_DECREF(result);
    return 0;
}

static TransportObject *
make_transport(ListenerObject *self, int fd, PyObject *context)
{
    PyObject *protocol = NULL;
    TransportObject *transport = NULL;

    if (PyContext_Enter(context) == 0) {
        protocol = PyObject_CallNoArgs(self->factory);
        if (PyContext_Exit(context) < 0) {
            Py_CLEAR(protocol);
        }
    }
    if (protocol != NULL) {
        transport = fnet_transport_new(self->loop, fd, NULL, protocol, context,
                                       self->family, self->server);
        Py_DECREF(protocol);
    }
    return transport;
}

static int
make_connection(ListenerObject *self, const fnet_completion *item)
{
    /* A copy for each: what one connection sets, no other one sees. */
    PyObject *context = PyContext_Copy(self->context);
    TransportObject *transport =
        context == NULL ? NULL : make_transport(self, item->result, context);
    int rc;

    Py_XDECREF(context);
    if (transport == NULL) {
        fnet_sys_close(item->result);
        return accept_failed(self->loop);
    }
    fnet_addr_set(&transport->peer, item->data, item->len);
    if (self->family == AF_UNIX) {
        transport->peername = peer_name(self, item);
        if (transport->peername == NULL) {
            PyErr_Clear(); /* asked for again when somebody wants it */
        }
    }
    transport->sockname = Py_XNewRef(self->sockname);
    rc = fnet_transport_start(transport);
    Py_DECREF(transport);
    return rc;
}

int
fnet_listener_deliver(ListenerObject *self, fnet_completion *item)
{
    if (item->what == FNET_WHAT_ERROR) {
        return report_accept_error(self, item->result);
    }
    if (self->on_accept != NULL) {
        return hand_over(self, item);
    }
    return make_connection(self, item);
}
