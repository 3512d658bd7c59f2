#include "cache/cache.h"

#include "base/lock.h"
#include "base/mem.h"

#include <errno.h>
#include <string.h>

/* Blocks that a magazine holds at most: room for the burst of one pass, at
 * most 1 MiB of each class. */
enum {
    CAPACITY_2K = 64,
    CAPACITY_16K = 32,
    CAPACITY_64K = 16,
    CAPACITY_256K = 4,
    CAPACITY_MAX = CAPACITY_2K
};

static const uint32_t capacity[FNET_BLOCK_CLASSES] = {
    CAPACITY_2K, CAPACITY_16K, CAPACITY_64K, CAPACITY_256K};

static const size_t block_size[FNET_BLOCK_CLASSES] = {
    (size_t)2 << 10, (size_t)16 << 10, (size_t)64 << 10, (size_t)256 << 10};

/* A free block or node, the link stored in itself. */
typedef struct link {
    struct link *next;
} link;

struct fnet_depot {
    /* constant after init */
    size_t limit;
    fnet_lock lock;
    /* guarded by lock; free_bytes + credit_bytes <= limit */
    link *blocks[FNET_BLOCK_CLASSES];
    size_t free_blocks, free_bytes;
    size_t credit_bytes; /* lent to the magazines */
    size_t caches;
    /* guarded by lock: sums over the magazines, as last published */
    size_t held_blocks, held_bytes;
    uint64_t hits, misses;
};

typedef struct magazine {
    uint32_t count;  /* free blocks here; <= credit */
    uint32_t credit; /* free blocks that may be here; <= capacity */
    uint64_t hits, misses;
    void *blocks[CAPACITY_MAX];
} magazine;

struct fnet_cache {
    magazine magazines[FNET_BLOCK_CLASSES];
    fnet_depot *depot;
    link *nodes;
    size_t node_count;
    fnet_cache_stats published; /* what the depot's sums contain of this */
};

size_t
fnet_block_size(enum fnet_block block)
{
    return block_size[block];
}

/* Debug builds fill the start of a free block, beyond the link, and look
 * whether it is intact when the block leaves: writing to a block that one has
 * given back is found where it happens or soon after. */
#define POISON 0xdb
#define POISONED 64

static inline void
poison(void *ptr)
{
#if FNET_DEBUG >= 1
    memset(ptr, POISON, POISONED);
#endif
}

static inline void
check_poison(const void *ptr)
{
#if FNET_DEBUG >= 1
    const unsigned char *bytes = ptr;
    for (size_t i = sizeof(link); i < POISONED; i++) {
        if (bytes[i] != POISON) {
            fnet_panic("cache: free block %p was written to", ptr);
        }
    }
#endif
}

static inline bool
magazine_has(const magazine *mag, const void *ptr)
{
    for (uint32_t i = 0; i < mag->count; i++) {
        if (mag->blocks[i] == ptr) {
            return true;
        }
    }
    return false;
}

static void
free_links(link *first)
{
    while (first != NULL) {
        link *next = first->next;
        fnet_free(first);
        first = next;
    }
}

/* --- the depot, locked --------------------------------------------------- */

static void
depot_push_locked(fnet_depot *depot, enum fnet_block block, void *ptr)
{
    link *item = ptr;
    item->next = depot->blocks[block];
    depot->blocks[block] = item;
    depot->free_blocks++;
    depot->free_bytes += block_size[block];
}

static void *
depot_pop_locked(fnet_depot *depot, enum fnet_block block)
{
    link *item = depot->blocks[block];
    if (item != NULL) {
        depot->blocks[block] = item->next;
        depot->free_blocks--;
        depot->free_bytes -= block_size[block];
    }
    return item;
}

static size_t
depot_room_locked(const fnet_depot *depot)
{
    fnet_assert_locked(&depot->lock);
    fnet_assert(depot->free_bytes + depot->credit_bytes <= depot->limit);
    return depot->limit - depot->free_bytes - depot->credit_bytes;
}

/* Takes blocks out, the largest first, until `want` bytes are free under the
 * limit or nothing is left: what lies in the depot is colder than what a
 * magazine asks room for.  The caller frees them, after unlocking. */
static link *
depot_evict_locked(fnet_depot *depot, size_t want)
{
    link *evicted = NULL;
    int block = FNET_BLOCK_CLASSES - 1;
    while (block >= 0 && depot_room_locked(depot) < want) {
        link *item = depot_pop_locked(depot, (enum fnet_block)block);
        if (item == NULL) {
            block--;
            continue;
        }
        item->next = evicted;
        evicted = item;
    }
    return evicted;
}

/* --- a magazine and its depot, locked ------------------------------------ */

