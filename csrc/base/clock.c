#include "base/clock.h"

#include <time.h>

int64_t
fnet_clock_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now); /* cannot fail on Linux */
    return (int64_t)now.tv_sec * FNET_SEC + now.tv_nsec;
}
