#include "poll/batch.h"

#include "test.h"

#define BLOCK_SIZE ((size_t)256 * 1024)

typedef struct store {
    fnet_depot *depot;
    fnet_cache *cache;
    fnet_batch batch;
    fnet_source source;
} store;

static void
store_init(store *s)
{
    CHECK(fnet_depot_new(&s->depot, 64 * BLOCK_SIZE) == 0);
    CHECK(fnet_cache_new(&s->cache, s->depot) == 0);
    fnet_batch_init(&s->batch);
    fnet_source_init(&s->source, NULL, NULL);
    s->source.tag = UINT64_C(7) << 32 | 3;
}

static void
store_fini(store *s)
{
    fnet_batch_fini(&s->batch, s->cache);
    fnet_cache_free(s->cache);
    fnet_depot_free(s->depot);
}

/* Blocks that lie in the cache. */
static size_t
blocks_kept(const store *s)
{
    fnet_cache_stats stats;
    fnet_cache_get_stats(s->cache, &stats);
    return stats.held_blocks;
}

/* Takes `want` bytes and fills all that there is room for. */
static char *
take(store *s, size_t want, size_t *room)
{
    *room = 0;
    char *place = fnet_batch_reserve(&s->batch, s->cache, want, room);
    if (place != NULL) {
        CHECK(*room >= want);
        memset(place, 'x', *room);
        fnet_batch_commit(&s->batch, want);
    }
    return place;
}

static void
a_completion(void)
{
    store s;
    store_init(&s);
    memset(s.batch.items, 0xff, sizeof(s.batch.items)); /* of the last pass */
    fnet_completion *item =
        fnet_batch_push(&s.batch, &s.source, FNET_WHAT_ERROR, -5);
    CHECK(item == &s.batch.items[0] && s.batch.count == 1);
    CHECK(item->source == &s.source && item->tag == s.source.tag);
    CHECK(item->what == FNET_WHAT_ERROR && item->result == -5);
    CHECK(item->data == NULL && item->len == 0 && item->landing == NULL);
    CHECK(fnet_batch_push(&s.batch, &s.source, FNET_WHAT_EOF, 0) ==
          &s.batch.items[1]);
    store_fini(&s);
}

static void
full(void)
{
    store s;
    store_init(&s);
    for (int i = 0; i < FNET_BATCH_MAX; i++) {
        CHECK(!fnet_batch_full(&s.batch));
        fnet_batch_push(&s.batch, &s.source, FNET_WHAT_DATA, i);
    }
    CHECK(fnet_batch_full(&s.batch));
    CHECK(s.batch.items[FNET_BATCH_MAX - 1].result == FNET_BATCH_MAX - 1);
    CHECK_PANICS(fnet_batch_push(&s.batch, &s.source, FNET_WHAT_DATA, 0));
    fnet_batch_reset(&s.batch, s.cache, false);
    CHECK(!fnet_batch_full(&s.batch) && s.batch.count == 0);
    /* It is full of bytes, too, but a completion of those fits in. */
    s.batch.bytes = FNET_BATCH_BYTES - 1;
    CHECK(!fnet_batch_full(&s.batch));
    s.batch.bytes++;
    CHECK(fnet_batch_full(&s.batch));
    CHECK(fnet_batch_push(&s.batch, &s.source, FNET_WHAT_DATA, 0) != NULL);
    fnet_batch_reset(&s.batch, s.cache, true);
    CHECK(!fnet_batch_full(&s.batch) && s.batch.bytes == 0);
    store_fini(&s);
}

static void
places_lie_behind_each_other(void)
{
    store s;
    size_t room;
    store_init(&s);
    char *first = take(&s, 1, &room);
    CHECK(first != NULL && room == BLOCK_SIZE);
    char *second = take(&s, 64, &room);
    CHECK(second == first + 64 && room == BLOCK_SIZE - 64);
    char *third = take(&s, 65, &room);
    CHECK(third == second + 64);
    char *last = take(&s, BLOCK_SIZE - 256, &room);
    CHECK(last == third + 128 && room == BLOCK_SIZE - 256);
    CHECK(s.batch.nblocks == 1);
    /* Nothing is left of the block, so the next one is begun. */
    CHECK(take(&s, 1, &room) != NULL && room == BLOCK_SIZE);
    CHECK(s.batch.nblocks == 2);
    store_fini(&s);
}

