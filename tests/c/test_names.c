/* The pool of look-ups.  The resolver is this file's: what a program defines
 * comes before the C library's. */
#include "net/names.h"
#include "test.h"

#include "base/clock.h"

#include <errno.h>
#include <pthread.h>
#include <time.h>

/* -- a resolver to be told what to do ----------------------------------- */

static pthread_mutex_t gate = PTHREAD_MUTEX_INITIALIZER; /* "slow" waits */
static atomic_int calls, inside, most_inside, freed;
static atomic_int last_flags;

static void
enter(void)
{
    int now = atomic_fetch_add(&inside, 1) + 1;
    int most = atomic_load(&most_inside);
    while (now > most &&
           !atomic_compare_exchange_weak(&most_inside, &most, now)) {
    }
    atomic_fetch_add(&calls, 1);
}

int
getaddrinfo(const char *restrict host, const char *restrict service,
            const struct addrinfo *restrict hints,
            struct addrinfo **restrict list)
{
    int rc = 0;

    bool look_up = !(hints->ai_flags & AI_NUMERICHOST);
    if (look_up) {
        enter();
    }
    atomic_store(&last_flags, hints->ai_flags);
    bool number = host == NULL || strspn(host, "0123456789.") == strlen(host);
    if (host != NULL && strcmp(host, "broken") == 0) {
        errno = EMFILE;
        rc = EAI_SYSTEM;
    }
    else if (!number && !look_up) {
        rc = EAI_NONAME;
    }
    else if (host != NULL && strcmp(host, "slow") == 0) {
        pthread_mutex_lock(&gate);
        pthread_mutex_unlock(&gate);
    }
    if (rc == 0) {
        *list = calloc(1, sizeof(**list));
        (*list)->ai_family = AF_INET;
    }
    if (look_up) {
        atomic_fetch_sub(&inside, 1);
    }
    return rc;
}

void
freeaddrinfo(struct addrinfo *list)
{
    atomic_fetch_add(&freed, 1);
    free(list);
}

int
getnameinfo(const struct sockaddr *restrict addr, socklen_t len,
            char *restrict host, socklen_t host_len, char *restrict service,
            socklen_t service_len, int flags)
{
    enter();
    snprintf(host, host_len, "host-%d", (int)addr->sa_family);
    snprintf(service, service_len, "service-%d", flags);
    atomic_fetch_sub(&inside, 1);
    return 0;
}

/* -- a loop -------------------------------------------------------------- */

typedef struct asker {
    fnet_names names;
    pthread_mutex_t mutex;
    pthread_cond_t cond;
    int wakes;
} asker;

static void
wake(void *arg)
{
    asker *loop = arg;
    pthread_mutex_lock(&loop->mutex);
    loop->wakes++;
    pthread_cond_signal(&loop->cond);
    pthread_mutex_unlock(&loop->mutex);
}

static void
asker_init(asker *loop)
{
    pthread_mutex_init(&loop->mutex, NULL);
    pthread_cond_init(&loop->cond, NULL);
    loop->wakes = 0;
    fnet_names_init(&loop->names, wake, loop);
    atomic_store(&calls, 0);
    atomic_store(&most_inside, 0);
    atomic_store(&freed, 0);
}

static void
asker_fini(asker *loop)
{
    CHECK(fnet_list_empty(&loop->names.done));
    pthread_cond_destroy(&loop->cond);
    pthread_mutex_destroy(&loop->mutex);
}

static fnet_lookup *
next(asker *loop)
{
    fnet_lookup *lookup;
    while ((lookup = fnet_names_next(&loop->names)) == NULL) {
        pthread_mutex_lock(&loop->mutex);
        while (!fnet_names_pending(&loop->names)) {
            pthread_cond_wait(&loop->cond, &loop->mutex);
        }
        pthread_mutex_unlock(&loop->mutex);
    }
    return lookup;
}

static fnet_lookup *
ask(asker *loop, const char *host)
{
    fnet_lookup *lookup = fnet_lookup_new(host, "http", 0, 0, 0, 0);
    CHECK(lookup != NULL && !fnet_lookup_try(lookup));
    CHECK(fnet_names_ask(&loop->names, lookup) == 0);
    return lookup;
}

static void
nap(void)
{
    nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
}

#define WAIT_FOR(condition)                                                   \
    do {                                                                      \
        int naps_ = 0;                                                        \
        while (!(condition) && naps_++ < 5000) {                              \
            nap();                                                            \
        }                                                                     \
        CHECK(condition);                                                     \
    } while (0)

