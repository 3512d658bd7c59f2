#include "cache/cache.h"

#include "base/base.h"

#include "test.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>

#define KIB ((size_t)1024)
#define MIB (KIB * KIB)
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

static void
another_limit(void)
{
    void *ptrs[32];
    world w = make_world(PLENTY, 1);
    CHECK(fnet_depot_set_limit_any(w.depot, LEAST_LIMIT - 1) == -EINVAL);
    get_many(w.caches[0], FNET_BLOCK_64K, ptrs, 32);
    put_many(w.caches[0], FNET_BLOCK_64K, ptrs, 32);
    CHECK(depot_stats(w.depot).held_bytes == 2048 * KIB);
    /* What a magazine has on credit cannot be taken from its owner. */
    CHECK(fnet_depot_set_limit_any(w.depot, LEAST_LIMIT) == -EBUSY);
    CHECK(depot_stats(w.depot).limit_bytes == PLENTY);
    CHECK(depot_stats(w.depot).held_bytes == 2048 * KIB);
    /* What lies in the depot goes. */
    CHECK(fnet_depot_set_limit_any(w.depot, 1536 * KIB) == 0);
    CHECK(depot_stats(w.depot).limit_bytes == 1536 * KIB);
    CHECK(depot_stats(w.depot).held_bytes == 1536 * KIB);
    CHECK(depot_stats(w.depot).freed == 8);
    fnet_cache_flush(w.caches[0]);
    CHECK(fnet_depot_set_limit_any(w.depot, LEAST_LIMIT) == 0);
    CHECK(depot_stats(w.depot).held_bytes == LEAST_LIMIT);
    CHECK(depot_stats(w.depot).high_water_bytes == 2048 * KIB);
    /* A larger one is used. */
    CHECK(fnet_depot_set_limit_any(w.depot, PLENTY) == 0);
    get_many(w.caches[0], FNET_BLOCK_64K, ptrs, 32);
    put_many(w.caches[0], FNET_BLOCK_64K, ptrs, 32);
    CHECK(depot_stats(w.depot).held_bytes == 2048 * KIB);
    end_world(&w);
}

/* A burst of 40 blocks, of which 24 are needed afterwards. */
static void
ageing_frees_what_nobody_needs(void)
{
    void *ptrs[40];
    world w = make_world(PLENTY, 1);
    get_many(w.caches[0], FNET_BLOCK_64K, ptrs, 40);
    put_many(w.caches[0], FNET_BLOCK_64K, ptrs, 40);
    CHECK(held_by_cache(w.caches[0]) == 16);
    CHECK(fnet_depot_age_any(w.depot) == 0); /* it was the first */
    for (int i = 0; i < 3; i++) {
        get_many(w.caches[0], FNET_BLOCK_64K, ptrs, 24);
        put_many(w.caches[0], FNET_BLOCK_64K, ptrs, 24);
    }
    CHECK(held_by_cache(w.caches[0]) == 32); /* it has grown */
    CHECK(fnet_depot_age_any(w.depot) == 8 * 64 * KIB);
    CHECK(depot_stats(w.depot).held_blocks == 32);
    CHECK(depot_stats(w.depot).misses == 40);
    /* Nothing at all since: the magazine shrinks, and what it has given is
     * freed when it has lain there for a whole period. */
    fnet_cache_age(w.caches[0]);
    CHECK(held_by_cache(w.caches[0]) == 16);
    CHECK(fnet_depot_age_any(w.depot) == 0);
    CHECK(fnet_depot_age_any(w.depot) == 16 * 64 * KIB);
    CHECK(fnet_depot_age_any(w.depot) == 0);
    fnet_cache_age(w.caches[0]);
    CHECK(depot_stats(w.depot).held_blocks == 16);
    CHECK(depot_stats(w.depot).freed == 24);
    end_world(&w);
}

static uint64_t
transfers(const world *w)
{
    return depot_stats(w->depot).transfers;
}

/* Many taken and returned over and over: the magazine grows until they fit,
 * or to its share of the limit, and shrinks again. */
