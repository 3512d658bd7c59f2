/* names: loop.getaddrinfo() and loop.getnameinfo(), under pyfastnet/names.py:
 * numbers at once, all else by the pool of net/names.h.  What is malformed
 * has been left to the socket module before it comes here.
 *
 * The threads of the pool know nothing of Python: what they have found waits
 * in loop->names until the loop's thread, which they wake, makes objects of
 * it in its turn. */
#include "python/module.h"

#include <errno.h>
#include <limits.h>

/* -- answers ------------------------------------------------------------ */

static PyObject *
sockaddr_object(const struct addrinfo *info)
{
    fnet_addr addr;

    fnet_addr_set(&addr, info->ai_addr, info->ai_addrlen);
    if (addr.len != 0) {
        return fnet_addr_object(&addr);
    }
    /* As the socket module shows what it does not know. */
    size_t head = offsetof(struct sockaddr, sa_data);
    size_t len = info->ai_addrlen > head ? info->ai_addrlen - head : 0;
    return Py_BuildValue("(iy#)", (int)info->ai_addr->sa_family,
                         info->ai_addr->sa_data, (Py_ssize_t)len);
}

static PyObject *
list_object(const struct addrinfo *info)
{
    PyObject *list = PyList_New(0);

    for (; list != NULL && info != NULL; info = info->ai_next) {
        PyObject *item = Py_BuildValue(
            "(iiisN)", info->ai_family, info->ai_socktype, info->ai_protocol,
            info->ai_canonname == NULL ? "" : info->ai_canonname,
            sockaddr_object(info));
        if (item == NULL || PyList_Append(list, item) < 0) {
            Py_CLEAR(list);
        }
        Py_XDECREF(item);
    }
    return list;
}

/* Sets socket.gaierror, or OSError where errno has the reason. */
static void
set_gaierror(const fnet_lookup *lookup)
{
    if (lookup->error == EAI_SYSTEM) {
        fnet_raise(-lookup->system);
        return;
    }
    PyObject *module = PyImport_ImportModule("socket");
    PyObject *type =
        module == NULL ? NULL : PyObject_GetAttrString(module, "gaierror");
    PyObject *value =
        Py_BuildValue("(is)", lookup->error, gai_strerror(lookup->error));
    if (type != NULL && value != NULL) {
        PyErr_SetObject(type, value);
    }
    Py_XDECREF(module);
    Py_XDECREF(type);
    Py_XDECREF(value);
}

/* What the look-up has found; NULL with the exception. */
static PyObject *
answer_object(const fnet_lookup *lookup)
{
    if (lookup->error != 0) {
        set_gaierror(lookup);
        return NULL;
    }
    if (lookup->reverse) {
        return Py_BuildValue("(ss)", lookup->host_text, lookup->service_text);
    }
    return list_object(lookup->list);
}

/* -- delivery ----------------------------------------------------------- */

/* The reference of the look-up, which nobody can forget any more. */
static PyObject *
take_future(fnet_lookup *lookup)
{
    PyObject *future = lookup->owner;

    fnet_list_remove(&lookup->mine);
    lookup->owner = NULL;
    return future;
}

static void
forget(fnet_lookup *lookup)
{
    PyObject *future = take_future(lookup);

    fnet_lookup_free(lookup);
    Py_DECREF(future);
}

static void
deliver_one(LoopObject *self, fnet_lookup *lookup)
{
    /* First: making objects may collect garbage, which may be who asked. */
    PyObject *future = take_future(lookup);
    PyObject *answer = answer_object(lookup);
    PyObject *exc = answer == NULL ? fnet_err_take() : NULL;
    fnet_lookup_free(lookup);
    PyObject *done = PyObject_CallMethodNoArgs(future, self->state->str_done);
    PyObject *result = NULL;

    if (done == Py_True) { /* cancelled a moment ago */
        result = Py_NewRef(Py_None);
    }
    else if (done != NULL && exc != NULL) {
        result = PyObject_CallMethod(future, "set_exception", "O", exc);
    }
    else if (done != NULL) {
        result = PyObject_CallMethodOneArg(future, self->state->str_set_result,
                                           answer);
    }
    if (result == NULL) {
        PyErr_WriteUnraisable(future);
    }
    Py_XDECREF(result);
    Py_XDECREF(done);
    Py_XDECREF(answer);
    Py_XDECREF(exc);
    Py_DECREF(future);
}

void
fnet_loop_deliver_names(LoopObject *self)
{
    fnet_lookup *lookup;

    while ((lookup = fnet_names_next(&self->names)) != NULL) {
        deliver_one(self, lookup);
    }
}

/* -- life --------------------------------------------------------------- */

static void
wake_any(void *inbox)
{
    fnet_inbox_wake_any(inbox);
}

void
fnet_loop_init_names(LoopObject *self)
{
    fnet_list_init(&self->lookups);
    fnet_names_init(&self->names, wake_any, &self->set.inbox);
}

