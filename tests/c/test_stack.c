#include "cache/stack.h"

#include "base/base.h"

#include "test.h"

#include <errno.h>
#include <limits.h>
#include <sched.h>
#include <sys/mman.h>

#define KIB ((size_t)1024)
/* How many are kept of the mapping's size, at most. */
static size_t
kept(size_t size)
{
    return size == 256 * KIB ? 8 : size == 1024 * KIB ? 4 : 0;
}

static fnet_stack_stats
stats(void)
{
    fnet_stack_stats now;
    fnet_stack_stats_any(&now);
    return now;
}

/* -- what a thread sees --------------------------------------------------- */

typedef struct view {
    size_t need;
    size_t size;
    char *bottom; /* the end of the stack, above the guard page */
    char name[16];
    sigset_t blocked;
} view;

/* Fills half of what was asked for and more, in frames of 4 KiB that a
 * sanitizer may make larger: how many. */
static __attribute__((noinline)) size_t
use_stack(size_t bytes)
{
    volatile char frame[4096];
    for (size_t i = 0; i < sizeof(frame); i += 512) {
        frame[i] = (char)bytes;
    }
    size_t deeper = bytes > 8192 ? use_stack(bytes - 8192) : 0;
    return deeper + 1;
}

static void
look_around(void *arg)
{
    view *seen = arg;
    pthread_attr_t attr;
    void *bottom = NULL;
    CHECK(pthread_getattr_np(pthread_self(), &attr) == 0);
    CHECK(pthread_attr_getstack(&attr, &bottom, &seen->size) == 0);
    pthread_attr_destroy(&attr);
    seen->bottom = bottom;
    CHECK((char *)&attr > seen->bottom);
    CHECK((char *)&attr < seen->bottom + seen->size);
    CHECK(pthread_getname_np(pthread_self(), seen->name, 16) == 0);
    CHECK(pthread_sigmask(SIG_SETMASK, NULL, &seen->blocked) == 0);
    CHECK(use_stack(seen->need) > 0);
}

static view
run_one(size_t stack, const char *name)
{
    fnet_thread thread;
    view seen = {.need = stack};
    CHECK(fnet_thread_start(&thread, name, stack, look_around, &seen) == 0);
    CHECK(fnet_thread_started(&thread));
    fnet_thread_join(&thread);
    CHECK(!fnet_thread_started(&thread));
    return seen;
}

/* True if the byte is in a mapping that may be read. */
static bool
is_readable(const char *where)
{
    char line[512];
    bool readable = false;
    FILE *file = fopen("/proc/self/maps", "r");
    CHECK(file != NULL);
    while (file != NULL && fgets(line, sizeof(line), file) != NULL) {
        char *rest;
        unsigned long from = strtoul(line, &rest, 16);
        unsigned long to = strtoul(rest + 1, &rest, 16);
        if ((uintptr_t)where >= from && (uintptr_t)where < to) {
            readable = rest[1] == 'r';
        }
    }
    if (file != NULL) {
        fclose(file);
    }
    return readable;
}

static void
a_thread_has_what_it_needs(void)
{
    const size_t sizes[] = {FNET_STACK_CORE, FNET_STACK_LIBS, 3000 * KIB};
    const int numbers[] = {SIGINT,  SIGTERM, SIGALRM, SIGUSR1, SIGCHLD,
                           SIGSEGV, SIGPROF, SIGHUP,  SIGRTMIN};
    for (size_t i = 0; i < FNET_COUNTOF(sizes); i++) {
        view seen = run_one(sizes[i], "a-name-of-more-than-15");
        CHECK(seen.size >= sizes[i]);
        CHECK(strcmp(seen.name, "a-name-of-more-") == 0);
        for (size_t k = 0; k < FNET_COUNTOF(numbers); k++) {
            CHECK(sigismember(&seen.blocked, numbers[k]) == 1);
        }
    }
    sigset_t mine; /* are as they were */
    CHECK(pthread_sigmask(SIG_SETMASK, NULL, &mine) == 0);
    CHECK(sigismember(&mine, SIGINT) == 0);
    CHECK(run_one(FNET_STACK_LIBS, "x").size >= 512 * KIB);
}

static void
there_is_a_guard_page(void)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    fnet_stack_trim_any();
    view seen = run_one(FNET_STACK_CORE, "guarded");
    CHECK(is_readable(seen.bottom));
    CHECK(is_readable(seen.bottom + seen.size - 1));
    CHECK(!is_readable(seen.bottom - 1));
    CHECK(!is_readable(seen.bottom - page));
    /* It is there when the stack has been used again. */
    view again = run_one(FNET_STACK_CORE, "guarded");
    CHECK(again.bottom == seen.bottom);
    CHECK(!is_readable(seen.bottom - 1));
    fnet_stack_trim_any();
    CHECK(!is_readable(seen.bottom)); /* unmapped */
}

