/* sockview: what get_extra_info() answers, and the 'socket' among it for a
 * connection that the core accepted.
 *
 * The core accepts descriptors, not socket objects, which cost a microsecond
 * each.  The view is an asyncio.TransportSocket whose socket.socket is made
 * when somebody needs it; setsockopt() and fileno(), the two that servers
 * call on every connection, do without.  Before the descriptor is closed the
 * view lets go of it: fileno() is -1 from then on. */
#include "python/module.h"

#include <errno.h>
#include <sys/socket.h>

typedef struct SockViewObject {
    PyObject_HEAD
    PyObject *slot;             /* asyncio.TransportSocket's _sock, unused */
    TransportObject *transport; /* borrowed; NULL once detached */
    PyObject *real;
    int family;
} SockViewObject;

/* -- addresses ---------------------------------------------------------- */

PyObject *
fnet_addr_object(const fnet_addr *addr)
{
    char host[INET6_ADDRSTRLEN];
    uint16_t port;

    if (!fnet_addr_host(addr, host, &port)) {
        Py_RETURN_NONE;
    }
    if (addr->u.any.sa_family == AF_INET) {
        return Py_BuildValue("(sH)", host, port);
    }
    return Py_BuildValue("(sHII)", host, port,
                         ntohl(addr->u.in6.sin6_flowinfo),
                         addr->u.in6.sin6_scope_id);
}

typedef int (*name_call)(int fd, struct sockaddr *addr, socklen_t *len);

/* Asks the kernel; addresses of other families are the socket module's. */
static int
learn(TransportObject *self, name_call call, const char *method,
      fnet_addr *addr, PyObject **object)
{
    struct sockaddr_storage storage;
    socklen_t len = sizeof(storage);

    if (addr->len != 0 || *object != NULL) {
        return 0;
    }
    if (call(self->fd, (struct sockaddr *)&storage, &len) < 0) {
        *object = Py_NewRef(Py_None);
        return 0;
    }
    fnet_addr_set(addr, &storage, len);
    if (addr->len != 0) {
        return 0;
    }
    PyObject *sock = NULL;
    if (self->sock != NULL) {
        sock = Py_NewRef(self->sock);
    }
    else {
        PyObject *view =
            fnet_transport_extra(self, self->loop->state->str_socket, Py_None);
        sock = view == NULL ? NULL : fnet_sockview_real(view);
        Py_XDECREF(view);
    }
    PyObject *name =
        sock == NULL ? NULL : PyObject_CallMethod(sock, method, NULL);
    Py_XDECREF(sock);
    if (name == NULL) {
        if (!PyErr_ExceptionMatches(PyExc_OSError)) {
            return -1;
        }
        PyErr_Clear();
        name = Py_NewRef(Py_None);
    }
    Py_XSETREF(*object, name);
    return 0;
}

int
fnet_transport_learn_names(TransportObject *self)
{
    int rc =
        learn(self, getsockname, "getsockname", &self->own, &self->sockname);
    if (rc == 0) {
        rc = learn(self, getpeername, "getpeername", &self->peer,
                   &self->peername);
    }
    return rc;
}

void
fnet_transport_keep_names(TransportObject *self)
{
    struct sockaddr_storage storage;
    socklen_t len = sizeof(storage);

    /* The peer's came with accept(); the own one matters only where the
     * listener is bound to all addresses. */
    if (self->sockname == NULL && self->own.len == 0 &&
        getsockname(self->fd, (struct sockaddr *)&storage, &len) == 0) {
        fnet_addr_set(&self->own, &storage, len);
    }
}

static PyObject *
name_object(TransportObject *self, fnet_addr *addr, PyObject **object)
{
    if (*object == NULL && addr->len == 0 && self->attached &&
        fnet_transport_learn_names(self) < 0) {
        return NULL;
    }
    if (*object == NULL) {
        *object = fnet_addr_object(addr);
    }
    return Py_XNewRef(*object);
}

static PyObject *
socket_object(TransportObject *self)
{
    if (self->view == NULL) {
        PyObject *view =
            self->sock != NULL
                ? PyObject_CallOneArg(self->loop->state->transport_socket,
                                      self->sock)
                : fnet_sockview_new(self);
        if (self->view == NULL) {
            self->view = view;
        }
        else {
            Py_XDECREF(view); /* another thread was faster */
        }
    }
    return Py_XNewRef(self->view);
}

static bool
is_name(PyObject *name, PyObject *wanted)
{
    return name == wanted ||
           (PyUnicode_Check(name) && PyUnicode_Compare(name, wanted) == 0);
}

PyObject *
fnet_transport_extra(TransportObject *self, PyObject *name,
                     PyObject *otherwise)
{
    module_state *state = self->loop->state;
    PyObject *value = NULL;

    if (self->extra != NULL && PyDict_Check(self->extra)) {
        if (fnet_dict_get(self->extra, name, &value) != 0) {
            return value;
        }
    }
    if (is_name(name, state->str_socket)) {
        return socket_object(self);
    }
    if (is_name(name, state->str_peername)) {
        return name_object(self, &self->peer, &self->peername);
    }
    if (is_name(name, state->str_sockname)) {
        return name_object(self, &self->own, &self->sockname);
    }
    return PyErr_Occurred() ? NULL : Py_NewRef(otherwise);
}

/* -- the view ------------------------------------------------------------- */

PyObject *
fnet_sockview_new(TransportObject *transport)
{
    PyTypeObject *type = transport->loop->state->sockview_type;
    SockViewObject *self = (SockViewObject *)type->tp_alloc(type, 0);

    if (self != NULL) {
        self->transport = transport->attached ? transport : NULL;
        self->family = transport->family;
    }
    return (PyObject *)self;
}