/* -- tests --------------------------------------------------------------- */

static void
test_numbers_need_no_thread(void)
{
    fnet_lookup *lookup = fnet_lookup_new("1.2.3.4", "80", 0, 0, 0, 0);
    CHECK(fnet_lookup_try(lookup));
    CHECK(lookup->state == FNET_LOOKUP_DONE && lookup->error == 0);
    CHECK(lookup->list != NULL);
    fnet_lookup_free(lookup);

    lookup = fnet_lookup_new(NULL, "80", 0, 0, 0, AI_PASSIVE);
    CHECK(fnet_lookup_try(lookup) && lookup->error == 0);
    fnet_lookup_free(lookup);

    /* No look-up is wanted: the error is the answer. */
    lookup = fnet_lookup_new("name", "80", 0, 0, 0, AI_NUMERICHOST);
    CHECK(fnet_lookup_try(lookup) && lookup->error == EAI_NONAME);
    CHECK(atomic_load(&last_flags) == AI_NUMERICHOST);
    fnet_lookup_free(lookup);

    struct sockaddr_in addr = {.sin_family = AF_INET};
    lookup = fnet_lookup_new_reverse((struct sockaddr *)&addr, sizeof(addr),
                                     NI_NUMERICHOST | NI_NUMERICSERV);
    CHECK(fnet_lookup_try(lookup) && lookup->error == 0);
    CHECK(strcmp(lookup->host_text, "host-2") == 0);
    CHECK(strcmp(lookup->service_text, "service-3") == 0);
    fnet_lookup_free(lookup);
    CHECK(fnet_names_threads() == 0);
}

static void
test_answers(void)
{
    asker loop;
    int owner;

    asker_init(&loop);
    fnet_lookup *lookup = ask(&loop, "name");
    lookup->owner = &owner;
    CHECK(next(&loop) == lookup);
    CHECK(lookup->owner == &owner && lookup->error == 0);
    CHECK(lookup->list != NULL && lookup->list->ai_family == AF_INET);
    CHECK(loop.wakes == 1);
    CHECK(fnet_names_next(&loop.names) == NULL);
    CHECK(!fnet_names_pending(&loop.names));
    fnet_lookup_free(lookup);
    CHECK(atomic_load(&freed) == 1);

    lookup = ask(&loop, "broken");
    CHECK(next(&loop) == lookup);
    CHECK(lookup->error == EAI_SYSTEM && lookup->system == EMFILE);
    CHECK(lookup->list == NULL);
    fnet_lookup_free(lookup);

    struct sockaddr_in addr = {.sin_family = AF_INET};
    lookup = fnet_lookup_new_reverse((struct sockaddr *)&addr, sizeof(addr),
                                     NI_NUMERICHOST);
    CHECK(!fnet_lookup_try(lookup));
    CHECK(fnet_names_ask(&loop.names, lookup) == 0);
    CHECK(next(&loop) == lookup && lookup->error == 0);
    CHECK(strcmp(lookup->host_text, "host-2") == 0);
    fnet_lookup_free(lookup);
    asker_fini(&loop);
}

static void
test_threads_are_bounded_and_end(void)
{
    enum { MANY = 100 };
    asker loop;

    fnet_names_set_idle(20 * FNET_MSEC);
    asker_init(&loop);
    pthread_mutex_lock(&gate);
    for (int i = 0; i < MANY; i++) {
        ask(&loop, "slow");
    }
    CHECK(fnet_names_threads() == FNET_NAMES_THREADS);
    WAIT_FOR(atomic_load(&inside) == FNET_NAMES_THREADS);
    pthread_mutex_unlock(&gate);
    for (int i = 0; i < MANY; i++) {
        fnet_lookup *lookup = next(&loop);
        CHECK(lookup->error == 0);
        fnet_lookup_free(lookup);
    }
    CHECK(atomic_load(&most_inside) <= FNET_NAMES_THREADS);
    WAIT_FOR(fnet_names_threads() == 0);
    /* And again. */
    ask(&loop, "name");
    fnet_lookup_free(next(&loop));
    WAIT_FOR(fnet_names_threads() == 0);
    asker_fini(&loop);
}

