/* module: what the files of the Python layer share.
 *
 * The state of the module, the objects, and each file's door to the others.
 * Everything here is for a thread that holds the GIL (or, on a free-threaded
 * build, is attached); a loop and its transports belong to the thread that
 * runs the loop. */
#ifndef FNET_PYTHON_MODULE_H
#define FNET_PYTHON_MODULE_H

#include "python/compat.h"

#include <stdatomic.h>

#include "base/heap.h"
#include "base/list.h"
#include "net/addr.h"
#include "net/listen.h"
#include "net/names.h"
#include "net/stream.h"
#include "net/watch.h"
#include "poll/adapt.h"
#include "poll/cpus.h"
#include "poll/prompter.h"
#include "poll/shard.h"
#include "poll/shardset.h"
#include "python/gate.h"

/* -- state ---------------------------------------------------------------- */

/* Of handles that are not in use so many are kept, and as many as wait in the
 * ready queue at a time, up to the second figure, 5 MB; those go again when
 * the loop is idle (turn.c). */
#define FNET_FREELIST_MIN 512
#define FNET_FREELIST_MAX 32768

typedef struct module_state {
    /* our types */
    PyTypeObject *handle_type;
    PyTypeObject *timer_type;
    PyTypeObject *loop_type;
    PyTypeObject *transport_type;
    PyTypeObject *datagram_type;
    PyTypeObject *readpipe_type;
    PyTypeObject *writepipe_type;
    PyTypeObject *listener_type;
    PyTypeObject *watch_type;
    PyTypeObject *sockop_type;
    PyTypeObject *connset_type;
    PyTypeObject *sockview_type;
    PyTypeObject *blocking_type; /* the C half of pyfastnet.Socket */
    PyTypeObject *reader_type;
    /* what asyncio and pyfastnet offer */
    PyObject *asyncio_handle;   /* asyncio.Handle */
    PyObject *asyncio_timer;    /* asyncio.TimerHandle */
    PyObject *future_type;      /* asyncio.Future */
    PyObject *buffered_type;    /* asyncio.BufferedProtocol */
    PyObject *socket_type;      /* socket.socket */
    PyObject *transport_socket; /* asyncio.trsock.TransportSocket */
    PyObject *sslsocket_type;   /* ssl.SSLSocket or None */
    PyObject *protocol_type;    /* asyncio.Protocol */
    PyObject *one;              /* 1 */
    PyObject *no_args;          /* () */
    PyObject *report;           /* pyfastnet._report: the cold error paths */
    PyObject *socket_class;     /* pyfastnet.Socket, once it was needed */
    PyObject *raw_socket_type;  /* _socket.socket, likewise */
    PyObject *default_timeout;  /* socket.getdefaulttimeout, likewise */
    fnet_gate gate;             /* how blocking sockets take the GIL */
    /* names */
    PyObject *kw_loop, *str_data_received, *str_eof_received,
        *str_connection_made, *str_connection_lost, *str_get_buffer,
        *str_buffer_updated, *str_pause_writing, *str_resume_writing,
        *str_set_result, *str_done, *str_close, *str_fileno, *str__attach,
        *str__detach, *str__clients, *str__sockets, *str__wakeup,
        *str_gettimeout, *str_family, *str__transports, *str_get,
        *str_is_closing, *str__io_refs, *str__decref_socketios, *str_socket,
        *str_sockname, *str_peername, *str__deliver_held, *str__start,
        *str__call_connection_lost, *str_datagram_received,
        *str_error_received, *str_sendto;
    bool contexts_known; /* see context.c */
#if FNET_FREELISTS
    /* Empty handles and timers, chained by their `loop`. */
    struct HandleObject *free_handles[2];
    unsigned free_count[2], free_max;
    int dealloc_depth; /* handles whose arguments are being dropped */
#endif
} module_state;

extern struct PyModuleDef fnet_module_def;

/* The state, from one of our types (or a subclass in Python). */
module_state *fnet_state_of_type(PyTypeObject *type);

/* -- objects -------------------------------------------------------------- */

typedef struct LoopObject LoopObject;

#define HANDLE_INLINE_ARGS 4

