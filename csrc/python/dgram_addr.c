/* dgram_addr: socket addresses and the objects that the socket module makes of
 * them. */
#include "python/dgram.h"

#include <arpa/inet.h>
#include <linux/netlink.h>
#include <stddef.h>
#include <sys/un.h>

/* The table grows when as many addresses as it has places had to make way. */
#define NAMES_START 16
#define NAMES_GROWTH 8
#define NAMES_MAX 1024

/* -- from the kernel ---------------------------------------------------- */

static PyObject *
unix_object(const struct sockaddr *addr, socklen_t len)
{
    const struct sockaddr_un *un = (const struct sockaddr_un *)addr;
    size_t room = len - offsetof(struct sockaddr_un, sun_path);

    if (room > 0 && un->sun_path[0] == '\0') {
        return PyBytes_FromStringAndSize(un->sun_path, (Py_ssize_t)room);
    }
    return PyUnicode_DecodeFSDefaultAndSize(
        un->sun_path, (Py_ssize_t)strnlen(un->sun_path, room));
}

static PyObject *
make_object(const struct sockaddr *addr, socklen_t len)
{
    switch (addr->sa_family) {
    case AF_INET:
    case AF_INET6: {
        fnet_addr ip;
        fnet_addr_set(&ip, addr, len);
        return fnet_addr_object(&ip);
    }
    case AF_UNIX:
        return len < offsetof(struct sockaddr_un, sun_path)
                   ? Py_NewRef(Py_None)
                   : unix_object(addr, len);
    case AF_NETLINK: {
        const struct sockaddr_nl *nl = (const struct sockaddr_nl *)addr;
        return Py_BuildValue("(II)", nl->nl_pid, nl->nl_groups);
    }
    default:
        return Py_NewRef(Py_None);
    }
}

static uint32_t
hash_of(const struct sockaddr *addr)
{
    uint32_t hash;

    if (addr->sa_family == AF_INET) {
        const struct sockaddr_in *in4 = (const struct sockaddr_in *)addr;
        hash = in4->sin_addr.s_addr * 31 + in4->sin_port;
    }
    else {
        const struct sockaddr_in6 *in6 = (const struct sockaddr_in6 *)addr;
        uint32_t words[4];
        memcpy(words, &in6->sin6_addr, sizeof(words));
        hash =
            (words[0] ^ words[1] ^ words[2] ^ words[3]) * 31 + in6->sin6_port;
    }
    hash *= UINT32_C(2654435761);
    return hash >> 16 ^ hash >> 6;
}

static void
grow(fnet_dgram_names *names)
{
    unsigned size =
        names->size == 0 ? NAMES_START : names->size * NAMES_GROWTH;
    fnet_names_entry *entries = PyMem_Calloc(size, sizeof(*entries));

    if (entries == NULL) {
        return; /* without a cache, or with the smaller one */
    }
    fnet_dgram_names_clear(names);
    names->entries = entries;
    names->size = size;
}

PyObject *
fnet_dgram_names_find(fnet_dgram_names *names, const struct sockaddr *addr,
                      socklen_t len)
{
    if (len < sizeof(sa_family_t)) {
        Py_RETURN_NONE;
    }
    if ((addr->sa_family != AF_INET || len != sizeof(struct sockaddr_in)) &&
        (addr->sa_family != AF_INET6 || len != sizeof(struct sockaddr_in6))) {
        return make_object(addr, len);
    }
    if (names->size == 0 ||
        (names->evicted >= names->size && names->size < NAMES_MAX)) {
        names->evicted = 0;
        grow(names);
    }
    if (FNET_UNLIKELY(names->size == 0)) {
        return make_object(addr, len);
    }
    fnet_names_entry *entry =
        &names->entries[hash_of(addr) & (names->size - 1)];
    if (FNET_LIKELY(entry->object != NULL && entry->len == len &&
                    memcmp(entry->bytes, addr, len) == 0)) {
        names->last = entry;
        return Py_NewRef(entry->object);
    }
    PyObject *object = make_object(addr, len);
    if (object == NULL) {
        return NULL;
    }
    names->evicted += entry->object != NULL;
    entry->len = len;
    memcpy(entry->bytes, addr, len);
    names->last = entry;
    /* Tuples of strings and numbers: dropping one runs no Python. */
    Py_XSETREF(entry->object, Py_NewRef(object));
    return object;
}

void
fnet_dgram_names_clear(fnet_dgram_names *names)
{
    fnet_names_entry *entries = names->entries;
    unsigned size = names->size;

    *names = (fnet_dgram_names){.evicted = names->evicted};
    for (unsigned i = 0; i < size; i++) {
        Py_XDECREF(entries[i].object);
    }
    PyMem_Free(entries);
}

int
fnet_dgram_names_traverse(fnet_dgram_names *names, visitproc visit, void *arg)
{
    for (unsigned i = 0; i < names->size; i++) {
        Py_VISIT(names->entries[i].object);
    }
    return 0;
}

/* -- to the kernel ------------------------------------------------------ */

