/* cache: bounded caches of memory blocks.
 *
 * Each shard has a magazine (fnet_cache) that it uses without a lock; all of
 * them stand over one depot.  A magazine that runs empty takes half of its
 * capacity from the depot in one batch, one that is full gives half back, so
 * that a thread at the edge does not take the lock each time (Go CL 7029044).
 *
 *     get -> magazine -> depot (locked, by halves) -> malloc
 *     put -> magazine -> depot (locked, by halves) -> free, above the limit
 *
 * The limit bounds the free blocks that are kept, never what is in use.  A
 * magazine keeps a block only on credit that it has drawn from the depot, and
 * the depot's free bytes and all credit together stay within the limit. */
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
    size_t held_blocks; /* free and kept */
    size_t held_bytes;
    size_t limit_bytes; /* bound of held_bytes */
    uint64_t hits;      /* gets answered without malloc */
    uint64_t misses;
} fnet_cache_stats;

/* Bytes in a block of class `block`. */
size_t fnet_block_size(enum fnet_block block);

/* 0, -ENOMEM, or -EINVAL: a limit below one block of the largest class. */
FNET_MUST_CHECK int fnet_depot_new(fnet_depot **out, size_t limit_bytes);
/* Frees the depot and what it holds; its magazines are gone already. */
void fnet_depot_free(fnet_depot *depot);
/* Frees every block that the depot holds. */
void fnet_depot_trim_any(fnet_depot *depot);
/* Of the depot and, as of their last exchange with it, its magazines. */
void fnet_depot_stats_any(fnet_depot *depot, fnet_cache_stats *out);

FNET_MUST_CHECK int fnet_cache_new(fnet_cache **out, fnet_depot *depot);
void fnet_cache_free(fnet_cache *cache);

/* A block of the class, its contents undefined; NULL without memory. */
FNET_MUST_CHECK void *fnet_cache_get(fnet_cache *cache, enum fnet_block block);
/* Takes back a block that any cache over the same depot gave. */
void fnet_cache_put(fnet_cache *cache, enum fnet_block block, void *ptr);
/* Gives all free blocks of the magazine to the depot. */
void fnet_cache_flush(fnet_cache *cache);
void fnet_cache_get_stats(const fnet_cache *cache, fnet_cache_stats *out);

/* For buf.c: a descriptor of FNET_NODE_SIZE bytes, from a short list that the
 * cache keeps beside its blocks (at most FNET_NODES_KEPT, not counted in the
 * stats nor the limit); NULL without memory. */
#define FNET_NODE_SIZE ((size_t)64) /* a cache line */
#define FNET_NODES_KEPT 64
FNET_MUST_CHECK void *fnet_cache_get_node(fnet_cache *cache);
void fnet_cache_put_node(fnet_cache *cache, void *node);

#endif
