/* stream: one end of a connection, TCP or Unix; or of a pipe (net/pipe.h).
 *
 * Reading: the pass receives while the layer above wants input, and posts
 * DATA, EOF or ERROR; of a direct stream it posts READABLE, and the layer
 * above receives by itself, into memory that it has just been given.
 *
 * Writing: bytes are sent at once where that pays or the shard says so (an
 * eager or a late turn, a large piece), else they are left to the next pass,
 * which sends everything of a turn in one call.
 *
 * Memory is the caller's; so is the descriptor: it is closed by the caller
 * after fnet_stream_detach().  Functions without a comment on threads are for
 * the loop's thread between passes, or at any time while the shard is lent:
 * then they only queue, and the worker sends. */
#ifndef FNET_NET_STREAM_H
#define FNET_NET_STREAM_H

#include "base/base.h"
#include "cache/buf.h"
#include "poll/shard.h"

/* From this size on a piece is sent without waiting for company: its own cost
 * (the kernel's copy) is far above that of the call. */
#define FNET_SEND_NOW ((size_t)64 * 1024)
/* The same for memory that would have to be copied to be kept. */
#define FNET_SEND_COPY ((size_t)8 * 1024)
/* Pieces up to this size are copied into the tail block, which costs less
 * than an iovec each. */
#define FNET_COPY_MAX ((size_t)2048)
/* A stream whose last read was this long gets a landing place. */
#define FNET_LAND_MIN ((size_t)16 * 1024)
/* Events in a row that nobody wanted before input is switched off. */
#define FNET_QUIET_EVENTS 3

/* How the bytes of a stream that is no socket move (net/pipe.c). */
typedef struct fnet_stream_io {
    uint32_t events; /* what it is registered for; without EPOLLET what is
                        there is reported in every pass */
    ssize_t (*receive)(int fd, void *buf, size_t len);
    ssize_t (*send)(int fd, const struct iovec *iov, int n);
} fnet_stream_io;

typedef struct fnet_stream {
    fnet_source source;
    fnet_shard *shard;
    const fnet_stream_io *io; /* NULL: a socket's calls */

    /* owner (the pass; the loop's thread between passes), and guarded by
     * shard->output while that is lent */
    uint32_t last_read; /* bytes of the last receive */
    bool wanted;        /* input is wanted */
    bool readable;      /* there may be input */
    bool hup;           /* the peer is done or gone: read to the end */
    bool careful;       /* a short read does not mean drained */
    bool with_rights;   /* a Unix socket: descriptors may be passed */
    bool direct;        /* post READABLE, do not receive */
    bool posted;        /* READABLE was posted and not taken */
    bool ended;         /* EOF or ERROR was posted */
    bool always;        /* ready without being asked: no events come */
    uint8_t quiet;      /* events in a row that nobody wanted */

    /* guarded by shard->output */
    fnet_chain out;
    int error;         /* negative errno of a failed send, 0 */
    bool writable;     /* the last send did not say EAGAIN */
    bool shutdown;     /* no more output after `out` */
    bool was_shut;     /* and the socket knows */
    bool notify;       /* post OUTPUT when `out` is down to `low` */
    bool notify_room;  /* post OUTPUT when the socket takes more */
    bool report_error; /* post the error */
    size_t low;
    uint64_t sent_turn; /* the turn in which a write was sent at once */
} fnet_stream;

/* Registers the connected, non-blocking socket; input is not wanted yet.  0,
 * or a negative errno with nothing done. */
FNET_MUST_CHECK int fnet_stream_attach(fnet_stream *stream, fnet_shard *shard,
                                       int fd, void *owner, bool with_rights);
/* The same for what is no socket.  A device that knows no readiness (-EPERM
 * of epoll: /dev/null) is always ready. */
FNET_MUST_CHECK int fnet_stream_attach_io(fnet_stream *stream,
                                          fnet_shard *shard, int fd,
                                          void *owner,
                                          const fnet_stream_io *io);
/* Forgets the descriptor; what was not sent is dropped (foreign memory goes
 * to shard->spent).  `closing` as for fnet_poller_detach(). */
void fnet_stream_detach(fnet_stream *stream, bool closing);

/* Which `kind` sources of streams carry. */
#define FNET_KIND_STREAM 1

/* -- reading -------------------------------------------------------------- */

/* Input is wanted from now on, or not. */
void fnet_stream_want(fnet_stream *stream, bool wanted);
void fnet_stream_set_direct(fnet_stream *stream, bool direct);
/* A direct stream: receives, as recv(); call fnet_stream_taken() when done
 * with the READABLE that was delivered.  While its shard is lent a direct
 * stream posts DATA like others, and these two are not called. */
FNET_MUST_CHECK ssize_t fnet_stream_recv(fnet_stream *stream, void *buf,
                                         size_t len);
void fnet_stream_taken(fnet_stream *stream);
/* An end of file that was delivered but not taken is to come again. */
void fnet_stream_untake_eof(fnet_stream *stream);

/* -- writing -------------------------------------------------------------- */

typedef struct fnet_piece {
    const char *data;
    size_t len;
    void *foreign; /* immutable memory that may be kept by reference; NULL:
                      it is copied where it must be kept */
    bool kept;     /* out: foreign is kept, until it turns up as spent */
} fnet_piece;

/* Sends or queues the pieces, in order.  The bytes that are queued now; or a
 * negative errno: -ENOMEM (what was not yet sent or queued is lost), else the
 * socket's error, after which the stream takes no more output. */
FNET_MUST_CHECK ssize_t fnet_stream_write(fnet_stream *stream,
                                          fnet_piece *pieces, size_t n);
/* Sends what is queued as far as it goes; the bytes that are left. */
size_t fnet_stream_flush(fnet_stream *stream);
/* The bytes that are queued, some of them perhaps for the next pass only. */
size_t fnet_stream_pending(fnet_stream *stream);
/* The error of a send that the pass or the prompter made, 0 if none. */
int fnet_stream_error(fnet_stream *stream);
/* Post OUTPUT once at most `low` bytes are queued. */
void fnet_stream_notify(fnet_stream *stream, size_t low);
/* Post OUTPUT when the socket has room again, after a send of the caller's
 * own (sendfile) has said EAGAIN. */
void fnet_stream_notify_room(fnet_stream *stream);
/* Shuts the sending side down once everything is sent. */
void fnet_stream_shutdown(fnet_stream *stream);
/* Drops what is queued. */
void fnet_stream_drop(fnet_stream *stream);
/* The same, but what the socket takes at once is sent first: all that waits
 * for the end of the turn only. */
void fnet_stream_abort(fnet_stream *stream);

#endif
