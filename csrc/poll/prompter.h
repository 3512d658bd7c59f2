/* prompter: sends what a long turn of the loop has left behind.
 *
 * Programs written on asyncio rely on bytes leaving although the handler goes
 * on computing, or blocks until the peer reacts.  Output is deferred to the
 * end of the turn for its speed, so somebody else must send it when the turn
 * takes long: a thread that looks once a millisecond, while output is being
 * deferred at all, and flushes that of a turn which is half a millisecond old;
 * a younger one it visits again when it is a millisecond old.  So no byte
 * waits longer than 1.5 ms, and what the scheduler adds.
 *
 * The thread is started by the first output that is deferred, sleeps when
 * nothing was deferred for a while, never runs Python and blocks all signals.
 * A fork is announced by stop: the child then has no thread less than it
 * should, and Python no reason to warn. */
#ifndef FNET_POLL_PROMPTER_H
#define FNET_POLL_PROMPTER_H

#include "base/base.h"
#include "poll/shard.h"

typedef struct fnet_prompter fnet_prompter;

/* Makes the shard's prompter; no thread yet. */
FNET_MUST_CHECK int fnet_prompter_new(fnet_prompter **out, fnet_shard *shard);
/* Stops the thread and frees. */
void fnet_prompter_free(fnet_prompter *prompter);
/* Ends and joins the thread, if there is one; the next deferral starts it
 * again.  The loop's thread, or the thread about to fork. */
void fnet_prompter_stop(fnet_prompter *prompter);
/* In a forked child: forgets the thread, which is not there. */
void fnet_prompter_forget(fnet_prompter *prompter);
/* Asks the thread, off the loop's, to give free heap memory back to the
 * system (malloc_trim).  Starts the thread if need be. */
void fnet_prompter_trim(fnet_prompter *prompter);

#endif