typedef struct HandleObject {
    PyObject_HEAD
    LoopObject *loop;
    PyObject *callback; /* NULL once cancelled */
    PyObject *context;
    PyObject *args; /* a tuple, where they are too many to stand inline */
    PyObject *source_traceback;
    PyObject *old_repr; /* debug mode: what repr() said before cancel() */
    PyObject *weakrefs;
    /* argv[0] is scratch for the callee (vectorcall's offset) */
    PyObject *argv[1 + HANDLE_INLINE_ARGS];
    uint8_t nargs; /* inline ones */
    bool cancelled;
    bool is_timer;
    bool again;    /* runs more than once: a signal's */
    bool snapshot; /* the context is not to be entered or shown: context.c */
    bool foreign;  /* not made by the thread that runs the loop */
} HandleObject;

typedef struct TimerObject {
    HandleObject handle;
    fnet_heap_node node;
    double when;
    bool whole; /* it was given as an int, and is told as one */
} TimerObject;

typedef struct ConnSetObject {
    PyObject_HEAD
    fnet_list transports;
    Py_ssize_t count;
    PyObject *others; /* a set of weak references to foreign transports */
} ConnSetObject;

typedef struct WatchObject {
    PyObject_HEAD
    fnet_watch watch;
    LoopObject *loop; /* borrowed: the loop owns the table of watches */
    int fd;
    HandleObject *reader, *writer;
    PyObject *objects[2];    /* what they were added for, if not a number */
    uint64_t since[2];       /* the turn in which they were set */
    uint64_t since_batch[2]; /* and the worker's batch */
    PyObject *waiters[2];    /* lists of futures: to receive, to send */
    PyObject *sockref;       /* a weak reference to the socket waited for */
} WatchObject;

typedef struct ListenerObject {
    PyObject_HEAD
    fnet_listener listener;
    LoopObject *loop; /* borrowed, as above */
    PyObject *sock, *factory, *server, *on_accept, *context;
    PyObject *sockname; /* if it is that of every connection, too */
    long backlog;
    int family;
    bool is_tcp;
} ListenerObject;

typedef struct TransportObject {
    PyObject_HEAD
    PyObject *extra; /* asyncio.BaseTransport's slot _extra: stays first */
    LoopObject *loop;
    PyObject *protocol;
    PyObject *context;
    PyObject
        *sock; /* the socket.socket that owns the descriptor; NULL: we do */
    PyObject *view; /* what get_extra_info('socket') gave */
    PyObject *server;
    ConnSetObject *conns;
    PyObject *held; /* what came while reading was paused */
    PyObject *empty_waiter;
    PyObject *room_waiter;
    PyObject *sockname, *peername; /* known beforehand, or asked for */
    PyObject *weakrefs;
    PyObject *dict;      /* what the program has set on it; NULL: nothing */
    fnet_list link;      /* in loop->transports while attached */
    fnet_list conn_link; /* in conns->transports */
    fnet_stream stream;
    fnet_addr peer, own;
    size_t high, low;
    int fd;
    int family;
    uint32_t conn_lost;
    uint8_t pipe;  /* enum fnet_pipe_end; 0: a socket */
    bool attached; /* registered, and kept alive by the loop */
    bool closing, paused, eof_written, protocol_paused, buffered;
    bool started;   /* reading may begin: connection_made() was called */
    bool lost;      /* connection_lost() was called */
    bool unguarded; /* sock_* may use the descriptor (sendfile) */
    bool exposed;   /* the program may have duplicated the descriptor */
    bool orphan;    /* its loop was closed: the descriptor is still open */
} TransportObject;

/* Who runs the home shard's pass. */
enum fnet_home_mode {
    FNET_HOME_LOOP,   /* the loop's thread */
    FNET_HOME_AUTO,   /* as it pays: adapt.h */
    FNET_HOME_WORKER, /* a worker (benchmarks, tests) */
    FNET_HOME_FLIPS,  /* now one, now the other, at random (tests) */
};
#define FNET_RING_START 256

struct LoopObject {
    PyObject_HEAD
    module_state *state;

    /* ready callbacks: a ring */
    HandleObject **ring;
    size_t ring_head, ring_count, ring_mask;
    fnet_heap timers;

    /* what callbacks without a context of their own run in: context.c */
    PyObject *snapshot, *spare_context;
    void *snapshot_vars;

