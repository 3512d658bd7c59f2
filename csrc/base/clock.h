/* clock: the monotonic clock, in nanoseconds.  Any thread. */
#ifndef FNET_BASE_CLOCK_H
#define FNET_BASE_CLOCK_H

#include "base/base.h"

#define FNET_MSEC INT64_C(1000000)
#define FNET_SEC INT64_C(1000000000)

/* CLOCK_MONOTONIC: the clock of Python's time.monotonic(). */
int64_t fnet_clock_ns(void);

#endif
