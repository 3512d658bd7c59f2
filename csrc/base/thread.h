/* thread: how the core starts its threads.
 *
 * They never run Python and have all signals blocked: those are for the
 * threads of the program.  Any thread. */
#ifndef FNET_BASE_THREAD_H
#define FNET_BASE_THREAD_H

#include "base/base.h"

#include <pthread.h>

/* 0, or a negative errno (-EAGAIN: no thread to be had). */
FNET_MUST_CHECK int fnet_thread_start(pthread_t *out, void *(*run)(void *),
                                      void *arg);

/* Tests: let `n` more threads start and refuse those after them, as if the
 * system had no more; n < 0 (the default) refuses none.  Without effect below
 * FNET_DEBUG 1. */
void fnet_thread_fail_after(long n);

#endif