void
fnet_loop_drop_names(LoopObject *self)
{
    while (!fnet_list_empty(&self->lookups)) {
        forget(fnet_container_of(self->lookups.next, fnet_lookup, mine));
    }
}

int
fnet_loop_traverse_names(LoopObject *self, visitproc visit, void *arg)
{
    fnet_list *node;

    if (self->lookups.next != NULL) {
        fnet_list_foreach(node, &self->lookups)
        {
            Py_VISIT(fnet_container_of(node, fnet_lookup, mine)->owner);
        }
    }
    return 0;
}

/* -- asking ------------------------------------------------------------- */

/* The answer, or a future of it; takes over the look-up. */
static PyObject *
ask(LoopObject *self, fnet_lookup *lookup)
{
    if (lookup == NULL) {
        return PyErr_NoMemory();
    }
    if (fnet_lookup_try(lookup)) {
        PyObject *answer = answer_object(lookup);
        fnet_lookup_free(lookup);
        return answer;
    }
    PyObject *future = fnet_loop_create_future(self);
    if (future == NULL) {
        fnet_lookup_free(lookup);
        return NULL;
    }
    lookup->owner = future;
    if (fnet_names_ask(&self->names, lookup) < 0) {
        fnet_lookup_free(lookup);
        Py_DECREF(future);
        PyErr_SetString(PyExc_RuntimeError, "can't start new thread");
        return NULL;
    }
    fnet_list_push(&self->lookups, &lookup->mine);
    return Py_NewRef(future);
}

static PyObject *
loop_look_up(LoopObject *self, PyObject *args)
{
    const char *host, *service;
    int family, type, proto, flags;
    Py_ssize_t host_len, service_len; /* "z#" takes bytes, "z" does not */

    if (!PyArg_ParseTuple(args, "z#z#iiii:getaddrinfo", &host, &host_len,
                          &service, &service_len, &family, &type, &proto,
                          &flags) ||
        fnet_loop_check(self) < 0) {
        return NULL;
    }
    return ask(self,
               fnet_lookup_new(host, service, family, type, proto, flags));
}

/* Of an address as the socket module shows it; false: not a good one, what
 * is wrong with it is for the socket module to say. */
static bool
parse_address(PyObject *object, struct addrinfo **found)
{
    const char *host;
    int port;
    unsigned int flowinfo = 0, scope = 0;
    char service[16];
    struct addrinfo hints = {.ai_socktype = SOCK_DGRAM,
                             .ai_flags = AI_NUMERICHOST | AI_NUMERICSERV};

    if (!PyTuple_CheckExact(object) ||
        !PyArg_ParseTuple(object, "si|II", &host, &port, &flowinfo, &scope)) {
        PyErr_Clear();
        return false;
    }
    if (flowinfo > 0xfffff || port < 0 || port > UINT16_MAX) {
        return false;
    }
    PyOS_snprintf(service, sizeof(service), "%d", port);
    if (getaddrinfo(host, service, &hints, found) != 0) {
        return false;
    }
    struct addrinfo *info = *found;
    bool good = info->ai_next == NULL;
    if (info->ai_family == AF_INET6) {
        struct sockaddr_in6 *in6 =
            (struct sockaddr_in6 *)(void *)info->ai_addr;
        in6->sin6_flowinfo = htonl(flowinfo);
        in6->sin6_scope_id = scope;
    }
    else if (info->ai_family != AF_INET || PyTuple_GET_SIZE(object) != 2) {
        good = false;
    }
    if (!good) {
        freeaddrinfo(info);
    }
    return good;
}

static PyObject *
loop_look_up_name(LoopObject *self, PyObject *args)
{
    PyObject *object;
    struct addrinfo *info;
    int flags;

    if (!PyArg_ParseTuple(args, "Oi:getnameinfo", &object, &flags) ||
        fnet_loop_check(self) < 0) {
        return NULL;
    }
    if (!parse_address(object, &info)) {
        Py_RETURN_NONE;
    }
    fnet_lookup *lookup =
        fnet_lookup_new_reverse(info->ai_addr, info->ai_addrlen, flags);
    freeaddrinfo(info);
    return ask(self, lookup);
}

/* Whoever waited for the future is cancelled.  From the oldest on, as many
 * are cancelled in the order in which they were asked. */
static PyObject *
loop_forget_look_up(LoopObject *self, PyObject *future)
{
    fnet_list *node;

    fnet_list_foreach(node, &self->lookups)
    {
        fnet_lookup *lookup = fnet_container_of(node, fnet_lookup, mine);
        if (lookup->owner == future) {
            forget(lookup);
            break;
        }
    }
    Py_RETURN_NONE;
}

PyMethodDef fnet_names_methods[] = {
    {"_look_up", (PyCFunction)loop_look_up, METH_VARARGS, NULL},
    {"_look_up_name", (PyCFunction)loop_look_up_name, METH_VARARGS, NULL},
    {"_forget_look_up", (PyCFunction)loop_forget_look_up, METH_O, NULL},
    {NULL, NULL, 0, NULL},
};
