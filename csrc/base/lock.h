/* lock: a mutex whose owner and rank are checked in debug builds.
 *
 * Ranks are the lock order: a thread takes locks in ascending rank only.  No
 * lock is held across a callback or a call that can block (the output lock is
 * held across non-blocking sends). */
#ifndef FNET_BASE_LOCK_H
#define FNET_BASE_LOCK_H

#include "base/base.h"

#include <pthread.h>

enum fnet_lock_rank {
    FNET_RANK_SHARDSET = 1,
    FNET_RANK_OUTPUT = 2, /* a shard's output; all of a shard that is lent */
    FNET_RANK_INBOX = 3,
    FNET_RANK_DEPOT = 4,
    FNET_RANK_FD = 5, /* a descriptor's waiting calls: a leaf */
};

typedef struct fnet_lock {
    pthread_mutex_t mutex;
#if FNET_DEBUG >= 1
    enum fnet_lock_rank rank;
    _Atomic(uintptr_t) owner; /* pthread_self(), 0 when free */
#endif
} fnet_lock;

FNET_MUST_CHECK int fnet_lock_init(fnet_lock *lock, enum fnet_lock_rank rank);
void fnet_lock_fini(fnet_lock *lock);
void fnet_lock_acquire(fnet_lock *lock);
/* False if another thread holds it. */
bool fnet_lock_try(fnet_lock *lock);
void fnet_lock_release(fnet_lock *lock);

/* A condition; whoever waits for it or tells of it has the lock. */
typedef struct fnet_cond {
    pthread_cond_t cond;
} fnet_cond;

FNET_MUST_CHECK int fnet_cond_init(fnet_cond *cond);
void fnet_cond_fini(fnet_cond *cond);
/* Gives up the lock until the condition is told of; may return early. */
void fnet_cond_wait(fnet_cond *cond, fnet_lock *lock);
void fnet_cond_broadcast(fnet_cond *cond);

#if FNET_DEBUG >= 1
bool fnet_lock_is_mine(const fnet_lock *lock);
#define fnet_assert_locked(lock) fnet_assert(fnet_lock_is_mine(lock))
#else
#define fnet_assert_locked(lock) ((void)(lock))
#endif

#endif