/* Brings the depot's sums up to date; the end of every exchange. */
static void
publish_locked(fnet_cache *cache)
{
    fnet_depot *depot = cache->depot;
    fnet_cache_stats now;
    fnet_cache_get_stats(cache, &now);
    /* Unsigned arithmetic: a difference below zero wraps and comes right. */
    depot->held_blocks += now.held_blocks - cache->published.held_blocks;
    depot->held_bytes += now.held_bytes - cache->published.held_bytes;
    depot->hits += now.hits - cache->published.hits;
    depot->misses += now.misses - cache->published.misses;
    cache->published = now;
}

static void
set_credit_locked(fnet_cache *cache, enum fnet_block block, uint32_t credit)
{
    magazine *mag = &cache->magazines[block];
    fnet_assert(credit >= mag->count && credit <= capacity[block]);
    cache->depot->credit_bytes += credit * block_size[block];
    cache->depot->credit_bytes -= mag->credit * block_size[block];
    mag->credit = credit;
}

/* Moves blocks with their credit, so the sum under the limit stays. */
static void
give_locked(fnet_cache *cache, enum fnet_block block, uint32_t n)
{
    magazine *mag = &cache->magazines[block];
    /* The oldest go: the newest may still be in the CPU's caches. */
    for (uint32_t i = 0; i < n; i++) {
        depot_push_locked(cache->depot, block, mag->blocks[i]);
    }
    mag->count -= n;
    memmove(mag->blocks, mag->blocks + n, mag->count * sizeof(*mag->blocks));
    set_credit_locked(cache, block, mag->credit - n);
}

/* Fills the magazine to `n` blocks, as far as the depot has them.  It is
 * empty, so credit that it has left pays for them first. */
static void
take_locked(fnet_cache *cache, enum fnet_block block, uint32_t n)
{
    magazine *mag = &cache->magazines[block];
    while (mag->count < n) {
        void *ptr = depot_pop_locked(cache->depot, block);
        if (ptr == NULL) {
            break;
        }
        mag->blocks[mag->count++] = ptr;
    }
    if (mag->count > mag->credit) {
        set_credit_locked(cache, block, mag->count);
    }
}

/* Makes room for a block in the magazine if the limit allows it.  Returns
 * blocks to be freed after unlocking. */
static link *
make_room_locked(fnet_cache *cache, enum fnet_block block)
{
    fnet_depot *depot = cache->depot;
    magazine *mag = &cache->magazines[block];
    uint32_t half = capacity[block] / 2;
    if (mag->count == capacity[block]) {
        give_locked(cache, block, half);
    }
    /* Credit for half a magazine at once, so that the next puts are free of
     * the lock. */
    uint32_t missing = capacity[block] - mag->count;
    uint32_t wanted = missing < half ? missing : half;
    if (depot_room_locked(depot) < wanted * block_size[block]) {
        for (int i = 0; i < FNET_BLOCK_CLASSES; i++) {
            set_credit_locked(cache, (enum fnet_block)i,
                              cache->magazines[i].count);
        }
    }
    size_t affordable =
        (depot_room_locked(depot) + depot->free_bytes) / block_size[block];
    if (affordable < wanted) {
        wanted = (uint32_t)affordable;
    }
    link *evicted = depot_evict_locked(depot, wanted * block_size[block]);
    if (mag->count + wanted > mag->credit) {
        set_credit_locked(cache, block, mag->count + wanted);
    }
    return evicted;
}

/* --- the depot, from outside --------------------------------------------- */

int
fnet_depot_new(fnet_depot **out, size_t limit_bytes)
{
    if (limit_bytes < block_size[FNET_BLOCK_CLASSES - 1]) {
        return -EINVAL;
    }
    fnet_depot *depot = fnet_calloc(1, sizeof(*depot));
    if (depot == NULL) {
        return -ENOMEM;
    }
    depot->limit = limit_bytes;
    int rc = fnet_lock_init(&depot->lock, FNET_RANK_DEPOT);
    if (rc < 0) {
        fnet_free(depot);
        return rc;
    }
    *out = depot;
    return 0;
}

void
fnet_depot_free(fnet_depot *depot)
{
    fnet_assert(depot->caches == 0 && depot->credit_bytes == 0);
    fnet_depot_trim_any(depot);
    fnet_lock_fini(&depot->lock);
    fnet_free(depot);
}

void
fnet_depot_trim_any(fnet_depot *depot)
{
    link *blocks[FNET_BLOCK_CLASSES];
    fnet_lock_acquire(&depot->lock);
    memcpy(blocks, depot->blocks, sizeof(blocks));
    memset(depot->blocks, 0, sizeof(depot->blocks));
    depot->free_blocks = 0;
    depot->free_bytes = 0;
    fnet_lock_release(&depot->lock);
    for (int i = 0; i < FNET_BLOCK_CLASSES; i++) {
        free_links(blocks[i]);
    }
}