    PyObject *kw_context; /* the keywords that call_soon() had last */

#ifdef Py_GIL_DISABLED
    /* Guarded by the mutex, which also guards `timers`, what handles hold,
     * `holds`, and has_core with the poller's wake-up. */
    PyMutex mutex;
    HandleObject **inbox; /* for the ring, from other threads */
    size_t inbox_capacity;
    /* atomic: count for a look without the mutex; the thread that runs the
     * loop, 0: none does */
    _Atomic(size_t) inbox_count;
    _Atomic(uintptr_t) runner;
#endif

    PyObject *thread_id; /* an int, None: does not run */
    PyObject *current_handle;
    double slow_callback_duration;
    bool closed, stopping, debug, forked;
    bool has_core;
    bool core_closing;
    bool in_turn;
    bool passing; /* the loop's thread is in a pass, without the GIL */

    /* the core */
    fnet_depot *depot;
    fnet_shard home;
    fnet_prompter *prompter;
    fnet_shardset set;      /* home and the shards that workers have */
    fnet_batch batch;       /* of home's passes */
    fnet_batch *mail;       /* a worker's, that is being delivered */
    fnet_batch *delivering; /* whose completions are being delivered */
    int64_t now;            /* when the pass was over */
    uint64_t turns;         /* there have been */
    int home_mode;          /* enum fnet_home_mode */
    uint64_t flips;         /* of home's token: FNET_HOME_FLIPS */
    bool recalling;         /* home was asked for */
    fnet_adapt adapt;
    int advice;         /* enum fnet_advice, not followed yet */
    int schedstat;      /* of the thread that runs the loop; -1: none */
    uint64_t delivered; /* completions */
    bool warned;        /* that there is no thread to be had */

    PyObject **fds; /* by descriptor: what of ours uses it (borrowed from
                       `owned`, transports from themselves) */
    size_t nfds;
    fnet_list transports; /* attached ones, each a reference */
    fnet_list datagrams;  /* the same */
    fnet_list holds;      /* socket operations that keep their socket open */
    int signal_pipe[2];
    WatchObject *signal_watch;
    fnet_names names;
    fnet_list lookups; /* those asked, each with a reference to its future */

    int64_t last_pass;
    int64_t gil_released;   /* when a pass last gave it up */
    int64_t keep_gil_until; /* passes before that do not give it up */

    /* giving memory back: see turn.c */
    uint64_t trim_mark; /* bytes moved when memory was given back last */
    int64_t trim_time;
    uint64_t age_mark; /* bytes moved when the caches were aged last */
    int64_t age_time;
};

/* -- doors ---------------------------------------------------------------- */

/* errors.c: the only place where a negative errno becomes an exception. */
PyObject *fnet_raise(int error); /* sets OSError(-error, ...); NULL */
PyObject *fnet_make_oserror(int error);
/* Calls pyfastnet._report.<name>(args...): the cold paths.  What it raises
 * itself is printed, except SystemExit and KeyboardInterrupt: -1 then. */
int fnet_report(module_state *state, const char *name, const char *format,
                ...);
/* True if the exception that is set must leave run_forever(). */
bool fnet_must_propagate(void);
/* The result of a call (NULL: its exception is set); or NULL with `raised` set
 * in its place, if that is not NULL. */
PyObject *fnet_err_instead(PyObject *result, PyObject *raised);

/* handle.c */
HandleObject *fnet_handle_new(LoopObject *loop, PyObject *callback,
                              PyObject *const *args, Py_ssize_t nargs,
                              PyObject *context);
TimerObject *fnet_timer_new(LoopObject *loop, double when, PyObject *callback,
                            PyObject *const *args, Py_ssize_t nargs,
                            PyObject *context);
/* Runs the callback in its context: 0; -1: an exception that must leave
 * run_forever() is set; others were reported. */
int fnet_handle_run(LoopObject *loop, HandleObject *handle);
/* The same for one that was ready; the reference is taken over. */
int fnet_handle_run_ready(LoopObject *loop, HandleObject *handle);
/* Gives it a context that may be entered and shown: 0, or -1. */
int fnet_handle_own_context(HandleObject *handle);
/* For the collector: what a handle of the loop's holds. */
int fnet_handle_traverse(HandleObject *handle, visitproc visit, void *arg);
/* Lets go of one that will not run (again): what it holds is dropped now, as
 * the program may keep the handle. */
