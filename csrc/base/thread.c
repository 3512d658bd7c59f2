#include "base/thread.h"

#include <errno.h>
#include <signal.h>

#if FNET_DEBUG >= 1

#include <stdatomic.h>

static atomic_long fail_after = -1;

static bool
must_fail(void)
{
    long left = atomic_load(&fail_after);
    if (left > 0) {
        atomic_fetch_sub(&fail_after, 1);
    }
    return left == 0;
}

void
fnet_thread_fail_after(long n)
{
    atomic_store(&fail_after, n < 0 ? -1 : n);
}

#else

static inline bool
must_fail(void)
{
    return false;
}

void
fnet_thread_fail_after(long n)
{
}

#endif

int
fnet_thread_start(pthread_t *out, void *(*run)(void *), void *arg)
{
    sigset_t all, before;

    if (must_fail()) {
        return -EAGAIN;
    }
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int rc = pthread_create(out, NULL, run, arg);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return -rc;
}
