#include "cache/buf.h"

#include "test.h"

#include <errno.h>

#define KIB ((size_t)1024)
#define MOST (2048 * KIB) /* bytes that a model holds */
#define IOVECS 512

/* A chain over a cache of its own, and the bytes that it must hold. */
typedef struct world {
    fnet_depot *depot;
    fnet_cache *cache;
    fnet_chain chain, spent;
    char *model;
    size_t model_len;
} world;

static char source[MOST]; /* a pattern; what is appended is taken from it */

static void
start(world *w)
{
    *w = (world){.model = malloc(MOST)};
    CHECK(w->model != NULL);
    CHECK(fnet_depot_new(&w->depot, 4096 * KIB) == 0);
    CHECK(fnet_cache_new(&w->cache, w->depot) == 0);
    fnet_chain_init(&w->chain);
    fnet_chain_init(&w->spent);
    for (size_t i = 0; i < sizeof(source); i++) {
        source[i] = (char)(i * 31 + i / 251);
    }
}

static int
count_spent(world *w)
{
    int n = 0;
    while (fnet_chain_pop_spent(&w->spent, w->cache) != NULL) {
        n++;
    }
    return n;
}

static void
finish(world *w)
{
    fnet_chain_clear(&w->chain, w->cache, &w->spent);
    count_spent(w);
    fnet_cache_free(w->cache);
    fnet_depot_free(w->depot);
    free(w->model);
}

/* Whether the chain's pieces are the model's bytes. */
static bool
matches(const world *w)
{
    struct iovec iov[IOVECS];
    int n = fnet_chain_iovecs(&w->chain, iov, IOVECS);
    size_t at = 0;
    for (int i = 0; i < n; i++) {
        if (at + iov[i].iov_len > w->model_len ||
            memcmp(iov[i].iov_base, w->model + at, iov[i].iov_len) != 0) {
            return false;
        }
        at += iov[i].iov_len;
    }
    return at == w->model_len && w->chain.bytes == at &&
           fnet_chain_empty(&w->chain) == (n == 0);
}

static int
append(world *w, const char *data, size_t len)
{
    int rc = fnet_chain_copy(&w->chain, w->cache, data, len);
    if (rc == 0) {
        memcpy(w->model + w->model_len, data, len);
        w->model_len += len;
    }
    return rc;
}

static int
append_ref(world *w, const char *data, size_t len, void *foreign)
{
    int rc = fnet_chain_ref(&w->chain, w->cache, data, len, foreign);
    if (rc == 0) {
        memcpy(w->model + w->model_len, data, len);
        w->model_len += len;
    }
    return rc;
}

static void
consume(world *w, size_t n)
{
    fnet_chain_consume(&w->chain, w->cache, n, &w->spent);
    w->model_len -= n;
    memmove(w->model, w->model + n, w->model_len);
}

static int
pieces(const world *w)
{
    struct iovec iov[IOVECS];
    return fnet_chain_iovecs(&w->chain, iov, IOVECS);
}

static void
small_writes_become_one_piece(void)
{
    world w;
    start(&w);
    CHECK(fnet_chain_empty(&w.chain) && pieces(&w) == 0);
    CHECK(append(&w, source, 0) == 0);
    CHECK(fnet_chain_empty(&w.chain));
    for (size_t i = 0; i < 16; i++) {
        CHECK(append(&w, source + 100 * i, 100) == 0);
        CHECK(matches(&w));
    }
    CHECK(pieces(&w) == 1);
    /* Also behind what was sent of it in the meantime. */
    consume(&w, 550);
    CHECK(append(&w, source, 300) == 0);
    CHECK(pieces(&w) == 1 && matches(&w));
    consume(&w, w.model_len);
    CHECK(fnet_chain_empty(&w.chain) && matches(&w));
    finish(&w);
}