void fnet_handle_drop(HandleObject *handle);
/* handle.cancel() */
int fnet_handle_cancel(HandleObject *handle);
void fnet_handle_object_dealloc(HandleObject *handle);
int fnet_handle_object_traverse(HandleObject *handle, visitproc visit,
                                void *arg);
int fnet_handle_object_clear(HandleObject *handle);

/* handle_api.c */
extern PyType_Spec fnet_handle_spec, fnet_timer_spec;
/* Frees what is not in use and above FNET_FREELIST_MIN, or all of it. */
void fnet_handle_trim(module_state *state, bool all);

/* schedule.c */
extern PyMethodDef fnet_schedule_methods[];
/* Takes over the reference. */
int fnet_loop_push(LoopObject *loop, HandleObject *handle);
/* Gives back what a burst has left of an empty ready queue. */
void fnet_loop_shrink_ring(LoopObject *loop);
bool fnet_loop_ring_is_large(const LoopObject *loop);
/* call_soon() of our own; the result is dropped. */
int fnet_loop_call_soon(LoopObject *loop, PyObject *callback,
                        PyObject *const *args, Py_ssize_t nargs,
                        PyObject *context);
int fnet_loop_check(LoopObject *loop); /* closed or forked: -1 */
/* True if no other thread can be at what is the loop's own: this one has the
 * GIL, or runs the loop. */
static inline bool
fnet_loop_owned(LoopObject *loop)
{
#ifdef Py_GIL_DISABLED
    return atomic_load_explicit(&loop->runner, memory_order_relaxed) ==
           (uintptr_t)pthread_self();
#else
    return true;
#endif
}
/* Wakes the loop if it sleeps.  Any thread. */
void fnet_loop_wake(LoopObject *loop);
/* Moves into the ready queue what other threads have scheduled: 0, or -1. */
int fnet_loop_take_inbox(LoopObject *loop);
/* True if there may be something in it. */
static inline bool
fnet_loop_has_inbox(LoopObject *loop)
{
#ifdef Py_GIL_DISABLED
    return atomic_load(&loop->inbox_count) != 0;
#else
    return false;
#endif
}
/* Whoever holds the GIL while the loop's thread is in a pass is another
 * thread, and must not touch what the pass works on; nor must a forked
 * child touch its parent's connections: RuntimeError, -1. */
int fnet_loop_check_thread(LoopObject *loop);
bool fnet_loop_usable_here(LoopObject *loop); /* the same as a question */
int fnet_loop_check_debug_call(LoopObject *loop, PyObject *callback,
                               const char *method);

/* loop.c */
extern PyType_Spec fnet_loop_spec;
/* Makes the slot for fd; NULL with an exception: fd is not open, or memory is
 * short.  The slot stays where it is until Python runs. */
PyObject **fnet_loop_fd_slot(LoopObject *loop, int fd);
PyObject *fnet_loop_fd_object(LoopObject *loop, int fd); /* borrowed, NULL */
PyObject *fnet_loop_create_future(LoopObject *loop);
/* Lets go of what uses the number from before it became another file's, but
 * not of a transport.  0, or -1 if the loop is closed. */
int fnet_loop_free_number(LoopObject *loop, int fd);

/* turn.c */
PyObject *fnet_loop_run(LoopObject *loop, PyObject *unused);
PyObject *fnet_loop_run_once(LoopObject *loop, PyObject *unused);
/* Drops what was sent: the references that the core could not drop. */
void fnet_loop_drop_spent(LoopObject *loop, fnet_shard *shard);
void fnet_loop_drop_all_spent(LoopObject *loop);
void fnet_loop_drop_landings(fnet_shard *shard);
/* A batch that is not to be delivered. */
void fnet_loop_drop_batch(fnet_batch *batch);

/* shards.c */
/* The shard for a new connection. */
fnet_shard *fnet_loop_pick_shard(LoopObject *loop);
/* Around run_forever(), for the thread that runs it. */
void fnet_loop_begin_adapting(LoopObject *loop);
void fnet_loop_end_adapting(LoopObject *loop);
/* Between two turns: home's token changes hands, if it is to. */
void fnet_loop_see_to_home(LoopObject *loop);
PyObject *fnet_usable_cpus_object(PyObject *module, PyObject *unused);
/* Threads end, and every shard is this thread's. */
void fnet_loop_take_shards_over(LoopObject *loop);

