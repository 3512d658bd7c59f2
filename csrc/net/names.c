#include "net/names.h"

#include "base/clock.h"
#include "base/mem.h"

#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <time.h>

/* An idle thread holds its stack: a program that looks up a name now and then
 * does without it, one that does so in bursts does not start threads anew. */
#define IDLE (5 * FNET_SEC)

/* One per process, because the number of threads is bounded per process; it
 * knows nothing of Python and outlives every loop. */
static struct {
    /* a leaf: taken under no lock of the core's, and nothing is taken under
     * it (a wake-up writes to an eventfd) */
    pthread_mutex_t mutex;
    /* guarded by mutex */
    pthread_cond_t wake;
    fnet_list queue;   /* not begun, first come first */
    fnet_list running; /* a thread is busy with them */
    unsigned queued, threads, idle;
    int64_t stay; /* how long an idle thread stays, ns */
} pool = {.mutex = PTHREAD_MUTEX_INITIALIZER, .stay = IDLE};

static pthread_once_t once = PTHREAD_ONCE_INIT;

static fnet_lookup *
lookup_of(fnet_list *node)
{
    return fnet_container_of(node, fnet_lookup, node);
}

/* -- look-ups ----------------------------------------------------------- */

static char *
copy_text(const char *text)
{
    size_t n = strlen(text) + 1;
    char *copy = fnet_malloc(n);
    return copy == NULL ? NULL : memcpy(copy, text, n);
}

static void
discard(fnet_lookup *lookup)
{
    if (lookup->list != NULL) {
        freeaddrinfo(lookup->list);
    }
    fnet_free(lookup->host);
    fnet_free(lookup->service);
    fnet_free(lookup);
}

static fnet_lookup *
make(void)
{
    fnet_lookup *lookup = fnet_calloc(1, sizeof(*lookup));
    if (lookup != NULL) {
        fnet_list_init(&lookup->mine);
        fnet_list_init(&lookup->node);
    }
    return lookup;
}

fnet_lookup *
fnet_lookup_new(const char *host, const char *service, int family, int type,
                int proto, int flags)
{
    fnet_lookup *lookup = make();

    if (lookup == NULL) {
        return NULL;
    }
    lookup->hints.ai_family = family;
    lookup->hints.ai_socktype = type;
    lookup->hints.ai_protocol = proto;
    lookup->hints.ai_flags = flags;
    if ((host != NULL && (lookup->host = copy_text(host)) == NULL) ||
        (service != NULL && (lookup->service = copy_text(service)) == NULL)) {
        discard(lookup);
        return NULL;
    }
    return lookup;
}

fnet_lookup *
fnet_lookup_new_reverse(const struct sockaddr *addr, socklen_t len, int flags)
{
    fnet_lookup *lookup = make();

    if (lookup != NULL) {
        fnet_assert(len <= sizeof(lookup->addr));
        lookup->reverse = true;
        memcpy(&lookup->addr, addr, len);
        lookup->addr_len = len;
        lookup->flags = flags;
    }
    return lookup;
}

typedef struct answer {
    int error, system;
    struct addrinfo *list;
} answer;

/* The texts of a reverse look-up go into the look-up itself, which nobody
 * else reads before it is DONE. */
static answer
resolve(fnet_lookup *lookup, const struct addrinfo *hints)
{
    answer got = {0};

    if (lookup->reverse) {
        got.error =
            getnameinfo((const struct sockaddr *)&lookup->addr,
                        lookup->addr_len, lookup->texts, NI_MAXHOST,
                        lookup->texts + NI_MAXHOST, NI_MAXSERV, lookup->flags);
    }
    else {
        got.error =
            getaddrinfo(lookup->host, lookup->service, hints, &got.list);
    }
    if (got.error == EAI_SYSTEM) {
        got.system = errno;
    }
    if (got.error != 0) {
        got.list = NULL;
    }
    return got;
}