static void
blocks_grow_with_the_chain(void)
{
    const struct {
        size_t len;
        enum fnet_block block;
    } firsts[] = {
        {1, FNET_BLOCK_2K},         {2048 - sizeof(fnet_seg), FNET_BLOCK_2K},
        {2048, FNET_BLOCK_16K},     {10 * KIB, FNET_BLOCK_16K},
        {17 * KIB, FNET_BLOCK_64K}, {300 * KIB, FNET_BLOCK_64K}};
    for (size_t i = 0; i < FNET_COUNTOF(firsts); i++) {
        world w;
        start(&w);
        CHECK(append(&w, source, firsts[i].len) == 0);
        CHECK(w.chain.head->block == (uint32_t)firsts[i].block);
        CHECK(matches(&w));
        finish(&w);
    }
    world w;
    start(&w);
    for (size_t i = 0; i < 200; i++) {
        CHECK(append(&w, source + 1000 * i, 1000) == 0);
    }
    CHECK(matches(&w));
    /* 200 KB of small pieces: 2K, 16K and no more than four of 64K. */
    CHECK(w.chain.head->block == FNET_BLOCK_2K);
    CHECK(w.chain.head->next->block == FNET_BLOCK_16K);
    CHECK(w.chain.tail->block == FNET_BLOCK_64K);
    CHECK(pieces(&w) <= 6);
    /* Not a byte of a block is left unused. */
    for (const fnet_seg *seg = w.chain.head; seg->next; seg = seg->next) {
        CHECK(seg->room == 0);
    }
    finish(&w);
}

static void
a_large_copy_spans_blocks(void)
{
    world w;
    start(&w);
    CHECK(append(&w, source, 10) == 0);
    CHECK(append(&w, source + 10, 300 * KIB) == 0);
    CHECK(pieces(&w) == 6); /* 2K and five of 64K */
    CHECK(matches(&w));
    consume(&w, 10 + 100 * KIB);
    CHECK(matches(&w));
    finish(&w);
    /* The end of a long copy is where more is to be expected. */
    start(&w);
    CHECK(append(&w, source, 65 * KIB) == 0);
    CHECK(pieces(&w) == 2 && w.chain.tail->block == FNET_BLOCK_64K);
    finish(&w);
}

static void
foreign_memory_is_not_copied(void)
{
    world w;
    start(&w);
    int owners[3];
    CHECK(append(&w, source, 10) == 0);
    CHECK(append_ref(&w, source + 1000, 5000, &owners[0]) == 0);
    CHECK(append_ref(&w, source + 9000, 1, &owners[1]) == 0);
    CHECK(append(&w, source + 50, 10) == 0); /* not into the first block */
    CHECK(append_ref(&w, source, 7, &owners[2]) == 0);
    CHECK(pieces(&w) == 5 && matches(&w));
    struct iovec iov[5];
    CHECK(fnet_chain_iovecs(&w.chain, iov, 5) == 5);
    CHECK(iov[1].iov_base == source + 1000 && iov[1].iov_len == 5000);
    consume(&w, 10 + 4999);
    CHECK(fnet_chain_pop_spent(&w.spent, w.cache) == NULL);
    CHECK(matches(&w));
    consume(&w, 1);
    CHECK(fnet_chain_pop_spent(&w.spent, w.cache) == &owners[0]);
    CHECK(fnet_chain_pop_spent(&w.spent, w.cache) == NULL);
    consume(&w, w.model_len); /* the others, in their order */
    CHECK(fnet_chain_pop_spent(&w.spent, w.cache) == &owners[1]);
    CHECK(fnet_chain_pop_spent(&w.spent, w.cache) == &owners[2]);
    CHECK(fnet_chain_pop_spent(&w.spent, w.cache) == NULL);
    CHECK(w.spent.bytes == 0 && fnet_chain_empty(&w.spent));
    finish(&w);
}

static void
nothing_to_send_is_spent_too(void)
{
    world w;
    start(&w);
    int owners[2];
    CHECK(append_ref(&w, source, 0, &owners[0]) == 0);
    consume(&w, 0);
    CHECK(fnet_chain_pop_spent(&w.spent, w.cache) == &owners[0]);
    CHECK(fnet_chain_empty(&w.chain));
    CHECK(append(&w, source, 5) == 0);
    CHECK(append_ref(&w, source, 0, &owners[1]) == 0);
    consume(&w, 5);
    CHECK(fnet_chain_pop_spent(&w.spent, w.cache) == &owners[1]);
    CHECK(fnet_chain_empty(&w.chain));
    finish(&w);
}

