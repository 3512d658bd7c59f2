/* dgram: a datagram socket: UDP, Unix, netlink, raw.
 *
 * Reading: the pass receives while the layer above wants input, with one call
 * for as many datagrams as there are and fit, and posts DATAGRAMS: a run of
 * one socket's.  ERROR with a result is an error of the socket's (what ICMP
 * told of an earlier datagram); reading goes on.
 *
 * Writing: a datagram is sent at once where the shard says so (an eager or a
 * late turn) or if it is large, else it is left to the next pass, which sends
 * those of a turn with one call (outbox.h).  A datagram that cannot be sent is
 * dropped and its error kept; ERROR with result 0 says that there are such,
 * see fnet_dgram_take_error().
 *
 * Memory is the caller's; so is the descriptor: it is closed by the caller
 * after fnet_dgram_detach().  Functions without a comment on threads are for
 * the loop's thread between passes, or at any time while the shard is lent.
 * Then a worker sends with the lock held, since the call reads addresses from
 * the outbox, and receives without it. */
#ifndef FNET_NET_DGRAM_H
#define FNET_NET_DGRAM_H

#include "base/base.h"
#include "net/outbox.h"
#include "net/stream.h"
#include "poll/shard.h"

/* Errors kept for the layer above; sending waits until it has taken them. */
#define FNET_DGRAM_ERRORS 8

enum fnet_dgram_flags {
    FNET_DGRAM_UDP = 1,  /* runs may be sent as one piece */
    FNET_DGRAM_WIDE = 2, /* datagrams above 64 KiB may come */
    /* A queue that is full is another socket's, of which the kernel does not
     * tell when it has room again: an unconnected Unix socket. */
    FNET_DGRAM_NO_EDGE = 4,
};

typedef struct fnet_dgram {
    fnet_source source;
    fnet_shard *shard;

    /* constant after attach */
    unsigned flags;

    /* owner (the pass; the loop's thread between passes) */
    uint32_t usual;  /* bytes of a datagram, lately */
    bool wanted;     /* input is wanted */
    bool readable;   /* there may be input */
    bool careful;    /* an error may wait behind a call that got fewer */
    uint8_t quiet;   /* events in a row that nobody wanted */
    uint8_t refused; /* errors in a row */
    uint8_t streak;  /* reads in a row that got several */
    bool hot;        /* out of the epoll set, read in every pass */

    /* guarded by shard->output */
    fnet_outbox out;
    int errors[FNET_DGRAM_ERRORS];
    unsigned nerrors;
    bool writable; /* the last send did not say EAGAIN */
    bool notify;   /* post OUTPUT when at most `low` bytes wait */
    bool stuck;    /* post OUTPUT with 1: no edge of room will come */
    size_t low;
    uint64_t sent_turn; /* the turn in which one was sent at once */
} fnet_dgram;

#define FNET_KIND_DGRAM 4

/* Registers the non-blocking socket; input is not wanted yet; `overhead` are
 * bytes that each waiting datagram counts beside its own.  0, or a negative
 * errno with nothing done. */
FNET_MUST_CHECK int fnet_dgram_attach(fnet_dgram *dgram, fnet_shard *shard,
                                      int fd, void *owner, unsigned flags,
                                      uint32_t overhead);
/* Forgets the descriptor; what was not sent is dropped.  `closing` as for
 * fnet_poller_detach(). */
void fnet_dgram_detach(fnet_dgram *dgram, bool closing);

/* Input is wanted from now on, or not. */
void fnet_dgram_want(fnet_dgram *dgram, bool wanted);

/* Sends the datagram or queues it; `company`: more will follow in this turn.
 * `addr` with length 0 is the one that the socket is connected to.  The bytes
 * that wait now, overhead included; or the negative errno of this datagram,
 * which is lost then.  piece->kept as for fnet_stream_write(). */
FNET_MUST_CHECK ssize_t fnet_dgram_send(fnet_dgram *dgram, fnet_piece *piece,
                                        const void *addr, socklen_t addr_len,
                                        bool company);
/* Sends what waits as far as it goes; how many still wait, and in *bytes
 * (may be NULL) their bytes, overhead included. */
uint32_t fnet_dgram_flush(fnet_dgram *dgram, size_t *bytes);
/* Lets it be tried again, after an OUTPUT with result 1: "no edge of room
 * will come". */
void fnet_dgram_retry(fnet_dgram *dgram);
/* The errno (negative) of a datagram that the pass or the prompter could not
 * send, each once; 0: none is left. */
int fnet_dgram_take_error(fnet_dgram *dgram);
/* Post OUTPUT once at most `low` bytes wait; 0: nothing. */
void fnet_dgram_notify(fnet_dgram *dgram, size_t low);
/* Drops what waits, but for what the socket takes at once: that waits for the
 * end of the turn only. */
void fnet_dgram_drop(fnet_dgram *dgram);

#endif
