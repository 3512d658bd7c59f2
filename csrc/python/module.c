/* module: the extension pyfastnet._core: its state, its types. */
#include "python/module.h"
#include "python/context.h"

PyMODINIT_FUNC PyInit__core(void);

module_state *
fnet_state_of_type(PyTypeObject *type)
{
    PyObject *module = PyType_GetModuleByDef(type, &fnet_module_def);
    return module == NULL ? NULL : PyModule_GetState(module);
}

/* -- names and what others offer ---------------------------------------- */

static const struct {
    const char *text;
    size_t offset;
} names[] = {
#define NAME(text, field) {text, offsetof(module_state, field)}
    NAME("data_received", str_data_received),
    NAME("eof_received", str_eof_received),
    NAME("connection_made", str_connection_made),
    NAME("connection_lost", str_connection_lost),
    NAME("get_buffer", str_get_buffer),
    NAME("buffer_updated", str_buffer_updated),
    NAME("pause_writing", str_pause_writing),
    NAME("resume_writing", str_resume_writing),
    NAME("set_result", str_set_result),
    NAME("done", str_done),
    NAME("close", str_close),
    NAME("fileno", str_fileno),
    NAME("_attach", str__attach),
    NAME("_detach", str__detach),
    NAME("_clients", str__clients),
    NAME("_sockets", str__sockets),
    NAME("_wakeup", str__wakeup),
    NAME("gettimeout", str_gettimeout),
    NAME("family", str_family),
    NAME("_transports", str__transports),
    NAME("get", str_get),
    NAME("is_closing", str_is_closing),
    NAME("_io_refs", str__io_refs),
    NAME("_decref_socketios", str__decref_socketios),
    NAME("socket", str_socket),
    NAME("sockname", str_sockname),
    NAME("peername", str_peername),
    NAME("_deliver_held", str__deliver_held),
    NAME("_start", str__start),
    NAME("_call_connection_lost", str__call_connection_lost),
    NAME("datagram_received", str_datagram_received),
    NAME("error_received", str_error_received),
    NAME("sendto", str_sendto),
#undef NAME
};

static const struct {
    const char *module, *attribute;
    size_t offset;
} imports[] = {
#define IMPORT(module, name, field)                                           \
    {module, name, offsetof(module_state, field)}
    IMPORT("asyncio", "Handle", asyncio_handle),
    IMPORT("asyncio", "TimerHandle", asyncio_timer),
    IMPORT("asyncio", "Future", future_type),
    IMPORT("asyncio", "BufferedProtocol", buffered_type),
    IMPORT("asyncio", "Protocol", protocol_type),
    IMPORT("socket", "socket", socket_type),
    IMPORT("asyncio.trsock", "TransportSocket", transport_socket),
    IMPORT("pyfastnet", "_report", report),
#undef IMPORT
};

static PyObject **
field(module_state *state, size_t offset)
{
    return (PyObject **)(void *)((char *)state + offset);
}

static int
import_names(module_state *state)
{
    for (size_t i = 0; i < FNET_COUNTOF(names); i++) {
        PyObject *text = PyUnicode_InternFromString(names[i].text);
        if (text == NULL) {
            return -1;
        }
        *field(state, names[i].offset) = text;
    }
    state->kw_loop = Py_BuildValue("(s)", "loop");
    state->one = PyLong_FromLong(1);
    fnet_gate_init(&state->gate, fnet_usable_cpus());
    state->no_args = PyTuple_New(0);
#if FNET_FREELISTS
    state->free_max = FNET_FREELIST_MIN;
#endif
    if (state->kw_loop == NULL || state->one == NULL ||
        state->no_args == NULL) {
        return -1;
    }
    PyObject *report = PyImport_ImportModule("pyfastnet._report");
    if (report == NULL) {
        return -1;
    }
    Py_DECREF(report);
    for (size_t i = 0; i < FNET_COUNTOF(imports); i++) {
        PyObject *module = PyImport_ImportModule(imports[i].module);
        PyObject *object =
            module == NULL
                ? NULL
                : PyObject_GetAttrString(module, imports[i].attribute);
        Py_XDECREF(module);
        if (object == NULL) {
            return -1;
        }
        *field(state, imports[i].offset) = object;
    }
    /* A Python without the ssl module has no SSLSocket to refuse. */
    PyObject *ssl = PyImport_ImportModule("ssl");
    if (ssl == NULL) {
        PyErr_Clear();
        state->sslsocket_type = Py_NewRef(Py_None);
    }
    else {
        state->sslsocket_type = PyObject_GetAttrString(ssl, "SSLSocket");
        Py_DECREF(ssl);
    }
    return state->sslsocket_type == NULL ? -1 : 0;
}

