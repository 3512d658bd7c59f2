/* socket: the blocking sockets, Socket and SocketReader, on net/fd.
 *
 * Any thread may use any of it at any time.  A call takes the turn of its
 * direction, tries without waiting while it has the GIL, and gives the GIL up
 * only to wait: what then arrives is received before it is taken back.  No
 * more than FNET_GIL_MAX bytes are moved with the GIL at a time. */
#ifndef FNET_PYTHON_SOCKET_H
#define FNET_PYTHON_SOCKET_H

#include "python/module.h"

#include "net/fd.h"

/* A copy of that size costs about what giving the GIL up and taking it back
 * costs while nobody else wants it. */
#define FNET_GIL_MAX ((size_t)16 * 1024)

/* Bytes that came and that nobody has taken yet. */
typedef struct fnet_inbuf {
    char *data;
    size_t start, end, capacity;
} fnet_inbuf;

typedef struct SocketObject {
    PyObject_HEAD
    fnet_fd fd;
    module_state *state; /* constant */
    /* constant after __init__ */
    int family, type, proto;
    bool ours; /* made here: its O_NONBLOCK flag may be changed */
    /* atomic: relaxed; ns, -1: none, 0: does not block */
    _Atomic(int64_t) timeout;
    /* guarded by the GIL or FNET_BEGIN_SHARED(self) */
    int io_refs;      /* files over it */
    bool closed;      /* close() was called: waits for the files */
    bool nonblocking; /* the flag was set, for accept() */
    fnet_addr peer;   /* if known without asking */
    /* whoever has the read turn */
    uint8_t waits;      /* reads in a row that had to wait */
    bool big_datagrams; /* the last one was more than FNET_GIL_MAX */
    fnet_inbuf held;
    PyObject *weakrefs;
} SocketObject;

/* -- calls (socket_io.c) ------------------------------------------------ */

/* What a step may answer beside a count or a negative errno. */
#define FNET_RAISED (-100001)    /* an exception is set */
#define FNET_TIMED_OUT (-100002) /* not the kernel's ETIMEDOUT */
#define FNET_CLOSED (-100003)    /* not the kernel's EBADF */
#define FNET_MORE (-100004)      /* has done something: once more */
#define FNET_LATER (-100005)     /* again in a moment: nothing to wait for */

/* One call of a method, on the stack. */
typedef struct fnet_call {
    SocketObject *sock;
    const char *name; /* for the messages */
    bool wait;        /* false: it must not block */
    fnet_fd_op op;
} fnet_call;

/* One system call without waiting, with or without the GIL: no Python. */
typedef ssize_t (*fnet_step)(int number, void *arg);

/* Takes the turn: 0, or what fnet_socket_fail() turns into an exception. */
int fnet_call_begin(fnet_call *call, SocketObject *self, const char *name,
                    enum fnet_fd_dir dir, int flags);
/* Repeats the step until it says neither -EAGAIN nor FNET_MORE.  `keep`: the
 * first time with the GIL. */
ssize_t fnet_call_run(fnet_call *call, fnet_step step, void *arg, bool keep);
/* The same from the answer `n` on, without the GIL. */
ssize_t fnet_call_go(fnet_call *call, fnet_step step, void *arg, ssize_t n);
/* -EAGAIN was the answer: waits, with the GIL held before and after. */
int fnet_call_wait(fnet_call *call);
static inline void
fnet_call_end(fnet_call *call)
{
    fnet_fd_end(&call->sock->fd, &call->op);
}

/* The exception for a failed call; NULL.  `address` (may be NULL) is what the
 * call was given. */
PyObject *fnet_socket_fail(SocketObject *self, const char *name,
                           PyObject *address, ssize_t error);
/* The same for the OSError that is set, from the socket module. */
void fnet_socket_reword(SocketObject *self, const char *name,
                        PyObject *address);
/* exc.<name> = count, on the exception that is set. */
void fnet_socket_note_progress(const char *name, size_t count);
extern PyMethodDef fnet_socket_io_methods[], fnet_socket_send_methods[];

/* One receive: `buf` may be what has to be filled (FNET_MORE until it is). */
typedef struct fnet_receive {
    char *buf;
    size_t len, got;
    int flags;
    bool all;
    bool from; /* wants the sender's address */
    struct sockaddr_storage addr;
    socklen_t addrlen;
} fnet_receive;
ssize_t fnet_step_receive(int number, void *receive);
/* A size below zero, or that no machine has: the socket module's errors. */
int fnet_check_size(Py_ssize_t size, const char *name);

/* -- bytes in between (socket_read.c) ----------------------------------- */

static inline size_t
fnet_inbuf_len(const fnet_inbuf *in)
{
    return in->end - in->start;
}
/* At most `len` bytes out of it, into buf. */
size_t fnet_inbuf_take(fnet_inbuf *in, void *buf, size_t len);
/* In front of what is there: 0 or -ENOMEM. */
int fnet_inbuf_put_back(fnet_inbuf *in, const void *data, size_t len);
void fnet_inbuf_skip(fnet_inbuf *in, size_t n);
/* Room behind what is there: 0 or -ENOMEM. */
int fnet_inbuf_reserve(fnet_inbuf *in, size_t room);
void fnet_inbuf_free(fnet_inbuf *in);
extern PyMethodDef fnet_socket_read_methods[];
extern PyType_Spec fnet_reader_spec;

/* -- addresses (socket_addr.c) ------------------------------------------ */

/* 1: a numeric or Unix address; 0: a name, another family, or wrong. */
int fnet_parse_address(int family, PyObject *object,
                       struct sockaddr_storage *addr, socklen_t *len);
/* Families of which fnet_make_address() knows all. */
static inline bool
fnet_plain_family(int family)
{
    return family == AF_INET || family == AF_INET6 || family == AF_UNIX;
}
PyObject *fnet_make_address(const struct sockaddr_storage *addr,
                            socklen_t len);
extern PyMethodDef fnet_socket_addr_methods[];

/* -- life (socket.c) ---------------------------------------------------- */

extern PyType_Spec fnet_socket_spec;
extern PyMethodDef fnet_socket_option_methods[];
/* pyfastnet.Socket around a descriptor, which it owns from now on; closed if
 * that fails.  `like` says what kind. */
PyObject *fnet_socket_wrap(const SocketObject *like, int number);
/* A socket.socket on the same number: for one call, then detached. */
PyObject *fnet_socket_raw(SocketObject *self);
void fnet_socket_raw_done(PyObject *raw);
/* pyfastnet.socket.<name>, new reference. */
PyObject *fnet_socket_cold(const char *name);
/* pyfastnet.socket.<name>(self, *args, **kwargs): what is rare is Python. */
PyObject *fnet_socket_cold_call(SocketObject *self, const char *name,
                                PyObject *const *args, Py_ssize_t nargs);
PyObject *fnet_socket_cold_call_tuple(SocketObject *self, const char *name,
                                      PyObject *args, PyObject *kwargs);

/* -- arguments (socket_errors.c) ------------------------------------------ */

/* ns of a number of seconds, rounded up; < 0 with an exception. */
int64_t fnet_socket_ns(PyObject *seconds);
PyObject *fnet_socket_gettimeout(SocketObject *self, PyObject *unused);
/* An int; -1 with an exception. */
int fnet_int_arg(PyObject *object);
/* From a fast call to what PyArg_ParseTupleAndKeywords() takes. */
int fnet_pack_args(PyObject *const *args, Py_ssize_t nargs, PyObject *names,
                   PyObject **tuple, PyObject **dict);

#endif