static void
test_cancelled_ones_leave_nothing(void)
{
    fnet_lookup *lookups[FNET_NAMES_THREADS + 20];
    asker loop;

    asker_init(&loop);
    pthread_mutex_lock(&gate);
    for (size_t i = 0; i < FNET_COUNTOF(lookups); i++) {
        lookups[i] = ask(&loop, "slow");
    }
    WAIT_FOR(atomic_load(&inside) == FNET_NAMES_THREADS);
    int asked = atomic_load(&calls);
    for (size_t i = 0; i < FNET_COUNTOF(lookups); i++) {
        fnet_lookup_free(lookups[i]);
    }
    pthread_mutex_unlock(&gate);
    WAIT_FOR(fnet_names_threads() == 0);
    CHECK(atomic_load(&calls) == asked); /* the queued ones never ran */
    CHECK(atomic_load(&freed) == FNET_NAMES_THREADS);
    CHECK(loop.wakes == 0 && !fnet_names_pending(&loop.names));
    /* One that has its answer, which nobody has taken. */
    fnet_lookup *lookup = ask(&loop, "name");
    WAIT_FOR(fnet_names_pending(&loop.names));
    fnet_lookup_free(lookup);
    CHECK(fnet_names_next(&loop.names) == NULL);
    asker_fini(&loop);
    WAIT_FOR(fnet_names_threads() == 0);
}

static void
child(asker *loop, fnet_lookup *running, fnet_lookup *queued)
{
    /* The parent's never come; a new one does. */
    asker own;
    bool good = fnet_names_threads() == 0 &&
                running->state == FNET_LOOKUP_LOST &&
                queued->state == FNET_LOOKUP_LOST &&
                fnet_names_next(&loop->names) == NULL;

    fnet_lookup_free(running);
    fnet_lookup_free(queued);
    asker_init(&own);
#ifndef __SANITIZE_THREAD__ /* which has no threads in a child of threads */
    fnet_lookup *lookup = ask(&own, "name");
    good = good && next(&own) == lookup && lookup->error == 0;
    fnet_lookup_free(lookup);
#endif
    _exit(good ? 0 : 1);
}

static void
test_fork(void)
{
    fnet_lookup *lookups[FNET_NAMES_THREADS + 1];
    asker loop;

    asker_init(&loop);
    pthread_mutex_lock(&gate);
    for (size_t i = 0; i < FNET_COUNTOF(lookups); i++) {
        lookups[i] = ask(&loop, "slow");
    }
    WAIT_FOR(atomic_load(&inside) == FNET_NAMES_THREADS);
    pid_t pid = fork();
    if (pid == 0) {
        child(&loop, lookups[0], lookups[FNET_NAMES_THREADS]);
    }
    int status = test_wait(pid);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    pthread_mutex_unlock(&gate);
    for (size_t i = 0; i < FNET_COUNTOF(lookups); i++) {
        fnet_lookup_free(next(&loop));
    }
    asker_fini(&loop);
    WAIT_FOR(fnet_names_threads() == 0);
}

static void
test_memory_runs_out(void)
{
    for (long n = 0; n < 3; n++) {
        fnet_mem_fail_after(n);
        CHECK(fnet_lookup_new("host", "service", 0, 0, 0, 0) == NULL);
        CHECK(fnet_mem_failed());
    }
    fnet_mem_fail_after(-1);
}

static void *
churn(void *arg)
{
    asker *loop = arg;
    uint32_t random = (uint32_t)(uintptr_t)&random;

    for (int round = 0; round < 200; round++) {
        fnet_lookup *some[4];
        for (int i = 0; i < 4; i++) {
            some[i] = ask(loop, "name");
        }
        int kept = 4;
        if (test_random(&random) % 2 == 0) {
            fnet_lookup_free(some[test_random(&random) % 4]);
            kept--;
        }
        while (kept-- > 0) {
            fnet_lookup_free(next(loop));
        }
    }
    return NULL;
}

/* Loops of several threads at once; the look-ups that are freed may have
 * their answers already. */
static void
test_many_loops(void)
{
    pthread_t threads[4];
    asker loops[4];

    for (int i = 0; i < 4; i++) {
        asker_init(&loops[i]);
        CHECK(pthread_create(&threads[i], NULL, churn, &loops[i]) == 0);
    }
    for (int i = 0; i < 4; i++) {
        pthread_join(threads[i], NULL);
        asker_fini(&loops[i]);
    }
    WAIT_FOR(fnet_names_threads() == 0);
}

int
main(void)
{
    RUN(test_numbers_need_no_thread);
    RUN(test_answers);
    RUN(test_threads_are_bounded_and_end);
    RUN(test_cancelled_ones_leave_nothing);
    RUN(test_fork);
    RUN(test_memory_runs_out);
    RUN(test_many_loops);
    return test_report();
}
