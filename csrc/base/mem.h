/* mem: the core's only door to the allocator.
 *
 * Any thread.  Every caller handles NULL; tests make the n-th call fail to
 * prove it. */
#ifndef FNET_BASE_MEM_H
#define FNET_BASE_MEM_H

#include "base/base.h"

/* Like malloc, calloc, realloc and free; NULL when memory is short or when a
 * test has asked for it.  `n` is never 0. */
FNET_MUST_CHECK void *fnet_malloc(size_t n);
FNET_MUST_CHECK void *fnet_calloc(size_t count, size_t size);
FNET_MUST_CHECK void *fnet_realloc(void *ptr, size_t n);
void fnet_free(void *ptr);

/* Tests: let `n` more allocations succeed and make the one after them fail
 * (once); n < 0 (the default) makes none fail. */
void fnet_mem_fail_after(long n);

/* For what is not had from malloc (a mapping, a thread): counts as an
 * allocation, and is true if it is the one that must fail. */
FNET_MUST_CHECK bool fnet_mem_denied(void);

/* True if the failure asked for by fnet_mem_fail_after() has happened. */
bool fnet_mem_failed(void);

/* Blocks handed out and not freed, in builds with FNET_DEBUG >= 1; else 0. */
long fnet_mem_live(void);

#endif
