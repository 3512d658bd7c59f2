#include "cache/cache.h"

#include "base/base.h"

#include "test.h"

#include <errno.h>
#include <pthread.h>

#define KIB ((size_t)1024)
#define LEAST_LIMIT (256 * KIB)
#define PLENTY (64 * KIB * KIB)

/* A depot with some caches over it. */
typedef struct world {
    fnet_depot *depot;
    fnet_cache *caches[4];
    int count;
} world;

static world
make_world(size_t limit, int count)
{
    world w = {.count = count};
    CHECK(fnet_depot_new(&w.depot, limit) == 0);
    for (int i = 0; i < count; i++) {
        CHECK(fnet_cache_new(&w.caches[i], w.depot) == 0);
    }
    return w;
}

static void
end_world(world *w)
{
    for (int i = 0; i < w->count; i++) {
        fnet_cache_free(w->caches[i]);
    }
    fnet_depot_free(w->depot);
}

static size_t
held_by_cache(const fnet_cache *cache)
{
    fnet_cache_stats stats;
    fnet_cache_get_stats(cache, &stats);
    return stats.held_blocks;
}

static fnet_cache_stats
depot_stats(fnet_depot *depot)
{
    fnet_cache_stats stats;
    fnet_depot_stats_any(depot, &stats);
    return stats;
}

static void
get_many(fnet_cache *cache, enum fnet_block block, void **ptrs, int count)
{
    for (int i = 0; i < count; i++) {
        ptrs[i] = fnet_cache_get(cache, block);
        CHECK(ptrs[i] != NULL);
    }
}

static void
put_many(fnet_cache *cache, enum fnet_block block, void **ptrs, int count)
{
    for (int i = 0; i < count; i++) {
        fnet_cache_put(cache, block, ptrs[i]);
    }
}

static void
sizes_and_limits(void)
{
    CHECK(fnet_block_size(FNET_BLOCK_2K) == 2 * KIB);
    CHECK(fnet_block_size(FNET_BLOCK_16K) == 16 * KIB);
    CHECK(fnet_block_size(FNET_BLOCK_64K) == 64 * KIB);
    CHECK(fnet_block_size(FNET_BLOCK_256K) == 256 * KIB);
    fnet_depot *depot = NULL;
    CHECK(fnet_depot_new(&depot, LEAST_LIMIT - 1) == -EINVAL);
    CHECK(fnet_depot_new(&depot, 0) == -EINVAL);
    CHECK(depot == NULL);
    CHECK(fnet_depot_new(&depot, LEAST_LIMIT) == 0);
    CHECK(depot_stats(depot).limit_bytes == LEAST_LIMIT);
    fnet_depot_free(depot);
}

static void
a_block_is_used_again(void)
{
    world w = make_world(PLENTY, 1);
    fnet_cache *cache = w.caches[0];
    for (int i = 0; i < FNET_BLOCK_CLASSES; i++) {
        enum fnet_block block = (enum fnet_block)i;
        char *first = fnet_cache_get(cache, block);
        char *second = fnet_cache_get(cache, block);
        CHECK(first != NULL && second != NULL && first != second);
        memset(first, 'a', fnet_block_size(block));
        memset(second, 'b', fnet_block_size(block));
        fnet_cache_put(cache, block, first);
        fnet_cache_put(cache, block, second);
        CHECK(fnet_cache_get(cache, block) == second); /* the warm one */
        CHECK(fnet_cache_get(cache, block) == first);
        fnet_cache_put(cache, block, first);
        fnet_cache_put(cache, block, second);
    }
    fnet_cache_stats stats;
    fnet_cache_get_stats(cache, &stats);
    CHECK(stats.hits == 8 && stats.misses == 8);
    CHECK(stats.held_blocks == 8 && stats.held_bytes == 2 * 338 * KIB);
    CHECK(stats.limit_bytes == PLENTY);
    end_world(&w);
}

static void
halves_move(void)
{
    const int capacity[FNET_BLOCK_CLASSES] = {64, 32, 16, 4};
    for (int i = 0; i < FNET_BLOCK_CLASSES; i++) {
        enum fnet_block block = (enum fnet_block)i;
        size_t most = (size_t)capacity[i];
        void *ptrs[65];
        world w = make_world(PLENTY, 2);
        get_many(w.caches[0], block, ptrs, capacity[i] + 1);
        put_many(w.caches[0], block, ptrs, capacity[i]);
        CHECK(held_by_cache(w.caches[0]) == most);
        /* Full: half goes to the depot, then the block finds its place. */
        fnet_cache_put(w.caches[0], block, ptrs[most]);
        CHECK(held_by_cache(w.caches[0]) == most / 2 + 1);
        CHECK(depot_stats(w.depot).held_blocks == most + 1);
        /* Empty: half comes from it, and one of these is given out. */
        ptrs[0] = fnet_cache_get(w.caches[1], block);
        CHECK(held_by_cache(w.caches[1]) == most / 2 - 1);
        CHECK(depot_stats(w.depot).held_blocks == most);
        CHECK(depot_stats(w.depot).hits == 1);
        CHECK(depot_stats(w.depot).misses == most + 1);
        fnet_cache_put(w.caches[1], block, ptrs[0]);
        end_world(&w);
    }
}

