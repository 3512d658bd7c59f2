/* inbox: where workers leave their batches for the loop.
 *
 * First come, first delivered; so the batches of one shard keep their order.
 * Whoever posts wakes the loop if it sleeps, once per sleep. */
#ifndef FNET_POLL_INBOX_H
#define FNET_POLL_INBOX_H

#include "base/base.h"
#include "base/list.h"
#include "base/lock.h"
#include "poll/batch.h"
#include "poll/poller.h"

#include <stdatomic.h>

typedef struct fnet_inbox {
    /* What the loop sleeps on: its home shard's poller, or another one while
     * that is lent.  The loop changes it while it is awake. */
    _Atomic(fnet_poller *) sleeper;
    _Atomic(unsigned) count;

    /* guarded by lock */
    fnet_lock lock;
    fnet_list batches;
} fnet_inbox;

FNET_MUST_CHECK int fnet_inbox_init(fnet_inbox *inbox, fnet_poller *sleeper);
/* In a forked child, where another thread of the parent may have been in the
 * middle of anything: forgets what is there. */
void fnet_inbox_forget(fnet_inbox *inbox);
/* It is empty. */
void fnet_inbox_fini(fnet_inbox *inbox);

/* Any thread. */
void fnet_inbox_post_any(fnet_inbox *inbox, fnet_batch *batch);
/* Makes the loop's sleep end, or not begin.  Any thread. */
void fnet_inbox_wake_any(fnet_inbox *inbox);

/* The first batch, NULL: there is none.  The loop's thread; after announcing
 * that it sleeps (fnet_shard_prepare_sleep) it looks again. */
fnet_batch *fnet_inbox_take(fnet_inbox *inbox);

static inline unsigned
fnet_inbox_count(const fnet_inbox *inbox)
{
    /* seq_cst: after prepare_sleep it must not be an old value. */
    return atomic_load(&inbox->count);
}

#endif
