/* sleeper: how a thread waits for a descriptor and can be woken meanwhile.
 *
 * The thread's own ppoll() on the descriptor and on an eventfd that the thread
 * keeps; whoever must interrupt it finds its sleeper in a list of its own and
 * writes there.  One sleeper per thread sleeps at a time.
 *
 * Also here: what a fork leaves behind. */
#ifndef FNET_NET_SLEEPER_H
#define FNET_NET_SLEEPER_H

#include "base/base.h"
#include "base/list.h"

#define FNET_NEVER INT64_MAX

/* On the stack of the thread that sleeps.  All but `wakefd` is guarded by the
 * lock of whoever wakes it. */
typedef struct fnet_sleeper {
    fnet_list link;
    int wakefd; /* constant; -1: none to be had, looks every 20 ms */
    bool woken;
    bool granted; /* for the waker: the reason */
} fnet_sleeper;

/* Takes the thread's eventfd, which is made on the first sleep. */
void fnet_sleeper_init(fnet_sleeper *sleeper);
/* Waits for `events` on `fd` (-1: for the wake-up alone) until `until`, a time
 * of fnet_clock_ns() or FNET_NEVER.  Positive: the descriptor is ready; 0: the
 * wake-up came, or it is worth a look at the clock; or a negative errno
 * (-EINTR).  `now`: the time, if it is known, else 0.  Without any lock. */
int fnet_sleeper_sleep(fnet_sleeper *sleeper, int fd, short events,
                       int64_t until, int64_t now);
/* Any thread, with the lock; once per sleep, however often it is called. */
void fnet_sleeper_wake_locked(fnet_sleeper *sleeper);
/* The sleeper's thread, with the lock, after each sleep: out of its list, and
 * the eventfd is as it was. */
void fnet_sleeper_done_locked(fnet_sleeper *sleeper);

/* An address that is this thread's alone while it lives. */
uintptr_t fnet_thread_self(void);

/* How many forks lie between this process and the first one.  What remembers
 * another number was last used in a parent: its threads are not here. */
unsigned fnet_fork_generation(void);
/* Before the first use of the above. */
void fnet_fork_watch(void);
/* A lock that a fork finds free; for what has to be put right in the child. */
void fnet_fork_lock(void);
void fnet_fork_unlock(void);

#endif