static void
flush_and_trim(void)
{
    void *ptrs[10];
    world w = make_world(PLENTY, 2);
    long empty = fnet_mem_live();
    get_many(w.caches[0], FNET_BLOCK_16K, ptrs, 10);
    put_many(w.caches[0], FNET_BLOCK_16K, ptrs, 10);
    void *node = fnet_cache_get_node(w.caches[0]);
    CHECK(node != NULL);
    fnet_cache_put_node(w.caches[0], node);
    CHECK(fnet_mem_live() == empty + 11);
    fnet_cache_flush(w.caches[0]);
    CHECK(fnet_mem_live() == empty + 10);
    CHECK(held_by_cache(w.caches[0]) == 0);
    CHECK(depot_stats(w.depot).held_blocks == 10);
    CHECK(depot_stats(w.depot).held_bytes == 160 * KIB);
    get_many(w.caches[1], FNET_BLOCK_16K, ptrs, 1);
    CHECK(held_by_cache(w.caches[1]) == 9);
    fnet_cache_put(w.caches[1], FNET_BLOCK_16K, ptrs[0]);
    fnet_cache_flush(w.caches[1]);
    fnet_depot_trim_any(w.depot);
    CHECK(fnet_mem_live() == empty);
    CHECK(depot_stats(w.depot).held_blocks == 0);
    CHECK(depot_stats(w.depot).held_bytes == 0);
    end_world(&w);
}

/* Blocks of one class, many more than the limit allows to keep, given back to
 * several caches: what lives on never exceeds the limit. */
static void
the_limit_holds_for_each_class(void)
{
    enum { OUT = 200 };
    static void *ptrs[OUT];
    for (int i = 0; i < FNET_BLOCK_CLASSES; i++) {
        enum fnet_block block = (enum fnet_block)i;
        size_t size = fnet_block_size(block);
        size_t limit = size > 64 * KIB ? 2 * size : LEAST_LIMIT + size / 2;
        world w = make_world(limit, 4);
        long empty = fnet_mem_live();
        get_many(w.caches[0], block, ptrs, OUT);
        CHECK(fnet_mem_live() == empty + OUT);
        for (int k = 0; k < OUT; k++) {
            fnet_cache_put(w.caches[k % 4], block, ptrs[k]);
            long out = OUT - 1 - k;
            CHECK((size_t)(fnet_mem_live() - empty - out) * size <= limit);
        }
        /* It is used, too: no block less than fits in. */
        CHECK((size_t)(fnet_mem_live() - empty) == limit / size);
        CHECK(depot_stats(w.depot).held_bytes <= limit);
        end_world(&w);
    }
}

/* The same with all classes and random traffic between the caches. */
static void
the_limit_holds_for_a_mixture(void)
{
    enum { OUT = 64 };
    void *ptrs[OUT] = {0};
    enum fnet_block blocks[OUT];
    uint32_t state = 3;
    world w = make_world(3 * LEAST_LIMIT, 4);
    for (int i = 0; i < 20000; i++) {
        fnet_cache *cache = w.caches[test_random(&state) % 4];
        size_t k = test_random(&state) % OUT;
        if (ptrs[k] == NULL) {
            blocks[k] = (enum fnet_block)(test_random(&state) % 4);
            ptrs[k] = fnet_cache_get(cache, blocks[k]);
            CHECK(ptrs[k] != NULL);
        }
        else {
            fnet_cache_put(cache, blocks[k], ptrs[k]);
            ptrs[k] = NULL;
        }
        if (i % 1000 == 999) {
            fnet_cache_flush(cache);
        }
        CHECK(depot_stats(w.depot).held_bytes <= 3 * LEAST_LIMIT);
    }
    for (size_t k = 0; k < OUT; k++) {
        if (ptrs[k] != NULL) {
            fnet_cache_put(w.caches[0], blocks[k], ptrs[k]);
        }
    }
    for (int i = 0; i < 4; i++) {
        fnet_cache_flush(w.caches[i]);
    }
    CHECK(depot_stats(w.depot).held_bytes <= 3 * LEAST_LIMIT);
    CHECK(depot_stats(w.depot).hits > depot_stats(w.depot).misses);
    end_world(&w);
}

