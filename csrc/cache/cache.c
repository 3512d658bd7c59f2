#include "cache/cache.h"

#include "base/list.h"
#include "base/lock.h"
#include "base/mem.h"

#include <errno.h>
#include <stdatomic.h>
#include <string.h>

/* The high water marks that magazines begin with: room for the burst of one
 * pass, at most 1 MiB of each class.  The low ones are the halves.
 *
 * A magazine that gets its own overflow back from the depot doubles its marks,
 * up to its share of half the limit and 32 MiB: who takes more than it holds
 * and returns them, over and over, would pay for the lock and for the other
 * threads' (benchmarks/cache.py, 512 blocks on two threads: 5 times).  Ageing
 * halves them again.  One that only takes, or only returns, keeps the small
 * ones, so that blocks do not pile up on the wrong side. */
enum { HIGH_2K = 64, HIGH_16K = 32, HIGH_64K = 16, HIGH_256K = 4 };
#define SHARE_MAX ((size_t)32 << 20)

static const uint32_t high_least[FNET_BLOCK_CLASSES] = {HIGH_2K, HIGH_16K,
                                                        HIGH_64K, HIGH_256K};
/* A batch of half as many stands in one block. */
static const uint32_t high_most[FNET_BLOCK_CLASSES] = {256, 1024, 512, 128};

static const size_t block_size[FNET_BLOCK_CLASSES] = {
    (size_t)2 << 10, (size_t)16 << 10, (size_t)64 << 10, (size_t)256 << 10};

/* A free block or node, the link stored in itself. */
typedef struct link {
    struct link *next;
} link;

/* Free blocks that change hands together.  The batch stands in one of them,
 * so that it needs no memory, and the others are not touched. */
typedef struct batch {
    struct batch *next;
    uint32_t count; /* blocks, this one included: at most a low mark */
    void *others[];
} batch;

_Static_assert(sizeof(batch) + 256 / 2 * sizeof(void *) <= 2 << 10 &&
                   sizeof(batch) + 1024 / 2 * sizeof(void *) <= 16 << 10,
               "the largest batch fits into its block");

/* Counters that one thread writes (relaxed: they order nothing) and that any
 * may read for its statistics. */
typedef _Atomic(uint64_t) counter;
typedef _Atomic(uint32_t) counter32;

typedef struct shelf {
    batch *full;    /* last in, first out */
    uint32_t count; /* blocks, over all batches */
    uint32_t least; /* the fewest there were since the last ageing */
} shelf;

struct fnet_depot {
    fnet_lock lock;
    /* guarded by lock; free_bytes + credit_bytes <= limit */
    size_t limit;
    shelf shelves[FNET_BLOCK_CLASSES];
    size_t free_bytes;
    size_t credit_bytes; /* lent to the magazines */
    size_t high_water;   /* the most that both have been together */
    uint64_t freed;
    fnet_list caches;
    size_t ncaches;
    fnet_cache_stats gone; /* hits, misses, transfers of caches freed */
};

typedef struct magazine {
    /* written by the owner */
    counter32 count; /* free blocks here; <= credit */
    uint32_t high;   /* the high water mark */
    void **blocks;   /* room for `high` */
    counter hits;
    uint32_t overflow; /* blocks given that may come back */
    uint32_t share;    /* what the high water mark may become */
    /* written by the owner with the depot's lock held */
    uint32_t credit; /* free blocks that may be here; <= high */
    counter misses, transfers;
} magazine;

struct fnet_cache {
    magazine magazines[FNET_BLOCK_CLASSES];
    fnet_depot *depot;
    fnet_list link; /* in the depot's, guarded by its lock */
    link *nodes;
    size_t node_count;
};

size_t
fnet_block_size(enum fnet_block block)
{
    return block_size[block];
}

/* Blocks that credit is drawn for at a time. */
static inline uint32_t
step(enum fnet_block block)
{
    return high_least[block] / 2;
}

static inline uint32_t
get_count(const magazine *mag)
{
    return atomic_load_explicit(&mag->count, memory_order_relaxed);
}

static inline void
set_count(magazine *mag, uint32_t count)
{
    atomic_store_explicit(&mag->count, count, memory_order_relaxed);
}

static inline uint64_t
read_counter(const counter *number)
{
    return atomic_load_explicit(number, memory_order_relaxed);
}

static inline void
count_up(counter *number)
{
    atomic_store_explicit(number, read_counter(number) + 1,
                          memory_order_relaxed);
}