static void
set_answer(fnet_lookup *lookup, const answer *got)
{
    lookup->error = got->error;
    lookup->system = got->system;
    lookup->list = got->list;
    lookup->host_text = lookup->texts;
    lookup->service_text = lookup->texts + NI_MAXHOST;
    lookup->state = FNET_LOOKUP_DONE;
}

static bool
is_number(const char *text)
{
    return text == NULL ||
           (*text != '\0' && strspn(text, "0123456789") == strlen(text));
}

bool
fnet_lookup_try(fnet_lookup *lookup)
{
    const int numbers = NI_NUMERICHOST | NI_NUMERICSERV;
    struct addrinfo hints = lookup->hints;
    bool certain;

    fnet_assert(lookup->state == FNET_LOOKUP_NEW);
    if (lookup->reverse) {
        if ((lookup->flags & numbers) != numbers) {
            return false;
        }
        certain = true;
    }
    else {
        /* With both flags the C library reads no file and asks nobody, and
         * fails where it would have to.  What fails is asked in the caller's
         * words, as the error may be another one. */
        certain =
            (lookup->host == NULL || (hints.ai_flags & AI_NUMERICHOST)) &&
            (is_number(lookup->service) || (hints.ai_flags & AI_NUMERICSERV));
        if (!certain && lookup->host == NULL) {
            return false;
        }
        if (!certain) {
            hints.ai_flags |= AI_NUMERICHOST | AI_NUMERICSERV;
        }
    }
    answer got = resolve(lookup, &hints);
    if (got.error != 0 && !certain) {
        return false;
    }
    set_answer(lookup, &got);
    return true;
}

/* -- the pool ----------------------------------------------------------- */

static void
answer_one(void)
{
    fnet_list *node = fnet_list_pop(&pool.queue);
    fnet_lookup *lookup = lookup_of(node);

    pool.queued--;
    lookup->state = FNET_LOOKUP_RUNNING;
    fnet_list_push(&pool.running, &lookup->node);
    pthread_mutex_unlock(&pool.mutex);
    answer got = resolve(lookup, &lookup->hints);
    pthread_mutex_lock(&pool.mutex);
    fnet_list_remove(&lookup->node);
    set_answer(lookup, &got);
    fnet_names *names = lookup->names;
    if (names == NULL) {
        pthread_mutex_unlock(&pool.mutex);
        discard(lookup);
        pthread_mutex_lock(&pool.mutex);
        return;
    }
    fnet_list_push(&names->done, &lookup->node);
    /* seq_cst: before the wake-up looks whether the loop is asleep; pairs
     * with fnet_names_pending(). */
    atomic_store(&names->news, true);
    /* With the lock held, so that the loop is there still. */
    names->wake_any(names->arg);
}

static void *
work(void *unused)
{
    pthread_mutex_lock(&pool.mutex);
    for (;;) {
        int64_t until = fnet_clock_ns() + pool.stay;
        int rc = 0;
        while (fnet_list_empty(&pool.queue) && rc != ETIMEDOUT) {
            struct timespec at = {.tv_sec = (time_t)(until / FNET_SEC),
                                  .tv_nsec = (long)(until % FNET_SEC)};
            pool.idle++;
            rc = pthread_cond_timedwait(&pool.wake, &pool.mutex, &at);
            pool.idle--;
        }
        if (fnet_list_empty(&pool.queue)) {
            break;
        }
        answer_one();
    }
    pool.threads--;
    pthread_mutex_unlock(&pool.mutex);
    return NULL;
}

/* Where the stack of a thread comes from. */
static int
take_stack(pthread_attr_t *attr)
{
    /* The C library puts a guard page below a stack that it makes. */
    return pthread_attr_setstacksize(attr, FNET_NAMES_STACK);
}

/* All signals are blocked in it: they are for Python's threads. */
static int
start_thread_locked(void)
{
    sigset_t all, before;
    pthread_attr_t attr;
    pthread_t thread;

    int rc = pthread_attr_init(&attr);
    if (rc != 0) {
        return -EAGAIN;
    }
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    rc = pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
    rc = rc != 0 ? rc : take_stack(&attr);
    rc = rc != 0 ? rc : pthread_create(&thread, &attr, work, NULL);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attr);
    if (rc != 0) {
        return -EAGAIN;
    }
    (void)pthread_setname_np(thread, "fnet-names");
    pool.threads++;
    return 0;
}

