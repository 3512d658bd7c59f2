/* shardset: the partition of a loop's connections over shards.
 *
 * A set starts with the home shard, whose pass the loop's thread runs.  Which
 * shard a connection belongs to is chosen once, by fnet_shardset_pick(), and
 * stored in the connection.  Further shards are made when they are first
 * chosen, each with a worker that keeps it; the home shard may be lent to a
 * worker, too, and comes back (fnet_shardset_lend_home and its kin).
 *
 * The loop's thread, except where it says so. */
#ifndef FNET_POLL_SHARDSET_H
#define FNET_POLL_SHARDSET_H

#include "base/base.h"
#include "poll/inbox.h"
#include "poll/shard.h"
#include "poll/worker.h"

#define FNET_SHARDS_MAX 64
/* Shards of a set that is not told how many, at most. */
#define FNET_SHARDS_AUTO 8

typedef struct fnet_member {
    fnet_shard *shard;
    fnet_worker *worker; /* NULL: of home, never lent */
} fnet_member;

typedef struct fnet_shardset {
    fnet_depot *depot;
    fnet_inbox inbox;
    fnet_poller waiter; /* what the loop sleeps on while home is lent */
    bool has_waiter;
    bool home_away;  /* lent, or not wholly back */
    bool incomplete; /* a worker lacks its thread */
    unsigned limit;  /* shards there may be, home included */
    unsigned count;  /* shards there are */
    unsigned spread; /* shards that new connections go to */
    unsigned next;   /* the one for the next connection */
    int failed;      /* why a worker could not be had, 0; no more are tried */
    fnet_member members[FNET_SHARDS_MAX]; /* [0]: home */
} fnet_shardset;

FNET_MUST_CHECK int fnet_shardset_init(fnet_shardset *set, fnet_shard *home,
                                       fnet_depot *depot);
/* All workers are stopped, every source is detached. */
void fnet_shardset_fini(fnet_shardset *set);

/* The shard for a new connection: in turn, home first. */
fnet_shard *fnet_shardset_pick(fnet_shardset *set);

/* Batches wait in the inbox. */
static inline bool
fnet_shardset_has_mail(const fnet_shardset *set)
{
    return fnet_inbox_count(&set->inbox) > 0;
}

/* Lends the home shard, between two of its passes.  0 or a negative errno. */
FNET_MUST_CHECK int fnet_shardset_lend_home(fnet_shardset *set);
void fnet_shardset_recall_home(fnet_shardset *set);
/* Between two turns: true if home is the loop's again. */
bool fnet_shardset_regain_home(fnet_shardset *set);
/* Sleeps until there is mail or somebody wakes the loop; 0 or -EINTR.  For
 * the loop's thread while home is away. */
int fnet_shardset_wait(fnet_shardset *set, int64_t deadline);
/* Announces that: from here on news must be told. */
void fnet_shardset_prepare_sleep(fnet_shardset *set);
/* Makes the loop's sleep end.  Any thread. */
void fnet_shardset_wake_any(fnet_shardset *set);

/* fnet_shard_flush() of each. */
void fnet_shardset_flush(fnet_shardset *set);
/* All threads end; what is lent stays so until start. */
void fnet_shardset_stop(fnet_shardset *set);
/* Where a thread is not to be had, `incomplete` says so: the process that was
 * forked may have taken its place, and be gone soon.  The loop tries again;
 * until then what the shard has waits. */
void fnet_shardset_start(fnet_shardset *set);
/* In a forked child, after stop in the parent: locks and descriptors are made
 * anew, the threads forgotten. */
void fnet_shardset_after_fork(fnet_shardset *set);

#endif
