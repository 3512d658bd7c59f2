/* test: what the C test programs share.
 *
 * A program has one function per test and a main of RUN(name) lines that ends
 * with `return test_report();`.  CHECK() works on any thread; a test that
 * leaves memory of the core behind has failed. */
#ifndef FNET_TESTS_TEST_H
#define FNET_TESTS_TEST_H

#include "base/mem.h"

#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

static atomic_int test_broken; /* checks that did not hold */
static int test_passed, test_failed;

#define CHECK(expr)                                                           \
    ((expr) ? (void)0 : test_complain(__FILE__, __LINE__, #expr))

#define RUN(name) test_run(#name, name)

/* Runs the statement in a child: it must end in a panic. */
#define CHECK_PANICS(statement)                                               \
    do {                                                                      \
        pid_t test_child_ = test_fork_quietly();                              \
        if (test_child_ == 0) {                                               \
            statement;                                                        \
            _exit(0);                                                         \
        }                                                                     \
        CHECK(test_child_ > 0);                                               \
        int test_status_ = test_wait(test_child_);                            \
        CHECK(WIFSIGNALED(test_status_) &&                                    \
              WTERMSIG(test_status_) == SIGABRT);                             \
    } while (0)

static inline void
test_complain(const char *file, int line, const char *what)
{
    atomic_fetch_add(&test_broken, 1);
    fprintf(stderr, "%s:%d: CHECK(%s)\n", file, line, what);
}

static inline void
test_run(const char *name, void (*test)(void))
{
    int broken = atomic_load(&test_broken);
    long live = fnet_mem_live();
    test();
    fnet_mem_fail_after(-1);
    CHECK(fnet_mem_live() == live);
    if (atomic_load(&test_broken) == broken) {
        test_passed++;
        return;
    }
    test_failed++;
    fprintf(stderr, "FAILED %s\n", name);
}

static inline int
test_report(void)
{
    printf("%d passed, %d failed\n", test_passed, test_failed);
    return test_failed > 0 || test_passed == 0;
}

/* A child without stderr and core dumps; 0 in the child. */
static inline pid_t
test_fork_quietly(void)
{
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        prctl(PR_SET_DUMPABLE, 0);
        if (freopen("/dev/null", "w", stderr) == NULL) {
            _exit(1);
        }
    }
    return pid;
}

/* The status of a child that has ended. */
static inline int
test_wait(pid_t pid)
{
    int status = 0;
    while (waitpid(pid, &status, 0) < 0) {
    }
    return status;
}

/* A small generator of its own, so that each run of a test is the same. */
static inline uint32_t
test_random(uint32_t *state)
{
    *state = *state * 1664525u + 1013904223u;
    return *state >> 8;
}

#endif
