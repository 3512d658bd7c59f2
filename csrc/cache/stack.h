/* stack: threads of the core, on stacks from a bounded cache.
 *
 * A stack is a mapping with a guard page of its own below it.  It goes back
 * to the cache when its thread has been joined, without the memory that it
 * had used; the next thread takes it from there.  The cache is the process's
 * and holds a few stacks of each size, the rest is unmapped.
 *
 * Such a thread blocks all signals (they are for Python's threads), has a
 * name, and never runs Python.  It runs until its function returns; whoever
 * has started it joins it.
 *
 * No locks: a fork at any time leaves the cache usable in the child. */
#ifndef FNET_CACHE_STACK_H
#define FNET_CACHE_STACK_H

#include "base/base.h"

#include <pthread.h>

/* Bytes for a thread that runs the core alone, ... */
#define FNET_STACK_CORE ((size_t)128 * 1024)
/* ... and for one that calls what others wrote: the resolver of the C library
 * with its plug-ins, TLS. */
#define FNET_STACK_LIBS ((size_t)512 * 1024)

/* The thread runs from start to join; until then this stays where it is. */
typedef struct fnet_thread {
    pthread_t id;
    void (*run)(void *arg);
    void *arg;
    char name[16]; /* the kernel's limit, with the 0 at its end */
    void *stack;   /* the mapping; NULL: not started */
    size_t size;   /* its bytes, the guard page included */
} fnet_thread;

typedef struct fnet_stack_stats {
    size_t running; /* stacks in use */
    size_t running_bytes;
    size_t held; /* free and kept */
    size_t held_bytes;
    size_t limit_bytes; /* bound of held_bytes */
    size_t high_water;  /* the most that were in use at once */
    uint64_t hits;      /* threads that found a stack in the cache */
    uint64_t misses;
} fnet_stack_stats;

/* Starts a thread that runs run(arg) with at least `stack` bytes of stack
 * beside what the C library needs.  The name is cut after 15 bytes.  0,
 * -ENOMEM or -EAGAIN (no more threads). */
FNET_MUST_CHECK int fnet_thread_start(fnet_thread *thread, const char *name,
                                      size_t stack, void (*run)(void *arg),
                                      void *arg);
/* Tests: let `n` more threads start and refuse those after them, as if the
 * system had no more; n < 0 (the default) refuses none.  Without effect below
 * FNET_DEBUG 1. */
void fnet_thread_fail_after(long n);
/* Waits for the end of the thread; its stack goes back.  One thread. */
void fnet_thread_join(fnet_thread *thread);
/* In a forked child, where the thread is not: its stack goes back. */
void fnet_thread_forget(fnet_thread *thread);

/* True between start and join. */
static inline bool
fnet_thread_started(const fnet_thread *thread)
{
    return thread->stack != NULL;
}

/* Unmaps what the cache holds.  Any thread. */
void fnet_stack_trim_any(void);
void fnet_stack_stats_any(fnet_stack_stats *out);

#endif