/* An int in 0..max: 1; else 0, without an exception. */
static int
small_number(PyObject *object, unsigned long max, unsigned long *out)
{
    if (!PyLong_CheckExact(object)) {
        return 0;
    }
    unsigned long n = PyLong_AsUnsignedLong(object);
    if (n == (unsigned long)-1 && PyErr_Occurred()) {
        PyErr_Clear();
        return 0;
    }
    *out = n;
    return n <= max;
}

/* The host's text, if it may be a numeric address; else NULL. */
static const char *
host_text(PyObject *object)
{
    if (!PyUnicode_CheckExact(object) || !PyUnicode_IS_COMPACT_ASCII(object)) {
        return NULL;
    }
    const char *text = (const char *)PyUnicode_1BYTE_DATA(object);
    return (Py_ssize_t)strlen(text) == PyUnicode_GET_LENGTH(object) ? text
                                                                    : NULL;
}

static int
inet_address(PyObject *object, struct sockaddr_storage *addr, socklen_t *len)
{
    unsigned long port;

    if (!PyTuple_Check(object) || PyTuple_GET_SIZE(object) != 2 ||
        !small_number(PyTuple_GET_ITEM(object, 1), 65535, &port)) {
        return 0;
    }
    const char *host = host_text(PyTuple_GET_ITEM(object, 0));
    struct sockaddr_in *in4 = (struct sockaddr_in *)addr;
    *in4 = (struct sockaddr_in){.sin_family = AF_INET,
                                .sin_port = htons((uint16_t)port)};
    *len = sizeof(*in4);
    return host != NULL && inet_pton(AF_INET, host, &in4->sin_addr) == 1;
}

static int
inet6_address(PyObject *object, struct sockaddr_storage *addr, socklen_t *len)
{
    unsigned long port, flow = 0, scope = 0;

    if (!PyTuple_Check(object) || PyTuple_GET_SIZE(object) < 2 ||
        PyTuple_GET_SIZE(object) > 4 ||
        !small_number(PyTuple_GET_ITEM(object, 1), 65535, &port)) {
        return 0;
    }
    if ((PyTuple_GET_SIZE(object) > 2 &&
         !small_number(PyTuple_GET_ITEM(object, 2), 0xFFFFF, &flow)) ||
        (PyTuple_GET_SIZE(object) > 3 &&
         !small_number(PyTuple_GET_ITEM(object, 3), UINT32_MAX, &scope))) {
        return 0;
    }
    const char *host = host_text(PyTuple_GET_ITEM(object, 0));
    struct sockaddr_in6 *in6 = (struct sockaddr_in6 *)addr;
    *in6 = (struct sockaddr_in6){.sin6_family = AF_INET6,
                                 .sin6_port = htons((uint16_t)port),
                                 .sin6_flowinfo = htonl((uint32_t)flow),
                                 .sin6_scope_id = (uint32_t)scope};
    *len = sizeof(*in6);
    return host != NULL && inet_pton(AF_INET6, host, &in6->sin6_addr) == 1;
}

static int
unix_address(PyObject *object, struct sockaddr_storage *addr, socklen_t *len)
{
    struct sockaddr_un *un = (struct sockaddr_un *)addr;
    PyObject *path = NULL;

    if (PyUnicode_Check(object)) {
        path = PyUnicode_EncodeFSDefault(object);
        if (path == NULL) {
            PyErr_Clear();
            return 0;
        }
    }
    else if (PyBytes_Check(object)) {
        path = Py_NewRef(object);
    }
    else {
        return 0;
    }
    size_t size = (size_t)PyBytes_GET_SIZE(path);
    const char *text = PyBytes_AS_STRING(path);
    /* A name in the abstract space may fill the field, a path ends with a
     * NUL. */
    bool abstract = size == 0 || text[0] == '\0';
    bool fits = size + !abstract <= sizeof(un->sun_path);
    if (fits) {
        un->sun_family = AF_UNIX;
        memcpy(un->sun_path, text, size);
        if (!abstract) {
            un->sun_path[size] = '\0';
        }
        *len = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + size +
                           !abstract);
    }
    Py_DECREF(path);
    return fits;
}

static int
netlink_address(PyObject *object, struct sockaddr_storage *addr,
                socklen_t *len)
{
    unsigned long pid, groups;
    struct sockaddr_nl *nl = (struct sockaddr_nl *)addr;

    if (!PyTuple_Check(object) || PyTuple_GET_SIZE(object) != 2 ||
        !small_number(PyTuple_GET_ITEM(object, 0), UINT32_MAX, &pid) ||
        !small_number(PyTuple_GET_ITEM(object, 1), UINT32_MAX, &groups)) {
        return 0;
    }
    *nl = (struct sockaddr_nl){.nl_family = AF_NETLINK,
                               .nl_pid = (uint32_t)pid,
                               .nl_groups = (uint32_t)groups};
    *len = sizeof(*nl);
    return 1;
}

int
fnet_datagram_address(DatagramObject *self, PyObject *object,
                      struct sockaddr_storage *addr, socklen_t *len)
{
    switch (self->family) {
    case AF_INET:
        return inet_address(object, addr, len);
    case AF_INET6:
        return inet6_address(object, addr, len);
    case AF_UNIX:
        return unix_address(object, addr, len);
    case AF_NETLINK:
        return netlink_address(object, addr, len);
    default:
        return 0;
    }
}