/* What is reserved and not committed is given out again. */
static void
a_place_that_was_not_used(void)
{
    store s;
    size_t room = 0;
    store_init(&s);
    char *place = fnet_batch_reserve(&s.batch, s.cache, 100, &room);
    CHECK(place != NULL && room == BLOCK_SIZE);
    CHECK(fnet_batch_reserve(&s.batch, s.cache, BLOCK_SIZE, &room) == place);
    fnet_batch_commit(&s.batch, BLOCK_SIZE - 1);
    /* Up to the end of the block, not beyond. */
    CHECK(fnet_batch_reserve(&s.batch, s.cache, 1, &room) != NULL);
    CHECK(room == BLOCK_SIZE && s.batch.nblocks == 2);
    store_fini(&s);
}

static void
no_more_than_its_blocks(void)
{
    store s;
    size_t room;
    store_init(&s);
    for (unsigned i = 0; i < FNET_BATCH_BLOCKS; i++) {
        CHECK(take(&s, BLOCK_SIZE - 128, &room) != NULL);
        CHECK(s.batch.nblocks == i + 1);
    }
    CHECK(take(&s, 129, &room) == NULL && room == 0);
    CHECK(s.batch.nblocks == FNET_BATCH_BLOCKS);
    CHECK(take(&s, 128, &room) != NULL && room == 128); /* this fits in */
    CHECK(take(&s, 1, &room) == NULL);
    store_fini(&s);
}

static void
blocks_go_back_to_the_cache(void)
{
    store s;
    size_t room;
    store_init(&s);
    char *first = take(&s, BLOCK_SIZE, &room);
    for (int i = 1; i < FNET_BATCH_BLOCKS; i++) {
        CHECK(take(&s, BLOCK_SIZE, &room) != NULL);
    }
    CHECK(blocks_kept(&s) == 0);
    fnet_batch_reset(&s.batch, s.cache, false);
    CHECK(blocks_kept(&s) == FNET_BATCH_BLOCKS - 1);
    CHECK(s.batch.nblocks == 1 && s.batch.used == 0);
    CHECK(take(&s, BLOCK_SIZE, &room) == first); /* the warm one */
    fnet_batch_reset(&s.batch, s.cache, true);
    CHECK(blocks_kept(&s) == FNET_BATCH_BLOCKS);
    CHECK(s.batch.nblocks == 0);
    fnet_batch_reset(&s.batch, s.cache, true); /* nothing to give back */
    CHECK(blocks_kept(&s) == FNET_BATCH_BLOCKS);
    CHECK(take(&s, 10, &room) != NULL && room == BLOCK_SIZE);
    fnet_batch_fini(&s.batch, s.cache);
    CHECK(blocks_kept(&s) == FNET_BATCH_BLOCKS);
    store_fini(&s);
}

static void
without_memory(void)
{
    store s;
    size_t room;
    store_init(&s);
    fnet_mem_fail_after(0);
    CHECK(take(&s, 1, &room) == NULL && fnet_mem_failed());
    CHECK(s.batch.nblocks == 0 && s.batch.used == 0);
    char *first = take(&s, BLOCK_SIZE - 64, &room);
    CHECK(first != NULL);
    fnet_mem_fail_after(0);
    CHECK(take(&s, 65, &room) == NULL && fnet_mem_failed());
    /* The rest of the block is still to be had. */
    CHECK(take(&s, 64, &room) == first + BLOCK_SIZE - 64);
    CHECK(take(&s, 65, &room) != NULL && s.batch.nblocks == 2);
    store_fini(&s);
}

int
main(void)
{
    RUN(a_completion);
    RUN(full);
    RUN(places_lie_behind_each_other);
    RUN(a_place_that_was_not_used);
    RUN(no_more_than_its_blocks);
    RUN(blocks_go_back_to_the_cache);
    RUN(without_memory);
    return test_report();
}