/* -- types ---------------------------------------------------------------- */

static PyTypeObject *
make_type(PyObject *module, PyType_Spec *spec, PyObject *base)
{
    return (PyTypeObject *)PyType_FromModuleAndSpec(module, spec, base);
}

/* The loop's methods stand in several files. */
static int
add_methods(PyTypeObject *type, PyMethodDef *methods)
{
    for (; methods->ml_name != NULL; methods++) {
        PyObject *descriptor = PyDescr_NewMethod(type, methods);
        if (descriptor == NULL ||
            PyObject_SetAttrString((PyObject *)type, methods->ml_name,
                                   descriptor) < 0) {
            Py_XDECREF(descriptor);
            return -1;
        }
        Py_DECREF(descriptor);
    }
    return 0;
}

/* Gives a class of ours in Python copies of the loop's methods that are its
 * own: the interpreter calls a method without the detour through its checks
 * only where the descriptor is of the very class of the object. */
static PyObject *
bind_methods(PyObject *module, PyObject *class)
{
    module_state *state = PyModule_GetState(module);
    PyObject *base = (PyObject *)state->loop_type;

    if (!PyType_Check(class) ||
        !PyType_IsSubtype((PyTypeObject *)class, state->loop_type)) {
        PyErr_SetString(PyExc_TypeError, "a subclass of Loop is needed");
        return NULL;
    }
    PyObject *dict = PyObject_GetAttrString(base, "__dict__");
    PyObject *items = dict == NULL ? NULL : PyMapping_Items(dict);
    Py_XDECREF(dict);
    for (Py_ssize_t i = 0; items != NULL && i < PyList_GET_SIZE(items); i++) {
        PyObject *name = PyTuple_GET_ITEM(PyList_GET_ITEM(items, i), 0);
        PyObject *ours = PyTuple_GET_ITEM(PyList_GET_ITEM(items, i), 1);
        PyObject *found = PyObject_GetAttr(class, name);
        if (found == NULL) {
            Py_CLEAR(items);
        }
        else if (found == ours && Py_IS_TYPE(ours, &PyMethodDescr_Type)) {
            PyObject *own =
                PyDescr_NewMethod((PyTypeObject *)class,
                                  ((PyMethodDescrObject *)ours)->d_method);
            if (own == NULL || PyObject_SetAttr(class, name, own) < 0) {
                Py_CLEAR(items);
            }
            Py_XDECREF(own);
        }
        Py_XDECREF(found);
    }
    if (items == NULL) {
        return NULL;
    }
    Py_DECREF(items);
    return Py_NewRef(class);
}

static PyTypeObject *
make_transport_type(PyObject *module)
{
    PyObject *asyncio = PyImport_ImportModule("asyncio");
    PyObject *base =
        asyncio == NULL ? NULL : PyObject_GetAttrString(asyncio, "Transport");
    PyTypeObject *type =
        base == NULL ? NULL : make_type(module, &fnet_transport_spec, base);

    Py_XDECREF(base);
    if (type != NULL) {
        /* What asyncio's own code asks of a transport. */
        PyObject *constants = PyImport_ImportModule("asyncio.constants");
        PyObject *mode =
            constants == NULL
                ? NULL
                : PyObject_GetAttrString(constants, "_SendfileMode");
        PyObject *native =
            mode == NULL ? NULL : PyObject_GetAttrString(mode, "TRY_NATIVE");
        if (native == NULL ||
            PyObject_SetAttrString((PyObject *)type, "_sendfile_compatible",
                                   native) < 0 ||
            PyObject_SetAttrString((PyObject *)type, "_start_tls_compatible",
                                   Py_True) < 0) {
            Py_CLEAR(type);
        }
        Py_XDECREF(native);
        Py_XDECREF(mode);
        Py_XDECREF(constants);
    }
    Py_XDECREF(asyncio);
    return type;
}