static void
magazines_follow_the_depth(void)
{
    enum { DEEP = 200 };
    static void *ptrs[DEEP];
    for (int i = 0; i < FNET_BLOCK_CLASSES; i++) {
        enum fnet_block block = (enum fnet_block)i;
        size_t share = PLENTY / 2 / fnet_block_size(block);
        world w = make_world(PLENTY, 1);
        for (int k = 0; k < 12; k++) {
            get_many(w.caches[0], block, ptrs, DEEP);
            put_many(w.caches[0], block, ptrs, DEEP);
        }
        uint64_t before = transfers(&w);
        for (int k = 0; k < 10; k++) {
            get_many(w.caches[0], block, ptrs, DEEP);
            put_many(w.caches[0], block, ptrs, DEEP);
        }
        CHECK(transfers(&w) - before <= (share < DEEP ? 50 : 0));
        CHECK(held_by_cache(w.caches[0]) <= share);
        CHECK(depot_stats(w.depot).held_blocks == DEEP);
        for (int k = 0; k < 8; k++) {
            fnet_cache_age(w.caches[0]);
        }
        CHECK(held_by_cache(w.caches[0]) * fnet_block_size(block) <= MIB);
        CHECK(depot_stats(w.depot).held_blocks == DEEP);
        /* The depot's batches are of many sizes now: each finds its way. */
        get_many(w.caches[0], block, ptrs, DEEP);
        CHECK(depot_stats(w.depot).misses == DEEP);
        put_many(w.caches[0], block, ptrs, DEEP);
        fnet_cache_flush(w.caches[0]);
        get_many(w.caches[0], block, ptrs, 1);
        CHECK(held_by_cache(w.caches[0]) * fnet_block_size(block) <= MIB);
        fnet_cache_put(w.caches[0], block, ptrs[0]);
        end_world(&w);
    }
}

/* One that cannot grow for want of memory works on. */
static void
no_memory_to_grow(void)
{
    void *ptrs[40];
    world w = make_world(PLENTY, 1);
    get_many(w.caches[0], FNET_BLOCK_64K, ptrs, 40);
    put_many(w.caches[0], FNET_BLOCK_64K, ptrs, 40);
    fnet_mem_fail_after(0);
    get_many(w.caches[0], FNET_BLOCK_64K, ptrs, 40);
    CHECK(fnet_mem_failed());
    put_many(w.caches[0], FNET_BLOCK_64K, ptrs, 40);
    fnet_mem_fail_after(-1);
    CHECK(depot_stats(w.depot).misses == 40);
    CHECK(depot_stats(w.depot).held_blocks == 40);
    fnet_mem_fail_after(0);
    fnet_cache_age(w.caches[0]); /* nor to shrink */
    fnet_cache_flush(w.caches[0]);
    fnet_mem_fail_after(-1);
    CHECK(held_by_cache(w.caches[0]) == 0);
    end_world(&w);
}

static void
every_figure_is_told(void)
{
    void *ptrs[24];
    world w = make_world(PLENTY, 2);
    fnet_cache_stats stats = depot_stats(w.depot);
    CHECK(stats.caches == 2 && stats.limit_bytes == PLENTY);
    CHECK(stats.held_bytes == 0 && stats.high_water_bytes == 0);
    get_many(w.caches[0], FNET_BLOCK_64K, ptrs, 24);
    put_many(w.caches[0], FNET_BLOCK_64K, ptrs, 24); /* one batch moves */
    get_many(w.caches[1], FNET_BLOCK_64K, ptrs, 10); /* and comes, two miss */
    stats = depot_stats(w.depot);
    CHECK(stats.held_blocks == 16 && stats.held_bytes == 1024 * KIB);
    CHECK(stats.high_water_bytes == 1536 * KIB);
    CHECK(stats.hits == 8 && stats.misses == 26 && stats.transfers == 2);
    CHECK(stats.freed == 0);
    fnet_cache_get_stats(w.caches[1], &stats);
    CHECK(stats.caches == 1 && stats.limit_bytes == PLENTY);
    CHECK(stats.hits == 8 && stats.misses == 2 && stats.transfers == 1);
    put_many(w.caches[1], FNET_BLOCK_64K, ptrs, 10);
    /* A cache that goes leaves its blocks, and what it has counted. */
    fnet_cache_free(w.caches[1]);
    w.count--;
    stats = depot_stats(w.depot);
    CHECK(stats.caches == 1 && stats.held_blocks == 26);
    CHECK(stats.hits == 8 && stats.misses == 26 && stats.transfers == 4);
    CHECK(stats.high_water_bytes == 32 * 64 * KIB);
    fnet_depot_trim_any(w.depot);
    stats = depot_stats(w.depot);
    CHECK(stats.held_blocks == 16 && stats.freed == 10);
    CHECK(stats.high_water_bytes == 32 * 64 * KIB);
    end_world(&w);
}

/* In a forked child, with the lock held by a thread that is not there. */
static void
use_after_fork(world *w)
{
    void *ptrs[20];
    fnet_depot_forget(w->depot);
    CHECK(depot_stats(w->depot).held_blocks == 0);
    get_many(w->caches[0], FNET_BLOCK_64K, ptrs, 20);
    put_many(w->caches[1], FNET_BLOCK_64K, ptrs, 20);
    CHECK(depot_stats(w->depot).held_blocks == 20);
    end_world(w);
}

typedef struct holder {
    pthread_barrier_t barrier;
    fnet_depot *depot;
    fnet_cache *cache;
    atomic_bool done;
} holder;

