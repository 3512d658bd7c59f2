/* base: attributes, assertions and the panic of last resort.
 *
 * Rank 0: included by every file of the core, includes nothing of it.
 * FNET_DEBUG: 0 (NDEBUG) removes all checks, 1 (the default) keeps the cheap
 * ones, 2 (`make debug`) also walks whole structures. */
#ifndef FNET_BASE_BASE_H
#define FNET_BASE_BASE_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifndef FNET_DEBUG
#ifdef NDEBUG
#define FNET_DEBUG 0
#else
#define FNET_DEBUG 1
#endif
#endif

#define FNET_LIKELY(x) __builtin_expect(!!(x), 1)
#define FNET_UNLIKELY(x) __builtin_expect(!!(x), 0)
#define FNET_NORETURN __attribute__((noreturn))
#define FNET_COLD __attribute__((cold, noinline))
#define FNET_PRINTF(fmt, args) __attribute__((format(printf, fmt, args)))
#define FNET_MUST_CHECK __attribute__((warn_unused_result))

#define FNET_COUNTOF(array) (sizeof(array) / sizeof((array)[0]))

/* The object that `ptr` is the member `member` of. */
#define fnet_container_of(ptr, type, member)                                  \
    ((type *)(void *)((char *)(ptr) - offsetof(type, member)))

/* In a loop that waits for another CPU. */
static inline void
fnet_cpu_relax(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* Prints "pyfastnet: <message>" to stderr and aborts: for broken invariants
 * only, never for anything that input can cause.  Any thread. */
FNET_NORETURN FNET_COLD FNET_PRINTF(1, 2) void fnet_panic(const char *fmt,
                                                          ...);

#if FNET_DEBUG >= 1
#define fnet_assert(x)                                                        \
    ((x) ? (void)0 : fnet_panic("%s:%d: %s", __FILE__, __LINE__, #x))
#else
#define fnet_assert(x) ((void)(0 && (x)))
#endif

/* A check that may walk a whole structure. */
#if FNET_DEBUG >= 2
#define fnet_check(x) fnet_assert(x)
#else
#define fnet_check(x) ((void)(0 && (x)))
#endif

#endif
