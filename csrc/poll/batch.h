/* batch: what a pass leaves for the layer above: completions, in order, and
 * the memory that their data is in.
 *
 * The batch is the unit of hand-over between the thread that runs a shard's
 * pass and the loop: whoever holds it owns all that is in it. */
#ifndef FNET_POLL_BATCH_H
#define FNET_POLL_BATCH_H

#include "base/base.h"
#include "base/list.h"
#include "cache/cache.h"
#include "poll/poller.h"
#include "poll/tray.h"

/* 128: no gain above (prototype, proto-1000conn: 32, 128 and 256 are within
 * the noise), and it bounds what the loop delivers in one turn. */
#define FNET_BATCH_MAX 128
/* Bytes after which a pass reads no more: what it brings is still in the
 * second-level cache when the protocols get it, and write it out again
 * (bench.py, proto-100k: CPU per message 1.7 x uvloop's without this bound,
 * when ten messages of 100 KiB came between a read and its delivery). */
#define FNET_BATCH_BYTES ((size_t)128 * 1024)
/* Blocks of 256 KiB: a read may begin just below that bound. */
#define FNET_BATCH_BLOCKS 2

enum fnet_what {
    FNET_WHAT_DATA,      /* bytes were received: data, len (and landing) */
    FNET_WHAT_READABLE,  /* a direct stream can be read now */
    FNET_WHAT_EOF,       /* the peer has sent its last byte */
    FNET_WHAT_ERROR,     /* result: the negative errno of a failed receive,
                            send or accept */
    FNET_WHAT_OUTPUT,    /* the output that was waited for has gone */
    FNET_WHAT_ACCEPTED,  /* result: the descriptor; data, len: its address */
    FNET_WHAT_WATCH,     /* result: the epoll events of a watched one */
    FNET_WHAT_DATAGRAMS, /* result: how many; data: struct mmsghdr of the
                            first in the tray; len: bytes of all */
};

typedef struct fnet_completion {
    fnet_source *source; /* only valid while the tag is */
    uint64_t tag;
    void *data;
    size_t len;
    void *landing; /* whose memory data is, if a landing place; else NULL */
    int32_t result;
    uint32_t what;
} fnet_completion;

typedef struct fnet_batch {
    fnet_completion items[FNET_BATCH_MAX];
    unsigned count;
    unsigned next; /* the first that was not delivered yet */
    char *blocks[FNET_BATCH_BLOCKS];
    unsigned nblocks;
    size_t used;     /* of the last block */
    size_t bytes;    /* received, over all items */
    fnet_tray *tray; /* NULL until datagrams are received */

    /* Of a shard that is lent, see worker.h. */
    fnet_list link;
    struct fnet_shard *shard;
    uint64_t sequence;
} fnet_batch;

void fnet_batch_init(fnet_batch *batch);
void fnet_batch_fini(fnet_batch *batch, fnet_cache *cache);
/* Empties the batch, and keeps its first block for the next time unless
 * `trim`. */
void fnet_batch_reset(fnet_batch *batch, fnet_cache *cache, bool trim);

static inline bool
fnet_batch_full(const fnet_batch *batch)
{
    return batch->count == FNET_BATCH_MAX || batch->bytes >= FNET_BATCH_BYTES;
}

/* Appends a completion of the source; the caller has seen that the batch is
 * not full. */
fnet_completion *fnet_batch_push(fnet_batch *batch, fnet_source *source,
                                 enum fnet_what what, int32_t result);
/* Room for at least `want` bytes (at most a block): where, and how much there
 * is in *room.  NULL when the batch may take no more, or without memory. */
char *fnet_batch_reserve(fnet_batch *batch, fnet_cache *cache, size_t want,
                         size_t *room);
/* Takes the first `n` bytes of what was reserved last. */
void fnet_batch_commit(fnet_batch *batch, size_t n);
/* The batch's tray, made on demand; NULL without memory. */
fnet_tray *fnet_batch_tray(fnet_batch *batch);

#endif