/* As asyncio's datagram transports these are a Transport as well. */
static PyTypeObject *
make_datagram_type(PyObject *module)
{
    PyObject *asyncio = PyImport_ImportModule("asyncio");
    PyObject *bases =
        asyncio == NULL
            ? NULL
            : Py_BuildValue(
                  "(NN)", PyObject_GetAttrString(asyncio, "DatagramTransport"),
                  PyObject_GetAttrString(asyncio, "Transport"));
    PyTypeObject *type =
        bases == NULL ? NULL : make_type(module, &fnet_datagram_spec, bases);

    Py_XDECREF(bases);
    Py_XDECREF(asyncio);
    return type;
}

static int
make_types(PyObject *module, module_state *state)
{
    state->handle_type = make_type(module, &fnet_handle_spec, NULL);
    if (state->handle_type == NULL) {
        return -1;
    }
    state->timer_type =
        make_type(module, &fnet_timer_spec, (PyObject *)state->handle_type);
    state->loop_type = make_type(module, &fnet_loop_spec, NULL);
    state->listener_type = make_type(module, &fnet_listener_spec, NULL);
    state->watch_type = make_type(module, &fnet_watch_spec, NULL);
    state->sockop_type = make_type(module, &fnet_sockop_spec, NULL);
    state->connset_type = make_type(module, &fnet_connset_spec, NULL);
    state->sockview_type =
        make_type(module, &fnet_sockview_spec, state->transport_socket);
    state->transport_type = make_transport_type(module);
    state->datagram_type = make_datagram_type(module);
    if (fnet_pipe_make_types(module, state) < 0) {
        return -1;
    }
    if (state->timer_type == NULL || state->loop_type == NULL ||
        state->listener_type == NULL || state->watch_type == NULL ||
        state->sockop_type == NULL || state->connset_type == NULL ||
        state->sockview_type == NULL || state->transport_type == NULL ||
        state->datagram_type == NULL) {
        return -1;
    }
    if (add_methods(state->loop_type, fnet_schedule_methods) < 0 ||
        add_methods(state->loop_type, fnet_watch_methods) < 0 ||
        add_methods(state->loop_type, fnet_sock_methods) < 0 ||
        add_methods(state->loop_type, fnet_server_methods) < 0 ||
        add_methods(state->loop_type, fnet_pipe_methods) < 0 ||
        add_methods(state->loop_type, fnet_names_methods) < 0 ||
        add_methods(state->loop_type, fnet_stats_methods) < 0) {
        return -1;
    }
    PyTypeObject *public[] = {state->handle_type,  state->timer_type,
                              state->loop_type,    state->transport_type,
                              state->connset_type, state->datagram_type};
    for (size_t i = 0; i < FNET_COUNTOF(public); i++) {
        if (PyModule_AddType(module, public[i]) < 0) {
            return -1;
        }
    }
    return 0;
}

static int
module_exec(PyObject *module)
{
    module_state *state = PyModule_GetState(module);

    state->contexts_known = fnet_context_probe();
    if (import_names(state) < 0 || make_types(module, state) < 0 ||
        PyModule_AddFunctions(module, fnet_stats_functions) < 0 ||
        fnet_socket_add_types(module, state) < 0) {
        return -1;
    }
    return 0;
}

/* -- life ----------------------------------------------------------------- */

