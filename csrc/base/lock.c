#include "base/lock.h"

#include <errno.h>

#if FNET_DEBUG >= 1

#include <stdatomic.h>

/* One bit per rank that this thread holds; ascending order means that no rank
 * is held twice. */
static _Thread_local unsigned held;

/* The owner is relaxed throughout: a thread only ever asks whether it is
 * itself, and what it has written itself it sees. */
static void
check_order(const fnet_lock *lock)
{
    if (fnet_lock_is_mine(lock)) {
        fnet_panic("lock: rank %d taken twice", (int)lock->rank);
    }
    if (held >> lock->rank) {
        fnet_panic("lock: rank %d taken with ranks 0x%x held", (int)lock->rank,
                   held);
    }
}

static void
note_taken(fnet_lock *lock)
{
    atomic_store_explicit(&lock->owner, (uintptr_t)pthread_self(),
                          memory_order_relaxed);
    held |= 1u << lock->rank;
}

static void
note_released(fnet_lock *lock)
{
    fnet_assert_locked(lock);
    atomic_store_explicit(&lock->owner, 0, memory_order_relaxed);
    held &= ~(1u << lock->rank);
}

bool
fnet_lock_is_mine(const fnet_lock *lock)
{
    return atomic_load_explicit(&lock->owner, memory_order_relaxed) ==
           (uintptr_t)pthread_self();
}

#else

static inline void
check_order(const fnet_lock *lock)
{
}

static inline void
note_taken(fnet_lock *lock)
{
}

static inline void
note_released(fnet_lock *lock)
{
}

#endif

int
fnet_lock_init(fnet_lock *lock, enum fnet_lock_rank rank)
{
    pthread_mutexattr_t attr;
    int rc = pthread_mutexattr_init(&attr);

    if (rc == 0) {
#ifdef PTHREAD_ADAPTIVE_MUTEX_INITIALIZER_NP
        /* Locks are held for less than it takes to put a thread to sleep and
         * wake it: a waiter looks a few times before. */
        (void)pthread_mutexattr_settype(&attr, PTHREAD_MUTEX_ADAPTIVE_NP);
#endif
        rc = pthread_mutex_init(&lock->mutex, &attr);
        pthread_mutexattr_destroy(&attr);
    }
    if (rc != 0) {
        return -rc;
    }
#if FNET_DEBUG >= 1
    lock->rank = rank;
    atomic_init(&lock->owner, 0);
#endif
    return 0;
}

void
fnet_lock_fini(fnet_lock *lock)
{
    int rc = pthread_mutex_destroy(&lock->mutex);
    fnet_assert(rc == 0);
    (void)rc;
}

void
fnet_lock_acquire(fnet_lock *lock)
{
    check_order(lock);
    int rc = pthread_mutex_lock(&lock->mutex);
    fnet_assert(rc == 0);
    (void)rc;
    note_taken(lock);
}

bool
fnet_lock_try(fnet_lock *lock)
{
    check_order(lock);
    int rc = pthread_mutex_trylock(&lock->mutex);
    if (rc != 0) {
        fnet_assert(rc == EBUSY);
        return false;
    }
    note_taken(lock);
    return true;
}

void
fnet_lock_release(fnet_lock *lock)
{
    note_released(lock);
    int rc = pthread_mutex_unlock(&lock->mutex);
    fnet_assert(rc == 0);
    (void)rc;
}

int
fnet_cond_init(fnet_cond *cond)
{
    return -pthread_cond_init(&cond->cond, NULL);
}

void
fnet_cond_fini(fnet_cond *cond)
{
    int rc = pthread_cond_destroy(&cond->cond);
    fnet_assert(rc == 0);
    (void)rc;
}

void
fnet_cond_wait(fnet_cond *cond, fnet_lock *lock)
{
    note_released(lock);
    int rc = pthread_cond_wait(&cond->cond, &lock->mutex);
    fnet_assert(rc == 0);
    (void)rc;
    note_taken(lock);
}

void
fnet_cond_broadcast(fnet_cond *cond)
{
    pthread_cond_broadcast(&cond->cond);
}
