#include "base/mem.h"

#include <stdlib.h>

#if FNET_DEBUG >= 1

#include <stdatomic.h>

/* All relaxed: counters that order nothing.  Tests read them when the threads
 * that allocate have been joined. */
static atomic_long live;
static atomic_long fail_after = -1;
static atomic_bool failed;

static bool
must_fail(void)
{
    if (FNET_LIKELY(atomic_load_explicit(&fail_after, memory_order_relaxed) <
                    0)) {
        return false;
    }
    /* Threads that race here may take it below -1: it is off all the same,
     * and one of them alone has seen the 0. */
    if (atomic_fetch_sub_explicit(&fail_after, 1, memory_order_relaxed) != 0) {
        return false;
    }
    atomic_store_explicit(&failed, true, memory_order_relaxed);
    return true;
}

static void *
count_new(void *ptr)
{
    if (ptr != NULL) {
        atomic_fetch_add_explicit(&live, 1, memory_order_relaxed);
    }
    return ptr;
}

void *
fnet_malloc(size_t n)
{
    fnet_assert(n > 0);
    return must_fail() ? NULL : count_new(malloc(n));
}

void *
fnet_calloc(size_t count, size_t size)
{
    fnet_assert(count > 0 && size > 0);
    return must_fail() ? NULL : count_new(calloc(count, size));
}

void *
fnet_realloc(void *ptr, size_t n)
{
    fnet_assert(n > 0);
    if (must_fail()) {
        return NULL;
    }
    return ptr == NULL ? count_new(malloc(n)) : realloc(ptr, n);
}

void
fnet_free(void *ptr)
{
    if (ptr != NULL) {
        long before =
            atomic_fetch_sub_explicit(&live, 1, memory_order_relaxed);
        fnet_assert(before > 0);
        free(ptr);
    }
}

void
fnet_mem_fail_after(long n)
{
    atomic_store_explicit(&failed, false, memory_order_relaxed);
    atomic_store_explicit(&fail_after, n < 0 ? -1 : n, memory_order_relaxed);
}

bool
fnet_mem_denied(void)
{
    return must_fail();
}

bool
fnet_mem_failed(void)
{
    return atomic_load_explicit(&failed, memory_order_relaxed);
}

long
fnet_mem_live(void)
{
    return atomic_load_explicit(&live, memory_order_relaxed);
}

#else

void *
fnet_malloc(size_t n)
{
    return malloc(n);
}

void *
fnet_calloc(size_t count, size_t size)
{
    return calloc(count, size);
}

void *
fnet_realloc(void *ptr, size_t n)
{
    return realloc(ptr, n);
}

void
fnet_free(void *ptr)
{
    free(ptr);
}

void
fnet_mem_fail_after(long n)
{
}

bool
fnet_mem_denied(void)
{
    return false;
}

bool
fnet_mem_failed(void)
{
    return false;
}

long
fnet_mem_live(void)
{
    return 0;
}

#endif