static void *
exchange_all_the_time(void *arg)
{
    holder *me = arg;
    pthread_barrier_wait(&me->barrier);
    while (!atomic_load(&me->done)) {
        void *ptr = fnet_cache_get(me->cache, FNET_BLOCK_64K);
        fnet_cache_put(me->cache, FNET_BLOCK_64K, ptr);
        fnet_cache_flush(me->cache);
    }
    return NULL;
}

static void
a_child_forgets_what_was_held(void)
{
    void *ptrs[40];
    pthread_t thread;
    world w = make_world(PLENTY, 2);
    get_many(w.caches[0], FNET_BLOCK_64K, ptrs, 40);
    put_many(w.caches[0], FNET_BLOCK_64K, ptrs, 40);
    holder me = {.depot = w.depot, .cache = w.caches[1]};
    CHECK(pthread_barrier_init(&me.barrier, NULL, 2) == 0);
    CHECK(pthread_create(&thread, NULL, exchange_all_the_time, &me) == 0);
    pthread_barrier_wait(&me.barrier);
    for (int i = 0; i < 20; i++) {
        pid_t pid = fork();
        if (pid == 0) {
            alarm(20);
            use_after_fork(&w);
            _exit(atomic_load(&test_broken) == 0 ? 0 : 1);
        }
        CHECK(pid > 0 && test_wait(pid) == 0);
    }
    atomic_store(&me.done, true);
    CHECK(pthread_join(thread, NULL) == 0);
    pthread_barrier_destroy(&me.barrier);
    CHECK(depot_stats(w.depot).held_blocks == 40);
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
    /* depot, cache, four magazines, four blocks, a node, and success */
    CHECK(n == 12);
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

/* One thread takes what another returns, as a worker's pass and the loop's
 * thread do; a third looks on. */
enum { PIPE = 64, PASSED = 20000 };

typedef struct pipe_line {
    world w;
    _Atomic(void *) slots[PIPE];
    atomic_bool done;
} pipe_line;

static void *
take_and_pass_on(void *arg)
{
    pipe_line *shared = arg;
    for (size_t i = 0; i < PASSED; i++) {
        char *ptr = fnet_cache_get(shared->w.caches[0], FNET_BLOCK_64K);
        CHECK(ptr != NULL);
        memset(ptr, (int)(i & 0x7f), 64);
        while (atomic_load(&shared->slots[i % PIPE]) != NULL) {
            sched_yield();
        }
        atomic_store(&shared->slots[i % PIPE], ptr);
    }
    return NULL;
}

static void *
take_over_and_return(void *arg)
{
    pipe_line *shared = arg;
    for (size_t i = 0; i < PASSED; i++) {
        char *ptr;
        while ((ptr = atomic_load(&shared->slots[i % PIPE])) == NULL) {
            sched_yield();
        }
        atomic_store(&shared->slots[i % PIPE], NULL);
        CHECK(ptr[0] == (char)(i & 0x7f) && ptr[63] == ptr[0]);
        fnet_cache_put(shared->w.caches[1], FNET_BLOCK_64K, ptr);
    }
    return NULL;
}

static void *
look_on(void *arg)
{
    pipe_line *shared = arg;
    while (!atomic_load(&shared->done)) {
        fnet_cache_stats stats = depot_stats(shared->w.depot);
        CHECK(stats.held_bytes <= stats.limit_bytes);
        CHECK(stats.high_water_bytes <= stats.limit_bytes);
        sched_yield();
    }
    return NULL;
}

static void
one_thread_returns_what_another_takes(void)
{
    static pipe_line shared;
    void *(*const roles[])(void *) = {take_and_pass_on, take_over_and_return,
                                      look_on};
    pthread_t threads[3];
    shared.w = make_world(PLENTY, 2);
    for (int i = 0; i < 3; i++) {
        CHECK(pthread_create(&threads[i], NULL, roles[i], &shared) == 0);
    }
    CHECK(pthread_join(threads[0], NULL) == 0);
    CHECK(pthread_join(threads[1], NULL) == 0);
    atomic_store(&shared.done, true);
    CHECK(pthread_join(threads[2], NULL) == 0);
    fnet_cache_stats stats = depot_stats(shared.w.depot);
    CHECK(stats.hits + stats.misses == PASSED);
    /* What is under way, in two magazines, and in a batch or two: no more
     * than that was ever made. */
    CHECK(stats.misses <= PIPE + 2 * 16 + 2 * 8);
    CHECK(stats.held_blocks == stats.misses - stats.freed);
    end_world(&shared.w);
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
    RUN(another_limit);
    RUN(ageing_frees_what_nobody_needs);
    RUN(magazines_follow_the_depth);
    RUN(no_memory_to_grow);
    RUN(every_figure_is_told);
    RUN(every_allocation_may_fail);
    RUN(misuse_panics);
    RUN(a_child_forgets_what_was_held);
    RUN(threads_exchange_blocks);
    RUN(one_thread_returns_what_another_takes);
    return test_report();
}