static int
sockview_traverse(SockViewObject *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(self->slot);
    Py_VISIT(self->real);
    return 0;
}

static int
sockview_clear(SockViewObject *self)
{
    Py_CLEAR(self->slot);
    Py_CLEAR(self->real);
    return 0;
}

static void
sockview_dealloc(SockViewObject *self)
{
    PyTypeObject *type = Py_TYPE(self);

    PyObject_GC_UnTrack(self);
    sockview_clear(self);
    type->tp_free((PyObject *)self);
    Py_DECREF(type);
}

static PyObject *
make_real(PyObject *object)
{
    SockViewObject *self = (SockViewObject *)object;
    module_state *state = fnet_state_of_type(Py_TYPE(object));

    if (self->real != NULL) {
        return Py_NewRef(self->real);
    }
    int proto = self->family == AF_UNIX ? 0 : IPPROTO_TCP;
    int fd = self->transport != NULL ? self->transport->fd : -1;
    PyObject *real =
        fd >= 0 ? PyObject_CallFunction(state->socket_type, "iiii",
                                        self->family, SOCK_STREAM, proto, fd)
                : PyObject_CallFunction(state->socket_type, "ii", self->family,
                                        SOCK_STREAM);
    if (real == NULL) {
        return NULL;
    }
    PyObject *result = fd >= 0
                           ? PyObject_CallMethod(real, "setblocking", "i", 0)
                           : PyObject_CallMethod(real, "close", NULL);
    if (result == NULL) {
        if (fd >= 0) {
            Py_XDECREF(PyObject_CallMethod(real, "detach", NULL));
        }
        Py_DECREF(real);
        return NULL;
    }
    Py_DECREF(result);
    if (self->transport != NULL) {
        /* It can be duplicated now, and outlive its number. */
        self->transport->exposed = true;
    }
    if (FNET_UNLIKELY(self->real != NULL)) {
        /* Another thread was faster. */
        if (fd >= 0) {
            Py_XDECREF(PyObject_CallMethod(real, "detach", NULL));
        }
        Py_SETREF(real, Py_NewRef(self->real));
        return real;
    }
    self->real = real;
    return Py_NewRef(real);
}

PyObject *
fnet_sockview_real(PyObject *object)
{
    PyObject *real;

    FNET_BEGIN_SHARED(object)
    real = make_real(object);
    FNET_END_SHARED()
    return real;
}

bool
fnet_sockview_detach(PyObject *object)
{
    SockViewObject *self = (SockViewObject *)object;
    bool ours = true;

    FNET_BEGIN_SHARED(self)
    self->transport = NULL;
    FNET_END_SHARED()
    if (self->real != NULL) {
        PyObject *result = PyObject_CallMethod(self->real, "detach", NULL);
        if (result == NULL) {
            PyErr_WriteUnraisable(object);
        }
        else {
            ours = PyLong_AsLong(result) >= 0;
        }
        Py_XDECREF(result);
    }
    return ours;
}

static PyObject *
sockview_get_sock(PyObject *self, void *unused)
{
    return fnet_sockview_real(self);
}

static PyObject *
sockview_fileno(SockViewObject *self, PyObject *unused)
{
    int fd;

    FNET_BEGIN_SHARED(self)
    fd = self->transport != NULL ? self->transport->fd : -1;
    FNET_END_SHARED()
    return PyLong_FromLong(fd);
}

static PyObject *
sockview_setsockopt(SockViewObject *self, PyObject *const *args,
                    Py_ssize_t nargs)
{
    if (nargs == 3 && PyLong_CheckExact(args[2])) {
        int level = (int)PyLong_AsLong(args[0]);
        int option = (int)PyLong_AsLong(args[1]);
        int value = (int)PyLong_AsLong(args[2]);
        if (PyErr_Occurred()) {
            return NULL;
        }
        bool attached;
        int rc = 0;
        FNET_BEGIN_SHARED(self)
        attached = self->transport != NULL;
        if (attached) {
            rc = fnet_sys_set_int(self->transport->fd, level, option, value);
        }
        FNET_END_SHARED()
        if (rc < 0) {
            return fnet_raise(rc);
        }
        if (attached) {
            Py_RETURN_NONE;
        }
    }
    PyObject *real = fnet_sockview_real((PyObject *)self);
    PyObject *method =
        real == NULL ? NULL : PyObject_GetAttrString(real, "setsockopt");
    PyObject *result =
        method == NULL
            ? NULL
            : PyObject_Vectorcall(method, args, (size_t)nargs, NULL);
    Py_XDECREF(method);
    Py_XDECREF(real);
    return result;
}

static PyGetSetDef sockview_getset[] = {
    {"_sock", sockview_get_sock, NULL, NULL, NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyMethodDef sockview_methods[] = {
    {"fileno", (PyCFunction)sockview_fileno, METH_NOARGS,
     "The descriptor; -1 once the connection was closed."},
    {"setsockopt", (PyCFunction)(void (*)(void))sockview_setsockopt,
     METH_FASTCALL, "As socket.setsockopt()."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot sockview_slots[] = {
    {Py_tp_doc, "The socket of a connection that a server has accepted."},
    {Py_tp_dealloc, sockview_dealloc},
    {Py_tp_traverse, sockview_traverse},
    {Py_tp_clear, sockview_clear},
    {Py_tp_methods, sockview_methods},
    {Py_tp_getset, sockview_getset},
    {0, NULL},
};

PyType_Spec fnet_sockview_spec = {
    .name = "pyfastnet._core.TransportSocket",
    .basicsize = sizeof(SockViewObject),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC |
             Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = sockview_slots,
};