/* What an old burst has left in the depot makes room for what is in use now.
 */
static void
cold_blocks_give_way(void)
{
    void *ptrs[16];
    world w = make_world(LEAST_LIMIT, 1);
    get_many(w.caches[0], FNET_BLOCK_64K, ptrs, 4);
    put_many(w.caches[0], FNET_BLOCK_64K, ptrs, 4);
    fnet_cache_flush(w.caches[0]);
    CHECK(depot_stats(w.depot).held_bytes == LEAST_LIMIT);
    get_many(w.caches[0], FNET_BLOCK_2K, ptrs, 16);
    put_many(w.caches[0], FNET_BLOCK_2K, ptrs, 16);
    CHECK(held_by_cache(w.caches[0]) == 16);
    CHECK(depot_stats(w.depot).held_bytes <= LEAST_LIMIT);
    /* Room that the cache had for one class serves another. */
    get_many(w.caches[0], FNET_BLOCK_2K, ptrs, 16);
    void *large = fnet_cache_get(w.caches[0], FNET_BLOCK_256K);
    CHECK(large != NULL);
    fnet_cache_put(w.caches[0], FNET_BLOCK_256K, large);
    CHECK(held_by_cache(w.caches[0]) == 1);
    put_many(w.caches[0], FNET_BLOCK_2K, ptrs, 16);
    CHECK(depot_stats(w.depot).held_bytes <= LEAST_LIMIT);
    end_world(&w);
}

static void
nodes_are_few(void)
{
    static void *nodes[3 * FNET_NODES_KEPT];
    world w = make_world(LEAST_LIMIT, 2);
    long empty = fnet_mem_live();
    for (size_t i = 0; i < FNET_COUNTOF(nodes); i++) {
        nodes[i] = fnet_cache_get_node(w.caches[0]);
        CHECK(nodes[i] != NULL);
        memset(nodes[i], 'x', FNET_NODE_SIZE);
    }
    for (size_t i = 0; i < FNET_COUNTOF(nodes); i++) {
        fnet_cache_put_node(w.caches[1], nodes[i]);
    }
    CHECK(fnet_mem_live() == empty + FNET_NODES_KEPT);
    fnet_mem_fail_after(0);
    for (size_t i = 0; i < FNET_NODES_KEPT; i++) {
        nodes[i] = fnet_cache_get_node(w.caches[1]);
        CHECK(nodes[i] != NULL);
    }
    CHECK(!fnet_mem_failed());
    CHECK(fnet_cache_get_node(w.caches[1]) == NULL);
    for (size_t i = 0; i < FNET_NODES_KEPT; i++) {
        fnet_cache_put_node(w.caches[1], nodes[i]);
    }
    CHECK(held_by_cache(w.caches[1]) == 0);
    end_world(&w);
}

/* All that makes and uses a cache; 0 or -ENOMEM with nothing left. */
static int
use_a_cache(void)
{
    fnet_depot *depot = NULL;
    fnet_cache *cache = NULL;
    int rc = fnet_depot_new(&depot, PLENTY);
    if (rc < 0) {
        CHECK(depot == NULL);
        return rc;
    }
    rc = fnet_cache_new(&cache, depot);
    if (rc < 0) {
        CHECK(cache == NULL);
        fnet_depot_free(depot);
        return rc;
    }
    for (int i = 0; i < FNET_BLOCK_CLASSES && rc == 0; i++) {
        void *ptr = fnet_cache_get(cache, (enum fnet_block)i);
        void *node = ptr != NULL ? fnet_cache_get_node(cache) : NULL;
        rc = node == NULL ? -ENOMEM : 0;
        if (ptr != NULL) {
            fnet_cache_put(cache, (enum fnet_block)i, ptr);
        }
        if (node != NULL) {
            fnet_cache_put_node(cache, node);
        }
    }
    fnet_cache_free(cache);
    fnet_depot_free(depot);
    return rc;
}

static void
every_allocation_may_fail(void)
{
    long live = fnet_mem_live();
    long n = 0;
    for (bool failed = true; failed; n++) {
        fnet_mem_fail_after(n);
        int rc = use_a_cache();
        failed = fnet_mem_failed();
        CHECK(rc == (failed ? -ENOMEM : 0));
        CHECK(fnet_mem_live() == live);
    }
    CHECK(n == 8); /* depot, cache, four blocks, a node, and success */
}