static void
iovecs_stop_at_the_bound(void)
{
    world w;
    start(&w);
    int owner;
    for (size_t i = 0; i < 10; i++) {
        CHECK(append_ref(&w, source + i, i + 1, &owner) == 0);
    }
    struct iovec iov[4] = {[3] = {.iov_len = 77}};
    CHECK(fnet_chain_iovecs(&w.chain, iov, 0) == 0);
    CHECK(fnet_chain_iovecs(&w.chain, iov, 3) == 3);
    CHECK(iov[2].iov_base == source + 2 && iov[2].iov_len == 3);
    CHECK(iov[3].iov_len == 77);
    CHECK(fnet_chain_iovecs(&w.chain, iov, 4) == 4);
    finish(&w);
}

static void
clear_gives_everything_back(void)
{
    world w;
    start(&w);
    int owners[2];
    CHECK(append(&w, source, 100 * KIB) == 0);
    CHECK(append_ref(&w, source, 100, &owners[0]) == 0);
    CHECK(append(&w, source, 100) == 0);
    CHECK(append_ref(&w, source, 100, &owners[1]) == 0);
    size_t blocks = (size_t)pieces(&w) - 2;
    fnet_chain_clear(&w.chain, w.cache, &w.spent);
    CHECK(fnet_chain_empty(&w.chain) && w.chain.bytes == 0);
    CHECK(fnet_chain_pop_spent(&w.spent, w.cache) == &owners[0]);
    CHECK(fnet_chain_pop_spent(&w.spent, w.cache) == &owners[1]);
    fnet_cache_stats stats;
    fnet_cache_get_stats(w.cache, &stats);
    CHECK(stats.held_blocks == blocks);
    fnet_chain_clear(&w.chain, w.cache, &w.spent); /* of an empty one */
    w.model_len = 0;
    /* It can be used again, and the blocks and nodes are there. */
    fnet_mem_fail_after(0);
    CHECK(append(&w, source, 100 * KIB) == 0);
    CHECK(append_ref(&w, source, 1, &owners[0]) == 0);
    CHECK(matches(&w));
    fnet_mem_fail_after(-1);
    finish(&w);
}

/* What must be as before when an append has failed. */
typedef struct snapshot {
    fnet_chain chain;
    fnet_seg tail;
    char behind[KIB]; /* the bytes of the tail's room */
} snapshot;

static snapshot
take_snapshot(const world *w)
{
    snapshot s = {.chain = w->chain, .tail = *w->chain.tail};
    if (s.tail.foreign == NULL) {
        memcpy(s.behind, s.tail.data + s.tail.len, sizeof(s.behind));
    }
    return s;
}

static bool
is_as_in(const world *w, const snapshot *s)
{
    const fnet_seg *tail = w->chain.tail;
    return w->chain.head == s->chain.head && tail == s->chain.tail &&
           w->chain.bytes == s->chain.bytes && tail->next == NULL &&
           tail->data == s->tail.data && tail->len == s->tail.len &&
           tail->room == s->tail.room && tail->foreign == s->tail.foreign &&
           (tail->foreign != NULL ||
            memcmp(s->behind, tail->data + tail->len, sizeof(s->behind)) == 0);
}

/* Appends `len` bytes while the n-th allocation fails, for every n. */
static void
copy_with_each_failure(size_t len, bool behind_foreign, long allocations)
{
    int owner;
    long n = 0;
    for (bool failed = true; failed; n++) {
        world w;
        start(&w);
        CHECK(append(&w, source, 700) == 0);
        memset(w.model + 700, 'z', KIB);
        /* The room's bytes have to have a value to be compared. */
        memcpy((char *)w.chain.tail + sizeof(fnet_seg) + 700, w.model + 700,
               KIB);
        if (behind_foreign) {
            CHECK(append_ref(&w, source, 3, &owner) == 0);
        }
        snapshot before = take_snapshot(&w);
        fnet_mem_fail_after(n);
        int rc = append(&w, source + 5, len);
        failed = fnet_mem_failed();
        fnet_mem_fail_after(-1);
        CHECK(rc == (failed ? -ENOMEM : 0));
        CHECK(!failed || is_as_in(&w, &before));
        CHECK(matches(&w));
        CHECK(append(&w, source, 2000) == 0); /* it goes on */
        CHECK(matches(&w));
        finish(&w);
    }
    CHECK(n == allocations + 1);
}

