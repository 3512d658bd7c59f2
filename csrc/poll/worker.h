/* worker: a thread that runs the passes of a shard that is lent to it.
 *
 * The loop's thread lends a shard and asks for it back; the worker gives it
 * back between two passes.  What its passes bring goes to the loop's inbox, a
 * batch at a time; the loop returns each batch when it has delivered it.
 *
 *     lend      TURN -> LENT   at once
 *     recall    LENT -> TURN   when the worker comes by; the shard is the
 *                              loop's again once every batch is returned
 *     stop      joins the thread; a shard that was lent stays so, and start
 *               goes on with it (for a fork)
 *
 * The thread is started by the first lend, never runs Python, blocks all
 * signals, and sleeps when there is nothing to do. */
#ifndef FNET_POLL_WORKER_H
#define FNET_POLL_WORKER_H

#include "base/base.h"
#include "poll/inbox.h"
#include "poll/shard.h"

typedef struct fnet_worker fnet_worker;

/* All of it for the loop's thread (stop and start also: the thread that is
 * about to fork, or has forked). */

/* 0 or -ENOMEM; no thread yet. */
FNET_MUST_CHECK int fnet_worker_new(fnet_worker **out, fnet_shard *shard,
                                    fnet_inbox *inbox);
/* The thread is stopped and every batch is returned. */
void fnet_worker_free(fnet_worker *worker);

/* Lends the shard, between two passes of the loop's own: 0, or a negative
 * errno with the shard as it was (no thread, no memory). */
FNET_MUST_CHECK int fnet_worker_lend(fnet_worker *worker);
/* Asks for the shard. */
void fnet_worker_recall(fnet_worker *worker);
/* The shard is the loop's again: given back, and every batch returned. */
bool fnet_worker_is_back(fnet_worker *worker);

/* Ends and joins the thread. */
void fnet_worker_stop(fnet_worker *worker);
/* Starts it again if the shard is lent: 0 or a negative errno. */
FNET_MUST_CHECK int fnet_worker_start(fnet_worker *worker);
/* In a forked child: forgets the thread, which is not there, and if it was
 * not stopped before the fork what it was doing. */
void fnet_worker_forget(fnet_worker *worker);
/* Likewise: no batch is in any list but that of the free ones. */
void fnet_worker_forget_batches(fnet_worker *worker);
/* With the thread stopped: the shard is the loop's, whatever it was. */
void fnet_worker_take_over(fnet_worker *worker);

#endif
