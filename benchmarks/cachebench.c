/* cachebench: what taking and returning a block of 64 KiB costs.
 *
 *     cachebench THREADS DEPTH ROUNDS MS [pass]
 *
 * Each thread takes DEPTH blocks and returns them, last in, first out, over
 * and over (after Go's StackGrowthDeep).  With `pass` there are two threads:
 * one takes DEPTH blocks, the other returns them.  Compared are the cache of
 * the core (magazines over a depot), one list with a lock, a list per thread
 * that has neither a lock nor a bound, and malloc; each for MS milliseconds in
 * each of the rounds, in turn.  A line of JSON for each: pairs of a take and a
 * return, wall and CPU nanoseconds per pair, and the bytes that are held at
 * the end.  The blocks' contents are left alone: what is measured is what the
 * caches do.
 *
 * Built by benchmarks/cache.py, with the core's sources. */
#include "base/clock.h"
#include "base/list.h"
#include "cache/cache.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define BLOCK FNET_BLOCK_64K
#define SIZE ((size_t)64 * 1024)
#define MAX_THREADS 64
#define MAX_DEPTH 4096
/* Enough for whatever is asked for, so that the depth decides what is done,
 * not the limit. */
#define LIMIT ((size_t)1 << 32)
/* Handed over and not yet returned, at most: so many blocks, but RING_LEAST
 * times the depth, so that the threads seldom wait for each other. */
#define RING_BLOCKS ((size_t)512)
#define RING_LEAST ((size_t)4)
/* Blocks that pass from thread to thread: the list per thread, which grows by
 * each of them, would take all memory. */
#define PASS_MAX ((uint64_t)20000)

enum kind { MAGAZINE, LOCKED, UNBOUNDED, MALLOC, KINDS };
static const char *const names[] = {"magazine", "locked", "unbounded",
                                    "malloc"};

typedef struct node {
    struct node *next;
} node;

typedef struct store {
    fnet_cache *cache; /* MAGAZINE */
    node *free;        /* UNBOUNDED */
    size_t held;
} store;

static struct {
    pthread_mutex_t mutex;
    node *free;
    size_t held;
} locked = {.mutex = PTHREAD_MUTEX_INITIALIZER};

static void *
make_block(void)
{
    void *ptr = malloc(SIZE);
    if (ptr == NULL) {
        fputs("cachebench: no memory\n", stderr);
        exit(1);
    }
    return ptr;
}

/* Called, not inlined, as the functions of the core are. */
static __attribute__((noinline)) void *
locked_get(void)
{
    pthread_mutex_lock(&locked.mutex);
    node *item = locked.free;
    if (item != NULL) {
        locked.free = item->next;
        locked.held--;
    }
    pthread_mutex_unlock(&locked.mutex);
    return item != NULL ? item : make_block();
}

static __attribute__((noinline)) void
locked_put(void *ptr)
{
    node *item = ptr;
    pthread_mutex_lock(&locked.mutex);
    item->next = locked.free;
    locked.free = item;
    locked.held++;
    pthread_mutex_unlock(&locked.mutex);
}

static __attribute__((noinline)) void *
unbounded_get(store *from)
{
    node *item = from->free;
    if (item == NULL) {
        return make_block();
    }
    from->free = item->next;
    from->held--;
    return item;
}

static __attribute__((noinline)) void
unbounded_put(store *to, void *ptr)
{
    node *item = ptr;
    item->next = to->free;
    to->free = item;
    to->held++;
}

static inline void *
get(enum kind kind, store *from)
{
    switch (kind) {
    case MAGAZINE:
        return fnet_cache_get(from->cache, BLOCK);
    case LOCKED:
        return locked_get();
    case UNBOUNDED:
        return unbounded_get(from);
    default:
        return make_block();
    }
}

