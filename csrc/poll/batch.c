#include "poll/batch.h"

#define BLOCK FNET_BLOCK_256K
#define ALIGN ((size_t)64)

void
fnet_batch_init(fnet_batch *batch)
{
    batch->count = batch->next = 0;
    batch->nblocks = 0;
    batch->used = 0;
    batch->bytes = 0;
    batch->shard = NULL;
    batch->sequence = 0;
    fnet_list_init(&batch->link);
    batch->tray = NULL;
}

void
fnet_batch_fini(fnet_batch *batch, fnet_cache *cache)
{
    fnet_batch_reset(batch, cache, true);
}

void
fnet_batch_reset(fnet_batch *batch, fnet_cache *cache, bool trim)
{
    unsigned keep = trim ? 0 : 1;
    while (batch->nblocks > keep) {
        fnet_cache_put(cache, BLOCK, batch->blocks[--batch->nblocks]);
    }
    if (batch->tray != NULL && trim) {
        fnet_tray_free(batch->tray);
        batch->tray = NULL;
    }
    else if (batch->tray != NULL && batch->tray->used > 0) {
        fnet_tray_reset(batch->tray);
    }
    batch->count = batch->next = 0;
    batch->used = 0;
    batch->bytes = 0;
}

fnet_completion *
fnet_batch_push(fnet_batch *batch, fnet_source *source, enum fnet_what what,
                int32_t result)
{
    fnet_assert(batch->count < FNET_BATCH_MAX);
    fnet_completion *item = &batch->items[batch->count++];
    *item = (fnet_completion){
        .source = source, .tag = source->tag, .result = result, .what = what};
    source->sequence = batch->sequence;
    return item;
}

char *
fnet_batch_reserve(fnet_batch *batch, fnet_cache *cache, size_t want,
                   size_t *room)
{
    size_t size = fnet_block_size(BLOCK);
    if (batch->nblocks == 0 || size - batch->used < want) {
        if (batch->nblocks == FNET_BATCH_BLOCKS) {
            return NULL;
        }
        char *block = fnet_cache_get(cache, BLOCK);
        if (block == NULL) {
            return NULL;
        }
        batch->blocks[batch->nblocks++] = block;
        batch->used = 0;
    }
    *room = size - batch->used;
    return batch->blocks[batch->nblocks - 1] + batch->used;
}

void
fnet_batch_commit(fnet_batch *batch, size_t n)
{
    /* Aligned, so that no two connections share a cache line. */
    batch->used += (n + ALIGN - 1) & ~(ALIGN - 1);
}

fnet_tray *
fnet_batch_tray(fnet_batch *batch)
{
    if (batch->tray == NULL) {
        batch->tray = fnet_tray_new();
    }
    return batch->tray;
}
