/* buf: a chain of bytes waiting to be sent.
 *
 * A chain is a queue of segments.  Small writes are copied into blocks of the
 * cache, one behind the other, so that many of them leave in one piece; large
 * immutable ones are kept by reference ("foreign": the memory of a Python
 * bytes object, which only the thread that holds the GIL may release).  What
 * was sent of foreign memory goes onto a list of spent segments for that
 * thread.
 *
 * The owner's thread, or whoever holds the lock that guards the chain. */
#ifndef FNET_CACHE_BUF_H
#define FNET_CACHE_BUF_H

#include "base/base.h"
#include "cache/cache.h"

#include <sys/uio.h>

typedef struct fnet_seg {
    struct fnet_seg *next;
    const char *data; /* the first byte not sent */
    size_t len;       /* bytes not sent */
    void *foreign;    /* whose memory it is; NULL: a block of the cache */
    uint32_t room;    /* a block: bytes free behind the data */
    uint32_t block;   /* a block: its class */
} fnet_seg;

typedef struct fnet_chain {
    fnet_seg *head, *tail;
    size_t bytes; /* not sent, over all segments */
} fnet_chain;

void fnet_chain_init(fnet_chain *chain);

static inline bool
fnet_chain_empty(const fnet_chain *chain)
{
    return chain->head == NULL;
}

/* Appends a copy of the bytes: 0, or -ENOMEM with the chain as it was. */
FNET_MUST_CHECK int fnet_chain_copy(fnet_chain *chain, fnet_cache *cache,
                                    const void *data, size_t len);
/* Appends memory that stays where it is until `foreign` turns up in a spent
 * list: 0 or -ENOMEM. */
FNET_MUST_CHECK int fnet_chain_ref(fnet_chain *chain, fnet_cache *cache,
                                   const void *data, size_t len,
                                   void *foreign);
/* The first segments as iovecs: how many, at most `max`. */
int fnet_chain_iovecs(const fnet_chain *chain, struct iovec *iov, int max);
/* Takes the first `n` bytes off.  Blocks go back to the cache, foreign
 * segments to the end of `spent`. */
void fnet_chain_consume(fnet_chain *chain, fnet_cache *cache, size_t n,
                        fnet_chain *spent);
/* Takes everything off, as if it had been sent. */
void fnet_chain_clear(fnet_chain *chain, fnet_cache *cache, fnet_chain *spent);
/* The `foreign` of the first spent segment, the segment given back to the
 * cache; NULL when none is left. */
void *fnet_chain_pop_spent(fnet_chain *spent, fnet_cache *cache);

#endif