/* Debug builds fill the start of a free block and look whether it is intact
 * when the block leaves: writing to a block that one has given back is found
 * where it happens or soon after. */
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
    for (size_t i = 0; i < POISONED; i++) {
        if (bytes[i] != POISON) {
            fnet_panic("cache: free block %p was written to", ptr);
        }
    }
#endif
}

static inline bool
magazine_has(const magazine *mag, const void *ptr)
{
    for (uint32_t i = 0; i < get_count(mag); i++) {
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

/* --- batches, by the owner of the magazine ------------------------------- */

/* Makes a batch of the `n` oldest blocks: the newest may still be in the
 * CPU's caches. */
static batch *
pack(magazine *mag, uint32_t n)
{
    uint32_t left = get_count(mag) - n;
    batch *made = mag->blocks[0];
    made->next = NULL;
    made->count = n;
    memcpy(made->others, mag->blocks + 1, (n - 1) * sizeof(void *));
    memmove(mag->blocks, mag->blocks + n, left * sizeof(void *));
    set_count(mag, left);
    mag->overflow += n;
    return made;
}

/* Puts the blocks of the batches into the magazine. */
static void
unpack(magazine *mag, batch *first)
{
    uint32_t count = get_count(mag);
    while (first != NULL) {
        batch *next = first->next;
        uint32_t others = first->count - 1;
        memcpy(mag->blocks + count, first->others, others * sizeof(void *));
        count += others;
        mag->blocks[count++] = first;
        poison(first); /* the batch stood there */
        first = next;
    }
    set_count(mag, count);
}

/* Other water marks.  False without memory for them. */
static bool
set_high(magazine *mag, uint32_t high)
{
    fnet_assert(get_count(mag) <= high);
    void **blocks = fnet_realloc(mag->blocks, high * sizeof(void *));
    if (blocks == NULL) {
        return false;
    }
    mag->blocks = blocks;
    mag->high = high;
    return true;
}

/* --- the depot, locked --------------------------------------------------- */

static size_t
room_locked(const fnet_depot *depot)
{
    fnet_assert_locked(&depot->lock);
    fnet_assert(depot->free_bytes + depot->credit_bytes <= depot->limit);
    return depot->limit - depot->free_bytes - depot->credit_bytes;
}

static void
add_to_shelf_locked(fnet_depot *depot, enum fnet_block block, batch *given)
{
    shelf *at = &depot->shelves[block];
    given->next = at->full;
    at->full = given;
    at->count += given->count;
    depot->free_bytes += given->count * block_size[block];
}

static void
note_taken_locked(fnet_depot *depot, enum fnet_block block, uint32_t n)
{
    shelf *at = &depot->shelves[block];
    at->count -= n;
    if (at->least > at->count) {
        at->least = at->count;
    }
    depot->free_bytes -= n * block_size[block];
}

/* The last `n` blocks of a batch of more, as a batch. */
static batch *
split(batch *from, uint32_t n)
{
    fnet_assert(n > 0 && n < from->count);
    batch *made = from->others[from->count - 2];
    made->next = NULL;
    made->count = n;
    memcpy(made->others, from->others + (from->count - 1 - n),
           (n - 1) * sizeof(void *));
    from->count -= n;
    return made;
}

/* Batches of at least one block and at most `most` blocks, if there is any:
 * how many blocks. */
static uint32_t
take_from_shelf_locked(fnet_depot *depot, enum fnet_block block, uint32_t most,
                       batch **out)
{
    shelf *at = &depot->shelves[block];
    uint32_t n = 0;
    batch *next;
    *out = NULL;
    while ((next = at->full) != NULL && n + next->count <= most) {
        at->full = next->next;
        next->next = *out;
        *out = next;
        n += next->count;
    }
    if (n == 0 && next != NULL) {
        *out = split(next, most);
        n = most;
    }
    note_taken_locked(depot, block, n);
    return n;
}

/* A single block, to be freed. */
static link *
take_block_locked(fnet_depot *depot, enum fnet_block block)
{
    shelf *at = &depot->shelves[block];
    batch *from = at->full;
    if (from == NULL) {
        return NULL;
    }
    void *taken = from;
    if (from->count > 1) {
        taken = from->others[--from->count - 1];
    }
    else {
        at->full = from->next;
    }
    depot->freed++;
    note_taken_locked(depot, block, 1);
    return taken;
}

/* Takes blocks out, the largest first, until `want` bytes are free under the
 * limit or nothing is left: what lies in the depot is colder than what a
 * magazine asks room for.  The caller frees them, after unlocking. */
static link *
evict_locked(fnet_depot *depot, size_t want)
{
    link *evicted = NULL;
    int block = FNET_BLOCK_CLASSES - 1;
    while (block >= 0 && room_locked(depot) < want) {
        link *item = take_block_locked(depot, (enum fnet_block)block);
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

static void
set_credit_locked(fnet_cache *cache, enum fnet_block block, uint32_t credit)
{
    magazine *mag = &cache->magazines[block];
    fnet_assert(credit >= get_count(mag) && credit <= mag->high);
    cache->depot->credit_bytes += credit * block_size[block];
    cache->depot->credit_bytes -= mag->credit * block_size[block];
    mag->credit = credit;
}

/* What a magazine may grow to. */
static uint32_t
share_locked(const fnet_depot *depot, enum fnet_block block)
{
    size_t bytes = depot->limit / 2 / depot->ncaches;
    if (bytes > SHARE_MAX) {
        bytes = SHARE_MAX;
    }
    size_t blocks = bytes / block_size[block];
    return blocks < high_most[block] ? (uint32_t)blocks : high_most[block];
}

/* After credit was drawn, which is how all that is held comes in. */
static void
note_high_water_locked(fnet_depot *depot)
{
    size_t most = depot->free_bytes + depot->credit_bytes;
    if (depot->high_water < most) {
        depot->high_water = most;
    }
}

/* Moves a batch of the magazine's to the depot, its credit with it, so that
 * the sum under the limit stays. */
static void
give_locked(fnet_cache *cache, enum fnet_block block, batch *given)
{
    magazine *mag = &cache->magazines[block];
    set_credit_locked(cache, block, mag->credit - given->count);
    add_to_shelf_locked(cache->depot, block, given);
    count_up(&mag->transfers);
}

/* Draws credit for some blocks at once, so that the next puts are free of the
 * lock; less, or none, where the limit forbids it.  Returns blocks to be
 * freed after unlocking. */
static link *
draw_credit_locked(fnet_cache *cache, enum fnet_block block)
{
    fnet_depot *depot = cache->depot;
    magazine *mag = &cache->magazines[block];
    uint32_t count = get_count(mag);
    uint32_t missing = mag->high - count;
    uint32_t wanted = missing < step(block) ? missing : step(block);
    if (room_locked(depot) < wanted * block_size[block]) {
        for (int i = 0; i < FNET_BLOCK_CLASSES; i++) {
            set_credit_locked(cache, (enum fnet_block)i,
                              get_count(&cache->magazines[i]));
        }
    }
    size_t affordable =
        (room_locked(depot) + depot->free_bytes) / block_size[block];
    if (affordable < wanted) {
        wanted = (uint32_t)affordable;
    }
    link *evicted = evict_locked(depot, wanted * block_size[block]);
    if (count + wanted > mag->credit) {
        set_credit_locked(cache, block, count + wanted);
        note_high_water_locked(depot);
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
    fnet_list_init(&depot->caches);
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
    fnet_assert(fnet_list_empty(&depot->caches));
    fnet_assert(depot->credit_bytes == 0);
    fnet_depot_trim_any(depot);
    fnet_lock_fini(&depot->lock);
    fnet_free(depot);
}

int
fnet_depot_set_limit_any(fnet_depot *depot, size_t limit_bytes)
{
    if (limit_bytes < block_size[FNET_BLOCK_CLASSES - 1]) {
        return -EINVAL;
    }
    fnet_lock_acquire(&depot->lock);
    int rc = -EBUSY;
    link *evicted = NULL;
    if (depot->credit_bytes <= limit_bytes) {
        if (depot->limit > limit_bytes) {
            evicted = evict_locked(depot, depot->limit - limit_bytes);
        }
        depot->limit = limit_bytes;
        rc = 0;
    }
    fnet_lock_release(&depot->lock);
    free_links(evicted);
    return rc;
}

/* Frees what was not needed since the last ageing, or all of it: how many
 * bytes. */
static size_t
trim(fnet_depot *depot, bool aged)
{
    link *evicted = NULL;
    fnet_lock_acquire(&depot->lock);
    size_t before = depot->free_bytes;
    for (int i = 0; i < FNET_BLOCK_CLASSES; i++) {
        shelf *at = &depot->shelves[i];
        uint32_t n = aged ? at->least : at->count;
        while (n-- > 0) {
            link *item = take_block_locked(depot, (enum fnet_block)i);
            item->next = evicted;
            evicted = item;
        }
        at->least = at->count;
    }
    size_t freed = before - depot->free_bytes;
    fnet_lock_release(&depot->lock);
    free_links(evicted);
    return freed;
}

void
fnet_depot_trim_any(fnet_depot *depot)
{
    (void)trim(depot, false);
}

size_t
fnet_depot_age_any(fnet_depot *depot)
{
    return trim(depot, true);
}

/* Adds what the cache has counted; its owner may go on meanwhile. */
static void
add_counters(fnet_cache_stats *sum, const fnet_cache *cache)
{
    for (int i = 0; i < FNET_BLOCK_CLASSES; i++) {
        const magazine *mag = &cache->magazines[i];
        uint32_t count = get_count(mag);
        sum->held_blocks += count;
        sum->held_bytes += count * block_size[i];
        sum->hits += read_counter(&mag->hits);
        sum->misses += read_counter(&mag->misses);
        sum->transfers += read_counter(&mag->transfers);
    }
}

void
fnet_depot_stats_any(fnet_depot *depot, fnet_cache_stats *out)
{
    const fnet_list *node;
    fnet_lock_acquire(&depot->lock);
    *out = depot->gone;
    fnet_list_foreach(node, &depot->caches)
    {
        add_counters(out, fnet_container_of(node, fnet_cache, link));
    }
    out->caches = depot->ncaches;
    for (int i = 0; i < FNET_BLOCK_CLASSES; i++) {
        out->held_blocks += depot->shelves[i].count;
    }
    out->held_bytes += depot->free_bytes;
    out->limit_bytes = depot->limit;
    out->freed = depot->freed;
    out->high_water_bytes = depot->high_water;
    fnet_lock_release(&depot->lock);
}

void
fnet_depot_forget(fnet_depot *depot)
{
    fnet_list *node;
    if (fnet_lock_init(&depot->lock, FNET_RANK_DEPOT) < 0) {
        fnet_panic("cache: no lock after fork");
    }
    memset(depot->shelves, 0, sizeof(depot->shelves));
    depot->free_bytes = depot->credit_bytes = 0;
    fnet_list_foreach(node, &depot->caches)
    {
        fnet_cache *cache = fnet_container_of(node, fnet_cache, link);
        for (int i = 0; i < FNET_BLOCK_CLASSES; i++) {
            magazine *mag = &cache->magazines[i];
            set_count(mag, 0);
            mag->credit = 0;
        }
        cache->nodes = NULL;
        cache->node_count = 0;
    }
}

/* --- the cache, its owner only ------------------------------------------- */

static void
free_cache(fnet_cache *cache)
{
    for (int i = 0; i < FNET_BLOCK_CLASSES; i++) {
        fnet_free(cache->magazines[i].blocks);
    }
    fnet_free(cache);
}

int
fnet_cache_new(fnet_cache **out, fnet_depot *depot)
{
    fnet_cache *cache = fnet_calloc(1, sizeof(*cache));
    if (cache == NULL) {
        return -ENOMEM;
    }
    for (int i = 0; i < FNET_BLOCK_CLASSES; i++) {
        if (!set_high(&cache->magazines[i], high_least[i])) {
            free_cache(cache);
            return -ENOMEM;
        }
    }
    cache->depot = depot;
    fnet_lock_acquire(&depot->lock);
    fnet_list_push(&depot->caches, &cache->link);
    depot->ncaches++;
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
    fnet_list_remove(&cache->link);
    depot->ncaches--;
    add_counters(&depot->gone, cache);
    fnet_lock_release(&depot->lock);
    free_cache(cache);
}

static FNET_COLD void *
get_slow(fnet_cache *cache, enum fnet_block block)
{
    fnet_depot *depot = cache->depot;
    magazine *mag = &cache->magazines[block];
    batch *taken;
    if (mag->overflow > 0 && mag->high * 2 <= mag->share) {
        (void)set_high(mag, mag->high * 2); /* else it stays as it is */
    }
    fnet_lock_acquire(&depot->lock);
    mag->share = share_locked(depot, block);
    uint32_t n = take_from_shelf_locked(depot, block, mag->high / 2, &taken);
    mag->overflow -= n < mag->overflow ? n : mag->overflow;
    if (n > mag->credit) {
        /* Credit that it has left pays first. */
        set_credit_locked(cache, block, n);
    }
    count_up(n > 0 ? &mag->transfers : &mag->misses);
    if (n > 0) {
        unpack(mag, taken);
    }
    fnet_lock_release(&depot->lock);
    return n > 0 ? fnet_cache_get(cache, block)
                 : fnet_malloc(block_size[block]);
}

void *
fnet_cache_get(fnet_cache *cache, enum fnet_block block)
{
    magazine *mag = &cache->magazines[block];
    uint32_t count = get_count(mag);
    if (FNET_UNLIKELY(count == 0)) {
        return get_slow(cache, block);
    }
    void *ptr = mag->blocks[--count];
    set_count(mag, count);
    count_up(&mag->hits);
    check_poison(ptr);
    return ptr;
}

static FNET_COLD void
put_slow(fnet_cache *cache, enum fnet_block block, void *ptr)
{
    fnet_depot *depot = cache->depot;
    magazine *mag = &cache->magazines[block];
    batch *given = NULL;
    if (get_count(mag) == mag->high) {
        given = pack(mag, mag->high / 2);
    }
    fnet_lock_acquire(&depot->lock);
    if (given != NULL) {
        give_locked(cache, block, given);
    }
    link *evicted = draw_credit_locked(cache, block);
    uint32_t count = get_count(mag);
    bool keep = count < mag->credit;
    if (keep) {
        mag->blocks[count] = ptr;
        set_count(mag, count + 1);
    }
    else {
        depot->freed++;
    }
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
    uint32_t count = get_count(mag);
    fnet_check(!magazine_has(mag, ptr));
    poison(ptr);
    if (FNET_UNLIKELY(count == mag->credit)) {
        put_slow(cache, block, ptr);
        return;
    }
    mag->blocks[count] = ptr;
    set_count(mag, count + 1);
}

/* Halves the marks of magazines that have grown, where there is memory for
 * it: whether there is more to halve. */
static bool
restore_marks(fnet_cache *cache)
{
    bool more = false;
    for (int i = 0; i < FNET_BLOCK_CLASSES; i++) {
        magazine *mag = &cache->magazines[i];
        uint32_t half = mag->high / 2;
        if (half >= high_least[i] && set_high(mag, half)) {
            more |= half > high_least[i];
        }
    }
    return more;
}

/* Gives blocks until `left` remain, and credit for all but these. */
static void
shrink_locked(fnet_cache *cache, enum fnet_block block, uint32_t left)
{
    magazine *mag = &cache->magazines[block];
    uint32_t count;
    while ((count = get_count(mag)) > left) {
        uint32_t most = mag->high / 2;
        uint32_t n = count - left < most ? count - left : most;
        give_locked(cache, block, pack(mag, n));
    }
    set_credit_locked(cache, block, count);
}

void
fnet_cache_flush(fnet_cache *cache)
{
    fnet_lock_acquire(&cache->depot->lock);
    for (int i = 0; i < FNET_BLOCK_CLASSES; i++) {
        shrink_locked(cache, (enum fnet_block)i, 0);
        cache->magazines[i].overflow = 0; /* a new beginning */
    }
    fnet_lock_release(&cache->depot->lock);
    free_links(cache->nodes);
    cache->nodes = NULL;
    cache->node_count = 0;
    while (restore_marks(cache)) {
    }
}

void
fnet_cache_trim(fnet_cache *cache)
{
    fnet_cache_flush(cache);
    fnet_depot_trim_any(cache->depot);
}

void
fnet_cache_age(fnet_cache *cache)
{
    fnet_lock_acquire(&cache->depot->lock);
    for (int i = 0; i < FNET_BLOCK_CLASSES; i++) {
        magazine *mag = &cache->magazines[i];
        uint32_t left = mag->high / 2;
        if (left < high_least[i]) {
            left = high_least[i];
        }
        shrink_locked(cache, (enum fnet_block)i, left);
        mag->overflow = 0;
    }
    fnet_lock_release(&cache->depot->lock);
    (void)restore_marks(cache);
}

void
fnet_cache_get_stats(const fnet_cache *cache, fnet_cache_stats *out)
{
    fnet_depot *depot = cache->depot;
    *out = (fnet_cache_stats){.caches = 1};
    add_counters(out, cache);
    fnet_lock_acquire(&depot->lock);
    out->limit_bytes = depot->limit;
    fnet_lock_release(&depot->lock);
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
