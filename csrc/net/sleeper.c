#include "net/sleeper.h"

#include "base/clock.h"
#include "base/sys.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>

/* How often a thread without an eventfd looks whether it was woken. */
#define LOOK (20 * FNET_MSEC)

/* -- forks -------------------------------------------------------------- */

static atomic_uint generation;
static pthread_mutex_t fork_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_key_t thread_end;
static bool have_thread_end;

static void
before_fork(void)
{
    pthread_mutex_lock(&fork_lock);
}

static void
after_fork_in_parent(void)
{
    pthread_mutex_unlock(&fork_lock);
}

static void
after_fork_in_child(void)
{
    /* Relaxed: there is one thread. */
    atomic_fetch_add_explicit(&generation, 1, memory_order_relaxed);
    pthread_mutex_unlock(&fork_lock);
}

static void
close_wakefd(void *kept)
{
    fnet_sys_close((int)(intptr_t)kept - 1);
}

static void
watch_once(void)
{
    if (pthread_atfork(before_fork, after_fork_in_parent,
                       after_fork_in_child) != 0) {
        fnet_panic("sleeper: no memory to watch for forks");
    }
    have_thread_end = pthread_key_create(&thread_end, close_wakefd) == 0;
}

void
fnet_fork_watch(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    (void)pthread_once(&once, watch_once);
}

unsigned
fnet_fork_generation(void)
{
    return atomic_load_explicit(&generation, memory_order_relaxed);
}

void
fnet_fork_lock(void)
{
    pthread_mutex_lock(&fork_lock);
}

void
fnet_fork_unlock(void)
{
    pthread_mutex_unlock(&fork_lock);
}

/* -- the thread's eventfd ----------------------------------------------- */

static _Thread_local struct {
    int wakefd_1; /* one more than the descriptor; 0: none yet */
    unsigned generation;
} thread;

uintptr_t
fnet_thread_self(void)
{
    return (uintptr_t)&thread;
}

static FNET_COLD void
make_wakefd(void)
{
    if (thread.wakefd_1 > 0) {
        /* The parent's: what is written there wakes its thread. */
        fnet_sys_close(thread.wakefd_1 - 1);
        thread.wakefd_1 = 0;
    }
    /* Without the key nobody would close it when the thread ends. */
    int fd = have_thread_end ? fnet_sys_eventfd() : -1;
    if (fd >= 0 &&
        pthread_setspecific(thread_end, (void *)((intptr_t)fd + 1)) != 0) {
        fnet_sys_close(fd);
        fd = -1;
    }
    if (fd >= 0) {
        thread.wakefd_1 = fd + 1;
        thread.generation = fnet_fork_generation();
    }
}

/* -- sleeping ----------------------------------------------------------- */

void
fnet_sleeper_init(fnet_sleeper *sleeper)
{
    if (thread.wakefd_1 == 0 || thread.generation != fnet_fork_generation()) {
        make_wakefd();
    }
    fnet_list_init(&sleeper->link);
    sleeper->wakefd = thread.wakefd_1 - 1;
    sleeper->woken = false;
    sleeper->granted = false;
}

int
fnet_sleeper_sleep(fnet_sleeper *sleeper, int fd, short events, int64_t until,
                   int64_t now)
{
    struct pollfd fds[2] = {
        {.fd = fd, .events = events},
        {.fd = sleeper->wakefd, .events = POLLIN},
    };
    int64_t timeout = -1;
    if (until != FNET_NEVER || sleeper->wakefd < 0) {
        now = now != 0 ? now : fnet_clock_ns();
        timeout = until > now ? until - now : 0;
        if (sleeper->wakefd < 0 && timeout > LOOK) {
            timeout = LOOK;
        }
    }
    int n = fnet_sys_poll(fds, 2, timeout);
    if (n <= 0) {
        return n;
    }
    return fds[0].revents != 0;
}

void
fnet_sleeper_wake_locked(fnet_sleeper *sleeper)
{
    if (!sleeper->woken) {
        sleeper->woken = true;
        if (sleeper->wakefd >= 0) {
            uint64_t one = 1;
            (void)fnet_sys_write(sleeper->wakefd, &one, sizeof(one));
        }
    }
}

void
fnet_sleeper_done_locked(fnet_sleeper *sleeper)
{
    fnet_list_remove(&sleeper->link);
    if (sleeper->woken) {
        sleeper->woken = false;
        if (sleeper->wakefd >= 0) {
            uint64_t count;
            (void)fnet_sys_read(sleeper->wakefd, &count, sizeof(count));
        }
    }
}