/* watch.c */
extern PyType_Spec fnet_watch_spec;
extern PyMethodDef fnet_watch_methods[];
WatchObject *fnet_watch_of(LoopObject *loop, int fd); /* made on demand */
int fnet_watch_deliver(WatchObject *watch, const fnet_completion *item);
/* A future that is done when fd may be readable (or writable, direction 1);
 * NULL with an exception. */
PyObject *fnet_watch_wait(LoopObject *loop, PyObject *sock, int fd,
                          int direction);
void fnet_watch_unwait(LoopObject *loop, int fd, int direction,
                       PyObject *future);
/* RuntimeError if a transport uses the descriptor. */
int fnet_ensure_no_transport(LoopObject *loop, int fd, PyObject *fdobj);
/* int or .fileno(); -1 with asyncio's error. */
int fnet_fileno(module_state *state, PyObject *fdobj);
void fnet_watch_drop(WatchObject *watch);

/* sock.c */
extern PyType_Spec fnet_sockop_spec;
extern PyMethodDef fnet_sock_methods[];
/* 1 if the socket is of a class that has recv() or send() of its own, which
 * are to be used then as asyncio does; 0, or -1. */
int fnet_has_own_calls(module_state *state, PyObject *sock);
/* The loop closes: sockets whose close() was put off are closed. */
void fnet_sock_let_all_go(LoopObject *loop);

/* protocol.c: for transports of every kind */
/* The exception that a method of the protocol has raised is given to
 * pyfastnet._report.<report>(), with `what`; 0, or -1 if one must leave
 * run_forever(). */
int fnet_report_raised(LoopObject *loop, const char *report, const char *what,
                       PyObject *transport, PyObject *protocol);
/* The exception that is set and ends a connection, taken and reported unless
 * it is the network's; NULL: one that must leave run_forever() is set. */
PyObject *fnet_take_fatal(LoopObject *loop, const char *message,
                          PyObject *transport, PyObject *protocol);
/* The transport's _call_connection_lost(exc) in the next turn, in the
 * connection's context, whoever closes it; exc may be NULL. */
int fnet_schedule_lost(LoopObject *loop, PyObject *transport,
                       PyObject *context, PyObject *exc);
/* protocol.connection_lost(exc); without a protocol nothing.  NULL: it has
 * raised. */
PyObject *fnet_call_connection_lost(LoopObject *loop, PyObject *protocol,
                                    PyObject *exc);
/* repr() */
PyObject *fnet_transport_text(PyObject *transport, bool attached, bool closing,
                              bool paused, int fd);

/* transport.c, transport_api.c, transport_io.c */
extern PyType_Spec fnet_transport_spec;
extern PyMethodDef fnet_transport_methods[];
/* What every transport begins with. */
void fnet_transport_prepare(TransportObject *transport, LoopObject *loop);
/* TypeError unless write() takes it. */
int fnet_transport_check_data(PyObject *data);
static inline bool
fnet_is_transport(const module_state *state, PyObject *object)
{
    return Py_IS_TYPE(object, state->transport_type) ||
           Py_IS_TYPE(object, state->readpipe_type) ||
           Py_IS_TYPE(object, state->writepipe_type);
}
/* asyncio's default high-water mark, in bytes; the low one is a quarter. */
#define FNET_HIGH_WATER ((size_t)64 * 1024)
int fnet_transport_traverse(TransportObject *transport, visitproc visit,
                            void *arg);
int fnet_transport_clear(TransportObject *transport);
void fnet_transport_dealloc(TransportObject *transport);
void fnet_transport_finalize(TransportObject *transport);
TransportObject *fnet_transport_new(LoopObject *loop, int fd, PyObject *sock,
                                    PyObject *protocol, PyObject *context,
                                    int family, PyObject *server);
PyObject *fnet_make_socket_transport(LoopObject *loop, PyObject *args,
                                     PyObject *kwargs);
int fnet_transport_deliver(TransportObject *transport, fnet_completion *item);
/* connection_made(), and reading begins. */
int fnet_transport_start(TransportObject *transport);
int fnet_transport_force_close(TransportObject *transport, PyObject *exc);
/* The loop is closed and lets go of the transport. */
void fnet_transport_abandon(TransportObject *transport);
int fnet_transport_set_protocol(TransportObject *transport,
                                PyObject *protocol);
