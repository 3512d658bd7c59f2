/* outbox: datagrams that wait to be sent, and the call that sends many.
 *
 * Their bytes stand in a chain (cache/buf.h), lengths and addresses in a ring
 * beside it.  Runs of equal length to one address go through the network stack
 * as one piece, which the kernel cuts up again (UDP_SEGMENT): over the
 * loopback interface 0.8 us each instead of 2.5 us.
 *
 * The owner's thread, or whoever holds the lock that guards the outbox. */
#ifndef FNET_NET_OUTBOX_H
#define FNET_NET_OUTBOX_H

#include "base/base.h"
#include "cache/buf.h"
#include "net/stream.h"

#include <netinet/in.h>

/* So many messages are sent with one call. */
#define FNET_OUTBOX_CALL 64

/* A datagram that waits. */
typedef struct fnet_outbox_entry {
    uint32_t len;
    socklen_t addr_len; /* 0: the address that the socket is connected to */
    union {
        unsigned char bytes[sizeof(struct sockaddr_in6)];
        void *large; /* allocated, where it is longer than that */
    } addr;
} fnet_outbox_entry;

typedef struct fnet_outbox {
    fnet_chain chain;
    fnet_outbox_entry *ring; /* its capacity is a power of two, or 0 */
    uint32_t head, count, capacity;
    uint32_t segment_max; /* longest datagram to be sent in runs, 0: none */
    uint32_t single;      /* so many at the head are not sent in a run */
    uint32_t overhead;    /* bytes that each counts beside its own */
} fnet_outbox;

/* `udp`: the UDP socket that it is for, else -1: no runs. */
void fnet_outbox_init(fnet_outbox *outbox, int udp, uint32_t overhead);
/* Takes everything off, and frees. */
void fnet_outbox_fini(fnet_outbox *outbox, fnet_cache *cache,
                      fnet_chain *spent);

/* The bytes that wait, overhead included. */
static inline size_t
fnet_outbox_bytes(const fnet_outbox *outbox)
{
    return outbox->chain.bytes + (size_t)outbox->count * outbox->overhead;
}

/* Appends a datagram; piece->kept as for fnet_stream_write().  0, -ENOMEM, or
 * -EMSGSIZE (4 GiB or more). */
FNET_MUST_CHECK int fnet_outbox_push(fnet_outbox *outbox, fnet_cache *cache,
                                     fnet_piece *piece, const void *addr,
                                     socklen_t addr_len);
/* Takes the first `n` off. */
void fnet_outbox_consume(fnet_outbox *outbox, fnet_cache *cache, uint32_t n,
                         fnet_chain *spent);
/* One call, if the outbox is not empty: how many datagrams it sent, which
 * are taken off (0: call again); -EAGAIN; or the negative errno of the first
 * one, which is taken off, too. */
FNET_MUST_CHECK int fnet_outbox_send(fnet_outbox *outbox, int fd,
                                     fnet_cache *cache, fnet_chain *spent);

#endif