void
fnet_depot_stats_any(fnet_depot *depot, fnet_cache_stats *out)
{
    fnet_lock_acquire(&depot->lock);
    out->held_blocks = depot->free_blocks + depot->held_blocks;
    out->held_bytes = depot->free_bytes + depot->held_bytes;
    out->limit_bytes = depot->limit;
    out->hits = depot->hits;
    out->misses = depot->misses;
    fnet_lock_release(&depot->lock);
}

/* --- the cache, its owner only ------------------------------------------- */

int
fnet_cache_new(fnet_cache **out, fnet_depot *depot)
{
    fnet_cache *cache = fnet_calloc(1, sizeof(*cache));
    if (cache == NULL) {
        return -ENOMEM;
    }
    cache->depot = depot;
    fnet_lock_acquire(&depot->lock);
    depot->caches++;
    fnet_lock_release(&depot->lock);
    *out = cache;
    return 0;
}

void
fnet_cache_free(fnet_cache *cache)
{
    fnet_depot *depot = cache->depot;
    fnet_cache_flush(cache);
    fnet_lock_acquire(&depot->lock);
    depot->caches--;
    fnet_lock_release(&depot->lock);
    fnet_free(cache);
}

static FNET_COLD void *
get_slow(fnet_cache *cache, enum fnet_block block)
{
    fnet_depot *depot = cache->depot;
    magazine *mag = &cache->magazines[block];
    void *ptr = NULL;
    fnet_lock_acquire(&depot->lock);
    take_locked(cache, block, capacity[block] / 2);
    if (mag->count > 0) {
        ptr = mag->blocks[--mag->count];
        mag->hits++;
    }
    else {
        mag->misses++;
    }
    publish_locked(cache);
    fnet_lock_release(&depot->lock);
    if (ptr == NULL) {
        return fnet_malloc(block_size[block]);
    }
    check_poison(ptr);
    return ptr;
}

void *
fnet_cache_get(fnet_cache *cache, enum fnet_block block)
{
    magazine *mag = &cache->magazines[block];
    if (FNET_UNLIKELY(mag->count == 0)) {
        return get_slow(cache, block);
    }
    mag->hits++;
    void *ptr = mag->blocks[--mag->count];
    check_poison(ptr);
    return ptr;
}

static FNET_COLD void
put_slow(fnet_cache *cache, enum fnet_block block, void *ptr)
{
    fnet_depot *depot = cache->depot;
    magazine *mag = &cache->magazines[block];
    fnet_lock_acquire(&depot->lock);
    link *evicted = make_room_locked(cache, block);
    bool keep = mag->count < mag->credit;
    if (keep) {
        mag->blocks[mag->count++] = ptr;
    }
    publish_locked(cache);
    fnet_lock_release(&depot->lock);
    free_links(evicted);
    if (!keep) {
        fnet_free(ptr);
    }
}

void
fnet_cache_put(fnet_cache *cache, enum fnet_block block, void *ptr)
{
    magazine *mag = &cache->magazines[block];
    fnet_check(!magazine_has(mag, ptr));
    poison(ptr);
    if (FNET_UNLIKELY(mag->count == mag->credit)) {
        put_slow(cache, block, ptr);
        return;
    }
    mag->blocks[mag->count++] = ptr;
}

void
fnet_cache_flush(fnet_cache *cache)
{
    fnet_lock_acquire(&cache->depot->lock);
    for (int i = 0; i < FNET_BLOCK_CLASSES; i++) {
        give_locked(cache, (enum fnet_block)i, cache->magazines[i].count);
        set_credit_locked(cache, (enum fnet_block)i, 0);
    }
    publish_locked(cache);
    fnet_lock_release(&cache->depot->lock);
    free_links(cache->nodes);
    cache->nodes = NULL;
    cache->node_count = 0;
}

void
fnet_cache_get_stats(const fnet_cache *cache, fnet_cache_stats *out)
{
    *out = (fnet_cache_stats){.limit_bytes = cache->depot->limit};
    for (int i = 0; i < FNET_BLOCK_CLASSES; i++) {
        const magazine *mag = &cache->magazines[i];
        out->held_blocks += mag->count;
        out->held_bytes += mag->count * block_size[i];
        out->hits += mag->hits;
        out->misses += mag->misses;
    }
}

void *
fnet_cache_get_node(fnet_cache *cache)
{
    link *node = cache->nodes;
    if (node == NULL) {
        return fnet_malloc(FNET_NODE_SIZE);
    }
    cache->nodes = node->next;
    cache->node_count--;
    return node;
}

void
fnet_cache_put_node(fnet_cache *cache, void *ptr)
{
    if (cache->node_count >= FNET_NODES_KEPT) {
        fnet_free(ptr);
        return;
    }
    link *node = ptr;
    node->next = cache->nodes;
    cache->nodes = node;
    cache->node_count++;
}