/* -- the cache ------------------------------------------------------------ */

static size_t
resident_pages(const view *seen)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    unsigned char *pages = calloc(seen->size / page + 1, 1);
    size_t count = 0;
    CHECK(pages != NULL && mincore(seen->bottom, seen->size, pages) == 0);
    for (size_t i = 0; pages != NULL && i < seen->size / page; i++) {
        count += pages[i] & 1;
    }
    free(pages);
    return count;
}

static void
a_stack_is_used_again_and_keeps_no_memory(void)
{
    fnet_stack_trim_any();
    fnet_stack_stats before = stats();
    CHECK(before.held == 0 && before.held_bytes == 0 && before.running == 0);
    CHECK(before.limit_bytes > 0);
    view first = run_one(FNET_STACK_CORE, "first");
    CHECK(resident_pages(&first) == 0);
    CHECK(stats().held == 1 && stats().held_bytes >= first.size);
    CHECK(stats().misses == before.misses + 1);
    view second = run_one(FNET_STACK_CORE, "second");
    CHECK(second.bottom == first.bottom && second.size == first.size);
    CHECK(stats().hits == before.hits + 1);
    CHECK(stats().misses == before.misses + 1);
    /* Another size has another stack. */
    view third = run_one(FNET_STACK_LIBS, "third");
    CHECK(third.bottom != first.bottom && third.size > first.size);
    CHECK(stats().misses == before.misses + 2 && stats().running == 0);
    fnet_stack_trim_any();
    CHECK(stats().held == 0 && stats().held_bytes == 0);
}

typedef struct gate {
    atomic_int inside;
    atomic_bool open;
} gate;

static void
wait_at_the_gate(void *arg)
{
    gate *at = arg;
    atomic_fetch_add(&at->inside, 1);
    while (!atomic_load(&at->open)) {
        usleep(1000);
    }
}

static void
few_are_kept(void)
{
    enum { MANY = 12 };
    const size_t sizes[] = {FNET_STACK_CORE, FNET_STACK_LIBS, 3000 * KIB};
    for (size_t k = 0; k < FNET_COUNTOF(sizes); k++) {
        fnet_thread threads[MANY];
        size_t size = 0;
        gate at = {0};
        fnet_stack_trim_any();
        for (int i = 0; i < MANY; i++) {
            CHECK(fnet_thread_start(&threads[i], "many", sizes[k],
                                    wait_at_the_gate, &at) == 0);
        }
        CHECK(stats().running == MANY && stats().held == 0);
        CHECK(stats().running_bytes >= MANY * sizes[k]);
        CHECK(stats().high_water >= MANY);
        atomic_store(&at.open, true);
        for (int i = 0; i < MANY; i++) {
            size = threads[i].size;
            fnet_thread_join(&threads[i]);
        }
        CHECK(atomic_load(&at.inside) == MANY);
        CHECK(stats().held == kept(size));
        CHECK(stats().held_bytes == kept(size) * size);
        CHECK(stats().held_bytes <= stats().limit_bytes);
        CHECK(stats().running == 0 && stats().running_bytes == 0);
    }
    fnet_stack_trim_any();
}

static void
set_flag(void *arg)
{
    atomic_store((atomic_bool *)arg, true);
}

/* The kernel writes to the stack of a thread until it is gone. */
static void
a_stack_is_kept_until_the_join(void)
{
    fnet_thread ended, other;
    atomic_bool done = false, also = false;
    fnet_stack_trim_any();
    CHECK(fnet_thread_start(&ended, "ended", FNET_STACK_CORE, set_flag,
                            &done) == 0);
    while (!atomic_load(&done)) {
        sched_yield();
    }
    usleep(20000);
    CHECK(stats().held == 0 && stats().running == 1);
    CHECK(fnet_thread_start(&other, "other", FNET_STACK_CORE, set_flag,
                            &also) == 0);
    CHECK(other.stack != ended.stack);
    fnet_thread_join(&ended);
    fnet_thread_join(&other);
    CHECK(atomic_load(&also));
    CHECK(stats().held == 2);
    fnet_stack_trim_any();
}