static void
a_failed_append_changes_nothing(void)
{
    copy_with_each_failure(1000, false, 0); /* into the room */
    copy_with_each_failure(2000, false, 1); /* partly into it */
    copy_with_each_failure(300 * KIB, false, 5);
    copy_with_each_failure(2000, true, 1);
    copy_with_each_failure(300 * KIB, true, 5);
    world w;
    start(&w);
    int owner;
    CHECK(append(&w, source, 10) == 0);
    fnet_mem_fail_after(0);
    CHECK(append_ref(&w, source, 5, &owner) == -ENOMEM);
    CHECK(matches(&w) && pieces(&w) == 1);
    CHECK(append_ref(&w, source, 5, &owner) == 0);
    CHECK(matches(&w) && pieces(&w) == 2);
    finish(&w);
    fnet_chain empty;
    fnet_chain_init(&empty);
    start(&w);
    fnet_mem_fail_after(1);
    CHECK(fnet_chain_copy(&empty, w.cache, source, 100 * KIB) == -ENOMEM);
    CHECK(fnet_chain_empty(&empty) && empty.tail == NULL && empty.bytes == 0);
    finish(&w);
}

/* Random appends and sends against the model, allocations failing now and
 * then; foreign memory is told apart by the owner's number. */
static void
random_traffic_matches_the_model(void)
{
    static char owners[4000];
    size_t made = 0, returned = 0;
    uint32_t state = 4;
    world w;
    start(&w);
    for (int i = 0; i < 4000; i++) {
        uint32_t what = test_random(&state) % 8;
        size_t len = test_random(&state) % (what == 0 ? 150 * KIB : 1500) + 1;
        const char *data = source + test_random(&state) % (KIB * KIB);
        if (test_random(&state) % 16 == 0) {
            fnet_mem_fail_after(test_random(&state) % 3);
        }
        if (what >= 5 || w.model_len + len > MOST / 2) {
            size_t most = w.model_len + 1;
            size_t n = test_random(&state) % (most < 9000 ? most : 9000);
            consume(&w, what == 7 ? w.model_len / 2 : n);
        }
        else if (what >= 3) {
            if (append_ref(&w, data, len, &owners[made]) == 0) {
                made++;
            }
        }
        else {
            (void)append(&w, data, len);
        }
        fnet_mem_fail_after(-1);
        CHECK(matches(&w));
        void *owner;
        while (i % 3 == 0 &&
               (owner = fnet_chain_pop_spent(&w.spent, w.cache)) != NULL) {
            CHECK(owner == &owners[returned]);
            returned++;
        }
    }
    consume(&w, w.model_len);
    returned += (size_t)count_spent(&w);
    CHECK(made > 500 && returned == made);
    finish(&w);
}

static void
misuse_panics(void)
{
    world w;
    start(&w);
    CHECK(append(&w, source, 10) == 0);
    CHECK_PANICS(consume(&w, 11));
    CHECK_PANICS((void)append_ref(&w, source, 1, NULL));
    w.chain.bytes++;
    CHECK_PANICS((void)append(&w, source, 1));
    w.chain.bytes--;
    finish(&w);
}

int
main(void)
{
    RUN(small_writes_become_one_piece);
    RUN(blocks_grow_with_the_chain);
    RUN(a_large_copy_spans_blocks);
    RUN(foreign_memory_is_not_copied);
    RUN(nothing_to_send_is_spent_too);
    RUN(iovecs_stop_at_the_bound);
    RUN(clear_gives_everything_back);
    RUN(a_failed_append_changes_nothing);
    RUN(random_traffic_matches_the_model);
    RUN(misuse_panics);
    return test_report();
}