static void
write_after_put(world *w)
{
    char *ptr = fnet_cache_get(w->caches[0], FNET_BLOCK_2K);
    fnet_cache_put(w->caches[0], FNET_BLOCK_2K, ptr);
    ptr[20] = 'x';
    (void)!fnet_cache_get(w->caches[0], FNET_BLOCK_2K);
}

static void
put_twice(world *w)
{
    void *ptr = fnet_cache_get(w->caches[0], FNET_BLOCK_2K);
    fnet_cache_put(w->caches[0], FNET_BLOCK_2K, ptr);
    fnet_cache_put(w->caches[0], FNET_BLOCK_2K, ptr);
}

static void
misuse_panics(void)
{
    world w = make_world(PLENTY, 1);
    CHECK_PANICS(write_after_put(&w));
    CHECK_PANICS(put_twice(&w));
    CHECK_PANICS(fnet_depot_free(w.depot)); /* a cache stands over it */
    end_world(&w);
}

/* --- threads ------------------------------------------------------------- */

#define THREADS 4
#define ROUNDS 10000
#define SLOTS 48

/* Blocks that wander from thread to thread. */
typedef struct market {
    world w;
    pthread_mutex_t lock;
    void *slots[SLOTS];
    enum fnet_block blocks[SLOTS];
} market;

typedef struct trader {
    market *shared;
    fnet_cache *cache;
    uint32_t state;
} trader;

static void *
trade(void *arg)
{
    trader *me = arg;
    market *shared = me->shared;
    for (int i = 0; i < ROUNDS; i++) {
        enum fnet_block block = (enum fnet_block)(test_random(&me->state) % 4);
        unsigned char *mine = fnet_cache_get(me->cache, block);
        CHECK(mine != NULL);
        /* Its first and last bytes say what class it is of. */
        memset(mine, (int)block, 64);
        mine[fnet_block_size(block) - 1] = (unsigned char)block;
        size_t k = test_random(&me->state) % SLOTS;
        pthread_mutex_lock(&shared->lock);
        unsigned char *other = shared->slots[k];
        enum fnet_block other_block = shared->blocks[k];
        shared->slots[k] = mine;
        shared->blocks[k] = block;
        pthread_mutex_unlock(&shared->lock);
        if (other != NULL) {
            CHECK(other[0] == other_block && other[63] == other_block);
            CHECK(other[fnet_block_size(other_block) - 1] == other_block);
            fnet_cache_put(me->cache, other_block, other);
        }
        if (i % 64 == 0) {
            fnet_cache_stats stats;
            fnet_depot_stats_any(shared->w.depot, &stats);
            CHECK(stats.held_bytes <= stats.limit_bytes);
        }
        if (i % 2048 == 0) {
            fnet_cache_flush(me->cache);
            fnet_depot_trim_any(shared->w.depot);
        }
    }
    return NULL;
}

static void
threads_exchange_blocks(void)
{
    static market shared;
    memset(shared.slots, 0, sizeof(shared.slots));
    shared.w = make_world(8 * LEAST_LIMIT, THREADS);
    CHECK(pthread_mutex_init(&shared.lock, NULL) == 0);
    pthread_t threads[THREADS];
    trader traders[THREADS];
    for (int i = 0; i < THREADS; i++) {
        traders[i] = (trader){.shared = &shared,
                              .cache = shared.w.caches[i],
                              .state = (uint32_t)i};
        CHECK(pthread_create(&threads[i], NULL, trade, &traders[i]) == 0);
    }
    for (int i = 0; i < THREADS; i++) {
        CHECK(pthread_join(threads[i], NULL) == 0);
    }
    for (int k = 0; k < SLOTS; k++) {
        if (shared.slots[k] != NULL) {
            fnet_cache_put(shared.w.caches[0], shared.blocks[k],
                           shared.slots[k]);
        }
    }
    for (int i = 0; i < THREADS; i++) {
        fnet_cache_flush(shared.w.caches[i]);
    }
    fnet_cache_stats stats = depot_stats(shared.w.depot);
    CHECK(stats.held_bytes <= stats.limit_bytes);
    CHECK(stats.hits + stats.misses == THREADS * ROUNDS);
    end_world(&shared.w);
    pthread_mutex_destroy(&shared.lock);
}

int
main(void)
{
    RUN(sizes_and_limits);
    RUN(a_block_is_used_again);
    RUN(halves_move);
    RUN(flush_and_trim);
    RUN(the_limit_holds_for_each_class);
    RUN(the_limit_holds_for_a_mixture);
    RUN(cold_blocks_give_way);
    RUN(nodes_are_few);
    RUN(every_allocation_may_fail);
    RUN(misuse_panics);
    RUN(threads_exchange_blocks);
    return test_report();
}