static inline void
put(enum kind kind, store *to, void *ptr)
{
    switch (kind) {
    case MAGAZINE:
        fnet_cache_put(to->cache, BLOCK, ptr);
        break;
    case LOCKED:
        locked_put(ptr);
        break;
    case UNBOUNDED:
        unbounded_put(to, ptr);
        break;
    default:
        free(ptr);
    }
}

/* -- a run ---------------------------------------------------------------- */

typedef struct slot {
    _Alignas(64) atomic_bool full;
    void *blocks[MAX_DEPTH];
} slot;

static struct {
    pthread_barrier_t barrier;
    size_t depth;
    atomic_bool stop;
    atomic_bool sealed; /* pass: the last slot is full */
    size_t slots;
    slot ring[RING_BLOCKS];
} run;

typedef struct worker {
    _Alignas(64) pthread_t thread;
    enum kind kind;
    store mine;
    uint64_t pairs;
    int64_t cpu, begin, end;
} worker;

static int64_t
cpu_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static void
note_begin(worker *me)
{
    pthread_barrier_wait(&run.barrier);
    me->begin = fnet_clock_ns();
    me->cpu = -cpu_ns();
}

static void
note_end(worker *me)
{
    me->cpu += cpu_ns();
    me->end = fnet_clock_ns();
}

static inline __attribute__((always_inline)) void
grow_and_shrink(enum kind kind, worker *me)
{
    void *blocks[MAX_DEPTH];
    size_t depth = run.depth;
    uint64_t pairs = 0;

    while (!atomic_load_explicit(&run.stop, memory_order_relaxed)) {
        /* At least 64 between two looks. */
        for (size_t done = 0; done < 64; done += depth) {
            for (size_t i = 0; i < depth; i++) {
                blocks[i] = get(kind, &me->mine);
            }
            for (size_t i = depth; i-- > 0;) {
                put(kind, &me->mine, blocks[i]);
            }
            pairs += depth;
        }
    }
    me->pairs = pairs;
}

static void *
work(void *arg)
{
    worker *me = arg;
    note_begin(me);
    switch (me->kind) {
    case MAGAZINE:
        grow_and_shrink(MAGAZINE, me);
        break;
    case LOCKED:
        grow_and_shrink(LOCKED, me);
        break;
    case UNBOUNDED:
        grow_and_shrink(UNBOUNDED, me);
        break;
    default:
        grow_and_shrink(MALLOC, me);
    }
    note_end(me);
    return NULL;
}

static void *
take(void *arg)
{
    worker *me = arg;
    note_begin(me);
    for (size_t n = 0;; n++) {
        slot *to = &run.ring[n % run.slots];
        while (atomic_load_explicit(&to->full, memory_order_acquire)) {
            sched_yield();
        }
        if (atomic_load(&run.stop) ||
            (me->kind == UNBOUNDED && me->pairs >= PASS_MAX)) {
            break;
        }
        for (size_t i = 0; i < run.depth; i++) {
            to->blocks[i] = get(me->kind, &me->mine);
        }
        me->pairs += run.depth;
        atomic_store_explicit(&to->full, true, memory_order_release);
    }
    atomic_store(&run.sealed, true);
    note_end(me);
    return NULL;
}

static void *
give_back(void *arg)
{
    worker *me = arg;
    note_begin(me);
    for (size_t n = 0;; n++) {
        slot *from = &run.ring[n % run.slots];
        while (!atomic_load_explicit(&from->full, memory_order_acquire)) {
            if (atomic_load(&run.sealed) && !atomic_load(&from->full)) {
                note_end(me);
                return NULL;
            }
            sched_yield();
        }
        for (size_t i = run.depth; i-- > 0;) {
            put(me->kind, &me->mine, from->blocks[i]);
        }
        atomic_store_explicit(&from->full, false, memory_order_release);
    }
}

static void
free_nodes(node *first)
{
    while (first != NULL) {
        node *next = first->next;
        free(first);
        first = next;
    }
}