static void
every_allocation_may_fail(void)
{
    fnet_thread thread;
    atomic_bool done = false;
    fnet_stack_trim_any();
    fnet_mem_fail_after(0); /* the mapping */
    CHECK(fnet_thread_start(&thread, "none", FNET_STACK_CORE, set_flag,
                            &done) == -ENOMEM);
    CHECK(!fnet_thread_started(&thread) && stats().held == 0);
    fnet_mem_fail_after(1); /* the thread */
    CHECK(fnet_thread_start(&thread, "none", FNET_STACK_CORE, set_flag,
                            &done) == -EAGAIN);
    CHECK(!fnet_thread_started(&thread) && stats().held == 1);
    fnet_mem_fail_after(0); /* the thread, with a stack from the cache */
    CHECK(fnet_thread_start(&thread, "none", FNET_STACK_CORE, set_flag,
                            &done) == -EAGAIN);
    CHECK(fnet_mem_failed() && stats().held == 1 && stats().running == 0);
    CHECK(!atomic_load(&done));
    fnet_mem_fail_after(-1);
    CHECK(fnet_thread_start(&thread, "one", FNET_STACK_CORE, set_flag,
                            &done) == 0);
    fnet_thread_join(&thread);
    CHECK(atomic_load(&done));
    /* More than there can be. */
    CHECK(fnet_thread_start(&thread, "huge", SIZE_MAX / 4, set_flag, &done) ==
          -ENOMEM);
    fnet_stack_trim_any();
}

/* -- forks and many threads ----------------------------------------------- */

/* TSan's runtime starts no threads after a fork with several. */
#ifndef __SANITIZE_THREAD__

static void
in_a_child(fnet_thread *gone)
{
    atomic_bool done = false;
    fnet_thread mine;
    char *stack = gone->stack;
    fnet_thread_forget(gone);
    CHECK(!fnet_thread_started(gone) && stats().running == 0);
    fnet_thread_forget(gone); /* nothing left to forget */
    CHECK(stats().held == 1);
    CHECK(fnet_thread_start(&mine, "child", FNET_STACK_CORE, set_flag,
                            &done) == 0);
    CHECK(mine.stack == stack); /* the one that is not needed any more */
    fnet_thread_join(&mine);
    CHECK(atomic_load(&done) && stats().running == 0);
}

static void
a_child_has_the_stacks_of_threads_that_are_gone(void)
{
    fnet_thread thread;
    gate at = {0};
    fnet_stack_trim_any();
    CHECK(fnet_thread_start(&thread, "parent", FNET_STACK_CORE,
                            wait_at_the_gate, &at) == 0);
    pid_t pid = fork();
    if (pid == 0) {
        alarm(20);
        in_a_child(&thread);
        if (atomic_load(&test_broken) == 0) {
            /* Not by an exit: memcheck would look for leaks, and the C
             * library's record of the thread that is gone is one. */
            raise(SIGKILL);
        }
        _exit(1);
    }
    int status = test_wait(pid);
    CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    atomic_store(&at.open, true);
    fnet_thread_join(&thread);
    fnet_stack_trim_any();
}

#endif

enum { STARTERS = 4, EACH = 100 };

static void *
start_and_join(void *arg)
{
    atomic_int *ran = arg;
    for (int i = 0; i < EACH; i++) {
        fnet_thread threads[3];
        gate at = {.open = true};
        for (int k = 0; k < 3; k++) {
            CHECK(fnet_thread_start(&threads[k], "short",
                                    k == 0 ? FNET_STACK_LIBS : FNET_STACK_CORE,
                                    wait_at_the_gate, &at) == 0);
        }
        for (int k = 0; k < 3; k++) {
            fnet_thread_join(&threads[k]);
        }
        atomic_fetch_add(ran, atomic_load(&at.inside));
        if (i % 16 == 0) {
            fnet_stack_trim_any();
        }
        CHECK(stats().held_bytes <= stats().limit_bytes);
    }
    return NULL;
}

static void
many_start_threads_at_once(void)
{
    pthread_t starters[STARTERS];
    atomic_int ran = 0;
    fnet_stack_stats before = stats();
    for (int i = 0; i < STARTERS; i++) {
        CHECK(pthread_create(&starters[i], NULL, start_and_join, &ran) == 0);
    }
    for (int i = 0; i < STARTERS; i++) {
        CHECK(pthread_join(starters[i], NULL) == 0);
    }
    fnet_stack_stats after = stats();
    CHECK(atomic_load(&ran) == STARTERS * EACH * 3);
    CHECK(after.hits + after.misses - before.hits - before.misses ==
          STARTERS * EACH * 3);
    CHECK(after.hits > before.hits);
    CHECK(after.running == 0 && after.running_bytes == 0);
    fnet_stack_trim_any();
    CHECK(stats().held == 0);
}

static void
misuse_panics(void)
{
    fnet_thread thread = {0};
    CHECK_PANICS(fnet_thread_join(&thread));
}

int
main(void)
{
    RUN(a_thread_has_what_it_needs);
    RUN(there_is_a_guard_page);
    RUN(a_stack_is_used_again_and_keeps_no_memory);
    RUN(few_are_kept);
    RUN(a_stack_is_kept_until_the_join);
    RUN(every_allocation_may_fail);
#ifndef __SANITIZE_THREAD__
    RUN(a_child_has_the_stacks_of_threads_that_are_gone);
#endif
    RUN(many_start_threads_at_once);
    RUN(misuse_panics);
    return test_report();
}