/* The exception that is set is fatal for the connection. */
int fnet_transport_fatal_error(TransportObject *transport,
                               const char *message);
int fnet_transport_lost(TransportObject *transport, PyObject *exc);
int fnet_transport_schedule_lost(TransportObject *transport, PyObject *exc);
/* Calls a method of the protocol in the transport's context; NULL: it has
 * raised. */
PyObject *fnet_transport_call(TransportObject *transport, PyObject *name,
                              PyObject *arg);
/* asyncio's transport.close(). */
int fnet_transport_close(TransportObject *transport);
PyObject *fnet_transport_write(TransportObject *transport, PyObject *data);
PyObject *fnet_transport_writelines(TransportObject *transport,
                                    PyObject *list);
int fnet_transport_maybe_pause(TransportObject *transport, size_t left);
PyObject *fnet_transport_extra(TransportObject *transport, PyObject *name,
                               PyObject *otherwise);
/* Asks for both addresses while there is a socket to ask: -1 only for a
 * failed allocation or the like. */
int fnet_transport_learn_names(TransportObject *transport);
/* Before the socket is closed: what it alone knows. */
void fnet_transport_keep_names(TransportObject *transport);
PyObject *fnet_transport_deliver_held(TransportObject *transport,
                                      PyObject *unused);

/* Arguments of set_write_buffer_limits(). */
int fnet_parse_water_marks(PyObject *args, PyObject *kwargs, size_t *high,
                           size_t *low);

/* dgram.c, dgram_io.c, dgram_addr.c; see dgram.h */
extern PyType_Spec fnet_datagram_spec;
PyObject *fnet_make_datagram_transport(LoopObject *loop, PyObject *args);
int fnet_datagram_deliver(PyObject *transport, fnet_completion *item);
/* True: of a datagram transport that is not closing. */
bool fnet_datagram_uses_fd(PyObject *transport);
/* The loop is closed and lets go of its datagram transports. */
void fnet_datagrams_abandon(LoopObject *loop);
int fnet_datagrams_traverse(LoopObject *loop, visitproc visit, void *arg);
/* pipe.c: where a pipe's transport differs from a socket's */
extern PyMethodDef fnet_pipe_methods[];
int fnet_pipe_make_types(PyObject *module, module_state *state);
void fnet_pipe_detach(TransportObject *transport);
void fnet_pipe_close_descriptor(TransportObject *transport);
int fnet_pipe_fatal_error(TransportObject *transport);
/* data_received() has raised: reported, and the transport goes on. */
int fnet_pipe_data_failed(TransportObject *transport);
int fnet_pipe_deliver_eof(TransportObject *transport);
/* names.c */
extern PyMethodDef fnet_names_methods[];
void fnet_loop_init_names(LoopObject *loop);
/* Look-ups that are not done will not be. */
void fnet_loop_drop_names(LoopObject *loop);
int fnet_loop_traverse_names(LoopObject *loop, visitproc visit, void *arg);
/* Tells those who wait what the pool's threads have found. */
void fnet_loop_deliver_names(LoopObject *loop);

/* server.c */
extern PyType_Spec fnet_listener_spec, fnet_connset_spec;
extern PyMethodDef fnet_server_methods[];
int fnet_listener_deliver(ListenerObject *listener, fnet_completion *item);
int fnet_connset_add(ConnSetObject *set, TransportObject *transport);
void fnet_connset_unlink(TransportObject *transport);
void fnet_listener_drop(ListenerObject *listener);

/* sockview.c */
extern PyType_Spec fnet_sockview_spec;
PyObject *fnet_sockview_new(TransportObject *transport);
/* The transport closes.  False: the program has closed the descriptor. */
bool fnet_sockview_detach(PyObject *view);
/* The socket.socket behind the view. */
PyObject *fnet_sockview_real(PyObject *view);
/* An address as the socket module shows it; NULL with an exception. */
PyObject *fnet_addr_object(const fnet_addr *addr);

/* socket.c: the blocking sockets; socket.h has what they share */
int fnet_socket_add_types(PyObject *module, module_state *state);

/* stats.c */
PyObject *fnet_loop_stats(LoopObject *loop, PyObject *unused);
extern PyMethodDef fnet_stats_methods[];   /* of the loop */
extern PyMethodDef fnet_stats_functions[]; /* of the module */

#endif
