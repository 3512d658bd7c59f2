/* dgram: what the files of the datagram transport share.
 *
 * dgram.c has its life and its methods, dgram_io.c what its protocol is given
 * and what it is told to send, dgram_addr.c the addresses.  Threads as for
 * module.h. */
#ifndef FNET_PYTHON_DGRAM_H
#define FNET_PYTHON_DGRAM_H

#include "python/module.h"

#include "net/dgram.h"

/* What asyncio adds to a datagram's length in its accounts, from 3.13 on. */
#if PY_VERSION_HEX >= 0x030D0000
#define FNET_DGRAM_OVERHEAD 8
#else
#define FNET_DGRAM_OVERHEAD 0
#endif

/* Seconds to the first of the attempts to send where the kernel does not tell
 * of room. */
#define FNET_RETRY_FIRST 0.001

/* Address objects by address: a tuple costs more than all else that is made
 * for a datagram, and most come from those that have sent before. */
typedef struct fnet_names_entry {
    PyObject *object; /* NULL: free */
    socklen_t len;
    unsigned char bytes[sizeof(struct sockaddr_in6)];
} fnet_names_entry;

typedef struct fnet_dgram_names {
    fnet_names_entry *entries;
    unsigned size; /* a power of two, or 0 */
    unsigned evicted;
    fnet_names_entry *last; /* found last; NULL after a change */
} fnet_dgram_names;

typedef struct DatagramObject {
    PyObject_HEAD
    PyObject *extra; /* asyncio.BaseTransport's slot _extra: stays first */
    LoopObject *loop;
    PyObject *protocol;
    PyObject *context;
    PyObject *sock;
    PyObject *address; /* the only one that may be given; NULL: any */
    PyObject *held;    /* (data, address) that came while paused; a list */
    PyObject *weakrefs;
    fnet_list link; /* in loop->datagrams while attached */
    fnet_dgram dgram;
    fnet_dgram_names names;
    struct sockaddr_storage sent_to; /* the address of the object below */
    socklen_t sent_len;
    PyObject *sent_object;
    size_t high, low;
    double retry_delay; /* seconds to the next attempt, see on_output() */
    int fd;
    int family;
    uint32_t conn_lost;
    uint32_t stuck_at; /* datagrams that waited at the last attempt */
    bool connected;    /* has a peer, */
    bool has_name;     /* which has a name: datagrams go to nobody else */
    bool attached;     /* registered, and kept alive by the loop */
    bool closing, paused, protocol_paused;
    bool started; /* reading may begin: connection_made() was called */
    bool lost;    /* connection_lost() was called */
    bool orphan;  /* its loop was closed: the descriptor is still open */
    bool company; /* a run of several is being delivered */
} DatagramObject;

/* dgram.c */
int fnet_datagram_fatal_error(DatagramObject *self, const char *message);
int fnet_datagram_schedule_lost(DatagramObject *self, PyObject *exc);

/* dgram_io.c */
/* Calls a method of the protocol in the transport's context, with NULL or one
 * argument; exceptions are reported.  -1: one that must propagate. */
int fnet_datagram_call(DatagramObject *self, PyObject *name, PyObject *arg);
/* The errors of datagrams that could not be sent, for error_received(): how
 * many; -1: an exception that must propagate. */
int fnet_datagram_report_errors(DatagramObject *self);
int fnet_datagram_maybe_pause(DatagramObject *self);
PyObject *fnet_datagram_sendto(DatagramObject *self, PyObject *const *args,
                               Py_ssize_t nargs, PyObject *kwnames);
int fnet_datagram_schedule_held(DatagramObject *self);
PyObject *fnet_datagram_deliver_held(DatagramObject *self, PyObject *unused);
PyObject *fnet_datagram_retry(DatagramObject *self, PyObject *unused);

/* dgram_addr.c */
/* The address as the socket module shows it; a new reference, NULL with an
 * exception.  Length 0 is None. */
PyObject *fnet_dgram_names_find(fnet_dgram_names *names,
                                const struct sockaddr *addr, socklen_t len);
void fnet_dgram_names_clear(fnet_dgram_names *names);
int fnet_dgram_names_traverse(fnet_dgram_names *names, visitproc visit,
                              void *arg);
/* The address that the object names, if it needs no look-up and no error
 * message: 1; 0: that is the socket module's; -1 with an exception. */
int fnet_datagram_address(DatagramObject *self, PyObject *object,
                          struct sockaddr_storage *addr, socklen_t *len);

#endif