/* What is held, which is freed. */
static size_t
drop_stores(worker *workers, int count, fnet_depot *depot)
{
    size_t held = locked.held * SIZE;
    if (depot != NULL) {
        fnet_cache_stats stats;
        fnet_depot_stats_any(depot, &stats);
        held += stats.held_bytes;
    }
    free_nodes(locked.free);
    locked.free = NULL;
    locked.held = 0;
    for (int i = 0; i < count; i++) {
        held += workers[i].mine.held * SIZE;
        free_nodes(workers[i].mine.free);
        if (workers[i].mine.cache != NULL) {
            fnet_cache_free(workers[i].mine.cache);
        }
    }
    if (depot != NULL) {
        fnet_depot_free(depot);
    }
    return held;
}

static void
must(int rc)
{
    if (rc != 0) {
        fputs("cachebench: cannot start\n", stderr);
        exit(1);
    }
}

static void
measure(enum kind kind, int threads, int ms, bool pass)
{
    static worker workers[MAX_THREADS];
    fnet_depot *depot = NULL;
    memset(workers, 0, sizeof(workers));
    must(pthread_barrier_init(&run.barrier, NULL, (unsigned)threads + 1));
    atomic_store(&run.stop, false);
    atomic_store(&run.sealed, false);
    if (kind == MAGAZINE) {
        must(fnet_depot_new(&depot, LIMIT));
    }
    for (int i = 0; i < threads; i++) {
        workers[i].kind = kind;
        if (kind == MAGAZINE) {
            must(fnet_cache_new(&workers[i].mine.cache, depot));
        }
        void *(*role)(void *) = !pass ? work : i == 0 ? take : give_back;
        must(pthread_create(&workers[i].thread, NULL, role, &workers[i]));
    }
    pthread_barrier_wait(&run.barrier);
    struct timespec wait = {.tv_sec = ms / 1000,
                            .tv_nsec = ms % 1000 * 1000000L};
    nanosleep(&wait, NULL);
    atomic_store(&run.stop, true);
    uint64_t pairs = 0;
    int64_t cpu = 0, begin = INT64_MAX, end = 0;
    for (int i = 0; i < threads; i++) {
        pthread_join(workers[i].thread, NULL);
        pairs += workers[i].pairs;
        cpu += workers[i].cpu;
        begin = workers[i].begin < begin ? workers[i].begin : begin;
        end = workers[i].end > end ? workers[i].end : end;
    }
    double wall = (double)(end - begin);
    size_t held = drop_stores(workers, threads, depot);
    pthread_barrier_destroy(&run.barrier);
    printf("{\"kind\": \"%s\", \"threads\": %d, \"depth\": %zu, \"pass\": %s, "
           "\"pairs\": %llu, \"wall_ns\": %.3f, \"cpu_ns\": %.3f, "
           "\"held\": %zu}\n",
           names[kind], threads, run.depth, pass ? "true" : "false",
           (unsigned long long)pairs, wall / (double)pairs,
           (double)cpu / (double)pairs, held);
}

int
main(int argc, char **argv)
{
    if (argc < 5) {
        fputs("usage: cachebench THREADS DEPTH ROUNDS MS [pass]\n", stderr);
        return 2;
    }
    int threads = atoi(argv[1]);
    int depth = atoi(argv[2]);
    bool pass = argc > 5;
    if (threads < 1 || threads > MAX_THREADS || depth < 1 ||
        depth > MAX_DEPTH || (pass && threads != 2)) {
        fputs("cachebench: no such thing\n", stderr);
        return 2;
    }
    run.depth = (size_t)depth;
    run.slots = RING_BLOCKS / run.depth;
    if (run.slots < RING_LEAST) {
        run.slots = RING_LEAST;
    }
    for (int round = 0; round < atoi(argv[3]); round++) {
        for (int kind = 0; kind < KINDS; kind++) {
            measure((enum kind)kind, threads, atoi(argv[4]), pass);
        }
    }
    return 0;
}