/* -- fork --------------------------------------------------------------- */

static void
before_fork(void)
{
    pthread_mutex_lock(&pool.mutex);
}

static void
in_parent(void)
{
    pthread_mutex_unlock(&pool.mutex);
}

static void
init_wake(void)
{
    pthread_condattr_t attr;

    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&pool.wake, &attr);
    pthread_condattr_destroy(&attr);
}

static void
lose_all(fnet_list *list)
{
    fnet_list *node;

    while ((node = fnet_list_pop(list)) != NULL) {
        fnet_lookup *lookup = lookup_of(node);
        if (lookup->names == NULL) {
            discard(lookup);
        }
        else {
            lookup->state = FNET_LOOKUP_LOST;
        }
    }
}

static void
in_child(void)
{
    /* The threads that waited for it are gone. */
    init_wake();
    pool.threads = pool.idle = pool.queued = 0;
    lose_all(&pool.queue);
    lose_all(&pool.running);
    pthread_mutex_unlock(&pool.mutex);
}

static void
init_pool(void)
{
    fnet_list_init(&pool.queue);
    fnet_list_init(&pool.running);
    init_wake();
    int rc = pthread_atfork(before_fork, in_parent, in_child);
    if (rc != 0) {
        fnet_panic("names: pthread_atfork: %d", rc);
    }
}

/* -- the loop's side ---------------------------------------------------- */

void
fnet_names_init(fnet_names *names, void (*wake_any)(void *arg), void *arg)
{
    names->wake_any = wake_any;
    names->arg = arg;
    fnet_list_init(&names->done);
    atomic_init(&names->news, false);
}

int
fnet_names_ask(fnet_names *names, fnet_lookup *lookup)
{
    int rc = 0;

    fnet_assert(lookup->state == FNET_LOOKUP_NEW);
    pthread_once(&once, init_pool);
    pthread_mutex_lock(&pool.mutex);
    if (pool.queued >= pool.idle && pool.threads < FNET_NAMES_THREADS) {
        rc = start_thread_locked();
    }
    if (pool.threads > 0) {
        rc = 0;
        lookup->names = names;
        lookup->state = FNET_LOOKUP_QUEUED;
        fnet_list_push(&pool.queue, &lookup->node);
        pool.queued++;
        pthread_cond_signal(&pool.wake);
    }
    pthread_mutex_unlock(&pool.mutex);
    return rc;
}

fnet_lookup *
fnet_names_next(fnet_names *names)
{
    pthread_mutex_lock(&pool.mutex);
    fnet_list *node = fnet_list_pop(&names->done);
    if (node == NULL) {
        atomic_store(&names->news, false);
    }
    pthread_mutex_unlock(&pool.mutex);
    return node == NULL ? NULL : lookup_of(node);
}

void
fnet_lookup_free(fnet_lookup *lookup)
{
    bool busy = false;

    pthread_mutex_lock(&pool.mutex);
    if (lookup->state == FNET_LOOKUP_RUNNING) {
        lookup->names = NULL;
        lookup->owner = NULL;
        busy = true;
    }
    else {
        if (lookup->state == FNET_LOOKUP_QUEUED) {
            pool.queued--;
        }
        fnet_list_remove(&lookup->node);
    }
    pthread_mutex_unlock(&pool.mutex);
    if (!busy) {
        discard(lookup);
    }
}

unsigned
fnet_names_threads(void)
{
    pthread_mutex_lock(&pool.mutex);
    unsigned n = pool.threads;
    pthread_mutex_unlock(&pool.mutex);
    return n;
}

void
fnet_names_set_idle(int64_t ns)
{
    pthread_mutex_lock(&pool.mutex);
    pool.stay = ns;
    pthread_mutex_unlock(&pool.mutex);
}