#define FOR_EACH_TYPE(state, DO)                                              \
    DO((state)->handle_type);                                                 \
    DO((state)->timer_type);                                                  \
    DO((state)->loop_type);                                                   \
    DO((state)->transport_type);                                              \
    DO((state)->readpipe_type);                                               \
    DO((state)->writepipe_type);                                              \
    DO((state)->listener_type);                                               \
    DO((state)->watch_type);                                                  \
    DO((state)->sockop_type);                                                 \
    DO((state)->connset_type);                                                \
    DO((state)->sockview_type);                                               \
    DO((state)->datagram_type)

#define FOR_EACH_OF_SOCKETS(state, DO)                                        \
    DO((state)->blocking_type);                                               \
    DO((state)->reader_type);                                                 \
    DO((state)->socket_class);                                                \
    DO((state)->raw_socket_type);                                             \
    DO((state)->default_timeout)

static int
visit_sockets(module_state *state, visitproc visit, void *arg)
{
    FOR_EACH_OF_SOCKETS(state, Py_VISIT);
    return 0;
}

static void
clear_sockets(module_state *state)
{
    FOR_EACH_OF_SOCKETS(state, Py_CLEAR);
}

static int
visit_types(module_state *state, visitproc visit, void *arg)
{
    FOR_EACH_TYPE(state, Py_VISIT);
    return 0;
}

static int
module_traverse(PyObject *module, visitproc visit, void *arg)
{
    module_state *state = PyModule_GetState(module);
    int rc = visit_types(state, visit, arg);

    if (rc == 0) {
        rc = visit_sockets(state, visit, arg);
    }
    if (rc != 0) {
        return rc;
    }
    for (size_t i = 0; i < FNET_COUNTOF(imports); i++) {
        Py_VISIT(*field(state, imports[i].offset));
    }
    Py_VISIT(state->sslsocket_type);
    return 0;
}

static int
module_clear(PyObject *module)
{
    module_state *state = PyModule_GetState(module);

    fnet_handle_trim(state, true);
    FOR_EACH_TYPE(state, Py_CLEAR);
    clear_sockets(state);
    for (size_t i = 0; i < FNET_COUNTOF(imports); i++) {
        Py_CLEAR(*field(state, imports[i].offset));
    }
    Py_CLEAR(state->sslsocket_type);
    return 0;
}

static void
module_free(void *module)
{
    module_state *state = PyModule_GetState(module);

    module_clear(module);
    for (size_t i = 0; i < FNET_COUNTOF(names); i++) {
        Py_CLEAR(*field(state, names[i].offset));
    }
    Py_CLEAR(state->kw_loop);
    Py_CLEAR(state->one);
    Py_CLEAR(state->no_args);
}

static PyMethodDef module_methods[] = {
    {"bind_methods", bind_methods, METH_O,
     "Give a subclass of Loop copies of the methods that it inherits."},
    {"usable_cpus", fnet_usable_cpus_object, METH_NOARGS,
     "CPUs that this process may use: its affinity and its control group."},
    {NULL, NULL, 0, NULL},
};

static PyModuleDef_Slot module_slots[] = {
    {Py_mod_exec, module_exec},
#if PY_VERSION_HEX >= 0x030C0000
    {Py_mod_multiple_interpreters, Py_MOD_MULTIPLE_INTERPRETERS_NOT_SUPPORTED},
#endif
#if PY_VERSION_HEX >= 0x030D0000
    {Py_mod_gil, Py_MOD_GIL_NOT_USED},
#endif
    {0, NULL},
};

struct PyModuleDef fnet_module_def = {
    PyModuleDef_HEAD_INIT,
    .m_name = "pyfastnet._core",
    .m_doc = "The C core of pyfastnet; private.",
    .m_size = sizeof(module_state),
    .m_methods = module_methods,
    .m_slots = module_slots,
    .m_traverse = module_traverse,
    .m_clear = module_clear,
    .m_free = module_free,
};

PyMODINIT_FUNC
PyInit__core(void)
{
    return PyModuleDef_Init(&fnet_module_def);
}
