/* cache: bounded caches of memory blocks.
 *
 * Whoever gets and puts blocks has magazines of its own (fnet_cache: one for
 * each shard, used by the thread that runs the shard's pass, and one for the
 * loop's thread), which it uses without a lock; all of them stand over one
 * depot.  A magazine that runs empty is filled to its low water mark with one
 * batch from the depot, one that would exceed its high water mark gives the
 * depot a batch down to the low one.  The low mark is half of the high one,
 * so that a thread at the edge does not take the lock each time (Go CL
 * 7029044), and a batch changes hands by one link, whatever its size.
 *
 *     get -> magazine -> depot (locked, in batches) -> malloc
 *     put -> magazine -> depot (locked, in batches) -> free, above the limit
 *
 * A block may be put into another cache than the one it came from, as long as
 * both stand over the same depot: what one thread takes and another returns
 * goes round through the depot, in batches.
 *
 * The limit bounds the free blocks that are kept, never what is in use.  A
 * magazine keeps a block only on credit that it has drawn from the depot, and
 * the depot's free bytes and all credit together stay within the limit.  So
 * whoever will not use its cache for a while flushes it. */
#ifndef FNET_CACHE_CACHE_H
#define FNET_CACHE_CACHE_H

#include "base/base.h"

/* The size classes. */
enum fnet_block {
    FNET_BLOCK_2K,
    FNET_BLOCK_16K,
    FNET_BLOCK_64K,
    FNET_BLOCK_256K,
    FNET_BLOCK_CLASSES
};

typedef struct fnet_depot fnet_depot; /* any thread */
typedef struct fnet_cache fnet_cache; /* its owner's thread only */

typedef struct fnet_cache_stats {
    size_t caches;      /* that stand over the depot */
    size_t held_blocks; /* free and kept */
    size_t held_bytes;
    size_t limit_bytes;      /* bound of held_bytes */
    size_t high_water_bytes; /* the most held_bytes there has been room for:
                                above it by what the magazines did not fill */
    uint64_t hits;           /* gets answered without malloc */
    uint64_t misses;
    uint64_t transfers; /* batches moved between magazines and the depot */
    uint64_t freed;     /* blocks that went to free(): for the limit, or
                           because they had not been needed for long */
} fnet_cache_stats;

/* Bytes in a block of class `block`. */
size_t fnet_block_size(enum fnet_block block);

/* 0, -ENOMEM, or -EINVAL: a limit below one block of the largest class. */
FNET_MUST_CHECK int fnet_depot_new(fnet_depot **out, size_t limit_bytes);
/* Frees the depot and what it holds; its magazines are gone already. */
void fnet_depot_free(fnet_depot *depot);
/* Another limit: 0; -EINVAL as above; -EBUSY: the magazines hold more than
 * that already.  Blocks of the depot beyond it are freed. */
FNET_MUST_CHECK int fnet_depot_set_limit_any(fnet_depot *depot,
                                             size_t limit_bytes);
/* Frees every block that the depot holds. */
void fnet_depot_trim_any(fnet_depot *depot);
/* Frees the blocks of the depot that nobody has needed since the last call:
 * what a burst has left behind, if called once a second or so.  Returns the
 * bytes freed. */
size_t fnet_depot_age_any(fnet_depot *depot);
/* Of the depot and its caches, those that are gone included. */
void fnet_depot_stats_any(fnet_depot *depot, fnet_cache_stats *out);
/* In a forked child, where another thread of the parent may have been in the
 * middle of anything: depot and caches forget the free blocks (they are not
 * freed) and work on. */
void fnet_depot_forget(fnet_depot *depot);

FNET_MUST_CHECK int fnet_cache_new(fnet_cache **out, fnet_depot *depot);
void fnet_cache_free(fnet_cache *cache);

/* A block of the class, its contents undefined; NULL without memory. */
FNET_MUST_CHECK void *fnet_cache_get(fnet_cache *cache, enum fnet_block block);
/* Takes back a block that any cache over the same depot gave. */
void fnet_cache_put(fnet_cache *cache, enum fnet_block block, void *ptr);
/* Gives all free blocks, and all credit, to the depot. */
void fnet_cache_flush(fnet_cache *cache);
/* The same, and frees every block that the depot holds. */
void fnet_cache_trim(fnet_cache *cache);
/* Halves what the magazines have grown to, and gives what is above it to the
 * depot; to be called as often as fnet_depot_age_any(), and before it. */
void fnet_cache_age(fnet_cache *cache);
/* Of this cache's magazines alone: nothing of the depot's but the limit. */
void fnet_cache_get_stats(const fnet_cache *cache, fnet_cache_stats *out);

/* For buf.c: a descriptor of FNET_NODE_SIZE bytes, from a short list that the
 * cache keeps beside its blocks (at most FNET_NODES_KEPT, not counted in the
 * stats nor the limit); NULL without memory. */
#define FNET_NODE_SIZE ((size_t)64) /* a cache line */
#define FNET_NODES_KEPT 64
FNET_MUST_CHECK void *fnet_cache_get_node(fnet_cache *cache);
void fnet_cache_put_node(fnet_cache *cache, void *node);

#endif
